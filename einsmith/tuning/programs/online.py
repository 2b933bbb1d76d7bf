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
import queue
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from math import inf
from statistics import median
from typing import Any, TypeVar

import numpy as np

from einsmith.base import environment, locks, messages
from einsmith.base.errors import ArgumentError, EinsmithError, EinsmithWarning
from einsmith.base.threads import start
from einsmith.driver.backend import Workshop
from einsmith.driver.executable import FINITE, Executable
from einsmith.schedule.kernel import Kernel
from einsmith.tuning.kernels.decisions import name_of
from einsmith.tuning.programs.budget import Budget
from einsmith.tuning.programs.exploring import POLL_SECONDS, Flag, RecordArguments, close, loop, record
from einsmith.tuning.programs.trial import (
    KernelRecord,
    Seconds,
    Trial,
    judge,
    median_deviation,
    sum_by_kernel,
)

MAX_COST_SHARE = 0.02
"""Largest fraction of the time of all steps that exploring may cost."""
FULL_GAIN_SHARE = 0.05
"""Fraction of a step that other configurations are expected to save, from which on exploring may cost MAX_COST_SHARE;
below it, exploring may cost less, in proportion."""
FIRST_UNIT_SECONDS = 8e-3
"""Seconds that a unit of work is expected to take before the first unit of its kind is measured; the time of a unit on
a small program."""
PROFILED_STEPS = 3
"""Steps that are timed, kernel by kernel, before the first trial."""
MAX_TRIAL_KERNELS = 6
"""Most kernels in one trial, and most configurations in the queue between the two threads."""
MIN_KERNEL_SHARE = 0.004
"""Least fraction of the time of all kernels in a step that a kernel takes to be worth tuning."""
MAX_BOUND_SHARE = 0.95
"""Largest ratio of a kernel's roofline bound to its time (both in seconds) at which the kernel is worth tuning; beyond
it, the kernel is already close to the bound."""
MIN_GAIN_SHARE = 0.01
"""Least fraction of a step's usual time that all kernels together are expected to save; exploring ends when the
expected gain is smaller."""
MAX_FAILURES = 12
"""Consecutive configurations of a kernel without a gain after which the kernel is not tuned any more."""
WORKSHOP_DUTY = 0.5
"""Largest fraction of the time in which the workshop process works; steps that run while it rests show what it
costs."""
FULL_TRIAL_BYTES = 256 << 20
"""Bytes of the buffers of a trial's kernels, each counted twice for the candidate's copy, from which on no further
kernel joins the trial."""
MAX_UNTRACKED_STEPS = 16
"""Most consecutive steps run without bookkeeping while exploring waits for time in its budget; there are fewer if they
would take longer than POLL_SECONDS. Bookkeeping for every step took more than half of MAX_COST_SHARE on short steps."""
MIN_PAUSE_SECONDS = 1.0
"""Shortest pause of the workshop process (seconds)."""
MIN_PAUSE_STEPS = 4
"""Shortest pause of the workshop process, in steps of usual length; the longer one of the two limits holds. A pause is
renewed after 1/MIN_PAUSE_STEPS of it, which is at least one usual step."""

T = TypeVar("T")
Step = tuple[int, list[np.ndarray]]
"""Result of a program's run: its status (0, or FINITE where the loss is not finite and nothing is updated), outputs."""


