"""Dynamic mode: a program's kernels are tuned while it trains.

An exploring thread asks for configurations to try, a code-generating thread has them compiled and vetted (a bounded
queue between them), both in a process that gets what time the processors have left (`backends.backend.Workshop`); the
thread that trains tries them, several kernels at a time: in one step they run beside the program's own kernels, into
memory of their own, and what differs is dropped; then steps alternate between the program as it is and with them, and
each kernel is timed. What is faster with confidence stays, and is recorded. Every step is a training step on the user's
data, whichever of the programs runs it.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, log
from statistics import median
from typing import Any

import numpy as np

from einsmith import knobs, locks
from einsmith.backends.backend import Workshop
from einsmith.compile import FINITE, Executable
from einsmith.decisions import name_of
from einsmith.errors import EinsmithError
from einsmith.plan.kernel import Kernel, Rows

LOST = 0.02
"""The part of the time of all steps that trying may cost."""
PROFILED = 3
"""Steps that are timed before anything is tried."""
TOGETHER = 6
"""Kernels that are tried at once."""
FEWEST, MOST = 8, 14
"""Pairs of steps after which a configuration may stay, and after which it is told apart or dropped."""
GAIN = 0.98
"""What a configuration must take of the present one's time, at most: less is lost in the noise of a program."""
SLOW = 1.25
"""How many times the present one's time two runs may take before a configuration is dropped at once."""
WORTH = 0.004
"""The part of a step below which a kernel is left alone."""
PEAK = 0.95
"""A kernel that does this part of what its bytes and operations allow is left alone."""
BARREN = 12
"""Configurations of a kernel in a row that bring nothing, after which it is left alone."""
UNSTEADY = 0.25
"""The spread of equal steps from which on the machine is too busy to tell anything."""
BUSY = 4
"""Trials in a row on a machine that is too busy, after which exploring ends."""
DUTY, OWN_DUTY = 0.5, 0.01
"""The part of a processor's time that the other process may take of what is left, and these threads of the step's."""
BESIDE_BYTES = 256 << 20
"""Memory of results that are compared."""
LOOK = 0.05
"""Seconds between two looks of a thread that waits."""
LEFT_SECONDS = 0.2
"""Seconds that a closing program waits for its threads."""

SUSPENDED = 100.0
"""How many times as long as usual a step takes at most; in one that takes longer the machine did something else."""

Seconds = dict[Kernel | Rows, float]
Kept = tuple[Kernel | Rows, str, float, float, float]
"""What a workshop is told of a configuration that stays (`Workshop.keep`)."""
Step = tuple[int, list[np.ndarray]]


class Flag:
    """What threads look at now and then: waiting for it needs no lock, which a fork could leave held."""

    up = False


@dataclass
class Known:
    """What is known of a kernel. seconds: of a run of it as it is now; runs: in a step; part: what it takes of the time
    that it took as it was at first; barren: configurations in a row that brought nothing; over: why it is left alone.
    """

    seconds: float
    runs: int
    part: float = 1.0
    barren: int = 0
    over: str = ""


@dataclass
class Trial:
    """Configurations of some kernels that are tried: `beside` and `other` are the program with them beside its own
    kernels, and with them. ratios: of each kernel's time in pairs of steps; steps: the seconds of the pairs' first."""

    texts: dict[Kernel | Rows, str]
    beside: Executable | None
    other: Executable
    ratios: dict[Kernel | Rows, list[float]] = field(default_factory=dict)
    steps: list[float] = field(default_factory=list)
    first: Seconds = field(default_factory=dict)
    """Of the pair whose second step comes next."""


def told_apart(ratios: Sequence[float]) -> bool | None:
    """Whether the other one is faster (True), or is to be dropped (False), by the ratios of their times in pairs of
    steps; None while that is open. Faster: by GAIN in the median, and in all pairs but one of eight."""
    n = len(ratios)
    if n >= 2 and min(ratios) > SLOW:
        return False
    if n < FEWEST:
        return False if n >= 5 and sorted(ratios)[1] > 1 else None
    slower = sum(r >= 1 for r in ratios)
    if median(ratios) <= GAIN and slower <= n // 8:
        return True
    return False if n >= MOST or median(ratios) > 1 else None


