"""The constructor of recurrences on graphs, and the verifier on recurrences that were made wrong on purpose."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from einsmith.base import dtypes as dt
from einsmith.base.errors import BoundsError, RecurrenceError, VerifyError
from einsmith.ir.components import components
from einsmith.ir.evaluator import evaluate
from einsmith.ir.nodes import (
    Apply,
    Axis,
    Compute,
    Const,
    Graph,
    Item,
    Piece,
    Read,
    Recurrence,
    Template,
    apply,
    leaf,
    postorder,
    template,
)
from einsmith.ir.printer import show
from einsmith.ir.recurrence.define import recurrence
from einsmith.ir.verify import verify_graph, verify_recurrence

T = 5
X = leaf((T,), dt.f64)
t = Axis(0)


def number(n):
    return Const(n, dt.i32)


def read(slot, e):
    return Read(slot, (e,), dt.f64)


def tensor(body, *args):
    return Compute(template((T,), [(a.dtype, a.shape) for a in args], body), args)


def running(back=1):
    """y[t] = x[t] + where(t >= back, y[t-back], 0)."""
    y = leaf((T,), dt.f64)
    before = Apply(
        "where", (apply("le", number(back), t), read(1, apply("sub", t, number(back))), Const(0, dt.f64)), dt.f64
    )
    return y, tensor(apply("add", read(0, t), before), X, y)


def value(out, x):
    graph = Graph((X,), (out,), (), ())
    verify_graph(graph)
    return evaluate(graph, [x])[0][0]


def node_of(out):
    (node,) = [n for n in postorder([out]) if isinstance(n, Recurrence)]
    return node


@pytest.mark.parametrize("back", [1, 2, 4])
def test_a_sum(back):
    y, definition = running(back)
    x = np.arange(1.0, T + 1)
    want = x.copy()
    for i in range(back, T):
        want[i] += want[i - back]
    np.testing.assert_array_equal(value(recurrence({y: definition})[y], x), want)


def test_acyclic_members_are_dissolved():
    a, b = leaf((T,), dt.f64), leaf((T,), dt.f64)
    made = recurrence({a: tensor(apply("add", read(0, t), read(0, t)), X), b: tensor(apply("neg", read(0, t)), a)})
    assert not any(isinstance(n, Recurrence) or n in (a, b) for n in postorder(made.values()))
    np.testing.assert_array_equal(value(made[b], np.ones(T)), np.full(T, -2.0))


def test_tensors_off_a_cycle_stay_outside():
    y, definition = running()
    twice = leaf((T,), dt.f64)
    made = recurrence({y: definition, twice: tensor(apply("add", read(0, t), read(0, t)), y)})
    assert len(node_of(made[twice]).members) == 1
    np.testing.assert_array_equal(value(made[twice], np.ones(T)), 2 * np.arange(1.0, T + 1))


def test_equal_definitions_are_one_recurrence():
    (y, one), (z, two) = running(), running()
    assert recurrence({y: one})[y] is recurrence({z: two})[z]


def test_a_placeholder_that_is_itself_is_refused():
    a, b = leaf((T,), dt.f64), leaf((T,), dt.f64)
    with pytest.raises(RecurrenceError, match="defined as itself"):
        recurrence({a: b, b: a})


def test_the_printer_shows_steps():
    y, definition = running()
    text = show(Graph((X,), (recurrence({y: definition})[y],), (), ()))
    assert "t0 = for 0 .. 4:" in text and "t0.0[i0 + 1] = " in text


def changed(node, **fields):
    values = {f: fields.get(f, getattr(node, f)) for f in Recurrence.fields}
    return Recurrence(*values.values())


def shifted_reads(member, by):
    """The member with its reads of itself `by` positions later."""

    def later(p):
        body = p.body
        out = {}
        for e in postorder([body]):
            args = tuple(out[a] for a in e.args)
            if isinstance(e, Read) and e.slot == 1:
                out[e] = Read(1, (apply("add", args[0], number(by)),), e.dtype)
            elif isinstance(e, Read):
                out[e] = Read(e.slot, args, e.dtype)
            else:
                out[e] = Apply(e.fn, args, e.dtype) if args else e
        return Piece(p.offset, p.step, p.extents, out[body])

    return Template(member.shape, member.params, tuple(map(later, member.parts)))


def wrong():
    y, definition = running()
    node = node_of(recurrence({y: definition})[y])
    (member,) = node.members
    initial = next(p for p in member.parts if p.extents == (1,))
    rest = tuple(p for p in member.parts if p is not initial)
    reading = Piece(initial.offset, initial.step, initial.extents, Read(1, (number(1),), dt.f64))
    yield "the read of this step", changed(node, members=(shifted_reads(member, 1),)), VerifyError
    yield "the other direction", changed(node, reverse=True), VerifyError
    yield "another window", changed(node, origins=(0,)), VerifyError
    yield "fewer steps", changed(node, steps=T - 1), VerifyError
    yield "a read beyond the end", changed(node, members=(shifted_reads(member, 2),)), BoundsError
    whole = Template(member.shape, member.params, (reading, *rest))
    yield "an initial value that reads a member", changed(node, members=(whole,)), VerifyError
    yield "no initial value", changed(node, members=(Template(member.shape, member.params, rest),)), VerifyError


@pytest.mark.parametrize("what", range(7))
def test_the_verifier_refuses(what):
    _, node, error = next(itertools.islice(wrong(), what, None))
    with pytest.raises(error):
        verify_recurrence(node)
    with pytest.raises(error):
        verify_graph(Graph((X,), (Item(node, 0),), (), ()))


def test_members_in_the_wrong_order_are_refused():
    a, b = leaf((T,), dt.f64), leaf((T,), dt.f64)
    before = Apply("where", (apply("lt", number(0), t), read(1, apply("sub", t, number(1))), Const(0, dt.f64)), dt.f64)
    made = recurrence({a: tensor(apply("add", read(0, t), before), X, b), b: tensor(apply("neg", read(0, t)), a)})
    node = node_of(made[b])
    verify_recurrence(node)
    count = len(node.args)
    swap = {count: count + 1, count + 1: count}

    def exchanged(member):
        params = (*member.params[:count], *reversed(member.params[count:]))
        parts = []
        for p in member.parts:
            out = {}
            for e in postorder([p.body]):
                args = tuple(out[x] for x in e.args)
                if isinstance(e, Read):
                    out[e] = Read(swap.get(e.slot, e.slot), args, e.dtype)
                else:
                    out[e] = Apply(e.fn, args, e.dtype) if args else e
            parts.append(Piece(p.offset, p.step, p.extents, out[p.body]))
        return Template(member.shape, params, tuple(parts))

    members = tuple(exchanged(m) for m in reversed(node.members))
    with pytest.raises(VerifyError, match="before it is evaluated"):
        verify_recurrence(Recurrence(node.steps, node.reverse, tuple(reversed(node.origins)), members, node.args))


def test_components_against_reachability():
    rng = np.random.default_rng(0)
    for _ in range(200):
        n = int(rng.integers(1, 8))
        edges = rng.random((n, n)) < rng.choice([0.1, 0.3])
        reach = edges | np.eye(n, dtype=bool)
        for _ in range(n):
            reach = reach @ reach
        below = {i: list(np.flatnonzero(edges[i])) for i in range(n)}
        found = components(range(n), below.__getitem__)
        assert sorted(i for g in found for i in g) == list(range(n))
        place = {i: k for k, g in enumerate(found) for i in g}
        for i, j in itertools.product(range(n), repeat=2):
            assert (place[i] == place[j]) == bool(reach[i, j] and reach[j, i])
            assert not edges[i, j] or place[j] <= place[i]