class Exploration:
    """The search for faster kernels of one program while it trains.

    The training thread calls `step` in place of the program. A configuration that wins is part of the program from the
    next step on.

    Attributes:
        run: the program
        log: findings, a line each, with the faults of rejected configurations
        over: the reason why exploring ended; "" while it goes on
        budget: account of the time that exploring costs
        kernels: measurements of each kernel; empty before the profiled steps have run
        tried: number of configurations vetted
        kept: configuration of each kernel that is faster with it, installed in the program
    """

    def __init__(self, run: Executable, workshop: Workshop, seconds: float = inf):
        self.run, self._workshop = run, workshop
        self.log: list[str] = []
        self.over = ""
        self._failure = ""
        """Error that ended exploring and that the training thread has not yet warned of."""
        self.budget = Budget(MAX_COST_SHARE)
        self.kernels: dict[Kernel, KernelRecord] = {}
        self.tried = 0
        self.kept: dict[Kernel, str] = {}
        self._end = time.monotonic() + seconds
        """Clock time (`monotonic`) at which the time limit is reached."""
        self._profiled_steps: list[Seconds] = []
        """Seconds of the kernels in each step that was profiled."""
        self._unbounded: dict[Kernel, str] = {}
        """Kernels whose roofline bound is not yet known, with the configuration that the program has."""
        self._renew_pause_at = 0.0
        """Clock time (`perf_counter`) after which the workshop's pause is renewed; 0 while the workshop works."""
        self._untracked_steps = 0
        """Number of coming steps to run without bookkeeping."""
        self._bookkeeping_seconds = 0.0
        """Seconds that the last call of `step` took in addition to the program's run."""
        self._units_begun = 0
        """Number of units of work that the two threads have begun in this process."""
        self._units_under_way: set[str] = set()
        """Kinds (function names) of the units of work in this process that are not finished."""
        self._unit_seconds: dict[str, float] = {}
        """Processor seconds of the last unit of each kind of work."""
        self._trial: Trial | None = None
        self._unrecorded: queue.SimpleQueue[RecordArguments] = queue.SimpleQueue()
        """Configurations that won and are not yet written to the store."""
        self._under_test: set[Kernel] = set()
        """Kernels with a configuration between its proposal and the end of its trial."""
        self._queue: queue.Queue[tuple[Kernel, str]] = queue.Queue(maxsize=MAX_TRIAL_KERNELS)
        """Proposed configurations, from the exploring thread to the code-generating one."""
        self._chosen: Kernel | None = None
        """Kernel of the next proposal; it stays here while the budget has no time for proposing."""
        self._awaited_count = 0
        """Number of configurations under test beside which no kernel could be chosen; the next choice waits until one
        of them is decided. 0 after a choice."""
        self._proposed: tuple[Kernel, str] | None = None
        """Configuration that waits for room in the queue."""
        self._being_vetted: tuple[Kernel, str] | None = None
        """Configuration taken from the queue; it stays here while the budget has no time for vetting it."""
        self._vetted: dict[Kernel, str] = {}
        """Configurations without a fault that wait for a trial."""
        self._recording = locks.Reentrant("recording choices")
        self._stop = Flag()
        self._pid = os.getpid()
        self._threads = [
            threading.Thread(target=loop, args=(weakref.ref(self), name), name=f"einsmith{name}", daemon=True)
            for name in ("_propose", "_generate")
        ]
        start(self._threads[1])
        weakref.finalize(self, close, self._pid, self._stop, workshop, self._threads, self._unrecorded, self._recording)

    # -- the training thread

    def step(self, arrays: Sequence[np.ndarray]) -> Step:
        """Run one training step with the current or a candidate program. Return and raise what the program does."""
        if self.over or os.getpid() != self._pid:
            if os.getpid() == self._pid:
                self._finish()
                self._warn()
            return self.run(arrays)
        if self._untracked_steps:
            self._untracked_steps -= 1
            self.budget.total += self.budget.usual
            return self.run(arrays)
        entered = time.perf_counter()
        workshop, units_begun = self._workshop, self._units_begun
        threads_work = bool(self._units_under_way)
        quiet, start_count = not workshop.busy, workshop.start_count
        start = time.perf_counter()
        plain, out = self._step(arrays)
        end = time.perf_counter()
        threads_work = threads_work or self._units_begun != units_begun
        quiet = plain and quiet and not threads_work and workshop.start_count == start_count
        self.budget.step(end - start, quiet, threads_work, self._bookkeeping_seconds, not plain)
        if self.budget.stopped or self._renew_pause_at:
            self._pause(end)
            if quiet and self.budget.stopped:
                self._untracked_steps = min(MAX_UNTRACKED_STEPS, int(POLL_SECONDS / self.budget.usual))
        if end > self._end:
            self.end("the time limit is reached")
        self._bookkeeping_seconds = start - entered + time.perf_counter() - end
        return out

    def _pause(self, now: float) -> None:
        """Pause the workshop process while the budget is exceeded; renew the pause before it ends."""
        if not self.budget.stopped:
            self._workshop.pause(0.0)
            self._renew_pause_at = 0.0
        elif now > self._renew_pause_at:
            seconds = max(MIN_PAUSE_SECONDS, MIN_PAUSE_STEPS * self.budget.usual)
            self._workshop.pause(seconds)
            self._renew_pause_at = now + seconds / MIN_PAUSE_STEPS

    def _step(self, arrays: Sequence[np.ndarray]) -> tuple[bool, Step]:
        """Run one training step as the trial demands: with the current program, timed or not, or with a candidate's.

        Return (whether the current program ran untimed, the program's result).
        """
        trial, budget = self._trial, self.budget
        if len(self._profiled_steps) < PROFILED_STEPS:
            return (False, self._profile(arrays)) if budget.can_spend(FIRST_UNIT_SECONDS) else (True, self.run(arrays))
        if trial is None or trial.has_run:
            return True, self.run(arrays)
        if not (trial.first or budget.can_spend(self._expect("_compile") if trial.won or trial.lost else 0.0)):
            return True, self.run(arrays)
        if trial.comparing is not None:
            out = trial.comparing(arrays)
            if out[0] == FINITE:  # infinities agree with anything
                self._end_trial(trial)
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
        """Whether exploring has ended, and nothing of it is left to install, to record or to warn of."""
        return bool(self.over) and self._trial is None and self._unrecorded.empty() and not self._failure

    def _finish(self) -> None:
        """Install the configurations that won before exploring ended, and record the ones that are not yet recorded."""
        trial, self._trial = self._trial, None
        if trial is not None and trial.won:
            self._run_guarded(self._install, trial)
        if not self._unrecorded.empty():
            self._record()

    def _profile(self, arrays: Sequence[np.ndarray]) -> Step:
        """Run one training step and note the seconds of its kernels; the last profiled step starts the exploring
        thread."""
        status, outputs, seconds = self.run.run_timed(arrays)
        if status != FINITE:
            self._profiled_steps.append(sum_by_kernel(self.run, seconds))
        if len(self._profiled_steps) == PROFILED_STEPS:
            start(self._threads[0])
        return status, outputs

    def _run_guarded(self, work: Callable[..., None], *arguments: object) -> None:
        """Do work that is no part of the training step: an error in it ends exploring and leaves the step valid."""
        try:
            work(*arguments)
        except Exception as e:
            self.fail(e)

    def _pair(self, trial: Trial, seconds: Seconds) -> None:
        """Record the time ratios of a pair of steps, and decide the configurations whose difference is significant.

        seconds: seconds of each kernel in the second step of the pair, which the candidate program ran.
        """
        for k in trial.texts:
            trial.ratios.setdefault(k, []).append(seconds[k] / trial.first[k] if trial.first[k] > 0 else inf)
        verdicts = {k: judge(r) for k, r in trial.ratios.items() if k in trial.texts}
        lost = [k for k, faster in verdicts.items() if faster is False]
        for k in lost:
            self._report(k, trial.texts[k], self.kernels[k].seconds * median(trial.ratios[k]))
            self.kernels[k].failures += 1
        for k in [k for k, faster in verdicts.items() if faster]:
            trial.won[k] = trial.texts.pop(k)
            self._say(f"{name_of(k)[:8]}: {median(trial.ratios[k]):.3f} of the time with {trial.won[k]}")
            self._queue_record(trial, k, confirmed=False)
        for k in lost:
            del trial.texts[k]
        trial.lost += lost

    def _queue_record(self, trial: Trial, kernel: Kernel, confirmed: bool) -> None:
        """Queue a configuration that won for recording. confirmed: whether the configuration is installed."""
        measured, ratios = self.kernels[kernel], trial.ratios[kernel]
        seconds, prior = measured.seconds * median(ratios), measured.seconds / measured.part
        self._unrecorded.put((kernel, trial.won[kernel], seconds, median_deviation(ratios), prior, confirmed))

    def _install(self, trial: Trial) -> None:
        """Replace the program from the next step on (hot swap) by one with the configurations that won; in several
        rounds if they do not fit in memory at once."""
        while trial.won:
            texts, program = self._compile_fitting(trial.won)
            if program is not None:
                self.run.swap(program)
            for k, text in texts.items():
                if program is not None:
                    self._queue_record(trial, k, confirmed=True)
                    self.kernels[k].becomes(median(trial.ratios[k]))
                    self.kept[k] = text
                    self._report(k, text, self.kernels[k].seconds)
                    self._say(f"{name_of(k)[:8]}: the program has {text}")
                del trial.won[k]

    def _drop_decided(self, trial: Trial) -> None:
        """Install the winners and continue the trial with the undecided kernels alone."""
        decided = [*trial.won, *trial.lost]
        self._install(trial)
        self._under_test.difference_update(decided)
        trial.lost = []
        self._continue(trial)

    def _continue(self, trial: Trial) -> None:
        """Continue a trial with as many undecided kernels as fit in memory; leave the others to another trial."""
        undecided, trial.other = trial.texts, None
        if undecided:
            trial.texts, trial.other = self._compile_fitting(undecided)
            self._vetted.update((k, text) for k, text in undecided.items() if k not in trial.texts)
        if trial.other is None:
            self._end_trial(trial)

    def _compile_fitting(
        self, texts: Mapping[Kernel, str], compare: bool = False
    ) -> tuple[dict[Kernel, str], Executable | None]:
        """Compile the program with as many of the given configurations as fit in memory at once.

        Args:
            texts: configuration of each kernel
            compare: leave the program's own kernels in place and run the configurations in addition to them
        Returns:
            The configurations that fit, and the program with them; the program is None if it cannot be compiled, and
            the configurations are then rejected.
        """
        texts = dict(texts)
        while True:
            try:
                return texts, self._compile(texts, compare)
            except EinsmithError as e:
                if len(texts) > 1 and isinstance(e, ArgumentError):  # the memory limit is exceeded
                    texts = dict([*texts.items()][: len(texts) // 2])
                    continue
                for k, text in texts.items():
                    self._reject(k, text, str(e))
                    self._under_test.discard(k)
                return texts, None

    def _compile(self, texts: Mapping[Kernel, str], compare: bool = False) -> Executable:
        """Compile the program with the given configurations, and note the time that this takes."""
        begun = time.thread_time()
        program = self.run.with_decisions(texts, compare)
        self._unit_seconds["_compile"] = time.thread_time() - begun
        return program

    def _end_trial(self, trial: Trial) -> None:
        """End the current trial; other configurations of its kernels may be proposed from now on."""
        self._under_test.difference_update((*trial.texts, *trial.won, *trial.lost))
        self._trial = None

    # -- the exploring and the code-generating thread: each function does one turn of its thread's loop and returns the
    # seconds to wait. Threads wait without a reference to the exploration, so that an unused program can be freed

    def _work(self, work: Callable[..., T], *arguments: Any) -> T | None:
        """Do a unit of work and return its result; return None without working if the budget has no time for it.

        work: a method of this class or of the workshop, which reports itself when its process works (`busy`,
            `start_count`).
        """
        if not self.budget.can_spend(self._expect(work.__name__)):
            return None
        begun, name = time.thread_time(), work.__name__
        if name.startswith("_"):  # a method of this class: work in this process
            self._units_under_way.add(name)
            self._units_begun += 1
        try:
            return work(*arguments)
        finally:
            self._unit_seconds[name] = seconds = time.thread_time() - begun
            self.budget.work(seconds)
            self._units_under_way.discard(name)

    def _expect(self, work: str) -> float:
        """Return the expected seconds of a unit of work: those of the last one of its kind, else FIRST_UNIT_SECONDS."""
        return self._unit_seconds.get(work, FIRST_UNIT_SECONDS)

    def _begin(self) -> None:
        """Create the records of all kernels from the profiled steps, and exclude kernels that are not worth tuning."""
        seconds = {k: min(step[k] for step in self._profiled_steps) for k in self._profiled_steps[0]}
        step_seconds = sum(seconds.values())
        runs: dict[Kernel, int] = {}
        for call, turns in zip(self.run.calls, self.run.turns, strict=True):
            runs[call.kernel] = runs.get(call.kernel, 0) + turns
        for call, compiled in zip(self.run.calls, self.run.kernels, strict=True):
            k = call.kernel
            measured = self.kernels[k] = KernelRecord(seconds[k] / runs[k], runs[k])
            if compiled.decision and not compiled.tuned:
                measured.over = "its configuration is set by hand"
            elif seconds[k] < MIN_KERNEL_SHARE * step_seconds:
                measured.over = "it takes a negligible part of the time"
            else:
                self._report(k, compiled.decision, measured.seconds)
                self._unbounded[k] = compiled.decision

    def _bound_kernel(self) -> bool:
        """Compute the roofline bound of one more kernel, and exclude the kernel if its time is close to the bound. Look
        up how its configuration, if it is a recorded one, compares to the model's choice, to which predictions refer.
        """
        kernel, text = self._unbounded.popitem()
        measured = self.kernels[kernel]
        measured.least = self._workshop.least(kernel)
        if text:
            measured.part = self._workshop.find_part(kernel, text)
        if measured.seconds * MAX_BOUND_SHARE < measured.least:
            measured.over = "it is close to its roofline bound"
        return True

    def _propose(self) -> float:
        """Make the records and bounds of the kernels at first, then have configurations proposed and put them into the
        queue. Return the seconds to wait until the next call."""
        if not self.kernels:
            self._begin()
        if self._unbounded:
            return POLL_SECONDS if self._work(self._bound_kernel) is None else 0.0
        if self._proposed is None:
            if self._chosen is None:
                self._try_choice()
            if (kernel := self._chosen) is None:
                return POLL_SECONDS
            answer = self._work(self._workshop.propose, kernel)
            if answer is None or self._stop.up:
                return POLL_SECONDS
            self._chosen = None
            if answer.predicted is not None:
                self.kernels[kernel].predicted = answer.predicted
            if answer.text is None:
                self.kernels[kernel].over = answer.fault or "nothing is left to try"
                return 0.0
            self._under_test.add(kernel)
            self._proposed = kernel, answer.text
            return self._compute_rest(answer.seconds)
        try:
            self._queue.put_nowait(self._proposed)
        except queue.Full:
            return POLL_SECONDS
        self._proposed = None
        return 0.0

    def _try_choice(self) -> None:
        """Choose the next kernel if the budget has time for it and a configuration was decided since none was left.
        End exploring if no kernel is left and no configuration is under test."""
        count = len(self._under_test)  # only this thread adds some
        if count and count == self._awaited_count:
            return
        is_chosen = self._work(self._choose_kernel)
        if is_chosen is not None:
            self._awaited_count = 0 if is_chosen else count
        if is_chosen is False and not count:
            gain = self._expected_gain
            more = f": other configurations are expected to save {gain:.1%} of a step" if gain else ""
            self.end(f"nothing is left to gain{more}")

    def _choose_kernel(self) -> bool:
        """Choose the kernel whose next configuration may gain most, among those with no configuration under test.

        Return False if there is none, or if all kernels together can gain less than MIN_GAIN_SHARE.
        """
        for measured in self.kernels.values():
            if measured.failures >= MAX_FAILURES:
                measured.over = measured.over or f"{MAX_FAILURES} configurations in a row gained nothing"
        gain = self._expected_gain
        if not gain or gain < MIN_GAIN_SHARE:
            return False
        self.budget.share = MAX_COST_SHARE * min(1.0, gain / FULL_GAIN_SHARE)
        free = {k: m.gain for k, m in self.kernels.items() if not m.over and k not in self._under_test}
        self._chosen = max(free, key=free.__getitem__) if free else None
        return bool(free)

    @property
    def status(self) -> str:
        """How far exploring is, in words, with what it has cost and what it waits for; "" once it is over."""
        if self.over:
            return ""
        budget, waiting = self.budget, ""
        if not self.kernels:
            waiting = "; it begins once a few steps are timed"
        elif self._workshop.busy:
            waiting = "; a configuration is being prepared on processor time that other programs leave"
        elif budget.stopped or not budget.can_spend(FIRST_UNIT_SECONDS):
            waiting = f"; it waits, as it may cost {budget.share:.1%}"
        known = all(m.over or m.predicted is not None for m in [*self.kernels.values()])
        verb = "are expected to save" if known else "may save at most"  # above the roofline bounds
        gain = f", others {verb} {self._expected_gain:.1%} of a step" if self.kernels else ""
        cost = budget.lost_seconds / budget.total if budget.total else 0.0
        return (
            f"exploration goes on: {self.tried} configurations tried, {len(self.kept)} kernels are faster{gain}; "
            f"it has cost {cost:.1%} of the time{waiting}"
        )

    @property
    def _expected_gain(self) -> float:
        """Fraction of a usual step that other configurations of all kernels together are expected to save."""
        seconds = sum(measured.gain for measured in [*self.kernels.values()] if not measured.over)  # threads add some
        return seconds / max(self.budget.usual, seconds) if seconds else 0.0

    def _generate(self) -> float:
        """Compare the results of a step in which candidates ran, or hand vetted configurations to the training thread,
        or have a configuration compiled and vetted. Return the seconds to wait until the next call."""
        if not self.kernels:  # no configuration is asked for before the profiled steps have run
            self._workshop.finish_start()
            return POLL_SECONDS
        trial = self._trial
        if trial is not None and trial.has_run:
            self._work(self._judge, trial)
            return POLL_SECONDS if trial.has_run else 0.0
        if trial is None and self._vetted and (self._is_full() or self._queue.empty()):
            self._work(self._hand_over)
            return POLL_SECONDS
        if self._is_full():
            return POLL_SECONDS
        try:
            self._being_vetted = self._being_vetted or self._queue.get_nowait()
        except queue.Empty:
            return POLL_SECONDS
        return self._vet(*self._being_vetted)

    def _is_full(self) -> bool:
        """Return whether the vetted configurations are as many, or have as large buffers, as one trial may have."""
        size = 2 * sum(b.nbytes for k in [*self._vetted] for b in k.buffers)
        return len(self._vetted) >= MAX_TRIAL_KERNELS or size >= FULL_TRIAL_BYTES

    def _vet(self, kernel: Kernel, text: str) -> float:
        """Have a configuration compiled and vetted. Return the seconds to wait until the thread's next turn."""
        answer = self._work(self._workshop.vet, kernel, text)
        if answer is None or self._stop.up:  # no time is left in the budget, or the process was ended
            return POLL_SECONDS
        self._being_vetted = None
        self.tried += 1
        if answer.fault:
            self._reject(kernel, text, answer.fault)
            self._under_test.discard(kernel)
        else:
            self._vetted[kernel] = text
        return self._compute_rest(answer.seconds)

    def _hand_over(self) -> None:
        """Begin a trial of the vetted configurations, or of as many of them as fit in memory."""
        texts, program = self._compile_fitting(self._vetted, compare=True)
        self._vetted = {k: text for k, text in self._vetted.items() if k not in texts}
        if program is not None and not self._stop.up:
            self._trial = Trial(texts, program)

    def _judge(self, trial: Trial) -> None:
        """Compare the candidates' results with those of the program's kernels, and drop candidates that differ."""
        assert trial.comparing is not None
        for kernel, results in trial.comparing.comparisons.items():
            if fault := results.difference():
                self._reject(kernel, trial.texts.pop(kernel), f"in a step, {fault}")
                self._under_test.discard(kernel)
        trial.comparing = None
        self._continue(trial)
        trial.has_run = False

    def _record(self) -> None:
        """Write queued configurations to the store, on a background thread so that training does not wait for it."""
        record(self._workshop, self._unrecorded, self._recording)

    def _compute_rest(self, seconds: float) -> float:
        """Return the seconds to wait so that `seconds` of work are WORKSHOP_DUTY of the time, up to the time limit."""
        return min(seconds * (1 / WORKSHOP_DUTY - 1), max(0.0, self._end - time.monotonic()))

    # -- all threads

    def _report(self, kernel: Kernel, text: str, seconds: float) -> None:
        """Report the seconds of a kernel's run with a configuration to the workshop's search."""
        self._workshop.tell(kernel, text, seconds)

    def _reject(self, kernel: Kernel, text: str, fault: str) -> None:
        """Exclude a faulty configuration from the workshop's search, and log its fault."""
        self._report(kernel, text, inf)
        self.kernels[kernel].failures += 1
        self._say(f"{name_of(kernel)[:8]}: rejected: {text}: {fault}")

    def _say(self, line: str) -> None:
        """Append a line to the log, and print it where EINSMITH_DEBUG is at least 1."""
        self.log.append(line)
        if environment.debug() >= 1:
            messages.say(f"einsmith: {line}")

    def fail(self, error: Exception) -> None:
        """End exploring because of an error; the next step warns of it."""
        if not self.over:
            self._failure = f"{type(error).__name__}: {error}"
            self.end(self._failure)

    def _warn(self) -> None:
        """Warn once of the error that ended exploring. A filter may make an exception of it: no step is interrupted."""
        failure, self._failure = self._failure, ""
        if failure:
            warnings.warn(
                f"tuning during training has ended with an error: {failure}. Training continues with the "
                "configurations found so far; EINSMITH_DEBUG=1 shows what was tried",
                EinsmithWarning,
                stacklevel=2,
            )

    def end(self, why: str) -> None:
        """Stop exploring. Configurations that won and are not yet installed are installed at the next step."""
        if not self.over:
            self.over, trial = why, self._trial
            won = [name_of(k)[:8] for k in [*trial.won]] if trial is not None else []
            more = f", and {', '.join(won)}, which are not confirmed" if won else ""
            summary = f"{self.tried} configurations tried, {len(self.kept)} kernels are faster{more}"
            self._say(f"exploration ends: {why}; {summary}")
        self.close()

    def close(self) -> None:
        """End the threads and the workshop process."""
        close(self._pid, self._stop, self._workshop, self._threads, self._unrecorded, self._recording)
