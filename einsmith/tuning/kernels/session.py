"""Tune the kernels of a program: decide which kernel is searched next, and which configurations are kept.

Every visit to a kernel measures one generation of candidates against the model's choice, in alternating runs. The next
visit goes to the kernel with most to gain: the part of the step that it takes beyond the least time for its bytes and
operations, reduced for every visit in a row that brought nothing. A faster candidate is compared with the evaluator,
and raced once more, before it is kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from contextlib import suppress
from math import inf
from statistics import median
from typing import Any, Protocol

from einsmith.base.errors import ArgumentError
from einsmith.base.workers import Failed, Lost
from einsmith.cost.facts import REUSED_L3_FRACTION, Target
from einsmith.kernels import autoconfig
from einsmith.schedule.footprint import bytes_by_buffer
from einsmith.schedule.kernel import Kernel, MemberKernel
from einsmith.tuning.kernels import farm
from einsmith.tuning.kernels.bench import CHOICE, BenchProcess, MakeRunner
from einsmith.tuning.kernels.genetic import Candidate, Search
from einsmith.tuning.kernels.measure import HostRunner
from einsmith.tuning.kernels.tuner import THOROUGH, Effort, Part, SearchResult, Tell
from einsmith.tuning.kernels.verdict import MAX_KEPT_RATIO, bounds, judge, pair_ratios

MAX_BOUND_SHARE = 0.95
"""Ratio of a kernel's roofline bound to its time (both in seconds) from which on the kernel is not searched."""
MIN_GAIN_SHARE = 0.002
"""Least expected gain of a visit, as a fraction of the program's time; below it the search ends."""
UNMEASURED_GAIN_SHARE = 0.3
"""Fraction of its predicted time that a kernel which is not measured yet is expected to save."""


FirstGuesses = Callable[[Kernel], Sequence[Candidate]]
"""Function that returns the first guesses for a kernel, which others have found."""


def least(kernel: Kernel, target: Target) -> float:
    """Return the fewest seconds in which a kernel's bytes can be moved."""
    if isinstance(kernel, MemberKernel):
        moved = sum(b.nbytes for b in kernel.buffers)
    else:
        moved = sum(bytes_by_buffer(kernel))
    return target.seconds_for_bytes(moved, moved, target.cores)


