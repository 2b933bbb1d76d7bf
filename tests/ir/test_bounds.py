"""Bounds and proofs against enumeration of small boxes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from einsmith.base import dtypes as dt
from einsmith.ir.analysis import bounds as bounds_module
from einsmith.ir.analysis.bounds import Facts, bounds, prove
from einsmith.ir.analysis.linear import linear
from einsmith.ir.nodes import Apply, Axis, Const, Read, apply, template
from einsmith.ir.template_evaluator import evaluate_template

from .formulas import add, conditions, integers, k, mul

U, J, K = Axis(0), Axis(1), Axis(2)


def values(e, extents) -> np.ndarray:
    """The expression at every point of the box, row-major."""
    return evaluate_template(template(extents, (), e), ())[0].ravel()


boxes = st.tuples(*(st.integers(1, 5) for _ in range(3)))


def assert_bounds(e, extents, guards, interval) -> None:
    holds = np.ones(int(np.prod(extents)), bool)
    for g in guards:
        holds &= values(g, extents)
    found = values(e, extents)[holds]
    lo, hi = interval
    if found.size:
        assert lo is None or lo <= found.min(), (e, extents, guards, interval, found.min())
        assert hi is None or hi >= found.max(), (e, extents, guards, interval, found.max())


@pytest.mark.parametrize("examples", [120, pytest.param(400, marks=pytest.mark.slow)])
def test_bounds_hold_everywhere(examples):
    @settings(max_examples=examples, deadline=None)
    @given(integers(), boxes, st.lists(conditions(depth=1), max_size=3))
    def hold(e, extents, guards):
        assert_bounds(e, extents, guards, bounds(e, extents, guards))

    hold()


@pytest.mark.parametrize("examples", [120, pytest.param(400, marks=pytest.mark.slow)])
def test_proofs_are_never_wrong(examples):
    @settings(max_examples=examples, deadline=None)
    @given(conditions(), boxes, st.lists(conditions(depth=1), max_size=3))
    def hold(c, extents, guards):
        holds = np.ones(int(np.prod(extents)), bool)
        for g in guards:
            holds &= values(g, extents)
        if prove(c, extents, guards):
            assert values(c, extents)[holds].all()
        if Facts.of(extents, guards).prove(c, False):
            assert not values(c, extents)[holds].any()

    hold()


@pytest.mark.parametrize("extents", [(1, 1, 1), (2, 3, 5), (7, 1, 4)])
def test_affine_forms_are_exact(extents):
    for a, b, c, d in itertools.product((-3, 0, 1, 2), (-1, 0, 2), (-2, 1), (-4, 0, 3)):
        e = add(mul(a, U), mul(b, J), mul(c, K), k(d))
        v = values(e, extents)
        assert bounds(e, extents) == (v.min(), v.max())


def test_affine_guards_bound_equal_forms():
    """A convolution's padding: 0 <= 2*i + r - 1 < 28 bounds the same form, though neither axis is bounded by it."""
    index = add(mul(2, U), J, k(-1))
    guard = apply("and", apply("le", k(0), index), apply("lt", index, k(28)))
    assert bounds(index, (15, 5)) == (-1, 31)
    assert bounds(index, (15, 5), [guard]) == (0, 27)
    assert bounds(add(index, k(3)), (15, 5), [guard]) == (3, 30)
    assert bounds(U, (15, 5), [guard]) == (0, 14)
    assert bounds(U, (15, 5), [apply("lt", U, k(7))]) == (0, 6)
    assert bounds(U, (15, 5), [apply("not", apply("lt", U, k(7)))]) == (7, 14)


def test_windows_of_adaptive_pooling_stay_inside():
    """Rows start(i) .. end(i)-1 of an input of 17, over 5 outputs: start = i*17//5, end = ((i+1)*17 + 4)//5."""
    start = apply("floordiv", mul(17, U), k(5))
    end = apply("floordiv", add(mul(17, add(U, k(1))), k(4)), k(5))
    inside = apply("lt", add(start, J), end)
    assert prove(apply("lt", add(start, J), k(17)), (5, 5), [inside])
    assert not prove(apply("lt", add(start, J), k(16)), (5, 5), [inside])
    assert not prove(apply("lt", add(start, J), k(17)), (5, 5))


def test_quotient_and_remainder_belong_together():
    q, r = apply("floordiv", U, k(3)), apply("mod", U, k(3))
    assert bounds(apply("sub", U, mul(3, q)), (100,)) == (0, 2)
    assert bounds(add(mul(3, q), r), (100,)) == (0, 99)
    assert prove(apply("eq", add(mul(3, q), r), U), (100,))
    assert prove(apply("ne", mul(2, U), add(mul(4, J), k(1))), (9, 9))


