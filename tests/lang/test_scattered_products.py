"""Products that are scattered: values, exact derivatives of the library's function, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import einsmith as es
from einsmith import functional as F
from einsmith.base.errors import GradientError, IndexOutOfRange


@pytest.mark.parametrize("dtype", ["f4", "f8", "i4"])
@pytest.mark.parametrize("n", [1, 17, 400])
def test_values(rng, n, dtype):
    k, s = rng.integers(0, 7, n), rng.integers(-2, 3, n).astype(dtype)
    x = rng.integers(1, 4, 9).astype(dtype)
    want = x.copy()
    with np.errstate(over="ignore"):
        np.multiply.at(want, k, s)
    np.testing.assert_array_equal(es.op("y[i] = x[i]\ny[k[j]] *= s[j]\nreturn y")(x=x, k=k, s=s), want)
    np.testing.assert_array_equal(es.jit(lambda *a: F.scatter(a[0], 0, *a[1:], reduce="multiply"))(x, k, s), want)


@pytest.mark.parametrize("dim", [0, 1])
def test_derivatives_are_exact_at_zeros(rng, dim):
    x, w = rng.standard_normal((2, 5, 6))
    s = rng.choice([0.0, 0.5, -2.0, 3.0], (4, 6))
    k = rng.integers(0, 5, (4, 6))

    def loss(x, s):
        return (F.scatter(x, dim, k, s, reduce="multiply") ** 2 * w).sum()

    a, b = (torch.from_numpy(v).requires_grad_() for v in (x, s))
    factors = [[torch.ones((), dtype=torch.float64) for _ in range(6)] for _ in range(5)]
    for i, j in np.ndindex(4, 6):
        place = (k[i, j], j) if dim == 0 else (i, k[i, j])
        factors[place[0]][place[1]] = factors[place[0]][place[1]] * b[i, j]
    value = ((a * torch.stack([torch.stack(r) for r in factors])) ** 2 * torch.from_numpy(w)).sum()
    want = torch.autograd.grad(value, (a, b), create_graph=True)
    for got, exact in zip(es.grad(loss, argnums=(0, 1))(x, s), want, strict=True):
        np.testing.assert_allclose(got, exact.detach().numpy(), rtol=1e-12, atol=1e-12)
    second = torch.autograd.grad((want[0] ** 2).sum() + (want[1] ** 2).sum(), (a, b))

    def slope(x, s):
        return sum((g * g).sum() for g in es.grad(loss, argnums=(0, 1))(x, s))

    for got, exact in zip(es.grad(slope, argnums=(0, 1))(x, s), second, strict=True):
        np.testing.assert_allclose(got, exact.numpy(), rtol=1e-11, atol=1e-11)


def test_what_is_refused(rng):
    s = rng.standard_normal(4)
    product = es.op("y[k[j]] *= s[j]", extents={"y.shape[0]": 3})
    with pytest.raises(GradientError, match="multiplied at an index"):
        es.grad(lambda s: product(k=np.array([0, 1, 1, 2]), s=s).sum())(s)
    with pytest.raises(IndexOutOfRange):
        es.jit(lambda x, k, s: F.scatter(x, 0, k, s, reduce="multiply"))(np.ones(3), np.array([0, 1, 3, 2]), s)
