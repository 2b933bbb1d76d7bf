"""What several pieces need of the same elements by a dear function is computed once, where that is cheaper."""

from __future__ import annotations

import re

import numpy as np
import pytest

import einsmith as es
from einsmith.base import dtypes as dt
from einsmith.ir.evaluator import evaluate
from einsmith.ir.nodes import Apply, Axis, Compute, Const, Expr, Graph, Piece, Read, Template, apply, leaf, postorder
from einsmith.ir.verify import verify_graph
from einsmith.passes import pipeline
from einsmith.passes.algebra import common_subexpressions as shared
from einsmith.passes.algebra.common_subexpressions import common_subexpressions
from einsmith.passes.context import PassContext

F = dt.f32
COUNTED = PassContext(cost=lambda kernel, target: float(sum(
    isinstance(e, Apply) and e.fn in ("tanh", "exp", "sigmoid") for s in kernel.stages for p in s.template.parts
    for e in postorder(p.bodies)
)))  # fmt: skip
"""A machine on which only these functions take time."""


def read(slot: int, *index: int | Expr) -> Read:
    """Of an element, shifted by the integers, or at other indices."""
    at = [i if not isinstance(i, int) else Axis(d) if i == 0 else apply("add", Axis(d), Const(i, dt.i32))
          for d, i in enumerate(index)]  # fmt: skip
    return Read(slot, tuple(at), F)


def pieces(bodies: list[Expr], args: list, h: int, rows: int = 3) -> Compute:
    """[rows, len(bodies)*h], block by block."""
    parts = tuple(Piece((0, n * h), (1, 1), (rows, h), b) for n, b in enumerate(bodies))
    return Compute(Template((rows, len(bodies) * h), tuple((a.dtype, a.shape) for a in args), parts), tuple(args))


def functions(g: Graph) -> int:
    nodes = [n for n in postorder(g.roots) if isinstance(n, Compute)]
    bodies = [b for n in nodes for p in n.template.parts for b in p.bodies]
    return sum(isinstance(e, Apply) and e.fn in ("tanh", "exp") for b in bodies for e in postorder([b]))


def changed(g: Graph, context: PassContext = COUNTED) -> Graph:
    """The graph after the pass, which computes what it has computed before."""
    verify_graph(g)
    new = common_subexpressions(g, context)
    verify_graph(new)
    rng = np.random.default_rng()
    values = [rng.standard_normal(x.shape) for x in g.inputs]
    for a, b in zip(evaluate(new, values)[0], evaluate(g, values)[0], strict=True):
        np.testing.assert_array_equal(a, b)
    return new


@pytest.mark.parametrize("seed", range(8))
def test_random_pieces(seed):
    """Pieces of sums of products of functions of few elements, and a tensor of one piece that pieces read."""
    rng = np.random.default_rng(seed)
    h, count = int(rng.choice([1, 5, 8])), int(rng.integers(2, 5))
    a, b = leaf((3, count * h), F), leaf((3, h), F)
    known = [apply(fn, read(0, 0, int(n) * h)) for fn in ("tanh", "exp") for n in range(count)]
    known.append(apply("exp", apply("neg", known[0])))

    def some(slots: int) -> Expr:
        out: Expr = read(int(rng.integers(1, slots)), 0, 0)
        for n in rng.choice(len(known), 3):
            out = apply(str(rng.choice(["add", "mul"])), out, known[n])
        return out

    one = Compute(Template((3, h), ((F, a.shape), (F, b.shape)), (Piece((0, 0), (1, 1), (3, h), some(2)),)), (a, b))
    whole = pieces([some(3) for _ in range(count)], [a, b, one], h)
    g = Graph((a, b), (whole, one), (), ())
    new = changed(g)
    inside = [set(e for e in postorder(p.bodies) if e in known) for p in whole.template.parts]
    twice = any(x & y for n, x in enumerate(inside) for y in inside[:n])
    assert functions(new) < functions(g) if twice else functions(new) <= functions(g)


def test_each_gate_is_computed_once():
    a, d = leaf((3, 21), F), leaf((3, 7), F)
    i, o, t = (apply("tanh", read(0, 0, n * 7)) for n in range(3))
    node = pieces([apply("mul", x, y) for x, y in ((i, o), (i, t), (o, t))], [a, d], 7)
    assert functions(changed(Graph((a, d), (node,), (), ()))) == 3


def test_nested_values_belong_to_the_shared_value():
    a = leaf((3, 10), F)
    inner = apply("exp", read(0, 0, 5))
    outer = apply("tanh", inner)
    new = changed(Graph((a,), (pieces([outer, apply("mul", outer, read(0, 0, 0))], [a], 5),), (), ()))
    assert functions(new) == 2 and len([n for n in postorder(new.roots) if isinstance(n, Compute)]) == 2
    new = changed(Graph((a,), (pieces([outer, apply("mul", outer, inner), inner], [a], 5),), (), ()))
    assert functions(new) <= 4