class Exploration:
    """One program that is explored. Its thread calls `step` in the place of the program; what stays, the program is
    from the next step on. log: what was found, in words, faults of configurations among it; over: why it has ended."""

    def __init__(self, run: Executable, workshop: Workshop, seconds: float = inf):
        self.run, self._workshop = run, workshop
        self.log: list[str] = []
        self.over = ""
        self.kernels: dict[Kernel | Rows, Known] = {}
        self.tried = 0
        self.kept: dict[Kernel | Rows, str] = {}
        self._end = time.monotonic() + seconds
        self._profiled: list[Seconds] = []
        self._trial: Trial | None = None
        self._total = self._extra = 0.0
        self._plain: deque[float] = deque(maxlen=21)
        self._found: queue.SimpleQueue[Kept] = queue.SimpleQueue()
        self._unsteady = 0
        self._flying: set[Kernel | Rows] = set()
        self._queue: queue.Queue[tuple[Kernel | Rows, str]] = queue.Queue(maxsize=TOGETHER)
        self._next: tuple[Kernel | Rows, str] | None = None
        self._ready: dict[Kernel | Rows, str] = {}
        self._recording = locks.lock()
        self._stop = Flag()
        self._pid = os.getpid()
        self._threads = [
            threading.Thread(target=_loop, args=(weakref.ref(self), name), name=f"einsmith{name}", daemon=True)
            for name in ("_propose", "_generate")
        ]
        weakref.finalize(self, _close, self._pid, self._stop, workshop, self._threads, self._found, self._recording)

    # -- the training thread

    def step(self, arrays: Sequence[np.ndarray]) -> Step:
        """A run of the program, as it is or with what is tried. Returns and raises what that does."""
        if self.over or os.getpid() != self._pid:
            if not self._found.empty() and os.getpid() == self._pid:
                self._record()
            return self.run(arrays)
        start = time.perf_counter()
        plain, out = self._step(arrays)
        seconds = time.perf_counter() - start
        self._total += seconds
        if plain:
            self._plain.append(seconds)
        else:
            usual = median(self._plain)
            self._extra += min(seconds, SUSPENDED * usual) - usual
        if time.monotonic() > self._end:
            self.end("the time for it is over")
        return out

    def _step(self, arrays: Sequence[np.ndarray]) -> tuple[bool, Step]:
        """Whether the step was a plain one, and what came of it."""
        if len(self._profiled) < PROFILED:
            return True, self._profile(arrays)
        trial = self._trial
        if trial is None or (self._extra > LOST * self._total and not trial.first):
            return True, self.run(arrays)
        if trial.beside is not None:
            return False, self._compare(trial, trial.beside, arrays)
        if not trial.first:
            status, outputs, seconds = self.run.timed(arrays)
            if status != FINITE:  # else not all kernels have run
                trial.first = of_kernels(self.run, seconds)
            return True, (status, outputs)
        status, outputs, seconds = trial.other.timed(arrays)
        if status != FINITE:
            self._aside(self._pair, trial, of_kernels(trial.other, seconds))
        trial.first = {}
        return False, (status, outputs)

    def _profile(self, arrays: Sequence[np.ndarray]) -> Step:
        status, outputs, seconds = self.run.timed(arrays)
        if status != FINITE:
            self._profiled.append(of_kernels(self.run, seconds))
        if len(self._profiled) == PROFILED:
            self._aside(self._begin, {k: min(p[k] for p in self._profiled) for k in self._profiled[0]})
        return status, outputs

    def _aside(self, work: Callable[..., None], *arguments: object) -> None:
        """What is no part of a step: where it fails exploring ends, and the step has been made all the same."""
        try:
            work(*arguments)
        except Exception as e:
            self.end(f"{type(e).__name__}: {e}")

    def _begin(self, found: Seconds) -> None:
        runs: dict[Kernel | Rows, int] = {}
        for call, turns in zip(self.run.calls, self.run.turns, strict=True):
            runs[call.kernel] = runs.get(call.kernel, 0) + turns
        whole = sum(found.values())
        for call, made in zip(self.run.calls, self.run.kernels, strict=True):
            k = call.kernel
            known = self.kernels[k] = Known(found[k] / runs[k], runs[k])
            if made.decision and not made.tuned:
                known.over = "it is decided about by hand"
            elif found[k] < WORTH * whole:
                known.over = "it takes next to nothing"
            elif found[k] * PEAK < self._workshop.least(k) * runs[k]:
                known.over = "it takes what its bytes and operations take at the least"
            else:
                self._tell(k, made.decision, known.seconds)
        for thread in self._threads:
            thread.start()

    def _compare(self, trial: Trial, beside: Executable, arrays: Sequence[np.ndarray]) -> Step:
        """A step in which what is tried runs beside the program's kernels; what differs is dropped."""
        for x in beside.beside.values():
            x.clear()
        status, outputs = beside(arrays)
        trial.beside = None
        if status == FINITE:  # infinities agree with anything
            self._close(trial)
        else:
            self._aside(self._judge, trial, beside)
        return status, outputs

    def _judge(self, trial: Trial, beside: Executable) -> None:
        wrong = {k: fault for k, x in beside.beside.items() if (fault := x.difference())}
        for kernel, fault in wrong.items():
            self._fault(kernel, trial.texts[kernel], f"in a step, {fault}")
        self._drop(trial, wrong)

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
        won = {k: trial.texts[k] for k, x in told.items() if x}
        if won:
            self._keep(trial, won)
        self._drop(trial, [*lost, *won])
        if self._unsteady >= BUSY:
            self.end("the machine is too busy")

    def _keep(self, trial: Trial, won: Mapping[Kernel | Rows, str]) -> None:
        """The program is from now on made of these configurations."""
        self.run.become(self.run.with_decisions(won))
        for k, text in won.items():
            known, ratio = self.kernels[k], median(trial.ratios[k])
            known.part *= ratio
            known.seconds *= ratio
            known.barren = 0
            self.kept[k] = text
            self._tell(k, text, known.seconds)
            self._found.put((k, text, known.seconds, spread(trial.ratios[k]), known.seconds / known.part))
            self._say(f"{name_of(k)[:8]}: {ratio:.3f} of the time with {text}")

    def _drop(self, trial: Trial, decided: Sequence[Kernel | Rows] | Mapping[Kernel | Rows, str]) -> None:
        """Goes on without kernels that are decided about."""
        if not decided:
            return
        for k in decided:
            trial.texts.pop(k, None)
            self._flying.discard(k)
        if trial.texts:
            trial.other = self.run.with_decisions(trial.texts)
        else:
            self._close(trial)

    def _close(self, trial: Trial) -> None:
        for k in trial.texts:
            self._flying.discard(k)
        self._trial = None

    # -- the exploring and the code-generating thread: what each does again and again. Nothing waits for long, so that a
    # program which nobody has any more is not kept

    def _propose(self) -> None:
        """Puts a configuration that is to be tried into the queue."""
        if self._next is None:
            kernel = self._worthiest()
            if kernel is None:
                if not self._flying:
                    self.end("nothing is left to gain")
                self._wait(LOOK)
                return
            found = self._workshop.propose(kernel)
            if self._stop.up:
                return
            if found.text is None:
                self.kernels[kernel].over = found.fault or "nothing is left to try"
                return
            self._flying.add(kernel)
            self._next = kernel, found.text
            self._rest(found.seconds, DUTY)
        try:
            self._queue.put(self._next, timeout=0.1)
            self._next = None
        except queue.Full:
            pass

    def _worthiest(self) -> Kernel | Rows | None:
        """The kernel whose next configuration may gain most; None where all are being tried or left alone."""
        for known in self.kernels.values():
            if known.barren >= BARREN:
                known.over = known.over or f"{BARREN} configurations in a row brought nothing"
        open_ = {k: x for k, x in self.kernels.items() if not x.over and k not in self._flying}
        free = {k: x.seconds * x.runs * 0.8**x.barren for k, x in open_.items()}
        return max(free, key=free.__getitem__) if free else None

    def _generate(self) -> None:
        """Has a configuration compiled and vetted; of some kernels together, hands them to the training thread."""
        size = 2 * sum(b.nbytes for k in self._ready for b in k.buffers)
        if len(self._ready) < TOGETHER and size < BESIDE_BYTES:
            try:
                self._vet(*self._queue.get(timeout=0.2))
                return
            except queue.Empty:
                if not self._ready:
                    return
        if self._trial is None:
            self._hand_over(self._ready)
            self._ready = {}
        else:
            self._wait(LOOK)

    def _vet(self, kernel: Kernel | Rows, text: str) -> None:
        vetted = self._workshop.vet(kernel, text)
        if self._stop.up:  # the process was ended
            return
        self.tried += 1
        if vetted.fault:
            self._fault(kernel, text, vetted.fault)
            self._flying.discard(kernel)
        else:
            self._ready[kernel] = text
        self._rest(vetted.seconds, DUTY)

    def _record(self) -> None:
        """Records what was found: the training thread does not wait for the disk."""
        _record(self._workshop, self._found, self._recording)

    def _hand_over(self, ready: dict[Kernel | Rows, str]) -> None:
        begun = time.thread_time()
        try:
            trial = Trial(ready, self.run.with_decisions(ready, beside=True), self.run.with_decisions(ready))
        except EinsmithError as e:  # more memory than there is, or may be
            for k, text in ready.items():
                self._fault(k, text, str(e))
                self._flying.discard(k)
        else:
            if not self._stop.up:
                self._trial = trial
        self._rest(time.thread_time() - begun, OWN_DUTY)

    def _rest(self, seconds: float, duty: float) -> None:
        """Waits for so long that work of so many seconds was this part of the time."""
        self._wait(min(seconds * (1 / duty - 1), max(0.0, self._end - time.monotonic())))

    def _wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not self._stop.up and (left := end - time.monotonic()) > 0:
            time.sleep(min(LOOK, left))

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

    def end(self, why: str) -> None:
        """Explores no further; the program stays as it is now."""
        if not self.over:
            self.over = why
            self._trial = None
            self._say(f"exploring ends: {why}; {self.tried} configurations tried, {len(self.kept)} kernels are faster")
        self.close()

    def close(self) -> None:
        """Ends the threads and the other process."""
        _close(self._pid, self._stop, self._workshop, self._threads, self._found, self._recording)


