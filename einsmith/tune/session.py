"""Tuning the kernels of a program: which of them is searched next, and what is kept.

Every visit to a kernel measures one generation of candidates against the model's choice, in turns. The next visit goes
where most is left to gain: the part of the step that a kernel takes beyond what its bytes and operations take at the
least, the less the more visits in a row brought nothing. What is faster is compared with the evaluator, and raced once
more, before it is kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from statistics import median
from typing import Any, NamedTuple

from einsmith.kernels import autoconfig
from einsmith.plan.footprint import touched
from einsmith.plan.kernel import Kernel, Rows
from einsmith.target.facts import KEPT, Target
from einsmith.tune.bench import CHOICE, BenchProcess, Failed, Lost
from einsmith.tune.genetic import Candidate, Search
from einsmith.tune.race import bounds, paired

GENERATION = 4
"""Candidates that race at once with the choice."""
VISIT = 2
"""Generations of a visit."""
MOST = 100
"""Candidates of one kernel, at most."""
RACE, FINAL = 0.3, 1.0
"""Seconds of a race at most, and of the one that decides."""
GAIN = 0.98
"""What a configuration must take of the choice's time, at most, to be kept: less is lost in the noise of a program."""
PEAK = 0.95
"""A kernel that does this part of what its bytes and operations allow is left alone."""
LEAST = 0.002
"""The part of the program's time below which nothing is worth a visit."""
PATIENCE = 3
"""Times that a race that decides is repeated where the machine is busy."""
DECIDED = 2
"""Candidates of a visit that a race of their own decides about, at most."""
UNKNOWN = 0.3
"""The part of its predicted time that a kernel which was not measured yet is held to lose."""


class Part(NamedTuple):
    """A kernel of a program, and how often a run of the program runs it."""

    kernel: Kernel | Rows
    turns: int = 1


@dataclass
class Found:
    """What is known of one kernel: seconds of the model's choice (`prior`) and of the best configuration, which is the
    choice where `best` is None; spread: the bounds of the best one's median over the choice's; tried: candidates that
    were measured or cannot run; faults: those that crash, hang or are wrong, and how; busy: what else the machine did
    when that kept a faster one from being told apart."""

    kernel: Kernel | Rows
    turns: int
    choice: Candidate
    prior: float
    seconds: float
    best: Candidate | None = None
    spread: tuple[float, float] = (1.0, 1.0)
    tried: int = 0
    faults: list[tuple[Candidate, str]] = field(default_factory=list)
    busy: str = ""
    over: str = ""
    """Why it is not searched any further."""
    former: Any = None
    """What was recorded before, in whose place the best one was put."""


Tell = Callable[[Found, Candidate, float], None]
"""Told of every candidate that was measured: what is known of its kernel, and its seconds (infinity: it cannot run)."""
First = Callable[[Kernel | Rows], Sequence[Candidate]]
"""What others have found for a kernel, as first guesses."""


def least(kernel: Kernel | Rows, target: Target) -> float:
    """Seconds that its bytes take at the least."""
    if isinstance(kernel, Rows):
        moved = sum(b.nbytes for b in kernel.buffers)
    else:
        moved = sum(touched(kernel))
    return target.seconds_for_bytes(moved, moved, target.cores)


