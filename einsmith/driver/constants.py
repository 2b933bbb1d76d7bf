"""Compute what depends on constants alone only after these may have changed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import numpy as np

from einsmith.base import locks
from einsmith.driver.binding import Binding
from einsmith.driver.runs import Runs
from einsmith.ir.nodes import Graph, Leaf
from einsmith.passes.constants import split_constants
from einsmith.runtime import buffers
from einsmith.runtime.memory import ChangeWatch, Memory

FEW_RUNS, MOST_VAIN = 4, 8
"""Constants that change after fewer runs than FEW_RUNS, more than MOST_VAIN times in a row, are none: to prepare them
takes up to four times as long as to read them as they are (a product of 2048x2048 and a vector)."""


class Constants:
    """The constants of a program, and the tensors that depend on them alone (`passes.constants`).

    A separate program computes these tensors, again only after a constant may have changed.

    graph: the graph without these computations. leaves: leaves of it whose values stay from run to run. arrays: the
    memory of the precomputed tensors, by the leaf through which the graph reads each. time: the time (`ChangeWatch`) of
    the constants from which they were computed.

    Args:
        graph: the graph of the program.
        arrays: arrays of leaves that live as long as the program.
        memories: the memory behind some of them: these are the constants.
        compile: compiles a graph for arrays, and returns its runs.
        is_sparing: whether copies of constants in other types are left to the kernels that read them.
    """

    def __init__(
        self,
        graph: Graph,
        arrays: Mapping[Leaf, np.ndarray],
        memories: Collection[Memory],
        compile: Callable[[Graph, Mapping[Leaf, np.ndarray]], Runs],
        is_sparing: bool = False,
    ):
        self.watch = ChangeWatch(memories)
        known = {id(m.host) for m in memories}
        self.leaves = [x for x, a in arrays.items() if id(a) in known]
        first, self.graph = split_constants(graph, self.leaves, is_sparing)
        self.arrays: dict[Leaf, np.ndarray] = {}
        self.first: Runs | None = None
        """The program that computes the tensors which depend on constants alone; None if there are none."""
        self.time: int | None = None
        self.vain = 0
        """Consecutive preparations that served hardly any run."""
        self._runs = 0
        """Runs since the last preparation."""
        if first is not None:
            self.arrays = {x: buffers.empty(x.shape, x.dtype.numpy) for x, _ in first.updates}
            self.leaves += self.arrays
            every = {**arrays, **self.arrays}
            self.first = compile(first, {x: every[x] for x in first.inputs})
            # No other program reads its results, and no other run is active at the same time.
            self.first.memory.changes_others, self.first.memory.is_concurrent = False, True

    @property
    def nbytes(self) -> int:
        """Return the approximate bytes of the precomputed tensors and of the program that computes them."""
        own = sum(a.nbytes for a in self.arrays.values())
        return own + (0 if self.first is None else self.first.nbytes)

    def refresh(self, guard: locks.Guard) -> int:
        """Compute the tensors that depend on constants alone, if these may have changed. Return the time
        (`ChangeWatch`) of the constants. The caller holds the guard."""
        time = self.watch.time()  # before they are read: a later change is noticed at the next run
        if self.first is not None and self.time != time:
            guard.await_readers()
            self.first.in_queue(None, self.first.call, ())
            self.time = time
        return time

    def known_time(self) -> int | None:
        """Return the time of the constants without the guard; None where they may have changed since `refresh`."""
        time = self.watch.known_time()
        return time if self.first is None or self.time == time else None

    def prepare(self, binding: Binding, time: int, is_first: bool) -> None:
        """Prepare what kernels keep of constants, if these may have changed since. time: that of the constants;
        is_first: whether the binding is that of the first queue, whose runs count."""
        self._runs += 1
        if binding.prepared == time:
            return
        if is_first:
            self.vain = self.vain + 1 if self._runs < FEW_RUNS else 0
            self._runs = 0
        if binding.preparation is not None:
            binding.preparation.run()
        binding.prepared = time
