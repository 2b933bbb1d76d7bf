"""Detect what else the machine does while a measurement runs.

The spread of a figure's runs does not show other work: runs agree with each other as long as that work lasts. The
time that the processors worked, and the time for which this thread was kept from running, do show it.
"""

from __future__ import annotations

import time

from einsmith.base.system import processes, processors

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

    parent: another process whose work is not that of other programs, if any; waits: whether the thread does not
    compute, but waits for a device
    """

    def __init__(self, parent: int | None = None, waits: bool = False):
        self._parent, self._waits = parent, waits
        self._start = self._read_times()

    def _read_times(self) -> tuple[float, float, float, float]:
        """Return the times now, with the parent's work as this process's."""
        wall, thread, process, total = _times()
        parent = 0.0 if self._parent is None else processes.processor_seconds(self._parent)
        return wall, thread, process + parent, total

    def disturbance(self) -> str:
        """Return, as text for people, what makes figures measured during the watch doubtful; empty if nothing does."""
        wall, thread, process, total = (b - a for a, b in zip(self._start, self._read_times(), strict=True))
        if wall <= 0:
            return ""
        count = len(processors.allowed())
        others = ((total - process) / count - TICK_SECONDS) / wall
        if others > MAX_OTHERS_SHARE:
            return f"other programs took {others:.0%} of {count} processor{'s' * (count > 1)}"
        waiting = 1 - thread / wall
        return (
            f"this program had to wait for a processor for {waiting:.0%} of the time"
            if waiting > MAX_WAITING_SHARE and not self._waits
            else ""
        )

    def spare(self) -> float | None:
        """Return how many processors other programs have left idle, or to this process and its parent, on average; None
        where the watch is too short or the system does not tell."""
        wall, _, process, total = (b - a for a, b in zip(self._start, self._read_times(), strict=True))
        if wall < MIN_SPARE_SECONDS or not self._start[-1]:
            return None
        return max(0.0, len(processors.allowed()) - (total - process) / wall)


def _times() -> tuple[float, float, float, float]:
    """Return four times in seconds: of the clock, of this thread, of this process, and of all work of the
    processors."""
    return time.perf_counter(), time.thread_time(), time.process_time(), processors.seconds_worked()
