"""Decide races between two candidates by nonparametric statistics of alternating runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

from einsmith.tuning.calibration import load

MIN_ROUNDS, MAX_ROUNDS = 5, 60
"""Fewest and most rounds of a race. From 5 rounds on, the smallest and largest ratio of paired runs bound their median
with 94 % confidence."""
FINAL_ROUNDS = 100
"""Rounds of a race that decides whether a candidate is kept."""
EQUALITY_TOLERANCE = 0.01
"""Relative difference of times below which candidates count as equal; the race then ends."""
LOSING_RATIO = 1.5
"""Largest ratio of times, in both of the first two rounds, at which a candidate does not lose at once."""
MAX_ERROR_PROBABILITY = 0.0625
"""Largest probability with which the median lies outside its bounds."""
PROGRAM_ROUNDS = 40
"""Rounds of a race of whole programs that is decided."""
LOSING_PROGRAM_RATIO = 1.03
"""Ratio of times from which on a program, with confidence, loses a race of programs before its last round."""


class RaceResult(NamedTuple):
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
    if len(ratios) >= 2 and ratios[0] > LOSING_RATIO:
        return True
    if len(ratios) < MIN_ROUNDS:
        return False
    low, high = bounds(ratios)
    return high < 1 or low > 1 or (low > 1 - EQUALITY_TOLERANCE and high < 1 + EQUALITY_TOLERANCE)


def race_programs(
    first: Callable[[], object], second: Callable[[], object], seconds: float, waits: bool = False
) -> RaceResult:
    """Race two programs in alternating runs for at most `seconds`, but for at least MIN_ROUNDS rounds.

    The race ends early where the second program is slower with confidence. waits: whether this thread waits for a
    device that runs them.
    """
    runs = first, second
    times: tuple[list[float], list[float]] = [], []
    for run in (*runs, *runs):  # the first runs are slow
        run()
    watch, end = load.Watch(waits=waits), time.perf_counter() + seconds
    for n in range(PROGRAM_ROUNDS):
        for which in (0, 1) if n % 2 == 0 else (1, 0):
            start = time.perf_counter()
            runs[which]()
            times[which].append(time.perf_counter() - start)
        if n + 1 >= MIN_ROUNDS and (time.perf_counter() > end or bounds(pair_ratios(*times))[0] > LOSING_PROGRAM_RATIO):
            break
    ratios = pair_ratios(*times)
    low, high = bounds(ratios)
    busy, is_complete = watch.disturbance(), len(ratios) == PROGRAM_ROUNDS
    return RaceResult(median(times[0]), median(times[1]), median(ratios), low, high, busy, is_complete)


def pair_ratios(first: Sequence[float], other: Sequence[float]) -> list[float]:
    """Return the ratios of the other's times to the first's in each round, in ascending order."""
    return sorted(b / a for a, b in zip(first, other, strict=False))


def bounds(ordered: Sequence[float]) -> tuple[float, float]:
    """Return bounds of the median of five or more ordered ratios that fail with probability at most
    MAX_ERROR_PROBABILITY: the order statistics of the sign test."""
    n, dropped = len(ordered), 0
    tail = term = 0.5**n
    while dropped < (n - 1) // 2:
        term *= (n - dropped) / (dropped + 1)
        if 2 * (tail + term) > MAX_ERROR_PROBABILITY:
            break
        dropped, tail = dropped + 1, tail + term
    return ordered[dropped], ordered[n - 1 - dropped]
