"""Dynamic mode: kernels are tuned while a program trains, which neither stops it nor changes what it computes."""

from __future__ import annotations

import gc
import os
import random
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import inf, log
from typing import Any

import numpy as np
import pytest

import einsmith as es
from einsmith.api.tracing import trace_call
from einsmith.base.errors import ArgumentError
from einsmith.driver import cpu, workshop
from einsmith.driver.backend import Answer
from einsmith.driver.bound_program import BoundProgram
from einsmith.driver.executable import Executable
from einsmith.kernels import autoconfig
from einsmith.runtime.comparison import Comparison
from einsmith.schedule.kernel import Kernel
from einsmith.training.compiler import ProgramSearch
from einsmith.tuning.kernels import database, records
from einsmith.tuning.kernels.decisions import format_choice
from einsmith.tuning.programs import exploring, online, proposing, trial
from einsmith.tuning.programs.budget import Budget
from einsmith.tuning.programs.exploring import MAX_TRIAL_KERNELS, ExplorationState
from einsmith.tuning.programs.online import Exploration
from einsmith.tuning.programs.proposing import Proposer
from einsmith.tuning.programs.trial import PREDICTION_ERROR, KernelRecord, expect_saving, judge
from einsmith.tuning.programs.vetting import Vetter
from tests.caches import CHOICES, CODE, forget
from tests.tuning.planted import FAULTS, SHAPE, Planted


