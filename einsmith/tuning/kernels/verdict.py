"""Decide between two candidates by nonparametric statistics of alternating runs."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

MIN_ROUNDS, MAX_ROUNDS = 5, 60
"""Fewest and most rounds of a race. From 5 rounds on, the smallest and largest ratio of paired runs bound their median
with 94 % confidence."""
FINAL_ROUNDS = 100
"""Rounds of a race that decides whether a candidate is kept."""
MAX_KEPT_RATIO = 0.98
"""Largest time of a candidate that is kept, as a fraction of the present one's; smaller gains are lost in the noise of
a program."""
LOSING_RATIO = 1.5
"""Largest ratio of times, in both of the first two rounds, at which a candidate does not lose at once."""
MAX_ERROR_PROBABILITY = 0.0625
"""Largest probability with which the median lies outside its bounds."""


def judge(ratios: Sequence[float], rounds: int = MIN_ROUNDS) -> bool | None:
    """Return True where a candidate is faster with confidence and by enough to be kept, False where it is not, and None
    while that is undecided.

    Args:
        ratios: its times over those of the other one, of each round, in ascending order
        rounds: fewest rounds after which it can win
    """
    if len(ratios) >= 2 and ratios[0] > LOSING_RATIO:
        return False
    if len(ratios) < MIN_ROUNDS:
        return None
    low, high = bounds(ratios)
    if low > MAX_KEPT_RATIO:
        return False
    return True if high < 1 and median(ratios) <= MAX_KEPT_RATIO and len(ratios) >= rounds else None


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
