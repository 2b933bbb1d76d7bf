"""A group of processes in one process: each rank is a thread, and messages are arrays that they share."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from einsmith import nn
from einsmith.distributed.group import ProcessGroup

T = TypeVar("T")
_drawing = threading.Lock()
PATIENCE = 60.0
"""Seconds after which a rank that waits for the others gives up."""


def calls_of(group: ProcessGroup) -> list[str]:
    """Return the names of the operations that the threads of a group have called, which go on to be added."""
    assert group._collectives is not None
    return group._collectives.transport.calls


def make_seeded(seed: int, make: Callable[[], T]) -> T:
    """Return make(), its weights drawn from a seed: threads that play ranks share the generator."""
    with _drawing:
        nn.manual_seed(seed)
        return make()


class Threads:
    """What the ranks share: a barrier, and the arrays of the operation under way."""

    def __init__(self, size: int):
        self.size, self.barrier = size, threading.Barrier(size, timeout=PATIENCE)
        self.given: list[Any] = [None] * size
        self.twin: Threads | None = None
        self._lock = threading.Lock()

    def duplicate(self) -> Threads:
        with self._lock:
            if self.twin is None:
                self.twin = Threads(self.size)
        return self.twin


class ThreadTransport:
    """The engine of one rank (`Transport`)."""

    name = "threads"

    def __init__(self, world: Threads, rank: int):
        self._world, self.rank, self.size = world, rank, world.size
        self.calls: list[str] = []

    def _share(self, what: str, array: Any, take: Callable[[list[Any]], None]) -> None:
        self.calls.append(what)
        self._world.given[self.rank] = (what, array)
        self._world.barrier.wait()
        kinds = {kind for kind, _ in self._world.given}
        assert len(kinds) == 1, f"the ranks call {kinds} at a time"
        take([given for _, given in self._world.given])
        self._world.barrier.wait()

    def exchange(self, sent: Sequence[np.ndarray], received: Sequence[np.ndarray]) -> None:
        def take(given: list[Sequence[np.ndarray]]) -> None:
            for rank, other in enumerate(given):
                if rank != self.rank:
                    received[rank][...] = other[self.rank]

        self._share("exchange", sent, take)

    def broadcast(self, array: np.ndarray, root: int) -> None:
        def take(given: list[np.ndarray]) -> None:
            if self.rank != root:
                array[...] = given[root]

        self._share("broadcast", array, take)

    def barrier(self) -> None:
        self._share("barrier", None, lambda given: None)

    def duplicate(self) -> ThreadTransport:
        return ThreadTransport(self._world.duplicate(), self.rank)

    def close(self) -> None:
        pass

    def fail(self) -> None:
        pass

    def abort(self) -> None:
        self._world.barrier.abort()
        if self._world.twin is not None:
            self._world.twin.barrier.abort()


def run(size: int, work: Callable[[ProcessGroup], T]) -> list[T]:
    """Run `work` on every rank of a group and return their results; the first rank's error is raised."""
    world = Threads(size)
    transports = [ThreadTransport(world, rank) for rank in range(size)]

    def begin(rank: int) -> T:
        group = ProcessGroup(transports[rank], rank, size)
        try:
            return work(group)
        except BaseException:
            transports[rank].abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(begin, rank) for rank in range(size)]
    errors = [e for future in futures if (e := future.exception()) is not None]
    if errors:  # those of the others follow from the first
        raise next((e for e in errors if not isinstance(e.__cause__, threading.BrokenBarrierError)), errors[0])
    return [future.result() for future in futures]
