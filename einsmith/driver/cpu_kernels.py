"""Decide on the configurations of kernels for the CPU, and lower and compile the kernels."""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from einsmith.base import environment
from einsmith.base.caches import Bound, Cache, Once
from einsmith.base.errors import CompileError, EinsmithWarning
from einsmith.codegen.cache import native
from einsmith.codegen.loopnest import nest
from einsmith.cost import facts
from einsmith.cost.facts import Target
from einsmith.driver.backend import Backend, Runnable
from einsmith.ir.nodes import Graph
from einsmith.kernels import autoconfig
from einsmith.kernels.pattern import Lowered, Pattern, describe
from einsmith.kernels.sources import key_of
from einsmith.runtime.assemble import Assembler, CompiledKernel
from einsmith.runtime.program import Program, scratch_area
from einsmith.schedule.kernel import Beyond, Kernel, Rows
from einsmith.tuning.calibration import calibrate
from einsmith.tuning.kernels import decisions, measure, override, records

LONG_TASK = 0.05
"""Predicted seconds of a task from which on the task itself polls whether its run is cancelled."""


class Decision(NamedTuple):
    """The configuration that a kernel is to be compiled to, as `decisions` reads it; empty for the model's choice.
    `recorded`: the text is a tuning record, so the model's choice is used where the text cannot be followed."""

    text: str = ""
    recorded: bool = False

    @property
    def key(self) -> bytes:
        """Return the decision's part of a key of compiled code."""
        return b"tuned\0" * self.recorded + self.text.encode()


MODEL = Decision()
"""The decision that leaves a kernel to the cost model."""
_NATIVE: Cache[tuple[Kernel | Rows, Target, Decision], CompiledKernel] = Cache(
    Bound("machine code of kernels", 2048, 64 << 20), lambda kernel: kernel.nbytes
)
"""Cache of compiled kernels in memory: a kernel that no program uses any more is found again without a disk access."""
_WARNED = Once("records of tuning that cannot be followed")
"""Records of which a warning was given, by (digest of the kernel, text)."""


def identity() -> bytes:
    """Return the part of a key of compiled code that identifies the set of patterns: their names, and the code of
    patterns that are not Einsmith's own. Raises CompileError where that cannot be determined."""
    return b" ".join(p.name.encode() + key_of(p) for p in autoconfig.PATTERNS)


def decisions_of(kernels: Iterable[Kernel | Rows], target: Target) -> dict[Kernel | Rows, Decision]:
    """Decide on each kernel's configuration: an override comes first, then a tuning record, then the model's
    choice."""
    decided = {k: Decision(override.text_of(k)) for k in dict.fromkeys(kernels)}
    if environment.TUNED.get():
        tuned = records.texts_of([k for k, decision in decided.items() if not decision.text], target)
        decided |= {k: Decision(text, recorded=True) for k, text in tuned.items() if text}
    return decided


def compile_decided(
    kernels: Sequence[Kernel | Rows], decided: Mapping[Kernel | Rows, Decision], target: Target
) -> list[CompiledKernel]:
    """Return machine code for each kernel, from memory, from disk, or compiled now. The key of the code is the kernel,
    the target, the decision, and the patterns, which choose where nothing is decided."""
    compiled = {k: _NATIVE.get((k, target, decided[k])) for k in dict.fromkeys(kernels)}
    missing = [k for k, kernel in compiled.items() if kernel is None]
    patterns = identity() if None in compiled.values() else b""

    def choose(numbers: Sequence[int]) -> None:
        """Choose configurations of all kernels in a row, so that the chooser's data stays in the core's caches."""
        for k in (missing[n] for n in numbers):
            if not decided[k].text:
                autoconfig.choose(k, target)

    entries = native.compile_many(
        [(k.digest + patterns + decided[k].key, partial(lower, k, target, decided[k])) for k in missing],
        target,
        choose,
    )
    for k, entry in zip(missing, entries, strict=True):
        meta = entry.metadata
        launches = tuple((entry.addresses[name], tasks, once) for name, tasks, once in meta["launches"])
        compiled[k] = kernel_code = CompiledKernel(
            launches,
            meta["scratch"],
            meta["workspace"],
            meta["pattern"],
            meta["config"],
            meta["seconds"],
            entry.nbytes,
            meta["decision"],
            meta["tuned"],
            meta["unfollowed"],
            Beyond(meta["beyond"]),
        )
        _NATIVE.put((k, target, decided[k]), kernel_code)
        warn_unfollowed(k, decided[k], kernel_code)
    return [compiled[k] for k in kernels]  # type: ignore[misc]


