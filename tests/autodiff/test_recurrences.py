"""Gradients of recurrent formulas: against differences in float64, to second order."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
from einsmith.api.tracing import trace_call
from einsmith.base.trees import flatten
from einsmith.driver.executable import Executable
from einsmith.ir.evaluator import evaluate
from einsmith.ir.nodes import Apply, Axis, Recurrence, postorder
from einsmith.ir.verify import verify_graph
from tests.lang.recurrences import CASES

FLOATS = [n for n, c in CASES.items() if all(x.dtype.kind == "f" for x in c.inputs[:1])]
GRIDS = ("batch_first_grid", "grid_around_its_batch", "grid_of_cells")


@pytest.mark.thinned(6)
@pytest.mark.parametrize("name", FLOATS)
def test_derivatives(name):
    c = CASES[name]
    es.check_gradients(c.formula, *c.inputs, order=2)


@pytest.mark.thinned(4)
@pytest.mark.parametrize(
    "name", ["rnn", "lstm", "ragged_batch", "reads_under_a_reduction", "soft_edit_distance", *GRIDS]
)
def test_compiled_gradients(name):
    c = CASES[name]
    at = tuple(i for i, x in enumerate(c.inputs) if x.dtype.kind == "f")

    def loss(*xs):
        return sum(((o * o).sum() for o in flatten(c.formula(*xs))[0][1:]), (flatten(c.formula(*xs))[0][0] ** 2).sum())

    g = es.grad(loss, at)
    for got, want in zip(g(*c.inputs), es.interpret(g)(*c.inputs), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-11, atol=1e-11)


QUICK = ("second_order_filter", "triangular_solve")


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in FLOATS])
def test_compiled_second_order(name):
    """The gradient of the squared gradient, compiled, on one thread and two, in memory that starts as NaN."""
    c = CASES[name]
    at = tuple(i for i, x in enumerate(c.inputs) if x.dtype.kind == "f")

    def loss(*xs):
        return sum((o * o).sum() for o in flatten(c.formula(*xs))[0])

    def squared(*xs):
        return sum((g * g).sum() for g in es.grad(loss, at)(*xs))

    traced = trace_call(es.grad(squared, at), c.inputs, {})
    want = evaluate(traced.graph, list(c.inputs))[0]
    for threads in (1, 2):
        program = Executable(traced.graph, traced.bind, threads)
        program.arena.fill(0xFF)
        for got, w in zip(program(list(c.inputs))[1], want, strict=True):
            np.testing.assert_allclose(got, w, rtol=1e-9, atol=1e-9)


@pytest.mark.thinned(4)
@pytest.mark.parametrize("name", [n for n in FLOATS if all(x.dtype.kind == "f" for x in CASES[n].inputs)])
def test_tangents_agree_with_gradients(name):
    c = CASES[name]
    rng = np.random.default_rng(3)
    moved = tuple(rng.standard_normal(x.shape) for x in c.inputs)

    def loss(*xs):
        (first, *_) = flatten(c.formula(*xs))[0]
        return (first * first).sum()

    tangent = es.interpret(lambda *xs: es.jvp(loss, xs, moved)[1])(*c.inputs)
    gradient = es.interpret(es.grad(loss, tuple(range(len(moved)))))(*c.inputs)
    np.testing.assert_allclose(tangent, sum((g * m).sum() for g, m in zip(gradient, moved, strict=True)), rtol=1e-9)


def recurrences(f, *arrays):
    """The Recurrence nodes of a function's graph, which is verified."""
    graph = trace_call(f, arrays, {}).graph
    verify_graph(graph)
    return [n for n in postorder(graph.roots) if isinstance(n, Recurrence)]


def guards_on_time(node):
    """Comparisons of a step's number in a recurrence."""
    return [
        e
        for t in node.members
        for p in t.parts
        for e in postorder(p.bodies)
        if isinstance(e, Apply) and e.dtype.is_bool and Axis(0) in postorder(e.args)
    ]


@pytest.mark.parametrize("name,steps", [("rnn", 6), ("lstm", 6), ("moving_average", 6), ("first_element_apart", 6)])
def test_the_backward_of_a_cell_has_no_guards(name, steps):
    """What lies before the first step and after the last one stands in slots of its own, and sums over time outside."""
    c = CASES[name]

    def loss(*xs):
        return sum((o**2).sum() for o in flatten(c.formula(*xs))[0])

    forward, backward = recurrences(es.grad(loss, tuple(range(len(c.inputs)))), *c.inputs)
    assert (forward.reverse, backward.reverse) == (False, True)
    assert forward.steps == backward.steps == steps
    assert not guards_on_time(forward) and not guards_on_time(backward)
    assert all(m.shape[0] in (steps, steps + 1) for m in backward.members)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", FLOATS)
def test_graphs_of_second_order_verify(name):
    c = CASES[name]
    at = tuple(i for i, x in enumerate(c.inputs) if x.dtype.kind == "f")

    def loss(*xs):
        (first, *_) = flatten(c.formula(*xs))[0]
        return (first * first).sum()

    def square(*xs):
        return sum((g * g).sum() for g in es.grad(loss, at)(*xs))

    assert recurrences(es.grad(square, at), *c.inputs)


def test_a_gathered_state():
    """The adjoint of a read at a position that a tensor gives stays a sum: a scatter cannot stand in a step."""
    op = es.op("h[t,k] = tanh(x[t,k] + where(t > 0, h[t-1,perm[k]], 0))")
    x, perm = np.random.default_rng(2).standard_normal((5, 4)), np.array([2, 0, 0, 3])
    es.check_gradients(op, x, perm, order=2)


