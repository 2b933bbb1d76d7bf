"""Axes that read a dimension both alone and shifted, as in x[g]*x[g+1]: the extent is what all of these reads have."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import einsmith as es

COX_DE_BOOR = """
B0[b,i,g] = where(t[i,g] <= x[b,i] and x[b,i] < t[i,g+1], 1.0, 0.0)
B1[b,i,g] = ((x[b,i] - t[i,g])/(t[i,g+1] - t[i,g])*B0[b,i,g]
             + (t[i,g+2] - x[b,i])/(t[i,g+2] - t[i,g+1])*B0[b,i,g+1])
B2[b,i,g] = ((x[b,i] - t[i,g])/(t[i,g+2] - t[i,g])*B1[b,i,g]
             + (t[i,g+3] - x[b,i])/(t[i,g+3] - t[i,g+1])*B1[b,i,g+1])
B3[b,i,g] = ((x[b,i] - t[i,g])/(t[i,g+3] - t[i,g])*B2[b,i,g]
             + (t[i,g+4] - x[b,i])/(t[i,g+4] - t[i,g+1])*B2[b,i,g+1])
y[b,o] = sum[i](w[o,i]*x[b,i]*sigmoid(x[b,i])) + sum[i,g](c[o,i,g]*B3[b,i,g])
"""
"""A layer of a Kolmogorov-Arnold network, with splines of order 3 on any knots, by de Boor's and Cox's recursion."""


def kan(t, x, w, c):
    """The layer in PyTorch, with slices."""
    x = x[..., None]
    basis = ((t[:, :-1] <= x) & (x < t[:, 1:])).to(x.dtype)
    for k in (1, 2, 3):
        left = (x - t[:, : -k - 1]) / (t[:, k:-1] - t[:, : -k - 1]) * basis[..., :-1]
        basis = left + (t[:, k + 1 :] - x) / (t[:, k + 1 :] - t[:, 1:-k]) * basis[..., 1:]
    x = x[..., 0]
    return (x * torch.sigmoid(x)) @ w.T + torch.einsum("oig,big->bo", c, basis)


@pytest.mark.parametrize(("b", "i", "o", "knots"), [(6, 3, 2, 12), (1, 1, 1, 5), (17, 2, 3, 9)])
def test_the_chain_of_splines_has_one_axis_of_knots(rng, b, i, o, knots):
    f = es.op(COX_DE_BOOR, inputs="t, x, w, c")
    t = np.sort(rng.uniform(-2, 2, (i, knots)), 1) + np.arange(knots) * 0.1
    x = rng.uniform(t[:, 1].max(), t[:, -2].min(), (b, i))
    arrays = t, x, rng.standard_normal((o, i)), rng.standard_normal((o, i, knots - 4))
    tensors = [torch.tensor(a, requires_grad=True) for a in arrays]
    wanted = kan(*tensors)
    np.testing.assert_allclose(f(*arrays), wanted.detach(), rtol=1e-11, atol=1e-11)
    gradients = torch.autograd.grad((wanted**2).sum(), tensors)
    got = es.grad(lambda *a: (f(*a) ** 2).sum(), argnums=(0, 1, 2, 3))(*arrays)
    for g, wanted in zip(got, gradients, strict=True):
        np.testing.assert_allclose(g, wanted, rtol=1e-9, atol=1e-9 * float(wanted.abs().max()))


def test_second_derivatives(rng):
    t = np.arange(9.0) * 0.5 + rng.uniform(-0.1, 0.1, (2, 9))
    x = rng.uniform(1.3, 2.7, (3, 2))
    c, w = rng.standard_normal((2, 2, 5)), rng.standard_normal((2, 2))
    es.check_gradients(lambda x, c: es.op(COX_DE_BOOR, inputs="t, x, w, c")(t, x, w, c), x, c, order=2)


@pytest.mark.parametrize("n", [0, 1, 2, 3, 17])
def test_the_largest_shift_counts(rng, n):
    x = rng.standard_normal(n + 3 if n else 0)
    f = es.op("y[g] = x[g] + x[g+1]*x[g+3] - x[1+g]\ns[] = sum[g](x[g] - x[g+2])\nd[g] = x[g+k] - x[g]\nreturn y, s, d")
    y, s, d = f(x, k=2)
    m = max(0, len(x) - 3)
    np.testing.assert_allclose(y, x[:m] + x[1 : m + 1] * x[3 : m + 3] - x[1 : m + 1], rtol=1e-13)
    np.testing.assert_allclose(s, (x[:-2] - x[2:]).sum(), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(d, x[2:] - x[:-2], rtol=1e-13)


def test_one_program_for_several_sizes(rng):
    f = es.jit(es.op("y[g,k] = x[g,k]*x[g+2,k]"), sizes="shared")
    for n in (5, 9, 3, 12):
        x = rng.standard_normal((n, 2))
        np.testing.assert_allclose(f(x), x[:-2] * x[2:], rtol=1e-14)


def test_rows_of_a_sparse_matrix_need_no_extents():
    f = es.op("y[r] = sum[n](where(row[r] <= n and n < row[r+1], v[n], 0))")
    assert f(np.array([0, 2, 2, 5]), np.arange(1.0, 6.0)).tolist() == [3, 0, 12]


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        # Another dimension fixes the axis: it must have what is left.
        ("y[g] = w[g]*x[g]*x[g+1]", es.ShapeError, r"w has extent 5.*x has extent 5.*up to g\+1, which leaves 4"),
        ("y[g] = x[g]*x[g+1] + w[g]*w[g+2]", es.ShapeError, "which leaves 4.*which leaves 3"),
        ("y[g] = x[g]*x[g+1]\nz[g] = y[g]*w[g]", es.ShapeError, "the axis g has two extents"),
        ("y[g] = x[g]*x[g+5] + w[0]", es.BoundsError, "no extent of g keeps the read of x in bounds"),
        # As before: reads under guards, before the first position, and of other tensors say nothing.
        ("y[g] = x[g] + where(w[0] > 0, x[g+1], 0)", es.BoundsError, "runs from 1 to 5"),
        ("y[g] = x[g] + x[g-1] + w[0]", es.BoundsError, "runs from -1 to 3"),
        ("y[g] = x[g]*w[g+1]", es.BoundsError, "runs from 1 to 5"),
        ("y[g] = x[g]\nz[g] = y[g]*w[g+1]", es.BoundsError, "runs from 1 to 5"),
    ],
)
def test_what_does_not_fit_is_an_error(text, error, message):
    with pytest.raises(error, match=message) as caught:
        es.op(text)(w=np.ones(5), x=np.ones(5))
    assert "^" in str(caught.value)


def test_extents_and_guards_decide_first():
    x = np.arange(5.0)
    assert es.op("y[g] = x[g]*x[g+1]", extents={"g": 2})(x).tolist() == [0, 2]
    assert es.op("y[g] = x[g] + where(g < size(g)-1, x[g+1], 0)")(x).tolist() == [1, 3, 5, 7, 4]
