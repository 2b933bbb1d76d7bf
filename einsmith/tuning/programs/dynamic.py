"""Dynamic mode: tune a program's kernels while the program trains.

A low-priority process (`tuning.kernels.workshop`) proposes configurations, compiles and vets them. The training thread
asks it for the kernel that is expected to save most, and takes its answers between two steps; no other thread is
needed. Vetted configurations are tried in steps: in one step they run in addition to the program's own kernels, into
separate memory, and one whose result differs is dropped. Then steps alternate between the program and the one with the
candidates, and each kernel is timed. A candidate that is significantly faster is installed and recorded. Every step
trains on the user's data, whichever program runs it.

A budget (`tuning.programs.budget`) limits the time that all of this takes. A configuration is tried if it is expected
to pay: to save more than a try has cost on average, in as much time again as the program has taken so far, its
compilation included. Exploring ends when all that is left to gain is less than what it costs to wait for that.
"""

from __future__ import annotations

import os
import time
import warnings
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, log

import numpy as np

from einsmith.base import environment, messages
from einsmith.base.errors import ArgumentError, EinsmithError, EinsmithWarning
from einsmith.runtime.steps import FINITE
from einsmith.schedule.kernel import Kernel
from einsmith.tuning.kernels.decisions import name_of
from einsmith.tuning.kernels.model_error import ModelError, expect_saving
from einsmith.tuning.kernels.tuner import Answer, Workshop
from einsmith.tuning.kernels.verdict import judge
from einsmith.tuning.programs.budget import Budget
from einsmith.tuning.programs.trial import Seconds, Trial, sum_by_kernel
from einsmith.tuning.programs.tunable_program import TunableProgram

MAX_COST_SHARE = 0.02
"""Largest fraction of the time of all steps that exploring may cost."""
FIRST_TRY_SECONDS = 8e-3
"""Seconds that a try is expected to cost before the first one is measured: those on a small program."""
PROFILED_STEPS = 3
"""Steps that are timed, kernel by kernel, before the first search."""
MIN_KERNEL_SHARE = 0.004
"""Least fraction of the time of all kernels in a step that a kernel takes to be worth tuning."""
MIN_PAIRS, MAX_PAIRS = 8, 14
"""Pairs of steps after which a configuration can win, and after which one that has not won is dropped."""
MAX_TRIAL_KERNELS = 6
"""Most kernels in one trial."""
FULL_TRIAL_BYTES = 256 << 20
"""Bytes of the buffers of a trial's kernels, each counted twice for the candidate's copy, from which on no further
kernel joins the trial."""
SAMPLE_SECONDS = 0.01
"""Seconds between two steps that are accounted while nothing is tried. Accounting takes some microseconds: for every
step, that was more than half of MAX_COST_SHARE on short ones."""

Step = tuple[int, list[np.ndarray]]
"""Result of a program's run: its status (0, or FINITE where the loss is not finite and nothing is updated), outputs."""


@dataclass
class KernelRecord:
    """Measurements of one kernel during exploring.

    text: present configuration; seconds: of one run with it; runs: runs in a step; saving: fraction of its time that
    the most promising configuration is expected to save"""

    text: str
    seconds: float
    runs: int
    saving: float

    @property
    def gain(self) -> float:
        """Seconds per step that the most promising configuration is expected to save."""
        return self.seconds * self.runs * self.saving


