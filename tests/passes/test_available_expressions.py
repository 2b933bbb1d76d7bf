"""Products that hold a stored tensor read it: the same values, what is not read any more, and what stays as it is."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
from einsmith.api.tracing import trace_call
from einsmith.ir.evaluator import evaluate
from einsmith.ir.nodes import Apply, Compute, Graph, postorder
from einsmith.ir.verify import verify_graph
from einsmith.passes.algebra.available_expressions import available_expressions
from einsmith.passes.algebra.inline import inline
from einsmith.passes.algebra.simplify import simplify


def prepared(f, *shapes: tuple[int, ...]) -> Graph:
    return inline(simplify(trace_call(f, tuple(np.zeros(s) for s in shapes), {}).graph))


def evaluations(graph: Graph, fn: str) -> int:
    """In how many places a graph applies a function."""
    bodies = [b for n in postorder(graph.roots) if isinstance(n, Compute) for p in n.template.parts for b in p.bodies]
    return sum(isinstance(e, Apply) and e.fn == fn for b in bodies for e in postorder([b]))


def readers(graph: Graph, fn: str) -> int:
    """How many tensors are computed with a function."""
    return sum(
        any(isinstance(e, Apply) and e.fn == fn for p in n.template.parts for b in p.bodies for e in postorder([b]))
        for n in postorder(graph.roots)
        if isinstance(n, Compute)
    )


def trained(forward):
    """sum(v*(forward(x) @ w)) and its gradient by x; x [n, m], w [m, k], v [n, k]."""
    product, total = es.op("z[i,k] = sum[j](p[i,j]*w[j,k])"), es.op("y[] = sum[i,k](v[i,k]*z[i,k])")

    def f(x, w, v):
        return es.value_and_grad(lambda x: total(v=v, z=product(p=forward(x), w=w)))(x)

    return f


SOFTMAX = es.op("m[i] = max[j](x[i,j])\ns[i] = sum[j](exp(x[i,j] - m[i]))\ny[i,j] = exp(x[i,j] - m[i])/s[i]\nreturn y")
COLUMNS = es.op("s[j] = sum[i](exp(x[i,j]))\ny[i,j] = exp(x[i,j])/s[j]\nreturn y")
ACTIVATIONS = {
    "softmax": (lambda x: SOFTMAX(x), "exp", 2, 4),
    "softmax without its largest": (lambda x: COLUMNS(x), "exp", 2, 3),
    "tanh": (lambda x: es.op("y[i,j] = tanh(x[i,j]*x[i,j])")(x), "tanh", 1, 1),
    "sigmoid": (lambda x: es.op("y[i,j] = sigmoid(3*x[i,j])")(x), "sigmoid", 1, 1),
    "exp over a constant": (lambda x: es.op("y[i,j] = exp(x[i,j])/7")(x), "exp", 1, 2),
}


@pytest.mark.parametrize("n, m", [(1, 1), (5, 17), (16, 15)])
@pytest.mark.parametrize("case", ACTIVATIONS)
def test_gradients_read_what_is_stored(case, n, m, rng):
    forward, fn, left, before = ACTIVATIONS[case]
    graph = prepared(trained(forward), (n, m), (m, 3), (n, 3))
    arrays = [rng.standard_normal(x.shape) for x in graph.inputs]
    short = available_expressions(graph)
    verify_graph(short)
    for got, want in zip(evaluate(short, arrays)[0], evaluate(graph, arrays)[0], strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-13)
    if n > 1:
        assert (readers(short, fn), readers(graph, fn)) == (left, before)


def both(text: str, **extents: int):
    return es.op(text + "\nreturn y, z")


def test_conditions_keep_their_bodies(rng):
    """Where s is zero, p is not a number; what is chosen there does not read it."""
    text = "p[i,j] = exp(x[i,j])/s[i]\nz[i,k] = sum[j](p[i,j]*w[j,k])\nd[i] = sum[j](x[i,j]*g[i,j])\n"
    text += "y[i,j] = where(s[i] == 0, 0, d[i]/s[i]*exp(x[i,j]))"
    graph = prepared(lambda x, s, w, g: both(text)(x=x, s=s, w=w, g=g), (4, 9), (4,), (9, 2), (4, 9))
    arrays = [rng.standard_normal(x.shape) for x in graph.inputs]
    arrays[1][2] = 0
    short = available_expressions(graph)
    with np.errstate(all="ignore"):
        want, got = evaluate(graph, arrays)[0], evaluate(short, arrays)[0]
    np.testing.assert_allclose(got[0], want[0], rtol=1e-12)
    assert np.isfinite(got[0]).all() and not np.isfinite(got[1][2]).any()


def test_a_factor_does_not_leave_a_condition(rng):
    """The sum's own factor, 1/s, is chosen where s is not zero; nothing else of the product is there to divide."""
    text = "p[i,j] = exp(x[i,j])/s[i]\nz[i,k] = sum[j](p[i,j]*w[j,k])\nd[i] = sum[j](g[i,j]/s[i])\n"
    text += "e[i] = where(s[i] == 0, 0, d[i])\ny[i,j] = e[i]*exp(x[i,j])"
    graph = prepared(lambda x, s, w, g: both(text)(x=x, s=s, w=w, g=g), (4, 9), (4,), (9, 2), (4, 9))
    arrays = [rng.standard_normal(x.shape) for x in graph.inputs]
    arrays[1][2] = 0
    with np.errstate(all="ignore"):
        want, got = evaluate(graph, arrays)[0], evaluate(available_expressions(graph), arrays)[0]
    np.testing.assert_allclose(got[0], want[0], rtol=1e-12)
    assert np.isfinite(got[0]).all()


