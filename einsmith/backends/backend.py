"""What a back end answers: everything below the plan of a program, for one kind of machine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from einsmith.errors import ArgumentError, CheckError, CompileError
from einsmith.expr.nodes import Graph, Leaf, Tensor
from einsmith.kernels.pattern import Pattern
from einsmith.passes.schedule.plan import KernelCall
from einsmith.plan.kernel import Kernel, Rows
from einsmith.runtime.arena import Block
from einsmith.runtime.assemble import Assembler, CompiledKernel
from einsmith.target.facts import Target
from einsmith.tune.race import Raced
from einsmith.tune.session import Found, Part, Tell

__all__ = ["Backend", "Found", "Part", "Raced", "Runnable", "Tell", "Watched"]


class Runnable(Protocol):
    """A program: steps (`runtime.steps`) that one call runs. `table` holds every address as np.uint64, and
    `slots[(step, i)]` is where pointer i of a step stands in it (for a check, i = 0; for a loop, its base i, "stop" and
    "first"). What is written there holds from the next run on."""

    table: np.ndarray
    slots: dict[tuple[int, int | str], int]

    def run(self) -> int:
        """Runs all steps: 0, or the code of the first check that fails, after which nothing is run."""
        ...

    def run_timed(self) -> tuple[int, np.ndarray]:
        """`run`, and the seconds that each step took in all turns."""
        ...

    def move_scratch(self, address: int) -> None:
        """From the next run on, scratch lies there."""
        ...


@dataclass(frozen=True)
class Watched:
    """What a checked run knows of the whole. graph, bind: as they were given; inputs: the graph's that are no part of
    bind; outputs: in whose memory each output lies; calls, kernels: what runs, and what was made of it; block: the
    memory of intermediate results, of which the first `own` bytes are the program's."""

    graph: Graph
    bind: Mapping[Leaf, np.ndarray]
    inputs: Sequence[Leaf]
    outputs: Sequence[Tensor]
    calls: Sequence[KernelCall]
    labels: Sequence[str]
    kernels: Sequence[CompiledKernel]
    target: Target
    block: Block
    own: int


@dataclass(frozen=True)
class ProgramTable:
    """A program as data: its words; how many steps it has; which words are addresses; by word, the codes of the checks
    that may fail."""

    words: tuple[int, ...]
    steps: int
    addresses: tuple[int, ...]
    codes: Mapping[int, int]


Tried = tuple[str, float]
"""A configuration's text (`decisions`; empty for the model's choice) and the seconds that it took; infinity for
one that may not be used."""


class Proposed(NamedTuple):
    """What a workshop answers. text: a configuration, None where there is none left to try; fault: why it may not be
    used; seconds: of a processor that the answer took."""

    text: str | None
    fault: str
    seconds: float


class Workshop(Protocol):
    """Where configurations are thought of, compiled and vetted while a program runs (`training.dynamic`). May be used
    by several threads."""

    @property
    def busy(self) -> bool:
        """Whether it works now, on the processors that others need."""
        ...

    @property
    def begun(self) -> int:
        """How many times it has begun to work, or gone on."""
        ...

    def pause(self, seconds: float) -> None:
        """Stops whatever works for so many seconds from now, unless this is called again; 0 lets it go on."""
        ...

    def propose(self, kernel: Kernel | Rows) -> Proposed:
        """What to try next of a kernel, each only once."""
        ...

    def vet(self, kernel: Kernel | Rows, text: str) -> Proposed:
        """Compiles a configuration and finds out what may be wrong with it."""
        ...

    def tell(self, kernel: Kernel | Rows, text: str, seconds: float) -> None:
        """What a configuration took."""
        ...

    def least(self, kernel: Kernel | Rows) -> float:
        """Seconds below which no configuration of a kernel is predicted to be."""
        ...

    def keep(
        self, kernel: Kernel | Rows, text: str, seconds: float, spread: float, prior: float, confirmed: bool
    ) -> None:
        """Records a configuration that is faster inside a program. spread: the part of the seconds by which runs
        differ; prior: seconds of the model's choice; confirmed: whether programs that are compiled from now on have it;
        else it is a first guess, where nothing that they have is known."""
        ...

    def close(self) -> None:
        """Ends it, from whatever thread."""
        ...

    def leave(self) -> None:
        """In a forked child: it is the parent's."""
        ...