class KernelSearch:
    """The search over one kernel. Candidates are told to it in seconds that stand in the same proportion to the
    choice's first measured ones as they did in their own race: the machine is not equally fast all the time. make: the
    search (`genetic.Search`) of a kernel, a target, a seed and first guesses."""

    def __init__(self, part: Part, target: Target, make: Callable[..., Search] = Search):
        self.make = make
        self.choice = autoconfig.choose(part.kernel, target)
        own = Candidate(self.choice.pattern.name, self.choice.config)
        self.found = Found(part.kernel, part.turns, own, self.choice.cost.seconds, self.choice.cost.seconds)
        self.target = target
        self.floor = max(least(part.kernel, target), self.choice.pattern.bound(part.kernel, target))
        self.search: Search | None = None
        self.barren = 0
        """Visits since one that brought something."""
        self.number = CHOICE
        self._decided: set[Candidate] = set()

    @property
    def worth(self) -> float:
        """Seconds of a run of the program that another visit may bring."""
        f = self.found
        if f.over:
            return 0.0
        if self.search is None:
            return f.turns * max(f.seconds - self.floor, UNKNOWN * f.seconds)
        return f.turns * (f.seconds - self.floor) * 0.5**self.barren

    def visit(self, bench: BenchProcess, threads: int, end: float, tell: Tell, first: First) -> None:
        """Measures some candidates, and keeps what is faster. Raises Lost or Failed where the choice itself cannot be
        measured."""
        f, before = self.found, self.found.seconds
        if self.search is None:
            seed = int.from_bytes(f.kernel.digest[:4], "little")
            self.search = self.make(f.kernel, self.target, seed, first(f.kernel))
        bench.begin(f.kernel, self.target, threads, self.target.kept < KEPT)
        self._anchor(bench)
        for n in range(VISIT):
            if (n and time.monotonic() > end) or not self._generation(bench, self.search, tell):
                break
        self._decide(bench, self.search, tell)
        if not f.over and f.tried >= MOST:
            f.over = f"{MOST} candidates were tried"
        if not f.over and f.seconds * PEAK <= self.floor:
            f.over = f"it takes what its bytes and operations take, within {1 - PEAK:.0%}"
        self.barren = 0 if f.seconds < GAIN * before else self.barren + 1

    def _anchor(self, bench: BenchProcess) -> None:
        """Prepares the choice, with which everything is compared."""
        if reason := bench.prepare(CHOICE, self.found.choice):
            raise Failed(reason)

    def _generation(self, bench: BenchProcess, search: Search, tell: Tell) -> bool:
        """Races some candidates with the choice; whether there were any."""
        f, ready = self.found, dict[int, Candidate]()
        while len(ready) < GENERATION and f.tried < MOST:
            candidate = search.propose()
            if candidate is None:
                f.over = "everything that can be was tried"
                break
            if candidate == f.choice:
                continue  # which all others race with
            f.tried += 1
            number = self._fit(bench, search, candidate, tell)
            if number is not None:
                ready[number] = candidate
        ready = {n: c for n, c in ready.items() if bench.ready(n)}
        found = self._raced(bench, search, ready, RACE)[0]
        for n, ratios in found.items():
            search.tell(ready[n], median(ratios) * f.prior)
            tell(f, ready[n], median(ratios) * f.prior)
        bench.drop(list(ready))
        return bool(found)

    def _fit(self, bench: BenchProcess, search: Search, candidate: Candidate, tell: Tell) -> int | None:
        """The number of a candidate that can be compiled and run, else None. Where the process dies of it, those that
        were prepared before are lost with it."""
        self.number += 1
        try:
            reason = bench.prepare(self.number, candidate)
        except (Lost, Failed) as e:
            reason = str(e)
            self.found.faults.append((candidate, reason))
            self._anchor(bench)
        if not reason:
            return self.number
        search.tell(candidate, inf)
        tell(self.found, candidate, inf)
        return None

    def _raced(
        self, bench: BenchProcess, search: Search, ready: dict[int, Candidate], seconds: float, whole: bool = False
    ) -> tuple[dict[int, list[float]], str]:
        """Of every candidate the times of paired runs over the choice's, in order; and what disturbed them."""
        if not ready:
            return {}, ""
        f = self.found
        try:
            times, disturbed = bench.race([CHOICE, *ready], seconds, whole, f.prior)
        except Lost as e:  # each of them ran once before; which one it was is not told
            for c in ready.values():
                f.faults.append((c, f"in a race: {e}"))
                search.tell(c, inf)
            self._anchor(bench)
            return {}, ""
        if f.choice not in search.measured:
            f.prior = f.seconds = median(times[0])
            search.tell(f.choice, f.prior)
        pairs = zip(ready, times[1:], strict=True)
        return {n: paired(times[0], own) for n, own in pairs}, disturbed

    def _decide(self, bench: BenchProcess, search: Search, tell: Tell) -> None:
        """Keeps what is faster than all before it, right, and told apart from the choice."""
        f = self.found
        known = sorted((s, n, c) for n, (c, s) in enumerate(search.measured.items()) if c not in self._decided)
        for s, _, candidate in known[:DECIDED]:
            if s >= GAIN * f.prior or s >= f.seconds or candidate == f.choice:
                return
            number = self._fit(bench, search, candidate, tell)
            if number is None:
                continue
            for _ in range(PATIENCE):
                found, f.busy = self._raced(bench, search, {number: candidate}, FINAL, True)
                if not f.busy:
                    break
            if number not in found or f.busy:
                continue
            self._decided.add(candidate)
            low, high = bounds(found[number])
            seconds = median(found[number]) * f.prior
            search.tell(candidate, seconds)
            if high < 1 and seconds < min(f.seconds, GAIN * f.prior):
                wrong = self._fault_of(bench, number)
                if wrong:
                    f.faults.append((candidate, wrong))
                    search.tell(candidate, inf)
                    seconds = inf
                else:
                    f.best, f.seconds, f.spread = candidate, seconds, (low, high)
            tell(f, candidate, seconds)
            bench.drop([number])

    def _fault_of(self, bench: BenchProcess, number: int) -> str:
        try:
            return bench.vet(number, self.found.tried)
        except (Lost, Failed) as e:
            self._anchor(bench)
            return str(e)


def tune(
    parts: Sequence[Part], target: Target, threads: int, seconds: float, tell: Tell = lambda *_: None,
    first: First = lambda _: (), keep: Callable[[Found], None] = lambda _: None,
) -> list[Found]:  # fmt: skip
    """Searches the kernels of a program for so many seconds, or until nothing is left to gain. keep: called for each
    kernel whenever a faster configuration of it is found, so that an end at any moment loses at most the last one.
    """
    turns: dict[Kernel | Rows, int] = {}
    for part in parts:
        turns[part.kernel] = turns.get(part.kernel, 0) + part.turns
    every = [KernelSearch(Part(k, n), target) for k, n in turns.items()]
    end = time.monotonic() + seconds
    with BenchProcess() as bench:
        while every and time.monotonic() < end:
            next_one = max(every, key=lambda k: k.worth)
            f = next_one.found
            if next_one.worth <= LEAST * sum(k.found.turns * k.found.seconds for k in every):
                break
            best = f.best
            try:
                next_one.visit(bench, threads, end, tell, first)
            except (Lost, Failed) as e:
                f.over = f"the model's choice cannot be measured: {e}"
            if f.best != best:
                keep(f)
    return [k.found for k in every]
