"""Conditions on data, integers, booleans and scalars: first and second order against float64 differences."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es

N, M = 7, 5

CASES = {
    # name: (formula, extents, inputs differentiated, other inputs as (low, high) or "bool", differentiated scalars)
    "nested": ("Y[i] = where(X[i] > Z[i], where(X[i]*Z[i] > 0, X[i]*X[i]*Z[i], Z[i]), where(Z[i] < -1, X[i], 2*X[i]))",
               {}, "XZ", {}, {}),
    "and, or, not": ("Y[i] = where(not (X[i] > 0 and Z[i] > 0) or X[i] > 1, X[i]*Z[i]*Z[i], tanh(Z[i]))",
                     {}, "XZ", {}, {}),
    "neighbours": ("Y[i] = where(X[i] < X[i+1], X[i]*X[i+1], X[i+1]*X[i+1]*X[i])", {"i": N - 1}, "X", {}, {}),
    "under a sum": ("Y[i] = sum[j](where(A[i,j] > X[i], A[i,j]*X[i]*X[i], X[i]*A[i,j]*A[i,j]))", {}, "AX", {}, {}),
    "on a sum": ("Y[i] = where(sum[j](A[i,j]) > X[i], exp(X[i]), X[i]*X[i]) * sum[j](A[i,j]*A[i,j])", {}, "AX", {}, {}),
    "a condition as a tensor": ("C[i] = X[i] > 0.1\nY[i] = where(C[i], X[i]*Z[i], Z[i]*Z[i])", {}, "XZ", {}, {}),
    "a condition as a number": ("Y[i] = f64(X[i] > Z[i])*X[i]*X[i] + f64(X[i] <= Z[i])*Z[i]", {}, "XZ", {}, {}),
    "a mask": ("Y[i] = where(b[i], X[i]*X[i], sin(X[i]))", {}, "X", {"b": "bool"}, {}),
    "a mask read elsewhere": ("Y[i] = sum[j](where(b[j] and j <= i, X[j]*X[i], 0))", {"i": N, "j": N}, "X",
                              {"b": "bool"}, {}),
    "counts": ("Y[i] = X[i]*n[i] + where(n[i] > 1, X[i]**3, 0)", {}, "X", {"n": (0, 4)}, {}),
    "integers divide": ("Y[i] = X[i]**2 / (1 + n[i]//2) + (n[i] % 3)*X[i]", {}, "X", {"n": (0, 9)}, {}),
    "lengths": ("Y[i] = sum[j](where(j < n[i], A[i,j]*A[i,j], 0)) / max(n[i], 1)", {}, "A", {"n": (0, M + 1)}, {}),
    "labels under a guard": ("Y[i] = where(n[i] >= 0, A[i,n[i]]*X[i], X[i]*X[i])", {}, "AX", {"n": (-1, M)}, {}),
    "labels and a threshold": ("Y[i] = where(A[i,n[i]] > X[i], A[i,n[i]]*A[i,n[i]], X[i]*A[i,0])", {}, "AX",
                               {"n": (0, M)}, {}),
    "the greatest's place": ("P[i] = argmax[j](A[i,j])\nY[i] = A[i,P[i]]*X[i] + X[P[i]]*X[P[i]]", {}, "AX", {}, {}),
    "a limited place": ("Y[i] = A[i, min(max(i32(3*X[i]), 0), 4)]*X[i]", {}, "AX", {}, {}),
    "sorted neighbours": ("Y[i] = max(X[i], Z[i])*min(X[i], Z[i]) + abs(X[i] - Z[i])*X[i]", {}, "XZ", {}, {}),
    "remainders": ("Y[i] = (X[i] % (1.5 + tanh(Z[i])))*X[i]", {}, "XZ", {}, {}),
    "a scalar": ("Y[i] = a*X[i]*X[i] + exp(c*X[i])", {}, "X", {}, {"a": 0.7, "c": -0.4}),
    "a threshold": ("Y[i] = where(X[i] > a, (X[i] - a)**2, c*a*X[i])", {}, "X", {}, {"a": 0.2, "c": 1.3}),
    "exponents": ("Y[i] = (1.5 + tanh(X[i]))**a * c**tanh(X[i])", {}, "X", {}, {"a": 1.7, "c": 2.5}),
    "a scalar under a sum": ("Y[i] = sum[j](tanh(a*A[i,j] + c)) * a", {}, "A", {}, {"a": 0.7, "c": 0.1}),
    "a scalar in a product": ("Y[i] = prod[j](A[i,j] + a)", {}, "A", {}, {"a": 0.3}),
    "a scalar that limits": ("Y[i] = max(a, X[i])*min(X[i], 2*a)", {}, "X", {}, {"a": 0.3}),
    "a scalar in two statements": ("Y[i] = a*X[i]*Z[i]\nL[] = sum[i](Y[i]*Y[i])/a + a*a*a", {}, "XZ", {}, {"a": 0.9}),
    "a scalar and a mask": ("Y[i] = where(b[i] and X[i] > a, X[i]*a, a*a)", {}, "X", {"b": "bool"}, {"a": 0.1}),
}  # fmt: skip
SHAPES = {"X": (N,), "Z": (N,), "A": (N, M)}


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", CASES)
def test_to_the_second_order(name, rng):
    text, extents, floats, others, scalars = CASES[name]
    op = es.op(text, extents=extents)
    fixed = {n: rng.random(N) < 0.5 if kind == "bool" else rng.integers(*kind, N) for n, kind in others.items()}
    names = [*floats, *scalars]

    def f(*values):
        return op(**fixed, **dict(zip(names, values, strict=True)))

    es.check_gradients(f, *(rng.standard_normal(SHAPES[n]) for n in floats), *scalars.values(), order=2)


def test_guards_hold_for_derivatives():
    """At 0 the roots, logarithms and quotients have no derivative; where they are not chosen it is not asked for."""
    x = np.array([4.0, 0.0, -1.0, 0.25])
    for text in ("where(X[i] > 0, sqrt(X[i]), 0)", "where(X[i] > 0, log(X[i]), X[i])", "where(X[i] != 0, 1/X[i], X[i])",
                 "where(X[i] > 0, X[i]**1.5, 0)", "where(X[i] <= 0, X[i], rsqrt(X[i]))"):  # fmt: skip
        op = es.op(f"Y[i] = {text}")
        once = es.grad(lambda x, op=op: op(x).sum())
        twice = es.grad(lambda x, once=once: once(x).sum())
        thrice = es.grad(lambda x, twice=twice: twice(x).sum())
        for g in (once, twice, thrice):
            for run in (es.interpret, es.jit):
                assert np.isfinite(run(g)(x)).all(), text


def test_masks_and_integers_get_no_gradient():
    op = es.op("Y[i] = where(b[i], X[i]*n[i], X[i])")
    x, n, b = np.ones(4), np.arange(4), np.array([True, False, True, True])
    _, pull = es.vjp(lambda x, n, b: op(X=x, n=n, b=b), x, n, b)
    dx, dn, db = pull(np.ones(4))
    assert dn is None and db is None and dx.tolist() == [0.0, 1.0, 2.0, 3.0]
    with pytest.raises(es.GradientError, match="argument 1 has type bool"):
        es.grad(lambda x, b: op(X=x, n=n, b=b).sum(), argnums=1)(x, b)
