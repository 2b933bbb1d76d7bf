"""Track the runs under way in each thread, and reject runs that may not begin in the middle of another one.

A signal's handler is called in the middle of a run (runtime/interrupts.py), or between its preparation and its end,
and may run programs itself. A program that shares the table of pointers or the memory of intermediate results with the
waiting run would spoil it; a program that stores into parameters would let the second half of the run work with other
values than the first.
"""

from __future__ import annotations

from threading import get_ident
from typing import Any

from einsmith.base import forks, locks
from einsmith.base.errors import EinsmithError
from einsmith.runtime.arena import Arena

UnderWay = tuple[Arena, locks.Guard | None, Any]
"""A run: the memory of its intermediate results, which all runs of one program in a queue share; the guard of the
parameters and state that it uses, or None; and the enclosing run of this thread, or None."""

under_way: dict[int, UnderWay] = {}
"""The innermost run of each thread, by the thread's number."""


def check_run(outer: UnderWay, arena: Arena, guard: locks.Guard | None, stores: bool) -> None:
    """Check that a program may run within `outer`. stores: whether it stores into memory that `guard` protects.

    Raises EinsmithError where it would spoil a run.
    """
    at: UnderWay | None = outer
    while at is not None:
        if at[0] is arena:
            raise _error("a program is called in the middle of a run of itself, or of one that shares its memory")
        at = at[2]
    if stores and guard is not None:
        check_store(guard)


def check_store(guard: locks.Guard) -> None:
    """Check that no run of this thread uses parameters or state of a guard, which the caller holds.

    Raises EinsmithError otherwise.
    """
    at = under_way.get(get_ident())
    while at is not None:
        if at[1] is not None and at[1].is_joined(guard):
            raise _error("parameters or state would be changed in the middle of a run that uses them")
        at = at[2]


def _error(what: str) -> EinsmithError:
    return EinsmithError(
        f"{what}: a signal handler or a finalizer does this, and the run would continue with wrong values or never "
        "end; let the handler set a flag, and read the flag between two calls"
    )


def _reset_after_fork() -> None:
    for thread in [n for n in under_way if n != get_ident()]:
        del under_way[thread]


forks.at_fork(after_in_child=_reset_after_fork)