class KernelSearch:
    """The tuning of one kernel: its `genetic.Search`, its races and their results.

    Each candidate's seconds are scaled by its race: the ratio to the choice in that race times the choice's first
    measured seconds, as the machine is not equally fast all the time. make: function that returns the search for a
    kernel, a target, a seed and first guesses.

    A search can be pickled, and continues in another process with its measurements.
    """

    def __init__(self, part: Part, target: Target, make: Callable[..., Search] = Search, effort: Effort | None = None):
        self.make, self.effort = make, effort or THOROUGH
        choice = autoconfig.choose(part.kernel, target)
        candidate = Candidate(choice.pattern.name, choice.config)
        self.result = SearchResult(part.kernel, part.turns, candidate, choice.cost.seconds, choice.cost.seconds)
        self.target = target
        self.floor = max(least(part.kernel, target), choice.pattern.bound(part.kernel, target))
        self.search: Search | None = None
        self.measured: dict[Candidate, float] = {}
        """Seconds of each candidate that was measured in another process."""
        self.visits_without_gain = 0
        """Number of visits since the last one that brought a gain."""
        self.number = CHOICE
        self._decided: set[Candidate] = set()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "search": None, "measured": self.seconds_by_candidate}

    @property
    def seconds_by_candidate(self) -> dict[Candidate, float]:
        """Return the seconds of every candidate measured so far; infinity for one that cannot run."""
        return self.measured if self.search is None else self.search.measured

    @property
    def expected_gain(self) -> float:
        """Return the seconds that another visit may save in a run of the program."""
        result = self.result
        if result.over:
            return 0.0
        if self.search is None and not self.measured:
            return result.turns * max(result.seconds - self.floor, UNMEASURED_GAIN_SHARE * result.seconds)
        return result.turns * (result.seconds - self.floor) * 0.5**self.visits_without_gain

    def visit(self, bench: BenchProcess, threads: int, end: float, tell: Tell, first: FirstGuesses) -> None:
        """Measure some candidates, and keep a faster one. Raises Lost or Failed where the choice itself cannot be
        measured."""
        result, before = self.result, self.result.seconds
        if self.search is None:
            seed = int.from_bytes(result.kernel.digest[:4], "little") + len(self.measured)
            self.search = self.make(result.kernel, self.target, seed, first(result.kernel))
            for candidate, seconds in self.measured.items():
                self.search.tell(candidate, seconds)
        bench.begin(result.kernel, self.target, threads, self.target.kept < REUSED_L3_FRACTION)
        self._prepare_choice(bench)
        for n in range(self.effort.generations):
            if (n and time.monotonic() > end) or not self._race_generation(bench, self.search, tell):
                break
        self._decide(bench, self.search, tell)
        if not result.over and result.tried >= self.effort.candidates:
            result.over = f"{self.effort.candidates} candidates were tried"
        if not result.over and result.seconds * MAX_BOUND_SHARE <= self.floor:
            result.over = f"it is within {1 - MAX_BOUND_SHARE:.0%} of its roofline bound"
        self.visits_without_gain = 0 if result.seconds < MAX_KEPT_RATIO * before else self.visits_without_gain + 1

    def _prepare_choice(self, bench: BenchProcess) -> None:
        """Prepare the choice, with which every candidate is compared."""
        if reason := bench.prepare(CHOICE, self.result.choice):
            raise Failed(reason)

    def _race_generation(self, bench: BenchProcess, search: Search, tell: Tell) -> bool:
        """Race some candidates with the choice; return whether there were any."""
        result, ready, proposed = self.result, dict[int, Candidate](), list[Candidate]()
        while len(ready) < self.effort.generation and (proposed or result.tried < self.effort.candidates):
            if not proposed:
                proposed = self._propose(search, self.effort.generation - len(ready))
                if not proposed:
                    result.over = "all configurations were tried"
                    break
                with suppress(Lost, Failed):  # the candidate at fault shows when it is prepared
                    bench.compile_ahead(proposed)
                if not bench.ready(CHOICE):
                    self._prepare_choice(bench)
            candidate = proposed.pop(0)
            number = self._prepare(bench, search, candidate, tell)
            if number is not None:
                ready[number] = candidate
        ready = {n: c for n, c in ready.items() if bench.ready(n)}
        ratios_by_number = self._race(bench, search, ready, self.effort.race_seconds)[0]
        for n, ratios in ratios_by_number.items():
            search.tell(ready[n], median(ratios) * result.prior)
            tell(result, ready[n], median(ratios) * result.prior)
        bench.drop(list(ready))
        return bool(ratios_by_number)

    def _propose(self, search: Search, most: int) -> list[Candidate]:
        """Return some candidates that were not tried before, without the choice, which races with all others."""
        out: list[Candidate] = []
        while len(out) < most and self.result.tried < self.effort.candidates and (c := search.propose()) is not None:
            if c != self.result.choice:
                self.result.tried += 1
                out.append(c)
        return out

    def _prepare(self, bench: BenchProcess, search: Search, candidate: Candidate, tell: Tell) -> int | None:
        """Prepare a candidate; return its number, or None where it cannot be compiled and run. Where the process dies
        of it, the candidates prepared before are lost."""
        self.number += 1
        try:
            reason = bench.prepare(self.number, candidate)
        except (Lost, Failed) as e:
            reason = str(e)
            self.result.faults.append((candidate, reason))
            self._prepare_choice(bench)
        if not reason:
            return self.number
        search.tell(candidate, inf)
        tell(self.result, candidate, inf)
        return None

    def _race(
        self, bench: BenchProcess, search: Search, ready: dict[int, Candidate], seconds: float, final: bool = False
    ) -> tuple[dict[int, list[float]], str]:
        """Race candidates with the choice; return the ascending ratios of each candidate's times to the choice's, by
        number, and what disturbed the race."""
        if not ready:
            return {}, ""
        result = self.result
        try:
            times, disturbed = bench.race([CHOICE, *ready], seconds, final, result.prior)
        except Lost as e:  # each ran once before; the one at fault is not known
            for c in ready.values():
                result.faults.append((c, f"in a race: {e}"))
                search.tell(c, inf)
            self._prepare_choice(bench)
            return {}, ""
        if result.choice not in search.measured:
            result.prior = result.seconds = median(times[0])
            search.tell(result.choice, result.prior)
        pairs = zip(ready, times[1:], strict=True)
        return {n: pair_ratios(times[0], seconds_of_candidate) for n, seconds_of_candidate in pairs}, disturbed

    def _decide(self, bench: BenchProcess, search: Search, tell: Tell) -> None:
        """Keep the fastest candidate that is faster than all before it, correct, and significantly faster than the
        choice."""
        result = self.result
        ranking = sorted((s, n, c) for n, (c, s) in enumerate(search.measured.items()) if c not in self._decided)
        for s, _, candidate in ranking[: self.effort.finalists]:
            if s >= MAX_KEPT_RATIO * result.prior or s >= result.seconds or candidate == result.choice:
                return
            number = self._prepare(bench, search, candidate, tell)
            if number is None:
                continue
            for _ in range(self.effort.final_races):
                last = {number: candidate}
                ratios_by_number, result.busy = self._race(bench, search, last, self.effort.final_seconds, True)
                if not result.busy:
                    break
            if number not in ratios_by_number or result.busy:
                continue
            self._decided.add(candidate)
            low, high = bounds(ratios_by_number[number])
            seconds = median(ratios_by_number[number]) * result.prior
            search.tell(candidate, seconds)
            if judge(ratios_by_number[number]) and seconds < result.seconds:
                fault = self._fault_of(bench, number)
                if fault:
                    result.faults.append((candidate, fault))
                    search.tell(candidate, inf)
                    seconds = inf
                else:
                    result.best, result.seconds, result.spread = candidate, seconds, (low, high)
            tell(result, candidate, seconds)
            bench.drop([number])

    def _fault_of(self, bench: BenchProcess, number: int) -> str:
        try:
            return bench.vet(number, self.result.tried)
        except (Lost, Failed) as e:
            self._prepare_choice(bench)
            return str(e)


