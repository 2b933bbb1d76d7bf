"""Conditions on one output axis become pieces."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
from einsmith.api.tracing import trace_call
from einsmith.ir.evaluator import evaluate
from einsmith.ir.loop import LoweredLoop
from einsmith.ir.nodes import Apply, Compute, Graph, postorder
from einsmith.ir.verify import verify_graph
from einsmith.passes.algebra.inline import inline
from einsmith.passes.algebra.read_forwarding import read_forwarding
from einsmith.passes.algebra.simplify import simplify
from einsmith.passes.algebra.split_index_set import split_index_set
from einsmith.passes.pipeline import run_passes


def graph_of(f, *arrays) -> Graph:
    return simplify(inline(simplify(trace_call(f, arrays, {}).graph)))


def choices(graph: Graph) -> int:
    """Selections in a graph's templates."""
    nodes = (n for n in postorder(graph.roots) if isinstance(n, Compute))
    return sum(
        isinstance(e, Apply) and e.fn == "where" for n in nodes for p in n.template.parts for e in postorder(p.bodies)
    )


def shapes(graph: Graph) -> list[list[tuple[int, ...]]]:
    return [[p.domain for p in n.template.parts] for n in postorder(graph.roots) if isinstance(n, Compute)]


TEXTS = {
    "ranges": ("y[i,k] = where(k < 9, exp(a[i,k]), 0) + where(k >= 9, tanh(a[i,k-9]) * b[i,k], 0)", 2),
    "ranges in the middle": ("y[i,k] = where(k >= 8 and k < 19, exp(a[i,k-8] * b[i,k]), 1)", 3),
    "the first axis": ("y[i,k] = where(i < 3, exp(a[i,k]), tanh(b[i,k]))", 2),
    "two axes": ("y[i,k] = where(k < 9, exp(a[i,k]), where(i < 3, tanh(b[i,k]), exp(b[i,k])))", 3),
}  # fmt: skip


@pytest.mark.parametrize("name", TEXTS)
def test_ranges_become_pieces(name):
    text, count = TEXTS[name]
    rng = np.random.default_rng(4)
    a, b = rng.standard_normal((12, 27)), rng.standard_normal((12, 27))
    before = graph_of(es.op(text), a, b)
    after = split_index_set(before)
    verify_graph(after)
    assert choices(before) and not choices(after)
    assert [len(s) for s in shapes(after)] == [count]
    want, got = (evaluate(g, [a, b]) for g in (before, after))
    np.testing.assert_array_equal(got[0], want[0])


@pytest.mark.parametrize(
    "text",
    [
        "y[i,k] = where(i < k, exp(a[i,k]), 0)",
        "y[i,k] = where(k > 0, a[i,max(k-1,0)], 0) + a[i,k]",
        "y[i,k] = where(k % 2 == 0, exp(a[i,k]), 0)",
    ],
    ids=["two axes at once", "an edge", "residues"],
)
def test_splits_without_gain_are_not_made(text):
    before = graph_of(es.op(text), np.zeros((6, 27)))
    assert split_index_set(before).outputs == before.outputs


def test_the_backward_of_stacked_gates_is_evaluated_gate_by_gate():
    op = es.op(
        """
        a[t,b,n] = p[t,b,n] + sum[j](where(t > 0, h[t-1,b,j], 0) * U[n,j])
        c[t,b,k] = sigmoid(a[t,b,H+k]) * where(t > 0, c[t-1,b,k], 0) + sigmoid(a[t,b,0*H+k]) * tanh(a[t,b,2*H+k])
        h[t,b,k] = sigmoid(a[t,b,3*H+k]) * tanh(c[t,b,k])
        return h
        """,
        H=8,
    )

    def loss(p, u):
        return (op(p, u) ** 2).sum()

    rng = np.random.default_rng(4)
    p, u = rng.standard_normal((6, 3, 32)), rng.standard_normal((32, 8))
    g = es.grad(loss, (0, 1))
    graph = run_passes(trace_call(g, (p, u), {}).graph)
    loops = [n for n in postorder(graph.roots) if isinstance(n, LoweredLoop)]
    bodies = list(dict.fromkeys(s.body for loop in loops for s in loop.segments))
    assert len(bodies) == 2 and not any(map(choices, bodies))
    assert [(3, 8)] * 4 in [s for b in bodies for s in shapes(b)]
    for got, want in zip(g(p, u), es.interpret(g)(p, u), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


def test_a_slice_of_a_concatenation_reads_its_part():
    def f(a, b):
        both = es.functional.cat([a, b], 0)
        return es.exp(both[4:9]), es.exp(both[2:9])

    rng = np.random.default_rng(4)
    a, b = rng.standard_normal((4, 3)), rng.standard_normal((6, 3))
    before = simplify(trace_call(f, (a, b), {}).graph)
    after = simplify(inline(read_forwarding(before)))
    verify_graph(after)
    one, other = after.outputs
    assert len(one.args) == 1 and one.args[0] is after.inputs[1]
    assert other.args[0] not in after.inputs
    for got, want in zip(evaluate(after, [a, b])[0], evaluate(before, [a, b])[0], strict=True):
        np.testing.assert_array_equal(got, want)
