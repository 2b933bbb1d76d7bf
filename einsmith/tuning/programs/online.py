"""Dynamic mode: tune a program's kernels while the program trains.

An exploring thread proposes configurations and a code-generating thread has them compiled and vetted; a bounded queue
connects them, and both use a low-priority process (`driver.backend.Workshop`). The training thread tries several
kernels at a time. In one step the candidates run in addition to the program's own kernels, into separate memory, and a
candidate whose result differs is dropped. Then steps alternate between the current program and the candidate program,
and each kernel is timed. A candidate that is significantly faster is installed and recorded. Every step is a training
step on the user's data, whichever program runs it. A budget of time limits all of this (`tuning.programs.budget`).
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from math import inf
from statistics import median
from typing import Any, TypeVar

import numpy as np

from einsmith.base import environment, locks
from einsmith.base.errors import ArgumentError, EinsmithError, EinsmithWarning
from einsmith.driver.backend import Workshop
from einsmith.driver.executable import FINITE, Executable
from einsmith.schedule.kernel import Kernel, Rows
from einsmith.tuning.kernels.decisions import name_of
from einsmith.tuning.programs.budget import Budget
from einsmith.tuning.programs.exploring import LOOK, Flag, Kept, close, loop, record
from einsmith.tuning.programs.trial import (
    FEWEST,
    KernelRecord,
    Seconds,
    Trial,
    judge,
    median_deviation,
    of_kernels,
)

LOST = 0.02
"""Fraction of the time of all steps that exploring may cost."""
UNIT = 8e-3
"""Seconds that a unit of work is expected to take before the first unit of its kind is measured."""
PROFILED = 3
"""Steps that are timed, kernel by kernel, before the first trial."""
TOGETHER = 6
"""Most kernels in one trial, and most configurations in the queue."""
WORTH = 0.004
"""Fraction of a step's kernel time below which a kernel is not tuned."""
PEAK = 0.95
"""Fraction of the roofline bound beyond which a kernel is not tuned: its least seconds exceed PEAK times its time."""
LEFT = 0.01
"""Fraction of a step's time; exploring ends when all kernels together can save less than this."""
BARREN = 12
"""Consecutive configurations of a kernel without a gain after which the kernel is not tuned any more."""
UNSTEADY = 0.25
"""Largest median deviation (`trial.median_deviation`) of the times of equal steps; beyond it the machine is too busy to
compare times."""
BUSY = 4
"""Consecutive trials on a machine that is too busy after which exploring ends."""
DUTY = 0.5
"""Largest fraction of the time in which the workshop process works: steps while it rests show what it costs."""
BESIDE_BYTES = 256 << 20
"""Bytes of the buffers of a trial's kernels, in two copies, from which on no further kernel joins the trial."""
UNSEEN = 16
"""Most consecutive steps run without bookkeeping while exploring is idle; bookkeeping costs time on short steps."""
PAUSE = 1.0
"""Shortest rest of the workshop process (seconds), unless PAUSED_STEPS steps take longer."""
PAUSED_STEPS = 4
"""Fewest steps of usual length in a rest of the workshop process."""

T = TypeVar("T")
Step = tuple[int, list[np.ndarray]]


