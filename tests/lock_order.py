"""Watch the order of Einsmith's locks in all tests: who holds a `locks.lock()` acquires no `Awaited` lock.

A fork waits for the holders of awaited locks, and keeps others from acquiring one. A holder that waits for a plain lock
whose own holder waits for the fork would be waited for in vain; nobody knows who waits for a plain lock.

The locks themselves stay as they are, since signals may come anywhere in their code: what an `Awaited` asks before it
is acquired looks at the plain locks, once for each stack of calls.
"""

from __future__ import annotations

import sys
import traceback
from typing import Any

from einsmith.base import locks

VIOLATIONS: list[str] = []
"""The stack of each awaited lock that was acquired under a plain one, since the last look."""
_seen: set[int] = set()


class _Inside(dict[int, list[Any]]):
    """The awaited locks that each thread holds: asked for before each acquisition."""

    def get(self, key: int, default: Any = None) -> Any:
        if sys.getprofile() is not None:  # the test counts calls
            return super().get(key, default)
        stack, frame = [], sys._getframe(1)
        while frame is not None:
            stack.append((frame.f_code, frame.f_lasti))
            frame = frame.f_back
        if (number := hash(tuple(stack))) not in _seen:
            _seen.add(number)
            queues = sys.modules.get("einsmith.runtime.queues")
            # A signal handler acquires others in the middle of a turn, for which threads are known to wait.
            turns = [] if queues is None else [q.lock for q in queues.queues]
            for lock in [r() for r in list(locks._free_in_child.data)]:  # copied at once: other threads make locks
                if (
                    lock is not None
                    and not isinstance(lock, locks.Reentrant)
                    and lock._is_owned()
                    and lock not in turns
                ):
                    VIOLATIONS.append("".join(traceback.format_stack(limit=12)))
        return super().get(key, default)


def install() -> None:
    """Begin to watch."""
    locks._inside = _Inside(locks._inside)
