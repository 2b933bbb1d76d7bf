"""What else a machine does while something is measured on it.

A figure that is taken beside other work agrees with itself as long as that goes on: the spread of its runs does not
tell. What the processors did, and how long this thread was kept from running, does.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

OTHERS = 0.2
"""The part of the processors' time that others may take: a desktop at rest takes a few hundredths, one more program on
two cores half of it."""
TICK = 0.01
"""Seconds of a processor that the system may count to a time next to theirs (proc(5): hundredths of a second)."""
KEPT = 0.2
"""The part of the time in which this thread may not run: it waits for other threads' ends as well, up to a tenth."""


class Watch:
    """What the machine did since the watch was made, by a thread that computes all the time."""

    def __init__(self) -> None:
        self._start = _times()

    def disturbance(self) -> str:
        """What makes figures taken meanwhile doubtful, for people; empty if nothing does."""
        wall, thread, process, total = (b - a for a, b in zip(self._start, _times(), strict=True))
        if wall <= 0:
            return ""
        count = len(_processors())
        others = ((total - process) / count - TICK) / wall
        if others > OTHERS:
            return f"other programs took {others:.0%} of {count} processor{'s' * (count > 1)}"
        kept = 1 - thread / wall
        return f"this program was kept waiting for {kept:.0%} of the time" if kept > KEPT else ""


def _times() -> tuple[float, float, float, float]:
    """Seconds: by the clock, of this thread, of this process, and of all that the processors did."""
    return time.perf_counter(), time.thread_time(), time.process_time(), _worked()


def _processors() -> frozenset[int]:
    """The numbers of the processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def _worked() -> float:
    """Seconds that these processors have worked, or were withheld by the host of a virtual machine; 0 where the system
    does not tell."""
    try:
        rows = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
        mine = {f"cpu{n}" for n in _processors()}
        # user, nice, system, idle, waiting, interrupts of two kinds, stolen (man 5 proc)
        ticks = sum(int(row[n]) for row in rows if row and row[0] in mine for n in (1, 2, 3, 6, 7, 8))
        return ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0
