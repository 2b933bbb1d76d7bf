"""Propose, compile and vet configurations for a running program in a separate low-priority process.

The process proposes configurations (`tuning.kernels.genetic`), compiles them into the cache of object code, where the
program's own process finds them, and compares their results with the evaluator's on guarded memory. It may crash or
hang without harm.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from math import inf
from typing import Any

from einsmith.base import locks
from einsmith.base.errors import CompileError
from einsmith.base.system import processes
from einsmith.base.workers import Failed, Lost, Worker
from einsmith.cost.facts import Target
from einsmith.driver.backend import Answer, Backend, Measurement, Workshop
from einsmith.kernels import autoconfig
from einsmith.kernels.pattern import Pattern
from einsmith.schedule.kernel import Kernel
from einsmith.tuning.calibration import load
from einsmith.tuning.kernels import bench, measure, records, worker
from einsmith.tuning.kernels.bench import sendable_patterns
from einsmith.tuning.kernels.genetic import Search, candidate_of
from einsmith.tuning.kernels.session import least

PROCESSOR_LIMIT = 20.0
"""Most processor seconds of an answer; beyond it the process ends."""
WALL_CLOCK_LIMIT = 600.0
"""Most wall-clock seconds of an answer: the process gets little time where other programs keep all processors
busy."""
MIN_SPARE_PROCESSORS = 0.1
"""Processors that programs other than the trainer leave, below which the process does not leave all processor time to
them: with SCHED_IDLE it would stand still beside a program that keeps the processors busy. Its share is then that of a
process of niceness 19, 1.5 % of a processor's time (sched(7))."""
MAX_PREDICTED = 16
"""Most configurations of a kernel whose predicted times are reported, those with the lowest."""
MAX_GUESSES = 4
"""Most first guesses of each kind (records of the kernel, records of similar kernels) that are tried."""


class Shop:
    """The server inside the workshop process. Every answer includes the processor seconds that it took."""

    def __init__(self) -> None:
        self._searches: dict[tuple[Kernel, Target], Search] = {}
        self._watch = load.Watch(os.getppid())

    def begin(
        self, limit: float, patterns: Sequence[Pattern], idle: bool, make: Callable[[], Backend] | None = None
    ) -> None:
        """Set the process up.

        Args:
            limit: processor seconds that an answer may take, after which the process ends
            patterns: the user's own patterns
            idle: whether the process leaves the processors to other programs
            make: returns the back end of the program
        """
        self._limit, self._idle = limit, idle
        if idle:
            os.nice(19)
        self.choose_policy()
        bench.register(patterns)
        self._backend = None if make is None else make()

    def choose_policy(self) -> None:
        """Run only while a processor is idle, if the system can do that, unless programs other than the trainer, whose
        threads this process must not delay, leave no processor idle."""
        spare = self._watch.spare()
        if self._idle and spare is not None:
            self._watch = load.Watch(os.getppid())
            processes.run_when_idle(spare >= MIN_SPARE_PROCESSORS)

    def _start_clock(self) -> float:
        """Limit the processor seconds of the answer that begins now; return the processor seconds used so far."""
        self.choose_policy()
        signal.setitimer(signal.ITIMER_PROF, self._limit)
        return time.process_time()

    def propose(
        self, kernel: Kernel, target: Target, guesses: Sequence[str], measurements: Sequence[Measurement]
    ) -> tuple[str | None, float, list[float] | None]:
        """Return the text of the configuration to try next, or None where none is left, the processor seconds spent,
        and for a kernel's first configuration the predicted times of its configurations (`Answer.predicted`).

        guesses: texts of configurations that others have found
        measurements: configurations measured so far, which a restarted process does not know
        """
        start = self._start_clock()
        search, predicted = self._searches.get((kernel, target)), None
        if search is None:
            first = [c for text in guesses if (c := candidate_of(kernel, target, text)) is not None]
            search = Search(kernel, target, first=first)
            self._searches[kernel, target] = search
            predicted = predict_others(search)
        for text, seconds in measurements:
            c = candidate_of(kernel, target, text)
            if c is not None:
                search.tell(c, seconds)
        while (c := search.propose()) is not None and c in search.measured:
            pass
        return None if c is None else c.text, time.process_time() - start, predicted

    def vet(self, kernel: Kernel, target: Target, threads: int, text: str, seed: int) -> tuple[str, float]:
        """Return why a configuration may not be used, and the processor seconds spent. Reasons are that it cannot be
        compiled, accesses memory that it must not, or differs from the evaluator on random data; the reason is empty
        where it is correct."""
        start, backend = self._start_clock(), self._backend
        assert backend is not None
        try:
            code, choice_code = (backend.compile_as({kernel: x}, target)[kernel] for x in (text, ""))
        except CompileError as e:
            return str(e), time.process_time() - start
        codes = [measure.MachineCode(list(x.launches), x.scratch, x.workspace) for x in (code, choice_code)]
        subject = backend.runner.subject(kernel, target, threads, codes[0], code.pattern, code.config)
        return worker.fault_of(subject, codes[1], seed), time.process_time() - start