class Backend(ABC):
    """One kind of machine: its facts, its patterns, how kernels are compiled, where memory comes from, and what runs a
    program's steps. `name` is that of its targets (`Target.backend`).

    Addresses outside of what `allocate` gives (a program's inputs, outputs and bound arrays) are the process's own
    memory."""

    name: str

    @property
    @abstractmethod
    def patterns(self) -> Sequence[Pattern]:
        """Those that are asked about kernels for its targets."""

    @abstractmethod
    def target(self, threads: int) -> Target:
        """This machine, with no more cores than `threads`."""

    @abstractmethod
    def compile(self, kernels: Sequence[Kernel | Rows], target: Target) -> list[CompiledKernel]:
        """What is run for each kernel. Raises CompileError."""

    def compile_as(self, texts: Mapping[Kernel | Rows, str], target: Target) -> dict[Kernel | Rows, CompiledKernel]:
        """What is run for kernels that are decided about by the caller: the texts of `decisions`, empty for the
        model's choice. Raises CompileError for what cannot be."""
        raise CompileError(f"kernels of the back end {self.name!r} are compiled to the model's choice alone")

    def without(self, graph: Graph, target: Target) -> frozenset[str]:
        """The passes without which a graph's program was measured to be faster."""
        return frozenset()

    def keep_without(
        self, graph: Graph, target: Target, passes: frozenset[str], seconds: float, spread: float, prior: float
    ) -> None:
        """Records that, with the median seconds of a run, the part of them by which runs differ, and the seconds with
        all passes; forgets it where there are none."""
        raise self._untuned()

    def measured(self, kernel: Kernel | Rows, target: Target) -> float | None:
        """Seconds of a kernel that tuning has measured; None where it has not."""
        return None

    def race(self, first: Callable[[], object], second: Callable[[], object], seconds: float) -> Raced:
        """Runs two programs in turns, for so many seconds at most, but several times. Raises ArgumentError where the
        back end's graphs are not tuned."""
        raise self._untuned()

    def _untuned(self) -> ArgumentError:
        return ArgumentError(f"the graphs of programs of the back end {self.name!r} are not tuned")

    def workshop(self, target: Target, threads: int) -> Workshop:
        """For programs of a target. Raises ArgumentError where there is no such thing."""
        raise ArgumentError(f"programs of the back end {self.name!r} are not tuned while they run; use mode='static'")

    @abstractmethod
    def allocate(self, nbytes: int) -> Block:
        """Memory for intermediate results. Raises OutOfMemoryError."""

    @abstractmethod
    def program(self, made: Assembler, threads: int, scratch_bytes: int, scratch: int) -> Runnable:
        """The assembled steps as a program. `scratch_bytes`: of one thread; `scratch`: where `scratch_area` bytes lie
        for it."""

    def scratch_area(self, scratch_bytes: int, threads: int) -> int:
        """Bytes of memory that a program needs for its scratch, besides its intermediate results."""
        return 0

    def checked(self, made: Assembler, watched: Watched, threads: int, scratch_bytes: int) -> Runnable:
        """`program` under EINSMITH_CHECK. Raises CheckError where there is no such thing."""
        raise CheckError(f"EINSMITH_CHECK cannot watch programs of the back end {self.name!r}; unset it")

    @abstractmethod
    def seconds_of(
        self, kernel: Kernel | Rows, candidates: Sequence[tuple[Pattern, Any]], target: Target, threads: int
    ) -> list[float]:
        """Seconds of a kernel in each (pattern, configuration), on data of its own."""

    def tune(self, parts: Sequence[Part], target: Target, threads: int, seconds: float, tell: Tell) -> list[Found]:
        """Searches the configurations of a program's kernels for so many seconds, and records what is faster than the
        model's choices and right: programs that are compiled from now on are made of that. `tell`: told of everything
        that was measured. Raises ArgumentError where there is no such thing."""
        raise ArgumentError(f"the back end {self.name!r} has no search; tune=0 is what it can")

    def keep(self, found: Found, target: Target) -> None:
        """Records what was found for a kernel."""
        raise ArgumentError(f"the back end {self.name!r} keeps nothing")

    def settle(self, found: Found, target: Target, confirmed: bool) -> None:
        """Notes that what was found for a kernel is the faster one inside a program too, or forgets it for what was
        recorded before."""
        raise ArgumentError(f"the back end {self.name!r} has no search")

    def ahead(self) -> AheadOfTime:
        """What compiles for a library that runs without this process. Raises CompileError where there is no such
        thing."""
        raise CompileError(f"programs of the back end {self.name!r} cannot be exported")


class AheadOfTime(ABC):
    """What a back end adds where nothing runs here: a program is a table, whose words stand for functions from
    `functions` on, numbered as they were compiled, and for intermediate results from `arena` on."""

    functions: int
    arena: int
    pool_bytes: int
    """Of the memory that threads share."""

    @abstractmethod
    def table(self, program: Runnable) -> ProgramTable:
        """A program that this back end has made."""

    @abstractmethod
    def object_code(self, prefix: str, functions: Sequence[int], constants: bytes, target: Target) -> bytes:
        """An object file: the functions of these numbers as `prefix_functions`, `prefix_constants`, and what runs a
        table on threads as `prefix_run`, `prefix_worker` and `prefix_stop`."""
