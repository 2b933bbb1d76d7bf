"""`Operator.gradient`: the printed gradient, read again, gives the same templates and the same values."""

from __future__ import annotations

import re

import numpy as np
import pytest

import einsmith as es
from einsmith.autodiff.reverse import gradients
from einsmith.base import dtypes as dt
from einsmith.base.errors import FormulaError, GradientError, ShapeError
from einsmith.ir.evaluator import evaluate
from einsmith.ir.nodes import Compute, Graph, Leaf, leaf, postorder
from einsmith.ir.rewrite.simplify import values_only
from einsmith.tracing.builder import Value
from einsmith.tracing.trace import Trace, tracing

CAPSULE = "C[b,k,p,q,i,j] = sum[c,r,s,m](A[b,c,stride*p+r,stride*q+s,i,m] * W[k,c,r,s,m,j])"
PADDED = (
    "Y[b,k,p,q] = sum[c,r,s](where(0 <= 2*p+r-1 and 2*p+r-1 < X.shape[2] and 0 <= 2*q+s-1 and 2*q+s-1 < X.shape[3], "
    "X[b,c,2*p+r-1,2*q+s-1], 0) * F[k,c,r,s])"
)
SOFTMAX = "P[i,j] = exp(X[i,j] - max[k](X[i,k]))\nY[i,j] = P[i,j] / sum[k](P[i,k])"

CASES = {
    # name: formula, extents, differentiated by, inputs, parameters, whether every template is the same
    "matmul": ("C[i,j] = sum[k](A[i,k]*B[k,j])", {}, ("A", "B"), {"A": (15, 17), "B": (17, 3)}, {}),
    "matmul of unit extents": ("C[i,j] = sum[k](A[i,k]*B[k,j])", {}, ("A", "B"), {"A": (1, 7), "B": (7, 1)}, {}),
    "capsule, stride 1": (CAPSULE, {}, ("A", "W"), {"A": (2, 3, 5, 7, 2, 3), "W": (5, 3, 3, 2, 3, 4)}, {"stride": 1}),
    "capsule, stride 2": (CAPSULE, {}, ("A", "W"), {"A": (2, 3, 7, 8, 2, 3), "W": (5, 3, 3, 3, 3, 4)}, {"stride": 2}),
    "capsule, stride 3": (CAPSULE, {}, ("A",), {"A": (1, 3, 7, 9, 2, 3), "W": (5, 3, 2, 2, 3, 4)}, {"stride": 3}),
    "padded convolution": (PADDED, {"p": 4, "q": 3}, ("X", "F"), {"X": (2, 3, 7, 6), "F": (4, 3, 3, 3)}, {}),
    "max pooling": ("Y[b,p,q] = max[r,s](X[b,2*p+r,2*q+s])", {"r": 3, "s": 3}, ("X",), {"X": (2, 7, 9)}, {}),
    "max pooling without overlap": (
        "Y[b,p,q] = max[r,s](X[b,2*p+r,2*q+s])",
        {"r": 2, "s": 2},
        ("X",),
        {"X": (2, 7, 8)},
        {},
    ),
    "embedding": ("Y[t,k] = E[ids[t],k]", {}, ("E",), {"E": (50, 3), "ids": (7,)}, {}),
    "accumulation onto a tensor": (
        "S[n,k] = exp(B[n,k])\nS[ids[i],k] += X[i,k]\nY[n,k] = S[n,k]*S[n,k]*B[n,k]",
        {},
        ("B", "X"),
        {"B": (6, 3), "X": (7, 3), "ids": (7,)},
        {},
    ),
    "accumulation onto pieces": (
        "S[2*n] = B[n]\nS[2*n+1] = 1\nS[ids[i]] += X[i]\nS[2*j] += X[j]\nY[m] = tanh(S[m])",
        {"n": 4, "m": 8, "j": 3},
        ("B", "X"),
        {"B": (4,), "X": (7,), "ids": (7,)},
        {},
    ),
    "reshape": ("Y[i] = X[i//5,i%5]", {"i": 20}, ("X",), {"X": (4, 5)}, {}),
    "reshape in rows": ("Y[i,j] = X[(i*6+j)//8,(i*6+j)%8]", {"i": 4, "j": 6}, ("X",), {"X": (3, 8)}, {}),
    "broadcast": ("Y[i,j] = A[i,0]*2 + B[j]", {}, ("A", "B"), {"A": (5, 1), "B": (7,)}, {}),
    "broadcast along a new axis": ("Y[i,j] = B[j]", {"i": 5}, ("B",), {"B": (7,)}, {}),
    "tanh layer": ("Y[i,j] = tanh(sum[k](A[i,k]*W[k,j]) + b[j])", {}, "W", {"A": (3, 4), "W": (4, 5), "b": (5,)}, {}),
    "concatenation": ("Y[i] = where(i < 5, X[i], Z[i-5])", {"i": 9}, ("X", "Z"), {"X": (5,), "Z": (4,)}, {}),
    "run-time parameters": ("Y[i] = lr*X[i]*X[i] + c", {}, ("X", "lr", "c"), {"X": (4,)}, {"lr": 0.5, "c": 2.0}),
    "counts": ("Y[i] = sum[j](where(ids[i,j] > 2, X[i], 0))", {}, ("X",), {"X": (4,), "ids": (4, 6)}, {}),
    "labels": ("L[] = mean[b](log(sum[c](exp(Z[b,c]))) - Z[b,y[b]])", {}, ("Z",), {"Z": (5, 4), "y": (5,)}, {}),
    "softmax": (SOFTMAX, {}, ("X",), {"X": (3, 5)}, {}),
    "a maximum that is read": (
        "M[b] = max[k](X[b,k])\nY[b,k] = M[b]*M[b]*X[b,k]",
        {},
        ("X",),
        {"X": (3, 5)},
        {},
    ),
    "maxima in pieces": (
        "M[2*i] = max[k](X[i,k])\nM[2*i+1] = max[k](X[i,k]*X[i,k])\nY[j] = M[j]*M[j]",
        {},
        ("X",),
        {"X": (3, 5)},
        {},
    ),
    "the least of products": (
        "M[b] = min[i,k](X[b,i]*Z[i,k])\nY[b] = M[b]*M[b]",
        {},
        ("X", "Z"),
        {"X": (3, 5), "Z": (5, 2)},
        {},
    ),
    "product": ("Y[b] = prod[k](X[b,k])", {}, ("X",), {"X": (3, 5)}, {}),
    "product of two": ("Y[b] = prod[i,k](X[b,i]*Z[i,k])", {}, ("X", "Z"), {"X": (3, 5), "Z": (5, 2)}, {}),
    "cumulative product": ("Y[i] = prod[k](where(k <= i, X[k], 1))", {"i": 5, "k": 5}, ("X",), {"X": (5,)}, {}),
    "products in pieces": (
        "Y[2*i] = prod[k](X[i,k])\nY[2*i+1] = X[i,0]",
        {},
        ("X",),
        {"X": (3, 5)},
        {},
    ),
    "two outputs": ("Y[i] = X[i]*X[i]\nZ[j] = X[2*j]", {}, ("X",), {"X": (7,)}, {}),
}  # fmt: skip


