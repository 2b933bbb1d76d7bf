"""What a body reads under guards, its derivatives read under them too, however many paths lead to it."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
from einsmith.api.tracing import trace_call
from einsmith.ir.verify import verify_graph

PATHS = " + ".join(f"where(i >= {k}, {k}.0*tanh(x[i-1]*w[i]), 0.0)" for k in range(1, 8))
"""More paths to one product than are kept apart, each under a guard of its own."""

FORMULAS = {
    "own guards": (f"y[i] = {PATHS}", {"x": (9,), "w": (9,)}),
    "a guard for all": (
        "y[i] = where(i > 0, " + PATHS.replace("i >=", "w[i] >").replace("0.0)", "x[i-1])") + ", x[i])",
        {"x": (9,), "w": (9,)},
    ),
    "conditions of what is guarded": (
        """h[i,b] = min(1, max(-1, sigmoid(max(where(i > 1, h[i-2,b], z[i,b]),
                                               where(i > 1, min(w[i-2,b], x[i,b]), x[i,b])))))
           return h""",
        {"z": (5, 3), "w": (5, 3), "x": (5, 3)},
    ),
    "positions that are read": (
        "y[i] = " + " + ".join(f"where(n[i] > {k}, {k + 1}.0*tanh(x[n[i]-1]*w[i]), 0.0)" for k in range(6)),
        {"x": (9,), "w": (9,)},
    ),
    # The gradient of x sums over fibres of i//4, of which the last is a part; what is chosen is read there.
    "chosen points of a part of a fibre": ("y[i] = max[j](x[i//4]*w[j])", {"x": (2,), "w": (5,)}),
}

EXTENTS = {"chosen points of a part of a fibre": {"i": 5}}


LONG = "conditions of what is guarded"


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n == LONG)) for n in FORMULAS])
def test_derivatives_read_where_the_body_reads(name, rng):
    text, shapes = FORMULAS[name]
    f = es.op(text, extents=EXTENTS.get(name))
    arrays = {n: rng.standard_normal(s) for n, s in shapes.items()}
    fixed = {"n": np.arange(9)} if "n[i]" in text else {}
    names, x = list(arrays), list(arrays.values())
    y = f(**arrays, **fixed)
    c, v = rng.standard_normal(y.shape), [rng.standard_normal(a.shape) for a in x]

    def value(*x):
        return f(**dict(zip(names, x, strict=True)), **fixed)

    def first(c, *x):
        return es.vjp(value, *x)[1](c)

    def second(c, v, *x):
        return es.vjp(lambda *y: first(c, *y), *x)[1](tuple(v))

    for g, args in ((first, (c, *x)), (second, (c, v, *x))):
        verify_graph(trace_call(g, args, {}).graph)
        for a, b in zip(es.jit(g)(*args), es.interpret(g)(*args), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)
    # Forward mode inverts and merges nothing.
    moved = es.jvp(value, tuple(x), tuple(v))[1]
    pulled = es.interpret(first)(c, *x)
    assert np.vdot(c, moved) == pytest.approx(sum(np.vdot(g, w) for g, w in zip(pulled, v, strict=True)), rel=1e-9)


@pytest.mark.parametrize(
    "text, wanted",
    [
        # Two reads under one guard, one of them at the position that is written.
        ("y[b,j] = where(ok[b,j] == 1, x[b,n[b,j]] + x[b,j], 0)", [[2, 1, 0, 1, 0], [0, 0, 0, 0, 0], [2, 1, 2, 0, 1]]),
        # A guard of several, of which one stands in a loop that the index does not mention.
        (
            "y[b] = sum[j,c](where((ok[b,j] == 1) and (ok[b,c] == 0), x[b,n[b,j]], 0))",
            [[3, 0, 0, 3, 0], [0, 0, 0, 0, 0], [2, 0, 2, 0, 2]],
        ),
    ],
)
def test_guards_keep_indices_of_gradients_in_bounds(text, wanted, rng):
    n = np.array([[3, 0, -1, 1, 7], [-1, 2, 1, 0, 3], [4, 0, 2, -5, -1]])
    ok = (np.cumsum((n < 0) | (n > 4), 1) == 0).astype(np.int64)
    f = es.op(text)
    x = rng.standard_normal((3, 5))
    g = es.grad(lambda x, n, ok: f(x=x, n=n, ok=ok).sum())
    for way in (g, es.interpret(g)):
        np.testing.assert_array_equal(way(x, n, ok), wanted)
