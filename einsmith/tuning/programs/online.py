"""Dynamic mode: tune a program's kernels while the program trains.

An exploring thread proposes configurations and a code-generating thread has them compiled and vetted; a bounded queue
connects them, and both use a low-priority process (`driver.backend.Workshop`). The training thread tries several
kernels at a time. In one step the candidates run in addition to the program's own kernels, into separate memory, and a
candidate whose result differs is dropped. Then steps alternate between the current program and the candidate program,
and each kernel is timed. A candidate that is significantly faster is installed and recorded. Every step is a training
step on the user's data, whichever program runs it.

A budget of time (`tuning.programs.budget`) limits all of this. Before each unit of work (a proposal, a compilation, a
comparison of results), the budget is asked whether there is time for it.
"""

from __future__ import annotations

import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Sequence
from math import inf
from statistics import median

import numpy as np

from einsmith.base.errors import EinsmithWarning
from einsmith.base.threads import start
from einsmith.driver.backend import Workshop
from einsmith.driver.binding import FINITE
from einsmith.driver.bound_program import BoundProgram
from einsmith.schedule.kernel import Kernel
from einsmith.tuning.kernels.decisions import name_of
from einsmith.tuning.programs.exploring import FIRST_UNIT_SECONDS, POLL_SECONDS, ExplorationState, Turns, loop
from einsmith.tuning.programs.proposing import Proposer
from einsmith.tuning.programs.trial import Seconds, Trial, judge, median_deviation, sum_by_kernel
from einsmith.tuning.programs.vetting import Vetter

PROFILED_STEPS = 3
"""Steps that are timed, kernel by kernel, before the first trial."""
MAX_UNTRACKED_STEPS = 16
"""Most consecutive steps run without bookkeeping while exploring waits for time in its budget; there are fewer if they
would take longer than POLL_SECONDS. Bookkeeping for every step took more than half of MAX_COST_SHARE on short steps."""
MIN_PAUSE_SECONDS = 1.0
"""Shortest pause of the workshop process (seconds)."""
MIN_PAUSE_STEPS = 4
"""Shortest pause of the workshop process, in steps of usual length; the longer one of the two limits holds. A pause is
renewed after 1/MIN_PAUSE_STEPS of it, which is at least one usual step."""

Step = tuple[int, list[np.ndarray]]
"""Result of a program's run: its status (0, or FINITE where the loss is not finite and nothing is updated), outputs."""


