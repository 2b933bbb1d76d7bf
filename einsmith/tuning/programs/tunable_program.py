"""Define what tuning asks of a program: its plan and kernels, runs of it, and forms of it by other decisions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, Self, TypeVar

import numpy as np

from einsmith.cost.facts import Target
from einsmith.ir.nodes import Graph, Leaf
from einsmith.passes.listings import Changes
from einsmith.schedule.compiled_kernel import CompiledKernel
from einsmith.schedule.kernel import Kernel
from einsmith.schedule.plan import KernelCall, Plan
from einsmith.tuning.kernels.tuner import Tuner


class StepTuner(Protocol):
    """What runs a program's steps in its place while it is tuned (`tuning.programs.dynamic`)."""

    def step(self, arrays: Sequence[np.ndarray]) -> tuple[int, list[np.ndarray]]:
        """Run one step, and return and raise what a call of the program does."""
        ...


class LeafMemory(Protocol):
    """The memory of a program's leaves (`driver.bound_memory`). owners: the leaf whose memory each uses."""

    owners: Mapping[Leaf, Leaf]

    @property
    def placed(self) -> Collection[Leaf]:
        """Return the leaves whose dimensions lie in another order."""
        ...

    def read(self, x: Leaf) -> np.ndarray:
        """Return a copy of a leaf's values."""
        ...


class TunableProgram(Protocol):
    """A compiled program with the memory of its leaves (`driver.bound_program`). Attributes are those of the plan that
    it runs, what it was compiled from, and what measured and decided it; methods run it, or return it in another
    form."""

    compile_seconds: float
    tuner: StepTuner | None

    @property
    def source_graph(self) -> Graph:
        """Return the graph before the passes."""
        ...

    @property
    def plan(self) -> Plan:
        """Return the calls of kernels, in order, with what orders and places them."""
        ...

    @property
    def calls(self) -> list[KernelCall]:
        """Return the kernel calls, in order."""
        ...

    @property
    def kernels(self) -> list[CompiledKernel]:
        """Return the compiled kernel of each call."""
        ...

    @property
    def turns(self) -> list[int]:
        """Return how often each call is executed in a run."""
        ...

    @property
    def target(self) -> Target:
        """Return the machine that the program is compiled for."""
        ...

    @property
    def threads(self) -> int:
        """Return the number of threads."""
        ...

    @property
    def backend(self) -> Tuner:
        """Return the back end's records, searches and races."""
        ...

    @property
    def decisions(self) -> frozenset[str]:
        """Return what is decided otherwise than by the cost model (`schedule.graph_decisions`)."""
        ...

    @property
    def changes(self) -> Changes:
        """Return what the passes changed."""
        ...

    @property
    def memory(self) -> LeafMemory:
        """Return the memory that runs read and change."""
        ...

    @property
    def comparisons(self) -> Mapping[Kernel, Any]:
        """Return the alternatives of kernels that run as well, to be compared (`with_decisions`)."""
        ...

    @property
    def bound(self) -> Collection[Leaf]:
        """Return the leaves whose memory lives as long as the program."""
        ...

    def __call__(self, inputs: Sequence[np.ndarray]) -> tuple[int, list[np.ndarray]]:
        """Run the program and return (status, outputs)."""
        ...

    def run_locked(self, inputs: Sequence[np.ndarray], is_tuned: bool = True) -> tuple[int, list[np.ndarray]]:
        """Run the program for a caller that holds the guard of its memory."""
        ...

    def run_timed(self, inputs: Sequence[np.ndarray]) -> tuple[int, list[np.ndarray], list[float]]:
        """Run the program and return (status, outputs, seconds of each call)."""
        ...

    def preserve(self) -> AbstractContextManager[None]:
        """Undo the stores of the block's runs at its end."""
        ...

    def with_decisions(self, texts: Mapping[Kernel, str], compare: bool = False) -> Self:
        """Return the program with some kernels compiled by other decision texts."""
        ...

    def compile_deciding(self, decisions: frozenset[str]) -> Self:
        """Return the graph compiled anew by other decisions."""
        ...

    def swap(self, other: Self) -> None:
        """Exchange the program, from the next run on, for one that `with_decisions` returned."""
        ...


Program = TypeVar("Program", bound=TunableProgram)
