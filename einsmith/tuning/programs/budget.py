"""Limit the share of training time that is spent on exploring configurations.

Three things take time from the steps: bookkeeping, trials inside steps, and the workshop process, which shares
processors and caches. Quiet steps, in which none of these happens and none happened in the step before (which leaves
cold caches), measure the usual time of a step. The time of other steps beyond it is lost, and so is bookkeeping. Steps
beside the workshop lose at most the processor time that it takes: beyond that, something else has disturbed them. Every
unit of work first asks whether there is time left for it, and the workshop is paused while there is none. So the lost
time is at most the given fraction plus one unit of work, however short a step is.
"""

from __future__ import annotations

from math import inf

MAX_STEP_RATIO = 100.0
"""Largest time of a step with a trial that is accounted, as a multiple of the usual step; in a longer step the machine
was suspended or did something else."""
MAX_DISTURBED_RATIO = 3.0
"""Largest time of any other step that is accounted, as a multiple of the usual step, and of bookkeeping, as a multiple
of its processor time. It is the same for quiet steps and
for steps beside a working process: another program that takes the processors lengthens both, and with different limits
its disturbance would count as lost by exploring."""
COLD_STEPS = 5
"""Number of first quiet steps, of which the shortest counts: they meet cold caches and untouched memory."""
MAX_CREDIT_STEPS = 3.0
"""Largest credit from steps faster than usual, in usual steps; more means that the usual time is overestimated."""
AVERAGED_STEPS = 100
"""Approximate number of quiet steps over which the usual time is averaged."""
RESUME_SHARE = 0.8
"""Fraction of the allowed loss below which stopped work resumes; the hysteresis avoids a switch at every step."""


class Budget:
    """Account of the time that exploring costs.

    Attributes:
        share: fraction of the time of all steps that may be lost
        total: seconds of all steps so far
        usual: seconds of a quiet step; 0 before the first one
        waiting_share: least fraction of the time that bookkeeping has taken
        is_spent: whether work that can be stopped has to rest
    """

    def __init__(self, share: float):
        self.share = share
        self.total = self.usual = 0.0
        self.waiting_share = 1.0
        self.is_spent = False
        self._outside = self._in_trials = self._beside = self._worked = 0.0
        """Seconds lost outside steps, in trials and beside the workshop; processor seconds of the workshop."""
        self._began = inf
        """Processor seconds of the workshop at the first step beside it: it starts while the program is compiled."""
        self._steps = 0
        self._is_settled = True
        """Whether the step before was quiet."""

    @property
    def lost_seconds(self) -> float:
        """Seconds that exploring has cost so far."""
        return self._outside + max(0.0, self._in_trials + max(0.0, min(self._beside, self._worked)))

    def can_spend(self, seconds: float = 0.0) -> bool:
        """Return whether `seconds` more may be lost."""
        return self.lost_seconds + seconds <= self.share * self.total

    def step(
        self,
        seconds: float,
        is_trial: bool = False,
        workshop: float | None = None,
        outside: float = 0.0,
        worked: float = 0.0,
        count: int = 1,
    ) -> None:
        """Account for steps.

        Args:
            seconds: time of a step
            is_trial: whether it was part of a trial, which may take many times a usual step
            workshop: processor seconds that the workshop has taken so far; None where it did not work in the step
            outside: seconds of bookkeeping outside the step
            worked: processor seconds of the bookkeeping
            count: number of like steps that it stands for
        """
        outside = min(outside, MAX_DISTURBED_RATIO * worked)
        like = min(seconds, MAX_DISTURBED_RATIO * self.usual) if self.usual else seconds
        self.total += seconds + like * (count - 1) + outside
        self._outside += outside
        was_settled, self._is_settled = self._is_settled, not is_trial and workshop is None
        if self._is_settled and (was_settled or self._steps < COLD_STEPS):
            self._steps = min(self._steps + 1, AVERAGED_STEPS)
            if self._steps <= COLD_STEPS:
                self.usual = min(self.usual or seconds, seconds)
            else:
                self.usual += (min(seconds, MAX_DISTURBED_RATIO * self.usual) - self.usual) / self._steps
            self.waiting_share = min(self.waiting_share, outside / (self.usual * count))
        elif self.usual:
            limit = MAX_STEP_RATIO if is_trial else MAX_DISTURBED_RATIO
            more, credit = count * (min(seconds, limit * self.usual) - self.usual), -MAX_CREDIT_STEPS * self.usual
            if is_trial or workshop is None:
                self._in_trials = max(self._in_trials + more, credit)
            else:
                self._began = min(self._began, workshop)
                self._beside = max(self._beside + more, credit)
                self._worked = max(self._worked, workshop - self._began if workshop < inf else inf)
        allowed = self.share * self.total
        self.is_spent = self.lost_seconds > (RESUME_SHARE * allowed if self.is_spent else allowed)
