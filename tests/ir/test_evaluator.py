"""The evaluator against NumPy, written independently."""

from __future__ import annotations

import numpy as np
import pytest

from einsmith.base import dtypes as dt
from einsmith.base.errors import IndexOutOfRange, ShapeError, VerifyError
from einsmith.ir import template_evaluator
from einsmith.ir.evaluator import evaluate
from einsmith.ir.nodes import (
    Axis,
    Compute,
    Const,
    Graph,
    Item,
    Piece,
    Read,
    Reduce,
    Scatter,
    Template,
    apply,
    cast,
    leaf,
    template,
)
from einsmith.ir.template_evaluator import evaluate_template

from .formulas import add, k, mul

U, J, R, S = Axis(0), Axis(1), Axis(2), Axis(3)


def x(*index) -> Read:
    return Read(0, index, dt.f32)


def padded_sum(n: int, m: int, pad: int) -> Template:
    """out[i, j] = sum over r < 2*pad+1 of x[i + r - pad, j], zero outside."""
    at = add(U, R, k(-pad))
    inside = apply("and", apply("le", k(0), at), apply("lt", at, k(n)))
    body = apply("where", inside, x(at, J), Const(0.0, dt.f32))
    return template((n, m), [(dt.f32, (n, m))], Reduce("sum", (2 * pad + 1,), (body,)))


@pytest.mark.parametrize("points", [1, 7, 60, 10**6])
@pytest.mark.parametrize(("n", "m"), [(1, 1), (7, 3), (16, 15)])
def test_windows_with_padding_in_chunks_of_any_size(n, m, points, monkeypatch, rng):
    monkeypatch.setattr(template_evaluator, "MAX_CHUNK_POINTS", points)
    a = rng.standard_normal((n, m))
    p = np.pad(a, ((2, 2), (0, 0)))
    want = sum(p[r : r + n] for r in range(5))
    (got,) = evaluate_template(padded_sum(n, m, 2), [a])
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, want, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("points", [1, 10**6])
def test_a_matrix_product(points, monkeypatch, rng):
    monkeypatch.setattr(template_evaluator, "MAX_CHUNK_POINTS", points)
    a, b = rng.standard_normal((5, 7)), rng.standard_normal((7, 3))
    body = apply("mul", Read(0, (U, R), dt.f32), Read(1, (R, J), dt.f32))
    t = template((5, 3), [(dt.f32, (5, 7)), (dt.f32, (7, 3))], Reduce("sum", (7,), (body,)))
    np.testing.assert_allclose(evaluate_template(t, [a, b])[0], a @ b, rtol=1e-13)


def test_reads_outside_are_refused_where_they_are_chosen(rng):
    a = rng.standard_normal((4,))
    plain = template((5,), [(dt.f32, (4,))], x(U))
    with pytest.raises(IndexOutOfRange, match=r"x0\[i0\] reads position 4 of dimension 0, whose extent is 4"):
        evaluate_template(plain, [a])
    off_by_one = apply("where", apply("le", U, k(4)), x(U), Const(0.0, dt.f32))
    with pytest.raises(IndexOutOfRange):
        evaluate_template(template((5,), plain.params, off_by_one), [a])
    guarded = apply("where", apply("lt", U, k(4)), x(U), Const(0.0, dt.f32))
    assert evaluate_template(template((5,), plain.params, guarded), [a])[0].tolist() == [*a.tolist(), 0.0]


def test_a_guard_around_an_index_that_is_read_twice(rng):
    """The same read, guarded in one place and bare in another, faults by the bare one."""
    a = rng.standard_normal((4,))
    guarded = apply("where", apply("lt", U, k(4)), x(U), Const(0.0, dt.f32))
    with pytest.raises(IndexOutOfRange):
        evaluate_template(template((5,), [(dt.f32, (4,))], apply("add", guarded, x(U))), [a])


def test_guarded_reads_of_an_empty_tensor_and_division_by_zero():
    e = apply("where", apply("lt", U, k(0)), x(U), Const(3.0, dt.f32))
    assert evaluate_template(template((2,), [(dt.f32, (0,))], e), [np.zeros(0)])[0].tolist() == [3.0, 3.0]
    q = apply("where", apply("ne", U, k(0)), apply("floordiv", k(7), U), k(-1))
    with np.errstate(all="raise"):
        assert evaluate_template(template((4,), (), q), [])[0].tolist() == [-1, 7, 3, 2]


