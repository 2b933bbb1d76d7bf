"""The memory of intermediate results, which programs that take turns share."""

from __future__ import annotations

from collections.abc import Callable, Sized
from itertools import count
from typing import Any

import numpy as np

from einsmith import locks
from einsmith.runtime import buffers

_numbers = count()


class Block:
    """Memory that a back end gives (on the CPU `array`, its bytes), where it begins, and a number that no other block
    has had."""

    __slots__ = ("array", "address", "nbytes", "number")

    def __init__(self, array: Any, address: int, nbytes: int):
        self.array, self.address, self.nbytes = array, address, nbytes
        self.number = next(_numbers)


Allocate = Callable[[int], Block]
"""A block of at least so many bytes. Raises OutOfMemoryError."""


def host(nbytes: int) -> Block:
    """A block of the process's own memory."""
    array = buffers.empty((nbytes,), np.uint8)
    return Block(array, buffers.address(array), nbytes)


class Arena:
    """As much memory as the largest of its programs needs. What lies in it lasts as long as a run, and one program runs
    at a time (`pool.lock`).

    A program takes the block before each run and keeps it until the end of the run: another thread that compiles for
    larger shapes puts a larger block in its place, to which the others move when they run next.
    """

    __slots__ = ("block", "_lock")

    def __init__(self) -> None:
        self._lock = locks.lock()
        self.block = host(0)

    def reserve(self, nbytes: int, allocate: Allocate = host) -> Block:
        """The block, which is made larger where it has fewer bytes. `allocate`: of the back end of all its programs."""
        with self._lock:
            if self.block.nbytes < nbytes:
                self.block = allocate(nbytes)
            return self.block

    def clear(self) -> None:
        """Gives the memory back; it is reserved anew where a program still runs."""
        with self._lock:
            self.block = host(0)

    def evicted(self, programs: Sized) -> None:
        """Gives the memory back where none of the programs is left (see `caches.Cache`)."""
        if not programs:
            self.clear()
