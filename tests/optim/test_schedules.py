"""Schedules against torch.optim.lr_scheduler, at every step; and their errors and descriptions."""

from __future__ import annotations

import json

import numpy as np
import pytest

import einsmith as es
from einsmith.optim import lr_scheduler

CASES = [
    ("ConstantLR", {"factor": 0.25, "total_iters": 4}), ("ConstantLR", {}),
    ("LinearLR", {"start_factor": 0.1, "end_factor": 0.7, "total_iters": 6}), ("LinearLR", {}),
    ("StepLR", {"step_size": 3, "gamma": 0.5}), ("MultiStepLR", {"milestones": [2, 5, 5, 9], "gamma": 0.3}),
    ("ExponentialLR", {"gamma": 0.9}), ("PolynomialLR", {"total_iters": 7, "power": 2.0}),
    ("CosineAnnealingLR", {"T_max": 7, "eta_min": 0.01}), ("CosineAnnealingLR", {"T_max": 30}),
    ("CosineAnnealingWarmRestarts", {"T_0": 4, "T_mult": 2, "eta_min": 0.02}),
    ("CosineAnnealingWarmRestarts", {"T_0": 5}),
]  # fmt: skip


def torch_rates(torch, make, steps, key="lr", **options):
    p = torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))
    optimizer = torch.optim.SGD([p], lr=0.3, momentum=0.9)
    schedule = make(optimizer)
    out = []
    for _ in range(steps):
        out.append(optimizer.param_groups[0][key])
        p.grad = torch.zeros_like(p)
        optimizer.step()
        schedule.step()
    return out


@pytest.mark.parametrize("name, options", CASES, ids=[f"{n}-{i}" for i, (n, _) in enumerate(CASES)])
def test_rates_equal_torch(torch, name, options) -> None:
    want = torch_rates(torch, lambda o: getattr(torch.optim.lr_scheduler, name)(o, **options), 25)
    schedule = getattr(lr_scheduler, name)(0.3, **options)
    np.testing.assert_allclose([schedule(n) for n in range(1, 26)], want, rtol=1e-12, atol=1e-15)
    by_epoch = getattr(lr_scheduler, name)(0.3, **options, every=3)
    np.testing.assert_allclose([by_epoch(n) for n in range(1, 76)], np.repeat(want, 3), rtol=1e-12, atol=1e-15)
    again = lr_scheduler.restore(json.loads(json.dumps(schedule.describe())))
    assert [again(n) for n in range(1, 26)] == [schedule(n) for n in range(1, 26)]


@pytest.mark.parametrize(
    "options",
    [{}, {"pct_start": 0.5, "anneal_strategy": "linear"}, {"three_phase": True, "pct_start": 0.4, "div_factor": 10.0}],
)
def test_one_cycle_equals_torch(torch, options) -> None:
    def make(optimizer):
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.5, total_steps=21, **options)

    schedule = lr_scheduler.OneCycleLR(0.5, 21, **options)
    steps = range(1, 21)
    np.testing.assert_allclose([schedule(n) for n in steps], torch_rates(torch, make, 20), rtol=1e-12)
    momentum = schedule.momentum()
    np.testing.assert_allclose([momentum(n) for n in steps], torch_rates(torch, make, 20, "momentum"), rtol=1e-12)
    assert schedule(1000) == schedule(21)
    again = lr_scheduler.restore(json.loads(json.dumps(momentum.describe())))
    assert [again(n) for n in steps] == [momentum(n) for n in steps]


