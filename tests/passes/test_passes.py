"""Fusion, order and memory: transformed graphs equal untransformed ones, and each rule can be seen to hold."""

import numpy as np
import pytest

from einsmith.base import dtypes as dt
from einsmith.cost.facts import Target
from einsmith.ir.evaluator import evaluate
from einsmith.ir.nodes import (
    Apply,
    Axis,
    Compute,
    Const,
    Graph,
    Item,
    Read,
    Reduce,
    apply,
    leaf,
    nbytes,
    postorder,
    template,
)
from einsmith.ir.views import is_view, storage
from einsmith.passes.algebra.inline import inline
from einsmith.passes.algebra.simplify import simplify
from einsmith.passes.analysis.index_checks import index_checks
from einsmith.schedule.arena import arena, lifetimes
from einsmith.schedule.in_place import find_overwrites
from einsmith.schedule.planner import fuse

F = dt.f32


def ax(n):
    return tuple(Axis(i) for i in range(n))


def rd(slot, *index, dtype=F):
    return Read(slot, tuple(index), dtype)


def pointwise(fn, *args):
    """fn of tensors of one shape, elementwise."""
    shape = args[0].shape
    body = apply(fn, *(rd(i, *ax(len(shape)), dtype=a.dtype) for i, a in enumerate(args)))
    return Compute(template(shape, [(a.dtype, a.shape) for a in args], body), args)


def matmul(a, b):
    (m, k), n = a.shape, b.shape[1]
    i, j, r = ax(3)
    body = Reduce("sum", (k,), (apply("mul", rd(0, i, r), rd(1, r, j)),))
    return Compute(template((m, n), [(F, a.shape), (F, b.shape)], body), (a, b))


def total(a):
    body = Reduce("sum", a.shape, (rd(0, *ax(len(a.shape))),))
    return Compute(template((), [(F, a.shape)], body), (a,))


def graph(outputs, updates=(), checks=()):
    roots = [*outputs, *(t for _, t in updates), *(p for p, _ in updates)]
    inputs = tuple(n for n in postorder(roots) if n.args == () and hasattr(n, "id"))
    return Graph(inputs, tuple(outputs), tuple(updates), tuple(checks))


def run_plan(plan, values):
    """The plan executed kernel by kernel on NumPy, storing where the plan says: catches wrong orders and homes."""
    memory = {x: np.array(v, np.float64) for x, v in values.items()}
    for call in plan.calls:
        done = {}
        for node in call.nodes:
            args = []
            for a in node.args:
                if isinstance(a, Item):
                    args.append(done[a] if a in done else memory[plan.home.get(a, a)])
                elif a in done:
                    args.append(done[a])
                else:
                    s = storage(a)
                    args.append((done[s] if s in done else memory[plan.home.get(s, s)]).reshape(a.shape))
            from einsmith.ir.template_evaluator import evaluate_template

            results = evaluate_template(node.template, args)
            if len(results) == 1:
                done[node] = results[0]
            else:
                done |= {Item(node, m): r for m, r in enumerate(results)}
        for t, w in zip(call.tensors, call.written, strict=True):
            if w:
                memory[plan.home.get(t, t)] = done[t]
    return memory


def check_plan(g, finite=None):
    """The plan's results equal the evaluator's on the graph as it was."""
    rng = np.random.default_rng()
    values = {x: rng.standard_normal(x.shape) for x in g.inputs}
    outs, news = evaluate(g, [values[x] for x in g.inputs])
    h = simplify(inline(simplify(g)))
    plan = fuse(h, h.outputs[g.outputs.index(finite)] if finite is not None else None)
    memory = run_plan(plan, values)
    for t, want in zip(plan.graph.outputs, outs, strict=True):
        s = storage(t)
        np.testing.assert_allclose(memory[plan.home.get(s, s)].reshape(t.shape), want, rtol=1e-10, atol=1e-12)
    for (p, _), want in zip(plan.graph.updates, news, strict=True):
        np.testing.assert_allclose(memory[p], want, rtol=1e-10, atol=1e-12)
    return plan


def test_epilogue_is_one_kernel():
    x, w, b = leaf((5, 7), F), leaf((7, 3), F), leaf((5, 3), F)
    y = pointwise("tanh", pointwise("add", matmul(x, w), b))
    plan = check_plan(graph([y]))
    assert len(plan.calls) == 1
    assert sum(plan.calls[0].written) == 1


