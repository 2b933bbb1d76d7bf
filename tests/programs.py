"""The programs that calls have compiled, for tests of what these hold and do."""

from __future__ import annotations

from typing import Any

from einsmith.api import jit
from einsmith.driver.bound_program import BoundProgram
from einsmith.runtime.arena import Arena


def programs_of(f: Any) -> list[BoundProgram]:
    """Return the programs of a function of `es.jit`, of a function that is derived from it, or of a module."""
    jitted = f if isinstance(f, jit.Jitted) else getattr(f, "_jitted", None) or jit._JITTED[f]
    return [run for run, _ in jitted._cache.values()]


def arena_of(f: jit.Jitted) -> Arena:
    """Return the memory that the programs of a function of `es.jit` share."""
    return f._arena


def entries_of(f: jit.Jitted) -> list[int]:
    """Return the numbers of entries in the tables by which a function of `es.jit` finds its programs."""
    return [len(f._quick), len(f._ready), len(f._depends)]


def program_of(f: Any) -> BoundProgram:
    """Return the one program that calls of f have compiled."""
    (run,) = programs_of(f)
    return run