def tune(
    parts: Sequence[Part],
    target: Target,
    threads: int,
    seconds: float,
    tell: Tell = lambda *_: None,
    first: FirstGuesses = lambda _: (),
    keep: Callable[[SearchResult], None] = lambda _: None,
    executor: Executor | None = None,
    make: MakeRunner = HostRunner,
    limit: float | None = None,
    effort: Effort | None = None,
) -> list[SearchResult]:
    """Search the kernels of a program for `seconds`, or until there is no gain left; return the state of every kernel.

    Args:
        parts: the kernels, each with the times that it runs
        target: the machine
        threads: threads that run a kernel
        seconds: time for the search
        keep: called for each kernel whenever a faster configuration of it is found, so that an end at any moment loses
            at most the last one
        tell: called with every measured candidate
        first: returns first guesses for a kernel
        executor: makes the visits on other hosts of this kind, several at once; by default they are made here
        make: as for `BenchProcess`
        limit: as for `BenchProcess`
        effort: how much is measured; by default THOROUGH
    Raises:
        ArgumentError: a worker of the executor is on a machine of another kind, or the executor takes no tasks.
    """
    turns: dict[Kernel, int] = {}
    for part in parts:
        turns[part.kernel] = turns.get(part.kernel, 0) + part.turns
    searches = [KernelSearch(Part(k, n), target, effort=effort) for k, n in turns.items()]
    end = time.monotonic() + seconds
    with BenchProcess(limit, make) as bench:
        if executor is None:
            visits: _Visits = _VisitsHere(bench, threads, end, tell, first)
        else:
            visits = _VisitsElsewhere(executor, threads, end, tell, first, make)
        under_way: dict[Future[KernelSearch], int] = {}
        best_before: dict[int, Candidate | None] = {}
        try:
            while True:
                while len(under_way) < visits.most and time.monotonic() < end:
                    number = _next_search(searches, under_way.values())
                    if number is None:
                        break
                    best_before[number] = searches[number].result.best  # a visit here happens at once
                    under_way[visits.begin(searches[number])] = number
                if not under_way:
                    return [k.result for k in searches]
                for future in wait(under_way, return_when=FIRST_COMPLETED).done:
                    number = under_way.pop(future)
                    try:
                        searches[number] = visits.end(future, searches[number])
                    except (Lost, Failed, BrokenExecutor) as e:
                        searches[number].result.over = f"the model's choice cannot be measured: {e}"
                    if searches[number].result.best != best_before[number]:
                        keep(searches[number].result)
        finally:
            for future in under_way:
                future.cancel()


