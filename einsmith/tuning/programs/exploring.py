"""Hold what the threads of an exploration share, and run its background threads."""

from __future__ import annotations

import os
import queue
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from math import inf
from typing import Any, TypeVar

from einsmith.base import environment, locks, messages
from einsmith.base.errors import ArgumentError, EinsmithError
from einsmith.driver.backend import Workshop
from einsmith.driver.bound_program import BoundProgram
from einsmith.schedule.kernel import Kernel
from einsmith.tuning.kernels.decisions import name_of
from einsmith.tuning.programs.budget import Budget
from einsmith.tuning.programs.trial import KernelRecord, Seconds, Trial

MAX_COST_SHARE = 0.02
"""Largest fraction of the time of all steps that exploring may cost."""
FIRST_UNIT_SECONDS = 8e-3
"""Seconds that a unit of work is expected to take before the first unit of its kind is measured; the time of a unit on
a small program."""
MAX_TRIAL_KERNELS = 6
"""Most kernels in one trial, and most configurations in the queue between the two threads."""
WORKSHOP_DUTY = 0.5
"""Largest fraction of the time in which the workshop process works; steps that run while it rests show what it
costs."""
POLL_SECONDS = 0.1
"""Seconds between two polls of a waiting thread."""
JOIN_SECONDS = 0.2
"""Seconds that a closing program waits for its threads."""

T = TypeVar("T")
Texts = dict[Kernel, str]
"""Configuration of each kernel."""
RecordArguments = tuple[Kernel, str, float, float, float, bool]
"""Arguments of `Workshop.keep` for a configuration that won."""


class Ending:
    """What ends an exploration, without a reference to its program, so that an unused program can be freed.

    up: whether the threads stop; they poll it: waiting for it needs no lock, which a fork could leave held; threads:
    the background threads; pid: the process; a forked child has neither the threads nor the workshop; unrecorded:
    configurations that won and are not yet written to the store."""

    def __init__(self, workshop: Workshop):
        self.up, self.threads = False, list[threading.Thread]()
        self.pid, self._workshop = os.getpid(), workshop
        self._recording = locks.Reentrant("recording choices")
        self.unrecorded: queue.SimpleQueue[RecordArguments] = queue.SimpleQueue()

    def record(self) -> None:
        """Write queued configurations to the workshop's store, in their order."""
        with self._recording:
            while not self.unrecorded.empty():
                self._workshop.keep(*self.unrecorded.get())

    def close(self) -> None:
        """Stop the threads, close the workshop and record the unrecorded configurations; in a forked child, do
        nothing."""
        if os.getpid() != self.pid:
            return
        self.up = True
        self._workshop.close()
        for thread in self.threads:
            if thread.is_alive() and thread is not threading.current_thread():
                thread.join(JOIN_SECONDS)
        self.record()


