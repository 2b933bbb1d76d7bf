"""Reduction axes in better coordinates: the same sums, products of matrices where there were products with vectors."""

from __future__ import annotations

import numpy as np
import pytest

from einsmith.base import dtypes as dt
from einsmith.ir.evaluator import evaluate
from einsmith.ir.nodes import Axis, Compute, Const, Graph, Read, Reduce, apply, axes_of, leaf, reads, template
from einsmith.ir.verify import verify_graph
from einsmith.passes.algebra.reduction_basis import reduction_basis

F = dt.f32


def at(e, c: int):
    return apply("add", e, Const(c, dt.i32)) if c else e


def inside(e, n: int):
    return apply("and", apply("le", Const(0, dt.i32), e), apply("lt", e, Const(n, dt.i32)))


def guarded(condition, body):
    return apply("where", condition, body, Const(0, F))


def relative(t: int, u: int, d: int, guard: bool = True, stretch: int = 1) -> Graph:
    """R[w, e] = sum[j](where(0 <= j-w+t-1 < t, S[j-w+t-1, j]*Q[j-w+t-1, e], 0)), S [t, u], Q [t, d]."""
    w, e, j = (Axis(i) for i in range(3))
    i = at(apply("sub", j, w), t - 1)
    if stretch != 1:
        i = apply("mul", i, Const(stretch, dt.i32))
    s, q = leaf((stretch * t, u), F), leaf((stretch * t, d), F)
    body = apply("mul", Read(0, (i, j), F), Read(1, (i, e), F))
    body = guarded(inside(i, stretch * t), body) if guard else body
    shape = (t + u - 1 if guard else 1, d)
    out = Compute(template(shape, [(F, s.shape), (F, q.shape)], Reduce("sum", (u,), (body,))), (s, q))
    return Graph((s, q), (out,), (), ())


def values(g: Graph, rng: np.random.Generator) -> list[np.ndarray]:
    return [rng.standard_normal(x.shape) for x in g.inputs]


def same(a: Graph, b: Graph, rng: np.random.Generator) -> None:
    verify_graph(b)
    arrays = values(a, rng)
    for x, y in zip(evaluate(a, arrays)[0], evaluate(b, arrays)[0], strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("t,u,d", [(1, 1, 1), (1, 5, 3), (4, 4, 2), (7, 13, 5), (16, 17, 1)])
def test_a_relative_key_is_lowered_to_a_matrix_product(t: int, u: int, d: int, rng: np.random.Generator) -> None:
    before = relative(t, u, d)
    after = reduction_basis(before)
    same(before, after, rng)
    if t > 1:
        (body,) = after.outputs[0].template.parts[0].body.bodies
        key = next(r for r in reads(body) if r.slot == 1)
        assert axes_of(key) == {1, 2}, "Q depends on the column and on the sum's axis alone"
        assert after.outputs[0].template.parts[0].body.extents == (t,)


def test_a_longer_axis_is_not_taken() -> None:
    """Points are not added: with more rows than columns the sum stays on the columns."""
    before = relative(9, 4, 3)
    assert reduction_basis(before).outputs == before.outputs


def test_a_strided_index_stays() -> None:
    before = relative(5, 6, 3, stretch=2)
    assert reduction_basis(before).outputs == before.outputs


def test_a_plain_product_stays() -> None:
    i, j, k = (Axis(n) for n in range(3))
    a, b = leaf((5, 7), F), leaf((7, 3), F)
    body = Reduce("sum", (7,), (apply("mul", Read(0, (i, k), F), Read(1, (k, j), F)),))
    before = Graph((a, b), (Compute(template((5, 3), [(F, a.shape), (F, b.shape)], body), (a, b)),), (), ())
    assert reduction_basis(before).outputs == before.outputs


def test_an_index_that_a_guard_of_one_factor_alone_keeps_inside_stays() -> None:
    """where(g, S, 0)*Q is not where(g, S*Q, 0): Q may hold infinities where g fails."""
    t = u = 4
    w, e, j = (Axis(n) for n in range(3))
    i = at(apply("sub", j, w), t - 1)
    s, q = leaf((t, u), F), leaf((u, 3), F)
    body = apply("mul", guarded(inside(i, t), Read(0, (i, j), F)), Read(1, (j, e), F))
    out = Compute(template((t + u - 1, 3), [(F, s.shape), (F, q.shape)], Reduce("sum", (u,), (body,))), (s, q))
    assert reduction_basis(Graph((s, q), (out,), (), ())).outputs == (out,)


def test_the_gradient_of_a_convolution_stays() -> None:
    """dX[h] = sum[r](where(0 <= h-r < 12, dY[h-r]*W[r], 0)): 12 outputs are more than 3 taps."""
    h, r = Axis(0), Axis(1)
    y, w = leaf((12,), F), leaf((3,), F)
    i = apply("sub", h, r)
    body = guarded(inside(i, 12), apply("mul", Read(0, (i,), F), Read(1, (r,), F)))
    out = Compute(template((14,), [(F, y.shape), (F, w.shape)], Reduce("sum", (3,), (body,))), (y, w))
    g = Graph((y, w), (out,), (), ())
    assert reduction_basis(g).outputs == (out,)