def warn_unfollowed(kernel: Kernel | Rows, decision: Decision, compiled: CompiledKernel) -> None:
    """Warn, once for a record, that a kernel is not compiled as its record says."""
    if compiled.unfollowed and _WARNED((kernel.digest, decision.text)):
        name = decisions.name_of(kernel)[:8]
        warnings.warn(
            f"the kernel {name} ({describe(kernel)}) is compiled as the cost model chooses: {compiled.unfollowed}. "
            f"`einsmith tune --forget {name}` removes the record; if it names a pattern of your own, register "
            "the pattern before the first call",
            EinsmithWarning,
            stacklevel=2,
        )


def _follow(
    kernel: Kernel | Rows, target: Target, decision: Decision
) -> tuple[Decision, autoconfig.Choice, Lowered, str]:
    """Return the decision that is followed, its choice and launches, and a sentence on a record that cannot be
    followed and gives way to the model's choice, else an empty one. Raises CompileError for any other decision."""
    try:
        choice = decisions.choice_of(kernel, target, decision.text)
        return decision, choice, decisions.lower_choice(choice), ""
    except CompileError as e:
        if not decision.recorded:
            raise
        return *_follow(kernel, target, MODEL)[:3], f"the record {decision.text!r} cannot be used: {e}"


def lower(
    kernel: Kernel | Rows, target: Target, decision: Decision = MODEL
) -> tuple[list[nest.Function], dict[str, Any]]:
    """Lower a kernel that is in no cache; return its functions and metadata."""
    decision, choice, lowered, unfollowed = _follow(kernel, target, decision)
    if environment.debug() >= 3:
        print(decisions.explain(kernel, target), file=sys.stderr)
    for f in lowered.functions:
        if len(f.buffers) != len(kernel.buffers) + 1:
            raise decisions.unfit(
                choice,
                f"{f.name} of {len(f.buffers)} buffers; those of the kernel, {len(kernel.buffers)}, and the "
                "workspace are needed",
            )
        if environment.debug() >= 4:
            print(nest.show(f), file=sys.stderr)
    meta = {
        "launches": [(launch.function.name, launch.tasks, launch.loop_invariant) for launch in lowered.launches],
        "scratch": max((f.scratch_bytes for f in lowered.functions), default=0),
        "workspace": lowered.workspace,
        "pattern": choice.pattern.name,
        "config": str(choice.config),
        "seconds": choice.cost.seconds,
        "decision": decision.text,
        "tuned": decision.recorded,
        "unfollowed": unfollowed,
        "beyond": lowered.beyond,
    }
    busy = choice.cost.seconds * min(target.cores, max((launch.tasks for launch in lowered.launches), default=1))
    tasks = Counter[str]()
    for launch in lowered.launches:
        tasks[launch.function.name] += launch.tasks
    return [replace(f, checks_signals=busy >= LONG_TASK * tasks[f.name]) for f in lowered.functions], meta


class CpuBackend(Backend):
    """Base of the CPU's back ends: kernels and machines are the same whether programs run here or are exported."""

    name = facts.CPU

    @property
    def patterns(self) -> Sequence[Pattern]:
        return autoconfig.PATTERNS

    def target(self, threads: int) -> Target:
        return calibrate.target(threads)

    def static_target(self, cores: int) -> Target:
        return replace(native.host_target(), cores=cores)

    def find_graph_decisions(self, graph: Graph, target: Target) -> frozenset[str]:
        return records.find_graph_decisions(graph, target) if environment.TUNED.get() else frozenset()

    def name_graph_record(self, graph: Graph) -> str:
        return records.name_of_graph(graph)[: records.SHOWN_DIGITS]

    def find_graph_ratio(self, graph: Graph, target: Target) -> float:
        return records.find_graph_ratio(graph, target) if environment.TUNED.get() else 1.0

    def find_measured_seconds(self, kernel: Kernel | Rows, target: Target) -> float | None:
        record = records.find(kernel, target)
        return record.seconds if record is not None and record.confirmed else None

    def program(self, assembler: Assembler, threads: int, scratch_bytes: int, scratch: int) -> Runnable:
        return Program(assembler.steps, threads, scratch_bytes, scratch, assembler.seconds(), assembler.commit())

    def scratch_area(self, scratch_bytes: int, threads: int) -> int:
        return scratch_area(scratch_bytes, threads)

    def seconds_of(
        self, kernel: Kernel | Rows, candidates: Sequence[tuple[Pattern, Any]], target: Target, threads: int
    ) -> list[float]:
        return measure.seconds_of(kernel, candidates, target, threads)
