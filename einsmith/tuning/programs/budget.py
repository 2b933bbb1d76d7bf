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

MAX_STEP_RATIO = 100.0
"""Largest time of a step with a trial that is accounted, as a multiple of the usual step; in a longer step the machine
was suspended or did something else."""
MAX_DISTURBED_RATIO = 3.0
"""Largest time of any other step that is accounted, as a multiple of the usual step. It is the same for quiet steps and
for steps beside working threads or processes: another program that takes the processors lengthens both, and with
different limits its disturbance would count as lost by exploring."""
COLD_STEPS = 5
"""Number of first quiet steps, of which the shortest counts: they meet cold caches and untouched memory."""
MAX_CREDIT_STEPS = 3.0
"""Largest credit from steps faster than usual, in usual steps; more means that the usual time is overestimated."""
AVERAGED_STEPS = 100
"""Approximate number of quiet steps over which the usual time is averaged."""
RESUME_SHARE = 0.8
"""Fraction of the allowed loss below which stopped work resumes; the hysteresis avoids a switch at every step."""


class Budget:
    """Account of the time that exploring costs; used by the training thread and by others.

    share: fraction of the time of all steps that may be lost; total: seconds of all steps so far."""

    def __init__(self, share: float):
        self.share = share
        self.total = 0.0
        self._in_steps = self._in_steps_with_threads = self._in_threads = 0.0
        """Seconds lost in steps without and with a working thread, and seconds of the threads' work."""
        self._outside_steps = 0.0
        self._usual = self._steps = 0.0
        self._settled = True
        """True where the previous step was quiet."""
        self._lock = locks.lock()
        self.stopped = False
        """True while work that can be stopped has to rest."""

    @property
    def lost_seconds(self) -> float:
        """Seconds that exploring has cost so far."""
        return self._outside_steps + max(0.0, self._in_steps) + max(self._in_steps_with_threads, self._in_threads)

    @property
    def usual(self) -> float:
        """Seconds of a quiet step; 0 before the first one."""
        return self._usual

    def can_spend(self, seconds: float = 0.0) -> bool:
        """Return whether `seconds` more may be lost."""
        return self.lost_seconds + seconds <= self.share * self.total

    def step(
        self, seconds: float, quiet: bool, threads: bool = False, more_seconds: float = 0.0, trial: bool = False
    ) -> None:
        """Account for a finished step.

        Args:
            seconds: time of the step.
            quiet: whether no exploring happened in it.
            threads: whether threads worked in it.
            more_seconds: bookkeeping seconds outside the step.
            trial: whether the step was part of a trial, which may take many times a usual step.
        """
        self.total += seconds + more_seconds
        self._outside_steps += more_seconds
        settled, self._settled = self._settled, quiet
        if quiet and (settled or self._steps < COLD_STEPS):
            self._steps = min(self._steps + 1, AVERAGED_STEPS)
            if self._steps <= COLD_STEPS:
                self._usual = min(self._usual or seconds, seconds)
            else:
                self._usual += (min(seconds, MAX_DISTURBED_RATIO * self._usual) - self._usual) / self._steps
        elif self._usual:
            limit = MAX_STEP_RATIO if trial else MAX_DISTURBED_RATIO
            lost_seconds = min(seconds, limit * self._usual) - self._usual
            if threads:
                self._in_steps_with_threads = max(0.0, self._in_steps_with_threads + lost_seconds)
            else:
                self._in_steps += lost_seconds
        if self._in_steps < 0:
            self._in_steps = max(self._in_steps, -MAX_CREDIT_STEPS * self._usual)
        allowed = self.share * self.total
        self.stopped = self.lost_seconds > (RESUME_SHARE * allowed if self.stopped else allowed)

    def work(self, seconds: float) -> None:
        """Account for `seconds` of a thread's work."""
        with self._lock:
            self._in_threads += seconds
