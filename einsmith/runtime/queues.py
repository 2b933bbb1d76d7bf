"""Divide the processors among threads that run programs concurrently.

A queue runs one program at a time. It has a lock, memory for intermediate results in every arena (`Arena.of`), and
worker threads of its own (runtime/pool.py). Programs that store nothing run in any queue, so that the threads of a
server do not wait for each other; programs that store into parameters or state, whose memory exists once, run in the
first one. There are at most as many queues as the process may use physical cores. While several are in use, each
program gets its part of its threads, so that their kernels compete for no core.
"""

from __future__ import annotations

from threading import get_ident

from einsmith.base import forks, locks
from einsmith.runtime.thread_count import usable_cores


class RunQueue:
    """A queue of runs.

    Attributes:
        number: its number, from 0
        lock: the lock held for a run and for the preparation of its pointers
        callers: the threads that run in the queue or wait for it. An entry that a signal has left behind makes the
            choice of a queue worse, and does no other harm.
        depth: number of nested runs of the thread that holds the lock; inner ones run on one thread
    """

    __slots__ = ("number", "lock", "callers", "depth")

    def __init__(self, number: int):
        self.number, self.lock = number, locks.lock()
        self.callers: dict[int, None] = {}
        self.depth = 0


FIRST = RunQueue(0)
queues = [FIRST]
"""The queues that exist so far."""
_adding = locks.lock()
_closed = False
"""Whether no queue is added any more."""


def choose() -> RunQueue:
    """Choose the queue of this thread's next run, for a program that may run in any queue, and count the thread among
    its callers: an idle queue, or the one with the fewest waiting threads. Return the queue."""
    me, queue = get_ident(), FIRST
    if queue.callers and me not in queue.callers:
        queue = min(queues, key=lambda q: len(q.callers))
        if queue.callers and len(queues) < usable_cores():
            queue = _add() or queue
    queue.callers[me] = None
    return queue


def _add() -> RunQueue | None:
    """Return a new queue; None if other threads have reached the limit."""
    with _adding:
        if _closed or len(queues) >= usable_cores():
            return None
        queues.append(RunQueue(len(queues)))
        return queues[-1]


def close() -> list[RunQueue]:
    """Return all queues, after which no more are added."""
    global _closed
    with _adding:
        _closed = True
        return list(queues)


def divide(threads: int) -> int:
    """Return how many of a program's threads it gets while other queues are in use."""
    return threads if len(queues) == 1 else max(1, threads // max(1, sum(1 for q in queues if q.callers)))


def _reset_after_fork() -> None:
    me = get_ident()
    for queue in queues:
        queue.callers = {me: None} if me in queue.callers else {}
        if me not in queue.callers:
            queue.depth = 0


forks.at_fork(after_in_child=_reset_after_fork)
