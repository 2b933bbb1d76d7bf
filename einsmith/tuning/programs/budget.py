"""Limit the time that exploring takes from training to a fraction of the training time.

Four things take time from the steps: bookkeeping, trials inside steps, threads of this process (they hold the
interpreter lock), and the workshop process, which shares processors and caches. Quiet steps, in which none of these
happens and none happened in the step before (which leaves cold caches), measure the usual time of a step. The time of
other steps beyond it is lost. Work of threads between steps, which no step shows, is lost as well.
Every unit of work first asks whether there is time left for it, and work that can be stopped is stopped while there is
none. So the lost time is at most the given fraction plus one unit of work, however short a step is.
"""

from __future__ import annotations

from einsmith.base import locks

SUSPENDED = 100.0
"""Most usual steps that one step counts as; in a longer one the machine was suspended or did something else."""
QUIET = 3.0
"""Most usual steps that one quiet step counts as in the mean; a single disturbance says nothing about later steps."""
COLD = 5
"""First quiet steps, of which the shortest counts: they meet cold caches and untouched memory."""
CREDIT = 3.0
"""Most usual steps of credit from steps faster than usual; more means that the usual time is overestimated."""
MEMORY = 100
"""Approximate number of quiet steps over which the usual time is averaged."""
RESUMED = 0.8
"""Fraction of the allowed loss below which stopped work resumes; the hysteresis avoids a switch at every step."""


class Budget:
    """Account of the time that exploring costs; used by the training thread and by others.

    share: fraction of the time of all steps that may be lost; total, lost: seconds so far."""

    def __init__(self, share: float):
        self.share = share
        self.total = 0.0
        self._in_steps = self._beside_threads = self._in_threads = 0.0
        """Seconds lost in steps without and with a working thread, and seconds of the threads' work."""
        self._beside_steps = 0.0
        self._usual = self._steps = 0.0
        self._settled = True
        """True where the previous step was quiet."""
        self._lock = locks.lock()
        self.stopped = False
        """True while work that can be stopped has to rest."""

    @property
    def lost(self) -> float:
        """The seconds that exploring has cost so far."""
        return self._beside_steps + max(0.0, self._in_steps) + max(self._beside_threads, self._in_threads)

    @property
    def usual(self) -> float:
        """Seconds of a quiet step; 0 before the first one."""
        return self._usual

    def may(self, seconds: float = 0.0) -> bool:
        """Return whether `seconds` more may be lost."""
        return self.lost + seconds <= self.share * self.total

    def step(self, seconds: float, quiet: bool, threads: bool = False, more: float = 0.0) -> None:
        """Account for a finished step.

        Args:
            seconds: time of the step.
            quiet: whether no exploring happened in it.
            threads: whether threads worked in it.
            more: bookkeeping seconds outside the step.
        """
        self.total += seconds + more
        self._beside_steps += more
        settled, self._settled = self._settled, quiet
        if quiet and (settled or self._steps < COLD):
            self._steps = min(self._steps + 1, MEMORY)
            if self._steps <= COLD:
                self._usual = min(self._usual or seconds, seconds)
            else:
                self._usual += (min(seconds, QUIET * self._usual) - self._usual) / self._steps
        elif self._usual:
            lost = min(seconds, SUSPENDED * self._usual) - self._usual
            if threads:
                self._beside_threads = max(0.0, self._beside_threads + lost)
            else:
                self._in_steps += lost
        if self._in_steps < 0:
            self._in_steps = max(self._in_steps, -CREDIT * self._usual)
        allowed = self.share * self.total
        self.stopped = self.lost > (RESUMED * allowed if self.stopped else allowed)

    def work(self, seconds: float) -> None:
        """Account for `seconds` of a thread's work."""
        with self._lock:
            self._in_threads += seconds
