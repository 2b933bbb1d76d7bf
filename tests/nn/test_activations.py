"""Activations of extreme and of small numbers beside torch's, those that draw numbers, and bad options."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import einsmith as es  # noqa: E402
from einsmith import functional as F  # noqa: E402
from einsmith import nn  # noqa: E402
from einsmith.base.errors import ArgumentError, DtypeError, ShapeError  # noqa: E402

EXTREMES = [0.0, -0.0, 1e-30, -1e-30, 88.0, -88.0, 1000.0, -1000.0, 1e30, -1e30, np.inf, -np.inf, np.nan]
STABLE = [
    "relu", "relu6", "tanh", "sigmoid", "silu", "mish", "selu", "elu", "celu", "softplus", "softsign", "logsigmoid",
    "hardswish", "hardsigmoid", "hardtanh", "softshrink", "hardshrink", "leaky_relu", "gelu", "tanhshrink",
]  # fmt: skip


@pytest.mark.parametrize("name", STABLE)
def test_extreme_inputs(run, name) -> None:
    x = np.array(EXTREMES)
    wanted = getattr(torch.nn.functional, name)(torch.tensor(x)).numpy()
    found = run(getattr(F, name), x)
    if name == "hardswish":  # torch multiplies by 0 at minus infinity
        wanted[-2] = 0
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-300)


@pytest.mark.parametrize("name", ["softplus", "logsigmoid", "mish", "elu", "log1p", "expm1"])
def test_gradients_stay_finite(name) -> None:
    x = np.array([-1e4, -90.0, -1e-8, 1e-8, 20.5, 80.0], np.float32)
    x = x if name != "log1p" else np.abs(x)
    f = es.functional.log1p if name == "log1p" else getattr(F, name)
    first = es.grad(lambda x: f(x).sum())(x)
    second = es.grad(lambda x: es.grad(lambda x: f(x).sum())(x).sum())(x)
    t = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    peer = getattr(torch.nn.functional, name, None) or getattr(torch, name)
    (a,) = torch.autograd.grad(peer(t).sum(), t, create_graph=True)
    (b,) = torch.autograd.grad(a.sum(), t)
    np.testing.assert_allclose(first, a.detach().numpy(), rtol=3e-6, atol=1e-7)
    np.testing.assert_allclose(second, b.numpy(), rtol=2e-5, atol=1e-7)


def test_small_numbers_keep_their_digits() -> None:
    x = np.array([1e-12, -3e-7, 2.5e-4, -1e-20], np.float32)
    exact = x.astype(np.float64)
    np.testing.assert_allclose(F.log1p(x), np.log1p(exact), rtol=3e-7)
    np.testing.assert_allclose(F.expm1(x), np.expm1(exact), rtol=3e-7)
    np.testing.assert_allclose(F.elu(-np.abs(x)), np.expm1(-np.abs(exact)), rtol=3e-7)
    np.testing.assert_allclose(F.softplus(np.float32([-60.0, -30.0])), np.exp([-60.0, -30.0]), rtol=3e-6)
    f = es.op("y[] = log1p(sum[i](x[i])) + softplus(0) + expm1(0)")
    np.testing.assert_allclose(f(x), np.log1p(exact.sum()) + np.log(2), rtol=1e-6)


def test_logsumexp_of_infinities(run) -> None:
    x = np.array([[-np.inf, -np.inf], [-np.inf, 1], [np.inf, 1], [np.inf, -np.inf], [np.nan, 1], [1e300, 1e300]])
    wanted = torch.logsumexp(torch.tensor(x), 1).numpy()
    np.testing.assert_array_equal(run(lambda x: F.logsumexp(x, 1), x), wanted)


def test_vectors_of_zeros_are_squashed_smoothly() -> None:
    gradient = es.grad(lambda x: F.squash(x).sum())(np.zeros((2, 3)))
    np.testing.assert_array_equal(gradient, np.zeros((2, 3)))


def test_rrelu_draws_slopes() -> None:
    es.manual_seed(3)
    x = -np.ones(4000, np.float32)
    y = F.rrelu(x, 0.1, 0.5, training=True)
    assert -0.5 <= y.min() < -0.49 and -0.11 < y.max() <= -0.1
    assert abs(y.mean() + 0.3) < 4 * 0.4 / np.sqrt(12 * x.size) and abs(y.std() - 0.4 / np.sqrt(12)) < 0.005
    assert not np.array_equal(y, F.rrelu(x, 0.1, 0.5, training=True))
    layer = nn.RReLU(0.1, 0.5)
    value, gradient = es.value_and_grad(lambda x: (layer(x) * np.arange(4000.0)).sum())(x)
    np.testing.assert_allclose(-gradient.sum(), value, rtol=1e-5)
    assert 0.1 <= (gradient[1:] / np.arange(1.0, 4000)).min() < (gradient[1:] / np.arange(1.0, 4000)).max() <= 0.5
    np.testing.assert_allclose(layer.eval()(x), 0.3 * x)


def test_gumbel_softmax_draws_categories(rng) -> None:
    es.manual_seed(1)
    logits = np.log(np.array([0.1, 0.6, 0.3], np.float32))
    y = F.gumbel_softmax(np.tile(logits, (4000, 1)), tau=0.7)
    np.testing.assert_allclose(y.sum(1), 1, rtol=1e-5)
    hard = F.gumbel_softmax(np.tile(logits, (4000, 1)), hard=True, dim=1)
    assert set(np.unique(hard)) == {0.0, 1.0} and (hard.sum(1) == 1).all()
    for shares in (hard.mean(0), np.eye(3)[y.argmax(1)].mean(0)):
        assert np.abs(shares - [0.1, 0.6, 0.3]).max() < 4 * np.sqrt(0.25 / 4000)
    gradient = es.grad(lambda x: (F.gumbel_softmax(x, hard=True) * np.arange(3.0)).sum())(logits)
    assert np.abs(gradient).max() > 0 and abs(gradient.sum()) < 1e-5


def test_a_dimension_that_is_not_given(run, rng) -> None:
    for shape, dim in (((3,), 0), ((3, 4), 1), ((3, 4, 2), 0), ((2, 3, 2, 2), 1)):
        x = rng.normal(size=shape)
        with pytest.warns(UserWarning, match=f"dim={dim}"):
            found = run(lambda x: F.softmax(x), x)
        np.testing.assert_allclose(found, torch.softmax(torch.tensor(x), dim).numpy(), rtol=1e-12)


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda x: F.gelu(x, "sigmoid"), ArgumentError, "approximate"),
        (lambda x: F.celu(x, 0.0), ArgumentError, "alpha"),
        (lambda x: F.elu(x, "1"), ArgumentError, "alpha"),
        (lambda x: F.softplus(x, beta=0), ArgumentError, "beta"),
        (lambda x: F.softshrink(x, -0.1), ArgumentError, "lambd"),
        (lambda x: F.hardtanh(x, 1.0, -1.0), ArgumentError, "min_val"),
        (lambda x: F.rrelu(x, 0.5, 0.1), ArgumentError, "lower"),
        (lambda x: F.glu(x), ShapeError, "odd"),
        (lambda x: F.prelu(x, np.ones(3)), ShapeError, "'weight'"),
        (lambda x: F.softmax(x, 2), ShapeError, "dim=2"),
        (lambda x: F.logsumexp(x, (0, 0)), ShapeError, "twice"),
        (lambda x: F.gumbel_softmax(x, 0), ArgumentError, "tau"),
        (lambda x: F.mish(F.one_hot(F.argmax(x, 1), 5)), DtypeError, "floats"),
        (lambda x: nn.Softmax2d()(x), ShapeError, "Softmax2d"),
        (lambda x: nn.PReLU(0), ArgumentError, "num_parameters"),
    ],
)
def test_bad_options(run, call, error, words) -> None:
    with pytest.raises(error, match=words):
        run(call, np.ones((2, 5)))