@pytest.fixture(autouse=True)
def store(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("EINSMITH_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(database, "_unusable", {})
    monkeypatch.setattr(workshop.WorkshopProcess, "idle", False)  # tests leave it no processor
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


def exploration_of(made: es.TrainStep) -> Exploration:
    (run,) = made.compiler.programs.values()
    return run.note.exploration


def exploration(made: es.TrainStep) -> ExplorationState:
    return exploration_of(made).state


class Simulated:
    """A workshop that proposes the model's alternatives, vets none of them, and whose kernels are never good enough."""

    def __init__(self) -> None:
        self.told: list[tuple[Kernel, str, float]] = []
        self.kept: list[tuple[Any, ...]] = []
        self.vetted: Callable[[Kernel, str], str] = lambda kernel, text: ""
        self.run: Executable | None = None
        self.closed = False
        self.busy = self.paused = self.prepared = False
        self.start_count = 0
        self.left: dict[Kernel, Iterator[str]] = {}

    def _alternatives(self, kernel: Kernel) -> Iterator[str]:
        assert self.run is not None
        for name, config, _ in autoconfig.choose(kernel, self.run.target).alternatives[1:3]:
            yield format_choice(autoconfig.pattern_of(name), config)

    def propose(self, kernel: Kernel) -> Answer:
        left = self.left.setdefault(kernel, self._alternatives(kernel))
        return Answer(next(left, None), "", 0.0)

    def vet(self, kernel: Kernel, text: str) -> Answer:
        return Answer(text, self.vetted(kernel, text), 0.0)

    def tell(self, kernel: Kernel, text: str, seconds: float) -> None:
        self.told.append((kernel, text, seconds))

    def least(self, kernel: Kernel) -> float:
        return 0.0

    def find_part(self, kernel: Kernel, text: str) -> float:
        return 1.0

    def prepare(self) -> None:
        self.prepared = True

    def finish_start(self) -> None:
        pass

    def pause(self, seconds: float) -> None:
        self.paused = seconds > 0

    def keep(self, *found: Any) -> None:
        self.kept.append(found)

    def close(self) -> None:
        self.closed = True

    def leave(self) -> None:
        pass


@pytest.fixture
def simulated(monkeypatch) -> Simulated:
    """Workshops are this one, which compiles nothing; trying may cost as much as it likes."""
    made = Simulated()
    monkeypatch.setattr(type(cpu.CPU), "workshop", lambda self, target, threads: made)
    monkeypatch.setattr(exploring, "MAX_COST_SHARE", inf)
    monkeypatch.setattr(proposing, "MIN_KERNEL_SHARE", 0.0)
    monkeypatch.setattr(proposing, "MIN_GAIN_SHARE", 0.0)
    return made


def explored(made: es.TrainStep, simulated: Simulated | None = None, seconds: float = 60.0) -> list[float]:
    """Trains until nothing is left to explore, at ease; the losses."""
    made.compile(*BATCH)
    if simulated is not None:
        (simulated.run,) = made.compiler.programs.values()
    end = time.monotonic() + seconds
    losses = []
    while not exploration(made).over and time.monotonic() < end:
        losses.append(made(*BATCH))
        time.sleep(0.003)
    losses += [made(*BATCH) for _ in range(3)]
    return losses


def test_the_results_are_those_of_static_mode(simulated, monkeypatch) -> None:
    monkeypatch.setattr(online, "judge", at_random)
    made = step("dynamic")
    losses = explored(made, simulated)
    x = exploration(made)
    assert x.over == "nothing is left to gain" and x.tried > 6 and simulated.closed
    plain = step()
    np.testing.assert_allclose(losses[:300], [plain(*BATCH) for _ in losses[:300]], rtol=1e-5, atol=1e-6)
    assert made.steps == len(losses), "every step has trained"


def at_random(ratios: list[float]) -> bool:
    """Half of what is tried stays, whatever it takes."""
    return int(ratios[0] * 1e9) % 2 == 0


def test_winners_are_swapped_in_and_recorded(simulated, monkeypatch) -> None:
    monkeypatch.setattr(online, "judge", lambda ratios: True)
    made = step("dynamic")
    explored(made, simulated)
    x, (run,) = exploration(made), made.compiler.programs.values()
    assert x.kept and {k: text for k, text, *_, confirmed in simulated.kept if confirmed} == x.kept
    now = dict(zip((c.kernel for c in run.calls), (k.decision for k in run.kernels), strict=True))
    assert all(now[k] == text for k, text in x.kept.items())
    assert all(seconds > 0 and prior > 0 for _, _, seconds, _, prior, _ in simulated.kept)
    assert "of the time with" in made.explored and "exploration ends" in made.explored
    assert next(iter(x.kept.values())).split()[0] in made.plan


def test_slower_candidates_are_dropped(simulated, monkeypatch) -> None:
    monkeypatch.setattr(online, "judge", lambda ratios: False)
    made = step("dynamic")
    explored(made, simulated)
    x, (run,) = exploration(made), made.compiler.programs.values()
    assert not x.kept and not simulated.kept and {k.decision for k in run.kernels} == {""}
    assert all(known.over for known in x.kernels.values())
    assert min(s for _, _, s in simulated.told) > 0


def test_candidates_with_other_results_never_stay(simulated, monkeypatch) -> None:
    """Of whatever is wrong and was not found before."""
    monkeypatch.setattr(online, "judge", lambda ratios: True)
    difference = Comparison.difference

    def planted(self: Comparison) -> str:
        buffer, made = self.kernel.buffers[self.written[0]], self.results[1][0].array
        values = made[4096:-4096].view(buffer.dtype.numpy)
        values[len(values) // 2] = 77
        return difference(self)

    monkeypatch.setattr(Comparison, "difference", planted)
    made = step("dynamic")
    losses = explored(made, simulated)
    x = exploration(made)
    assert not x.kept and x.tried > 6 and x.log[0].count("rejected") == 1 and "in a step, buffer" in x.log[0]
    plain = step()
    assert losses[:500] == [plain(*BATCH) for _ in losses[:500]], "nothing has changed"


def test_rejected_candidates_never_run(simulated, monkeypatch) -> None:
    simulated.vetted = lambda kernel, text: "it crashes"
    made = step("dynamic")
    explored(made, simulated)
    x = exploration(made)
    assert x.tried and not x.kept and all("it crashes" in line for line in x.log[:-1])
    assert {s for _, text, s in simulated.told if text} == {inf}


def test_a_workshop_that_raises_ends_exploring_alone(simulated) -> None:
    def broken(kernel: Any, text: str) -> str:
        raise RuntimeError("out of paper")

    simulated.vetted = broken
    made = step("dynamic")
    with pytest.warns(
        es.EinsmithWarning, match="tuning during training has ended.*RuntimeError: out of paper.*EINSMITH_DEBUG=1"
    ) as told:
        losses = explored(made, simulated)
        made(*BATCH), made(*BATCH)
    assert exploration(made).over == "RuntimeError: out of paper" and np.isfinite(losses).all() and len(told) == 1


@pytest.mark.parametrize(("part", "where"), [(Proposer, "begin"), (Vetter, "judge"), (Exploration, "_pair")])
def test_failures_of_any_thread_end_exploration_alone(simulated, monkeypatch, part: type, where: str) -> None:
    def broken(self: Any, *arguments: Any) -> None:
        raise MemoryError("no more")

    monkeypatch.setattr(part, where, broken)
    made = step("dynamic")
    with pytest.warns(es.EinsmithWarning, match="tuning during training has ended.*MemoryError: no more") as told:
        losses = [*explored(made, simulated), made(*BATCH)]
    assert exploration(made).over == "MemoryError: no more" and made.steps == len(losses) and len(told) == 1
    plain = step()
    assert losses[:300] == [plain(*BATCH) for _ in losses[:300]] or where == "_pair"


def test_the_time_for_it(simulated, monkeypatch) -> None:
    clock = Clock()
    for module in (online, exploring):
        monkeypatch.setattr(module, "time", clock)
    made = step("dynamic", tune=0.3)
    made.compile(*BATCH)
    (simulated.run,) = made.compiler.programs.values()
    x = exploration(made)
    clock.now += 0.299
    made(*BATCH)
    assert not x.over
    clock.now += 0.002
    made(*BATCH)
    assert x.over == "the time limit is reached"


class Clock:
    """Time that passes in steps alone; whatever a thread does takes half a millisecond."""

    def __init__(self) -> None:
        self.now, self._worked = 100.0, threading.local()

    def perf_counter(self) -> float:
        return self.now

    monotonic = perf_counter

    def sleep(self, seconds: float) -> None:
        time.sleep(1e-4)

    def thread_time(self) -> float:
        self._worked.seconds = getattr(self._worked, "seconds", 0.0) + 0.5e-3
        return self._worked.seconds


def after(first: Callable[[Any], None], f: Callable[..., Any]) -> Callable[..., Any]:
    def both(own: Any, *arguments: Any) -> Any:
        first(own)
        return f(own, *arguments)

    return both


@pytest.mark.thinned(2)
@pytest.mark.parametrize("seconds", [0.27e-3, 0.1])
def test_exploring_costs_no_more_than_it_may(simulated, monkeypatch, seconds: float) -> None:
    """However short a step is: steps in which something is tried take twice as long, and others a third longer while
    the other process works."""
    clock = Clock()
    for module in (online, exploring):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(exploring, "MAX_COST_SHARE", 0.02)
    monkeypatch.setattr(online, "judge", lambda ratios: None if len(ratios) < 5 else True)
    tried, paused, lost, total = [], [], 0.0, 0.0

    def passes(run: Executable) -> None:
        nonlocal lost
        other = run is not simulated.run
        works = simulated.busy and not simulated.paused
        extra = seconds * (1.0 if other else 0.0) + seconds * (0.33 if works else 0.0)
        lost += extra
        clock.now += seconds + extra
        tried.append(other)
        paused.append(simulated.busy and simulated.paused)

    made = step("dynamic")
    made.compile(*BATCH)
    (simulated.run,) = made.compiler.programs.values()
    for f in (BoundProgram.__call__, BoundProgram.run_timed):
        monkeypatch.setattr(BoundProgram, f.__name__, after(passes, f))
    x, begun, n, end = exploration(made), clock.now, 0, time.monotonic() + 60
    while not (x.kept and any(paused)) and time.monotonic() < end:
        simulated.busy = bool(x.kernels) and n // 40 % 2 == 0
        made(*BATCH)
        n += 1
        total = clock.now - begun
        # What is begun is brought to an end: a step that tries something and one that takes longer, and some work of
        # each of the two threads.
        assert lost <= 0.02 * total + 3 * seconds and x.budget.lost_seconds <= 0.02 * total + 4 * seconds + 4e-3
    x.ending.close()
    assert any(tried) and any(paused) and not all(paused) and x.kept
    assert x.budget.total == pytest.approx(total)
    assert x.budget.lost_seconds >= 0.9 * lost, "and it knows of all that is lost"


def test_trials_count_towards_the_memory_limit(simulated, monkeypatch) -> None:
    """Beside a program that holds all that it may nothing is tried; with a little more fewer kernels at once."""
    monkeypatch.setattr(online, "judge", lambda ratios: True)
    plain = step()
    plain.compile(*BATCH)
    (run,) = plain.compiler.programs.values()
    tried: list[tuple[int, int]] = []
    with_decisions = BoundProgram.with_decisions

    def noted(self: Executable, texts: Any, compare: bool = False) -> Executable:
        found = with_decisions(self, texts, compare)
        if compare:
            memory = (a for x in found.comparisons.values() for a in (*x.workspaces, *x.results[0], *x.results[1]))
            tried.append((len(texts), found.held_bytes + sum(a.nbytes for a in memory)))
        return found

    monkeypatch.setattr(BoundProgram, "with_decisions", noted)
    for more in (0, 150_000, 50_000_000):
        tried.clear()
        simulated.left = {}
        made = step("dynamic", memory_limit=run.held_bytes + more)
        explored(made, simulated)
        x = exploration(made)
        assert x.over == "nothing is left to gain" and all(held <= made.memory_limit for _, held in tried)
        assert ("more than memory_limit" in made.explored) is (not more) and bool(x.kept) is bool(more)
        most = max((n for n, _ in tried), default=0)
        assert 0 < most < MAX_TRIAL_KERNELS if 0 < more < 1e6 else most == MAX_TRIAL_KERNELS * bool(more)


def refuse(monkeypatch, texts_of: Callable[[Any], bool]) -> list[dict[Any, str]]:
    """There is no memory for programs, other than those beside, of which this is true of the configurations; those of
    the programs that were refused."""
    refused: list[dict[Any, str]] = []
    with_decisions = BoundProgram.with_decisions

    def limited(self: Executable, texts: Any, compare: bool = False) -> Executable:
        if not compare and texts_of(texts):
            refused.append(dict(texts))
            raise ArgumentError("the program needs 9.0 MB, more than memory_limit=8.0 MB")
        return with_decisions(self, texts, compare)

    monkeypatch.setattr(BoundProgram, "with_decisions", limited)
    return refused


def test_a_trial_that_there_is_no_memory_for_ends_alone(simulated, monkeypatch) -> None:
    """It has run beside the program, which takes less."""
    monkeypatch.setattr(online, "judge", lambda ratios: True)
    large: list[tuple[Kernel, str]] = []

    def vetted(kernel: Kernel, text: str) -> str:
        large[:] = large or [(kernel, text)]
        return ""

    simulated.vetted = vetted
    refused = refuse(monkeypatch, lambda texts: any(texts.get(k) == text for k, text in large))
    made = step("dynamic")
    losses = explored(made, simulated)
    x, ((kernel, text),) = exploration(made), large
    assert x.over == "nothing is left to gain" and refused[-1] == {kernel: text}
    told = [line for line in x.log if "rejected" in line]
    assert len(told) == 1 and told[0].startswith(kernel.digest.hex()[:8])
    assert f"{text}: the program needs 9.0 MB, more" in told[0]
    assert x.kept.get(kernel) != text
    assert x.kept.keys() | {kernel} == {k for k, other, _ in simulated.told if other}, "others stay"
    assert len(losses) == made.steps


@pytest.mark.slow
def test_trials_are_split_to_fit_the_memory(simulated, monkeypatch) -> None:
    monkeypatch.setattr(online, "judge", lambda ratios: True)
    refused = refuse(monkeypatch, lambda texts: len(texts) > 1)
    made = step("dynamic")
    explored(made, simulated)
    x = exploration(made)
    assert x.over == "nothing is left to gain" and refused and not [line for line in x.log if "rejected" in line]
    assert x.kept.keys() == {k for k, text, _ in simulated.told if text}


@pytest.mark.parametrize("stepping", [True, False], ids=["another step", "no step more"])
def test_late_winners_are_swapped_in_or_unconfirmed(simulated, monkeypatch, stepping: bool) -> None:
    """The budget is used up by the pairs of steps that decide, and then there is no time left."""
    monkeypatch.setattr(online, "judge", lambda ratios: True)
    can_spend, won = Budget.can_spend, []
    monkeypatch.setattr(Budget, "can_spend", lambda own, seconds=0.0: not won and can_spend(own, seconds))
    pair = Exploration._pair

    def decides(own: Exploration, *arguments: Any) -> None:
        pair(own, *arguments)
        won.extend(own.state.trial.won if own.state.trial else ())

    monkeypatch.setattr(Exploration, "_pair", decides)
    made = step("dynamic")
    made.compile(*BATCH)
    (simulated.run,) = made.compiler.programs.values()
    x, end = exploration(made), time.monotonic() + 60
    while not won and time.monotonic() < end:
        made(*BATCH)
        time.sleep(0.003)
    made(*BATCH)
    x.end("the time limit is reached")
    assert won and not x.kept and {k for k, *_ in simulated.kept} == {*won}
    assert not any(confirmed for *_, confirmed in simulated.kept) and "not confirmed" in made.explored.splitlines()[-1]
    if stepping:
        made(*BATCH)
        assert {k for k, *_, confirmed in simulated.kept if confirmed} == x.kept.keys() == {*won}
        now = {c.kernel: k.decision for c, k in zip(x.run.calls, x.run.kernels, strict=True)}
        assert all(now[k] == text for k, text in x.kept.items())
        assert all(f"{k.digest.hex()[:8]}: the program has" in made.explored for k in won)


def test_told_apart() -> None:
    assert judge([]) is None and judge([0.5] * 7) is None
    assert judge([0.9] * 8) is True and judge([0.9] * 7 + [1.3]) is True
    assert judge([0.9] * 6 + [1.3, 1.3]) is None and judge([0.9] * 9 + [1.1] * 5) is False
    assert judge([1.3, 1.4]) is False and judge([1.3, 0.9]) is None
    assert judge([1.1] * 4 + [0.9]) is False
    assert judge([0.99] * 13) is None and judge([0.99] * 14) is False


def test_expected_savings() -> None:
    assert expect_saving([], 0.0) == 0.0 and expect_saving([1.0], 1.0) == 0.0
    assert expect_saving([3.0] * 16, 0.0) < 1e-6, "no configuration comes near"
    one, eight = expect_saving([1.0], 0.0), expect_saving([1.0] * 8, 0.0)
    assert 0.04 < one < 0.08 < eight < 0.25
    assert expect_saving([1.0] * 8, 0.95) < 0.05, "the bound limits what is saved"
    draw = random.Random(0)
    times = [min(draw.lognormvariate(log(r), PREDICTION_ERROR) for r in (1.0, 1.1, 1.4)) for _ in range(20_000)]
    assert expect_saving([1.0, 1.1, 1.4], 0.0) == pytest.approx(sum(max(0.0, 1 - t) for t in times) / 20_000, rel=0.05)


def test_a_kernel_whose_alternatives_are_predicted_to_be_slow_has_no_gain() -> None:
    measured = KernelRecord(2e-3, runs=3, least=1e-3)
    assert measured.gain == pytest.approx(3e-3), "all that lies above the bound, before predictions are known"
    measured.predicted = [1.0, 1.1]
    assert 0 < measured.gain < 1e-3
    gain, measured.failures = measured.gain, 2
    assert measured.gain == pytest.approx(0.64 * gain)
    measured.becomes(0.8)
    assert measured.gain < 0.2 * gain, "the alternatives are slower now than what is in the program"
    measured.predicted = [2.0, 2.5]
    assert measured.gain < 1e-8


def test_an_expected_saving_is_computed_once(monkeypatch) -> None:
    computed = []
    monkeypatch.setattr(trial, "expect_saving", lambda predicted, least: computed.append((predicted, least)) or 0.25)
    measured = KernelRecord(2e-3, runs=1, least=1e-3, predicted=[1.0])
    for failures in (0, 1, 1):
        measured.failures = failures
        assert measured.gain == pytest.approx(0.5e-3 * 0.8**failures)
    assert computed == [([1.0], 0.5)]
    for changed, value in (("predicted", [2.0]), ("part", 0.5), ("least", 0.5e-3), ("seconds", 1e-3)):
        setattr(measured, changed, value)
        assert measured.gain == measured.gain
    assert computed[1:] == [([2.0], 0.5), ([4.0], 0.5), ([4.0], 0.25), ([4.0], 0.5)]


def test_a_kernel_that_takes_no_time_has_no_gain() -> None:
    measured = KernelRecord(2e-3, runs=1, predicted=[1.0, 0.0, inf])
    assert 0 < measured.gain < 0.2e-3, "predictions that are no times are ignored"
    measured.becomes(0.0)
    assert measured.gain == 0.0


def test_predictions_refer_to_the_choice_of_the_model(simulated, monkeypatch) -> None:
    """A program begins with a recorded configuration, which takes 0.6 of the choice's time."""
    made = step("dynamic")
    made.compile(*BATCH)
    (run,) = made.compiler.programs.values()
    x, shared = exploration(made), 0.6
    tuned = run.calls[0].kernel
    kernels = [
        replace(k, decision="recorded", tuned=True) if c.kernel is tuned else k
        for c, k in zip(run.calls, run.kernels, strict=True)
    ]
    monkeypatch.setattr(BoundProgram, "kernels", kernels)
    monkeypatch.setattr(
        simulated, "find_part", lambda kernel, text: shared if (kernel, text) == (tuned, "recorded") else 1.0
    )
    x.profiled = [dict.fromkeys((c.kernel for c in run.calls), 1e-3)]
    proposer = exploration_of(made).proposer
    proposer.begin()
    while proposer.unbounded:
        proposer.bound_kernel()
    assert {k: m.part for k, m in x.kernels.items()} == {k: shared if k is tuned else 1.0 for k in x.kernels}
    x.kernels[tuned].predicted = [0.9] * 16
    assert x.kernels[tuned].gain < 0.05 * x.kernels[tuned].seconds, "none is expected to be faster than what it has"
    x.ending.close()


def test_a_choice_is_work_that_the_budget_sees(simulated, monkeypatch) -> None:
    made = step("dynamic")
    made.compile(*BATCH)
    (simulated.run,) = made.compiler.programs.values()
    x, proposer, affordable = exploration(made), exploration_of(made).proposer, set[str]()
    kernel = next(c.kernel for c, k in zip(x.run.calls, x.run.kernels, strict=True) if k.pattern == "contraction")
    x.kernels[kernel] = KernelRecord(1e-3, 1)
    monkeypatch.setattr(x, "expect", lambda work: work)
    monkeypatch.setattr(x.budget, "can_spend", affordable.__contains__)
    proposer.turn()
    assert proposer.chosen is None and x.units_begun == 0
    affordable.add("choose_kernel")
    for _ in range(3):
        proposer.turn()
    assert proposer.chosen is kernel and x.units_begun == 1, "it is chosen once"
    affordable.add("propose")
    proposer.turn()
    assert proposer.chosen is None and x.under_test == {kernel}
    for _ in range(3):
        proposer.turn()
    assert x.units_begun == 2, "nothing is chosen again before a configuration is decided"
    x.under_test.clear()
    proposer.turn()
    assert x.units_begun == 3
    x.ending.close()


def test_without_a_gain_to_expect_nothing_is_tried(simulated, monkeypatch) -> None:
    monkeypatch.setattr(proposing, "MIN_GAIN_SHARE", 0.01)
    propose = simulated.propose
    monkeypatch.setattr(simulated, "propose", lambda kernel: propose(kernel)._replace(predicted=[2.0, 3.0]))
    made = step("dynamic")
    explored(made, simulated)
    x = exploration(made)
    assert re.fullmatch(r"nothing is left to gain: .* expected to save (0\.[0-9]|1\.0)% of a step", x.over)
    assert simulated.closed
    assert x.tried <= len(x.kernels), "one of each kernel at most, which was proposed to learn what may be gained"


@pytest.mark.parametrize(("expected", "part"), [(0.2, 1.0), (0.025, 0.5)])
def test_exploring_costs_in_proportion_to_what_may_be_gained(simulated, monkeypatch, expected: float, part: float):
    monkeypatch.setattr(exploring, "MAX_COST_SHARE", 0.02)
    monkeypatch.setattr(ExplorationState, "expected_gain", expected)
    made = step("dynamic")
    made.compile(*BATCH)
    x = exploration(made)
    exploration_of(made).proposer.choose_kernel()
    assert x.budget.share == pytest.approx(0.02 * part)
    x.ending.close()


def test_the_log_says_what_goes_on(simulated, monkeypatch) -> None:
    made = step("dynamic")
    made.compile(*BATCH)
    (simulated.run,) = made.compiler.programs.values()
    assert "exploration goes on: 0 configurations tried" in made.explored and "begins once" in made.explored
    simulated.busy = True
    x = exploration(made)
    end = time.monotonic() + 60
    while not (x.kernels and x.tried) and time.monotonic() < end:
        made(*BATCH)
        time.sleep(0.003)
    assert "others may save at most" in made.explored and "being prepared" in made.explored
    for measured in x.kernels.values():
        measured.predicted = []
    assert "others are expected to save 0.0% of a step" in made.explored
    x.end("enough")
    assert "goes on" not in made.explored


def test_a_disturbed_machine_decides_by_pairs(simulated, monkeypatch) -> None:
    """Every fifth step takes ten times as long, whichever program runs it."""
    draw, run_timed = random.Random(0), BoundProgram.run_timed

    def disturbed(run: Executable, arrays: Any) -> Any:
        status, outputs, seconds = run_timed(run, arrays)
        each = (1.0 if run is simulated.run else 0.8) * draw.uniform(0.9, 1.1) * (10.0 if draw.random() < 0.2 else 1.0)
        return status, outputs, [each * 1e-4 for _ in seconds]

    monkeypatch.setattr(BoundProgram, "run_timed", disturbed)
    made = step("dynamic")
    explored(made, simulated)
    x = exploration(made)
    assert x.over == "nothing is left to gain" and x.kept


class Prepared(Simulated):
    """A workshop that notes the programs compiled before it was told to start."""

    def prepare(self) -> None:
        self.prepared, self.compiled_before = True, self.run is not None


def test_a_workshop_starts_while_the_program_is_compiled(monkeypatch) -> None:
    prepared = Prepared()
    monkeypatch.setattr(type(cpu.CPU), "workshop", lambda self, target, threads: prepared)
    construct = Executable.__init__

    def constructed(run: Executable, *arguments: Any, **options: Any) -> None:
        construct(run, *arguments, **options)
        prepared.run = run

    monkeypatch.setattr(Executable, "__init__", constructed)
    made = step("dynamic")
    made.compile(*BATCH)
    x = exploration(made)
    assert prepared.prepared and not prepared.compiled_before and x.workshop is prepared
    assert prepared.target == x.run.target and prepared.threads == 1
    x.ending.close()


def test_a_workshop_without_a_program_is_closed(simulated, monkeypatch) -> None:
    def fails(*arguments: Any, **options: Any) -> None:
        raise MemoryError("no more")

    monkeypatch.setattr(Executable, "__init__", fails)
    made = step("dynamic")
    with pytest.raises(MemoryError):
        made.compile(*BATCH)
    assert simulated.prepared and simulated.closed


def test_a_workshop_is_closed_when_the_mode_changes(simulated, monkeypatch) -> None:
    made = step("dynamic")
    construct = Executable.__init__

    def constructed(run: Executable, *arguments: Any, **options: Any) -> None:
        construct(run, *arguments, **options)
        made.mode = "static"

    monkeypatch.setattr(Executable, "__init__", constructed)
    monkeypatch.setattr(ProgramSearch, "search", lambda own, run, arrays: run)
    made.compile(*BATCH)
    assert exploration_of(made) is None and simulated.prepared and simulated.closed


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
    (simulated.run,) = made.compiler.programs.values()
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
    exploration(made).ending.close()


def test_one_program_is_explored_at_a_time(simulated) -> None:
    made = step("dynamic")
    for n in (16, 8):
        made.compile(BATCH[0][:n], BATCH[1][:n])
    first, other = (run.note.exploration for _, run in made.compiler.programs.items())
    assert first is not None and other is None
    first.state.end("enough")
    made.compile(BATCH[0][:3], BATCH[1][:3])
    assert [run.note.exploration for _, run in made.compiler.programs.items()][-1] is not None


def test_the_time_limit_ends_without_further_steps(simulated) -> None:
    made = step("dynamic", tune=0.3)
    made.compile(*BATCH)
    (simulated.run,) = made.compiler.programs.values()
    for _ in range(online.PROFILED_STEPS + 1):
        made(*BATCH)
    end = time.monotonic() + 20
    while not exploration(made).over and time.monotonic() < end:
        time.sleep(0.02)
    assert exploration(made).over == "the time limit is reached"


@pytest.mark.slow
def test_unreferenced_programs_are_freed(simulated, new_objects) -> None:
    made = step("dynamic")
    made.compile(*BATCH)
    (simulated.run,) = made.compiler.programs.values()
    for _ in range(50):
        made(*BATCH)
    run, threads = weakref.ref(simulated.run), exploration(made).ending.threads
    simulated.run, simulated.left, simulated.told = None, {}, []
    del made
    for n in range(13):  # each wait twice as long, as work in the background may hold the program for minutes
        gc.collect()
        if run() is None:
            break
        time.sleep(0.05 * 2**n)
    assert run() is None and simulated.closed
    for thread in threads:
        thread.join()


# -- with the process that vets


@pytest.fixture
def planted(monkeypatch) -> Iterator[None]:
    monkeypatch.setattr(autoconfig, "PATTERNS", [*autoconfig.PATTERNS])
    autoconfig.register(Planted())
    yield
    monkeypatch.undo()
    forget(CHOICES)


@pytest.mark.slow
def test_faults_are_found_in_another_process(planted, monkeypatch) -> None:
    monkeypatch.setattr(workshop, "PROCESSOR_LIMIT", 1.5)
    traced = trace_call(es.op("y[i,j] = x[i,j] * 2.5"), (np.ones(SHAPE, np.float32),), {})
    run = Executable(traced.graph, traced.bind, 1)
    kernel = run.calls[0].kernel
    shop, found = workshop.ProcessWorkshop(run.target, 1, cpu.CPU.make), {}
    try:
        while (proposed := shop.propose(kernel).text) is not None:
            if "lowering" in proposed:  # only the clock would tell
                shop.tell(kernel, proposed, inf)
            elif proposed.startswith("planted"):
                found[proposed] = shop.vet(kernel, proposed)
            else:
                assert shop.vet(kernel, proposed).fault == ""
                shop.tell(kernel, proposed, 1e-4)
    finally:
        shop.close()
    faults = {text.partition("=")[2]: x.fault for text, x in found.items()}
    assert faults.keys() == {*FAULTS} - {"hang in lowering"}
    assert "SIGSEGV" in faults["crash"] and "SIGPROF" in faults["hang"]
    assert "bytes behind the end of its buffer" in faults["beside"] and "nan" in faults["nan"]
    assert "elements are not the evaluator's" in faults["wrong"] and "out of ideas" in faults["raises"]
    assert faults["prints"] == ""


@pytest.mark.slow
def test_a_network_is_tuned_and_the_next_one_begins_with_that(monkeypatch) -> None:
    monkeypatch.setattr(exploring, "MAX_COST_SHARE", 0.5)
    monkeypatch.setattr(online, "judge", lambda ratios: len(ratios) >= 2 and sum(ratios) < 2 * len(ratios))
    made = step("dynamic")
    made.compile(*BATCH)
    x, losses = exploration(made), []
    end = time.monotonic() + 150
    while not (x.kept and x.tried > 3) and not x.over and time.monotonic() < end:
        losses.append(made(*BATCH))
        time.sleep(0.003)
    x.ending.close()
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
