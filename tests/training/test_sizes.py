"""Steps that share a program: batches of a further size are not traced where model and loss are Einsmith's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.random import default_rng

import einsmith as es
from einsmith import functional as F
from einsmith import nn
from einsmith.driver import executable, runs
from einsmith.training.compiler import StepCompiler


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The batches of which steps are traced."""
    batches: list[Any] = []
    trace = StepCompiler.trace
    monkeypatch.setattr(StepCompiler, "trace", lambda self, a, *x: batches.append(a) or trace(self, a, *x))
    return batches


def images(b: int, n: int, rng: np.random.Generator) -> tuple:
    return rng.normal(size=(b, 3, n, n)).astype("f"), rng.integers(0, 5, b)


def rows(b: int, n: int, rng: np.random.Generator) -> tuple:
    x, y = rng.normal(size=(2, b, n, 16)).astype("f")
    return x, y


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.GELU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5),
    )  # fmt: skip


CASES: dict[str, tuple[Callable, Any, Callable, bool, int]] = {
    # the model, its loss, its batches, whether lengths vary, and most of 22 sizes at which a condition does not hold
    "MLP": (
        lambda: nn.Sequential(nn.Flatten(1), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)),
        nn.CrossEntropyLoss(),
        lambda b, n, rng: (rng.normal(size=(b, 16)).astype("f"), rng.integers(0, 4, b)),
        False,
        0,
    ),
    "convolutions": (convolutions, F.cross_entropy, images, True, 2),
    "encoder": (
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True), 2),
        es.op("l[] = sum[b,t,k]((x[b,t,k] - y[b,t,k])**2)/(x.shape[0]*x.shape[1])"),
        rows,
        True,
        1,
    ),
}


def sizes_of(varies: bool) -> Iterator[tuple[int, int]]:
    rng = default_rng(5)
    yield from [(12, 14), (9, 11 if varies else 14)]
    for _ in range(22):
        yield int(rng.integers(2, 24)), int(rng.integers(4, 28)) if varies else 14


def copy_of(make: Callable, state: Any) -> nn.Module:
    model = make()
    model.load_state_dict(state)
    return model


@pytest.mark.parametrize("name", CASES)
def test_further_sizes_are_not_traced(name: str, traced: list) -> None:
    make, loss, batch, varies, most = CASES[name]
    model, other = make(), make()
    shared = es.TrainStep(model, loss, es.optim.SGD(lr=0.02), sizes="shared")
    each = es.TrainStep(other, loss, es.optim.SGD(lr=0.02), sizes="each")
    counts = []
    for n, (b, t) in enumerate(sizes_of(varies)):
        arrays, before, is_compared = batch(b, t, default_rng(n)), len(traced), n % 7 == 3 or name == "MLP"
        if is_compared:
            other.load_state_dict(model.state_dict())
        value = shared(*arrays)
        counts.append(len(traced) - before)
        if is_compared:
            np.testing.assert_allclose(value, each(*arrays), rtol=1e-5, err_msg=f"{b}, {t}")
            for key, x in other.state_dict().items():
                np.testing.assert_allclose(model.state_dict()[key], x, rtol=1e-4, atol=1e-5, err_msg=key)
    # Batches and lengths have fallen by as much together; two traces tell that they need not.
    assert counts[0] == 1 and counts[1] <= (6 if varies else 4) and sum(counts[2:]) <= most


def test_a_size_that_is_used_often_gets_its_own_program(monkeypatch) -> None:
    compiled: list = []
    compile_graph = executable.compile_graph
    monkeypatch.setattr(executable, "compile_graph", lambda *a, **k: compiled.append(1) or compile_graph(*a, **k))
    monkeypatch.setattr(runs, "OUTGROWN_RUNS", 3)
    model = nn.Sequential(nn.Linear(4, 4))
    step = es.TrainStep(model, F.mse_loss, es.optim.SGD(lr=0.1), sizes="auto")
    counts = []
    for b in (12, 10, 9, 9, 9, 9, 9, 10, 12):
        w, bias = model.state_dict().values()
        x, y = default_rng(b).normal(size=(2, b, 4)).astype("f")
        np.testing.assert_allclose(step(x, y), ((x @ w.T + bias - y) ** 2).mean(), rtol=1e-5)
        counts.append(len(compiled))
    assert counts == [1, 2, 2, 2, 2, 3, 3, 3, 3]


