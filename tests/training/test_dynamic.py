"""Dynamic mode: kernels are tuned while a program trains, which neither stops it nor changes what it computes."""

from __future__ import annotations

import gc
import os
import random
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from math import exp, inf
from typing import Any

import numpy as np
import pytest

import einsmith as es
from einsmith.api.tracing import trace_call
from einsmith.base.errors import ArgumentError
from einsmith.cost.facts import Target
from einsmith.driver import cpu
from einsmith.driver.bound_program import BoundProgram
from einsmith.driver.executable import Executable
from einsmith.kernels import autoconfig
from einsmith.runtime.comparison import Comparison
from einsmith.schedule.kernel import Kernel
from einsmith.training.compiler import ProgramSearch
from einsmith.tuning.kernels import database, records, workshop
from einsmith.tuning.kernels.decisions import format_choice
from einsmith.tuning.kernels.model_error import ModelError, Win
from einsmith.tuning.kernels.tuner import Answer
from einsmith.tuning.programs import dynamic
from einsmith.tuning.programs.budget import Budget
from einsmith.tuning.programs.dynamic import Exploration, KernelRecord
from tests.caches import CHOICES, CODE, forget
from tests.tuning.planted import FAULTS, SHAPE, Planted


@pytest.fixture(autouse=True)
def store(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("EINSMITH_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(database, "_unusable", {})
    monkeypatch.setattr(workshop.WorkshopProcess, "is_low", False)  # tests leave it no processor
    forget(CODE)


def network() -> es.nn.Module:
    es.manual_seed(0)
    return es.nn.Sequential(
        es.nn.Conv2d(3, 4, 3), es.nn.ReLU(), es.nn.Flatten(), es.nn.Linear(4 * 6 * 6, 10), es.nn.Tanh()
    )


RNG = np.random.default_rng(0)
BATCH = RNG.standard_normal((16, 3, 8, 8), np.float32), RNG.integers(0, 10, 16)


def step(mode: str = "static", **options: Any) -> es.TrainStep:
    optimizer = es.optim.SGD(lr=1e-4, momentum=0.9)
    return es.TrainStep(network(), es.functional.cross_entropy, optimizer, mode=mode, threads=1, **options)


def exploration(made: es.TrainStep) -> Exploration:
    (run,) = made.compiler.programs.values()
    return run.note.exploration


class Simulated:
    """A workshop that proposes the model's alternatives, each of which is expected to save a tenth, and vets none of
    them."""

    def __init__(self) -> None:
        self.reports: list[tuple[Kernel, str, float]] = []
        self.records: list[tuple[Any, ...]] = []
        self.searches: list[tuple[Kernel, float]] = []
        self.vet: Callable[[Kernel, str], str] = lambda kernel, text: ""
        self.saving: Callable[[Kernel], float] = lambda kernel: 0.1
        self.wins: dict[Kernel, Win] = {}
        self.seconds = inf
        self.is_closed = self.is_paused = self.is_prepared = self.is_working = False
        self.left: dict[Kernel, Iterator[str]] = {}
        self.most = 2
        self._answer: Answer | None = None

    def _alternatives(self, kernel: Kernel, target: Target) -> Iterator[str]:
        for name, config, _ in autoconfig.choose(kernel, target).alternatives[1 : 1 + self.most]:
            yield format_choice(autoconfig.pattern_of(name), config)

    def search(self, kernel: Kernel, text: str, target: Target, threads: int, error: ModelError, worth: float) -> None:
        self.searches.append((kernel, worth))
        left = self.left.setdefault(kernel, self._alternatives(kernel, target))
        saving = self.saving(kernel)
        proposed = next(left, None) if saving >= worth else None
        fault = "" if proposed is None else self.vet(kernel, proposed)
        has_none = proposed is None and saving >= worth
        self._answer = Answer(kernel, proposed, fault, 0.0 if has_none else saving, 1e-5)

    def poll_answer(self) -> Answer | None:
        answer, self._answer = self._answer, None
        return answer

    def tell(self, kernel: Kernel, text: str, seconds: float) -> None:
        self.reports.append((kernel, text, seconds))

    def find_win(self, kernel: Kernel, target: Target) -> Win | None:
        return self.wins.get(kernel)

    def prepare(self) -> None:
        self.is_prepared = True

    def pause(self, is_paused: bool) -> None:
        self.is_paused = is_paused

    def keep(self, *record: Any) -> None:
        self.records.append(record)

    def close(self) -> None:
        self.is_closed = True

    def leave(self) -> None:
        pass


@pytest.fixture
def simulated(monkeypatch) -> Simulated:
    """Workshops are this one, which compiles nothing; trying may cost as much as it likes."""
    workshop = Simulated()
    monkeypatch.setattr(type(cpu.CPU), "workshop", lambda self: workshop)
    monkeypatch.setattr(dynamic, "MAX_COST_SHARE", inf)
    monkeypatch.setattr(dynamic, "MIN_KERNEL_SHARE", 0.0)
    monkeypatch.setattr(Exploration, "try_seconds", 0.0)
    monkeypatch.setattr(dynamic, "SAMPLE_SECONDS", 0.0)
    nothing = property(lambda own: 0.0, lambda own, share: None)
    monkeypatch.setattr(Budget, "waiting_share", nothing, raising=False)
    return workshop


def explored(made: es.TrainStep, seconds: float = 60.0) -> list[float]:
    """Trains until nothing is left to explore; the losses."""
    made.compile(*BATCH)
    end = time.monotonic() + seconds
    losses = []
    while not exploration(made).over and time.monotonic() < end:
        losses.append(made(*BATCH))
    losses += [made(*BATCH) for _ in range(3)]
    return losses


NOTHING_LEFT = "what is left to gain does not pay: 0.00% of a step"


def decisions(made: es.TrainStep) -> dict[Kernel, str]:
    """The configurations that a step's program has."""
    (run,) = made.compiler.programs.values()
    return {c.kernel: k.decision for c, k in zip(run.calls, run.kernels, strict=True)}


def test_the_results_are_those_of_static_mode(simulated, monkeypatch) -> None:
    monkeypatch.setattr(dynamic, "judge", at_random)
    made = step("dynamic")
    losses = explored(made)
    x = exploration(made)
    assert x.over == NOTHING_LEFT and x.tried > 6 and simulated.is_closed and x.run.tuner is None
    plain = step()
    np.testing.assert_allclose(losses[:300], [plain(*BATCH) for _ in losses[:300]], rtol=1e-5, atol=1e-6)
    assert made.steps == len(losses), "every step has trained"


def at_random(ratios: list[float], rounds: int) -> bool:
    """Half of what is tried stays, whatever it takes."""
    return int(ratios[0] * 1e9) % 2 == 0


def test_winners_are_swapped_in_and_recorded(simulated, monkeypatch) -> None:
    monkeypatch.setattr(dynamic, "judge", lambda ratios, rounds: True)
    made = step("dynamic")
    explored(made)
    x = exploration(made)
    assert x.kept and {k: text for k, _, text, *_ in simulated.records} == x.kept
    assert decisions(made).items() >= x.kept.items()
    assert all(seconds > 0 and ratio > 0 for _, _, _, seconds, _, ratio in simulated.records)
    assert "of the time" in made.explored and "exploration ends" in made.explored
    assert next(iter(x.kept.values())).split()[0] in made.plan


def test_slower_candidates_are_dropped(simulated, monkeypatch) -> None:
    monkeypatch.setattr(dynamic, "judge", lambda ratios, rounds: False)
    made = step("dynamic")
    explored(made)
    x = exploration(made)
    assert x.tried and not x.kept and not simulated.records and {*decisions(made).values()} == {""}
    assert min(s for _, _, s in simulated.reports) > 0


def test_candidates_with_other_results_never_stay(simulated, monkeypatch) -> None:
    """Of whatever is wrong and was not noticed before."""
    monkeypatch.setattr(dynamic, "judge", lambda ratios, rounds: True)
    difference = Comparison.difference

    def planted(self: Comparison) -> str:
        buffer, block = self.kernel.buffers[self.written[0]], self.results[1][0].array
        values = block[4096:-4096].view(buffer.dtype.numpy)
        values[len(values) // 2] = 77
        return difference(self)

    monkeypatch.setattr(Comparison, "difference", planted)
    made = step("dynamic")
    losses = explored(made)
    x = exploration(made)
    assert not x.kept and x.tried > 6 and x.log[0].count("rejected") == 1 and "in a step, buffer" in x.log[0]
    plain = step()
    assert losses[:500] == [plain(*BATCH) for _ in losses[:500]], "nothing has changed"


def test_rejected_candidates_never_run(simulated, monkeypatch) -> None:
    simulated.vet = lambda kernel, text: "it crashes"
    made = step("dynamic")
    losses = explored(made)
    x = exploration(made)
    assert x.tried and not x.kept and all("it crashes" in line for line in x.log[:-1])
    assert {s for _, text, s in simulated.reports if text} == {inf}
    plain = step()
    assert losses == [plain(*BATCH) for _ in losses], "nothing has changed"


@pytest.mark.parametrize("where", ["_profile", "_search", "_compare", "_pair", "_install"])
def test_failures_end_exploration_alone(simulated, monkeypatch, where: str) -> None:
    def broken(self: Any, *arguments: Any) -> None:
        raise MemoryError("no more")

    monkeypatch.setattr(dynamic, "judge", lambda ratios, rounds: True)
    monkeypatch.setattr(Exploration, where, broken)
    made = step("dynamic")
    with pytest.warns(
        es.EinsmithWarning, match="tuning during training has ended.*MemoryError: no more.*EINSMITH_DEBUG=1"
    ) as warned:
        losses = [*explored(made), made(*BATCH)]
    x = exploration(made)
    assert x.over == "MemoryError: no more" and x.run.tuner is None and simulated.is_closed
    assert made.steps == len(losses) and len(warned) == 1 and {*decisions(made).values()} == {""}
    plain = step()
    expected = [plain(*BATCH) for _ in losses]
    if where in ("_pair", "_install"):  # a step of the pair ran with candidates
        np.testing.assert_allclose(losses, expected, rtol=1e-5, atol=1e-6)
    else:
        assert losses == expected


def test_a_warning_as_an_error_interrupts_no_step(simulated, monkeypatch) -> None:
    monkeypatch.setattr(Exploration, "_profile", lambda own, seconds: 1 / 0)
    made = step("dynamic")
    made.compile(*BATCH)
    taken = 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        while exploration(made).run.tuner is not None:
            try:
                made(*BATCH)
                taken += 1
            except es.EinsmithWarning:
                pass
    assert made.steps == taken and np.isfinite(made(*BATCH))


def test_the_time_for_it(simulated, monkeypatch) -> None:
    clock = Clock()
    monkeypatch.setattr(dynamic, "time", clock)
    made = step("dynamic", tune=0.3)
    made.compile(*BATCH)
    x = exploration(made)
    clock.now += 0.299
    made(*BATCH)
    assert not x.over
    clock.now += 0.002
    made(*BATCH)
    assert x.over == "the time limit is reached"


class Clock:
    """Time that passes in steps alone; bookkeeping takes some microseconds."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        self.now += 1e-6
        return self.now

    monotonic = thread_time = perf_counter


def after(first: Callable[[Any], None], f: Callable[..., Any]) -> Callable[..., Any]:
    def both(own: Any, *arguments: Any) -> Any:
        first(own)
        return f(own, *arguments)

    return both


@pytest.mark.thinned(2)
@pytest.mark.parametrize("seconds", [0.27e-3, 0.1])
def test_exploring_costs_no_more_than_it_may(simulated, monkeypatch, seconds: float) -> None:
    """However short a step is: steps in which something is tried take twice as long, and others a third longer while
    the workshop works, which takes a hundred steps for an answer."""
    clock = Clock()
    monkeypatch.undo()
    monkeypatch.setenv("EINSMITH_TUNED", "0")
    monkeypatch.setattr(type(cpu.CPU), "workshop", lambda self: simulated)
    monkeypatch.setattr(dynamic, "time", clock)
    monkeypatch.setattr(dynamic, "MIN_KERNEL_SHARE", 0.0)
    monkeypatch.setattr(dynamic, "SAMPLE_SECONDS", 1e-3)
    monkeypatch.setattr(Budget, "waiting_share", property(lambda own: 0.0, lambda own, x: None), raising=False)
    monkeypatch.setattr(dynamic, "judge", lambda ratios, rounds: None if len(ratios) < 5 else True)
    poll, search = simulated.poll_answer, simulated.search
    state = {"left": 0, "lost": 0.0, "paused": 0}

    def begin(*question: Any) -> None:
        search(*question)
        simulated.is_working, state["left"] = not simulated.is_paused, 100

    def answer() -> Answer | None:
        if state["left"] > 0:
            return None
        simulated.is_working = False
        return poll()

    monkeypatch.setattr(simulated, "search", begin)
    monkeypatch.setattr(simulated, "poll_answer", answer)

    def pause(is_paused: bool) -> None:
        simulated.is_paused, simulated.is_working = is_paused, state["left"] > 0 and not is_paused

    monkeypatch.setattr(simulated, "pause", pause)
    made = step("dynamic")
    made.compile(*BATCH)
    x = exploration(made)
    origin = x.run

    def passes(run: BoundProgram) -> None:
        works = state["left"] > 0 and not simulated.is_paused
        state["left"] -= works
        state["paused"] += simulated.is_paused
        extra = seconds * (1.0 if run is not origin else 0.0) + seconds * (0.33 if works else 0.0)
        state["lost"] += extra
        clock.now += seconds + extra

    def timed(run: BoundProgram, arrays: Any) -> Any:
        status, outputs, kernels = run_timed(run, arrays)
        return status, outputs, [seconds / len(kernels)] * len(kernels)

    def locked(run: BoundProgram, arrays: Any, is_tuned: bool = True) -> Any:
        return run_locked(run, arrays) if is_tuned and run.tuner is not None else alone(run, arrays)

    run_timed, run_locked = BoundProgram.run_timed, BoundProgram.run_locked
    alone = after(passes, lambda run, arrays: run_locked(run, arrays, is_tuned=False))
    monkeypatch.setattr(BoundProgram, "run_locked", locked)
    monkeypatch.setattr(BoundProgram, "run_timed", after(passes, timed))
    started, end = clock.now, time.monotonic() + 90
    while not (x.kept and state["paused"]) and not x.over and time.monotonic() < end:
        made(*BATCH)
        total = clock.now - started
        skipped = (x._skipped + 1) * seconds
        # What is begun is brought to an end: a pair of steps, and the steps beside the workshop until the next sample.
        assert state["lost"] <= 0.021 * total + 3 * seconds + skipped
    assert x.kept and state["paused"] and not x.over, (x.over, x.log, x.tried, state)
    assert x.budget.total == pytest.approx(total, rel=0.02, abs=2 * skipped)
    in_steps = x.budget.lost_seconds - x.budget._outside
    assert 0.8 * state["lost"] - 2 * skipped <= in_steps <= 1.2 * state["lost"] + 2 * skipped


def test_the_search_begins_where_the_model_is_least_sure(simulated, monkeypatch) -> None:
    """Kernels of equal times and gains, of two patterns: the times of one are as predicted, those of the other one are
    not. Within a pattern, the kernel that takes longest beyond its prediction comes first, unless a like kernel was
    faster with another configuration."""
    made = step("dynamic")
    made.compile(*BATCH)
    x = exploration(made)
    kernels = [*dict.fromkeys(c.kernel for c in x.run.calls)][:6]
    for n in range(len(kernels)):
        excess = 0.0 if n < 3 else 0.2 * (n - 4)
        x.error.add_kernel("sure" if n < 3 else "unsure", exp(excess), 1.0)
    saving = [
        x._expect_saving(k, "sure" if n < 3 else "unsure", 1.0, exp(-0.2 * (n - 4)) if n >= 3 else 1.0)
        for n, k in enumerate(kernels)
    ]
    assert saving[0] == saving[1] == saving[2] and saving[3] < saving[4] < saving[5]
    assert saving[0] < saving[4], "at the same excess, the model is less sure of it"
    simulated.wins = {kernels[0]: Win("", 0.6, 0.1), kernels[1]: Win("", 0.6, 5.0)}
    near, far = (x._expect_saving(k, "sure", 1.0, 1.0) for k in kernels[:2])
    assert near > saving[5] > far > saving[2], "shapes count by their distance"
    x.kernels = {k: KernelRecord("", 1e-6, 1, s) for k, s in zip(kernels, saving, strict=True)}
    x.budget.usual, x.budget.total = 1e-5, 1.0
    x._search()
    assert simulated.searches[0][0] is kernels[5]
    assert simulated.searches[0][1] == pytest.approx(saving[4]), "less than the next best is not worth vetting"
    x.end("enough")


def test_a_kernel_that_disappoints_makes_room_for_the_next(simulated, monkeypatch) -> None:
    """Nothing of it is vetted where its real saving is below the next one's expected saving."""
    monkeypatch.setattr(dynamic, "judge", lambda ratios, rounds: False)
    made = step("dynamic")
    made.compile(*BATCH)
    (run,) = made.compiler.programs.values()
    best = max(run.calls, key=lambda c: sum(b.nbytes for b in c.kernel.buffers)).kernel
    simulated.saving = lambda kernel: 0.2 if kernel is best else -1e-12
    explored(made)
    x = exploration(made)
    assert x.tried == simulated.most, "only those of the kernel of which more is expected"
    assert len({k for k, _ in simulated.searches}) > 1


def test_what_does_not_pay_waits(simulated, monkeypatch) -> None:
    """A try that has cost more than the expected saving in as much time again."""
    monkeypatch.setattr(dynamic, "judge", lambda ratios, rounds: False)
    simulated.most = 10**6
    made = step("dynamic")
    made.compile(*BATCH)
    x = exploration(made)
    for _ in range(60):
        made(*BATCH)
    x.trial, x.vetted = None, {}
    for seconds, searches in ((2.0, False), (0.5, True)):
        gain = max(record.gain for record in x.kernels.values())
        steps = (x.run.compile_seconds + x.budget.total) / x.budget.usual
        monkeypatch.setattr(Exploration, "try_seconds", seconds * gain * steps)
        x._searched, x._rest_until = None, 0.0
        simulated.searches.clear()
        x._search()
        assert bool(simulated.searches) is searches
    x.end("enough")


def test_it_ends_when_what_is_left_does_not_pay(simulated, monkeypatch) -> None:
    """All that is left to gain is less than what it costs to wait for it."""
    monkeypatch.setattr(dynamic, "judge", lambda ratios, rounds: False)
    simulated.most = 10**6
    made = step("dynamic")
    made.compile(*BATCH)
    x = exploration(made)
    for _ in range(60):
        made(*BATCH)
    assert not x.over and x.tried
    simulated.saving = lambda kernel: 1e-6
    share = property(lambda own: 1e-3, lambda own, share: None)
    monkeypatch.setattr(Budget, "waiting_share", share, raising=False)
    for _ in range(1000):
        made(*BATCH)
    assert x.over.startswith("what is left to gain does not pay: ") and simulated.is_closed
    assert not x.kept and {*decisions(made).values()} == {""} and x.run.tuner is None


def test_trials_count_towards_the_memory_limit(simulated, monkeypatch) -> None:
    """Beside a program that holds all that it may nothing is tried; with more memory, something is."""
    monkeypatch.setattr(dynamic, "judge", lambda ratios, rounds: True)
    plain = step()
    plain.compile(*BATCH)
    (run,) = plain.compiler.programs.values()
    held: list[int] = []
    with_decisions = BoundProgram.with_decisions

    def noted(self: BoundProgram, texts: Any, compare: bool = False) -> BoundProgram:
        other = with_decisions(self, texts, compare)
        if compare:
            memory = (a for x in other.comparisons.values() for a in (*x.workspaces, *x.results[0], *x.results[1]))
            held.append(other.held_bytes + sum(a.nbytes for a in memory))
        return other

    monkeypatch.setattr(BoundProgram, "with_decisions", noted)
    for more in (0, 150_000, 50_000_000):
        held.clear()
        simulated.left = {}
        made = step("dynamic", memory_limit=run.held_bytes + more)
        explored(made)
        x = exploration(made)
        assert x.over == NOTHING_LEFT and all(n <= made.memory_limit for n in held)
        assert ("more than memory_limit" in made.explored) is (not more) and bool(x.kept) is bool(more)


@pytest.mark.parametrize("most", [1, 2])
def test_trials_are_split_to_fit_the_memory(simulated, monkeypatch, most: int) -> None:
    """What does not fit waits for another trial, and nothing is rejected. The first trial lasts until more wait than
    fit, however fast the machine is."""
    sizes: list[int] = []
    with_decisions = BoundProgram.with_decisions

    def judge(ratios: list[float], rounds: int) -> bool | None:
        is_enough = max(sizes) > most or len(exploration(made).vetted) > most
        return True if is_enough and len(ratios) > 12 else None

    monkeypatch.setattr(dynamic, "judge", judge)
    monkeypatch.setattr(dynamic, "MAX_PAIRS", 10**9)

    def limited(self: BoundProgram, texts: Any, compare: bool = False) -> BoundProgram:
        sizes.append(len(texts))
        if len(texts) > most:
            raise ArgumentError("the program needs 9.0 MB, more than memory_limit=8.0 MB")
        return with_decisions(self, texts, compare)

    monkeypatch.setattr(BoundProgram, "with_decisions", limited)
    made = step("dynamic")
    explored(made)
    x = exploration(made)
    assert x.over == NOTHING_LEFT and max(sizes) > most and not [line for line in x.log if "rejected" in line]
    assert x.kept.keys() == {k for k, text, _ in simulated.reports if text}


def test_a_winner_that_there_is_no_memory_for_stays_out_alone(simulated, monkeypatch) -> None:
    monkeypatch.setattr(dynamic, "judge", lambda ratios, rounds: True)
    large: list[Kernel] = []
    swap = BoundProgram.swap

    def limited(self: BoundProgram, other: BoundProgram) -> None:
        if not large:
            large.append(next(iter(x.trial.times._ratios)))
            raise ArgumentError("the program needs 9.0 MB, more than memory_limit=8.0 MB")
        swap(self, other)

    monkeypatch.setattr(BoundProgram, "swap", limited)
    simulated.most = 1
    made = step("dynamic")
    made.compile(*BATCH)
    x = exploration(made)
    losses = explored(made)
    rejected = [line for line in x.log if "rejected" in line]
    assert x.over == NOTHING_LEFT and len(rejected) == 1 and "more than memory_limit=8.0 MB" in rejected[0]
    assert x.kept.keys() == {k for k, text, _ in simulated.reports if text} - {*large}, "others stay"
    assert len(losses) == made.steps


def test_the_log_says_what_goes_on(simulated, monkeypatch) -> None:
    made = step("dynamic")
    made.compile(*BATCH)
    assert "exploration goes on: 0 configurations tried" in made.explored and "begins once" in made.explored
    x = exploration(made)
    while not x.tried:
        made(*BATCH)
    assert "another is expected to save" in made.explored and "it has cost" in made.explored
    x.budget.is_spent = True
    assert "it waits, as it may cost" in made.explored
    x.end("enough")
    assert "goes on" not in made.explored and "exploration ends: enough; " in made.explored


def test_a_disturbed_machine_decides_by_pairs(simulated, monkeypatch) -> None:
    """Every fifth step takes ten times as long, whichever program runs it."""
    draw, run_timed = random.Random(0), BoundProgram.run_timed
    made = step("dynamic")
    made.compile(*BATCH)
    x = exploration(made)

    def disturbed(run: BoundProgram, arrays: Any) -> Any:
        status, outputs, seconds = run_timed(run, arrays)
        each = (1.0 if run is x.run else 0.8) * draw.uniform(0.95, 1.05) * (10.0 if draw.random() < 0.1 else 1.0)
        return status, outputs, [each * 1e-4 for _ in seconds]

    monkeypatch.setattr(BoundProgram, "run_timed", disturbed)
    explored(made)
    assert x.over == NOTHING_LEFT and x.kept


def test_a_workshop_starts_while_the_program_is_compiled(simulated, monkeypatch) -> None:
    construct, prepared = Executable.__init__, []

    def constructed(run: Executable, *arguments: Any, **options: Any) -> None:
        prepared.append(simulated.is_prepared)
        construct(run, *arguments, **options)

    monkeypatch.setattr(Executable, "__init__", constructed)
    made = step("dynamic")
    made.compile(*BATCH)
    assert prepared == [True] and exploration(made).workshop is simulated and not simulated.is_closed


def test_a_workshop_without_a_program_is_closed(simulated, monkeypatch) -> None:
    def fails(*arguments: Any, **options: Any) -> None:
        raise MemoryError("no more")

    monkeypatch.setattr(Executable, "__init__", fails)
    made = step("dynamic")
    with pytest.raises(MemoryError):
        made.compile(*BATCH)
    assert simulated.is_prepared and simulated.is_closed


def test_a_workshop_is_closed_when_the_mode_changes(simulated, monkeypatch) -> None:
    made = step("dynamic")
    construct = Executable.__init__

    def constructed(run: Executable, *arguments: Any, **options: Any) -> None:
        construct(run, *arguments, **options)
        made.mode = "static"

    monkeypatch.setattr(Executable, "__init__", constructed)
    monkeypatch.setattr(ProgramSearch, "search", lambda own, run, arrays: run)
    made.compile(*BATCH)
    assert exploration(made) is None and simulated.is_prepared and simulated.is_closed


def test_impossible_settings_are_rejected() -> None:
    with pytest.raises(ArgumentError, match="mode='fast' is not available; use 'static' or 'dynamic'"):
        step("fast")
    made = step()
    with pytest.raises(ArgumentError, match="mode='x'"):
        made.mode = "x"
    for wrong in (-1, 1e9, "60"):
        with pytest.raises(ArgumentError, match="tune"):
            step("dynamic", tune=wrong)
    assert made.explored == ""


def test_a_forked_child_keeps_its_program(simulated) -> None:
    made = step("dynamic")
    made.compile(*BATCH)
    for _ in range(20):
        made(*BATCH)
    child = os.fork()
    if not child:
        status = 1
        try:
            status = int(not np.isfinite([made(*BATCH) for _ in range(20)]).all())
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert np.isfinite(made(*BATCH))
    exploration(made).end("enough")


def test_one_program_is_explored_at_a_time(simulated) -> None:
    made = step("dynamic")
    for n in (16, 8):
        made.compile(BATCH[0][:n], BATCH[1][:n])
    first, other = (run.note.exploration for _, run in made.compiler.programs.items())
    assert first is not None and other is None
    first.end("enough")
    made.compile(BATCH[0][:3], BATCH[1][:3])
    assert [run.note.exploration for _, run in made.compiler.programs.items()][-1] is not None


def test_another_program_is_explored_when_the_first_is_no_longer_used(simulated) -> None:
    made = step("dynamic")
    made.compile(*BATCH)
    first = exploration(made)
    made.optimizer = es.optim.SGD(lr=1e-4)
    made.compile(*BATCH)
    assert first.over == "its program is no longer used" and not exploration(made).over
    exploration(made).end("enough")


@pytest.mark.slow
def test_unreferenced_programs_are_freed(simulated, new_objects) -> None:
    made = step("dynamic")
    made.compile(*BATCH)
    for _ in range(50):
        made(*BATCH)
    run = weakref.ref(exploration(made).run)
    simulated.left, simulated.reports, simulated.searches = {}, [], []
    del made
    gc.collect()
    assert run() is None and simulated.is_closed


# -- with the process that vets


@pytest.fixture
def planted(monkeypatch) -> Iterator[None]:
    monkeypatch.setattr(autoconfig, "PATTERNS", [*autoconfig.PATTERNS])
    autoconfig.register(Planted())
    yield
    monkeypatch.undo()
    forget(CHOICES)


def ask(shop: workshop.WorkshopProcess, *question: Any) -> Answer:
    """Search, and wait for the answer."""
    shop.search(*question)
    while (answer := shop.poll_answer()) is None:
        time.sleep(0.01)
    return answer


@pytest.mark.slow
def test_faults_are_found_in_another_process(planted, monkeypatch) -> None:
    monkeypatch.setattr(workshop, "PROCESSOR_LIMIT", 1.5)
    traced = trace_call(es.op("y[i,j] = x[i,j] * 2.5"), (np.ones(SHAPE, np.float32),), {})
    run = Executable(traced.graph, traced.bind, 1)
    kernel = run.calls[0].kernel
    shop, faults = workshop.WorkshopProcess(cpu.CPU.make), {}
    shop.tell(kernel, "", 1e-4)
    for way in FAULTS:
        if way == "hang in lowering":  # only the clock would tell
            shop.tell(kernel, format_choice(Planted(), way), inf)
    try:
        while (answer := ask(shop, kernel, "", run.target, 1, ModelError(), 0.0)).text is not None:
            if answer.text.startswith("planted"):
                faults[answer.text.partition("=")[2]] = answer.fault
            else:
                assert answer.fault == ""
            if not answer.fault:
                shop.tell(kernel, answer.text, 1e-4)
    finally:
        shop.close()
    assert faults.keys() == {*FAULTS} - {"hang in lowering"}
    assert "SIGSEGV" in faults["crash"] and "SIGPROF" in faults["hang"]
    assert "bytes behind the end of its buffer" in faults["beside"] and "nan" in faults["nan"]
    assert "elements are not the evaluator's" in faults["wrong"] and "out of ideas" in faults["raises"]
    assert faults["prints"] == ""


@pytest.mark.slow
def test_a_network_is_tuned_and_the_next_one_begins_with_that(monkeypatch) -> None:
    monkeypatch.setattr(dynamic, "MAX_COST_SHARE", 0.5)
    monkeypatch.setattr(Exploration, "try_seconds", 0.0)
    monkeypatch.setattr(dynamic, "judge", lambda ratios, rounds: sum(ratios) < 4 if len(ratios) > 1 else None)
    made = step("dynamic")
    made.compile(*BATCH)
    x, losses = exploration(made), []
    end = time.monotonic() + 150
    while not (x.kept and x.tried > 3) and not x.over and time.monotonic() < end:
        losses.append(made(*BATCH))
    x.end("enough")
    assert x.tried, x.log
    assert not [line for line in x.log if "rejected" in line], "the patterns' configurations are right"
    plain = step()
    np.testing.assert_allclose(losses[:200], [plain(*BATCH) for _ in losses[:200]], rtol=1e-5, atol=1e-6)
    recorded = {s.record.kernel: s.record.text for s in records.list_records()}
    assert recorded == {k.digest.hex(): text for k, text in x.kept.items()}
    runs = []
    for _ in range(2):
        again = step()
        runs.append([again(*BATCH) for _ in range(5)])
        (run,) = again.compiler.programs.values()
        tuned = {c.kernel.digest.hex(): k.decision for c, k in zip(run.calls, run.kernels, strict=True) if k.tuned}
        assert tuned == recorded
    assert runs[0] == runs[1], "with one store, two runs are bitwise equal"
