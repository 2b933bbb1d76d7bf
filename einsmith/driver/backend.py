"""Define the interface of a back end: everything below the plan of a program, for one kind of machine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from einsmith.base.errors import ArgumentError, CheckError, CompileError
from einsmith.base.numerics import Numerics
from einsmith.cost.facts import Target
from einsmith.ir.nodes import Graph, Leaf, Tensor
from einsmith.kernels.pattern import Pattern
from einsmith.runtime.arena import Block
from einsmith.runtime.assemble import Assembler
from einsmith.runtime.steps import StepTimes
from einsmith.schedule.compiled_kernel import CompiledKernel
from einsmith.schedule.kernel import Kernel
from einsmith.schedule.plan import KernelCall
from einsmith.tuning.kernels.measure import KernelRunner
from einsmith.tuning.kernels.model_error import ModelError, Win
from einsmith.tuning.kernels.race import RaceResult
from einsmith.tuning.kernels.session import CHEAPEST, Effort, Part, SearchResult, Tell

__all__ = ["CHEAPEST", "Backend", "Effort", "Part", "ProgramInfo", "RaceResult", "Runnable", "SearchResult", "Tell"]


class Runnable(Protocol):
    """A program: the steps (`runtime.steps`) that one call of `run` executes.

    `table` holds every address as np.uint64. `slots[(step, i)]` is the position in the table of pointer i of a step; a
    check has i = 0, a loop has its base i, "stop" and "first". A word written to the table takes effect at the next
    run.
    """

    table: np.ndarray
    slots: dict[tuple[int, int | str], int]

    def run(self) -> int:
        """Run all steps; return 0, or the code of the first check that fails, after which no step runs."""
        ...

    def run_timed(self) -> tuple[int, np.ndarray]:
        """Run all steps; return the result of `run` and the seconds that each step took, summed over all turns."""
        ...

    def run_recorded(self) -> tuple[int, StepTimes]:
        """Run all steps; return the result of `run`, and when which thread was at work."""
        ...

    def move_scratch(self, address: int) -> None:
        """Move the program's scratch memory to `address`, from the next run on."""
        ...


@dataclass(frozen=True)
class ProgramInfo:
    """Information on a whole program that a checked run of it needs.

    Attributes:
        graph, bind: as the caller of compilation passed them
        inputs: the graph's inputs that are not in `bind`
        outputs: the tensors in whose memory the outputs lie, in order
        calls, kernels: the kernel calls, and the code compiled for each
        numerics: how the program may round
        block: the memory of intermediate results, whose first `own_bytes` bytes are the program's
    """

    graph: Graph
    bind: Mapping[Leaf, np.ndarray]
    inputs: Sequence[Leaf]
    outputs: Sequence[Tensor]
    calls: Sequence[KernelCall]
    labels: Sequence[str]
    kernels: Sequence[CompiledKernel]
    target: Target
    numerics: Numerics
    block: Block
    own_bytes: int


@dataclass(frozen=True)
class ProgramTable:
    """A program as data: its words, the number of its steps, the indices of words that are addresses, for the words of
    checks the codes with which they fail, and the predicted seconds of a run."""

    words: tuple[int, ...]
    steps: int
    addresses: tuple[int, ...]
    codes: Mapping[int, int]
    seconds: float


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
    """The place where configurations are proposed, compiled and vetted while a program runs (`tuning.programs.online`).
    No method waits. One thread at a time uses it."""

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
        """Stop the workshop, or let it go on."""
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
        """Confirm that the configuration found for a kernel is the faster one inside a program too; where it is not,
        restore the record that stood before."""
        raise ArgumentError(f"the back end {self.name!r} has no search")


