"""Have configurations compiled and vetted while a program trains: the code-generating thread of an exploration."""

from __future__ import annotations

import queue

from einsmith.schedule.kernel import Kernel
from einsmith.tuning.programs.exploring import MAX_TRIAL_KERNELS, POLL_SECONDS, ExplorationState, Turns
from einsmith.tuning.programs.trial import Trial

FULL_TRIAL_BYTES = 256 << 20
"""Bytes of the buffers of a trial's kernels, each counted twice for the candidate's copy, from which on no further
kernel joins the trial."""


class Vetter(Turns):
    """The turns of the code-generating thread: it has proposed configurations vetted, and begins trials of them."""

    def __init__(self, state: ExplorationState):
        super().__init__(state)
        self._being_vetted: tuple[Kernel, str] | None = None
        """Configuration taken from the queue; it stays here while the budget has no time for vetting it."""

    def turn(self) -> float:
        """Compare the results of a step in which candidates ran, or hand vetted configurations to the training thread,
        or have a configuration compiled and vetted. Return the seconds to wait until the next call."""
        if not self.state.kernels:  # no configuration is asked for before the profiled steps have run
            self.state.workshop.finish_start()
            return POLL_SECONDS
        trial = self.state.trial
        if trial is not None and trial.has_run:
            self.state.work(self.judge, trial)
            return POLL_SECONDS if trial.has_run else 0.0
        if trial is None and self.state.vetted and (self._is_full() or self.state.proposals.empty()):
            self.state.work(self._hand_over)
            return POLL_SECONDS
        if self._is_full():
            return POLL_SECONDS
        try:
            self._being_vetted = self._being_vetted or self.state.proposals.get_nowait()
        except queue.Empty:
            return POLL_SECONDS
        return self._vet(*self._being_vetted)

    def _is_full(self) -> bool:
        """Return whether the vetted configurations are as many, or have as large buffers, as one trial may have."""
        size = 2 * sum(b.nbytes for k in [*self.state.vetted] for b in k.buffers)
        return len(self.state.vetted) >= MAX_TRIAL_KERNELS or size >= FULL_TRIAL_BYTES

    def _vet(self, kernel: Kernel, text: str) -> float:
        """Have a configuration compiled and vetted. Return the seconds to wait until the thread's next turn."""
        answer = self.state.work(self.state.workshop.vet, kernel, text)
        if answer is None or self.state.ending.up:  # no time is left in the budget, or the process was ended
            return POLL_SECONDS
        self._being_vetted = None
        self.state.tried += 1
        if answer.fault:
            self.state.reject(kernel, text, answer.fault)
            self.state.under_test.discard(kernel)
        else:
            self.state.vetted[kernel] = text
        return self.state.compute_rest(answer.seconds)

    def _hand_over(self) -> None:
        """Begin a trial of the vetted configurations, or of as many of them as fit in memory."""
        texts, program = self.state.compile_fitting(self.state.vetted, compare=True)
        self.state.vetted = {k: text for k, text in self.state.vetted.items() if k not in texts}
        if program is not None and not self.state.ending.up:
            self.state.trial = Trial(texts, program)

    def judge(self, trial: Trial) -> None:
        """Compare the candidates' results with those of the program's kernels, and drop candidates that differ."""
        assert trial.comparing is not None
        for kernel, results in trial.comparing.comparisons.items():
            if fault := results.difference():
                self.state.reject(kernel, trial.texts.pop(kernel), f"in a step, {fault}")
                self.state.under_test.discard(kernel)
        trial.comparing = None
        self.state.continue_trial(trial)
        trial.has_run = False
