"""Manage the memory of intermediate results, which programs that take turns share."""

from __future__ import annotations

from collections.abc import Callable, Sized
from itertools import count
from typing import Any

import numpy as np

from einsmith.base import locks
from einsmith.runtime import buffers

_numbers = count()


class Block:
    """Memory allocated by a back end (on the CPU `array` holds its bytes), its first address, and a number that no
    other block has had."""

    __slots__ = ("array", "address", "nbytes", "number")

    def __init__(self, array: Any, address: int, nbytes: int):
        self.array, self.address, self.nbytes = array, address, nbytes
        self.number = next(_numbers)

    def read(self) -> np.ndarray:
        """Return the bytes."""
        return self.array

    def write(self, content: np.ndarray) -> None:
        """Replace the bytes."""
        self.array[...] = content


Allocate = Callable[[int], Block]
"""Function that allocates a block of at least the given number of bytes. Raises OutOfMemoryError."""


def host(nbytes: int) -> Block:
    """Allocate a block of the process's own memory."""
    array = buffers.empty((nbytes,), np.uint8)
    return Block(array, buffers.address(array), nbytes)


class Arena:
    """A block as large as the largest of its programs needs. Its content lasts for one run, and its programs run in one
    queue, one at a time; `of` returns the arenas for their runs in other queues.

    A program takes the block before each run and keeps it until the end of the run. Another thread that compiles for
    larger shapes may replace the block by a larger one, to which the other programs move when they run next.
    """

    __slots__ = ("block", "_lock", "_others")

    def __init__(self) -> None:
        self._lock = locks.lock()
        self.block = host(0)
        self._others: dict[int, Arena] = {}

    def of(self, queue: int) -> Arena:
        """Return the arena for runs in the queue of this number."""
        with self._lock:
            return self._others.setdefault(queue, Arena()) if queue else self

    def reserve(self, nbytes: int, allocate: Allocate = host) -> Block:
        """Return the block, replaced by a larger one where it has fewer than `nbytes` bytes. `allocate`: the allocator
        of the back end of all its programs."""
        with self._lock:
            if self.block.nbytes < nbytes:
                self.block = allocate(nbytes)
            return self.block

    def clear(self) -> None:
        """Free the memory; a program that still runs reserves it anew."""
        with self._lock:
            self.block = host(0)
            for other in self._others.values():
                other.clear()

    def evicted(self, programs: Sized) -> None:
        """Free the memory where none of the programs is left (see `caches.Cache`)."""
        if not programs:
            self.clear()