def setup(text, extents, shapes, parameters, dtype):
    op = es.op(text, extents=extents)
    like = {n: np.zeros(s, np.int64 if n in ("ids", "y") else dtype) for n, s in shapes.items()}
    return op, like, {n: leaf(a.shape, dt.dtype_of(a)) for n, a in like.items()}, parameters


def numbers(parameters):
    """Leaves of the run-time parameters."""
    return {n: leaf((), dt.f64) for n, v in parameters.items() if isinstance(v, float)}


def apply(op, leaves, numbers, static):
    """The results of an operator on leaves that it names."""
    given = {n: Value(x) for n, x in leaves.items() if n in op.inputs}
    given |= {n: Value(x, weak=True) for n, x in numbers.items() if n in op.parameters}
    given |= {n: v for n, v in static.items() if n in op.parameters and n not in given}
    with tracing(Trace()):
        out = op(**given)
    return [v.tensor for v in (out if isinstance(out, tuple) else (out,))]


def templates(tensors):
    return [n.template for n in postorder(tensors) if isinstance(n, Compute)]


@pytest.mark.thinned(6)
@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["f32", "f64"])
@pytest.mark.parametrize("name", CASES)
def test_printed_gradients_are_read_as_the_same_templates(name, dtype, rng):
    text, extents, wrt, shapes, parameters = CASES[name]
    op, like, leaves, parameters = setup(text, extents, shapes, parameters, dtype)
    nums = numbers(parameters)
    outs = apply(op, leaves, nums, parameters)
    cots = {"d" + n: leaf(t.shape, t.dtype) for n, t in zip(op.program.outputs, outs, strict=True)}
    _, derived = gradients(outs, list(cots.values()), [{**leaves, **nums}[n] for n in wrt])
    derived = values_only(Graph((), tuple(derived), (), ())).outputs

    printed = op.gradient(wrt, **like, **parameters)
    again = apply(es.op(printed), {**leaves, **cots}, nums, parameters)
    assert len(again) == len(derived)
    for a, b in zip(again, derived, strict=True):
        assert a.dtype is b.dtype and a.shape == b.shape
    if not any(isinstance(d, Leaf) for d in derived):
        assert set(templates(again)) == set(templates(derived)), f"{printed}"
    assert set(es.op(str(printed), extents=printed.extents).program.outputs) == {f"d{n}" for n in wrt}

    every = {**leaves, **cots, **nums}
    feed = {
        n: rng.standard_normal(x.shape) if x.dtype.is_float else rng.integers(0, 4, x.shape) for n, x in every.items()
    }
    got, want = (
        evaluate(Graph(tuple(every.values()), tuple(ts), (), ()), list(feed.values()))[0] for ts in (again, derived)
    )
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)


