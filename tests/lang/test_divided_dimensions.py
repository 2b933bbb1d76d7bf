"""Left indices of several axes, which number the elements of a dimension: `y[L*n+i] = ...`."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

import einsmith as es

SHAPES = [(3, 4, 2), (1, 5, 3), (7, 1, 1), (1, 1, 1), (2, 17, 5), (0, 4, 3), (3, 0, 2)]


@pytest.mark.parametrize("shape", SHAPES)
def test_chunks_are_put_back_in_any_order_of_axes(rng, shape):
    n, i, k = shape
    z = rng.standard_normal(shape)
    for text, array, options in (
        ("y[L*n+i,k] = z[n,i,k]**2", z, {"L": i}),
        ("y[size(i)*n+i,k] = z[n,i,k]**2", z, {}),
        ("y[i+L*n,k] = z[i,n,k]**2", z.transpose(1, 0, 2), {"L": i}),
        ("y[z.shape[2]*n+i,k] = z[k,n,i]**2", z.transpose(2, 0, 1), {}),
    ):
        np.testing.assert_allclose(es.op(text)(array, **options), (z**2).reshape(n * i, k), rtol=1e-15)
    np.testing.assert_allclose(es.op("y[n,K*i+k] = z[n,i,k]**2")(z, K=k), (z**2).reshape(n, i * k), rtol=1e-15)
    whole = es.op("y[0,a*H*W + b*W + c] = z[a,b,c]**2")(z, H=i, W=k)
    np.testing.assert_allclose(whole, (z**2).reshape(1, -1), rtol=1e-15)


@pytest.mark.parametrize("shape", [s for s in SHAPES if all(s)])
def test_first_and_second_derivatives(rng, shape):
    f = es.op("y[size(i)*n+i,k] = z[n,i,k]**3\nw[t] = sum[k](where(t > 0, y[t-1,k], 0)*y[t,k])\nreturn w")
    f = es.op(f.program.text, extents={"t": "y.shape[0]"})
    z = rng.standard_normal(shape)
    es.check_gradients(f, z, order=2)
    x = torch.tensor(z, requires_grad=True)
    y = (x**3).reshape(-1, shape[2])
    w = (torch.cat([torch.zeros(1, shape[2], dtype=y.dtype), y[:-1]]) * y).sum(1)
    np.testing.assert_allclose(f(z), w.detach(), rtol=1e-13, atol=1e-13)
    (wanted,) = torch.autograd.grad((w**2).sum(), x)
    np.testing.assert_allclose(es.grad(lambda a: (f(a) ** 2).sum())(z), wanted, rtol=1e-12, atol=1e-12)


def test_a_repeated_axis_takes_its_extent_from_extents():
    y = es.op("y[3*n+i] = x[n]", extents={"i": 3})(np.array([1.0, 2.0]))
    assert y.tolist() == [1, 1, 1, 2, 2, 2]


def test_one_program_for_several_sizes(rng):
    f = es.jit(es.op("y[size(i)*n+i,k] = z[n,i,k]**2"), sizes="shared")
    for shape in ((3, 4, 2), (5, 4, 2), (9, 4, 2), (3, 7, 2), (6, 5, 2)):
        z = rng.standard_normal(shape)
        np.testing.assert_allclose(f(z), (z**2).reshape(-1, 2), rtol=1e-15)


def test_a_product_is_stored_where_it_belongs(rng):
    f = es.op("y[8*n+i,v] = sum[j](A[n,i,j]*V[n,j,v])")
    A, V = rng.standard_normal((3, 8, 8)), rng.standard_normal((3, 8, 5))
    np.testing.assert_allclose(f(A, V), (A @ V).reshape(24, 5), rtol=1e-13)
    assert "\n1 kernels" in str(f.plan)
    text = f.gradient("A", A=A, V=V)
    np.testing.assert_allclose(
        es.op(text)(dy=np.ones((24, 5)), V=V), np.ones((3, 8, 5)) @ V.transpose(0, 2, 1), rtol=1e-13
    )


@pytest.mark.parametrize(("n", "i"), [(3, 4), (1, 7), (5, 1), (2, 17)])
def test_a_recurrence_over_all_steps(rng, n, i):
    f = es.op("y[L*n+i,k] = x[n,i,k] + a[k]*where(L*n+i > 0, y[L*n+i-1,k], 0)\nreturn y")
    x, a = rng.standard_normal((n, i, 3)), rng.standard_normal(3) / 2
    wanted = x.reshape(n * i, 3).copy()
    for t in range(1, n * i):
        wanted[t] += a * wanted[t - 1]
    np.testing.assert_allclose(f(x, a, L=i), wanted, rtol=1e-13, atol=1e-13)
    es.check_gradients(lambda x, a: f(x, a, L=i), x, a, order=2)


def test_a_recurrence_that_has_another_time(rng):
    f = es.op("h[t,3*g+j] = tanh(x[t,g,j] + sum[m](where(t > 0, h[t-1,m], 0)*W[m,g,j]))\nreturn h")
    x, W = rng.standard_normal((5, 2, 3)), rng.standard_normal((6, 2, 3))
    wanted, h = [], np.zeros(6)
    for t in range(5):
        h = np.tanh(x[t].reshape(6) + h @ W.reshape(6, 6))
        wanted.append(h)
    np.testing.assert_allclose(f(x, W), wanted, rtol=1e-13)
    es.check_gradients(f, x, W, order=2)


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("y[5*n+i,k] = z[n,i,k]", "n is 5 positions, and i takes 4 of them: elements are left out", "multiply n by 4"),
        ("y[3*n+i,k] = z[n,i,k]", "elements are defined more than once", "multiply n by 4, the extent of i"),
        ("y[12*n+2*i,k] = z[n,i,k]", "a step of i is 2 positions: elements are left out", "multiply i by 1"),
        ("y[n+i,k] = z[n,i,k]", "elements are defined more than once", "multiply n by|multiply i by"),
        ("y[4*n+i+1,k] = z[n,i,k]", "starts at position 0, not 1", r"y\[t\] = z\[t//4, t%4\]"),
        ("y[4*n+i,k] = z[n,i,k]\ny[12+m,k] = z[0,m,k]", "define a whole tensor, in one statement", "second statement"),
        ("y[4*n-i,k] = z[n,i,k]", "step positive", ""),
        ("y[4*n+i,i*n] = z[n,i,0]", "the axis i stands in two left indices", ""),
    ],
)
def test_what_is_no_partition_is_an_error_that_says_why(rng, text, message, hint):
    with pytest.raises(es.FormulaError, match=message) as error:
        es.op(text)(rng.standard_normal((3, 4, 2)))
    assert re.search(hint, error.value.hint or "") and "^" in str(error.value)


def test_a_parameter_that_the_formula_uses_as_a_number_takes_a_default(rng):
    """A factor of an axis is a parameter; a term could be an axis as well."""
    z = rng.standard_normal((3, 4))
    np.testing.assert_array_equal(es.op("y[L*n+i] = z[n,i]*L")(z, L=4), 4 * z.ravel())
    with pytest.raises(es.FormulaError, match="extent of the axis c") as error:
        es.op("y[a*i+c] = x[i]*a*c")(z[0], a=1)
    assert "if c is a parameter, give it a default" in error.value.hint
