"""Variances, deviations and means of numbers that lie close together, far from zero, or far apart."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es

F = es.functional
DATA = {
    "1e4 deviations from zero": lambda rng, shape: rng.normal(size=shape) + 1e4,
    "1e6 deviations from zero": lambda rng, shape: rng.normal(size=shape) - 1e6,
    "1e7 deviations from zero": lambda rng, shape: rng.normal(size=shape) * 3 + 3e7,
    "large": lambda rng, shape: rng.normal(size=shape) * 1e19 + 1e20,
    "largest": lambda rng, shape: rng.uniform(-3e38, 3e38, shape),
    "small": lambda rng, shape: rng.normal(size=shape) * 1e-25,
    "equal": lambda rng, shape: np.full(shape, 12345.678),
    "the first far from the others": lambda rng, shape: rng.normal(size=shape) + 1e9 * (np.indices(shape).sum(0) == 0),
}
DIMS = [None, 0, 1, (0, 2), -1]


@pytest.mark.parametrize("dim", DIMS, ids=str)
@pytest.mark.parametrize("name", DATA)
def test_moments(rng, name, dim) -> None:
    x = DATA[name](rng, (37, 5, 19)).astype(np.float32)
    wide = x.astype(np.float64)
    deviation, mean = es.jit(lambda a: F.std_mean(a, dim))(x)
    np.testing.assert_allclose(deviation, wide.std(dim, ddof=1), rtol=1e-5)
    np.testing.assert_allclose(mean, wide.mean(dim), rtol=1e-6, atol=1e-6 * wide.std())
    variance = np.asarray(es.jit(lambda a: F.var(a, dim, correction=0))(x))
    wanted = wide.var(dim)
    held = (wanted < 3e38) & (wanted > 1e-37)
    np.testing.assert_allclose(variance[held], wanted[held], rtol=1e-5)
    assert np.all(np.isinf(variance[wanted > 3.5e38]))


@pytest.mark.parametrize("name", [n for n in DATA if n not in ("equal", "small", "largest")])
def test_gradients(rng, name) -> None:
    x = DATA[name](rng, (6, 50)).astype(np.float32)
    wide = x.astype(np.float64)
    found = es.jit(es.grad(lambda a: F.std(a, 1).sum()))(x)
    wanted = (wide - wide.mean(1, keepdims=True)) / wide.std(1, ddof=1, keepdims=True) / 49
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)


def test_second_derivatives() -> None:
    """Those of a variance are 2/(n - 1)*(1 - 1/n) and -2/(n - 1)/n, also where it is zero."""
    x = np.array([3.0, 3.0, 3.0, 3.0])
    found = es.jit(es.hessian(lambda a: F.var(a)))(x)
    np.testing.assert_allclose(found, 2 / 3 * (np.eye(4) - 1 / 4), atol=1e-12)


@pytest.mark.parametrize("name", ["std", "var", "var_mean"])
def test_backend(rng, name) -> None:
    torch = pytest.importorskip("torch", reason="its backend is tested")
    f = {"std": lambda a: a.std(1), "var": lambda a: a.var(1), "var_mean": lambda a: sum(torch.var_mean(a, 1))}[name]
    x = torch.tensor(DATA["1e6 deviations from zero"](rng, (8, 300)).astype(np.float32))
    torch._dynamo.reset()
    found, wanted = torch.compile(f, backend="einsmith")(x), f(x.double())
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=0)
