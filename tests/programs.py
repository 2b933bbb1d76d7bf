"""The programs that calls have compiled, for tests of what these hold and do."""

from __future__ import annotations

from typing import Any

from einsmith.api import jit
from einsmith.driver.bound_program import BoundProgram


def programs_of(f: Any) -> list[BoundProgram]:
    """Return the programs of a function of `es.jit`, of a function that is derived from it, or of a module."""
    jitted = f if isinstance(f, jit.Jitted) else getattr(f, "_jitted", None) or jit._JITTED[f]
    return [run for run, _ in jitted._cache.values()]


def program_of(f: Any) -> BoundProgram:
    """Return the one program that calls of f have compiled."""
    (run,) = programs_of(f)
    return run
