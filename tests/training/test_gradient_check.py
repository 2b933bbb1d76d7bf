"""EINSMITH_CHECK=gradients: derived gradients of a user's network against central differences, at its first step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.random import default_rng

import einsmith as es
from einsmith.autodiff import reverse
from einsmith.base import environment
from einsmith.ir.functions import FUNCTIONS
from einsmith.ir.nodes import apply
from einsmith.training import gradient_check

F = es.functional


@pytest.fixture(autouse=True)
def checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EINSMITH_CHECK", "gradients")


class Net(es.nn.Module):
    def __init__(self, activation) -> None:
        self.first, self.second, self.third = es.nn.Linear(6, 8), es.nn.Linear(8, 7), es.nn.Linear(7, 3)
        self.activation = activation

    def forward(self, x):
        return self.third(self.activation(self.second(F.relu(self.first(x)))))


def batch(n: int = 5) -> tuple[np.ndarray, np.ndarray]:
    rng = default_rng(0)
    return rng.standard_normal((n, 6)).astype(np.float32), rng.integers(0, 3, n)


def trained(model: es.nn.Module, *arrays: np.ndarray, loss=F.cross_entropy, **options) -> es.TrainStep:
    step = es.TrainStep(model, loss, es.optim.SGD(lr=0.1), **options)
    step(*arrays)
    return step


def count_checks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list to which each check of gradients adds the number of its samples."""
    calls: list[int] = []
    check = gradient_check.check_gradients
    monkeypatch.setattr(gradient_check, "check_gradients", lambda *a: calls.append(len(a[1][0])) or check(*a))
    return calls


ACTIVATIONS = {
    "relu": F.relu,
    "softplus, with a derivative of its own": F.softplus,
    "a maximum with ties": lambda x: F.amax(F.cat([x, x], 0).reshape((2, *x.shape)), 0),
    "steps": lambda x: x * F.floor(x),
    "stopped": lambda x: x * es.stop_gradient(F.tanh(x)),
    "straight through": lambda x: x + es.stop_gradient(F.round(x) - x),
    "stopped within a stopped one": lambda x: x * es.stop_gradient(x * es.stop_gradient(x)),
}


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_right_gradients_pass(activation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of stop_gradient too, which are not the differences of the values."""
    es.manual_seed(0)
    checked = count_checks(monkeypatch)
    step = trained(Net(ACTIVATIONS[activation]), *batch())
    assert step.steps == 1 and len(checked) == 1


@pytest.mark.slow
def test_networks_of_the_package_pass() -> None:
    es.manual_seed(0)
    rng = default_rng(1)
    images = rng.standard_normal((6, 1, 28, 28)).astype(np.float32)
    trained(es.models.lenet5(), images, rng.integers(0, 10, 6))
    layers = es.nn.Sequential(
        es.nn.Linear(6, 8), es.nn.BatchNorm1d(8), es.nn.GELU(), es.nn.Dropout(0.3), es.nn.Linear(8, 3)
    )
    trained(layers, *batch(), clip_grad_norm=1.0, accumulate=2)


def test_a_recurrent_network_passes() -> None:
    class Recurrent(es.nn.Module):
        def __init__(self) -> None:
            self.cell, self.out = es.nn.LSTM(4, 5, batch_first=True), es.nn.Linear(5, 3)

        def forward(self, x):
            return self.out(self.cell(x)[0][:, -1])

    es.manual_seed(0)
    x = default_rng(0).standard_normal((3, 6, 4)).astype(np.float32)
    trained(Recurrent(), x, np.array([0, 2, 1]))


def test_a_point_on_a_kink_passes() -> None:
    """Every element of the first layer's output is exactly 0, where ReLU has no derivative."""
    model = Net(F.relu)
    for p in model.first.parameters():
        p.data = np.zeros(p.shape, np.float32)
    trained(model, *batch())


def wrong_tanh(monkeypatch: pytest.MonkeyPatch) -> None:
    (right,) = FUNCTIONS["tanh"].adjoint
    wrong = replace(FUNCTIONS["tanh"], adjoint=(lambda g, a, out: apply("neg", right(g, a, out)),))
    monkeypatch.setitem(FUNCTIONS, "tanh", wrong)


def test_a_wrong_gradient_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The layer nearest to the loss that it reaches, before anything is updated."""
    wrong_tanh(monkeypatch)
    es.manual_seed(0)
    model = Net(lambda x: F.tanh(x * 1.375))
    before = {n: v.copy() for n, v in model.state_dict().items()}
    step = es.TrainStep(model, F.cross_entropy, es.optim.SGD(lr=0.1))
    with pytest.raises(es.GradientError) as told:
        step(*batch())
    text = str(told.value)
    assert "step 1: the derived gradient of the loss by second.bias (Linear at 'second') is" in text
    assert "those by first.weight, first.bias, second.weight differ too" in text
    assert "those by third.weight, third.bias agree" in text
    assert step.steps == 0 and all((before[n] == v).all() for n, v in model.state_dict().items())
    with pytest.raises(es.GradientError):  # the next step is checked again
        step(*batch())
    monkeypatch.setenv("EINSMITH_CHECK", "0")
    step(*batch())


def test_a_gradient_that_is_left_out_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    add = reverse.add
    monkeypatch.setattr(reverse, "add", lambda terms: add(terms[:1] if terms[0].shape == (4, 7) else terms))
    with pytest.raises(es.GradientError, match=r"by second\.\w+ \(Linear at 'second'\)"):
        trained(Net(lambda x: F.sin(x) * 1.25 + x), *batch())


def test_each_program_is_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = count_checks(monkeypatch)
    step = trained(Net(F.relu), *batch(5))
    step(*batch(5))
    step(*batch(3))
    step(*batch(5))
    assert calls == [5, 3]
    step.optimizer = es.optim.Adam(lr=0.1)
    step(*batch(5))
    assert calls == [5, 3, 5]


def test_kernels_are_not_checked_with_them() -> None:
    assert environment.check_level() == 0 and environment.checks_gradients()


@pytest.mark.parametrize("text, meant", [
    ("", (0, False)), ("2", (2, False)), ("gradients", (0, True)), ("gradients,1", (1, True)),
    ("2, gradients", (2, True)),
])  # fmt: skip
def test_what_the_variable_means(text: str, meant: tuple[int, bool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EINSMITH_CHECK", text)
    assert environment.CHECK.get() == meant


@pytest.mark.parametrize("text", ["3", "gradient", "1,2", "gradients,gradients", "gradients,1,2"])
def test_what_the_variable_may_not_be(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EINSMITH_CHECK", text)
    with pytest.raises(es.KnobError, match="takes 0, 1, 2, gradients, or two of them"):
        environment.check_level()
