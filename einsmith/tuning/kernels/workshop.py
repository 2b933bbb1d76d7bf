"""Propose, compile and vet configurations for a running program in a separate low-priority process.

The process proposes configurations (`tuning.kernels.genetic`), compiles them into the cache of object code, where the
program's own process finds them, and compares their results with the evaluator's on guarded memory. It may crash or
hang without harm.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from math import inf
from typing import Any, NamedTuple

from einsmith.base.errors import CompileError
from einsmith.base.system import processes
from einsmith.base.workers import Failed, Lost, Worker
from einsmith.cost.facts import Target
from einsmith.kernels import autoconfig
from einsmith.kernels.pattern import Pattern
from einsmith.schedule.kernel import Kernel
from einsmith.tuning.kernels import bench, candidate_worker, measure, records
from einsmith.tuning.kernels.bench import sendable_patterns
from einsmith.tuning.kernels.genetic import Candidate, Search, candidate_of
from einsmith.tuning.kernels.model_error import ModelError, Win
from einsmith.tuning.kernels.session import least
from einsmith.tuning.kernels.tuner import Answer, Tuner, Workshop

PROCESSOR_LIMIT = 20.0
"""Most processor seconds of an answer; beyond it the process ends."""
WALL_CLOCK_LIMIT = 600.0
"""Most wall-clock seconds of an answer: the process gets little time where other programs keep all processors
busy."""
NICENESS = 10
"""Niceness of the process. Beside threads that keep all processors busy it gets a tenth of one (sched(7)), until the
budget pauses it. In the first minute beside CapsuleNet's two threads on two processors that other programs used too,
exploring cost 1.8 % of the time, of the 2 % that it may; with 19 0.3 %, with SCHED_IDLE 0.1 %: vetting stood still."""
MAX_GUESSES = 4
"""Most first guesses of each kind (records of the kernel, records of similar kernels) that are tried."""


class KernelState(NamedTuple):
    """The search over a kernel's configurations, those that won for it or for like kernels before, and a lower bound of
    its seconds."""

    search: Search
    wins: Mapping[Candidate, Win]
    bound: float


class Shop:
    """The server inside the workshop process."""

    def __init__(self) -> None:
        self._searches: dict[tuple[Kernel, Target], KernelState] = {}

    def begin(
        self, limit: float, patterns: Sequence[Pattern], low: bool, make: Callable[[], Tuner] | None = None
    ) -> None:
        """Set the process up.

        Args:
            limit: processor seconds that an answer may take, after which the process ends
            patterns: the user's own patterns
            low: whether the process has a low priority
            make: returns the back end of the program
        """
        self._limit = limit
        if low:
            os.nice(NICENESS)
        bench.register(patterns)
        self._backend = None if make is None else make()

    def _start_clock(self) -> None:
        """Limit the processor seconds of the answer that begins now."""
        signal.setitimer(signal.ITIMER_PROF, self._limit)

    def propose(
        self, kernel: Kernel, target: Target, measured: Mapping[str, float], text: str, error: ModelError
    ) -> tuple[str | None, float, float]:
        """Return the text of the configuration that is expected to save most, or None where none is left; its expected
        saving, as a fraction of the kernel's time, and its predicted seconds.

        measured: seconds of configurations; text: the present one, which is among them
        """
        self._start_clock()
        search = self._searches.get((kernel, target))
        if search is None:
            bounds = [p.bound(kernel, target) for p in autoconfig.eligible_patterns(kernel, target) if p.match(kernel)]
            records_of = (records.list_guesses, records.list_similar_guesses)
            guesses = [w for find in records_of for w in find(kernel, target)[:MAX_GUESSES]]
            wins = {c: w for w in reversed(guesses) if (c := candidate_of(kernel, target, w.text)) is not None}
            search = KernelState(Search(kernel, target), wins, max(least(kernel, target), min(bounds, default=0.0)))
            self._searches[kernel, target] = search
        search.search.error = error
        for known, seconds in measured.items():
            c = candidate_of(kernel, target, known)
            if c is not None:
                search.search.tell(c, seconds)
        best = search.search.expect_most(measured[text], search.bound, search.wins)
        return (None, 0.0, 0.0) if best is None else (best.candidate.text, best.saving, best.seconds)

    def vet(self, kernel: Kernel, target: Target, threads: int, text: str, seed: int) -> str:
        """Return why a configuration may not be used: it cannot be compiled, accesses memory that it must not, or
        differs from the evaluator on random data. The reason is empty where it is correct."""
        self._start_clock()
        backend = self._backend
        assert backend is not None
        try:
            code, choice_code = (backend.compile_as({kernel: x}, target)[kernel] for x in (text, ""))
        except CompileError as e:
            return str(e)
        codes = [measure.MachineCode(list(x.launches), x.scratch, x.workspace) for x in (code, choice_code)]
        subject = backend.runner.subject(kernel, target, threads, codes[0], code.pattern, code.config)
        return candidate_worker.fault_of(subject, codes[1], seed)


class WorkshopProcess(Worker, Workshop):
    """The workshop process, seen from its parent (`tuning.kernels.tuner.Workshop`)."""

    server = "einsmith.tuning.kernels.workshop:Shop"
    is_low = True

    def __init__(self, make: Callable[[], Tuner] | None = None) -> None:
        super().__init__(self.server, WALL_CLOCK_LIMIT, WALL_CLOCK_LIMIT)
        self._make = make
        self._measured: dict[Kernel, dict[str, float]] = {}
        """Seconds of the configurations of each kernel."""
        self._kernel: Kernel | None = None
        self._proposed: Answer | None = None
        """The configuration that is vetted."""
        self._arguments: tuple = ()
        self._worth = 0.0
        self._paused_at = self._paused_seconds = 0.0
        """Clock time since when the process is paused (0: it is not), and total seconds of earlier pauses."""
        self._former_seconds = 0.0
        """Processor seconds of the processes before this one."""

    def prepare(self) -> None:
        with suppress(Lost, Failed, OSError):  # the first question tries again, and reports it
            self._post()

    def _post(self, *question: Any) -> None:
        if not self.begun and not self.is_asked:
            self.set_up(PROCESSOR_LIMIT, sendable_patterns(), self.is_low, self._make)
        self.post(*question)

    # -- questions

    def search(self, kernel: Kernel, text: str, target: Target, threads: int, error: ModelError, worth: float) -> None:
        self._kernel, self._proposed, self._worth = kernel, None, worth
        self._arguments = kernel, target, threads
        self._post("propose", kernel, target, self._measured[kernel], text, error)

    def poll_answer(self) -> Answer | None:
        kernel, proposed = self._kernel, self._proposed
        try:
            answer = self.poll()
            if answer is None or kernel is None:
                return None
            if proposed is not None:
                return self._reject(proposed, answer) if answer else proposed
            text, saving, predicted = answer
            if text is None or saving < self._worth:
                return Answer(kernel, None, "", saving)
            self._proposed = Answer(kernel, text, "", saving, predicted)
            self._post("vet", *self._arguments, text, len(text))
        except (Lost, Failed) as e:
            if kernel is None:  # it did not begin
                raise
            return Answer(kernel, None, str(e)) if self._proposed is None else self._reject(self._proposed, str(e))
        return None

    def _reject(self, proposed: Answer, fault: str) -> Answer:
        assert proposed.text is not None
        self.tell(proposed.kernel, proposed.text, inf)
        return proposed._replace(fault=fault)

    def tell(self, kernel: Kernel, text: str, seconds: float) -> None:
        self._measured.setdefault(kernel, {})[text] = seconds

    # -- pauses

    @property
    def is_working(self) -> bool:
        return self.is_asked and not self._paused_at

    @property
    def seconds(self) -> float:
        process = self.process
        now = 0.0 if process is None else processes.processor_seconds(process.pid) or inf
        return self._former_seconds + now

    def pause(self, is_paused: bool) -> None:
        """Pause or resume the process. Time spent paused does not count towards an answer's limit. A process that
        has not begun is not stopped: from then on it ends with its parent."""
        process, now = self.process, time.monotonic()
        if process is None or not self.begun or is_paused == bool(self._paused_at):
            return
        process.send_signal(signal.SIGSTOP if is_paused else signal.SIGCONT)
        if is_paused:
            self._paused_at = now
        else:
            self._paused_seconds, self._paused_at = self._paused_seconds + now - self._paused_at, 0.0

    def _read_clock(self) -> float:
        return (self._paused_at or time.monotonic()) - self._paused_seconds

    def close(self) -> None:
        self._former_seconds, self._paused_at = self.seconds, 0.0
        super().close()

    # -- the store

    def find_win(self, kernel: Kernel, target: Target) -> Win | None:
        return next(iter(records.list_similar_guesses(kernel, target)), None)

    def keep(self, kernel: Kernel, target: Target, text: str, seconds: float, spread: float, ratio: float) -> None:
        former = records.find(kernel, target)
        of_former = records.ratio(former.seconds, former.prior) if former is not None and former.confirmed else 1.0
        record = records.create(kernel, text, seconds, spread, seconds / (ratio * of_former), confirmed=1)
        records.record_choice(kernel, target, record)
