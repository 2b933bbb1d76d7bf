"""How much work a call is, counted: the same on every machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import einsmith

_PACKAGE = str(Path(einsmith.__file__).parent)


def executed_lines(call: Callable[[], Any]) -> int:
    """Lines of the package that a call executes; one that is gone back to counts again."""
    lines = 0

    def count(frame: Any, event: str, arg: Any) -> Any:
        nonlocal lines
        lines += 1
        return count

    def entered(frame: Any, event: str, arg: Any) -> Any:
        return count if frame.f_code.co_filename.startswith(_PACKAGE) else None

    before = sys.gettrace()
    try:
        sys.settrace(entered)
        call()
    finally:
        sys.settrace(before)
    return lines
