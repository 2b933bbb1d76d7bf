"""The memory of intermediate results, which programs that take turns share."""

from __future__ import annotations

from collections.abc import Sized
from itertools import count

import numpy as np

from einsmith import locks
from einsmith.runtime import buffers

_numbers = count()


class Block:
    """Memory, its address, and a number that no other block has had."""

    __slots__ = ("array", "address", "number")

    def __init__(self, nbytes: int):
        self.array = buffers.empty((nbytes,), np.uint8)
        self.address = buffers.address(self.array)
        self.number = next(_numbers)


class Arena:
    """As much memory as the largest of its programs needs. What lies in it lasts as long as a run, and one program runs
    at a time (`pool.Owner`).

    A program takes the block before each run and keeps it until the end of the run: another thread that compiles for
    larger shapes puts a larger block in its place, to which the others move when they run next.
    """

    __slots__ = ("block", "_lock")

    def __init__(self) -> None:
        self._lock = locks.lock()
        self.block = Block(0)

    def reserve(self, nbytes: int) -> Block:
        """The block, which is made larger where it has fewer bytes."""
        with self._lock:
            if self.block.array.nbytes < nbytes:
                self.block = Block(nbytes)
            return self.block

    def clear(self) -> None:
        """Gives the memory back; it is reserved anew where a program still runs."""
        with self._lock:
            self.block = Block(0)

    def evicted(self, programs: Sized) -> None:
        """Gives the memory back where none of the programs is left (see `caches.Cache`)."""
        if not programs:
            self.clear()
