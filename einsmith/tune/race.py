"""When a race between two candidates is decided: statistics of runs in turns, without an assumption about noise."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

from einsmith.tune import load

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
STEPS = 40
"""Rounds of a race of whole programs that decides."""
SLOWER = 1.03
"""A program that takes so many times as long, with confidence, is out before that."""


class Raced(NamedTuple):
    """A race of two programs. first, second: the median seconds of a run of each; ratio: the median of those of paired
    runs, which lies between low and high with 94 %; busy: what else the machine did; decides: it went on to its end."""

    first: float
    second: float
    ratio: float
    low: float
    high: float
    busy: str
    decides: bool


def told_apart(first: Sequence[float], other: Sequence[float]) -> bool:
    """Whether paired runs tell, with confidence, that one is faster than the other, or that both are equal."""
    ratios = paired(first, other)
    if len(ratios) >= 2 and ratios[0] > SLOW:
        return True
    if len(ratios) < LEAST:
        return False
    low, high = bounds(ratios)
    return high < 1 or low > 1 or (low > 1 - APART and high < 1 + APART)


def of_programs(first: Callable[[], object], second: Callable[[], object], seconds: float) -> Raced:
    """Runs two programs in turns for so many seconds at most, but in LEAST rounds; it ends early for a second one that
    is slower with confidence."""
    runs = first, second
    times: tuple[list[float], list[float]] = [], []
    for run in (*runs, *runs):  # the first runs are slow
        run()
    watch, end = load.Watch(), time.perf_counter() + seconds
    for n in range(STEPS):
        for which in (0, 1) if n % 2 == 0 else (1, 0):
            start = time.perf_counter()
            runs[which]()
            times[which].append(time.perf_counter() - start)
        if n + 1 >= LEAST and (time.perf_counter() > end or bounds(paired(*times))[0] > SLOWER):
            break
    ratios = paired(*times)
    low, high = bounds(ratios)
    busy, whole = watch.disturbance(), len(ratios) == STEPS
    return Raced(median(times[0]), median(times[1]), median(ratios), low, high, busy, whole)


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
