"""The verifier takes what is right and refuses what was corrupted on purpose."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from einsmith.base import dtypes as dt
from einsmith.base.errors import BoundsError, IndexOutOfRange, VerifyError
from einsmith.ir.analysis.in_bounds import out_of_bounds
from einsmith.ir.nodes import (
    Apply,
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
from einsmith.ir.verify import verify_graph, verify_template

from .formulas import add, k, mul

U, J, R = Axis(0), Axis(1), Axis(2)
ZERO = Const(0.0, dt.f32)


def x(*index) -> Read:
    return Read(0, index, dt.f32)


def convolution(n: int, stride: int, size: int, pad: int, low: int = 0, high: int = 0) -> Template:
    """out[i] = sum[r] of x[stride*i + r - pad] inside; `low` and `high` move the guard's ends."""
    at = add(mul(stride, U), J, k(-pad))
    inside = apply("and", apply("le", k(low), at), apply("lt", at, k(n + high)))
    body = apply("where", inside, x(at), ZERO)
    out = (n + 2 * pad - size) // stride + 1
    return template((out,), [(dt.f32, (n,))], Reduce("sum", (size,), (body,)))


@pytest.mark.parametrize(("n", "stride", "size", "pad"), [(7, 1, 3, 1), (28, 2, 5, 2), (15, 3, 4, 2), (5, 1, 1, 0)])
def test_padded_convolutions_are_in_bounds(n, stride, size, pad):
    verify_template(convolution(n, stride, size, pad))


@pytest.mark.parametrize(("low", "high"), [(-1, 0), (0, 1)])
def test_an_off_by_one_in_a_guard_is_caught(low, high):
    """The verifier refuses what the evaluator faults on."""
    t = convolution(7, 1, 3, 1, low, high)
    with pytest.raises(IndexOutOfRange):
        evaluate_template(t, [np.zeros(7)])
    with pytest.raises(BoundsError):
        verify_template(t)


def test_the_error_names_the_read_the_axes_and_the_extent():
    t = template((4, 6), [(dt.f32, (4, 5))], x(U, add(J, k(1))))
    with pytest.raises(BoundsError) as error:
        verify_template(t)
    for part in ("x0[i0, i1 + 1]", "dimension 1", "1 .. 6", "extent is 5", "i1 in 0 .. 5"):
        assert part in str(error.value)
    found = next(out_of_bounds(t))
    assert found.message(["b", "j"], ["X"]).startswith("the read X[b, j + 1] is not proven in bounds")


@pytest.mark.parametrize(
    ("condition", "true_side", "right"),
    [
        (apply("lt", U, k(4)), True, True),
        (apply("le", k(4), U), False, True),
        (apply("not", apply("lt", U, k(4))), False, True),
        (apply("or", apply("lt", U, k(2)), apply("eq", U, k(3))), True, True),
        (apply("or", apply("lt", U, k(2)), apply("eq", U, k(4))), True, False),
        (apply("ne", U, k(4)), True, True),
        (apply("eq", U, k(4)), False, True),
        (apply("lt", U, k(4)), False, False),
        (apply("lt", Read(0, (k(0),), dt.f32), ZERO), True, False),
    ],
)
def test_guards(condition, true_side, right):
    """x[i], i < 5, in a tensor of 4, under different guards."""
    sides = (x(U), ZERO) if true_side else (ZERO, x(U))
    t = template((5,), [(dt.f32, (4,))], apply("where", condition, *sides))
    if right:
        verify_template(t)
    else:
        with pytest.raises(BoundsError):
            verify_template(t)


def test_a_read_guarded_here_and_bare_there_is_refused():
    guarded = apply("where", apply("lt", U, k(4)), x(U), ZERO)
    t = template((5,), [(dt.f32, (4,))], apply("add", guarded, x(U)))
    with pytest.raises(BoundsError):
        verify_template(t)
    nested = apply("where", apply("lt", U, k(4)), apply("add", guarded, x(U)), ZERO)
    verify_template(template((5,), [(dt.f32, (4,))], nested))


def test_indices_that_are_read_are_checked_at_run_time():
    verify_template(template((5,), [(dt.f32, (4,)), (dt.i64, (5,))], x(Read(1, (U,), dt.i64))))
    t = template((5,), [(dt.f32, (4,)), (dt.i64, (4,))], x(Read(1, (U,), dt.i64)))
    with pytest.raises(BoundsError, match="x1"):
        verify_template(t)


def test_empty_boxes_read_nothing():
    verify_template(template((0,), [(dt.f32, (0,))], x(U)))
    verify_template(template((3,), [(dt.f32, (0,))], Reduce("sum", (0,), (x(J),))))


# ------------------------------------------------------------------------------------------------------------ pieces


def progression(o, s, n):
    return [o + s * i for i in range(n)]


