"""Register back ends under the names that targets use for them."""

from __future__ import annotations

from einsmith.base.errors import CompileError
from einsmith.cost.facts import Target
from einsmith.driver.backend import Backend
from einsmith.driver.cpu import CPU
from einsmith.kernels import autoconfig

BACKENDS: dict[str, Backend] = {CPU.name: CPU}
DEFAULT: Backend = CPU
"""The back end whose target programs are compiled for where none is given."""


def register(backend: Backend) -> None:
    """Register a back end, so that programs for targets with its name are compiled by it. Raises CompileError where
    the name is taken, or where one of its patterns has the name of another back end's pattern."""
    if backend.name in BACKENDS:
        raise CompileError(f"there is a back end {backend.name!r} already; give the new one another name")
    used_names = {p.name for known in BACKENDS.values() for p in known.patterns} | {autoconfig.ROWS.name}
    if common_names := sorted(used_names & {p.name for p in backend.patterns}):
        raise CompileError(f"there is a pattern {common_names[0]!r} already; give the new one another name")
    BACKENDS[backend.name] = backend
    autoconfig.OTHERS[backend.name] = backend.patterns


def backend_of(target: Target) -> Backend:
    """Return the back end of a target. Raises CompileError where there is none."""
    backend = BACKENDS.get(target.backend)
    if backend is None:
        raise CompileError(f"no back end {target.backend!r} for {target!r}; there are {', '.join(BACKENDS)}")
    return backend