def predict_others(search: Search) -> list[float] | None:
    """Return the predicted times of a kernel's configurations, as ratios to that of the model's choice
    (`Answer.predicted`); None where the choice is predicted to take no time, as a pattern may do."""
    choice = search.choice
    if not choice.cost.rank:
        return None
    others = [cost.rank for name, config, cost in choice.alternatives if (name, config) != search.chosen]
    return sorted(r for rank in others if 0 < (r := rank / choice.cost.rank) < inf)[:MAX_PREDICTED]


class WorkshopProcess(Worker):
    """The workshop process, seen from its parent."""

    server = "einsmith.driver.workshop:Shop"
    idle = True

    def __init__(self, make: Callable[[], Backend] | None = None) -> None:
        super().__init__(self.server, WALL_CLOCK_LIMIT, WALL_CLOCK_LIMIT)
        self._make = make
        self.resumed = 0
        """Number of times that the process has resumed after a pause."""
        self._pausing = locks.lock()
        self._awaited = False
        self._until = 0.0
        """Clock time at which the latest pause ends."""
        self.is_prepared = False
        """Whether the process was started ahead and has not begun."""
        self._paused_at, self.paused_seconds = 0.0, 0.0
        """Clock time since when the process is paused (0: it is not), and total seconds of earlier pauses."""

    def pause(self, seconds: float) -> None:
        """Pause the process for `seconds` from now, or resume it (0). Time spent paused does not count towards an
        answer's limit.

        The process is stopped only while a thread waits for its answer, because that thread resumes it afterwards,
        whereas the caller of `pause` may never call again. It is not stopped before it has begun: from then on it ends
        with its parent.
        """
        with self._pausing:
            self._until = time.monotonic() + seconds
            self._stop_or_go_on()

    def _stop_or_go_on(self) -> None:
        """Stop or resume the process according to the latest call of `pause`."""
        with self._pausing:
            process, now = self.process, time.monotonic()
            paused = self._awaited and now < self._until
            if process is None or not (paused or self.paused):
                return
            process.send_signal(signal.SIGSTOP if paused else signal.SIGCONT)  # repeated: a shell may resume it
            if paused:
                self._paused_at = self._paused_at or now
            else:
                self.paused_seconds, self._paused_at = self.paused_seconds + now - self._paused_at, 0.0
                self.resumed += 1

    @property
    def paused(self) -> bool:
        """Whether the process is stopped."""
        return bool(self._paused_at)

    def prepare(self) -> None:
        """Start the process, which imports the server meanwhile. Only the main thread starts it ahead: the process ends
        with the thread that started it."""
        if threading.current_thread() is threading.main_thread() and self.process is None and not self.over:
            with suppress(OSError):  # the first request tries again, and reports it
                self._spawn()
                self.is_prepared = True

    def start(self) -> None:
        if not self.begun:
            self.is_prepared = False
            self.set_up(PROCESSOR_LIMIT, sendable_patterns(), self.idle, self._make)
        super().start()

    def _read_clock(self) -> float:
        with self._pausing:
            self._stop_or_go_on()
            return (self._paused_at or time.monotonic()) - self.paused_seconds

    def _receive(self, end: float) -> tuple[bool, Any]:
        self._awaited = self.begun
        try:
            return super()._receive(end)
        finally:
            self._awaited = False
            self._stop_or_go_on()


