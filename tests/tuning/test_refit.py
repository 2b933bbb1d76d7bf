"""Fits of the cost model: a table that was changed is found from the times that it predicts, and noise is not."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache

import pytest

from einsmith.cost.facts import Target
from einsmith.cost.overheads import Overheads
from einsmith.kernels import autoconfig
from einsmith.kernels.pattern import cost_of
from einsmith.schedule.kernel import Kernel
from einsmith.tuning.calibration.fitted import FITTED, MAX_FACTOR
from einsmith.tuning.kernels import refit
from einsmith.tuning.kernels.genetic import Candidate
from einsmith.tuning.kernels.refit import FitSample
from tests.kernels import samples
from tests.kernels.samples import product

HERE = Target(vector_bytes=64, vector_registers=32)
SIZES = [(24, 96, 40), (100, 60, 9), (7, 300, 64), (48, 48, 5), (130, 70, 17), (15, 33, 12), (64, 200, 8), (9, 9, 300)]
KERNELS = [product(m + n, k + 7 * n, r + n) for n in (0, 3) for m, k, r in SIZES]


@cache
def candidates(kernel: Kernel) -> Sequence[Candidate]:
    return [Candidate(name, c) for name, c, _ in autoconfig.choose(kernel, HERE).alternatives[:16:2]]


def measured(overheads: Overheads, noise: float = 0.0, count: int = 16) -> list[FitSample]:
    """The kernels, measured on a machine of these overheads."""
    draw = random.Random(3)
    out = []
    for kernel in KERNELS[:count]:
        target = Target(vector_bytes=64, vector_registers=32, overheads=overheads)
        seconds = {
            c: cost_of(autoconfig.pattern_of(c.pattern), kernel, c.config, target).rank * 2 * draw.uniform(1, 1 + noise)
            for c in candidates(kernel)
        }
        out.append(refit.sample_of(kernel, HERE, seconds))
    return out


def test_a_changed_coefficient_is_found() -> None:
    table = Overheads()
    result = refit.fit(measured(Overheads(broadcast=3 * table.broadcast)))
    assert result.accepted and result.fit.kernels == 16 and result.fit.measurements > 60
    (error, error_after), (regret, regret_after) = result.fit.error, result.fit.regret
    assert error_after < error / 2 and regret > 0.02 and regret_after < regret / 4
    assert result.fit.factors["broadcast"] > 1.5
    assert max(result.fit.factors.values()) == result.fit.factors["broadcast"]


@pytest.mark.slow
def test_where_the_table_is_right_it_stays() -> None:
    result = refit.fit(measured(Overheads(), noise=0.1))
    assert not result.accepted and all(0.6 < x < 1.7 for x in result.fit.factors.values())


def test_too_few_kernels_are_no_fit() -> None:
    assert refit.fit([]) == 0
    assert refit.fit(measured(Overheads(tile=60.0), count=5)) == 5


@pytest.mark.parametrize(("kernel", "count"), [(samples.bias_relu(30, 40), 0), (samples.columns("sum", 300, 40), 1)])
def test_kernels_without_overheads_do_not_count(kernel: Kernel, count: int) -> None:
    seconds = {Candidate(name, c): 1e-6 for name, c, _ in autoconfig.choose(kernel, HERE).alternatives[:8]}
    sample = refit.sample_of(kernel, HERE, seconds)
    assert len(sample) > 1 and refit.fit([sample] * 20) == count


def test_many_candidates_are_thinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refit, "MAX_CANDIDATES", 4)
    seconds = {c: 1e-6 * (n + 1) for n, c in enumerate(candidates(KERNELS[0]))}
    sample = refit.sample_of(KERNELS[0], HERE, seconds)
    assert len(sample) == 4 and sample.regret(-sample.log_seconds) == pytest.approx(len(seconds) - 1)
    assert refit.sample_of(KERNELS[0], HERE, dict([seconds.popitem()])) is None


def test_what_is_fitted() -> None:
    assert "broadcast" in FITTED and not {"latency", "held", "streams", "long_row"} & set(FITTED)
    changed = refit.overheads_of([refit.math.log(MAX_FACTOR)] * len(FITTED))
    assert changed.tile == pytest.approx(MAX_FACTOR * Overheads().tile, rel=1e-3)
    assert changed.latency == Overheads().latency
    assert repr(Overheads()) == "Overheads()" and repr(Overheads(tile=7.0)) == "Overheads(tile=7.0)"


@pytest.mark.parametrize(
    ("falls", "significant"),
    [
        ([0.0] * 19 + [2.0], False),
        ([0.1] * 12 + [0.0] * 8, True),
        ([0.0] * 20, False),
        ([-0.1] * 20, False),
        ([0.3, -0.2] * 10, False),
    ],
)
def test_a_fall_of_the_mean_regret_must_not_hang_on_one_kernel(falls: Sequence[float], significant: bool) -> None:
    assert refit.is_significant(falls) == significant
