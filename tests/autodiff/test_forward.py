"""Forward mode: `es.jvp` against differences and reverse mode, nested with it."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
from einsmith.api.tracing import trace_call
from einsmith.base.errors import GradientError, ShapeError
from einsmith.ir.nodes import Compute, postorder

CONVOLUTION = es.op("Y[b,k,p,q] = sum[c,r,s](X[b,c,2*p+r,2*q+s] * W[k,c,r,s])")


def difference(f, primals, tangents, eps=1e-6):
    hi, lo = (es.interpret(f)(*(x + s * eps * t for x, t in zip(primals, tangents, strict=True))) for s in (1, -1))
    return (hi - lo) / (2 * eps)


@pytest.mark.parametrize(
    "text,shapes",
    [
        ("Y[i,j] = sum[k](A[i,k]*B[k,j])", [(5, 7), (7, 3)]),
        ("Y[i] = max[k](A[i,k]*B[k])", [(5, 7), (7,)]),
        ("Y[i] = min[k](A[k]-B[i])", [(7,), (5,)]),
        ("Y[i] = prod[k](A[i,k])", [(3, 5)]),
        ("Y[i] = where(A[i] > 0, exp(A[i])*B[i], abs(B[i]))", [(17,), (17,)]),
        ("Y[i] = tanh(A[i])/(1 + B[i]*B[i]) + max(A[i], B[i])", [(15,), (15,)]),
        ("Y[2*i] = A[i]*A[i]\nY[2*i+1] = max[k](A[k]*A[i])", [(5,)]),
        ("Y[i//2, i] += A[i]*A[i]", [(7,)]),
        ("Y[i] = sum[j](where(j <= i, A[j]*A[i], 0))", [(9,)]),
    ],
)
def test_tangents_are_differences(text, shapes, rng):
    op = es.op(text, extents={"i": shapes[0][0]} if "+=" in text or "j <= i" in text else None)
    x, t = ([rng.standard_normal(s) for s in shapes] for _ in range(2))
    n = len(x)
    value, moved = es.interpret(lambda *a: es.jvp(op, a[:n], a[n:]))(*x, *t)
    np.testing.assert_allclose(value, es.interpret(op)(*x))
    np.testing.assert_allclose(moved, difference(op, x, t), rtol=1e-6, atol=1e-6)


def test_compiled_tangents(rng):
    x, w = rng.standard_normal((2, 3, 7, 8)).astype("f4"), rng.standard_normal((4, 3, 3, 3)).astype("f4")
    tx, tw = rng.standard_normal(x.shape).astype("f4"), rng.standard_normal(w.shape).astype("f4")
    y, t = es.jvp(CONVOLUTION, (x, w), (tx, tw))
    np.testing.assert_allclose(y, CONVOLUTION(x, w), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(t, CONVOLUTION(tx, w) + CONVOLUTION(x, tw), rtol=1e-4, atol=1e-4)


def test_a_tangent_is_one_tensor_like_the_formula():
    x, w = np.zeros((2, 3, 7, 8)), np.zeros((4, 3, 3, 3))
    graph = trace_call(lambda *a: es.jvp(CONVOLUTION, a[:2], a[2:]), (x, w, x, w), {}).graph
    value, tangent = (n for n in postorder(graph.outputs) if isinstance(n, Compute))
    assert tangent.template.parts[0].domain == value.template.parts[0].domain


def test_forward_over_reverse_and_reverse_over_forward(rng):
    def f(x):
        return (es.tanh(x) * x * x).sum()

    x, v = rng.standard_normal(9), rng.standard_normal(9)
    hessian = es.interpret(es.grad(lambda x: (es.grad(f)(x) * v).sum()))(x)
    np.testing.assert_allclose(es.jvp(es.grad(f), (x,), (v,))[1], hessian, rtol=1e-9)
    np.testing.assert_allclose(es.grad(lambda x: es.jvp(f, (x,), (v,))[1])(x), hessian, rtol=1e-9)
    np.testing.assert_allclose(es.jit(lambda x: es.jvp(es.grad(f), (x,), (v,))[1])(x), hessian, rtol=1e-9)
    third = es.jvp(lambda x: es.jvp(es.grad(f), (x,), (v,))[1], (x,), (v,))[1]
    np.testing.assert_allclose(
        third, difference(lambda x: es.jvp(es.grad(f), (x,), (v,))[1], [x], [v]), rtol=1e-5, atol=1e-6
    )


def test_the_same_tensor_in_two_places_moves_in_two_ways(rng):
    x, t, u = (rng.standard_normal(5) for _ in range(3))

    def both(x, t, u):
        return es.jvp(lambda a, b: a * a * b, (x, x), (t, u))[1]

    np.testing.assert_allclose(es.jit(both)(x, t, u), 2 * x * x * t + x * x * u)


def test_nested_structures_integers_and_independent_results(rng):
    x, n, t = rng.standard_normal(5), np.arange(5), rng.standard_normal(5)

    def f(d, n):
        return {"y": d["x"] * 2.0, "n": n + 1, "c": es.stop_gradient(d["x"])}

    out, moved = es.jvp(f, ({"x": x}, n), ({"x": t}, None))
    np.testing.assert_allclose(out["y"], 2 * x)
    np.testing.assert_allclose(moved["y"], 2 * t)
    assert not moved["n"].any() and not moved["c"].any() and moved["n"].dtype == out["n"].dtype


def test_bad_tangents():
    x = np.ones(3)
    with pytest.raises(ShapeError, match=r"primal 0 has shape \(4,\)"):
        es.jvp(es.tanh, (x,), (np.ones(4),))
    with pytest.raises(GradientError, match="structure"):
        es.jvp(es.tanh, (x,), ())
    with pytest.raises(GradientError, match="primal 0 is a float and has no tangent"):
        es.jvp(es.tanh, (x,), (None,))


def test_products_to_second_order_at_zeros():
    op = es.op("Y[b] = prod[k](X[b,k])")
    v = np.array([[0.3, -1.1, 0.7]])
    for x in ([0.0, 2, 3], [0, 0, 5], [1, 2, 3], [0, 0, 0]):
        a, b, c = x
        want = np.array([[0, c, b], [c, 0, a], [b, a, 0]]) @ v[0]
        x = np.array([x], float)
        second = es.interpret(es.grad(lambda x: (es.grad(lambda x: op(x).sum())(x) * v).sum()))(x)
        forward = es.interpret(lambda x: es.jvp(es.grad(lambda x: op(x).sum()), (x,), (v,))[1])(x)
        np.testing.assert_allclose(second[0], want, atol=1e-12)
        np.testing.assert_allclose(forward[0], want, atol=1e-12)