def test_axes_and_cotangents_have_the_users_names():
    matmul = es.op("C[i,j] = sum[k](A[i,k]*B[k,j])")
    assert matmul.gradient("A", (3, 4), (4, 5)) == "dA[i, k] = sum[j](dC[i, j]*B[k, j])"
    capsule = es.op(CAPSULE)
    shapes = {"A": (2, 3, 15, 15, 4, 4), "W": (5, 3, 3, 3, 4, 4)}
    assert capsule.gradient("W", **shapes, stride=2) == (
        "dW[k, c, r, s, m, j] = sum[b, p, q, i](dC[b, k, p, q, i, j]*A[b, c, r + 2*p, s + 2*q, i, m])"
    )
    lines = capsule.gradient("A", **shapes, stride=2).splitlines()
    lefts = [line.partition(" = ")[0] for line in lines[1:]]
    assert lefts == [
        "dA[b, c, 2*h, 2*w, i, m]",
        "dA[b, c, 2*h, 2*q + 1, i, m]",
        "dA[b, c, 2*p + 1, 2*w, i, m]",
        "dA[b, c, 2*p + 1, 2*q + 1, i, m]",
    ]
    assert lines[4].endswith("= sum[k, j](W[k, c, 1, 1, m, j]*dC[b, k, p, q, i, j])")
    embedding = es.op("Y[t,k] = E[ids[t],k]").gradient("E", (50, 3), (7,))
    assert embedding.splitlines()[-1] == "dE[ids[t], k] += dY[t, k]" and embedding.extents == {"dE.shape[0]": 50}


def test_gradients_of_recurrences_have_no_copies_and_the_users_axes():
    """A rotated and a delayed state: neither is a statement of its own, and each line has the axes of the formula."""
    op = es.op("""
        r[b,t,k] = where(t > 0, h[b,t-1,(k+1)%size(k)], 0)
        h[b,t,k] = tanh(x[b,t,k] + a[k]*r[b,t,k] + where(t >= 3, h[b,t-3,k], 0))
        return h
    """)
    lines = op.gradient("a", x=(2, 7, 4), a=(4,)).splitlines()
    assert lines[:4] == [
        "# extents: t1 3, t2 2",
        "# h_[t + 3, b, k] is h[b, t, k]",
        "h_[t1, b, k] = 0.0",
        "h_[t + 3, b, k] = tanh(where(1 <= t, h_[t + 2, b, (k + 1)%4], 0.0)*a[k] + x[b, t, k] + h_[t, b, k])",
    ]
    assert lines[4] == "# gradients that flow back through the steps" and len(lines) == 12
    assert not any("-1*" in line for line in lines)
    assert set(re.findall(r"\b[a-z]\b(?!\[)", ";".join([*lines[2:4], *lines[5:-1]]))) == {"b", "t", "k"}


def test_a_gradient_that_does_not_depend_on_the_input_is_zeros():
    op = es.op("Y[i] = stop_gradient(X[i])*2")
    assert op.gradient("X", (3,)).splitlines()[-1] == "dX[i] = 0.0"
    np.testing.assert_array_equal(es.interpret(es.op(op.gradient("X", (3,))))(), np.zeros(3))


def test_gradients_of_printed_gradients(rng):
    op = es.op("Y[i] = X[i]*X[i]*X[i]")
    second = es.op(es.op(op.gradient("X", (4,))).gradient("X", X=(4,), dY=(4,)))
    x, u = rng.standard_normal(4), rng.standard_normal(4)
    got = es.interpret(second)(**{"X": x, "dY": np.ones(4), "ddX": u})
    np.testing.assert_allclose(got, 6 * x * u)


def test_names_that_are_taken_are_avoided():
    op = es.op("dA[i] = A[i]*A[i]\nh[i] = dA[i]*A[i]")
    printed = op.gradient("A", (3,))
    assert es.op(printed).inputs == ("dh", "A") or set(es.op(printed).inputs) == {"dh", "A"}
    assert printed.splitlines()[-1].startswith("dA_[")


def test_bad_requests():
    op = es.op("Y[t,k] = c*E[ids[t],k]")
    with pytest.raises(FormulaError, match="differentiated with respect to 'F'"):
        op.gradient("F", (5, 3), (7,))
    with pytest.raises(GradientError, match="ids is i64"):
        op.gradient("ids", (5, 3), (7,))
    with pytest.raises(FormulaError, match="input ids is missing"):
        op.gradient("E", (5, 3))
    with pytest.raises(ShapeError, match="E has shape"):
        op.gradient("E", (5,), (7,))
    with pytest.raises(ShapeError, match="pass its shape"):
        op.gradient("E", (5.0, 3), (7,))
    with pytest.raises(GradientError, match="no output"):
        es.op("Y[i] = argmax[k](X[i,k])").gradient("X", (3, 4))
    with pytest.raises(GradientError, match="more than 20000 terms"):
        es.op("Y[i] = X[i]" + "".join(f"*cos(X[i]+{k})" for k in range(90))).gradient("X", (3,))
