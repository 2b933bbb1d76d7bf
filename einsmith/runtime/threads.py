"""How many threads share a program's work."""

from __future__ import annotations

from functools import cache
from typing import Annotated, NamedTuple

from einsmith import knobs
from einsmith.arguments import checked
from einsmith.target.facts import MAX_THREADS, physical_cores

_threads: int | None = None


class Team(NamedTuple):
    """Threads of an OpenMP runtime: the addresses of its functions GOMP_parallel and omp_get_thread_num."""

    fork: int
    number: int


team: Team | None = None
"""Whose threads run programs of the CPU, where there is one, instead of workers of our own."""


def share(found: Team | None) -> None:
    """From now on programs run on these threads; None: on workers of our own. A forked child has none of them."""
    global team
    team = found


@checked
def set_threads(n: Annotated[int, 1, MAX_THREADS] | None) -> None:
    """Sets the default number of threads of programs made from now on; None: as many as the machine has for us.

    Raises ArgumentError unless n is between 1 and 4096.
    """
    global _threads
    _threads = n


def get_threads() -> int:
    """The default number of threads: `set_threads`, else EINSMITH_THREADS, else the physical cores we may use."""
    return _threads or knobs.THREADS.get() or _default_threads()


@cache
def _default_threads() -> int:
    """Asked once: every call of a compiled function needs it, and the answer takes several file reads."""
    return min(physical_cores(), MAX_THREADS)
