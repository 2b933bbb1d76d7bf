"""Dynamic mode: a program's kernels are tuned while it trains.

An exploring thread asks for configurations to try, a code-generating thread has them compiled and vetted (a bounded
queue between them), both in a process that gets what time the processors have left (`backends.backend.Workshop`); the
thread that trains tries them, several kernels at a time: in one step they run beside the program's own kernels, into
memory of their own, and what differs is dropped; then steps alternate between the program as it is and with them, and
each kernel is timed. What is faster with confidence stays, and is recorded. Every step is a training step on the user's
data, whichever of the programs runs it. All of this goes on as far as a budget of time allows (`training.budget`).
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

from einsmith import knobs, locks
from einsmith.backends.backend import Workshop
from einsmith.compile import FINITE, Executable
from einsmith.decisions import name_of
from einsmith.errors import ArgumentError, EinsmithError, EinsmithWarning
from einsmith.plan.kernel import Kernel, Rows
from einsmith.training.budget import Budget
from einsmith.training.exploring import LOOK, Flag, Kept, close, loop, record
from einsmith.training.trial import FEWEST, KernelRecord, Seconds, Trial, of_kernels, spread, told_apart

LOST = 0.02
"""The part of the time of all steps that exploring may cost."""
UNIT = 8e-3
"""Seconds that a unit of work is held to take before one was done."""
PROFILED = 3
"""Steps that are timed before anything is tried."""
TOGETHER = 6
"""Kernels that are tried at once."""
WORTH = 0.004
"""The part of a step below which a kernel is left alone."""
PEAK = 0.95
"""A kernel that does this part of what its bytes and operations allow is left alone."""
LEFT = 0.01
"""The part of a step that all kernels together may gain at the most, below which exploring ends."""
BARREN = 12
"""Configurations of a kernel in a row that bring nothing, after which it is left alone."""
UNSTEADY = 0.25
"""The spread of equal steps from which on the machine is too busy to tell anything."""
BUSY = 4
"""Trials in a row on a machine that is too busy, after which exploring ends."""
DUTY = 0.5
"""The part of the time in which the other process works at the most: steps while it rests tell what it costs."""
BESIDE_BYTES = 256 << 20
"""Memory of results that are compared."""
UNSEEN = 16
"""Short steps in a row that nobody looks at, at the most, while nothing goes on: that takes time, too."""
PAUSE = 1.0
"""Seconds that the other process rests at the least unless another step says so; PAUSED_STEPS, the same in steps."""
PAUSED_STEPS = 4

T = TypeVar("T")
Step = tuple[int, list[np.ndarray]]


class Exploration:
    """One program that is explored. Its thread calls `step` in the place of the program; what stays, the program is
    from the next step on. log: what was found, in words, faults of configurations among it; over: why it has ended."""

    def __init__(self, run: Executable, workshop: Workshop, seconds: float = inf):
        self.run, self._workshop = run, workshop
        self.log: list[str] = []
        self.over = ""
        self._failure = ""
        """An error that has ended exploring, until the thread that trains has warned of it."""
        self.budget = Budget(LOST)
        self.kernels: dict[Kernel | Rows, KernelRecord] = {}
        self.tried = 0
        self.kept: dict[Kernel | Rows, str] = {}
        self._end = time.monotonic() + seconds
        self._profiled: list[Seconds] = []
        self._unbounded: list[Kernel | Rows] = []
        """Kernels of which it is not known what they take at the least."""
        self._rests = 0.0
        """Until when the other process rests in any case (0: it works)."""
        self._unseen = 0
        """Steps to come that nobody looks at."""
        self._beside_steps = 0.0
        """Seconds that `step` has taken beside the last step itself."""
        self._works = 0
        self._working: set[str] = set()
        """How many units of work threads have begun, and the kinds of those that go on."""
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
        """A run of the program, as it is or with what is tried. Returns and raises what that does."""
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
            self.end("the time for it is over")
        self._beside_steps = start - entered + time.perf_counter() - end
        return out

    def _pause(self, now: float) -> None:
        """Lets the other process rest as long as it is to: that is said again before the pause is over."""
        if not self.budget.stopped:
            self._workshop.pause(0.0)
            self._rests = 0.0
        elif now > self._rests:
            rest = max(PAUSE, PAUSED_STEPS * self.budget.usual)
            self._workshop.pause(rest)
            self._rests = now + rest / PAUSED_STEPS

    def _step(self, arrays: Sequence[np.ndarray]) -> tuple[bool, Step]:
        """Whether the step was a plain one, and what came of it."""
        trial, budget = self._trial, self.budget
        if len(self._profiled) < PROFILED:
            return (False, self._profile(arrays)) if budget.may(UNIT) else (True, self.run(arrays))
        if trial is None or trial.ran:
            return True, self.run(arrays)
        if not (trial.first or budget.may(self._expected("_program") if trial.won or trial.lost else 0.0)):
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
            if status != FINITE:  # else not all kernels have run
                trial.first = of_kernels(self.run, seconds)
            return False, (status, outputs)
        status, outputs, seconds = trial.other.timed(arrays)
        if status != FINITE:
            self._aside(self._pair, trial, of_kernels(trial.other, seconds))
        trial.first = {}
        return False, (status, outputs)

    def _finish(self) -> None:
        """After the end: what won and was not yet installed is now."""
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
        """What is no part of a step: where it fails exploring ends, and the step has been made all the same."""
        try:
            work(*arguments)
        except Exception as e:
            self.fail(e)

    def _pair(self, trial: Trial, seconds: Seconds) -> None:
        """Notes a pair of steps, and decides about what it tells apart."""
        trial.steps.append(sum(trial.first.values()))
        for k in trial.texts:
            trial.ratios.setdefault(k, []).append(seconds[k] / trial.first[k] if trial.first[k] > 0 else inf)
        told = {k: told_apart(r) for k, r in trial.ratios.items() if k in trial.texts}
        unsteady = len(trial.steps) >= FEWEST and spread(trial.steps) > UNSTEADY
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
        """Has recorded what won; confirmed: the program is made of it."""
        known, ratios = self.kernels[kernel], trial.ratios[kernel]
        seconds, prior = known.seconds * median(ratios), known.seconds / known.part
        self._found.put((kernel, trial.won[kernel], seconds, spread(ratios), prior, confirmed))

    def _install(self, trial: Trial) -> None:
        """The program is from now on made of what won."""
        while trial.won:
            texts, made = self._fitting(trial.won)
            if made is not None:
                self.run.become(made)
            for k, text in texts.items():
                if made is not None:
                    self._keep(trial, k, confirmed=True)
                    self.kernels[k].becomes(median(trial.ratios[k]))
                    self.kept[k] = text
                    self._tell(k, text, self.kernels[k].seconds)
                    self._say(f"{name_of(k)[:8]}: the program has {text}")
                del trial.won[k]

    def _without_decided(self, trial: Trial) -> None:
        """Goes on without the kernels that are decided about."""
        decided = [*trial.won, *trial.lost]
        self._install(trial)
        self._flying.difference_update(decided)
        trial.lost = []
        self._go_on(trial)

    def _go_on(self, trial: Trial) -> None:
        """Tries what is undecided, as much of it as there is memory for; the rest later, in another trial."""
        undecided, trial.other = trial.texts, None
        if undecided:
            trial.texts, trial.other = self._fitting(undecided)
            self._ready.update((k, text) for k, text in undecided.items() if k not in trial.texts)
        if trial.other is None:
            self._close(trial)

    def _fitting(
        self, texts: Mapping[Kernel | Rows, str], beside: bool = False
    ) -> tuple[dict[Kernel | Rows, str], Executable | None]:
        """As many of these configurations as there is memory for at once, and the program with them: None where there
        cannot be one, then they are never used."""
        texts = dict(texts)
        while True:
            try:
                return texts, self._program(texts, beside)
            except EinsmithError as e:
                if len(texts) > 1 and isinstance(e, ArgumentError):  # more memory than may be
                    texts = dict([*texts.items()][: len(texts) // 2])
                    continue
                for k, text in texts.items():
                    self._fault(k, text, str(e))
                    self._flying.discard(k)
                return texts, None

    def _program(self, texts: Mapping[Kernel | Rows, str], beside: bool = False) -> Executable:
        """The program with other configurations."""
        begun = time.thread_time()
        made = self.run.with_decisions(texts, beside)
        self._took["_program"] = time.thread_time() - begun
        return made

    def _close(self, trial: Trial) -> None:
        self._flying.difference_update((*trial.texts, *trial.won, *trial.lost))
        self._trial = None

    # -- the exploring and the code-generating thread: what each does again and again, and for how
    # long it waits then. It does so without the exploration: a program which nobody has any more is not kept

    def _work(self, work: Callable[..., T], *arguments: Any) -> T | None:
        """Does a unit of work, or none (None) where the budget does not allow it yet."""
        if not self.budget.may(self._expected(work.__name__)):
            return None
        begun, name = time.thread_time(), work.__name__
        if name.startswith("_"):  # nobody else is asked, who tells that he is busy
            self._working.add(name)
            self._works += 1
        try:
            return work(*arguments)
        finally:
            self._took[name] = seconds = time.thread_time() - begun
            self.budget.work(seconds)
            self._working.discard(name)

    def _expected(self, work: str) -> float:
        """Seconds that a unit of work is held to take."""
        return self._took.get(work, UNIT)

    def _begin(self) -> None:
        """Looks at the kernels for the first time."""
        found = {k: min(p[k] for p in self._profiled) for k in self._profiled[0]}
        whole = sum(found.values())
        runs: dict[Kernel | Rows, int] = {}
        for call, turns in zip(self.run.calls, self.run.turns, strict=True):
            runs[call.kernel] = runs.get(call.kernel, 0) + turns
        for call, made in zip(self.run.calls, self.run.kernels, strict=True):
            k = call.kernel
            known = self.kernels[k] = KernelRecord(found[k] / runs[k], runs[k])
            if made.decision and not made.tuned:
                known.over = "it is decided about by hand"
            elif found[k] < WORTH * whole:
                known.over = "it takes next to nothing"
            else:
                self._tell(k, made.decision, known.seconds)
        self._unbounded = [k for k, known in self.kernels.items() if not known.over]

    def _bound(self) -> bool:
        """Finds out what one more kernel takes at the least."""
        known = self.kernels[self._unbounded[-1]]
        known.least = self._workshop.least(self._unbounded.pop())
        if known.seconds * PEAK < known.least:
            known.over = "it takes what its bytes and operations take at the least"
        return True

    def _propose(self) -> float:
        """Puts a configuration that is to be tried into the queue."""
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
        """The kernel whose next configuration may gain most; None where all are being tried or left alone."""
        for known in self.kernels.values():
            if known.barren >= BARREN:
                known.over = known.over or f"{BARREN} configurations in a row brought nothing"
        open_ = {k: x.gain for k, x in self.kernels.items() if not x.over}
        if sum(open_.values()) < LEFT * self.budget.usual:
            return None
        free = {k: gain for k, gain in open_.items() if k not in self._flying}
        return max(free, key=free.__getitem__) if free else None

    def _generate(self) -> float:
        """Has a configuration compiled and vetted, hands some of them together to the training thread, and compares
        what that has made of them."""
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
        """Whether no more is tried at once."""
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
        """Makes a trial of what is ready, or of as much of it as there is memory for."""
        texts, made = self._fitting(self._ready, beside=True)
        self._ready = {k: text for k, text in self._ready.items() if k not in texts}
        if made is not None and not self._stop.up:
            self._trial = Trial(texts, made)

    def _judge(self, trial: Trial) -> None:
        """Compares what ran beside the program's kernels; what differs is dropped."""
        assert trial.beside is not None
        for kernel, x in trial.beside.beside.items():
            if fault := x.difference():
                self._fault(kernel, trial.texts.pop(kernel), f"in a step, {fault}")
                self._flying.discard(kernel)
        trial.beside = None
        self._go_on(trial)
        trial.ran = False

    def _record(self) -> None:
        """Records what was found: the training thread does not wait for the disk."""
        record(self._workshop, self._found, self._recording)

    def _rest(self, seconds: float) -> float:
        """For how long to wait so that work of so many seconds was DUTY of the time."""
        return min(seconds * (1 / DUTY - 1), max(0.0, self._end - time.monotonic()))

    # -- both

    def _tell(self, kernel: Kernel | Rows, text: str, seconds: float) -> None:
        self._workshop.tell(kernel, text, seconds)

    def _fault(self, kernel: Kernel | Rows, text: str, fault: str) -> None:
        self._tell(kernel, text, inf)
        self.kernels[kernel].barren += 1
        self._say(f"{name_of(kernel)[:8]}: never used: {text}: {fault}")

    def _say(self, what: str) -> None:
        self.log.append(what)
        if knobs.debug() >= 1:
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
                f"kernels are tuned no further while this program trains: {told}. Training goes on with what was "
                "found; EINSMITH_DEBUG=1 shows what was tried",
                EinsmithWarning, stacklevel=2,
            )  # fmt: skip

    def end(self, why: str) -> None:
        """Explores no further. What won and was not yet installed is with the next step, if there is one."""
        if not self.over:
            self.over, trial = why, self._trial
            won = [name_of(k)[:8] for k in [*trial.won]] if trial is not None else []
            more = f", and {', '.join(won)}, which are not confirmed" if won else ""
            told = f"{self.tried} configurations tried, {len(self.kept)} kernels are faster{more}"
            self._say(f"exploring ends: {why}; {told}")
        self.close()

    def close(self) -> None:
        """Ends the threads and the other process."""
        close(self._pid, self._stop, self._workshop, self._threads, self._found, self._recording)