@pytest.mark.parametrize("line", [
    "y[i,j] = tanh(x[i,j] + 1)",  # of something else
    "y[i,j] = tanh(x[j,i])",  # elsewhere, where p has other places
    "y[i,j] = tanh(x[i,j]) + x[i,j]",  # x is read in any case
    "y[i,j] = p[i,j]*2",
])  # fmt: skip
def test_unchanged_graphs(line, rng):
    op = es.op(f"p[i,j] = tanh(x[i,j])\nz[i,k] = sum[j](p[i,j]*w[j,k])\n{line}\nreturn y, z")
    graph = prepared(lambda x, w: op(x=x, w=w), (6, 6), (6, 3))
    short = available_expressions(graph)
    arrays = [rng.standard_normal(x.shape) for x in graph.inputs]
    for got, want in zip(evaluate(short, arrays)[0], evaluate(graph, arrays)[0], strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12)
    if "[j,i]" not in line:
        assert short is graph


def test_a_place_may_be_any(rng):
    """Read at another place, the stored tensor is read there."""
    op = es.op("p[i,j] = tanh(x[i,j])\nz[i,k] = sum[j](p[i,j]*w[j,k])\ny[i,j] = where(1 <= i, tanh(x[i-1,j])*2, 0)\n"
               "return z, y", extents={"i": 6})  # fmt: skip
    graph = prepared(lambda x, w: op(x=x, w=w), (6, 7), (7, 3))
    short = available_expressions(graph)
    arrays = [rng.standard_normal(x.shape) for x in graph.inputs]
    for got, want in zip(evaluate(short, arrays)[0], evaluate(graph, arrays)[0], strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12)
    assert readers(short, "tanh") == 1 < readers(graph, "tanh")


def test_a_place_may_be_read_from_a_tensor(rng):
    """The product's other operand has fewer dimensions, and its index stands nowhere in the stored tensor's."""
    op = es.op(
        "p[i,j,k] = exp(x[i,j,k] - m[i,k])\ny[i,j,k] = 2*exp(x[min(max(n[i,j],0),4),j,k] - m[min(max(n[i,j],0),4),k])\n"
        "return p, y"
    )
    arrays = [rng.standard_normal((5, 3, 2)), rng.standard_normal((5, 2)), rng.integers(0, 5, (5, 3), np.int32)]
    graph = inline(simplify(trace_call(lambda x, m, n: op(x=x, m=m, n=n), tuple(arrays), {}).graph))
    short = available_expressions(graph)
    verify_graph(short)
    assert evaluations(short, "exp") == 1 < evaluations(graph, "exp")
    for got, want in zip(evaluate(short, arrays)[0], evaluate(graph, arrays)[0], strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12)


def test_a_masked_softmax_keeps_its_weights_alone(rng):
    """Of attention's backward pass nothing reads the scores, with rows in which nothing takes part too."""
    q, k, v = ((2, 9, 4), (2, 7, 4), (2, 7, 3))
    mask = rng.random((9, 7)) < 0.5
    mask[4] = False

    def f(q, k, v, g):
        def loss(q, k, v):
            y = es.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            return es.functional.sum(y * g)

        return es.grad(loss, argnums=(0, 1, 2))(q, k, v)

    graph = prepared(f, q, k, v, (2, 9, 3))
    short = available_expressions(graph)
    verify_graph(short)
    assert evaluations(short, "exp") == 1 < evaluations(graph, "exp")
    arrays = [rng.standard_normal(x.shape) if x.dtype.is_float else mask for x in graph.inputs]
    for got, want in zip(evaluate(short, arrays)[0], evaluate(graph, arrays)[0], strict=True):
        assert np.isfinite(got).all()
        np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-12)