def test_the_partition_check_against_enumeration():
    """Every pair of pieces of a line of 7: accepted exactly when each position is written once."""
    lines = [(o, s, n) for o in range(4) for s in range(1, 4) for n in range(1, 8) if o + s * (n - 1) < 7]
    accepted = 0
    for a, b in itertools.product(lines, repeat=2):
        right = sorted(progression(*a) + progression(*b)) == list(range(7))
        t = Template((7,), (), tuple(Piece((o,), (s,), (n,), ZERO) for o, s, n in (a, b)))
        try:
            verify_template(t)
            accepted += 1
            assert right, (a, b)
        except VerifyError:
            assert not right, (a, b)
    assert accepted


def test_overlaps_in_two_dimensions():
    def t(*pieces):
        return Template((4, 6), (), tuple(Piece(o, s, n, ZERO) for o, s, n in pieces))

    phases = [((a, b), (2, 3), (2, 2)) for a in range(2) for b in range(3)]
    verify_template(t(*phases))
    with pytest.raises(VerifyError, match="write 20 elements"):
        verify_template(t(*phases[1:]))
    with pytest.raises(VerifyError, match="same element"):
        verify_template(t(*phases[1:], phases[1]))
    with pytest.raises(VerifyError, match="exceeds the extent"):
        verify_template(t(((0, 0), (1, 1), (4, 7))))


# ------------------------------------------------------------------------------------------------- types and others


@pytest.mark.parametrize(
    ("t", "message"),
    [
        (template((3,), [(dt.f64, (3,))], x(U)), "its argument is f64"),
        (template((3,), [(dt.f32, (3, 1))], x(U)), "rank 1"),
        (template((3,), [], x(U)), "argument 0 of 0"),
        (template((3,), [(dt.f32, (3,))], x(J)), "axis 1 in a domain of 1"),
        (template((3,), [(dt.f32, (3,))], x(cast(U, dt.f32))), "no integer"),
        (template((3,), [], Apply("add", (ZERO, k(1)), dt.f32)), "cast them"),
        (template((3,), [], Apply("lt", (ZERO, ZERO), dt.f32)), "has type f32"),
        (template((3,), [], Apply("where", (k(1), ZERO, ZERO), dt.f32)), "conditions"),
        (template((3,), [], Reduce("max", (0,), (ZERO,))), "over nothing"),
        (template((3,), [], Reduce("sum", (2,), (apply("lt", U, J),))), "of a condition"),
        (template((3,), [], Const(1 << 31, dt.i32)), "does not fit"),
        (Template((3,), (), (Scatter("sum", (3,), (U, U), ZERO),)), "needs 1 integer indices"),
    ],
)
def test_corrupted_templates_are_refused(t, message):
    with pytest.raises(VerifyError, match=message):
        verify_template(t)
    with pytest.raises(VerifyError):  # the answer is kept
        verify_template(t)


def test_scatters_stay_inside():
    verify_template(Template((3,), (), (Scatter("sum", (6,), (apply("floordiv", U, k(2)),), ZERO),)))
    with pytest.raises(BoundsError, match="the scatter is not proven"):
        verify_template(Template((3,), (), (Scatter("sum", (7,), (apply("floordiv", U, k(2)),), ZERO),)))


def test_initial_values_of_scatters():
    """Pieces before a scatter cover its output, without reductions; they speak of the output's axes."""
    s = Scatter("sum", (6,), (apply("floordiv", U, k(2)),), ZERO)
    one, two = Piece((0,), (2,), (2,), x(U)), Piece((1,), (2,), (1,), ZERO)
    params = ((dt.f32, (2,)),)
    verify_template(Template((3,), params, (one, two, s)))
    for parts, message in (
        ((one, s), "2 elements of an output of 3"),
        ((one, s, two), "one scatter at most, as its last part"),
        ((s, s), "one scatter at most, as its last part"),
        ((Piece((0,), (1,), (3,), Reduce("sum", (2,), (x(J),))), s), "without reductions"),
        ((Piece((0,), (1,), (3,), x(U)), s), "not proven in bounds"),
    ):
        with pytest.raises(VerifyError if "proven" not in message else BoundsError, match=message):
            verify_template(Template((3,), params, parts))


def test_graphs():
    a, b = leaf((3,), dt.f32), leaf((3,), dt.f32)
    same = template((3,), [(dt.f32, (3,))], x(U))
    two = Compute(template((3,), [(dt.f32, (3,))], Reduce("argmax", (1,), (x(U),))), (a,))
    verify_graph(Graph((a, b), (Compute(same, (a,)), Item(two, 1)), ((b, Compute(same, (a,))),), ()))
    for g, message in (
        (Graph((b,), (Compute(same, (a,)),), (), ()), "not an input"),
        (Graph((a,), (two,), (), ()), "several results"),
        (Graph((a,), (Item(two, 2),), (), ()), "does not exist"),
        (Graph((a,), (), ((b, a),), ()), "no input"),
        (Graph((a, b), (), ((b, Item(two, 1)),), ()), "is updated with"),
        (Graph((a,), (), (), ((a, "m"),)), "0-d i32"),
        (Graph((a, a), (), (), ()), "twice"),
        (Graph((a,), (Compute(template((4,), [(dt.f32, (3,))], x(U)), (a,)),), (), ()), "not proven in bounds"),
    ):
        with pytest.raises((VerifyError, BoundsError), match=message):
            verify_graph(g)
