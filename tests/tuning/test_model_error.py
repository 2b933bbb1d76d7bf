"""How far predictions are from measured times, and what a try is expected to save."""

from __future__ import annotations

import random
from math import exp, inf, log

import pytest

from einsmith.kernels import autoconfig
from einsmith.tuning.calibration import calibrate
from einsmith.tuning.kernels.genetic import Candidate, Search
from einsmith.tuning.kernels.model_error import PRIOR_DEVIATION, ModelError, Win, expect_saving
from tests.kernels.samples import product

KERNEL, TARGET = product(130, 37, 180), calibrate.target(1)


@pytest.mark.parametrize("ratio", [0.8, 1.0, 1.2])
@pytest.mark.parametrize("deviation", [0.05, 0.15, 0.4])
def test_expected_savings(ratio: float, deviation: float) -> None:
    draw = random.Random(0)
    times = [draw.lognormvariate(log(ratio), deviation) for _ in range(40_000)]
    mean = sum(1 - t for t in times if t <= 0.98) / len(times)
    assert expect_saving(ratio, deviation) == pytest.approx(mean, rel=0.05, abs=2e-4)


def test_a_saving_has_bounds() -> None:
    assert expect_saving(3.0, 0.15) < 1e-9, "no configuration comes near"
    assert expect_saving(0.2, 0.15, bound=0.9) == pytest.approx(0.1), "the roofline bound limits it"
    assert expect_saving(0.5, 0.15, bound=0.99) == 0.0, "less is not kept"
    assert expect_saving(0.0, 0.15) == 0.0, "no time"
    assert expect_saving(1.0, 0.4) > expect_saving(1.0, 0.1), "the less sure, the more may be gained"


def test_errors_are_those_of_a_pattern() -> None:
    error = ModelError()
    assert error.bias("any") == 0.0 and error.deviation("any") == PRIOR_DEVIATION
    for _ in range(50):
        error.add_kernel("slow", 2.0, 1.0)
        error.add_kernel("right", 1.0, 1.0)
    assert error.bias("slow") == pytest.approx(log(2), rel=0.02) and abs(error.bias("right")) < 0.01
    assert max(error.deviation("slow"), error.deviation("right")) < 0.05
    for n in range(50):
        error.add_try("right", exp(0.5 if n % 2 else -0.5), 1.0)
    assert error.deviation("right") > 0.3 > 10 * error.deviation("slow") / 2
    error.add_try("right", 0.0, 1.0), error.add_kernel("right", 1.0, 0.0)
    assert error.deviation("right") < inf


def test_tries_that_disappoint_leave_less_to_expect() -> None:
    """They make the model less sure at first, and then more pessimistic."""
    search, savings = Search(KERNEL, TARGET, error=ModelError()), []
    seconds = search.choice.cost.rank
    search.tell(search.chosen, seconds)
    for _ in range(40):
        best = search.expect_most(seconds, 0.0, {})
        assert best is not None and search.error is not None
        savings.append(best.saving)
        search.tell(best.candidate, 1.5 * best.seconds)
        search.error.add_try(best.candidate.pattern, 1.5 * best.seconds, best.seconds)
    assert savings[-1] < 0.2 * savings[0]


def test_wins_count_by_their_distance() -> None:
    near, far = (Win("", 0.5, d).correct(1e-3, 1e-3) for d in (0.0, 3.0))
    assert near == pytest.approx(1e-3 * 0.5**0.5) and near < far < 1e-3
    assert Win("", 0.5, inf).correct(1e-3, 1e-3) == pytest.approx(1e-3)
    assert Win("", 0.5, 0.0).correct(0.0, 1e-3) == 0.0


def test_the_least_sure_pattern_comes_first() -> None:
    """Of two patterns with configurations predicted alike."""
    choice = autoconfig.choose(KERNEL, TARGET)
    others = {name for name, _, _ in choice.alternatives} - {choice.pattern.name}
    assert others, "a kernel that several patterns take"
    seconds = choice.cost.seconds
    for unsure in (choice.pattern.name, others.pop()):
        error = ModelError()
        error.add_try(unsure, 4.0, 1.0)
        error.add_try(unsure, 0.25, 1.0)
        search = Search(KERNEL, TARGET, error=error)
        search.tell(search.chosen, seconds)
        best = search.expect_most(seconds, 0.0, {})
        assert best is not None and best.candidate.pattern == unsure and best.saving > 0.1


def test_a_kernel_that_takes_longer_than_others_saves_more() -> None:
    savings = []
    for excess in (1.0, 1.5, 2.5):
        search = Search(KERNEL, TARGET, error=ModelError())
        now = search.choice.cost.rank * excess
        search.tell(search.chosen, now)
        best = search.expect_most(now, 0.0, {})
        assert best is not None
        savings.append(best.saving)
    assert savings == sorted(savings) and savings[0] < savings[2]


def test_a_win_comes_before_what_the_model_prefers() -> None:
    search = Search(KERNEL, TARGET, error=ModelError())
    seconds = search.choice.cost.rank
    search.tell(search.chosen, seconds)
    name, config, _ = search.choice.alternatives[7]
    won = Candidate(name, config)
    first = search.expect_most(seconds, 0.0, {})
    assert first is not None and first.candidate != won
    best = search.expect_most(seconds, 0.0, {won: Win("", 0.3, 0.1)})
    assert best is not None and best.candidate == won and best.saving > first.saving