class ExplorationState:
    """State that the training thread and the background threads of an exploration share.

    Attributes:
        run: the program
        workshop: proposes configurations, compiles and vets them
        log: findings, a line each, with the faults of rejected configurations
        over: the reason why exploring ended; "" before
        failure: error that ended exploring and that the training thread has not yet warned of
        budget: account of the time that exploring costs
        kernels: measurements of each kernel; empty before the profiled steps have run
        profiled: seconds of the kernels in each step that was profiled
        tried: number of configurations vetted
        kept: configuration of each kernel that is faster with it, installed in the program
        end_time: clock time (`monotonic`) at which the time limit is reached
        trial: the current trial
        under_test: kernels with a configuration between its proposal and the end of its trial
        proposals: proposed configurations, from the exploring thread to the code-generating one
        vetted: configurations without a fault that wait for a trial
        units_begun: number of units of work that the background threads have begun in this process
        units_under_way: kinds (function names) of the units of work in this process that are not finished
        ending: what stops the threads
    """

    def __init__(self, run: BoundProgram, workshop: Workshop, seconds: float):
        self.run, self.workshop = run, workshop
        self.log: list[str] = []
        self.over = self.failure = ""
        self.budget = Budget(MAX_COST_SHARE)
        self.kernels: dict[Kernel, KernelRecord] = {}
        self.profiled: list[Seconds] = []
        self.tried = 0
        self.kept: Texts = {}
        self.end_time = time.monotonic() + seconds
        self.trial: Trial | None = None
        self.under_test: set[Kernel] = set()
        self.proposals: queue.Queue[tuple[Kernel, str]] = queue.Queue(maxsize=MAX_TRIAL_KERNELS)
        self.vetted: Texts = {}
        self.units_begun = 0
        self.units_under_way: set[str] = set()
        self._unit_seconds: dict[str, float] = {}
        """Processor seconds of the last unit of each kind of work."""
        self.ending = Ending(workshop)

    # -- work

    def work(self, work: Callable[..., T], *arguments: Any) -> T | None:
        """Do a unit of work and return its result; return None without working if the budget has no time for it.

        work: a method of a thread's turns, or of the workshop, which reports itself when its process works (`busy`,
            `start_count`).
        """
        if not self.budget.can_spend(self.expect(work.__name__)):
            return None
        begun, name = time.thread_time(), work.__name__
        if getattr(work, "__self__", None) is not self.workshop:  # work in this process
            self.units_under_way.add(name)
            self.units_begun += 1
        try:
            return work(*arguments)
        finally:
            self._unit_seconds[name] = seconds = time.thread_time() - begun
            self.budget.work(seconds)
            self.units_under_way.discard(name)

    def expect(self, work: str) -> float:
        """Return the expected seconds of a unit of work: those of the last one of its kind, else FIRST_UNIT_SECONDS."""
        return self._unit_seconds.get(work, FIRST_UNIT_SECONDS)

    def compute_rest(self, seconds: float) -> float:
        """Return the seconds to wait so that `seconds` of work are WORKSHOP_DUTY of the time, up to the time limit."""
        return min(seconds * (1 / WORKSHOP_DUTY - 1), max(0.0, self.end_time - time.monotonic()))

    # -- trials

    def compile_fitting(self, texts: Mapping[Kernel, str], compare: bool = False) -> tuple[Texts, BoundProgram | None]:
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
                    self.reject(k, text, str(e))
                    self.under_test.discard(k)
                return texts, None

    def _compile(self, texts: Mapping[Kernel, str], compare: bool = False) -> BoundProgram:
        """Compile the program with the given configurations, and note the time that this takes."""
        begun = time.thread_time()
        program = self.run.with_decisions(texts, compare)
        self._unit_seconds["_compile"] = time.thread_time() - begun
        return program

    def continue_trial(self, trial: Trial) -> None:
        """Continue a trial with as many undecided kernels as fit in memory; leave the others to another trial."""
        undecided, trial.other = trial.texts, None
        if undecided:
            trial.texts, trial.other = self.compile_fitting(undecided)
            self.vetted.update((k, text) for k, text in undecided.items() if k not in trial.texts)
        if trial.other is None:
            self.end_trial(trial)

    def end_trial(self, trial: Trial) -> None:
        """End the current trial; other configurations of its kernels may be proposed from now on."""
        self.under_test.difference_update((*trial.texts, *trial.won, *trial.lost))
        self.trial = None

    # -- findings

    @property
    def expected_gain(self) -> float:
        """Fraction of a usual step that other configurations of all kernels together are expected to save."""
        seconds = sum(measured.gain for measured in [*self.kernels.values()] if not measured.over)  # threads add some
        return seconds / max(self.budget.usual, seconds) if seconds else 0.0

    @property
    def status(self) -> str:
        """Description of the progress of exploring, its cost and the event that it waits for; "" once it is over."""
        if self.over:
            return ""
        budget, waiting = self.budget, ""
        if not self.kernels:
            waiting = "; it begins once a few steps are timed"
        elif self.workshop.busy:
            waiting = "; a configuration is being prepared on processor time that other programs leave"
        elif budget.stopped or not budget.can_spend(FIRST_UNIT_SECONDS):
            waiting = f"; it waits, as it may cost {budget.share:.1%}"
        known = all(m.over or m.predicted is not None for m in [*self.kernels.values()])
        verb = "are expected to save" if known else "may save at most"  # above the roofline bounds
        gain = f", others {verb} {self.expected_gain:.1%} of a step" if self.kernels else ""
        cost = budget.lost_seconds / budget.total if budget.total else 0.0
        return (
            f"exploration goes on: {self.tried} configurations tried, {len(self.kept)} kernels are faster{gain}; "
            f"it has cost {cost:.1%} of the time{waiting}"
        )

    def report(self, kernel: Kernel, text: str, seconds: float) -> None:
        """Report the seconds of a kernel's run with a configuration to the workshop's search."""
        self.workshop.tell(kernel, text, seconds)

    def reject(self, kernel: Kernel, text: str, fault: str) -> None:
        """Exclude a faulty configuration from the workshop's search, and log its fault."""
        self.report(kernel, text, inf)
        self.kernels[kernel].failures += 1
        self.say(f"{name_of(kernel)[:8]}: rejected: {text}: {fault}")

    def say(self, line: str) -> None:
        """Append a line to the log, and print it where EINSMITH_DEBUG is at least 1."""
        self.log.append(line)
        if environment.debug() >= 1:
            messages.say(f"einsmith: {line}")

    def fail(self, error: Exception) -> None:
        """End exploring because of an error; the next step warns of it."""
        if not self.over:
            self.failure = f"{type(error).__name__}: {error}"
            self.end(self.failure)

    def end(self, why: str) -> None:
        """Stop exploring. Configurations that won and are not yet installed are installed at the next step."""
        if not self.over:
            self.over, trial = why, self.trial
            won = [name_of(k)[:8] for k in [*trial.won]] if trial is not None else []
            more = f", and {', '.join(won)}, which are not confirmed" if won else ""
            summary = f"{self.tried} configurations tried, {len(self.kept)} kernels are faster{more}"
            self.say(f"exploration ends: {why}; {summary}")
        self.ending.close()


class Turns:
    """What a background thread of an exploration does, one turn after the other. Threads wait without a reference to
    the exploration."""

    def __init__(self, state: ExplorationState):
        self.state = state

    def turn(self) -> float:
        """Do one turn of the thread's loop; return the seconds to wait until the next one."""
        raise NotImplementedError


def loop(ref: weakref.ref[Turns], ending: Ending) -> None:
    """Do turns, and wait the seconds that each returns, until the exploration ends or is garbage-collected. Errors end
    the exploration, not the training."""
    while (turns := ref()) is not None and not ending.up:
        state, seconds = turns.state, 0.0
        try:
            ending.record()
            if time.monotonic() > state.end_time:
                state.end("the time limit is reached")
            else:
                seconds = turns.turn()
        except Exception as e:  # the training goes on
            if not ending.up:
                state.fail(e)
        del turns, state
        end = time.monotonic() + seconds
        while not ending.up and ref() is not None and (remaining := end - time.monotonic()) > 0:
            time.sleep(min(POLL_SECONDS, remaining))
