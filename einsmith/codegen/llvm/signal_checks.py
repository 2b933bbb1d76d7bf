"""Decide where long tasks check for signals: in long loops, after a given number of instructions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from einsmith.codegen.ssa import If, Loop, Op, SSAValue

CHECK_FUNCTION = "einsmith_look"
"""Name of the function that checks for signals (codegen/entry/watch.c); it returns nonzero where the run is
stopped."""
CHECK_INSTRUCTIONS = 1 << 14
"""Approximate instructions between two checks: some microseconds, of which a check takes ten nanoseconds."""
MANY_VECTORS = 8
"""Vectors carried by a loop and those around it from which on it does not check, unless it is very long
(LONG_INSTRUCTIONS). A call keeps no vector register, and with few to spare LLVM moves the carried ones through the
stack in every turn, not only in those that call: a tile of 14 x 2 sums over 4,608 points took 2.2 times as long on a
Zen 4, and a tile of 6 x 4 sums 1.8 times, whose rarely run correction of sums that are not numbers called."""
LONG_INSTRUCTIONS = 1 << 28
"""Instructions of a loop that carries many vectors from which on it checks all the same: some 80 ms, or less where it
has loops of unknown turns, for which too many are assumed."""
ASSUMED_TURNS = 64
"""Turns assumed for a loop whose number of turns is not known."""


def period(x: Loop, trips: int | None, carried: int, number: Callable[[SSAValue], Any]) -> int:
    """Return the number of iterations of a loop between two checks, a power of two; 0 if the enclosing loop checks
    often enough.

    Args:
        x: the loop, whose body has been emitted
        trips: its number of iterations; None if it is not known
        carried: number of vectors that the loop and its enclosing loops carry
        number: returns the number that a value is known to be
    """
    each = max(1, count_instructions(x.body, number)) * x.unroll
    if trips is not None and trips * each < CHECK_INSTRUCTIONS:
        return 0
    if carried >= MANY_VECTORS and (trips or ASSUMED_TURNS) * each < LONG_INSTRUCTIONS:
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
                known = lo is not None and hi is not None
                turns = max(0, -(-(int(hi) - int(lo)) // x.step)) if known else 1 if x.seldom else ASSUMED_TURNS
                stack.append((x.body, times * turns))
    return total
