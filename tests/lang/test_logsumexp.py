"""logsumexp as a reduction and logaddexp as a function of formulas: values, gradients of any order, infinities."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import einsmith as es
from einsmith.base.errors import EinsmithError
from tests.fuzz.check import compile_and_compare

torch = pytest.importorskip("torch", reason="its derivatives are the reference")

ROWS = es.op("y[i] = logsumexp[j,k](x[i,j]*w[j,k])\nreturn y", name="rows")
PAIRS = es.op("y[i] = logaddexp(a[i], b[i])\nreturn y", name="pairs")


def orders(f: Any, *arrays: np.ndarray) -> list[np.ndarray]:
    """The values, the gradients of their squares, and the gradients of the squares of those."""
    every = tuple(range(len(arrays)))
    first = lambda *x: es.grad(lambda *x: (f(*x) ** 2).sum(), argnums=every)(*x)  # noqa: E731
    second = es.grad(lambda *x: sum((g**2).sum() for g in first(*x)), argnums=every)
    return [f(*arrays), *first(*arrays), *second(*arrays)]


def torch_orders(f: Any, *arrays: np.ndarray) -> list[np.ndarray]:
    xs = [torch.tensor(a, requires_grad=True) for a in arrays]
    y = f(*xs)
    first = torch.autograd.grad((y**2).sum(), xs, create_graph=True)
    second = torch.autograd.grad(sum((g**2).sum() for g in first), xs)
    return [a.detach().numpy() for a in (y, *first, *second)]


@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_derivatives(scale: float) -> None:
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((3, 5)) * scale, rng.standard_normal((5, 7))
    want = torch_orders(lambda x, w: torch.logsumexp(x[:, :, None] * w, (1, 2)), x, w)
    for a, b in zip(orders(ROWS, x, w), want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10 * np.abs(b).max())


def test_derivatives_of_pairs_at_ties_and_far_apart() -> None:
    a, b = np.array([0.0, 1.0, 3.0, -80.0, 5.0]), np.array([0.0, 1.0, -2.0, 80.0, 5.0 + 1e-9])
    for got, want in zip(orders(PAIRS, a, b), torch_orders(torch.logaddexp, a, b), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


def test_infinities_are_neutral_and_have_no_gradient() -> None:
    inf = np.inf
    f = es.op("y[i] = logsumexp[j](x[i,j])\nreturn y")
    x = np.array([[1.0, -inf, 2.0], [-inf, -inf, -inf], [-inf, 3.0, -inf], [inf, 0.0, -inf]])
    np.testing.assert_allclose(f(x), [np.logaddexp(1, 2), -inf, 3, inf])
    finite = es.grad(lambda x: es.where(f(x) > -1e300, f(x), 0.0)[:3].sum())(x)
    p = 1 / (1 + np.exp(1.0))
    np.testing.assert_allclose(finite[:3], [[p, 0, 1 - p], [0, 0, 0], [0, 1, 0]])
    a, b = np.array([-inf, -inf, 1.0, inf]), np.array([-inf, 2.0, -inf, 0.0])
    np.testing.assert_array_equal(PAIRS(a, b), [-inf, 2, 1, inf])
    da, db = es.grad(lambda a, b: PAIRS(a, b).sum(), argnums=(0, 1))(a, b)
    np.testing.assert_array_equal(da, [0.5, 0, 1, 1])
    np.testing.assert_array_equal(db, [0.5, 1, 0, 0])


@pytest.mark.parametrize("n", [1, 2, 7, 8, 9, 15, 16, 17, 31, 257])
def test_programs(n: int) -> None:
    """Values and gradients in float32 against the evaluator, at sizes around the width of vectors."""
    rng = np.random.default_rng(n)
    x, y = (rng.standard_normal((5, n)).astype(np.float32) for _ in range(2))
    text = """
    m[i,j] = logaddexp(x[i,j], where(j < 3, y[i,j], -9.0))
    l[i] = logsumexp[j](m[i,j])
    k[j] = logsumexp[i](where(i <= j, x[i,j], y[i,j]))
    return l, k"""
    f = es.op(text)
    compile_and_compare(
        lambda x, y: [*f(x, y), *es.grad(lambda x, y: sum(v.sum() for v in f(x, y)), (0, 1))(x, y)],
        (x, y),
        {},
        "logsumexp",
    )


def test_a_chain_of_states() -> None:
    """The partition function of a linear chain (Lafferty et al. 2001), against all of its paths."""
    f = es.op("""
    a[t,j] = where(t == 0, e[t,j], logsumexp[i](a[t-1,i] + w[i,j]) + e[t,j])
    z[] = logsumexp[j](a[4,j])
    return z""")
    rng = np.random.default_rng(0)
    e, w = rng.standard_normal((5, 3)), rng.standard_normal((3, 3))
    w[0, 1] = -np.inf
    paths = np.stack(np.meshgrid(*[np.arange(3)] * 5, indexing="ij"), -1).reshape(-1, 5)
    scores = e[np.arange(5), paths].sum(1) + w[paths[:, :-1], paths[:, 1:]].sum(1)
    p = np.exp(scores - np.logaddexp.reduce(scores))
    np.testing.assert_allclose(f(e=e, w=w), np.logaddexp.reduce(scores))
    marginals = np.stack([[p[paths[:, t] == j].sum() for j in range(3)] for t in range(5)])
    np.testing.assert_allclose(es.grad(lambda e: f(e=e, w=w))(e), marginals, atol=1e-14)


def test_terms_of_minus_infinity_have_no_derivatives_of_any_order() -> None:
    """The others have theirs, as if those were left out."""
    inf = np.inf
    x = np.array([[1.0, -inf, 2.0], [-inf, -inf, -inf], [-inf, 3.0, -inf], [0.5, -1.0, 4.0]])
    for text in ("y[i] = logsumexp[j](x[i,j])", "y[i] = logaddexp(x[i,0], x[i,1], x[i,2])"):
        f = es.op(text)
        weights = np.array([1.0, 2.0, -1.0])
        first = lambda x: es.vjp(f, x)[1](np.ones(4))[0]  # noqa: E731, B023
        got, (second,) = es.jit(lambda x: (first(x), es.vjp(first, x)[1](np.tile(weights, (4, 1)))))(x)  # noqa: B023
        p = np.exp(x - np.where(np.isfinite(x.max(1)), x.max(1), 0)[:, None])
        p /= np.maximum(p.sum(1, keepdims=True), 0.5)
        np.testing.assert_allclose(got, p, atol=1e-15)
        np.testing.assert_allclose(second, p * (weights - (p * weights).sum(1, keepdims=True)), atol=1e-15)


def test_no_terms_and_other_types() -> None:
    f = es.op("y[i] = logsumexp[j](x[i,j])\nreturn y")
    np.testing.assert_array_equal(f(np.zeros((2, 0))), [-np.inf, -np.inf])
    np.testing.assert_allclose(f(np.array([[0, 1, 1]], np.int32)), np.log(1 + 2 * np.e), rtol=1e-6)
    with pytest.raises(EinsmithError, match="bool|condition"):
        es.op("y[i] = logsumexp[j](x[i,j] > 0)\nreturn y")(np.zeros((2, 2)))
    with pytest.raises(EinsmithError, match="bound twice"):
        es.op("y[i] = logsumexp[j](x[i,j] - logsumexp[j](x[i,j]))\nreturn y")(np.zeros((2, 2)))


def test_several_terms_with_derivatives_of_any_order() -> None:
    """Terms that are -inf are neutral, as in the first cells of dynamic programs."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((4, 9)) * np.array([1, 30, 300, 1e-3])[:, None]
    f = es.op("y[i] = logaddexp(a[i,0], 2*a[i,1], a[i,2]*a[i,3], a[i,4])")
    g = lambda t: torch.logsumexp(torch.stack([t[:, 0], 2 * t[:, 1], t[:, 2] * t[:, 3], t[:, 4]]), 0)  # noqa: E731
    for a, b in zip(orders(f, x), torch_orders(g, x), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10 * np.abs(b).max())
    h = es.op("y[i] = logaddexp(where(i > 0, a[i], -inf), where(i > 2, -a[i], -inf), where(i > 1, 2*a[i], -inf))")
    a = rng.standard_normal(5)
    want = [-np.inf, a[1], np.logaddexp(a[2], 2 * a[2]), *np.log(np.exp(a[3:]) + np.exp(-a[3:]) + np.exp(2 * a[3:]))]
    np.testing.assert_allclose(h(a), want)
    p = np.exp([a[3:], -a[3:], 2 * a[3:]])
    slopes = [0, 1, *((p[0] - p[1] + 2 * p[2]) / p.sum(0))]
    slopes.insert(2, (1 + 2 * np.exp(a[2])) / (1 + np.exp(a[2])))
    np.testing.assert_allclose(es.vjp(h, a)[1](np.ones(5))[0], slopes)
    got = es.op("y[] = logaddexp(n[], 0, 1)")(np.array(2))
    np.testing.assert_allclose(got, np.log(np.exp([2, 0, 1]).sum()), rtol=1e-6)
    assert es.op("y[i] = logaddexp(x[i], 1.0, x[i])")(np.array([np.nan, np.inf])).tolist()[1] == np.inf
    with pytest.raises(EinsmithError, match="logaddexp takes 2 arguments, not 1"):
        es.op("y[i] = logaddexp(x[i])")
