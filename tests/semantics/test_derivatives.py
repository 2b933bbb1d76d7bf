"""The functions of the language and of `functional` have the values and derivatives, to second order, of PyTorch's
functions of that name: at kinks, bounds, ties, zeros, infinities and NaN."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
from einsmith.api.tracing import trace_call
from einsmith.ir.functions import CALLS, COMBINERS
from einsmith.ir.nodes import Compute, Reduce, postorder
from tests.semantics.derivatives import CASES, compare, same


@pytest.mark.thinned(8)
@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["f32", "f64"])
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_a_function_has_the_derivatives_of_pytorchs(torch, case, dtype) -> None:
    wrong, told = [], []
    for f in compare(torch, case, dtype):
        for order in range(3):
            what = f"derivative {order} by argument {f.wrt} at {f.at}"
            if f.evaluator and not same(f.ours[order], f.evaluator[order], dtype):
                wrong.append(f"{what}: compiled {f.ours[order]}, evaluated {f.evaluator[order]}")
            reason = case.differs(order, f.wrt, f.at)
            equal = same(f.ours[order], f.theirs[order], dtype)
            if reason:
                told.append(not equal)
            elif not equal:
                wrong.append(f"{what}: {f.ours[order]}, PyTorch {f.theirs[order]}")
    assert not wrong, "\n".join(wrong)
    assert not told or any(told), "nothing differs any more where a difference is told"


def test_every_function_of_the_language_is_compared() -> None:
    texts = " ".join(c.ours for c in CASES if isinstance(c.ours, str))
    names = [*CALLS, "sum", "prod", "mean", "max", "min"]
    missing = [
        n for n in names if f"{n}(" not in texts and f"{n}[" not in texts and n not in ("stop_gradient", "random_bits")
    ]
    assert not missing
    assert "prod" in COMBINERS


RNN = """
    h[t,i] = relu(where(t > 0, h[t-1,i], 0) + sum[k](x[k]*w[k,i]))
    y[i] = sum[t](h[t,i])
    return y
"""
RELUS = {
    "formula": es.op("y[i] = relu(sum[k](x[k]*w[k,i]))"),
    "recurrence": es.op(RNN, extents={"t": 3}),
    "functional": lambda x, w: es.functional.relu(x @ w),
    "module": lambda x, w: es.nn.ReLU()(x @ w),
    "function": lambda x, w: es.relu(x @ w),
    "compute": lambda x, w: es.compute(w.shape[1:], lambda i: es.relu((x @ w)[i])),
}


@pytest.mark.parametrize("relu", RELUS)
def test_relu_has_no_derivative_at_zero_to_any_order(relu) -> None:
    """However it is written, and behind a sum, of which a value is zero, positive and negative."""
    f = RELUS[relu]
    x, w = np.array([2.0, 1.0]), np.array([[1.0, -3.0, 1.0, 2.0], [-2.0, 1.0, 1.0, -4.0]])
    np.testing.assert_array_equal((x @ w > 0), [False, False, True, False])
    once = es.grad(lambda x, w: f(x, w).sum())
    times = 6 if relu == "recurrence" else 1  # h[t] is t + 1 times the sum
    np.testing.assert_array_equal(es.jit(once)(x, w), times * w[:, 2])
    twice = es.grad(lambda x, w: (f(x, w) * f(x, w)).sum())
    np.testing.assert_array_equal(es.jit(twice)(x, w), 2 * times**2 * (x @ w)[2] * w[:, 2])
    again = es.grad(lambda x, w: (twice(x, w) * x).sum())
    np.testing.assert_array_equal(es.jit(again)(x, w), 4 * times**2 * (x @ w)[2] * w[:, 2])


@pytest.mark.parametrize("text", ["y[i] = relu(sum[k](x[n[i],k]))", "y[i] = relu(max[k](x[n[i],k])) + 1"])
def test_relu_of_a_reduction_makes_it_once(text) -> None:
    """Also where its reads hang on data, which guards around a reduction are pushed into."""
    x, n = np.array([[1.0, -3.0], [2.0, 2.0]]), np.array([1, 0, 1])
    graph = trace_call(es.op(text), (x, n), {}).graph
    reductions = [
        t for t in postorder(graph.outputs)
        if isinstance(t, Compute) and any(isinstance(p.body, Reduce) for p in t.template.parts)
    ]  # fmt: skip
    assert len(reductions) == 1


@pytest.mark.thinned(8)
@pytest.mark.parametrize("case", [c for c in CASES if c.elementwise], ids=lambda c: c.name)
def test_forward_mode_has_the_same_derivatives(case) -> None:
    """At finite points; at others it multiplies in another order, 0 by infinity among it."""
    arrays = [np.array(c) for c in zip(*case.points, strict=True)]
    f = case.function()
    for wrt, x in enumerate(arrays):
        _, tangent = es.jvp(lambda x, n=wrt: f(*arrays[:n], x, *arrays[n + 1 :]), (x,), (np.ones_like(x),))
        gradient = es.jit(es.grad(lambda *a: f(*a).sum(), argnums=wrt))(*arrays)
        finite = np.isfinite(arrays).all(0)
        np.testing.assert_allclose(tangent[finite], gradient[finite], rtol=1e-13, atol=1e-300)
