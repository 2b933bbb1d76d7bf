"""Define what tuning asks of a back end (records, searches, races and a workshop), and the form of its answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from einsmith.base.errors import ArgumentError, CompileError
from einsmith.cost.facts import Target
from einsmith.ir.nodes import Graph
from einsmith.kernels.pattern import Pattern
from einsmith.schedule.compiled_kernel import CompiledKernel
from einsmith.schedule.kernel import Kernel
from einsmith.tuning.kernels.genetic import Candidate
from einsmith.tuning.kernels.measure import KernelRunner
from einsmith.tuning.kernels.model_error import ModelError, Win


class Effort(NamedTuple):
    """How much of a search is measured.

    candidates: most candidates of one kernel. generation: candidates that race at once with the model's choice.
    generations: most generations of a visit to a kernel. race_seconds: most seconds of a race. final_seconds: most
    seconds of the race that decides whether a candidate is kept. final_races: most times that it is run where the
    machine is busy. finalists: most candidates of a visit that get a final race of their own."""

    candidates: int = 100
    generation: int = 4
    generations: int = 2
    race_seconds: float = 0.3
    final_seconds: float = 1.0
    final_races: int = 3
    finalists: int = 2


THOROUGH = Effort()
"""The effort of a search for the best configurations."""
CHEAPEST = Effort(6, 6, 1, 0.1, 0.2, 1, 1)
"""The effort of one race of the six candidates that promise most."""


class Part(NamedTuple):
    """A kernel of a program, and how often a run of the program runs it."""

    kernel: Kernel
    turns: int = 1


@dataclass
class SearchResult:
    """State and result of the search over one kernel.

    Attributes:
        prior: seconds of the model's choice
        seconds: seconds of the best configuration, which is the choice where `best` is None
        spread: the bounds of the median ratio of the best configuration's time to the choice's
        tried: number of candidates that were measured or cannot run
        faults: candidates that crash, hang or are wrong, and how
        busy: what else the machine did when that kept a faster candidate from being significantly faster
    """

    kernel: Kernel
    turns: int
    choice: Candidate
    prior: float
    seconds: float
    best: Candidate | None = None
    spread: tuple[float, float] = (1.0, 1.0)
    tried: int = 0
    faults: list[tuple[Candidate, str]] = field(default_factory=list)
    busy: str = ""
    over: str = ""
    """Why the kernel is not searched any further; empty while it is."""
    former: Any = None
    """The earlier record, which the best configuration has replaced."""


Tell = Callable[[SearchResult, Candidate, float], None]
"""Callback for every measured candidate: the state of its kernel's search, the candidate, and its seconds (infinity:
it cannot run)."""


class RaceResult(NamedTuple):
    """The result of a race of two programs.

    Attributes:
        first, second: median seconds of a run of each
        ratio: the median ratio of paired runs, second over first, which lies between `low` and `high` with 94 %
            confidence
        busy: what else the machine did; empty if nothing
        decides: whether the race had all its rounds
    """

    first: float
    second: float
    ratio: float
    low: float
    high: float
    busy: str
    decides: bool


class Answer(NamedTuple):
    """What a workshop says of the most promising configuration of a kernel.

    Attributes:
        kernel: the kernel
        text: the configuration; None where none is worth a try
        fault: why the configuration may not be used, or why none can be proposed; empty where it may
        saving: fraction of the kernel's present time that it is expected to save
        predicted: its predicted seconds
    """

    kernel: Kernel
    text: str | None
    fault: str = ""
    saving: float = 0.0
    predicted: float = 0.0


class Workshop(Protocol):
    """The place where configurations are proposed, compiled and vetted while a program runs
    (`tuning.programs.dynamic`). No method waits. One thread at a time uses it."""

    @property
    def is_working(self) -> bool:
        """Return whether the workshop computes now, on processors that the program could use."""
        ...

    @property
    def seconds(self) -> float:
        """Return the processor seconds that the workshop has taken so far; infinity where the system does not tell."""
        ...

    def prepare(self) -> None:
        """Begin to start what the workshop computes with, before it is first asked."""
        ...

    def search(self, kernel: Kernel, text: str, target: Target, threads: int, error: ModelError, worth: float) -> None:
        """Begin to look for the configuration of a kernel that is expected to save most, and to vet it. None is vetted
        twice.

        Args:
            kernel: the kernel
            text: its present configuration, whose seconds `tell` has reported
            target: the machine
            threads: threads that run the kernel
            error: errors of the cost model's predictions, as far as they are known
            worth: least fraction of the kernel's time that a configuration must be expected to save to be vetted
        """
        ...

    def poll_answer(self) -> Answer | None:
        """Return the result of the last search; None while there is none."""
        ...

    def pause(self, is_paused: bool) -> None:
        """Pause or resume the workshop."""
        ...

    def tell(self, kernel: Kernel, text: str, seconds: float) -> None:
        """Report the seconds of a run that a configuration of a kernel took; infinity where it may not be used."""
        ...

    def find_win(self, kernel: Kernel, target: Target) -> Win | None:
        """Return the nearest recorded configuration that was faster for a like kernel than the model's choice."""
        ...

    def keep(self, kernel: Kernel, target: Target, text: str, seconds: float, spread: float, ratio: float) -> None:
        """Record a configuration that is faster inside a program, for programs compiled from now on.

        Args:
            kernel: the kernel
            target: the machine
            text: the configuration
            seconds: seconds of a run with it
            spread: the fraction of `seconds` by which runs differ
            ratio: its seconds over those of the configuration that it replaces
        """
        ...

    def close(self) -> None:
        """End the workshop."""
        ...


