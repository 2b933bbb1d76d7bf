"""Formulas that read themselves, against plain loops; illegal ones are refused with the read that is in the way."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
from einsmith.api.tracing import trace_call
from einsmith.base.trees import flatten
from einsmith.ir.evaluator import evaluate
from einsmith.ir.nodes import Recurrence, postorder
from einsmith.ir.verify import verify_graph
from einsmith.passes.algebra.inline import inline
from einsmith.passes.algebra.simplify import simplify
from einsmith.passes.analysis.index_checks import index_checks
from tests.lang.recurrences import CASES


def recurrences(f, *arrays):
    """The Recurrence nodes of a function's graph, which is verified."""
    graph = trace_call(f, arrays, {}).graph
    verify_graph(graph)
    return [n for n in postorder(graph.roots) if isinstance(n, Recurrence)]


@pytest.mark.parametrize("name", CASES)
def test_values(name):
    c = CASES[name]
    got = flatten(es.interpret(c.formula)(*c.inputs))[0]
    want = flatten(c.loop(*c.inputs, **c.parameters))[0]
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_graphs_verify(name):
    c = CASES[name]
    assert recurrences(c.formula, *c.inputs)


X = np.ones((5, 3), np.float32)
V = np.ones(5, np.float32)
IDS = np.zeros(5, np.int64)

ILLEGAL = [
    ("h[t] = x[t] + h[parent[t]]", "h[parent[t]]", "h reads h at positions that are known only", (V, IDS)),
    ("y[t] = x[t] + where(t > 0, y[t-1], 0) + where(t+1 < size(t), y[t+1], 0)", "y[t", "along no axis are all", (V,)),
    ("y[t] = x[t] + 0.5*y[t]", "y[t]", "y reads itself at its own position", (V,)),
    ("y[t] = x[t] + y[size(t)-1-t]", "y[size", "from 4 positions before to 4 positions after", (V,)),
    ("a[t] = x[t] + b[t]\nb[t] = 2*a[t]\nreturn b", "b[t]", "reads itself at its own position", (V,)),
    ("y[t,k] = x[t,k] + where(t > 0, y[t-1,k], 0) + where(t+1 < size(t) and k > 0, y[t+1,k-1], 0)"
     " + where(k+1 < size(k), y[t,k+1], 0)", "y[", "reads y", (X,)),
    ("y[t] = x[t] + sum[k](where(t-k >= 0, y[t-k], 0))", "y[t-k]", "y reads itself at its own position", (V,)),
    ("s[t] = i64(x[t]) + where(t > 0, y[s[t-1]], 0)\ny[t] = s[t]\nreturn y", "s[t-1]",
     "an index that s computes or guards in the recurrence", (IDS,)),
    ("y[ids[t]] += x[t] + where(t > 0, y[t-1], 0)", "y[t-1]", "y accumulates with \\+=", (IDS, V)),
    ("s[] = sum[t](y[t])\ny[t] = x[t] + s[]\nreturn y", "", "reads", (V,)),
]  # fmt: skip


@pytest.mark.parametrize("text,where,message,arrays", ILLEGAL, ids=[t.replace("\n", "; ")[:50] for t, *_ in ILLEGAL])
def test_illegal_recurrences_name_the_read(text, where, message, arrays):
    extents = {"k": 2} if "sum[k]" in text else {"y.shape[0]": 5} if "+=" in text else None
    with pytest.raises(es.FormulaError, match=message.replace("[", r"\[")) as caught:
        es.interpret(es.op(text, extents=extents))(*arrays)
    assert caught.value.offset is not None
    assert text[caught.value.offset :].startswith(where)


def test_an_unguarded_first_step_is_out_of_bounds():
    with pytest.raises(es.FormulaError, match="the read of h, dimension 0, runs from -1"):
        es.interpret(es.op("h[t] = h[t-1] + x[t]"))(V)


def test_a_tensor_that_reads_itself_is_a_result():
    assert es.op("y[t] = x[t] + where(t > 0, y[t-1], 0)").signature == "y(x[t]) -> y[t]"


def test_results_must_be_named_where_every_tensor_is_read():
    with pytest.raises(es.FormulaError, match=r"(?s)every tensor is read.*\n  line \d"):
        es.op("a[t] = where(t > 0, b[t-1], 0)\nb[t] = a[t] + x[t]")


def test_one_step_is_no_loop():
    rnn = CASES["rnn"].formula
    h, u, x, w = CASES["rnn"].inputs
    assert recurrences(rnn, h, u, x[:1], w) == []
    np.testing.assert_allclose(es.interpret(rnn)(h, u, x[:1], w)[0], np.tanh(x[0] @ w + h @ u), rtol=1e-12)


def test_no_step_is_no_loop():
    h, u, x, w = CASES["rnn"].inputs
    assert es.interpret(CASES["rnn"].formula)(h, u, x[:0], w).shape == (0, *h.shape)


@pytest.mark.parametrize("name,count", [("rnn", 1), ("lstm", 1), ("bidirectional_gates", 2), ("soft_edit_distance", 1)])
def test_components(name, count):
    c = CASES[name]
    assert len(recurrences(c.formula, *c.inputs)) == count


