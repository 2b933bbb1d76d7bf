"""Watch the order of Einsmith's locks in all tests: who holds a `locks.lock()` acquires no `Awaited` lock.

A fork waits for the holders of awaited locks, and keeps others from acquiring one. A holder that waits for a plain lock
whose own holder waits for the fork would be waited for in vain; nobody knows who waits for a plain lock.
"""

from __future__ import annotations

import sys
import threading
from _thread import RLock
from typing import Any

from einsmith.base import locks

VIOLATIONS: list[str] = []
"""A line for each awaited lock that was acquired under a plain one, since the last look."""
ALLOWED = "runtime/queues.py"
"""Where locks are made that signal handlers take others under: the turns of threads, for which threads are known to
wait (`locks.RUNNING`)."""
_held = threading.local()


class _Watched(RLock):
    """A plain lock that its threads remember to hold."""

    def __enter__(self) -> Any:
        out = super().__enter__()
        _held.__dict__.setdefault("locks", []).append(self)
        return out

    def __exit__(self, *error: object) -> None:
        _held.locks.pop()
        super().__exit__(*error)


def install() -> None:
    """Have every lock made from now on watched; called before the modules that make them are imported."""
    make, enter = locks.lock, locks.Awaited.__enter__

    def lock() -> Any:
        frame = sys._getframe(1)
        if frame.f_code.co_filename.replace("\\", "/").endswith(ALLOWED):
            return make()
        out = _Watched()
        out.place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        locks._free_in_child.add(out)
        return out

    def checked_enter(self: locks.Awaited) -> Any:
        if held := _held.__dict__.get("locks"):
            VIOLATIONS.append(f"a thread that holds the lock of {held[-1].place} acquires one for {self._doing!r}")
        return enter(self)

    locks.lock, locks.Awaited.__enter__ = lock, checked_enter  # type: ignore[method-assign]