class Tuner(ABC):
    """What tuning asks of a back end: its records, searches and races. A back end that is not tuned keeps what is here:
    it has no records, and raises ArgumentError where something is to be tuned."""

    name: str

    def find_graph_decisions(self, graph: Graph, target: Target) -> frozenset[str]:
        """Return the decisions by which tuning measured a graph's program to be faster
        (`schedule.graph_decisions`)."""
        return frozenset()

    def name_graph_record(self, graph: Graph) -> str:
        """Return the digits by which `einsmith tune --forget` finds a graph's recorded decisions."""
        raise self._not_tunable_error()

    def find_graph_ratio(self, graph: Graph, target: Target) -> float:
        """Return the time of a graph's program by its recorded decisions, as a ratio to its time where the cost model
        decides; 1 where nothing is recorded."""
        return 1.0

    def keep_graph_decisions(
        self, graph: Graph, target: Target, decisions: frozenset[str], seconds: float, spread: float, prior: float
    ) -> None:
        """Record the decisions by which a graph's program is faster, or forget an earlier record where there are
        none.

        Args:
            graph: the program's graph
            target: the machine that it ran on
            decisions: the decisions, as `schedule.graph_decisions` describes them
            seconds: median seconds of a run
            spread: the fraction of `seconds` by which runs differ
            prior: seconds where the cost model decides
        """
        raise self._not_tunable_error()

    def find_measured_seconds(self, kernel: Kernel, target: Target) -> float | None:
        """Return the seconds of a kernel that tuning has measured; None where it has not."""
        return None

    def race(self, first: Callable[[], object], second: Callable[[], object], seconds: float) -> RaceResult:
        """Time two programs in alternating runs, for at most `seconds` but several rounds. Raises ArgumentError where
        the back end does not tune graphs."""
        raise self._not_tunable_error()

    @property
    def runner(self) -> KernelRunner:
        """Return what compiles, times and checks single kernels. Raises ArgumentError where the back end tunes none."""
        raise ArgumentError(f"kernels of the back end {self.name!r} are not tuned")

    def _not_tunable_error(self) -> ArgumentError:
        return ArgumentError(f"the graphs of programs of the back end {self.name!r} are not tuned")

    def workshop(self) -> Workshop:
        """Return a workshop for programs of this back end. Raises ArgumentError where it has none."""
        raise ArgumentError(f"programs of the back end {self.name!r} are not tuned while they run; use mode='static'")

    def compile_as(self, texts: Mapping[Kernel, str], target: Target) -> dict[Kernel, CompiledKernel]:
        """Compile kernels to configurations that the caller decides. `texts`: decisions in the form that `decisions`
        reads, empty for the model's choice. Raises CompileError for a decision that cannot be followed."""
        raise CompileError(f"kernels of the back end {self.name!r} are always compiled to the cost model's choice")

    @abstractmethod
    def seconds_of(
        self, kernel: Kernel, candidates: Sequence[tuple[Pattern, Any]], target: Target, threads: int
    ) -> list[float]:
        """Measure a kernel in each (pattern, configuration) on data of its own; return the seconds of each."""

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
        """Search the configurations of a program's kernels for `seconds`, and record those that are correct and faster
        than the model's choices; programs compiled later use them.

        `tell` is called with every measurement; `executor` measures on other hosts; `effort` says how much is
        measured of each kernel. Raises ArgumentError where the back
        end has no search.
        """
        raise ArgumentError(f"the back end {self.name!r} has no search; pass tune=0")

    def keep(self, result: SearchResult, target: Target) -> None:
        """Record the best configuration found for a kernel."""
        raise ArgumentError(f"the back end {self.name!r} stores no results of tuning")

    def settle(self, result: SearchResult, target: Target, confirmed: bool) -> None:
        """Keep the recorded configuration of a kernel if a race inside a program confirmed it; otherwise restore the
        record before it."""
        raise ArgumentError(f"the back end {self.name!r} has no search")