class Exploration:
    """The search for faster kernels of one program while it trains.

    The training thread calls `step` in place of the program. A configuration that wins is part of the program from the
    next step on.

    state: what is known of the kernels, which the threads share; proposer, vetter: what the two threads do"""

    def __init__(self, run: BoundProgram, workshop: Workshop, seconds: float = inf):
        self.state = ExplorationState(run, workshop, seconds)
        self.run, self._ending = run, self.state.ending
        self._renew_pause_at = 0.0
        """Clock time (`perf_counter`) after which the workshop's pause is renewed; 0 while the workshop works."""
        self._untracked_steps = 0
        """Number of coming steps to run without bookkeeping."""
        self._bookkeeping_seconds = 0.0
        """Seconds that the last call of `step` took in addition to the program's run."""
        self.proposer, self.vetter = Proposer(self.state), Vetter(self.state)
        turns: tuple[Turns, ...] = self.proposer, self.vetter
        for x, name in zip(turns, ("propose", "generate"), strict=True):
            arguments = weakref.ref(x), self._ending
            thread = threading.Thread(target=loop, args=arguments, name=f"einsmith_{name}", daemon=True)
            self._ending.threads.append(thread)
        start(self._ending.threads[1])
        weakref.finalize(self, self._ending.close)

    def step(self, arrays: Sequence[np.ndarray]) -> Step:
        """Run one training step with the current or a candidate program. Return and raise what the program does."""
        if self.state.over or os.getpid() != self._ending.pid:
            if os.getpid() == self._ending.pid:
                self._finish()
                self._warn()
            return self.run(arrays)
        if self._untracked_steps:
            self._untracked_steps -= 1
            self.state.budget.total += self.state.budget.usual
            return self.run(arrays)
        entered = time.perf_counter()
        workshop, units_begun = self.state.workshop, self.state.units_begun
        threads_work = bool(self.state.units_under_way)
        quiet, start_count = not workshop.busy, workshop.start_count
        start = time.perf_counter()
        plain, out = self._step(arrays)
        end = time.perf_counter()
        threads_work = threads_work or self.state.units_begun != units_begun
        quiet = plain and quiet and not threads_work and workshop.start_count == start_count
        self.state.budget.step(end - start, quiet, threads_work, self._bookkeeping_seconds, not plain)
        if self.state.budget.stopped or self._renew_pause_at:
            self._pause(end)
            if quiet and self.state.budget.stopped:
                self._untracked_steps = min(MAX_UNTRACKED_STEPS, int(POLL_SECONDS / self.state.budget.usual))
        if end > self.state.end_time:
            self.state.end("the time limit is reached")
        self._bookkeeping_seconds = start - entered + time.perf_counter() - end
        return out

    def _pause(self, now: float) -> None:
        """Pause the workshop process while the budget is exceeded; renew the pause before it ends."""
        if not self.state.budget.stopped:
            self.state.workshop.pause(0.0)
            self._renew_pause_at = 0.0
        elif now > self._renew_pause_at:
            seconds = max(MIN_PAUSE_SECONDS, MIN_PAUSE_STEPS * self.state.budget.usual)
            self.state.workshop.pause(seconds)
            self._renew_pause_at = now + seconds / MIN_PAUSE_STEPS

    def _step(self, arrays: Sequence[np.ndarray]) -> tuple[bool, Step]:
        """Run one training step as the trial demands: with the current program, timed or not, or with a candidate's.

        Return (whether the current program ran untimed, the program's result).
        """
        trial, budget = self.state.trial, self.state.budget
        if len(self.state.profiled) < PROFILED_STEPS:
            return (False, self._profile(arrays)) if budget.can_spend(FIRST_UNIT_SECONDS) else (True, self.run(arrays))
        if trial is None or trial.has_run:
            return True, self.run(arrays)
        if not (trial.first or budget.can_spend(self.state.expect("_compile") if trial.won or trial.lost else 0.0)):
            return True, self.run(arrays)
        if trial.comparing is not None:
            out = trial.comparing(arrays)
            if out[0] == FINITE:  # infinities agree with anything
                self.state.end_trial(trial)
            else:
                trial.has_run = True
            return False, out
        if trial.won or trial.lost:
            self._run_guarded(self._drop_decided, trial)
        if trial.other is None:
            return False, self.run(arrays)
        if not trial.first:
            status, outputs, seconds = self.run.run_timed(arrays)
            if status != FINITE:  # if the loss is not finite, not all kernels have run
                trial.first = sum_by_kernel(self.run, seconds)
            return False, (status, outputs)
        status, outputs, seconds = trial.other.run_timed(arrays)
        if status != FINITE:
            self._run_guarded(self._pair, trial, sum_by_kernel(trial.other, seconds))
        trial.first = {}
        return False, (status, outputs)

    @property
    def is_done(self) -> bool:
        """True if exploring has ended, and all of its results are installed and recorded, and its warnings issued."""
        return (
            bool(self.state.over)
            and self.state.trial is None
            and self._ending.unrecorded.empty()
            and not self.state.failure
        )

    def _finish(self) -> None:
        """Install the configurations that won before exploring ended, and record the ones that are not yet recorded."""
        trial, self.state.trial = self.state.trial, None
        if trial is not None and trial.won:
            self._run_guarded(self._install, trial)
        if not self._ending.unrecorded.empty():
            self._ending.record()

    def _profile(self, arrays: Sequence[np.ndarray]) -> Step:
        """Run one training step and note the seconds of its kernels; the last profiled step starts the exploring
        thread."""
        status, outputs, seconds = self.run.run_timed(arrays)
        if status != FINITE:
            self.state.profiled.append(sum_by_kernel(self.run, seconds))
        if len(self.state.profiled) == PROFILED_STEPS:
            start(self._ending.threads[0])
        return status, outputs

    def _run_guarded(self, work: Callable[..., None], *arguments: object) -> None:
        """Do work that is no part of the training step: an error in it ends exploring and leaves the step valid."""
        try:
            work(*arguments)
        except Exception as e:
            self.state.fail(e)

    def _pair(self, trial: Trial, seconds: Seconds) -> None:
        """Record the time ratios of a pair of steps, and decide the configurations whose difference is significant.

        seconds: seconds of each kernel in the second step of the pair, which the candidate program ran.
        """
        for k in trial.texts:
            trial.ratios.setdefault(k, []).append(seconds[k] / trial.first[k] if trial.first[k] > 0 else inf)
        verdicts = {k: judge(r) for k, r in trial.ratios.items() if k in trial.texts}
        lost = [k for k, faster in verdicts.items() if faster is False]
        for k in lost:
            self.state.report(k, trial.texts[k], self.state.kernels[k].seconds * median(trial.ratios[k]))
            self.state.kernels[k].failures += 1
        for k in [k for k, faster in verdicts.items() if faster]:
            trial.won[k] = trial.texts.pop(k)
            self.state.say(f"{name_of(k)[:8]}: {median(trial.ratios[k]):.3f} of the time with {trial.won[k]}")
            self._queue_record(trial, k, confirmed=False)
        for k in lost:
            del trial.texts[k]
        trial.lost += lost

    def _queue_record(self, trial: Trial, kernel: Kernel, confirmed: bool) -> None:
        """Queue a configuration that won for recording. confirmed: whether the configuration is installed."""
        measured, ratios = self.state.kernels[kernel], trial.ratios[kernel]
        seconds, prior = measured.seconds * median(ratios), measured.seconds / measured.part
        self._ending.unrecorded.put((kernel, trial.won[kernel], seconds, median_deviation(ratios), prior, confirmed))

    def _install(self, trial: Trial) -> None:
        """Replace the program from the next step on (hot swap) by one with the configurations that won; in several
        rounds if they do not fit in memory at once."""
        while trial.won:
            texts, program = self.state.compile_fitting(trial.won)
            if program is not None:
                self.run.swap(program)
            for k, text in texts.items():
                if program is not None:
                    self._queue_record(trial, k, confirmed=True)
                    self.state.kernels[k].becomes(median(trial.ratios[k]))
                    self.state.kept[k] = text
                    self.state.report(k, text, self.state.kernels[k].seconds)
                    self.state.say(f"{name_of(k)[:8]}: the program has {text}")
                del trial.won[k]

    def _drop_decided(self, trial: Trial) -> None:
        """Install the winners and continue the trial with the undecided kernels alone."""
        decided = [*trial.won, *trial.lost]
        self._install(trial)
        self.state.under_test.difference_update(decided)
        trial.lost = []
        self.state.continue_trial(trial)

    def _warn(self) -> None:
        """Warn once of the error that ended exploring. A filter may make an exception of it: no step is interrupted."""
        failure, self.state.failure = self.state.failure, ""
        if failure:
            warnings.warn(
                f"tuning during training has ended with an error: {failure}. Training continues with the "
                "configurations found so far; EINSMITH_DEBUG=1 shows what was tried",
                EinsmithWarning,
                stacklevel=2,
            )
