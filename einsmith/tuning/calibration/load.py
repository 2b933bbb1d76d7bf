"""Detect what else the machine does while a measurement runs.

The spread of a figure's runs does not show other work: runs agree with each other as long as that work lasts. The
time that the processors worked, and the time for which this thread was kept from running, do show it.
"""

from __future__ import annotations

import time

from einsmith.base.system import processors

MAX_OTHERS_SHARE = 0.2
"""Largest fraction of the processors' time that other programs take on a quiet machine; a desktop at rest takes a few
hundredths, one more program on two cores takes half."""
TICK_SECONDS = 0.01
"""Processor seconds by which the system's count may exceed the process's own (proc(5) counts hundredths of a
second)."""
MAX_WAITING_SHARE = 0.2
"""Largest fraction of the wall-clock time for which this thread does not run on a quiet machine; waiting for other
threads to finish alone takes up to a tenth."""

MIN_WATCH_SECONDS = 10 * TICK_SECONDS
"""Shortest watch that tells what else the machine does, in which a tick is a tenth of a processor."""


class Watch:
    """Record of what the machine does since its creation, for a thread that computes all the time.

    waits: whether the thread does not
    compute, but waits for a device
    """

    def __init__(self, waits: bool = False):
        self._waits, self._start = waits, _times()

    def disturbance(self) -> str:
        """Return, as text for people, what makes figures measured during the watch doubtful; empty if nothing does."""
        wall, thread, process, total = (b - a for a, b in zip(self._start, _times(), strict=True))
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


def _times() -> tuple[float, float, float, float]:
    """Return four times in seconds: of the clock, of this thread, of this process, and of all work of the
    processors."""
    return time.perf_counter(), time.thread_time(), time.process_time(), processors.seconds_worked()
