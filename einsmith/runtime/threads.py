"""How many threads share a program's work."""

from __future__ import annotations

from functools import cache

from einsmith import knobs
from einsmith.errors import ArgumentError
from einsmith.target.facts import MAX_THREADS, physical_cores

_threads: int | None = None


def set_threads(n: int | None) -> None:
    """Sets the default number of threads of programs made from now on; None: as many as the machine has for us.

    Raises ArgumentError unless n is between 1 and 4096.
    """
    global _threads
    if n is not None and (not isinstance(n, int) or not 1 <= n <= MAX_THREADS):
        raise ArgumentError(f"threads must be an integer from 1 to {MAX_THREADS}, not {n!r}")
    _threads = n


def get_threads() -> int:
    """The default number of threads: `set_threads`, else EINSMITH_THREADS, else the physical cores we may use."""
    return _threads or knobs.THREADS.get() or _default_threads()


@cache
def _default_threads() -> int:
    """Asked once: every call of a compiled function needs it, and the answer takes several file reads."""
    return min(physical_cores(), MAX_THREADS)
