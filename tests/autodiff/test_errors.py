"""What cannot be differentiated says so, and what does not depend on the input has a gradient of zeros."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
from einsmith.base.errors import DtypeError, GradientError, IndexOutOfRange, ShapeError

X = np.ones((3, 4), np.float32)
SQUARE = es.op("Y[i,j] = X[i,j]*X[i,j]")


def test_integers_have_no_gradient():
    with pytest.raises(GradientError, match="argument 1 has type i64; only float"):
        es.grad(lambda x, n: (x * n).sum(), argnums=1)(X, np.ones((3, 4), int))
    with pytest.raises(GradientError, match="argument 0 has type i64"):
        es.grad(lambda n: (n * 1.0).sum())(3)
    _, pullback = es.vjp(lambda x, n: x * n, X, np.full((3, 4), 2))
    dx, dn = pullback(X)
    assert dn is None and (dx == 2).all()


def test_a_loss_is_a_float_scalar():
    with pytest.raises(GradientError, match=r"float scalar, not f32 of shape \(3, 4\); sum or average"):
        es.grad(SQUARE)(X)
    with pytest.raises(GradientError, match="float scalar, not i64"):
        es.grad(es.op("L[] = sum[i](i64(X[i]))"))(X[0])
    with pytest.raises(GradientError, match="several values"):
        es.grad(lambda x: (x.sum(), x.sum()))(X)
    with pytest.raises(GradientError, match="called with 1 arguments"):
        es.grad(lambda x: x.sum(), argnums=1)(X)


def test_cotangents_fit_their_outputs():
    _, pullback = es.vjp(SQUARE, X)
    with pytest.raises(ShapeError, match=r"cotangent has shape \(4, 3\), but the output has \(3, 4\)"):
        pullback(X.T)
    with pytest.raises(GradientError, match="structure"):
        pullback((X, X))


def test_cotangents_and_tangents_of_floats_are_floats():
    """Other floats are converted, Python's numbers too; integer arrays are refused, as JAX does."""
    y, pullback = es.vjp(SQUARE, X)
    for wrong in (np.ones((3, 4), int), np.ones((3, 4), bool)):
        with pytest.raises(
            DtypeError, match=r"cotangent has type (i64|bool), but its primal or output has f32; .*astype"
        ):
            pullback(wrong)
        with pytest.raises(DtypeError, match="tangent of primal 0 has type"):
            es.jvp(SQUARE, (X,), (wrong,))
        for run in (es.jit, es.interpret):
            with pytest.raises(DtypeError, match="cotangent has type"):
                run(lambda x, c: es.vjp(SQUARE, x)[1](c))(X, wrong)
    (wide,) = pullback(np.ones((3, 4)))
    assert wide.dtype == np.float32 and (wide == 2).all()
    assert es.jvp(SQUARE, (X,), (np.ones((3, 4)),))[1].dtype == np.float32
    _, total = es.vjp(lambda x: x.sum(), X)
    assert (total(1)[0] == 1).all() and (total(1.0)[0] == 1).all()
    _, both = es.vjp(lambda x: (x.argmax(1), x.sum()), X)
    assert (both((np.zeros(3, np.int32), np.float32(2)))[0] == 2).all()


def test_independent_results_have_zeros():
    constant = es.op("Y[i] = 2.0", extents={"i": 3})
    assert not es.grad(lambda x: constant().sum() + 0 * 1.0)(X).any()
    assert not es.grad(lambda x: es.stop_gradient(x).sum())(X).any()
    assert not es.grad(lambda x: es.floor(x).sum())(X).any()
    dx, dy = es.grad(lambda x, y: (y * y).sum(), argnums=(0, 1))(X, X)
    assert not dx.any() and (dy == 2).all()


@pytest.mark.parametrize(
    "text,extents",
    [
        ("Y[i] = X[i*i]", {"i": 3}),
        ("Y[i,j] = X[i*j//2]", {"i": 3, "j": 4}),
        ("Y[i] = X[n[i]*n[i] % 7]", {"i": 3}),
        ("Y[i] = X[(i*i + n[i]) % 7]", {"i": 3}),
        ("Y[i] = X[min(n[i], i)]", {"i": 3}),
        ("Y[i] = X[abs(i*i - 3) % 7]", {"i": 5}),
        ("Y[i] = X[7 // (i+1) % 7]", {"i": 5}),
    ],
)
def test_any_index_has_an_adjoint(text, extents, rng):
    """What is not affine is gathered under a guard, or scattered; there is no index that cannot be differentiated."""
    op = es.op(text, extents=extents)
    given = {"n": rng.integers(0, 3, 5 if "i" not in extents else extents["i"])} if "n[" in text else {}
    es.check_gradients(lambda x: op(X=x, **given), rng.standard_normal(7), order=2)


@pytest.mark.parametrize("run", [lambda f: f, es.jit, es.interpret], ids=["called", "compiled", "evaluated"])
def test_a_gradient_alone_checks_the_forward_indices(run, rng):
    """The gradient compares positions with n and reads nothing at them; nor is the value needed anywhere."""
    op = es.op("Y[i] = where(i < k[0], X[n[i]]*X[n[i]], 0)")
    x = rng.standard_normal(4)
    good, bad = np.array([1, 3, 0]), np.array([1, 9, -1])
    one, three = np.array([1]), np.array([3])
    for f in (
        es.grad(lambda x, n, k: op(X=x, n=n, k=k).sum()),
        lambda x, n, k: es.vjp(lambda x: op(X=x, n=n, k=k), x)[1](np.ones(3))[0],
        es.grad(lambda x, n, k: (es.grad(lambda x: op(X=x, n=n, k=k).sum())(x) ** 2).sum()),
    ):
        g = run(f)
        assert g(x, good, three).shape == (4,) and g(x, bad, one).shape == (4,)  # under its guard alone
        with pytest.raises(IndexOutOfRange):
            g(x, bad, three)