def _next_search(searches: Sequence[KernelSearch], under_way: Collection[int]) -> int | None:
    """Return the number of the search with most to gain; None where too little is left."""
    free = [n for n in range(len(searches)) if n not in under_way]
    number = max(free, key=lambda n: searches[n].expected_gain, default=None)
    least_gain = MIN_GAIN_SHARE * sum(k.result.turns * k.result.seconds for k in searches)
    return None if number is None or searches[number].expected_gain <= least_gain else number


class _Visits(Protocol):
    """What makes visits to kernels; most: how many at once."""

    most: int

    def begin(self, search: KernelSearch) -> Future: ...

    def end(self, future: Future, search: KernelSearch) -> KernelSearch: ...


class _VisitsHere:
    """Visits in this process's own bench, one after the other."""

    most = 1

    def __init__(self, bench: BenchProcess, threads: int, end: float, tell: Tell, first: FirstGuesses):
        self._arguments = bench, threads, end, tell, first

    def begin(self, search: KernelSearch) -> Future[None]:
        """Visit a kernel."""
        future: Future[None] = Future()
        try:
            search.visit(*self._arguments)
            future.set_result(None)
        except (Lost, Failed) as e:
            future.set_exception(e)
        return future

    def end(self, future: Future, search: KernelSearch) -> KernelSearch:
        """Return the search after a visit. Raises Lost or Failed where the choice cannot be measured."""
        future.result()
        return search


class _VisitsElsewhere:
    """Visits that the workers of an executor make."""

    def __init__(self, executor: Executor, threads: int, end: float, tell: Tell, first: FirstGuesses, make: MakeRunner):
        self._executor, self._threads, self._end, self._tell, self._first = executor, threads, end, tell, first
        self._sender = farm.sender(make)
        self.most = farm.count_workers(executor)

    def begin(self, search: KernelSearch) -> Future[farm.Visited]:
        """Start to visit a kernel."""
        guesses = self._first(search.result.kernel)
        left = max(0.0, self._end - time.monotonic())
        try:
            return self._executor.submit(farm.visit, search, self._threads, left, guesses, self._sender)
        except RuntimeError as e:  # it was shut down, or its workers have ended
            raise ArgumentError(f"the executor takes no tasks: {e}") from e

    def end(self, future: Future[farm.Visited], search: KernelSearch) -> KernelSearch:
        """Return the search after a visit. Raises Lost, Failed or BrokenExecutor where there was none."""
        visited = future.result()
        result = visited.search.result
        result.kernel = search.result.kernel  # this process's own, which programs compare by identity
        for candidate, seconds in visited.runs:
            self._tell(result, candidate, seconds)
        return visited.search
