"""Track the runs under way in each thread, and reject runs that may not begin in the middle of another one.

A signal's handler is called in the middle of a run (runtime/interrupts.py), or between its preparation and its end,
and may run programs itself. A program that shares the table of pointers or the memory of intermediate results with the
waiting run would spoil it; a program that stores into parameters would let the second half of the run work with other
values than the first.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any

from einsmith.base import locks
from einsmith.base.errors import EinsmithError
from einsmith.runtime.arena import Arena

UnderWay = tuple[Arena, Any, Any]
"""A run: the memory of its intermediate results, which all runs of one program share; its lock (a Guard where it uses
parameters or state); and the run around it in this thread, None where there is none."""

under_way: dict[int, UnderWay] = {}
"""The innermost run of each thread, by the thread's number."""


def check_run(outer: UnderWay, arena: Arena, lock: Any, stores: bool) -> None:
    """Check that a program may run within `outer`. stores: whether it stores into memory that the guard `lock`
    protects.

    Raises EinsmithError where it would spoil a run.
    """
    at: UnderWay | None = outer
    while at is not None:
        if at[0] is arena:
            raise _error("a program is called in the middle of a run of itself, or of one that shares its memory")
        at = at[2]
    if stores and isinstance(lock, locks.Guard):
        check_store(lock)


def check_store(guard: locks.Guard) -> None:
    """Check that no run of this thread uses parameters or state of a guard, which the caller holds.

    Raises EinsmithError otherwise.
    """
    at = under_way.get(get_ident())
    while at is not None:
        if isinstance(at[1], locks.Guard) and at[1].is_joined(guard):
            raise _error("parameters or state would be changed in the middle of a run that uses them")
        at = at[2]


@contextmanager
def hold_lock(lock: Any) -> Iterator[None]:
    """Hold the lock of a program that uses no parameters and no state, while other runs are under way.

    Raises EinsmithError in the middle of a run of this thread where the lock's holder waits for that run to end.
    """
    if get_ident() not in under_way:
        with locks.RUNNING.awaited(lock):  # its holder runs a program, which needs the turn
            yield
        return
    before = lock._is_owned()
    try:
        while not lock.acquire(timeout=locks.LOOK):
            holders = [thread for thread, run in under_way.copy().items() if _has_lock(run, lock)]
            if any(map(locks.RUNNING.is_awaited_by, holders)):
                raise _error("a program is called in the middle of a run that another call of the program waits for")
    except BaseException:  # a signal, which may come after the lock was taken too
        if lock._is_owned() and not before:
            lock.release()
        raise
    try:
        yield
    finally:
        lock.release()


def _has_lock(run: UnderWay | None, lock: Any) -> bool:
    while run is not None and run[1] is not lock:
        run = run[2]
    return run is not None


def _error(what: str) -> EinsmithError:
    return EinsmithError(
        f"{what}: a signal handler or a finalizer does this, and the run would continue with wrong values or never "
        "end; let the handler set a flag, and read the flag between two calls"
    )


def _reset_after_fork() -> None:
    for thread in [n for n in under_way if n != get_ident()]:
        del under_way[thread]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)