class Choosing(nn.Module):
    """A model that decides by a size in a way that leaves no record, and by Python's own state."""

    def __init__(self) -> None:
        self.linear, self.calls = nn.Linear(4, 4), 0

    def forward(self, x: Any) -> Any:
        y = self.linear(x)
        return y * 3 if x.shape[0] in {5, 7} else y


def hooked(calls: list) -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4))
    model[0].register_forward_hook(lambda *_: calls.append(1))
    return model


@pytest.mark.parametrize("what", ["model", "loss", "hook"])
def test_code_of_others_is_traced_for_each_size(what: str, traced: list) -> None:
    calls: list[int] = []

    def lines(output: Any, target: Any) -> Any:
        calls.append(1)
        return ((output - target) ** 2).mean() * (2 if output.shape[0] in {4, 9} else 1)

    def make() -> nn.Module:
        return Choosing() if what == "model" else hooked(calls) if what == "hook" else nn.Sequential(nn.Linear(4, 4))

    loss = lines if what == "loss" else F.mse_loss
    state = make().state_dict()
    shared, each = (es.TrainStep(copy_of(make, state), loss, es.optim.SGD(lr=0.1), sizes=s) for s in ("shared", "each"))
    for n, b in enumerate((12, 10, *range(2, 21))):
        arrays, before, called = default_rng(n).normal(size=(2, b, 4)).astype("f"), len(traced), len(calls)
        value = shared(*arrays)
        assert b in (12, 10) or len(traced) > before
        assert what == "model" or len(calls) - called == len(traced) - before or b in (12, 10)
        np.testing.assert_allclose(value, each(*arrays), rtol=1e-5)


def test_changes_of_the_step_are_seen(traced: list) -> None:
    """Other modes, parts, hooks, and losses have traces and programs of their own."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.0), nn.Linear(4, 4))
    step = es.TrainStep(model, F.mse_loss, es.optim.SGD(lr=0.0), sizes="shared")

    def at(b: int) -> tuple[float, int]:
        x, before = default_rng(b).normal(size=(2, b, 4)).astype("f"), len(traced)
        return step(*x), len(traced) - before

    first = {b: at(b)[0] for b in (12, 10, 7, 5)}
    assert at(6)[1] == 0
    step.loss = F.l1_loss
    assert at(12)[1] > 0 and at(12)[0] != first[12]
    step.loss = F.mse_loss
    for b in (12, 10):
        at(b)
    assert at(8)[1] == 0
    handle = model[0].register_forward_hook(lambda m, a, y: y * 2)
    assert at(7)[1] > 0 and at(7)[0] != first[7] and at(9)[1] > 0
    handle.remove()
    model[0].weight.requires_grad = False
    assert at(5)[0] == pytest.approx(first[5], rel=1e-5)
    model[2] = nn.Linear(4, 4)
    assert at(7)[1] > 0 and at(7)[0] != pytest.approx(first[7], rel=1e-3)


def test_gathered_batches_are_not_traced(traced: list) -> None:
    """Steps that accumulate have programs that gather, and ones that update."""
    model = nn.Linear(4, 4)
    settings = dict(accumulate=2, clip_grad_norm=1.0)
    shared = es.TrainStep(model, F.mse_loss, es.optim.Adam(lr=0.01), sizes="shared", **settings)
    each = es.TrainStep(
        copy_of(lambda: nn.Linear(4, 4), model.state_dict()), F.mse_loss, es.optim.Adam(lr=0.01), **settings
    )
    for n, b in enumerate((12, 12, 10, 10, 7, 5, 5, 7, 3, 9, 11, 11)):
        arrays, before = default_rng(n).normal(size=(2, b, 4)).astype("f"), len(traced)
        value = shared(*arrays)
        assert n < 4 or len(traced) == before
        np.testing.assert_allclose(value, each(*arrays), rtol=1e-4)
        assert shared.grad_norm == each.grad_norm or shared.grad_norm == pytest.approx(each.grad_norm, rel=1e-4)
