"""Hold the memory that a program's runs read and change."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext

import numpy as np

from einsmith.base import environment, locks
from einsmith.base.captured import CapturedArray
from einsmith.driver.binding import LeafSum, Notice, Reply
from einsmith.ir.nodes import Graph, Leaf
from einsmith.runtime import buffers
from einsmith.runtime.arena import Arena
from einsmith.runtime.memory import Clock, DimensionOrder, Memory
from einsmith.runtime.signals import Deferred
from einsmith.schedule.pipeline import MemoryLimit
from einsmith.schedule.plan import Order


class BoundMemory:
    """The memory that a program's runs read and change.

    Args:
        arrays: arrays that live as long as the program and hold leaves' values; updates are stored into them.
        arena: memory for intermediate results that other programs also use, in other runs; None: memory of its own.
        memories: the memory behind arrays, as far as it is known.
        most: most bytes that a run may hold in all; None: any number.
        other_bytes: bytes held elsewhere that count towards `most`.
        guard: the lock of the parameters and the state among the arrays, held by every run.
        notices: what every run tells other threads, waits for, and sums over devices, while it goes on.
    """

    def __init__(
        self,
        arrays: Mapping[Leaf, np.ndarray],
        arena: Arena | None,
        memories: Collection[Memory],
        most: int | None,
        other_bytes: int,
        guard: locks.Guard | None,
        notices: Sequence[Notice | Reply | LeafSum],
    ):
        self.arrays, self.memories, self.notices = dict(arrays), tuple(memories), tuple(notices)
        self.most, self.other_bytes, self.guard = most, other_bytes, guard
        self.known = {id(m.host): m for m in memories}
        """The memory that an array is, by the array's id, as far as it is known."""
        self.computed: Collection[Leaf] = ()
        """Leaves among those of `arrays` that hold what depends on constants alone."""
        # A checked run looks at the memory between the kernels, and while others may run.
        self.arena = Arena() if arena is None or environment.check_level() else arena
        self.owners: Mapping[Leaf, Leaf] = {}
        """Leaves whose memory may have another order of dimensions, each with the one whose order it has."""
        self.placed: Mapping[Leaf, Order] = {}
        """The orders of those that are not row-major."""
        self.is_concurrent = False
        """Whether threads may run the program at one time, each with intermediate results of its own."""
        self.stored: list[tuple[int, int]] = []
        """Address and bytes of the arrays that runs store into, in order."""
        self.captured: list[CapturedArray] = []
        """Arrays that are copies of captured ones, and are brought up to date before each run."""
        self.changed: list[Memory] = []
        """The memories that runs store into."""
        self.changes_others = False
        """Whether runs store into arrays whose memory is not known."""

    def attach(self, graph: Graph) -> None:
        """Find out what runs of a graph, after its passes, store into these arrays."""
        stored = {p: self.arrays[p] for p, _ in graph.updates if p in self.arrays}
        self.stored = sorted((buffers.address(a), a.nbytes) for a in stored.values())
        self.changed = [self.known[id(a)] for a in stored.values() if id(a) in self.known]
        captured = {x: a for x, a in self.arrays.items() if isinstance(a, CapturedArray)}
        for x, a in captured.items():
            if not a.is_copy and self.is_stored(buffers.address(a), a):  # a run stores into it, perhaps too early
                captured[x] = self.arrays[x] = a.apart()
        self.captured = [a for a in captured.values() if a.is_copy]
        self.changes_others = len(self.changed) < len(stored)
        if self.guard is None and (self.stored or self.memories):
            self.guard = locks.Guard()
        checked = bool(environment.check_level())
        self.is_concurrent = not (self.stored or self.notices or self.most is not None or checked)

    def read(self, x: Leaf) -> np.ndarray:
        """Return the array that holds a leaf's values, as a view in the order of the leaf's dimensions."""
        array, order = self.arrays[x], self.placed.get(x)
        return array if order is None else DimensionOrder(order).logical(array, x.shape)

    @property
    def leaf_bytes(self) -> int:
        """Return the bytes that are bound to leaves or otherwise held."""
        return self.other_bytes + sum(a.nbytes for a in self.arrays.values())

    @property
    def limit(self) -> MemoryLimit | None:
        """Return the most bytes that a run may hold."""
        return None if self.most is None else MemoryLimit(self.most, self.leaf_bytes)

    def is_stored(self, at: int, x: np.ndarray) -> bool:
        """Return whether an input at this address overlaps memory that a run stores into, perhaps before its last read
        of the input."""
        n = bisect_left(self.stored, (at + x.nbytes,))
        return n > 0 and sum(self.stored[n - 1]) > at

    def fetch(self) -> None:
        """Bring the arrays up to date, where programs on a device have stored into a copy."""
        if Memory.may_be_away:
            for memory in self.memories:
                memory.fetch()

    @contextmanager
    def preserve(self) -> Iterator[None]:
        """Restore the arrays at the end of the block, undoing the stores of its runs. No other thread reads or changes
        them until then."""
        with self.guard or nullcontext():
            self.fetch()
            saved = [(a, a.copy()) for x, a in self.arrays.items() if x not in self.computed and a.flags.writeable]
            try:
                yield
            finally:
                with Deferred():
                    self.fetch()
                    for a, old in saved:
                        a[...] = old
                    Clock.note_store()
                    for memory in self.memories:
                        memory.version = Clock.changed