def test_integers_follow_python():
    for a in range(-7, 8):
        for b in (-3, -1, 2, 5):
            for fn, want in (("floordiv", a // b), ("mod", a % b)):
                assert evaluate_template(template((), (), apply(fn, k(a), k(b))), [])[0] == want


@pytest.mark.parametrize(
    ("value", "dtype", "want"),
    [
        *((2.9, dt.i32, 2), (-2.9, dt.i32, -2)),
        *((-0.5, dt.bool_, True), (0.0, dt.bool_, False), (float("nan"), dt.bool_, True)),
    ],
)
def test_casts_of_floats(value, dtype, want):
    e = cast(Read(0, (), dt.f32), dtype)
    assert evaluate_template(template((), [(dt.f32, ())], e), [np.array(value)])[0] == want


def test_narrow_integers_wrap_and_conditions_are_numbers():
    assert evaluate_template(template((), [(dt.i32, ())], cast(Read(0, (), dt.i32), dt.i8)), [np.array(200)])[0] == -56
    e = cast(apply("lt", U, k(2)), dt.f32)
    assert evaluate_template(template((3,), (), e), [])[0].tolist() == [1.0, 1.0, 0.0]


@pytest.mark.parametrize("combiner", ["sum", "prod", "max", "min"])
def test_combiners(combiner, rng):
    a = rng.standard_normal((5, 3, 4))
    t = template((5,), [(dt.f32, a.shape)], Reduce(combiner, (3, 4), (x(U, Axis(1), Axis(2)),)))
    np.testing.assert_allclose(evaluate_template(t, [a])[0], getattr(a, combiner)(axis=(1, 2)), rtol=1e-13)
    a[1, 2, 3] = np.nan
    assert np.isnan(evaluate_template(t, [a])[0][1])


@pytest.mark.parametrize("combiner", ["argmax", "argmin"])
def test_arg_reductions_take_the_first_in_row_major_order(combiner, rng):
    a = rng.integers(0, 3, (6, 3, 4)).astype(float)
    t = template((6,), [(dt.f32, a.shape)], Reduce(combiner, (3, 4), (x(U, Axis(1), Axis(2)),)))
    value, at = evaluate_template(t, [a])
    for n in range(6):
        flat = a[n].ravel().tolist()
        best = max(flat) if combiner == "argmax" else min(flat)
        assert (value[n], at[n]) == (best, flat.index(best))
    a[2].ravel()[[5, 9]] = np.nan
    value, at = evaluate_template(t, [a])
    assert np.isnan(value[2]) and at[2] == 5


def test_a_body_free_of_its_axis_is_counted():
    t = template((3,), (), Reduce("sum", (5,), (Const(2.0, dt.f32),)))
    assert evaluate_template(t, [])[0].tolist() == [10.0] * 3


def test_empty_reductions():
    params = [(dt.f32, (3, 0))]
    for combiner, want in (("sum", 0.0), ("prod", 1.0)):
        t = template((3,), params, Reduce(combiner, (0,), (x(U, Axis(1)),)))
        assert evaluate_template(t, [np.zeros((3, 0))])[0].tolist() == [want] * 3
    with pytest.raises(VerifyError, match="over nothing"):
        evaluate_template(template((3,), params, Reduce("max", (0,), (x(U, Axis(1)),))), [np.zeros((3, 0))])


def test_several_results_in_one_sweep(rng):
    a = rng.standard_normal((4, 9))
    t = template((4,), [(dt.f32, a.shape)], Reduce("sum", (9,), (x(U, J), apply("mul", x(U, J), x(U, J)))))
    p = leaf(a.shape, dt.f32)
    node = Compute(t, (p,))
    (s, q), _ = evaluate(Graph((p,), (Item(node, 0), Item(node, 1)), (), ()), [a])
    np.testing.assert_allclose(s, a.sum(1))
    np.testing.assert_allclose(q, (a * a).sum(1))


def test_pieces(rng):
    a = rng.standard_normal((3,))
    even = Piece((0,), (2,), (3,), x(U))
    odd = Piece((1,), (2,), (2,), apply("neg", x(U)))
    got = evaluate_template(Template((5,), ((dt.f32, (3,)),), (even, odd)), [a])[0]
    assert got.tolist() == [a[0], -a[0], a[1], -a[1], a[2]]


@pytest.mark.parametrize("points", [1, 10**6])
def test_scatter_accumulates(points, monkeypatch, rng):
    monkeypatch.setattr(template_evaluator, "MAX_CHUNK_POINTS", points)
    ids, g = rng.integers(0, 3, 11), rng.standard_normal((11, 2))
    params = ((dt.i32, (11,)), (dt.f32, (11, 2)))
    s = Scatter("sum", (11, 2), (Read(0, (U,), dt.i32), J), Read(1, (U, J), dt.f32))
    want = np.zeros((3, 2))
    for n in range(11):
        want[ids[n]] += g[n]
    t = Template((3, 2), params, (s,))
    np.testing.assert_allclose(evaluate_template(t, [ids, g])[0], want)
    start = Piece((0, 0), (1, 1), (3, 2), cast(apply("add", U, J), dt.f32))
    added = evaluate_template(Template((3, 2), params, (start, s)), [ids, g])[0]
    np.testing.assert_allclose(added, want + np.add.outer(np.arange(3), np.arange(2)))
    ids[4] = 3
    with pytest.raises(IndexOutOfRange):
        evaluate_template(t, [ids, g])


def test_graphs_updates_and_checks(rng):
    y, p = leaf((4,), dt.i32), leaf((4,), dt.f32)
    twice = Compute(template((4,), [(dt.f32, (4,))], apply("add", x(U), x(U))), (p,))
    bad = cast(apply("le", k(3), Read(0, (Axis(0),), dt.i32)), dt.i32)
    check = Compute(template((), [(dt.i32, (4,))], Reduce("sum", (4,), (bad,))), (y,))
    g = Graph((y, p), (twice,), ((p, twice),), ((check, "label outside the classes"),))
    a = rng.standard_normal(4)
    outs, updates = evaluate(g, [np.array([0, 1, 2, 2]), a])
    assert (outs[0] == 2 * a).all() and (updates[0] == 2 * a).all()
    with pytest.raises(IndexOutOfRange, match="label outside"):
        evaluate(g, [np.array([0, 1, 3, 2]), a])
    with pytest.raises(ShapeError, match="input 1 has shape"):
        evaluate(g, [np.array([0, 1, 3, 2]), a[:3]])


def test_zero_dimensional_tensors():
    t = template((), [(dt.f32, ())], apply("exp", Read(0, (), dt.f32)))
    assert evaluate_template(t, [np.float32(1)])[0] == np.exp(1.0)
    assert evaluate_template(template((), (), mul(2, k(4))), [])[0].shape == ()