@pytest.mark.thinned(8)
@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n == "lstm")) for n in FLOATS])
def test_gradients_are_texts_that_read_again(name):
    c = CASES[name]
    wrt = [n for n, x in zip(c.formula.inputs, c.inputs, strict=True) if x.dtype.kind == "f"]
    again = es.op(c.formula.gradient(wrt, *c.inputs))
    rng = np.random.default_rng(5)
    outputs = flatten(es.interpret(c.formula)(*c.inputs))[0]
    cotangents = [rng.standard_normal(o.shape) for o in outputs]
    given = dict(zip(c.formula.inputs, c.inputs, strict=True))
    given |= {"d" + n: g for n, g in zip(c.formula.program.outputs, cotangents, strict=True)}
    numbers = {n: v for n, v in c.parameters.items() if n in again.parameters}
    got = flatten(es.interpret(again)(**{n: x for n, x in given.items() if n in again.inputs}, **numbers))[0]

    def loss(*xs):
        out = flatten(c.formula(**(given_floats(xs))))[0]
        return sum((o * g).sum() for o, g in zip(out, cotangents, strict=True))

    def given_floats(xs):
        return {n: given[n] for n in c.formula.inputs} | dict(zip(wrt, xs, strict=True))

    want = es.interpret(es.grad(loss, tuple(range(len(wrt)))))(*(given[n] for n in wrt))
    for g, w in zip(got, flatten(want)[0], strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-12, atol=1e-12)


@pytest.mark.thinned(4)
@pytest.mark.parametrize("name", ["rnn", "lstm", "soft_edit_distance", "upper_triangular_solve", "ragged_batch"])
def test_forward_over_reverse_agrees_with_reverse_over_reverse(name):
    c = CASES[name]
    at = [i for i, x in enumerate(c.inputs) if x.dtype.kind == "f"]
    xs = [c.inputs[i] for i in at]
    rng = np.random.default_rng(4)
    moved = [rng.standard_normal(x.shape) for x in xs]

    def loss(*given):
        full = dict(enumerate(c.inputs)) | dict(zip(at, given, strict=True))
        return sum((o * o).sum() for o in flatten(c.formula(*full.values()))[0])

    g = es.grad(loss, tuple(range(len(at))))

    def along(*given):
        return sum((a * v).sum() for a, v in zip(g(*given), moved, strict=True))

    one = es.interpret(lambda *given: es.jvp(g, given, tuple(moved))[1])(*xs)
    two = es.interpret(es.grad(along, tuple(range(len(at)))))(*xs)
    for a, b in zip(one, two, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-11)


def test_no_gradient_flows_through_a_stopped_state():
    op = es.op("h[t] = x[t] + a[]*stop_gradient(where(t > 0, h[t-1], 0))")
    x, a = np.arange(1.0, 5.0), np.array(0.5)
    dx, da = es.interpret(es.grad(lambda x, a: op(x, a).sum(), (0, 1)))(x, a)
    np.testing.assert_array_equal(dx, np.ones(4))
    np.testing.assert_allclose(da, op(x, a)[:-1].sum())


PRODUCTS = {
    "running product": ("y[t] = where(t > 0, y[t-1], 1) * x[t]", {}),
    "a product in a step": ("y[t] = x[t] + where(t > 0, prod[k](a[k]*y[t-1] + k), 1)", {}),
    "a product of members": ("y[t,i] = z[t,i] + where(t > 0, prod[k](where(k <= i, y[t-1,k], 1)), 0.5)", {}),
    "a product over the steps before": ("y[t] = x[t] + prod[k](where(k < t, 0.5*y[t-1-k], 1))", {"k": 3}),
    "two that multiply": ("p[t] = where(t > 0, q[t-1]*p[t-1], 1) + x[t]\nq[t] = sin(p[t])\nreturn p, q", {}),
}


@pytest.mark.thinned(6)
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_in_recurrences_to_the_third_order(name, rng):
    """Zeros among the factors too: a product's derivatives stand beside it, and are not evaluated with it."""
    text, extents = PRODUCTS[name]
    op = es.op(text, extents=extents)
    xs = [rng.standard_normal({"x": (4,), "a": (3,), "z": (4, 3)}[n]) for n in op.inputs]
    xs[0].flat[1] = 0.0
    es.check_gradients(op, *xs, order=3, tol=1e-4)
    first = flatten(es.interpret(op)(*xs))[0][0]
    c, moves = rng.standard_normal(first.shape), tuple(rng.standard_normal(x.shape) for x in xs)

    def leading(*given):
        return flatten(op(*given))[0][0]

    tangent = es.jvp(leading, tuple(xs), moves)[1]
    pulled = es.vjp(leading, *xs)[1](c)
    np.testing.assert_allclose(sum(np.vdot(g, m) for g, m in zip(pulled, moves, strict=True)), np.vdot(c, tangent))
    for got, want in zip(pulled, es.interpret(lambda c, *given: es.vjp(leading, *given)[1](c))(c, *xs), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-11, atol=1e-11)
    printed = op.gradient(op.inputs, *xs)
    assert "__" not in printed
    again = es.op(printed)
    given = dict(zip(op.inputs, xs, strict=True)) | {"d" + n: np.zeros(first.shape) for n in op.program.outputs}
    given["d" + op.program.outputs[0]] = c
    got = flatten(es.interpret(again)(**{n: given[n] for n in again.inputs}))[0]
    for a, b in zip(got, pulled, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-11)