class Exploration:
    """The search for faster kernels of one program while it trains.

    The training thread calls `step` in place of the program. A configuration that wins is part of the program from the
    next step on. log: findings, a line each, with the faults of configurations; over: the reason why exploring ended.
    """

    def __init__(self, run: Executable, workshop: Workshop, seconds: float = inf):
        self.run, self._workshop = run, workshop
        self.log: list[str] = []
        self.over = ""
        self._failure = ""
        """Error that ended exploring and that the training thread has not yet warned of."""
        self.budget = Budget(LOST)
        self.kernels: dict[Kernel | Rows, KernelRecord] = {}
        self.tried = 0
        self.kept: dict[Kernel | Rows, str] = {}
        self._end = time.monotonic() + seconds
        self._profiled: list[Seconds] = []
        self._unbounded: list[Kernel | Rows] = []
        """Kernels whose roofline bound is not yet known."""
        self._rests = 0.0
        """Time (`perf_counter`) after which the workshop's rest is renewed; 0 while it works."""
        self._unseen = 0
        """Coming steps to run without bookkeeping."""
        self._beside_steps = 0.0
        """Bookkeeping seconds of the last call of `step`, without the program's run."""
        self._works = 0
        self._working: set[str] = set()
        """Units of work begun by threads, and the kinds of the unfinished ones."""
        self._took: dict[str, float] = {}
        """Seconds of the last unit of each kind of work."""
        self._trial: Trial | None = None
        self._found: queue.SimpleQueue[Kept] = queue.SimpleQueue()
        self._unsteady = 0
        self._flying: set[Kernel | Rows] = set()
        self._queue: queue.Queue[tuple[Kernel | Rows, str]] = queue.Queue(maxsize=TOGETHER)
        self._next: tuple[Kernel | Rows, str] | None = None
        self._unvetted: tuple[Kernel | Rows, str] | None = None
        self._ready: dict[Kernel | Rows, str] = {}
        self._recording = locks.lock()
        self._stop = Flag()
        self._pid = os.getpid()
        self._threads = [
            threading.Thread(target=loop, args=(weakref.ref(self), name), name=f"einsmith{name}", daemon=True)
            for name in ("_propose", "_generate")
        ]
        weakref.finalize(self, close, self._pid, self._stop, workshop, self._threads, self._found, self._recording)

    # -- the training thread

    def step(self, arrays: Sequence[np.ndarray]) -> Step:
        """Run one training step, with the current program or with a candidate. Returns and raises as the program."""
        if self.over or os.getpid() != self._pid:
            if os.getpid() == self._pid:
                self._finish()
                self._warn()
            return self.run(arrays)
        if self._unseen:
            self._unseen -= 1
            self.budget.total += self.budget.usual
            return self.run(arrays)
        entered = time.perf_counter()
        shop, works = self._workshop, self._works
        threads = bool(self._working)
        quiet, begun = not shop.busy, shop.begun
        start = time.perf_counter()
        plain, out = self._step(arrays)
        end = time.perf_counter()
        threads = threads or self._works != works
        quiet = plain and quiet and not threads and shop.begun == begun
        self.budget.step(end - start, quiet, threads, self._beside_steps)
        if self.budget.stopped or self._rests:
            self._pause(end)
            if quiet and self.budget.stopped:
                self._unseen = min(UNSEEN, int(LOOK / self.budget.usual))
        if end > self._end:
            self.end("the time limit is reached")
        self._beside_steps = start - entered + time.perf_counter() - end
        return out

    def _pause(self, now: float) -> None:
        """Pause the workshop process while the budget is exceeded; renew the pause before it runs out."""
        if not self.budget.stopped:
            self._workshop.pause(0.0)
            self._rests = 0.0
        elif now > self._rests:
            rest = max(PAUSE, PAUSED_STEPS * self.budget.usual)
            self._workshop.pause(rest)
            self._rests = now + rest / PAUSED_STEPS

    def _step(self, arrays: Sequence[np.ndarray]) -> tuple[bool, Step]:
        """Run one training step. Return (whether it ran the current program untimed, the program's result)."""
        trial, budget = self._trial, self.budget
        if len(self._profiled) < PROFILED:
            return (False, self._profile(arrays)) if budget.may(UNIT) else (True, self.run(arrays))
        if trial is None or trial.ran:
            return True, self.run(arrays)
        if not (trial.first or budget.may(self._expected_seconds("_program") if trial.won or trial.lost else 0.0)):
            return True, self.run(arrays)
        if trial.beside is not None:
            out = trial.beside(arrays)
            if out[0] == FINITE:  # infinities agree with anything
                self._close(trial)
            else:
                trial.ran = True
            return False, out
        if trial.won or trial.lost:
            self._aside(self._without_decided, trial)
        if trial.other is None:
            return False, self.run(arrays)
        if not trial.first:
            status, outputs, seconds = self.run.timed(arrays)
            if status != FINITE:  # where the loss is not finite, not all kernels have run
                trial.first = of_kernels(self.run, seconds)
            return False, (status, outputs)
        status, outputs, seconds = trial.other.timed(arrays)
        if status != FINITE:
            self._aside(self._pair, trial, of_kernels(trial.other, seconds))
        trial.first = {}
        return False, (status, outputs)

    def _finish(self) -> None:
        """Install the configurations that won before exploring ended, and record the findings that wait."""
        trial, self._trial = self._trial, None
        if trial is not None and trial.won:
            self._aside(self._install, trial)
        if not self._found.empty():
            self._record()

    def _profile(self, arrays: Sequence[np.ndarray]) -> Step:
        status, outputs, seconds = self.run.timed(arrays)
        if status != FINITE:
            self._profiled.append(of_kernels(self.run, seconds))
        if len(self._profiled) == PROFILED:
            for thread in self._threads:
                thread.start()
        return status, outputs

    def _aside(self, work: Callable[..., None], *arguments: object) -> None:
        """Do work that is no part of a training step: its error ends exploring and leaves the step valid."""
        try:
            work(*arguments)
        except Exception as e:
            self.fail(e)

    def _pair(self, trial: Trial, seconds: Seconds) -> None:
        """Record the time ratios of a pair of steps, and decide the configurations whose difference is significant."""
        trial.steps.append(sum(trial.first.values()))
        for k in trial.texts:
            trial.ratios.setdefault(k, []).append(seconds[k] / trial.first[k] if trial.first[k] > 0 else inf)
        told = {k: judge(r) for k, r in trial.ratios.items() if k in trial.texts}
        unsteady = len(trial.steps) >= FEWEST and median_deviation(trial.steps) > UNSTEADY
        if unsteady:
            told = dict.fromkeys(told, False)
        self._unsteady = self._unsteady + 1 if unsteady else 0 if len(trial.steps) >= FEWEST else self._unsteady
        lost = [k for k, x in told.items() if x is False]
        for k in lost:
            self._tell(k, trial.texts[k], self.kernels[k].seconds * median(trial.ratios[k]))
            self.kernels[k].barren += not unsteady
        for k in [k for k, x in told.items() if x]:
            trial.won[k] = trial.texts.pop(k)
            self._say(f"{name_of(k)[:8]}: {median(trial.ratios[k]):.3f} of the time with {trial.won[k]}")
            self._keep(trial, k, confirmed=False)
        for k in lost:
            del trial.texts[k]
        trial.lost += lost
        if self._unsteady >= BUSY:
            self.end("the machine is too busy")

    def _keep(self, trial: Trial, kernel: Kernel | Rows, confirmed: bool) -> None:
        """Queue a configuration that won for recording; confirmed: whether it is installed in the program."""
        known, ratios = self.kernels[kernel], trial.ratios[kernel]
        seconds, prior = known.seconds * median(ratios), known.seconds / known.part
        self._found.put((kernel, trial.won[kernel], seconds, median_deviation(ratios), prior, confirmed))

    def _install(self, trial: Trial) -> None:
        """Hot-swap the program for one with the configurations that won."""
        while trial.won:
            texts, made = self._fitting(trial.won)
            if made is not None:
                self.run.swap(made)
            for k, text in texts.items():
                if made is not None:
                    self._keep(trial, k, confirmed=True)
                    self.kernels[k].becomes(median(trial.ratios[k]))
                    self.kept[k] = text
                    self._tell(k, text, self.kernels[k].seconds)
                    self._say(f"{name_of(k)[:8]}: the program has {text}")
                del trial.won[k]

    def _without_decided(self, trial: Trial) -> None:
        """Install the winners and continue the trial with the undecided kernels alone."""
        decided = [*trial.won, *trial.lost]
        self._install(trial)
        self._flying.difference_update(decided)
        trial.lost = []
        self._go_on(trial)

    def _go_on(self, trial: Trial) -> None:
        """Continue the trial with as many undecided kernels as fit in memory; leave the rest to another trial."""
        undecided, trial.other = trial.texts, None
        if undecided:
            trial.texts, trial.other = self._fitting(undecided)
            self._ready.update((k, text) for k, text in undecided.items() if k not in trial.texts)
        if trial.other is None:
            self._close(trial)

    def _fitting(
        self, texts: Mapping[Kernel | Rows, str], beside: bool = False
    ) -> tuple[dict[Kernel | Rows, str], Executable | None]:
        """Return as many of the configurations as fit in memory at once, and the program with them. The program is None
        where it cannot be made; its configurations are then marked as faulty."""
        texts = dict(texts)
        while True:
            try:
                return texts, self._program(texts, beside)
            except EinsmithError as e:
                if len(texts) > 1 and isinstance(e, ArgumentError):  # the memory limit is exceeded
                    texts = dict([*texts.items()][: len(texts) // 2])
                    continue
                for k, text in texts.items():
                    self._fault(k, text, str(e))
                    self._flying.discard(k)
                return texts, None

    def _program(self, texts: Mapping[Kernel | Rows, str], beside: bool = False) -> Executable:
        """Compile the program with the given configurations in place of its own, and note the time that it takes."""
        begun = time.thread_time()
        made = self.run.with_decisions(texts, beside)
        self._took["_program"] = time.thread_time() - begun
        return made

    def _close(self, trial: Trial) -> None:
        self._flying.difference_update((*trial.texts, *trial.won, *trial.lost))
        self._trial = None

    # -- the exploring and the code-generating thread: each function does one turn of its thread's loop and returns the
    # seconds to wait. Threads wait without a reference to the exploration, so that an unused program can be freed

    def _work(self, work: Callable[..., T], *arguments: Any) -> T | None:
        """Do a unit of work and return its result; return None without working where the budget does not allow it."""
        if not self.budget.may(self._expected_seconds(work.__name__)):
            return None
        begun, name = time.thread_time(), work.__name__
        if name.startswith("_"):  # work in this process; the workshop reports its own
            self._working.add(name)
            self._works += 1
        try:
            return work(*arguments)
        finally:
            self._took[name] = seconds = time.thread_time() - begun
            self.budget.work(seconds)
            self._working.discard(name)

    def _expected_seconds(self, work: str) -> float:
        """Return the seconds that a unit of work is expected to take: as its last unit, else UNIT."""
        return self._took.get(work, UNIT)

    def _begin(self) -> None:
        """Make the records of all kernels from the profiled steps, and exclude kernels that are not worth tuning."""
        found = {k: min(p[k] for p in self._profiled) for k in self._profiled[0]}
        whole = sum(found.values())
        runs: dict[Kernel | Rows, int] = {}
        for call, turns in zip(self.run.calls, self.run.turns, strict=True):
            runs[call.kernel] = runs.get(call.kernel, 0) + turns
        for call, made in zip(self.run.calls, self.run.kernels, strict=True):
            k = call.kernel
            known = self.kernels[k] = KernelRecord(found[k] / runs[k], runs[k])
            if made.decision and not made.tuned:
                known.over = "its configuration is set by hand"
            elif found[k] < WORTH * whole:
                known.over = "it takes a negligible part of the time"
            else:
                self._tell(k, made.decision, known.seconds)
        self._unbounded = [k for k, known in self.kernels.items() if not known.over]

    def _bound(self) -> bool:
        """Compute the roofline bound of one more kernel, and exclude a kernel that is close to it."""
        known = self.kernels[self._unbounded[-1]]
        known.least = self._workshop.least(self._unbounded.pop())
        if known.seconds * PEAK < known.least:
            known.over = "it is close to its roofline bound"
        return True

    def _propose(self) -> float:
        """Put the next configuration into the queue. Return the seconds to wait until the next call."""
        if not self.kernels:
            self._begin()
        if self._unbounded:
            return LOOK if self._work(self._bound) is None else 0.0
        if self._next is None:
            kernel = self._worthiest()
            if kernel is None:
                if not self._flying:
                    self.end("nothing is left to gain")
                return LOOK
            found = self._work(self._workshop.propose, kernel)
            if found is None or self._stop.up:
                return LOOK
            if found.text is None:
                self.kernels[kernel].over = found.fault or "nothing is left to try"
                return 0.0
            self._flying.add(kernel)
            self._next = kernel, found.text
            return self._rest(found.seconds)
        try:
            self._queue.put_nowait(self._next)
        except queue.Full:
            return LOOK
        self._next = None
        return 0.0

    def _worthiest(self) -> Kernel | Rows | None:
        """Return the kernel whose next configuration may gain most; None where all are in a trial or excluded."""
        for known in self.kernels.values():
            if known.barren >= BARREN:
                known.over = known.over or f"{BARREN} configurations in a row gained nothing"
        open_ = {k: x.gain for k, x in self.kernels.items() if not x.over}
        if sum(open_.values()) < LEFT * self.budget.usual:
            return None
        free = {k: gain for k, gain in open_.items() if k not in self._flying}
        return max(free, key=free.__getitem__) if free else None

    def _generate(self) -> float:
        """Have a configuration compiled and vetted, hand a batch of them to the training thread, or compare the results
        of its step. Return the seconds to wait until the next call."""
        trial = self._trial
        if trial is not None and trial.ran:
            self._work(self._judge, trial)
            return LOOK if trial.ran else 0.0
        if trial is None and self._ready and (self._full() or self._queue.empty()):
            self._work(self._hand_over)
            return LOOK
        if self._full():
            return LOOK
        try:
            self._unvetted = self._unvetted or self._queue.get_nowait()
        except queue.Empty:
            return LOOK
        return self._vet(*self._unvetted)

    def _full(self) -> bool:
        """Return whether the next trial has as many kernels, or as large buffers, as one may have."""
        size = 2 * sum(b.nbytes for k in [*self._ready] for b in k.buffers)
        return len(self._ready) >= TOGETHER or size >= BESIDE_BYTES

    def _vet(self, kernel: Kernel | Rows, text: str) -> float:
        vetted = self._work(self._workshop.vet, kernel, text)
        if vetted is None or self._stop.up:  # the process was ended
            return LOOK
        self._unvetted = None
        self.tried += 1
        if vetted.fault:
            self._fault(kernel, text, vetted.fault)
            self._flying.discard(kernel)
        else:
            self._ready[kernel] = text
        return self._rest(vetted.seconds)

    def _hand_over(self) -> None:
        """Make a trial of the vetted configurations, or of as many of them as fit in memory."""
        texts, made = self._fitting(self._ready, beside=True)
        self._ready = {k: text for k, text in self._ready.items() if k not in texts}
        if made is not None and not self._stop.up:
            self._trial = Trial(texts, made)

    def _judge(self, trial: Trial) -> None:
        """Compare the candidates' results with those of the program's kernels, and drop candidates that differ."""
        assert trial.beside is not None
        for kernel, x in trial.beside.beside.items():
            if fault := x.difference():
                self._fault(kernel, trial.texts.pop(kernel), f"in a step, {fault}")
                self._flying.discard(kernel)
        trial.beside = None
        self._go_on(trial)
        trial.ran = False

    def _record(self) -> None:
        """Write queued findings to the store, on a background thread so that training does not wait for the disk."""
        record(self._workshop, self._found, self._recording)

    def _rest(self, seconds: float) -> float:
        """Return the seconds to wait so that `seconds` of work are DUTY of the time; at most until the time limit."""
        return min(seconds * (1 / DUTY - 1), max(0.0, self._end - time.monotonic()))

    # -- both

    def _tell(self, kernel: Kernel | Rows, text: str, seconds: float) -> None:
        self._workshop.tell(kernel, text, seconds)

    def _fault(self, kernel: Kernel | Rows, text: str, fault: str) -> None:
        self._tell(kernel, text, inf)
        self.kernels[kernel].barren += 1
        self._say(f"{name_of(kernel)[:8]}: rejected: {text}: {fault}")

    def _say(self, what: str) -> None:
        self.log.append(what)
        if environment.debug() >= 1:
            print(f"einsmith: {what}", file=sys.stderr)

    def fail(self, error: Exception) -> None:
        """End exploring because of an error; the next step warns of it."""
        if not self.over:
            self._failure = f"{type(error).__name__}: {error}"
            self.end(self._failure)

    def _warn(self) -> None:
        """Warn once of the error that has ended exploring, between two steps, where a warning may also be raised."""
        told, self._failure = self._failure, ""
        if told:
            warnings.warn(
                f"tuning during training has ended with an error: {told}. Training continues with the configurations "
                "found so far; EINSMITH_DEBUG=1 shows what was tried",
                EinsmithWarning,
                stacklevel=2,
            )

    def end(self, why: str) -> None:
        """Stop exploring. Configurations that won and are not yet installed are installed at the next step."""
        if not self.over:
            self.over, trial = why, self._trial
            won = [name_of(k)[:8] for k in [*trial.won]] if trial is not None else []
            more = f", and {', '.join(won)}, which are not confirmed" if won else ""
            told = f"{self.tried} configurations tried, {len(self.kept)} kernels are faster{more}"
            self._say(f"exploration ends: {why}; {told}")
        self.close()

    def close(self) -> None:
        """End the threads and the workshop process."""
        close(self._pid, self._stop, self._workshop, self._threads, self._found, self._recording)
