"""Tensors read through one clamp alone are stored clamped: the same values, and what stays as it is."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
from einsmith.api.tracing import trace_call
from einsmith.autodiff import reverse
from einsmith.ir.evaluator import evaluate
from einsmith.ir.nodes import Apply, Compute, Graph, Read, postorder
from einsmith.ir.verify import verify_graph
from einsmith.passes.algebra.inline import inline
from einsmith.passes.algebra.simplify import simplify
from einsmith.passes.algebra.store_post_activation import store_post_activation

CLAMPS = {
    "relu": "where(t[i,j] <= 0, 0, t[i,j])",
    "relu6": "where(t[i,j] <= 0, 0, where(6 <= t[i,j], 6, t[i,j]))",
    "by max": "max(t[i,j], 0)",
    "between": "min(max(t[i,j], -1), 0.5)",
}


def prepared(f, *shapes: tuple[int, ...]) -> Graph:
    return inline(simplify(trace_call(f, tuple(np.zeros(s) for s in shapes), {}).graph))


def selections(graph: Graph) -> int:
    """Sums whose bodies hold a clamp of a number."""

    def selects(e) -> bool:
        below = list(postorder([e]))
        return (
            isinstance(e, Apply) and e.dtype.is_float and sum(isinstance(x, Read) for x in below) == 1
            and all(x.fn in ("where", "min", "max", "lt", "le") for x in below if isinstance(x, Apply))
        )  # fmt: skip

    sums = [p for n in postorder(graph.roots) if isinstance(n, Compute) for p in n.template.parts if len(p.domain) > 2]
    return sum(any(selects(e) for b in p.bodies for e in postorder([b])) for p in sums)


def same(graph: Graph, short: Graph, arrays) -> None:
    verify_graph(short)
    for got, want in zip(evaluate(short, arrays)[0], evaluate(graph, arrays)[0], strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("clamp", CLAMPS)
@pytest.mark.parametrize("made", ["t[i,j] = x[i,j]*s[j]", "t[i,j] = sum[k](x[i,k]*s[k]*s[j])"])
@pytest.mark.parametrize("n, m", [(1, 1), (5, 17), (16, 15)])
def test_a_product_and_its_gradients_read_clamped_numbers(made, clamp, n, m, rng, monkeypatch):
    monkeypatch.setattr(reverse, "name_operands", lambda node: None)  # which stores the clamp before
    op = es.op(f"{made}\nz[i,k] = sum[j]({CLAMPS[clamp]}*w[j,k])\ny[] = sum[i,k](v[i,k]*z[i,k])\nreturn y")

    # The gradient of a largest number shares where both are equal, which a clamped number does not tell.
    wanted = (2,) if clamp in ("by max", "between") else (0, 1, 2)

    def f(x, s, w, v):
        return es.value_and_grad(lambda x, s, w: op(x=x, s=s, w=w, v=v), argnums=wanted)(x, s, w)

    graph = prepared(f, (n, m), (m,), (m, 3), (n, 3))
    arrays = [3 * rng.standard_normal(x.shape) for x in graph.inputs]
    arrays[0][0, 0] = 0
    short = store_post_activation(graph)
    same(graph, short, arrays)
    if n > 1:
        assert (selections(short), selections(graph) > 0) == (0, True)


@pytest.mark.parametrize("x", [np.nan, np.inf, -np.inf, 0.0, -0.0, 6.0, np.nextafter(6, 7), 5e-324])
def test_numbers_that_are_none_and_ends(x):
    op = es.op("t[i] = x[i]*0.5\nz[] = sum[i](where(t[i] <= 0, 0, where(6 <= t[i], 6, t[i]))*w[i])\n"
               "g[i] = where(t[i] <= 0, 0, where(6 <= t[i], 0, w[i]))\nreturn z, g")  # fmt: skip
    graph = prepared(lambda x, w: op(x=x, w=w), (2,), (2,))
    short = store_post_activation(graph)
    assert short is not graph
    same(graph, short, [np.array([2 * x, 1.0]), np.array([2.0, 3.0])])


@pytest.mark.parametrize("also", [
    "r[i,j] = t[i,j]*2",  # the number itself
    "r[i,j] = where(t[i,j] <= -1, 0, w[i,j])",  # a comparison that the clamp decides otherwise
    "r[i,j] = where(t[i,j] < 0, 0, w[i,j])",  # zero is clamped from both sides of it
    "r[i,j] = where(t[i,j] <= 1, 0, t[i,j])",  # another clamp
    "r[i,j] = where(t[i,j] <= w[i,j], 0, 1)",  # compared with what is known to nobody
])  # fmt: skip
def test_unchanged_graphs(also, rng):
    op = es.op(f"t[i,j] = x[i,j]*x[i,j] - 1\nz[i] = sum[j](max(t[i,j], 0)*w[i,j])\n{also}\nreturn z, r")
    graph = prepared(lambda x, w: op(x=x, w=w), (6, 7), (6, 7))
    assert store_post_activation(graph) is graph


def test_an_output_stays(rng):
    op = es.op("t[i,j] = x[i,j]*x[i,j] - 1\nz[i] = sum[j](max(t[i,j], 0))\nreturn z, t")
    graph = prepared(lambda x: op(x=x), (6, 7))
    assert store_post_activation(graph) is graph


def test_a_convolutions_operand_is_plain_in_a_network(rng):
    """What a depthwise convolution reads nine times is clamped once, so that the stencil takes it."""
    F = es.functional
    w, w2 = (rng.standard_normal((5, 1, 3, 3)).astype("f") for _ in range(2))

    def loss(x, w, w2):
        return F.conv2d(F.relu6(F.conv2d(x, w, None, 1, 1, 1, 5)), w2, None, 2, 1, 1, 5).sum()

    f = es.jit(es.grad(loss, argnums=(1, 2)))
    got = f(rng.standard_normal((2, 5, 17, 17)).astype("f"), w, w2)
    assert [g.shape for g in got] == [w.shape, w2.shape]
    assert "contraction" not in str(f.plan)


def test_a_selection_of_another_type_is_no_clamp(rng) -> None:
    """The tensor is float64, and what is selected by it float32."""
    x, w, b = rng.standard_normal((6, 4)), rng.standard_normal((4, 5)), rng.standard_normal((6, 5), np.float32)
    f = es.op("""t[i,j] = sum[k](x[i,k]*w[k,j])
    y[i] = sum[j](f32(where(t[i,j] <= 0.5, 1, 0))*b[i,j])
    return y""")
    y = f(x=x, w=w, b=b)
    assert y.dtype == np.float32
    np.testing.assert_allclose(y, ((x @ w <= 0.5) * b).sum(1), rtol=1e-5, atol=1e-6)