def test_negative_divisors():
    q, r = apply("floordiv", U, k(-3)), apply("mod", U, k(-3))
    assert bounds(add(U, mul(3, q)), (100,)) == (-2, 0)
    assert prove(apply("eq", add(mul(-3, q), r), U), (100,))
    assert bounds(U, (100,), [apply("eq", q, k(-2))]) == (4, 6)
    assert bounds(r, (100,), [apply("le", k(4), U), apply("lt", U, k(6))]) == (-2, -1)


def test_disjunctions_are_split_into_cases():
    c = apply("or", apply("lt", U, k(3)), apply("and", apply("le", k(5), U), apply("lt", U, k(8))))
    assert bounds(U, (20,), [c]) == (0, 7)
    assert bounds(U, (20,), [apply("not", c), apply("lt", U, k(5))]) == (3, 4)
    assert prove(apply("ne", U, k(4)), (20,), [c])
    assert prove(apply("or", apply("lt", U, k(4)), apply("le", k(4), U)), (20,))


def test_contradictory_guards_and_empty_boxes_prove_everything():
    never = apply("lt", U, k(0))
    assert prove(Const(False, dt.bool_), (5,), [never])
    assert prove(never, (0,))
    assert bounds(U, (5,), [never]) == (0, 4)
    assert not Facts.of((9, 9), [apply("le", k(5), add(U, J)), apply("lt", add(U, J), k(5))]).feasible


def test_contradictory_guards_on_a_divisor():
    """An atom's interval may become empty before the contradiction is seen; no bound divides by its ends."""
    assert bounds_module.intervals.floordiv((1, 2), (3, 0)) == (None, None)
    d = apply("mod", U, k(4))
    guards = [apply("le", k(3), d), apply("lt", apply("floordiv", J, d), k(1)), apply("le", d, k(0))]
    assert prove(Const(False, dt.bool_), (9, 9), guards)


def test_an_opaque_condition_is_known_only_to_itself():
    c = apply("lt", Read(0, (U,), dt.f32), Const(0.0, dt.f32))
    assert prove(c, (5,), [c]) and not prove(c, (5,))
    assert not prove(apply("le", Const(0.0, dt.f32), Read(0, (U,), dt.f32)), (5,), [apply("not", c)])  # NaN
    assert bounds(Read(0, (U,), dt.i32), (5,)) == (None, None)


def test_a_guard_on_a_wrapped_sum_is_one_on_the_sum_where_no_other_number_wraps_to_it(rng):
    """`0 <= i32(i64(x) + 1) < 56` holds of -1 <= x < 55 alone; of i32(i64(x) + 2**31) there are others."""
    word, x = 1 << 32, Apply("cast", (Read(0, (U,), dt.i32),), dt.i64)
    for c, d in itertools.product((1, -1, 2, 3), (0, 1, -1, 100, -100, 2**31 - 60, 2**31, -(2**31), word)):
        lo = int(rng.integers(-200, 200))
        hi = lo + int(rng.integers(1, 60))
        e = apply("add", apply("mul", Const(c, dt.i64), x), Const(d, dt.i64))
        low, high = Const(lo, dt.i32), Const(hi, dt.i32)
        guards = [apply("le", low, Apply("cast", (e,), dt.i32)), apply("lt", Apply("cast", (e,), dt.i32), high)]
        least, most = sorted((c * -(2**31) + d, c * (2**31 - 1) + d))
        found = [n + k * word for k in range(-4, 5) for n in range(lo, hi)]
        found = [n for n in found if least <= n <= most and (n - d) % c == 0]
        start, end = bounds(e, (5,), guards)
        if found:
            assert start is None or start <= min(found), (c, d, lo, hi)
            assert end is None or max(found) <= end, (c, d, lo, hi)
        if abs(c) == 1 and abs(d) <= 100:
            assert (start, end) == (lo, hi - 1)


def test_an_off_by_one_in_a_bound_is_caught(monkeypatch):
    """The check of `test_bounds_hold_everywhere` refuses an interval that loses its last point."""
    own = Facts.own_interval

    def wrong(self, e):
        lo, hi = own(self, e)
        return (lo, hi - 1) if isinstance(e, Apply) and e.fn == "mod" and hi else (lo, hi)

    e = apply("mod", add(U, mul(3, J)), k(4))
    assert_bounds(e, (5, 5), [], bounds(e, (5, 5)))
    monkeypatch.setattr(bounds_module.Facts, "own_interval", wrong)
    with pytest.raises(AssertionError):
        assert_bounds(e, (5, 5), [], bounds(e, (5, 5)))


@settings(max_examples=200, deadline=None)
@given(integers(), boxes)
def test_linear_form_keeps_the_value(e, extents):
    assert (values(linear(e).expr(), extents) == values(e, extents)).all()
