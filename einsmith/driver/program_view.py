"""Describe a program that is bound to memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from einsmith.base.html import Bar
from einsmith.cost.facts import Target
from einsmith.driver.backend import Backend, Runnable
from einsmith.driver.binding import Binding
from einsmith.driver.bound_memory import BoundMemory
from einsmith.driver.compile import Compiled
from einsmith.driver.describe import describe, list_bars
from einsmith.driver.runs import Runs
from einsmith.ir.nodes import Graph, Leaf, Role
from einsmith.passes.listings import Changes
from einsmith.runtime.comparison import Comparison
from einsmith.schedule.arena import Life
from einsmith.schedule.compiled_kernel import CompiledKernel
from einsmith.schedule.kernel import Kernel
from einsmith.schedule.plan import KernelCall, Plan


class ProgramView:
    """A program as others see it: its graphs, its plan, its kernels, and the bytes that it takes.

    memory: the memory that runs read and change. runs: the program in its queues.
    """

    memory: BoundMemory
    runs: Runs

    @property
    def binding(self) -> Binding:
        """Return the program bound to memory, as it runs in the first queue."""
        return self.runs.bindings[0]

    @property
    def compiled(self) -> Compiled:
        """Return the compiled program."""
        return self.binding.compiled

    @property
    def bound(self) -> dict[Leaf, np.ndarray]:
        """Return the arrays that live as long as the program, by the leaves whose values they hold."""
        return self.memory.arrays

    @property
    def source_graph(self) -> Graph:
        """Return the graph before the passes."""
        return self.compiled.source_graph

    @property
    def graph(self) -> Graph:
        """Return the graph after the passes."""
        return self.compiled.graph

    @property
    def plan(self) -> Plan:
        """Return the plan: calls of kernels, in order."""
        return self.compiled.plan

    @property
    def kernels(self) -> list[CompiledKernel]:
        """Return the compiled kernel of each call."""
        return self.compiled.kernels

    @property
    def target(self) -> Target:
        """Return the machine that the program is compiled for."""
        return self.compiled.target

    @property
    def backend(self) -> Backend:
        """Return the back end that compiled the program."""
        return self.compiled.backend

    @property
    def threads(self) -> int:
        """Return the number of threads that share the work."""
        return self.compiled.threads

    @property
    def decisions(self) -> frozenset[str]:
        """Return what is decided otherwise than by the cost model, because the program was measured to be faster."""
        return self.compiled.decisions

    @property
    def changes(self) -> Changes:
        """Return what each pass changed."""
        return self.compiled.changes

    @property
    def program(self) -> Runnable:
        """Return the table of steps behind one native call."""
        return self.binding.program

    @property
    def calls(self) -> list[KernelCall]:
        """Return the call of each kernel, those in loops included."""
        return self.binding.calls

    @property
    def turns(self) -> list[int]:
        """Return how often a run executes each kernel."""
        return self.binding.turns

    @property
    def roles(self) -> list[Role]:
        """Return the role of each kernel: forward, backward or update."""
        return self.binding.roles

    @property
    def lives(self) -> Callable[[], list[Life]]:
        """Return the function that gives live ranges in the arena: first and last call of the plan for each tensor."""
        return self.binding.lives

    @property
    def comparisons(self) -> Mapping[Kernel, Comparison]:
        """Return the kernels that run in a second configuration too."""
        return self.binding.comparisons

    def describe(self) -> str:
        """Describe the program, line by line (`driver.describe`)."""
        return describe(self.binding, self.held_bytes)

    def describe_code(self, call: int) -> list[str]:
        """Describe the machine code of the kernel call of a number, one line for each function."""
        return self.backend.describe_code(self.program, np.flatnonzero(self.binding.call_of_step == call).tolist())

    @property
    def bars(self) -> list[Bar]:
        """Return what each kernel computes, its role, and its predicted seconds, for a timeline."""
        return list_bars(self.binding)

    def fixed_bytes(self) -> tuple[int, int]:
        """Return two sizes in bytes: memory bound to leaves or otherwise held, and memory of the other inputs and the
        outputs."""
        return self.memory.leaf_bytes, self.compiled.batch_bytes

    @property
    def arena_bytes(self) -> int:
        """Return the bytes of intermediate results."""
        return self.binding.arena_bytes

    @property
    def held_bytes(self) -> int:
        """Return the bytes that a run holds in all: memory bound to leaves, inputs, outputs, intermediate results and
        the kernels' scratch memory."""
        return sum(self.fixed_bytes()) + self.binding.reserved + self.binding.kept.nbytes

    @property
    def arena(self) -> np.ndarray:
        """Return the memory of intermediate results as the back end's array; it may move until the next run."""
        return self.memory.arena.reserve(self.binding.reserved, self.backend.allocate).array[: self.arena_bytes]
