"""Decide how many threads share a program's work, and whose threads they are."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Annotated

from einsmith.base import environment, forks
from einsmith.base.arguments import check_arguments
from einsmith.base.system import processors
from einsmith.cost.facts import MAX_THREADS, host
from einsmith.runtime import openmp
from einsmith.runtime.openmp import Team

MAX_WAIT_NS = 1_000_000
"""Longest wait of a program for a team's threads (nanoseconds); beyond it, they count as kept from their processors. An
idle machine takes 2,000 to 100,000. One with more work than processors takes 30,000,000: a region of OpenMP ends when
every thread was there, and its threads spin for milliseconds before they let others run."""
MAX_WAIT_SHARE = 0.1
"""Most of the time of recent programs, as a fraction, that they may wait for a team. Without it they share processors
with threads of OpenMP that spin: a convolution of 3.0 ms after `torch.relu` of 3.4 MB takes 4.2 (two threads)."""
RECENT_NS = 50_000_000
"""Least time of recent programs (nanoseconds). Other work on a machine keeps threads from their processors now and then
for 2 to 30 ms, which is no reason to leave the team for the next second."""
MAX_LOST_SHARE = 0.02
"""Most of all time, as a fraction, that may be lost by waiting for a team whose threads are kept from their
processors."""

_threads: int | None = None
_scoped: ContextVar[int | None] = ContextVar("threads", default=None)
"""The number of threads within `threads`."""

team: Team | None = None
"""Threads of PyTorch's OpenMP runtime that run programs of the CPU; None where Einsmith's own workers do."""
is_team_final: bool = forks.is_forked() and bool(openmp.runtimes())
"""Whether `team` is final. A forked process never uses a runtime that was loaded before the fork: the runtime
counts on threads that stayed in the parent, and would wait for them for ever."""
team_unused_until = 0.0
"""Time from which on programs run on the team again (seconds of `time.monotonic`); 0: they do so now."""


def current_team() -> Team | None:
    """Return the OpenMP threads that run the next program; None for the pool's own workers.

    PyTorch's threads watch for work for milliseconds after each of its operators. The pool's workers would share their
    processors, and either side would run at half its speed. So programs run on PyTorch's threads once it is loaded.
    """
    global team, is_team_final, team_unused_until
    if not is_team_final and openmp.LIBRARY in sys.modules:
        team = openmp.find_team()
        is_team_final = True
    if team_unused_until:
        if time.monotonic() < team_unused_until:
            return None
        team_unused_until = 0.0
    return team


class _TeamWaits:
    """What waits for the team have cost recent programs, in nanoseconds.

    ran: time of recent programs; lost: their long waits; counted: the same, but that a single wait is never enough to
    leave the team
    """

    __slots__ = ("ran", "lost", "counted")

    def __init__(self) -> None:
        self.ran = self.lost = self.counted = 0.0

    def note(self, waited: int, span: int) -> None:
        """Note a program on the team. Where recent ones have waited for too long, run programs on the pool's own
        workers for a while: these do not wait for threads that other processes keep busy.

        Args:
            waited: nanoseconds that the program has waited for the team
            span: nanoseconds that it has run
        """
        global team_unused_until
        if self.ran > 2 * RECENT_NS:
            self.ran, self.lost, self.counted = self.ran / 2, self.lost / 2, self.counted / 2
        self.ran += span
        if waited <= MAX_WAIT_NS:
            return
        most = MAX_WAIT_SHARE * max(self.ran, RECENT_NS)
        self.lost += waited
        self.counted += min(waited, 0.6 * most)  # two such waits are enough
        if self.counted > most:
            team_unused_until = time.monotonic() + self.lost * 1e-9 / MAX_LOST_SHARE
            self.ran = self.lost = self.counted = 0.0


team_waits = _TeamWaits()
"""The waits of this process."""


def _reset_after_fork() -> None:
    global team, is_team_final
    team, is_team_final = None, is_team_final or bool(openmp.runtimes())


forks.at_fork(after_in_child=_reset_after_fork)


@check_arguments
def set_threads(n: Annotated[int, 1, MAX_THREADS] | None) -> None:
    """Set the default number of threads of programs created from now on; None: as many as the machine has for this
    process.

    Raises ArgumentError unless n is between 1 and 4096.
    """
    global _threads
    _threads = n


@check_arguments
def threads(n: Annotated[int, 1, MAX_THREADS]) -> AbstractContextManager[None]:
    """Return a scope for `with`, in which the default number of threads is n.

    It holds for programs that are created in the scope, and for calls of `es.jit`, operators and modules in it. Only
    the current context (PEP 567) sees it: other threads are not affected.

    Raises ArgumentError unless n is between 1 and 4096.
    """
    return _scope(n)


@contextmanager
def _scope(n: int) -> Iterator[None]:
    token = _scoped.set(n)
    try:
        yield
    finally:
        _scoped.reset(token)


def get_threads() -> int:
    """Return the default number of threads: that of the scope `threads`, else `set_threads`, else EINSMITH_THREADS,
    else the physical cores this process may use."""
    known = _scoped.get() or _threads or (environment.THREADS.get() if environment.THREADS.is_set() else None)
    return known or usable_cores()


def recount_cores() -> None:
    """Have the default follow the processors that this process may use from now on."""
    usable_cores.cache_clear()
    host.cache_clear()


@cache
def usable_cores() -> int:
    """Return the number of physical cores that this process may use, cached: every call of a compiled function needs
    it, and the answer takes several file reads."""
    return min(processors.physical_cores(), MAX_THREADS)
