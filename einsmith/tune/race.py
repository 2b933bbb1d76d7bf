"""When a race between two candidates is decided: statistics of runs in turns, without an assumption about noise."""

from __future__ import annotations

from collections.abc import Sequence

LEAST, MOST = 5, 60
"""Rounds of a race: from 5 on the shortest and the longest of paired runs are a bound of their median with 94 %."""
WHOLE = 100
"""Rounds of a race that decides whether a candidate is kept."""
APART = 0.01
"""Candidates that differ by less are as good as each other: a race does not go on to tell which is first."""
SLOW = 1.5
"""Who takes so many times as long in both of the first rounds is out."""
OUTSIDE = 0.0625
"""How often a median may lie outside of its bounds."""


def told_apart(first: Sequence[float], other: Sequence[float]) -> bool:
    """Whether paired runs tell, with confidence, that one is faster than the other, or that both are equal."""
    ratios = paired(first, other)
    if len(ratios) >= 2 and ratios[0] > SLOW:
        return True
    if len(ratios) < LEAST:
        return False
    low, high = bounds(ratios)
    return high < 1 or low > 1 or (low > 1 - APART and high < 1 + APART)


def paired(first: Sequence[float], other: Sequence[float]) -> list[float]:
    """The other's runs over those of the first in the same rounds, in order."""
    return sorted(b / a for a, b in zip(first, other, strict=False))


def bounds(ordered: Sequence[float]) -> tuple[float, float]:
    """Between which the median lies all but OUTSIDE of the time, of five or more: the sign test's order statistics."""
    n, out = len(ordered), 0
    tail = term = 0.5**n
    while out < (n - 1) // 2:
        term *= (n - out) / (out + 1)
        if 2 * (tail + term) > OUTSIDE:
            break
        out, tail = out + 1, tail + term
    return ordered[out], ordered[n - 1 - out]