class Exploration:
    """The search for faster kernels of one program while it trains: what runs the program's steps (`tuner`).

    Attributes:
        over: the reason why exploring ended; "" before
        log: findings, a line each, with the faults of rejected configurations
        budget: account of the time that exploring costs
        kernels: measurements of each kernel that may be tuned; empty before the profiled steps have run
        error: how far the cost model's predictions are from the measured times
        tried: number of configurations vetted
        kept: configuration of each kernel that is faster with it, installed in the program
        vetted: configurations without a fault that wait for a trial
        trial: the current trial
    """

    def __init__(self, run: TunableProgram, workshop: Workshop, seconds: float = inf):
        self.run, self.workshop = run, workshop
        self.over = self._failure = ""
        self.log: list[str] = []
        self.budget = Budget(MAX_COST_SHARE)
        self.kernels: dict[Kernel, KernelRecord] = {}
        self.error = ModelError()
        self.tried = 0
        self.kept: dict[Kernel, str] = {}
        self.vetted: dict[Kernel, Answer] = {}
        self.trial: Trial | None = None
        self._profiled: list[Seconds] = []
        self._searched: Kernel | None = None
        """Kernel of which the workshop searches configurations."""
        self._search_began = self._rest_until = 0.0
        """Time of the steps (`budget.total`) at which the search began, and until which the workshop rests."""
        self._skipped = self._left_to_skip = 0
        """Steps that the next accounted one stands for, beside itself; those of them that are to come."""
        self._end_time, self._pid = time.monotonic() + seconds, os.getpid()
        weakref.finalize(self, workshop.close)

    # -- steps

    def step(self, arrays: Sequence[np.ndarray]) -> Step:
        """Run one training step with the present or a candidate program. Return and raise what the program does."""
        if self._left_to_skip:
            self._left_to_skip -= 1
            return self.run.run_locked(arrays, is_tuned=False)
        if self.over or os.getpid() != self._pid:
            self._leave()
            return self.run.run_locked(arrays, is_tuned=False)
        entered, worked = time.perf_counter(), time.thread_time()
        workshop = self.workshop.seconds if self.workshop.is_working else None
        program, is_timed, follow = self._choose_program()
        is_trial = is_timed or program is not self.run
        begin, worked = time.perf_counter(), time.thread_time() - worked
        status, outputs, *seconds = (
            program.run_timed(arrays) if is_timed else program.run_locked(arrays, is_tuned=False)
        )
        end, resumed = time.perf_counter(), time.thread_time()
        try:  # errors of exploring are none of the step
            if status != FINITE:  # if the loss is not finite, not all kernels have run
                follow(sum_by_kernel(program, seconds[0]) if is_timed else {})
            self._advance()
        except Exception as e:
            self._failure = f"{type(e).__name__}: {e}"
            self.end(self._failure)
        outside = begin - entered + time.perf_counter() - end
        worked += time.thread_time() - resumed
        self.budget.step(end - begin, is_trial, workshop, outside, worked, 1 + self._skipped)
        usual = self.budget.usual
        self._skipped = self._left_to_skip = int(SAMPLE_SECONDS / usual) if usual and not self._is_trying() else 0
        return status, outputs

    def _choose_program(self) -> tuple[TunableProgram, bool, Callable[[Seconds], None]]:
        """Return the program of the next step, whether its kernels are timed, and what follows with their seconds."""
        trial = self.trial
        if not self.kernels and self.budget.usual and self.budget.can_spend(FIRST_TRY_SECONDS):
            return self.run, True, self._profile
        if trial is None or not self._is_trying():
            return self.run, False, lambda _: None
        if trial.comparing is not None:
            return trial.comparing, False, lambda _: self._compare(trial)
        if not trial.first:
            return self.run, True, lambda seconds: setattr(trial, "first", seconds)
        assert trial.other is not None
        return trial.other, True, lambda seconds: self._pair(trial, seconds)

    def _is_trying(self) -> bool:
        """Return whether the next step is part of a trial; a trial continues while the budget lasts."""
        return self.trial is not None and (bool(self.trial.first) or self.budget.can_spend())

    def _advance(self) -> None:
        """Take the workshop's answer, begin a trial, and search on, as far as the budget allows."""
        if time.monotonic() > self._end_time:
            return self.end("the time limit is reached")
        answer = self.workshop.poll_answer()
        if answer is not None:
            self._take(answer)
        if self.trial is None and self.vetted and self.budget.can_spend(self.try_seconds):
            trial, self.vetted = Trial(self.vetted), {}
            self.trial = trial
            trial.comparing = self._compile(trial, compare=True)
        if self.kernels and self._searched is None:
            self._search()
        self.workshop.pause(self.budget.is_spent)

    # -- searching

    def _profile(self, seconds: Seconds) -> None:
        """Note the seconds of a step's kernels. After the last profiled step, begin the records of the kernels that are
        worth tuning, and compare their times with the cost model's predictions."""
        self._profiled.append(seconds)
        if len(self._profiled) < PROFILED_STEPS:
            return
        run, least = self.run, {k: min(x[k] for x in self._profiled) for k in seconds}
        runs: dict[Kernel, int] = {}
        for call, turns in zip(run.calls, run.turns, strict=True):
            runs[call.kernel] = runs.get(call.kernel, 0) + turns
        compiled = {c.kernel: x for c, x in zip(run.calls, run.kernels, strict=True)}
        worth = [k for k in compiled if least[k] >= MIN_KERNEL_SHARE * sum(least.values())]
        for k in worth:
            self.error.add_kernel(compiled[k].pattern, least[k] / runs[k], compiled[k].seconds)
        for k in worth:
            x = compiled[k]
            if x.decision and not x.tuned:  # it is set by hand
                continue
            record = self.kernels[k] = KernelRecord(x.decision, least[k] / runs[k], runs[k], 0.0)
            self.workshop.tell(k, x.decision, record.seconds)
            record.saving = self._expect_saving(k, x.pattern, record.seconds, x.seconds)
        if not self.kernels:
            self.end("no kernel can be tuned")

    def _expect_saving(self, kernel: Kernel, pattern: str, seconds: float, predicted: float) -> float:
        """Return the fraction of its time that a kernel is expected to save, as known before configurations are priced.

        The present configuration's excess over its prediction, corrected by the bias of its pattern, is expected to
        halve (in the logarithm) with another configuration (`genetic.Correction`). A faster configuration of a similar
        kernel, if one is recorded, corrects this.
        """
        excess = log(seconds / predicted) - self.error.bias(pattern) if seconds > 0 and predicted > 0 else 0.0
        expected = seconds * np.exp(-excess / 2)
        win = self.workshop.find_win(kernel, self.run.target)
        if win is not None:
            expected = win.correct(expected, seconds)
        return expect_saving(expected / seconds, self.error.deviation(pattern)) if seconds > 0 else 0.0

    @property
    def try_seconds(self) -> float:
        """Seconds that a try has cost on average."""
        return self.budget.lost_seconds / self.tried if self.tried else FIRST_TRY_SECONDS

    def _search(self) -> None:
        """Have the workshop search the kernel that is expected to save most, if that pays. End exploring where all that
        is left to gain is less than the part of the time that exploring takes while it waits."""
        if self.budget.total < self._rest_until or not self.budget.can_spend(self.try_seconds):
            return
        busy = {*self.vetted, *(self.trial.undecided if self.trial is not None else ())}
        gains = {k: record.gain for k, record in self.kernels.items() if k not in busy}
        ranked = sorted(gains, key=gains.__getitem__, reverse=True)
        steps = (self.run.compile_seconds + self.budget.total) / self.budget.usual
        worth = self.try_seconds / steps
        gain = sum(gains.values()) / self.budget.usual
        if gain <= self.budget.waiting_share:
            return None if busy else self.end(f"what is left to gain does not pay: {gain:.2%} of a step")
        size = 2 * sum(b.nbytes for k in self.vetted for b in k.buffers)
        is_full = len(self.vetted) >= MAX_TRIAL_KERNELS or size >= FULL_TRIAL_BYTES
        if is_full or not ranked or gains[ranked[0]] <= worth:
            return
        kernel = self._searched = ranked[0]
        self._search_began, record = self.budget.total, self.kernels[kernel]
        worth = max(worth, *(gains[k] for k in ranked[1:2])) / (record.seconds * record.runs)
        worth = min(worth, record.saving)  # of two equal gains, one may be rounded to less
        self.workshop.search(kernel, record.text, self.run.target, self.run.threads, self.error, worth)

    def _take(self, answer: Answer) -> None:
        """Take the workshop's answer. It rests for as long as it has worked: quiet steps show what it costs."""
        self._searched = None
        self._rest_until = 2 * self.budget.total - self._search_began
        self.kernels[answer.kernel].saving = answer.saving
        if answer.text is not None:
            self.tried += 1
            if answer.fault:
                self._reject(answer, answer.fault)
            else:
                self.vetted[answer.kernel] = answer
        elif answer.fault:
            self.say(f"{name_of(answer.kernel)[:8]}: {answer.fault}")

    # -- trials

    def _compile(self, trial: Trial, compare: bool = False) -> TunableProgram | None:
        """Compile the program with as many of a trial's configurations as fit in memory; the others wait for another
        trial. Where none is left, end the trial and return None.

        compare: leave the program's own kernels in place and run the configurations in addition to them
        """
        while trial.undecided:
            try:
                return self.run.with_decisions({k: a.text or "" for k, a in trial.undecided.items()}, compare)
            except EinsmithError as e:
                half = len(trial.undecided) // 2 if isinstance(e, ArgumentError) else 0  # of a memory limit
                for kernel in [*trial.undecided][half:]:
                    answer = trial.undecided.pop(kernel)
                    if half:
                        self.vetted[kernel] = answer
                    else:
                        self._reject(answer, str(e))
        self.trial = None
        return None

    def _compare(self, trial: Trial) -> None:
        """Compare the candidates' results with those of the program's kernels, and drop candidates that differ."""
        assert trial.comparing is not None
        for kernel, results in trial.comparing.comparisons.items():
            if fault := results.difference():
                self._reject(trial.undecided.pop(kernel), f"in a step, {fault}")
        trial.comparing = None
        trial.other = self._compile(trial)

    def _pair(self, trial: Trial, seconds: Seconds) -> None:
        """Add a pair of steps, and decide the configurations whose difference is significant.

        seconds: those of the kernels in the second step, which the candidate program ran
        """
        trial.times.add({k: trial.first[k] for k in trial.undecided}, seconds)
        trial.first = {}
        decided = False
        for kernel, answer in [*trial.undecided.items()]:
            ratios = trial.times.ratios(kernel)
            verdict = judge(ratios, MIN_PAIRS)
            if verdict is None and len(ratios) < MAX_PAIRS:
                continue
            del trial.undecided[kernel]
            decided, text = True, answer.text or ""
            measured = self.kernels[kernel].seconds * trial.times.ratio(kernel)
            self.error.add_try(text.partition(" ")[0], measured, answer.predicted)
            self.workshop.tell(kernel, text, measured)
            if verdict:
                self._install(answer, trial.times.ratio(kernel), trial.times.deviation(kernel))
        if decided:
            trial.other = self._compile(trial)

    def _install(self, answer: Answer, ratio: float, deviation: float) -> None:
        """Replace the program, from the next step on (hot swap), by one with a configuration that won; record it."""
        kernel, text, record = answer.kernel, answer.text or "", self.kernels[answer.kernel]
        try:
            self.run.swap(self.run.with_decisions({kernel: text}))
        except EinsmithError as e:  # more memory than it may hold
            return self._reject(answer, str(e))
        record.text, record.seconds = text, record.seconds * ratio
        self.kept[kernel] = text
        self.workshop.keep(kernel, self.run.target, text, record.seconds, deviation, ratio)
        self.say(f"{name_of(kernel)[:8]}: the program has {text}, {ratio:.3f} of the time")

    def _reject(self, answer: Answer, fault: str) -> None:
        """Exclude a faulty configuration from the search, and log its fault."""
        self.workshop.tell(answer.kernel, answer.text or "", inf)
        self.say(f"{name_of(answer.kernel)[:8]}: rejected: {answer.text}: {fault}")

    # -- the end

    @property
    def summary(self) -> str:
        """A summary of the configurations tried, and of what trying them cost, as text."""
        cost = self.budget.lost_seconds / self.budget.total if self.budget.total else 0.0
        kept = f"{self.tried} configurations tried, {len(self.kept)} kernels are faster"
        return f"{kept}; it has cost {cost:.1%} of the time"

    @property
    def status(self) -> str:
        """Description of the progress of exploring and what it waits for; "" once it is over."""
        if self.over:
            return ""
        gain = max((record.gain for record in self.kernels.values()), default=0.0)
        more = f", and another is expected to save {gain / self.budget.usual:.2%} of a step" if gain else ""
        if not self.kernels:
            more = "; it begins once a few steps are timed"
        elif self.budget.is_spent:
            more += f"; it waits, as it may cost {self.budget.share:.0%}"
        return f"exploration goes on: {self.summary}{more}"

    def say(self, line: str) -> None:
        """Append a line to the log, and print it where EINSMITH_DEBUG is at least 1."""
        self.log.append(line)
        if environment.debug() >= 1:
            messages.say(f"einsmith: {line}")

    def end(self, why: str) -> None:
        """End exploring. The program keeps what won so far."""
        if not self.over:
            self.over, self.trial, self._left_to_skip = why, None, 0
            self.say(f"exploration ends: {why}; {self.summary}")
            self.workshop.close()
        if not self._failure:
            self.run.tuner = None

    def _leave(self) -> None:
        """Leave the steps to the program. Warn of an error that ended exploring, before a step begins: a filter may
        make an exception of the warning."""
        self.run.tuner = None
        if self._failure:
            warnings.warn(
                f"tuning during training has ended with an error: {self._failure}. Training continues with the "
                "configurations found so far; EINSMITH_DEBUG=1 shows what was tried",
                EinsmithWarning,
                stacklevel=2,
            )