@pytest.mark.parametrize("what", ["guarded", "looked up", "other elements", "one piece", "other boxes"])
def test_unchanged_graphs(what):
    a, k = leaf((3, 10), F), leaf((3, 5), dt.i32)
    e = apply("tanh", read(0, 0, 5))
    args, other = [a, k], e
    if what == "guarded":  # past the end, but for the guard
        inside = apply("lt", Axis(1), Const(2, dt.i32))
        e = other = apply("where", inside, apply("tanh", read(0, 0, 8)), Const(0.0, F))
    elif what == "looked up":
        at = Read(1, (Axis(0), Axis(1)), dt.i32)
        inside = apply("and", apply("le", Const(0, dt.i32), at), apply("lt", at, Const(10, dt.i32)))
        e = other = apply("where", inside, apply("tanh", read(0, 0, at)), Const(0.0, F))
    elif what == "other elements":
        other = apply("tanh", read(0, 0, 0))
    bodies = [e, apply("neg", other)]
    if what == "one piece":
        bodies = [apply("mul", e, apply("add", e, e)), read(0, 0, 0)]
    node = pieces(bodies, args, 5)
    if what == "other boxes":
        parts = (Piece((0, 0), (1, 1), (3, 3), e), Piece((0, 3), (1, 1), (3, 5), apply("neg", e)))
        node = Compute(Template((3, 8), ((F, a.shape),), parts), (a,))
    g = Graph((a, k), (node,), (), ())
    assert common_subexpressions(g, COUNTED) is g


def test_forward_and_backward_share_nothing():
    """The forward's value would have to be kept until then."""
    a, p = leaf((3, 10), F), leaf((3, 10), F)
    e = apply("tanh", read(0, 0, 5))
    one = Compute(Template((3, 5), ((F, a.shape),), (Piece((0, 0), (1, 1), (3, 5), e),)), (a,))
    back = pieces([apply("neg", e), read(0, 0, 0)], [a], 5)
    g = Graph((a, p), (one,), ((p, back),), (), (back,))
    assert common_subexpressions(g, COUNTED) is g
    g = Graph((a, p), (one, back), (), ())
    assert functions(common_subexpressions(g, COUNTED)) == 1


def test_prices_decide():
    a = leaf((3, 10), F)
    e = apply("tanh", read(0, 0, 5))
    g = Graph((a,), (pieces([e, apply("neg", e)], [a], 5),), (), ())
    assert common_subexpressions(g, PassContext()) is g  # nobody predicts
    assert common_subexpressions(g, PassContext(cost=lambda kernel, target: len(kernel.buffers))) is g
    assert common_subexpressions(g, COUNTED) is not g


CELLS = {
    "lltm": lambda: es.models.get("lltm", input_size=7, hidden_size=33, dtype="float64"),
    "sublstm": lambda: es.models.get("sublstm", input_size=7, hidden_size=17, dtype="float64"),
    "milstm": lambda: es.models.get("milstm", input_size=7, hidden_size=17, dtype="float64"),
}


@pytest.mark.thinned(3)
@pytest.mark.parametrize("cell", CELLS)
def test_cells_train_alike(cell, monkeypatch, rng):
    """Weights and the optimizer's state with values in memory, whatever that costs, and without. (Products are put in
    another order.)"""
    x, y = rng.standard_normal((17, 5, 7)), rng.integers(0, 10, 17)
    results, counts = [], []
    for price in (None, COUNTED.cost):
        own = [p for p in pipeline.PASSES if p.name != "common subexpressions"]
        if price is not None:
            always = PassContext(cost=price)
            own.append(pipeline.graph_pass("common subexpressions", lambda g, c=always: common_subexpressions(g, c)))
        monkeypatch.setattr(pipeline, "PASSES", tuple(own))
        es.manual_seed(4)
        step = es.TrainStep(CELLS[cell](), es.functional.cross_entropy, es.optim.Adam(lr=0.01))
        losses = [step(x, y) for _ in range(4)]
        results.append([np.array(losses), *map(np.array, step.model.state_dict().values()),
                        *(s.data.copy() for s in step.current_state().values())])  # fmt: skip
        (run,) = step.compiler.programs.values()
        counts.append(sum(
            isinstance(e, Apply) and bool(run.target.special(e.fn)) for c in run.calls for n in c.nodes
            if isinstance(n, Compute) for p in n.template.parts for e in postorder(p.bodies)
        ))  # fmt: skip
        monkeypatch.undo()
    assert counts[1] < counts[0]
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


def test_the_plan_names_it_and_it_can_be_left_out(monkeypatch, rng):
    """By EINSMITH_WITHOUT, as every pass that others do not need; a reader is made once."""
    made, make = [], shared._read_values

    def reading(node, exprs):
        made.append(node)
        return make(node, exprs)

    monkeypatch.setattr(shared, "_read_values", reading)
    monkeypatch.setattr(shared, "_is_cheaper", lambda *_: True)
    x, y = rng.standard_normal((3, 5, 7)).astype(np.float32), rng.integers(0, 10, 3)

    def plan_of() -> str:
        es.manual_seed(0)
        model = es.models.get("lltm", input_size=7, hidden_size=9)
        step = es.TrainStep(model, es.functional.cross_entropy, es.optim.SGD(lr=0.1))
        step.compile(x, y)
        return step.plan

    named = plan_of()
    assert re.search(r"^passes: .*common subexpressions \+\d+ tensors", named, re.M) and len(made) == len(set(made)) > 0
    monkeypatch.setenv("EINSMITH_WITHOUT", "common subexpressions, prefix sums")
    assert "common subexpressions" not in plan_of() and len(made) == len(set(made))
    for name in ("shared functions", "simplify", "lower loops"):
        monkeypatch.setenv("EINSMITH_WITHOUT", name)
        with pytest.raises(
            es.KnobError, match=f"EINSMITH_WITHOUT names '{name}'.*can be left out.*common subexpressions"
        ):
            plan_of()
