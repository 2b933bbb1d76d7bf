"""A tensor may be computed in several kernels: copies are told apart, and only the first is stored."""

from __future__ import annotations

import numpy as np
import pytest

from einsmith.base import dtypes as dt
from einsmith.base.errors import ArgumentError
from einsmith.driver.executable import Executable
from einsmith.ir.evaluator import evaluate
from einsmith.ir.nodes import Graph, leaf
from einsmith.schedule.planner import fuse
from einsmith.schedule.roles import kernel_roles
from einsmith.schedule.schedule import GroupSchedule
from tests.passes.test_passes import graph, matmul, pointwise, run_plan, total

F = dt.f32


def check(g: Graph, refine) -> list[int]:
    """Nodes of each kernel of the plan, whose results are the evaluator's in NumPy and as machine code."""
    rng = np.random.default_rng()
    values = {x: rng.standard_normal(x.shape) for x in g.inputs}
    outs, news = evaluate(g, [values[x] for x in g.inputs])
    plan = fuse(g, refine=refine)
    memory = run_plan(plan, values)
    for t, want in zip(plan.graph.outputs, outs, strict=True):
        np.testing.assert_allclose(memory[plan.home.get(t, t)], want, rtol=1e-10, atol=1e-12)
    for (p, _), want in zip(plan.graph.updates, news, strict=True):
        np.testing.assert_allclose(memory[p], want, rtol=1e-10, atol=1e-12)
    assert sum(len(c.own) for c in plan.calls) == len({n for c in plan.calls for n in c.own})
    return [len(c.nodes) for c in plan.calls]


def shared(rows: int = 5, columns: int = 17):
    """exp(x) is read after two products: graph, the tensor, the groups of its readers by number."""
    x, v, w = leaf((rows, columns), F), leaf((rows, 3), F), leaf((3, columns), F)
    a = pointwise("exp", x)
    first = pointwise("add", matmul(v, w), a)
    second = pointwise("mul", matmul(pointwise("neg", v), w), a)
    return graph([first, second]), a, first, second


def in_all(node, *readers):
    def refine(schedule: GroupSchedule) -> None:
        for r in readers:
            schedule.recompute(node, schedule.home[r])

    return refine


@pytest.mark.parametrize("rows, columns", [(1, 1), (5, 17), (7, 31)])
def test_a_tensor_computed_where_it_is_read_is_never_stored(rows, columns):
    g, a, first, second = shared(rows, columns)
    assert a in {t for c in fuse(g).calls for t in c.tensors}
    refine = in_all(a, first, second)
    assert sorted(check(g, refine)) == [1, 3, 3]
    plan = fuse(g, refine=refine)
    assert a not in {t for c in plan.calls for t in c.tensors}
    copies = [c for call in plan.calls for c in call.copies if c.node is a]
    assert sorted(c.number for c in copies) == [1, 2]


def test_the_first_copy_serves_the_others():
    g, a, first, second = shared()
    plan = fuse(g, refine=in_all(a, second))
    stored = [t for c in plan.calls for t, w in zip(c.tensors, c.written, strict=True) if w]
    assert stored.count(a) == 1
    check(g, in_all(a, second))


def test_a_tensor_that_is_an_output_too_is_stored():
    g, a, first, second = shared()
    g = Graph(g.inputs, (*g.outputs, a), (), ())
    check(g, in_all(a, first, second))


def test_programs_run_schedules_with_copies(monkeypatch):
    g, a, first, second = shared(33, 65)
    values = [np.random.default_rng().standard_normal(x.shape).astype(np.float32) for x in g.inputs]
    plain = Executable(g, {}, 1)([v.copy() for v in values])[1]
    refine = in_all(a, first, second)
    monkeypatch.setattr("einsmith.schedule.pipeline.fuse", lambda *args, **more: fuse(*args, **more, refine=refine))
    run = Executable(g, {}, 1)
    assert any(c.number for call in run.calls for c in call.copies)
    for x, y in zip(run(values)[1], plain, strict=True):
        np.testing.assert_array_equal(x, y)


def test_a_parameter_is_updated_after_the_copies_that_read_it():
    p, v, w = leaf((5, 9), F), leaf((5, 3), F), leaf((3, 9), F)
    a = pointwise("exp", p)
    first, second = pointwise("add", matmul(v, w), a), pointwise("mul", matmul(pointwise("neg", v), w), a)
    new = pointwise("sub", p, pointwise("add", first, second))
    check(graph([total(second)], [(p, new)]), in_all(a, first, second))


def test_a_chain_is_computed_again_from_its_end():
    """b = tanh(exp(x)): first b, whose operand is then read where b stands."""
    x, v, w = leaf((5, 9), F), leaf((5, 3), F), leaf((3, 9), F)
    a = pointwise("exp", x)
    b = pointwise("tanh", a)
    first, second = pointwise("add", matmul(v, w), b), pointwise("mul", matmul(pointwise("neg", v), w), b)

    def refine(schedule: GroupSchedule) -> None:
        for node in (b, a):
            for r in (first, second):
                schedule.recompute(node, schedule.home[r])

    assert sorted(check(graph([first, second]), refine)) == [1, 4, 4]


def test_copies_have_the_role_of_their_kernel():
    """A tensor of the forward pass that the backward pass computes again leaves that kernel backward."""
    x, v, w, p = leaf((5, 9), F), leaf((5, 3), F), leaf((3, 9), F), leaf((5, 9), F)
    a = pointwise("exp", x)
    loss = total(pointwise("add", matmul(v, w), a))
    back = pointwise("mul", matmul(pointwise("neg", v), w), a)
    new = pointwise("sub", p, back)
    plan = fuse(Graph((x, v, w, p), (loss,), ((p, new),), (), (back,)), refine=in_all(a, back))
    roles = {n: r for c, r in zip(plan.calls, kernel_roles(plan), strict=True) for n in c.own}
    assert roles[back] == "backward" and roles[loss] == roles[a] == "forward"
    assert any(c.node is a and c.number for call in plan.calls if back in call.own for c in call.copies)


def test_impossible_copies_are_rejected():
    g, a, first, second = shared()

    def refused(node, group, reason: str):
        def refine(schedule: GroupSchedule) -> None:
            with pytest.raises(ArgumentError, match=reason):
                schedule.recompute(node, group(schedule))

        fuse(g, refine=refine)

    refused(a, lambda s: s.home[a], "computes it already")
    refused(first.args[0], lambda s: s.home[second], "not pointwise")
    refused(second, lambda s: s.home[first], "does not read it")
    negated = second.args[0].args[0]
    refused(negated, lambda s: s.home[second], "another shape")


def test_copies_precede_their_readers():
    """b reads a copy of a: where the group has that later than b would stand, b is not computed again."""
    x, v, w = leaf((5, 9), F), leaf((5, 3), F), leaf((3, 9), F)
    a = pointwise("exp", x)
    b = pointwise("tanh", a)
    late = pointwise("mul", pointwise("add", matmul(v, w), b), a)

    def refine(schedule: GroupSchedule) -> None:
        group = schedule.home[late]
        schedule.recompute(a, group)
        with pytest.raises(ArgumentError, match="an operand of it too late"):
            schedule.recompute(b, group)

    check(graph([late, total(a), total(b)]), refine)