class ProcessWorkshop(Workshop):
    """A workshop (`backend.Workshop`) that hands requests to the workshop process."""

    def __init__(self, target: Target, threads: int, make: Callable[[], Backend]):
        self._worker = WorkshopProcess(make)
        self._lock = locks.Reentrant("waiting for the workshop process")
        self.target, self.threads = target, threads
        self._measurements: dict[Kernel, list[Measurement]] = {}
        self._reported: dict[Kernel, int] = {}
        self._is_waiting = False
        self._requests = 0

    @property
    def busy(self) -> bool:
        return self._is_waiting and not self._worker.paused

    @property
    def start_count(self) -> int:
        return self._requests + self._worker.resumed

    def prepare(self) -> None:
        self._worker.prepare()

    def finish_start(self) -> None:
        with self._lock:
            if self._worker.is_prepared:
                with self._waiting(), suppress(Lost, Failed):  # the first request starts another process
                    self._worker.start()

    def pause(self, seconds: float) -> None:
        self._worker.pause(seconds)

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """Note that the process computes while the block runs."""
        self._requests += 1
        self._is_waiting = True
        try:
            yield
        finally:
            self._is_waiting = False

    def _ask(self, name: str, *arguments: object) -> tuple:
        with self._waiting():
            return self._worker.ask(name, *arguments)

    def propose(self, kernel: Kernel) -> Answer:
        with self._lock:  # one exchange reads and updates what the process knows
            reported = self._reported.get(kernel)
            unreported = self._measurements.setdefault(kernel, [])[reported or 0 :]
            try:
                guesses = self._guesses(kernel) if reported is None else []
                text, seconds, predicted = self._ask("propose", kernel, self.target, guesses, unreported)
            except (Lost, Failed) as e:
                self._reported.clear()
                return Answer(None, str(e), 0.0)
            self._reported[kernel] = (reported or 0) + len(unreported)
        return Answer(text, "", seconds, predicted)

    def _guesses(self, kernel: Kernel) -> list[str]:
        return [
            *records.list_guesses(kernel, self.target)[:MAX_GUESSES],
            *records.list_similar_guesses(kernel, self.target)[:MAX_GUESSES],
        ]

    def vet(self, kernel: Kernel, text: str) -> Answer:
        start = time.monotonic()
        with self._lock:
            try:
                fault, seconds = self._ask("vet", kernel, self.target, self.threads, text, len(text))
            except (Lost, Failed) as e:
                self._reported.clear()  # what the process knew is lost
                fault, seconds = str(e), min(PROCESSOR_LIMIT, time.monotonic() - start)
        if fault:
            self.tell(kernel, text, inf)
        return Answer(text, fault, seconds)

    def tell(self, kernel: Kernel, text: str, seconds: float) -> None:
        self._measurements.setdefault(kernel, []).append((text, seconds))

    def keep(self, kernel: Kernel, text: str, seconds: float, spread: float, prior: float, confirmed: bool) -> None:
        if confirmed or not records.text_of(kernel, self.target):
            records.record_choice(
                kernel, self.target, records.create(kernel, text, seconds, spread, prior, int(confirmed))
            )

    def least(self, kernel: Kernel) -> float:
        bounds = [
            p.bound(kernel, self.target) for p in autoconfig.eligible_patterns(kernel, self.target) if p.match(kernel)
        ]
        return max(least(kernel, self.target), min(bounds, default=0.0))

    def find_part(self, kernel: Kernel, text: str) -> float:
        record = records.find(kernel, self.target)
        if record is None or record.text != text or not (0 < record.seconds < inf and 0 < record.prior < inf):
            return 1.0
        return record.seconds / record.prior

    def close(self) -> None:
        self._worker.kill()
        with self._lock:
            self._worker.close()
