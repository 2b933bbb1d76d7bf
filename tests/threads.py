"""The locks of Einsmith that threads hold and wait for, for tests of threads and of signals."""

from __future__ import annotations

import threading
from typing import Any

from einsmith.base import locks
from einsmith.base.locks import Guard


def waits() -> dict[int, Any]:
    """Return the lock that each waiting thread waits for, by thread id."""
    return dict(locks._waits)


def inside() -> set[int]:
    """Return the ids of the threads that hold an awaited lock, or wait for one."""
    return set(locks._inside)


def readers(guard: Guard) -> dict[int, int]:
    """Return the number of reads under way of the values of a guard, by thread id."""
    return dict(guard._root()._lock.readers)


def is_free(lock: Any, seconds: float = 20.0) -> bool:
    """Return whether another thread acquires a lock; it tries for some seconds."""
    acquired: list[bool] = []

    def acquire() -> None:
        with lock:
            acquired.append(True)

    thread = threading.Thread(target=acquire, daemon=True)
    thread.start()
    thread.join(seconds)
    return bool(acquired)
