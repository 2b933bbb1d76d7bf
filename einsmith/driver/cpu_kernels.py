"""Decide on the configurations of kernels for the CPU, and lower and compile the kernels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from einsmith.base import environment, messages
from einsmith.base.caches import Bound, Cache
from einsmith.codegen.cache import native
from einsmith.codegen.loopnest import nest
from einsmith.codegen.loopnest.count import count_instructions
from einsmith.codegen.loopnest.nest_text import show
from einsmith.codegen.loopnest.nest_verify import verify
from einsmith.cost import facts
from einsmith.cost.facts import Target
from einsmith.driver.backend import Runnable
from einsmith.driver.tuned import MODEL, Decision, TunedBackend, follow, warn_unfollowed
from einsmith.kernels import autoconfig
from einsmith.kernels.pattern import Pattern
from einsmith.kernels.pattern_keys import key_of
from einsmith.runtime.assemble import Assembler
from einsmith.runtime.program import Program, scratch_area
from einsmith.schedule.compiled_kernel import CompiledKernel
from einsmith.schedule.kernel import Beyond, Kernel
from einsmith.tuning.calibration import calibrate
from einsmith.tuning.kernels import decisions
from einsmith.tuning.kernels.measure import HostRunner

LONG_TASK = 0.05
"""Predicted seconds of a task from which on the task itself polls whether its run is cancelled."""


_NATIVE: Cache[tuple[Kernel, Target, Decision], CompiledKernel] = Cache(
    Bound("machine code of kernels", 2048, 64 << 20), lambda kernel: kernel.nbytes
)
"""Cache of compiled kernels in memory: a kernel that no program uses any more is found again without a disk access."""


def identity() -> bytes:
    """Return the part of a key of compiled code that identifies the set of patterns: their names, and the
    versions of patterns that are registered from outside."""
    return b" ".join(p.name.encode() + key_of(p) for p in autoconfig.PATTERNS)


def compile_decided(
    kernels: Sequence[Kernel], decided: Mapping[Kernel, Decision], target: Target
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
        compiled[k] = kernel_code = compiled_kernel(launches, meta, entry.nbytes)
        _NATIVE.put((k, target, decided[k]), kernel_code)
        warn_unfollowed(k, decided[k], kernel_code)
    return [compiled[k] for k in kernels]  # type: ignore[misc]


def compiled_kernel(
    launches: tuple[tuple[Any, int, bool], ...], meta: Mapping[str, Any], nbytes: int
) -> CompiledKernel:
    """Return a kernel of these launches from the metadata of `lower`. nbytes: bytes of its code."""
    fields = "scratch", "workspace", "pattern", "config", "seconds", "decision", "tuned", "unfollowed"
    return CompiledKernel(launches, nbytes=nbytes, beyond=Beyond(meta["beyond"]), **{x: meta[x] for x in fields})


def lower(kernel: Kernel, target: Target, decision: Decision = MODEL) -> tuple[list[nest.Function], dict[str, Any]]:
    """Lower a kernel that is in no cache; return its functions and metadata."""
    decision, choice, lowered, unfollowed = follow(kernel, target, decision)
    if environment.debug() >= 3:
        messages.say(decisions.explain(kernel, target))
    for f in lowered.functions:
        if len(f.buffers) != len(kernel.buffers) + 1:
            raise decisions.unfit(
                choice,
                f"{f.name} of {len(f.buffers)} buffers; those of the kernel, {len(kernel.buffers)}, and the "
                "workspace are needed",
            )
        if environment.debug() >= 4:
            messages.say(show(f))
            verify(f)
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


class CpuBackend(TunedBackend):
    """Base of the CPU's back ends: kernels and machines are the same whether programs run here or are exported."""

    name = facts.CPU

    @property
    def runner(self) -> HostRunner:
        return HostRunner()

    def compile_decided(
        self, kernels: Sequence[Kernel], decided: Mapping[Kernel, Decision], target: Target
    ) -> list[CompiledKernel]:
        return compile_decided(kernels, decided, target)

    @property
    def patterns(self) -> Sequence[Pattern]:
        return autoconfig.PATTERNS

    def target(self, threads: int) -> Target:
        return calibrate.target(threads)

    def static_target(self, cores: int) -> Target:
        return replace(native.host_target(), cores=cores)

    def count_instructions(
        self, kernel: Kernel, pattern: Pattern, config: Any, target: Target
    ) -> dict[str, int] | None:
        launches = pattern.lower(kernel, config, target).launches
        counts = count_instructions([(x.function, x.tasks) for x in launches])
        return None if counts is None else counts._asdict()

    def program(self, assembler: Assembler, threads: int, scratch_bytes: int, scratch: int) -> Runnable:
        predicted = assembler.seconds(), assembler.commit(), assembler.shared_seconds(threads)
        return Program(assembler.steps, threads, scratch_bytes, scratch, *predicted)

    def scratch_area(self, scratch_bytes: int, threads: int) -> int:
        return scratch_area(scratch_bytes, threads)
