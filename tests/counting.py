"""Count the Python calls that a piece of work takes: a measure that load on the machine does not change."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

from einsmith.base import caches


def python_calls(f: Callable[[], Any]) -> int:
    """Return the calls of Python functions in this thread while `f()` runs, with nothing remembered before it."""
    caches.cache_clear()
    gc.collect()
    count = 0

    def note(frame: Any, event: str, arg: Any) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        f()
    finally:
        sys.setprofile(None)
    return count