def test_warm_up_then_cosine_equals_torch(torch) -> None:
    def make(o):
        s = torch.optim.lr_scheduler
        parts = [s.LinearLR(o, 0.1, total_iters=4), s.CosineAnnealingLR(o, 9), s.ConstantLR(o, 0.01, 100)]
        return s.SequentialLR(o, parts, milestones=[4, 13])

    schedule = lr_scheduler.SequentialLR(
        [
            lr_scheduler.LinearLR(0.3, 0.1, total_iters=4),
            lr_scheduler.CosineAnnealingLR(0.3, 9),
            lr_scheduler.ConstantLR(0.3, 0.01, 100),
        ],
        milestones=[4, 13],
    )
    want = torch_rates(torch, make, 20)
    np.testing.assert_allclose([schedule(n) for n in range(1, 21)], want, rtol=1e-12, atol=1e-15)
    again = lr_scheduler.restore(json.loads(json.dumps(schedule.describe())))
    assert [again(n) for n in range(1, 21)] == [schedule(n) for n in range(1, 21)]


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize(
    "options",
    [{"patience": 1, "factor": 0.5}, {"patience": 0, "cooldown": 2, "threshold": 0.1, "threshold_mode": "abs"},
     {"patience": 0, "factor": 0.1, "min_lr": 0.01}],
)  # fmt: skip
def test_plateau_equals_torch(torch, rng, mode, options) -> None:
    p = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([p], lr=0.3)
    theirs = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode, **options)
    schedule = lr_scheduler.ReduceLROnPlateau(0.3, mode, **options)
    for value in np.cumsum(rng.normal(size=60) * 0.2) + 3:
        theirs.step(value)
        schedule.step(value)
        assert schedule(7) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-12)
        schedule = lr_scheduler.restore(json.loads(json.dumps(schedule.describe())))


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("threshold_mode", ["rel", "abs"])
@pytest.mark.parametrize("threshold", [0.0, 1e-4, 0.3])
def test_plateau_equals_torch_beyond_the_finite_numbers(torch, rng, mode, threshold_mode, threshold) -> None:
    worst = np.inf if mode == "min" else -np.inf
    for special in ([worst, np.nan], [np.inf, -np.inf, np.nan]):
        for patience, cooldown in ((0, 0), (1, 2), (3, 0)):
            values = np.cumsum(rng.normal(size=40) * 0.5)
            values[rng.integers(0, 40, 8)] = rng.choice(special, 8)
            values[: rng.integers(1, 4)] = worst
            options = {"threshold": threshold, "threshold_mode": threshold_mode, "patience": patience}
            optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=0.3)
            theirs = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode, cooldown=cooldown, **options)
            schedule = lr_scheduler.ReduceLROnPlateau(0.3, mode, cooldown=cooldown, **options)
            for value in values:
                theirs.step(value)
                schedule.step(value)
                assert schedule.lr == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-12), values
                assert (schedule.bad_epochs, schedule.cooldown_left) == (theirs.num_bad_epochs, theirs.cooldown_counter)
                schedule = lr_scheduler.restore(json.loads(json.dumps(schedule.describe())))


@pytest.mark.parametrize("mode, worst", [("min", float("inf")), ("max", float("-inf"))])
def test_finite_results_are_better_than_an_infinite_one(mode, worst) -> None:
    """Early stopping and the rate on a plateau count none of them as bad."""
    sign = 1.0 if mode == "min" else -1.0
    for delta in (0.0, 0.1):
        schedule = lr_scheduler.ReduceLROnPlateau(1.0, mode, patience=1, threshold=delta)
        stopping = es.callbacks.EarlyStopping("loss", patience=2, min_delta=delta, mode=mode)
        history = []
        for value in (worst, 5 * sign, 4 * sign, 3 * sign, 2 * sign, 1 * sign):
            schedule.step(value)
            history.append({"loss": value})
            assert not stopping._over(history)
        assert schedule.lr == 1.0 and schedule.best == sign


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: lr_scheduler.StepLR(0.1, 0), "step_size=0 must be an integer"),
        (lambda: lr_scheduler.StepLR(-0.1, 3), "lr=-0.1"),
        (lambda: lr_scheduler.MultiStepLR(0.1, [5, 2]), "rising"),
        (lambda: lr_scheduler.CosineAnnealingLR(0.1, 2.5), "T_max=2.5"),
        (lambda: lr_scheduler.OneCycleLR(0.1, 10, anneal_strategy="cosine"), "anneal_strategy"),
        (lambda: lr_scheduler.SequentialLR([lr_scheduler.LinearLR(0.1)], [3]), "milestones"),
        (
            lambda: lr_scheduler.SequentialLR([lr_scheduler.LinearLR(0.1), lr_scheduler.ReduceLROnPlateau(0.1)], [3]),
            "SequentialLR: .*alone",
        ),
        (lambda: lr_scheduler.ReduceLROnPlateau(0.1, "least"), "mode"),
        (lambda: lr_scheduler.ReduceLROnPlateau(0.1, factor=1.5), "factor"),
        (lambda: lr_scheduler.ReduceLROnPlateau(0.1).observe({"loss": 1.0}), "val_loss"),
    ],
)
def test_errors(make, words) -> None:
    with pytest.raises(es.ArgumentError, match=words):
        make()
