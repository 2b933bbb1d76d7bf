"""Define the interface of a back end: everything below the plan of a program, for one kind of machine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from einsmith.base.errors import CheckError, CompileError
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
from einsmith.tuning.kernels.tuner import Tuner


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


class Backend(Tuner):
    """One kind of machine: its facts, its patterns, its compiler, its memory, and what runs a program's steps.

    `name` is the back end's name in its targets (`Target.backend`). Addresses outside the blocks that `allocate`
    returns (a program's inputs, outputs and bound arrays) are memory of this process.
    """

    in_process: bool = True
    """Whether programs read and change bound arrays where these lie in this process's memory."""
    overlaps: bool = False
    """Whether a program's next run may begin before one has ended (`gpu.cuda.card_program.CudaProgram.begin`)."""
    card: Any = None
    """What programs on a card share (`gpu.cuda.card.Card`); None where they run on no card."""

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