def test_intermediate_read_outside_is_stored():
    x, w = leaf((5, 7), F), leaf((7, 3), F)
    h = pointwise("tanh", matmul(x, w))
    plan = check_plan(graph([total(h), pointwise("exp", h)]))
    assert [len(c.nodes) for c in plan.calls] in ([3, 1], [2, 1, 1])


def test_results_that_no_kernel_reads_are_far_where_the_last_level_is_too_small_for_all():
    """x of 256 bytes, w of 128, y of 128; a result that a kernel reads, or that is small beside that level, is near."""
    x, w = leaf((8, 8), F), leaf((8, 4), F)
    y = matmul(x, w)

    def far(outputs, l3):
        calls = fuse(graph(outputs), None, Target(l3=l3)).calls
        return {t for c in calls for t, b in zip(c.tensors, c.kernel.buffers, strict=True) if b.non_temporal}

    assert far([y], 511) == {y}
    assert far([y], 512) == set()
    assert far([y], 256) == {y}
    assert far([y, total(y)], 511) == set()
    assert far([y, total(y)], 256) == {y}
    assert far([matmul(x, leaf((8, 1), F))], 300) == set()  # 32 bytes


def test_group_stays_convex():
    """C reads A at the identity and the sum of A: it cannot join A's kernel."""
    x, w = leaf((4, 4), F), leaf((4, 4), F)
    a = matmul(x, w)
    s = total(a)
    body = apply("mul", rd(0, *ax(2)), rd(1))
    c = Compute(template((4, 4), [(F, (4, 4)), (F, ())], body), (a, s))
    plan = check_plan(graph([c]))
    assert len(plan.calls) == 3


def test_update_lands_in_its_parameter_after_other_readers():
    """dX reads W; the update of W is fused into dW's kernel and comes after dX."""
    x, w, g = leaf((6, 4), F), leaf((4, 5), F), leaf((6, 5), F)
    i, j, r = ax(3)
    by_row = Reduce("sum", (6,), (apply("mul", rd(0, r, i), rd(1, r, j)),))
    dw = Compute(template((4, 5), [(F, (6, 4)), (F, (6, 5))], by_row), (x, g))
    by_column = Reduce("sum", (5,), (apply("mul", rd(0, i, r), rd(1, j, r)),))
    dx = Compute(template((6, 4), [(F, (6, 5)), (F, (4, 5))], by_column), (g, w))
    new = pointwise("sub", w, dw)
    plan = check_plan(graph([dx], [(w, new)]))
    assert len(plan.calls) == 2
    assert plan.home[new] is w
    assert new in plan.calls[1].tensors


def test_a_copy_between_two_stages_is_left_out():
    """The update reads the new momentum through a copy of it: one kernel all the same."""
    x, g, v, w = leaf((6, 4), F), leaf((6, 5), F), leaf((4, 5), F), leaf((4, 5), F)
    turned = Compute(template((4, 6), [(F, (6, 4))], rd(0, Axis(1), Axis(0))), (x,))
    momentum = pointwise("add", v, matmul(turned, g))
    copy = Compute(template((4, 5), [(F, (4, 5))], rd(0, *ax(2))), (momentum,))
    plan = check_plan(graph([], [(w, pointwise("sub", w, copy)), (v, momentum)]))
    assert len(plan.calls) == 1
    check_plan(graph([copy, Compute(copy.template, (v,))], [(v, momentum), (w, copy)]))


def test_an_update_joins_a_sum_that_nothing_else_reads():
    """d reads both p and the sum that p's update reads, which has a kernel of its own; q's update joins its sum."""
    x, p, q, y = leaf((6, 5), F), leaf((5,), F), leaf((5,), F), leaf((6, 5), F)
    column = Reduce("sum", (6,), (rd(0, Axis(1), Axis(0)),))
    s, t = (Compute(template((5,), [(F, (6, 5))], column), (a,)) for a in (x, y))
    body = apply("add", apply("mul", rd(0, *ax(2)), rd(1, Axis(1))), rd(2, Axis(1)))
    d = Compute(template((6, 5), [(F, (6, 5)), (F, (5,)), (F, (5,))], body), (x, p, s))
    plan = check_plan(graph([d], [(p, pointwise("sub", p, s)), (q, pointwise("sub", q, t))]))
    assert sorted(len(c.nodes) for c in plan.calls) == [1, 1, 1, 2]


def test_swapped_parameters_are_copied():
    p, q = leaf((3,), F), leaf((3,), F)
    check_plan(graph([], [(p, q), (q, p)]))
    a, b = pointwise("add", p, q), pointwise("sub", p, q)
    check_plan(graph([], [(p, a), (q, b)]))


