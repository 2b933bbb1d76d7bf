"""Decide races between two candidates by nonparametric statistics of alternating runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

from einsmith.tuning.calibration import load

LEAST, MOST = 5, 60
"""Fewest and most rounds of a race. From 5 rounds on, the smallest and largest ratio of paired runs bound their median
with 94 % confidence."""
WHOLE = 100
"""Rounds of a race that decides whether a candidate is kept."""
APART = 0.01
"""Relative difference below which candidates count as equal: a race does not go on to tell which is first."""
SLOW = 1.5
"""Ratio of times in both of the first two rounds from which on a candidate loses at once."""
OUTSIDE = 0.0625
"""Probability with which the median may lie outside its bounds."""
STEPS = 40
"""Rounds of a race of whole programs that is decided."""
SLOWER = 1.03
"""Ratio of times from which on a program, with confidence, loses before its last round."""


class Raced(NamedTuple):
    """The result of a race of two programs.

    Attributes:
        first, second: median seconds of a run of each
        ratio: the median ratio of paired runs, second over first, which lies between `low` and `high` with 94 %
            confidence
        busy: what else the machine did; empty if nothing
        decides: whether the race had all its rounds
    """

    first: float
    second: float
    ratio: float
    low: float
    high: float
    busy: str
    decides: bool


def is_decided(first: Sequence[float], other: Sequence[float]) -> bool:
    """Return whether paired runs show with confidence that one candidate is faster, or that both are equal."""
    ratios = pair_ratios(first, other)
    if len(ratios) >= 2 and ratios[0] > SLOW:
        return True
    if len(ratios) < LEAST:
        return False
    low, high = bounds(ratios)
    return high < 1 or low > 1 or (low > 1 - APART and high < 1 + APART)


def of_programs(first: Callable[[], object], second: Callable[[], object], seconds: float) -> Raced:
    """Race two programs in alternating runs for at most `seconds`, but for at least LEAST rounds. The race ends early
    where the second program is slower with confidence."""
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
        if n + 1 >= LEAST and (time.perf_counter() > end or bounds(pair_ratios(*times))[0] > SLOWER):
            break
    ratios = pair_ratios(*times)
    low, high = bounds(ratios)
    busy, whole = watch.disturbance(), len(ratios) == STEPS
    return Raced(median(times[0]), median(times[1]), median(ratios), low, high, busy, whole)


def pair_ratios(first: Sequence[float], other: Sequence[float]) -> list[float]:
    """Return the ratios of the other's times to the first's in each round, in ascending order."""
    return sorted(b / a for a, b in zip(first, other, strict=False))


def bounds(ordered: Sequence[float]) -> tuple[float, float]:
    """Return bounds of the median of five or more ordered ratios that fail with probability at most OUTSIDE: the order
    statistics of the sign test."""
    n, out = len(ordered), 0
    tail = term = 0.5**n
    while out < (n - 1) // 2:
        term *= (n - out) / (out + 1)
        if 2 * (tail + term) > OUTSIDE:
            break
        out, tail = out + 1, tail + term
    return ordered[out], ordered[n - 1 - out]
