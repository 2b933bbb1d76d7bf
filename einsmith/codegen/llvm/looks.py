"""Looks at signals inside of long tasks: in loops that go on for long, after about so many instructions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from einsmith.loops.nest import If, Loop, Op, SSAValue

LOOK = "einsmith_look"
"""What is called (codegen/entry/watch.py): not 0 where the run is stopped."""
INSTRUCTIONS = 1 << 14
"""Between two looks, about: some microseconds, of which a look takes ten nanoseconds."""
TURNS = 64
"""Taken for the turns of a loop whose number is not known."""


def period(x: Loop, trips: int | None, number: Callable[[SSAValue], Any]) -> int:
    """Of how many turns of a loop one looks, a power of two; 0 where the loop around it looks often enough."""
    each = max(1, work(x.body, number)) * x.unroll
    if trips is not None and trips * each < INSTRUCTIONS:
        return 0
    return 1 << max(0, (INSTRUCTIONS // each).bit_length() - 1)


def work(block: Sequence[Any], number: Callable[[SSAValue], Any]) -> int:
    """About how many instructions run in a region."""
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
                turns = TURNS if lo is None or hi is None else max(0, -(-(int(hi) - int(lo)) // x.step))
                stack.append((x.body, times * turns))
    return total