class Backend(Tuner):
    """One kind of machine: its facts, its patterns, its compiler, its memory, and what runs a program's steps.

    `name` is the back end's name in its targets (`Target.backend`). Addresses outside the blocks that `allocate`
    returns (a program's inputs, outputs and bound arrays) are memory of this process.
    """

    in_process: bool = True
    """Whether programs read and change bound arrays where these lie in this process's memory."""
    overlaps: bool = False
    """Whether a program's next run may begin before one has ended (`runtime.cuda.program.CudaProgram.begin`)."""
    card: Any = None
    """What programs on a card share (`runtime.cuda.card.Card`); None where they run on no card."""

    @property
    @abstractmethod
    def patterns(self) -> Sequence[Pattern]:
        """Return the patterns that may compile kernels for targets of this back end."""

    @abstractmethod
    def target(self, threads: int) -> Target:
        """Return the target that describes this machine, with at most `threads` cores."""

    def static_target(self, cores: int) -> Target:
        """Return the target that describes a machine of this kind with `cores` cores, by nothing that was measured:
        choices for it are the same in all processes."""
        return replace(self.target(1), cores=cores)

    @abstractmethod
    def compile(self, kernels: Sequence[Kernel], target: Target) -> list[CompiledKernel]:
        """Compile each kernel to the configuration recorded or chosen for it. Raises CompileError."""

    def compile_as(self, texts: Mapping[Kernel, str], target: Target) -> dict[Kernel, CompiledKernel]:
        """Compile kernels to configurations that the caller decides. `texts`: decisions in the form that `decisions`
        reads, empty for the model's choice. Raises CompileError for a decision that cannot be followed."""
        raise CompileError(f"kernels of the back end {self.name!r} are always compiled to the cost model's choice")

    @abstractmethod
    def allocate(self, nbytes: int) -> Block:
        """Allocate memory for intermediate results. Raises OutOfMemoryError."""

    @abstractmethod
    def program(self, assembler: Assembler, threads: int, scratch_bytes: int, scratch: int) -> Runnable:
        """Return the assembled steps as a program. `scratch_bytes`: scratch of one thread; `scratch`: address of the
        `scratch_area` bytes reserved for it."""

    def derive(
        self, origin: Runnable, assembler: Assembler, threads: int, scratch_bytes: int, scratch: int
    ) -> Runnable:
        """Return the assembled steps as a program that takes turns with `origin`, from which it differs in some kernels
        alone. The other arguments are those of `program`."""
        return self.program(assembler, threads, scratch_bytes, scratch)

    def scratch_area(self, scratch_bytes: int, threads: int) -> int:
        """Return the bytes of memory that a program needs for its scratch, besides its intermediate results."""
        return 0

    def checked(self, assembler: Assembler, info: ProgramInfo, threads: int, scratch_bytes: int) -> Runnable:
        """Return the assembled steps as a program that is checked while it runs (EINSMITH_CHECK). Raises CheckError
        where the back end cannot check."""
        raise CheckError(f"EINSMITH_CHECK cannot check programs of the back end {self.name!r}; unset it")

    def describe_code(self, program: Runnable, steps: Sequence[int]) -> list[str]:
        """Describe the machine code of some steps of a program, one line for each function; no lines where there is
        nothing to tell."""
        return []

    def count_instructions(
        self, kernel: Kernel, pattern: Pattern, config: Any, target: Target
    ) -> dict[str, int] | None:
        """Return the numbers of instructions that a kernel executes in a configuration, by kind; None where they depend
        on data, or the back end does not count."""
        return None

    def exporter(self) -> Exporter:
        """Return the compiler for libraries that run without this process. Raises CompileError where the back end
        cannot export."""
        raise CompileError(f"programs of the back end {self.name!r} cannot be exported")


class Exporter(ABC):
    """A back end that compiles programs for export instead of running them here.

    A program is a table. Its words from `functions` on refer to functions, numbered in the order of compilation; its
    words from `arena` on refer to intermediate results.
    """

    functions: int
    arena: int
    pool_bytes: int
    """Bytes of the memory that threads share."""

    @abstractmethod
    def table(self, program: Runnable) -> ProgramTable:
        """Return the table of a program that this back end has built."""

    @abstractmethod
    def object_code(self, prefix: str, functions: Sequence[int], constants: bytes, target: Target) -> bytes:
        """Return an object file that holds the functions of these numbers as `prefix_functions`, the constants as
        `prefix_constants`, and the code that runs a table on threads as `prefix_run`, `prefix_worker` and
        `prefix_stop`."""