def _loop(ref: weakref.ref[Exploration], name: str) -> None:
    """What a thread does until its exploration ends, or nobody has it any more."""
    while (own := ref()) is not None and not own._stop.up:
        try:
            own._record()
            if time.monotonic() > own._end:
                own.end("the time for it is over")
            else:
                getattr(own, name)()
        except Exception as e:  # the training goes on
            if not own._stop.up:
                own.end(f"{type(e).__name__}: {e}")
        del own


def _close(
    pid: int, stop: Flag, workshop: Workshop, threads: Sequence[threading.Thread], found: queue.SimpleQueue[Kept],
    recording: Any,
) -> None:  # fmt: skip
    if os.getpid() != pid:  # a forked child has neither threads nor the process
        workshop.leave()
        return
    stop.up = True
    workshop.close()
    for thread in threads:
        if thread.is_alive() and thread is not threading.current_thread():
            thread.join(LEFT_SECONDS)
    _record(workshop, found, recording)


def _record(workshop: Workshop, found: queue.SimpleQueue[Kept], recording: Any) -> None:
    """Records what was found, in the order in which it was."""
    with recording:
        while not found.empty():
            workshop.keep(*found.get())


class Explorer:
    """Explores the programs of a training step, one at a time: two would take each other's processors."""

    def __init__(self) -> None:
        self._now: weakref.ref[Exploration] | None = None

    def begin(
        self, run: Executable, threads: int, seconds: float, programs: Sequence[Executable]
    ) -> Exploration | None:
        """Explores a program, unless another one of `programs`, which are all that there are, is explored still."""
        now = None if self._now is None else self._now()
        if now is not None and not now.over:
            if any(other is now.run for other in programs):
                return None
            now.end("its program is used no more")
        found = Exploration(run, run.backend.workshop(run.target, threads), seconds)
        self._now = weakref.ref(found)
        return found


def of_kernels(run: Executable, seconds: Sequence[float]) -> Seconds:
    """Seconds of each kernel in all of its calls, from those of each call."""
    out: Seconds = {}
    for call, x in zip(run.calls, seconds, strict=True):
        out[call.kernel] = out.get(call.kernel, 0.0) + x
    return out


def spread(values: Sequence[float]) -> float:
    """The median distance from the median, as a part of it."""
    middle = median(values)
    return median(abs(log(v / middle)) if v > 0 and middle > 0 else inf for v in values)
