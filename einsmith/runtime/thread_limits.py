"""Let `threadpoolctl` list and limit Einsmith's threads, where that package is installed."""

from __future__ import annotations

from functools import cache

from einsmith.base import VERSION, environment, locks
from einsmith.runtime import thread_count


@cache
def register_controller() -> bool:
    """Register Einsmith with threadpoolctl, once. Return whether threadpoolctl is installed.

    threadpoolctl finds libraries by the names of their files. Generated code has no file, so Einsmith registers the
    library that generates it.
    """
    try:
        with locks.IMPORTING:
            import threadpoolctl
    except ImportError:
        return False

    class EinsmithController(threadpoolctl.LibController):
        user_api = internal_api = "einsmith"
        filename_prefixes = ("libllvmlite", "llvmlite")

        def get_num_threads(self) -> int:
            return thread_count.get_threads()

        def set_num_threads(self, num_threads: int) -> None:
            initial = environment.THREADS.get() or thread_count.usable_cores()
            thread_count.set_threads(None if num_threads == initial else num_threads)

        def get_version(self) -> str:
            return VERSION

    threadpoolctl.register(EinsmithController)
    return True
