"""Images of integer programs, all channels last: the same results, and only where the whole program gains."""

from collections.abc import Callable

import numpy as np
import pytest

import einsmith as es
from einsmith.schedule.layout import channels_last
from tests.programs import programs_of

RNG = np.random.default_rng(8)


@pytest.fixture(autouse=True)
def unstored(monkeypatch):
    """Plan anew: a stored plan does not tell by which gain it was decided."""
    monkeypatch.setenv("EINSMITH_PLANS", "0")


def chain() -> es.nn.Module:
    return es.nn.Sequential(
        es.nn.Conv2d(3, 17, 3, padding=1), es.nn.ReLU(), es.nn.Conv2d(17, 32, 3, stride=2), es.nn.ReLU(),
        es.nn.MaxPool2d(2), es.nn.Conv2d(32, 9, 1), es.nn.ReLU(), es.nn.Flatten(), es.nn.Linear(81, 5),
    )  # fmt: skip


class Residual(es.nn.Module):
    def __init__(self) -> None:
        self.a, self.b, self.c = (es.nn.Conv2d(i, 16, 3, padding=1) for i in (3, 16, 16))

    def forward(self, x):
        x = es.functional.relu(self.a(x))
        return es.functional.relu(self.c(es.functional.relu(self.b(x))) + x).mean((2, 3))


def quantized(make: Callable[[], es.nn.Module], batch: int) -> tuple[es.nn.Module, np.ndarray]:
    es.manual_seed(1)
    model = make()
    model.eval()
    x = RNG.standard_normal((batch, 3, 14, 14)).astype(np.float32)
    return es.quantize(model, [x, x * 0.5]), x


def orders(function: Callable) -> list[tuple]:
    (run,) = programs_of(function)
    return [c.order for c in run.plan.orders.values()]


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("make", [chain, Residual])
def test_programs_compute_the_same(make, batch, monkeypatch):
    model, x = quantized(make, batch)
    monkeypatch.setattr(channels_last, "LEAST_GAIN", float("inf"))
    plain = es.jit(model)
    wanted = plain(x)
    monkeypatch.setattr(channels_last, "LEAST_GAIN", float("-inf"))
    last = es.jit(model)
    np.testing.assert_allclose(last(x), wanted, rtol=1e-5, atol=1e-6)  # sums of floats are in another order
    assert not orders(plain) and len(orders(last)) >= 2 and set(orders(last)) == {(0, 2, 3, 1)}


def test_networks_of_floats_keep_their_order(monkeypatch):
    monkeypatch.setattr(channels_last, "LEAST_GAIN", float("-inf"))
    function = es.jit(chain())
    function(RNG.standard_normal((2, 3, 14, 14)).astype(np.float32))
    assert not orders(function)


def test_the_pass_can_be_left_out(monkeypatch):
    monkeypatch.setattr(channels_last, "LEAST_GAIN", float("-inf"))
    monkeypatch.setenv("EINSMITH_WITHOUT", "layouts")
    model, x = quantized(chain, 2)
    function = es.jit(model)
    function(x)
    assert not orders(function)