def test_update_that_reads_its_parameter_elsewhere_is_copied():
    """p[i] = p[n-1-i]: written in place it would read what it has overwritten."""
    p = leaf((7,), F)
    body = rd(0, apply("sub", Const(6, dt.i32), Axis(0)))
    check_plan(graph([], [(p, Compute(template((7,), [(F, (7,))], body), (p,)))]))


def test_updates_come_after_the_loss():
    x, w = leaf((5, 5), F), leaf((5, 5), F)
    loss = total(pointwise("tanh", matmul(x, w)))
    new = pointwise("add", w, x)
    plan = check_plan(graph([loss], [(w, new)]), finite=loss)
    made = next(i for i, c in enumerate(plan.calls) if any(t is plan.graph.outputs[0] for t in c.tensors))
    assert plan.first_write > made


def test_view_costs_nothing():
    x = leaf((4, 6), F)
    flat = apply("floordiv", Axis(0), Const(6, dt.i32)), apply("mod", Axis(0), Const(6, dt.i32))
    v = Compute(template((24,), [(F, (4, 6))], rd(0, *flat)), (x,))
    assert is_view(v.template)
    turned = Compute(template((6, 4), [(F, (4, 6))], rd(0, Axis(1), Axis(0))), (x,))
    assert not is_view(turned.template)
    plan = check_plan(graph([total(pointwise("exp", v))]))
    assert len(plan.calls) == 1


def test_movement_is_inlined_and_arithmetic_with_two_readers_is_not():
    x, w = leaf((4, 6), F), leaf((4, 3), F)
    turned = Compute(template((6, 4), [(F, (4, 6))], rd(0, Axis(1), Axis(0))), (x,))
    assert len(check_plan(graph([matmul(turned, w)])).calls) == 1
    e = pointwise("exp", turned)
    assert len(check_plan(graph([matmul(e, w), total(e)])).calls) == 3


def test_data_dependent_index_gives_a_check():
    x, y = leaf((5, 3), F), leaf((5,), dt.i64)
    body = rd(0, Axis(0), Read(1, (Axis(0),), dt.i64))
    t = Compute(template((5,), [(F, (5, 3)), (dt.i64, (5,))], body), (x, y))
    ((count, message),) = index_checks([t])
    assert "0 <= index < 3" in message
    g = Graph((y,), (count,), (), ())
    for labels, bad in (([0, 1, 2, 0, 2], 0), ([0, 3, -1, 0, 2], 2)):
        assert int(evaluate(g, [np.array(labels)])[0][0]) == bad


@pytest.mark.parametrize("seed", range(40))
def test_random_graphs(seed):
    """Random products, pointwise work, sums, updates: plan equals graph; live tensors never share bytes."""
    rng = np.random.default_rng(seed)
    n = 4
    leaves = [leaf((n, n), F) for _ in range(3)]
    pool = list(leaves)
    for _ in range(12):
        a, b = (pool[i] for i in rng.integers(len(pool), size=2))
        kind = rng.integers(4)
        pool.append(
            matmul(a, b) if kind == 0 else pointwise("tanh", a) if kind == 1 else pointwise("add", a, b) if kind == 2
            else Compute(template((n, n), [(F, (n, n))], rd(0, Axis(1), Axis(0))), (a,))
        )  # fmt: skip
    loss = total(pool[-1])
    updates = [(p, pool[int(rng.integers(3, len(pool)))]) for p in leaves]
    plan = check_plan(graph([loss, pool[-2]], updates), finite=loss)
    outside = {*plan.graph.inputs, *map(storage, plan.graph.outputs)}
    offsets, size = arena(plan, outside, {0: 100})
    spans = lifetimes(plan, outside)
    for s in find_overwrites(plan.calls, spans).values():
        spans[s] = (spans[s][0], spans[s][1] - 1)
    lives = list(spans.items())
    for k, (s, (a, b)) in enumerate(lives):
        assert offsets[s] + nbytes(s) <= size
        for t, (c, d) in lives[:k]:
            if not (b < c or d < a):
                assert offsets[s] + nbytes(s) <= offsets[t] or offsets[t] + nbytes(t) <= offsets[s]


def test_stop_gradient_leaves_no_trace():
    x = leaf((3,), F)
    g = simplify(graph([pointwise("stop_gradient", pointwise("exp", x))]))
    bodies = [b for n in postorder(g.roots) if isinstance(n, Compute) for b in n.template.parts[0].bodies]
    assert not any(isinstance(e, Apply) and e.fn == "stop_gradient" for e in postorder(bodies))
