"""Decide on the configurations of kernels, and tune them: what back ends whose kernels are tuned have in common."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Any, NamedTuple

from einsmith.base import environment, locks
from einsmith.base.caches import Once
from einsmith.base.errors import CompileError, EinsmithWarning
from einsmith.cost.facts import Target
from einsmith.driver.backend import Backend
from einsmith.ir.nodes import Graph
from einsmith.kernels import autoconfig
from einsmith.kernels.pattern import Lowered, Pattern, describe
from einsmith.schedule.compiled_kernel import CompiledKernel
from einsmith.schedule.kernel import Kernel
from einsmith.tuning.kernels import decisions, measure, override, race, records, session
from einsmith.tuning.kernels.genetic import Candidate, candidate_of
from einsmith.tuning.kernels.measure import KernelRunner
from einsmith.tuning.kernels.tuner import Effort, Part, RaceResult, SearchResult, Tell, Workshop


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
_WARNED = Once("records of tuning that cannot be followed")
"""Records of which a warning was given, by (digest of the kernel, text)."""


def decisions_of(kernels: Iterable[Kernel], target: Target) -> dict[Kernel, Decision]:
    """Decide on each kernel's configuration: an override comes first, then a tuning record, then the model's
    choice."""
    decided = {k: Decision(override.text_of(k)) for k in dict.fromkeys(kernels)}
    if environment.TUNED.get():
        tuned = records.texts_of([k for k, decision in decided.items() if not decision.text], target)
        decided |= {k: Decision(text, recorded=True) for k, text in tuned.items() if text}
    return decided


def warn_unfollowed(kernel: Kernel, decision: Decision, compiled: CompiledKernel) -> None:
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


def follow(kernel: Kernel, target: Target, decision: Decision) -> tuple[Decision, autoconfig.Choice, Lowered, str]:
    """Return the decision that is followed, its choice and launches, and a sentence on a record that cannot be
    followed and gives way to the model's choice, else an empty one. Raises CompileError for any other decision."""
    try:
        choice = decisions.choice_of(kernel, target, decision.text)
        return decision, choice, decisions.lower_choice(choice), ""
    except CompileError as e:
        if not decision.recorded:
            raise
        return *follow(kernel, target, MODEL)[:3], f"the record {decision.text!r} cannot be used: {e}"


class TunedBackend(Backend):
    """A back end whose kernels are tuned. Records hold for one kind of machine (`Target.identity`)."""

    request_seconds: float | None = None
    """Most seconds that compiling a candidate of a search and running it once takes; None: those of the CPU."""

    @property
    def make(self) -> Callable[[], Backend]:
        """Return a function that can be pickled, and returns this back end in any process."""
        raise self._not_tunable_error()

    @abstractmethod
    def compile_decided(
        self, kernels: Sequence[Kernel], decided: Mapping[Kernel, Decision], target: Target
    ) -> list[CompiledKernel]:
        """Return machine code for each kernel by its decision. Raises CompileError."""

    def compile(self, kernels: Sequence[Kernel], target: Target) -> list[CompiledKernel]:
        return self.compile_decided(kernels, decisions_of(kernels, target), target)

    def compile_as(self, texts: Mapping[Kernel, str], target: Target) -> dict[Kernel, CompiledKernel]:
        recorded = records.texts_of([k for k, text in texts.items() if text], target) if environment.TUNED.get() else {}
        decided = {k: Decision(text, bool(text) and recorded.get(k) == text) for k, text in texts.items()}
        return dict(zip(decided, self.compile_decided(list(decided), decided, target), strict=True))

    def find_graph_decisions(self, graph: Graph, target: Target) -> frozenset[str]:
        return records.find_graph_decisions(graph, target) if environment.TUNED.get() else frozenset()

    def name_graph_record(self, graph: Graph) -> str:
        return records.name_of_graph(graph)[: records.SHOWN_DIGITS]

    def find_graph_ratio(self, graph: Graph, target: Target) -> float:
        return records.find_graph_ratio(graph, target) if environment.TUNED.get() else 1.0

    def keep_graph_decisions(
        self, graph: Graph, target: Target, decisions: frozenset[str], seconds: float, spread: float, prior: float
    ) -> None:
        records.record_graph(graph, target, decisions, seconds, spread, prior)

    def find_measured_seconds(self, kernel: Kernel, target: Target) -> float | None:
        record = records.find(kernel, target)
        return record.seconds if record is not None and record.confirmed else None

    def race(self, first: Callable[[], object], second: Callable[[], object], seconds: float) -> RaceResult:
        return race.race_programs(first, second, seconds, self.overlaps)

    def workshop(self) -> Workshop:
        with locks.IMPORTING:
            from einsmith.tuning.kernels import workshop  # imported late: few programs explore

        return workshop.WorkshopProcess(self.make)

    def seconds_of(
        self, kernel: Kernel, candidates: Sequence[tuple[Pattern, Any]], target: Target, threads: int
    ) -> list[float]:
        return measure.seconds_of(kernel, candidates, target, threads, runner=self.runner)

    def tune(
        self,
        parts: Sequence[Part],
        target: Target,
        threads: int,
        seconds: float,
        tell: Tell,
        executor: Executor | None = None,
        effort: Effort | None = None,
    ) -> list[SearchResult]:
        return session.tune(
            parts,
            target,
            threads,
            seconds,
            tell,
            partial(_first_guesses, target=target),
            lambda result: self.keep(result, target),
            executor,
            partial(_runner_of, self.make),
            self.request_seconds,
            effort,
        )

    def keep(self, result: SearchResult, target: Target) -> None:
        if result.best is None:
            return
        if result.former is None:
            result.former = records.find(result.kernel, target)
        lowest_ratio, highest_ratio = result.spread
        spread = (highest_ratio - lowest_ratio) / 2
        record = records.create(result.kernel, result.best.text, result.seconds, spread, result.prior, confirmed=0)
        records.record_choice(result.kernel, target, record)

    def settle(self, result: SearchResult, target: Target, confirmed: bool) -> None:
        if confirmed:
            records.confirm(result.kernel, target)
        elif result.former is not None:
            records.record_choice(result.kernel, target, result.former)
        else:
            records.remove(result.kernel, target)


def _first_guesses(kernel: Kernel, target: Target) -> list[Candidate]:
    """Return the candidates recorded for a kernel here or elsewhere, or for kernels that differ in extents alone,
    without those that cannot be used."""
    texts = [
        records.text_of(kernel, target),
        *(win.text for win in records.list_guesses(kernel, target)),
        *(win.text for win in records.list_similar_guesses(kernel, target)),
    ]
    return [c for text in texts if (c := candidate_of(kernel, target, text)) is not None]


def _runner_of(make: Callable[[], Backend]) -> KernelRunner:
    """Return what compiles, times and checks the kernels of a back end, in any process."""
    return make().runner
