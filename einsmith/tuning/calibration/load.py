"""Detect what else the machine does while a measurement runs.

The spread of a figure's runs does not show other work: runs agree with each other as long as that work lasts. The
time that the processors worked, and the time for which this thread was kept from running, do show it.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

MAX_OTHERS_SHARE = 0.2
"""Largest fraction of the processors' time that other programs take on a quiet machine; a desktop at rest takes a few
hundredths, one more program on two cores takes half."""
TICK_SECONDS = 0.01
"""Processor seconds by which the system's count may exceed the process's own (proc(5) counts hundredths of a
second)."""
MAX_WAITING_SHARE = 0.2
"""Largest fraction of the wall-clock time for which this thread does not run on a quiet machine; waiting for other
threads to finish alone takes up to a tenth."""

MIN_SPARE_SECONDS = 10 * TICK_SECONDS
"""Shortest watch that tells how many processors are idle, in which a tick is a tenth of a processor."""


class Watch:
    """Record of what the machine does since its creation, for a thread that computes all the time.

    parent: another process whose work is not that of other programs, if any
    """

    def __init__(self, parent: int | None = None):
        self._parent = parent
        self._start = self._read_times()

    def _read_times(self) -> tuple[float, float, float, float]:
        """Return the times now, with the parent's work as this process's."""
        wall, thread, process, total = _times()
        return wall, thread, process + (0.0 if self._parent is None else _process_seconds(self._parent)), total

    def disturbance(self) -> str:
        """Return, as text for people, what makes figures measured during the watch doubtful; empty if nothing does."""
        wall, thread, process, total = (b - a for a, b in zip(self._start, self._read_times(), strict=True))
        if wall <= 0:
            return ""
        count = len(_processors())
        others = ((total - process) / count - TICK_SECONDS) / wall
        if others > MAX_OTHERS_SHARE:
            return f"other programs took {others:.0%} of {count} processor{'s' * (count > 1)}"
        waiting = 1 - thread / wall
        return (
            f"this program had to wait for a processor for {waiting:.0%} of the time"
            if waiting > MAX_WAITING_SHARE
            else ""
        )

    def spare(self) -> float | None:
        """Return how many processors other programs have left idle, or to this process and its parent, on average; None
        where the watch is too short or the system does not tell."""
        wall, _, process, total = (b - a for a, b in zip(self._start, self._read_times(), strict=True))
        if wall < MIN_SPARE_SECONDS or not self._start[-1]:
            return None
        return max(0.0, len(_processors()) - (total - process) / wall)


def _times() -> tuple[float, float, float, float]:
    """Return four times in seconds: of the clock, of this thread, of this process, and of all work of the
    processors."""
    return time.perf_counter(), time.thread_time(), time.process_time(), _seconds_worked()


def _process_seconds(pid: int) -> float:
    """Return the seconds that the processors have worked for a process; 0 where the system does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()  # the name may have brackets, too
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # utime, stime (man 5 proc)
    except (OSError, ValueError, IndexError):
        return 0.0


def _processors() -> frozenset[int]:
    """Return the numbers of the processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def _seconds_worked() -> float:
    """Return the seconds that this process's processors have worked, or were withheld by the host of a virtual
    machine; 0 where the system does not tell."""
    try:
        rows = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
        mine = {f"cpu{n}" for n in _processors()}
        # user, nice, system, idle, waiting, interrupts of two kinds, stolen (man 5 proc)
        ticks = sum(int(row[n]) for row in rows if row and row[0] in mine for n in (1, 2, 3, 6, 7, 8))
        return ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0