def test_the_same_program_at_every_length():
    h, u, x, w = CASES["rnn"].inputs
    for steps in (7, 700):
        (node,) = recurrences(CASES["rnn"].formula, h, u, np.ones((steps, *x.shape[1:])), w)
        assert (node.steps, node.origins, len(node.members)) == (steps, (0, 1), 2)
        # The initial value has a slot of its own: no step has a guard.
        assert not any("where" in str(t) for t in node.members)


def test_an_index_that_a_member_gives_is_limited():
    walk = es.op("s[t] = next[min(max(where(t > 0, s[t-1], first[]), 0), 4)]", extents={"t": 6})
    got = es.interpret(walk)(np.array([3, 9, 0, 2, 1]), np.array(0))
    np.testing.assert_array_equal(got, [3, 2, 0, 3, 2, 0])


def test_passes_keep_the_value():
    op = es.op("h[t,k] = tanh(E[ids[t],k] + where(t > 0, h[t-1,k], 0))")
    table, ids = np.random.default_rng(0).standard_normal((3, 2)), np.array([0, 2, 1, 2])
    graph = trace_call(op, (table, ids), {}).graph
    assert len(index_checks(graph.roots)) == 1
    after = inline(simplify(graph))
    verify_graph(after)
    for got in (evaluate(graph, [table, ids])[0][0], evaluate(after, [table, ids])[0][0], op(table, ids)):
        want = np.zeros((5, 2))
        for t, i in enumerate(ids):
            want[t + 1] = np.tanh(table[i] + want[t])
        np.testing.assert_allclose(got, want[1:], rtol=1e-12)


@pytest.mark.parametrize(
    "text,arrays,dtype",
    [
        ("y[t] = x[t] + where(t > 0, y[t-1], 0)", (V,), "float32"),
        ("y[t] = where(t > 0, y[t-1], 0) + x[t]", (V.astype(np.float64),), "float64"),
        ("a[t] = where(t > 0, b[t-1], 1)\nb[t] = 2*a[t] + n[t]\nreturn b", (IDS,), "int64"),
        ("a[t] = where(t > 0, b[t-1], 1)\nb[t] = a[t]/2 + n[t]\nreturn b", (IDS,), "float32"),
        ("y[t] = where(t > 0, y[t-1], 1)*0.5", (), "float32"),
        ("a[t] = 0.9*where(t > 0, a[t-1], 1)\ny[t] = a[t]*n[t]\nreturn a, y", (V.astype(np.float64),), "float64"),
        ("b[t] = x[t] > 0 or where(t > 0, b[t-1], 1 < 0)", (V,), "bool"),
        ("b[t] = where(t > 0, not b[t-1], x[t] > 0)", (V,), "bool"),
    ],
)
def test_types(text, arrays, dtype):
    graph = trace_call(es.op(text, extents=None if arrays else {"t": 4}), arrays, {}).graph
    assert graph.outputs[0].dtype.numpy == np.dtype(dtype)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", CASES)
def test_compiled(name):
    c = CASES[name]
    got = flatten(c.formula(*c.inputs))[0]
    want = flatten(c.loop(*c.inputs, **c.parameters))[0]
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-12, atol=1e-12)


def test_undetermined_extents_are_requested():
    with pytest.raises(es.FormulaError, match='add extents={"t": N}'):
        es.op("y[t] = where(t > 0, y[t-1], 0) + 1")()
    np.testing.assert_array_equal(es.op("y[t] = where(t > 0, y[t-1], 0) + 1", extents={"t": 4})(), [1, 2, 3, 4])


@pytest.mark.parametrize("text", ["g[t] = a*t", "g[t] = exp(a*t)", "g[t] = sum[k](a*t*k)", "g[t] = t/3"])
def test_statements_without_floats_take_the_formulas_type(text):
    """The float type is that of the formula's inputs, in all of its statements; float32 where it has none."""
    more = ({"k": 3} if "k" in text else {}), ({"a": 0.9} if "a" in text else {})
    op = es.op(text + "\ny[t] = x[t]*g[t]\nreturn g, y", extents={"t": 5, **more[0]}, **more[1])
    for dtype in (np.float64, np.float32):
        for got, want in zip(op(np.ones(5, dtype)), es.interpret(op)(np.ones(5, dtype)), strict=True):
            assert got.dtype == dtype
            np.testing.assert_allclose(got, want, rtol=1e-12 if dtype is np.float64 else 1e-5)
    assert es.op(text, extents={"t": 5, **more[0]}, **more[1])().dtype == np.float32


def test_a_distance_without_a_guard_tells_the_guard():
    f = es.op("h[t,k] = x[t,k] + where(t >= lag[k], h[t-lag[k],k], 0)\nreturn h")
    with pytest.raises(es.FormulaError, match=r"program runs(.|\n)*where\(lag\[k\] > 0 and t >= lag\[k\]"):
        f(np.ones((5, 2)), np.array([1, 2]))


@pytest.mark.parametrize(
    "name,step", [("batch_first_grid", (5, 3)), ("grid_around_its_batch", (5, 2, 3)), ("grid_of_cells", (4, 2, 3))]
)
def test_independent_axes_come_after_the_times(name, step):
    """The cells of all samples are computed together, wherever the axis of the samples stands in a formula."""
    c = CASES[name]
    nodes = recurrences(es.grad(lambda *xs: c.formula(*xs).sum()), *c.inputs)
    assert {m.shape[1:] for node in nodes for m in node.members} == {step}
