"""Race whole programs in alternating runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

from einsmith.tuning.calibration import load
from einsmith.tuning.kernels.tuner import RaceResult
from einsmith.tuning.kernels.verdict import MIN_ROUNDS, bounds, pair_ratios

PROGRAM_ROUNDS = 40
"""Rounds of a race of whole programs that is decided."""
LOSING_PROGRAM_RATIO = 1.03
"""Ratio of times from which on a program, with confidence, loses a race of programs before its last round."""


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
