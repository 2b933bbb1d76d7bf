"""Decide where long tasks check for signals: in long loops, after a given number of instructions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from einsmith.codegen.loopnest.nest import If, Loop, Op, SSAValue

CHECK_FUNCTION = "einsmith_look"
"""Name of the function that checks for signals (codegen/entry/watch.py); it returns nonzero where the run is
stopped."""
CHECK_INSTRUCTIONS = 1 << 14
"""Approximate instructions between two checks: some microseconds, of which a check takes ten nanoseconds."""
ASSUMED_TURNS = 64
"""Turns assumed for a loop whose number of turns is not known."""


def period(x: Loop, trips: int | None, number: Callable[[SSAValue], Any]) -> int:
    """Return the number of a loop's turns between two checks, a power of two; 0 where the enclosing loop checks often
    enough."""
    each = max(1, count_instructions(x.body, number)) * x.unroll
    if trips is not None and trips * each < CHECK_INSTRUCTIONS:
        return 0
    return 1 << max(0, (CHECK_INSTRUCTIONS // each).bit_length() - 1)


def count_instructions(block: Sequence[Any], number: Callable[[SSAValue], Any]) -> int:
    """Return the approximate number of instructions that a region executes."""
    total, stack = 0, [(block, 1)]
    while stack:
        inner, times = stack.pop()
        for x in inner:
            if isinstance(x, Op):
                total += times
            elif isinstance(x, If):
                stack.append((x.body, times))
            else:
                lo, hi = number(x.lo), number(x.hi)
                turns = ASSUMED_TURNS if lo is None or hi is None else max(0, -(-(int(hi) - int(lo)) // x.step))
                stack.append((x.body, times * turns))
    return total
