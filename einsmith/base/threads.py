"""Start threads where the system may refuse more: containers limit them, and each needs address space."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Thread, active_count
from typing import Any, TypeVar

from einsmith.base.errors import EinsmithError

T = TypeVar("T")


def start(thread: Thread) -> None:
    """Start a thread. Raises EinsmithError where the system starts no more."""
    try:
        thread.start()
    except (RuntimeError, MemoryError) as e:
        raise EinsmithError(
            f"the system starts no more threads ({e}), and this process has {active_count()}: raise the limit of "
            "processes (ulimit -u, a container's pids limit) or of memory, or use fewer threads (EINSMITH_THREADS)"
        ) from e


def submit(pool: ThreadPoolExecutor, f: Callable[..., T], *args: Any) -> Future[T]:
    """Submit f(*args) to a pool; where that can start no thread, call f in this one."""
    try:
        return pool.submit(f, *args)
    except (RuntimeError, MemoryError):
        future: Future[T] = Future()
        try:
            future.set_result(f(*args))
        except Exception as e:
            future.set_exception(e)
        return future
