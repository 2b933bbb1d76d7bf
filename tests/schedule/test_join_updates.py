"""Short updates in one launch: legal places, the same values bit for bit, on CPUs and on tiles, and where it pays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import einsmith as es
from einsmith import nn
from einsmith.base.environment import CHECK
from einsmith.driver import compile, registry
from einsmith.driver.bound_program import BoundProgram
from einsmith.kernels import autoconfig
from einsmith.schedule import join_updates
from einsmith.schedule.join_updates import _groups
from einsmith.schedule.kernel import Rows
from einsmith.schedule.row_fusion import MAX_MEMBERS
from einsmith.schedule.together import find_dependences
from tests.schedule.test_together import draw_plan, have_hazard
from tests.tiles.backend import Tiles

WITHOUT = "joined updates"


class Normed(nn.Module):
    """Layers whose norms and biases have few elements. features: of the hidden layer."""

    def __init__(self, features: int):
        self.layers = nn.Sequential(
            nn.Linear(13, features), nn.BatchNorm1d(features), nn.ReLU(), nn.Linear(features, features),
            nn.BatchNorm1d(features), nn.ReLU(), nn.Linear(features, 3),
        )  # fmt: skip

    def forward(self, x: Any) -> Any:
        return self.layers(x)


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Updates are joined whatever they gain."""
    monkeypatch.setattr(join_updates, "MIN_GAIN", -1e9)
    known = compile.predicted
    monkeypatch.setattr(compile, "predicted", lambda k, t: 0.0 if isinstance(k, Rows) and k.is_joined else known(k, t))


def train(features: int, threads: int, optimizer: Any, **options: Any) -> tuple[list[float], dict, BoundProgram]:
    rng = np.random.default_rng(5)
    es.manual_seed(0)
    model = Normed(features)
    step = es.TrainStep(model, es.functional.cross_entropy, optimizer, threads=threads, **options)
    x, y = rng.standard_normal((9, 13)).astype(np.float32), rng.integers(0, 3, 9)
    losses = [float(step(x, y)) for _ in range(3)]
    *_, run = step.compiler.programs.values()  # the one that updates, of those that accumulate gradients
    state = {n: np.array(v) for n, v in model.state_dict().items()}
    return losses, state | {f"state {n}": np.array(v.data) for n, v in step.current_state().items()}, run


def joined(run: BoundProgram) -> list[Rows]:
    return [c.kernel for c in run.calls if isinstance(c.kernel, Rows) and c.kernel.is_joined]


OPTIMIZERS = {
    "momentum": lambda: es.optim.SGD(lr=0.1, momentum=0.9),
    "adam": lambda: es.optim.Adam(lr=1e-2, weight_decay=0.1),
}


@pytest.mark.parametrize("options", [{}, {"clip_grad_norm": 0.1}, {"ema": 0.9}, {"accumulate": 2}], ids=str)
@pytest.mark.parametrize("features, threads", [(1, 1), (7, 2), (16, 1), (17, 2), (64, 2)])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_steps_are_the_same_bit_for_bit(optimizer, features, threads, options, forced, monkeypatch) -> None:
    made = OPTIMIZERS[optimizer]
    losses, state, run = train(features, threads, made(), **options)
    kernels = joined(run)
    assert kernels and all(2 <= len(k.members) <= MAX_MEMBERS for k in kernels)
    assert all(len(x.launches) == 1 for x, c in zip(run.kernels, run.calls, strict=True) if c.kernel in kernels)
    monkeypatch.setenv("EINSMITH_WITHOUT", WITHOUT)
    others, want, apart = train(features, threads, made(), **options)
    assert not joined(apart) and len(run.calls) == len(apart.calls) - sum(len(k.members) - 1 for k in kernels)
    assert losses == others
    for name, value in want.items():
        np.testing.assert_array_equal(state[name], value, err_msg=name)


def test_checked_runs_of_joined_updates(forced, monkeypatch) -> None:
    """In guarded memory, each kernel against the evaluator."""
    monkeypatch.setenv(CHECK.name, "2")
    losses, _, run = train(17, 1, OPTIMIZERS["adam"]())
    assert joined(run) and losses[-1] < losses[0]


@pytest.mark.parametrize("way", ["interpreter", "text"])
def test_tiles(way, forced, monkeypatch) -> None:
    losses, state, _ = train(7, 1, OPTIMIZERS["momentum"]())
    made = Tiles(way=way)
    monkeypatch.setenv(CHECK.name, "0")
    monkeypatch.setattr(registry, "BACKENDS", {**registry.BACKENDS, made.name: made})
    monkeypatch.setattr(autoconfig, "OTHERS", {made.name: made.patterns})
    monkeypatch.setattr(registry, "DEFAULT", made)
    others, tiled, run = train(7, 1, OPTIMIZERS["momentum"]())
    assert joined(run) and made.used["joined"]
    np.testing.assert_allclose(others, losses, rtol=2e-5)
    for name, value in state.items():
        np.testing.assert_allclose(tiled[name], value, rtol=1e-3, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("seed", range(50))
def test_groups_can_run_where_the_last_of_them_does(seed) -> None:
    rng = np.random.default_rng(seed)
    plan = draw_plan(rng)
    numbers = sorted(rng.choice(len(plan.calls), 8, False).tolist())
    groups = _groups(numbers, find_dependences(plan))
    place = {n: n for n in range(len(plan.calls))} | {n: g[-1] for g in groups for n in g}
    for i in range(len(plan.calls)):
        for j in range(i):
            if have_hazard(plan, i, j):
                assert place[j] < place[i], (i, j, groups)


def test_random_plans_have_groups() -> None:
    rng = np.random.default_rng(0)
    assert any(_groups(range(14), find_dependences(draw_plan(rng))) for _ in range(20))


def test_joined_where_it_pays(monkeypatch) -> None:
    """Ten updates of 2 us each are one launch of less than 4 us on a card. On a CPU calls of 0.1 us are joined where
    the step is short, and else it is told what they take."""
    monkeypatch.setenv("EINSMITH_WITHOUT", WITHOUT)
    *_, run = train(17, 1, OPTIMIZERS["momentum"]())
    plan, target = run.plan, registry.target_of("h100", 1)
    on_card = join_updates.join_updates(plan, compile.predicted, target)
    (call,) = [c for _, c, _ in on_card.kernel_calls() if isinstance(c.kernel, Rows) and c.kernel.is_joined]
    assert call.prices is not None and call.prices.fused < 4e-6 < 1.5e-5 < call.prices.apart
    assert len(on_card.calls) == len(plan.calls) - len(call.parts) + 1
    short = join_updates.join_updates(plan, compile.predicted, run.target)
    assert any(isinstance(c.kernel, Rows) and c.kernel.is_joined for _, c, _ in short.kernel_calls())
    monkeypatch.setattr(join_updates, "MIN_GAIN", 0.5)
    stays = join_updates.join_updates(plan, compile.predicted, run.target)
    assert stays.calls == plan.calls
    (refusal,) = [r for r in stays.refusals.values() if "short updates gains less than 50% of the run" in r.reason]
    assert refusal.streamed is not None and refusal.stored is not None and refusal.streamed < refusal.stored
