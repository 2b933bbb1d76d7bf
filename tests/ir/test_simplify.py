"""Simplified expressions have the same values (exactly, NaN and infinities too), keep guards, and stay as they are."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from einsmith.base import dtypes as dt
from einsmith.base.errors import IndexOutOfRange
from einsmith.ir.nodes import (
    Apply,
    Axis,
    Const,
    Piece,
    Read,
    Reduce,
    Scatter,
    Template,
    apply,
    cast,
    postorder,
    template,
)
from einsmith.ir.rewrite import integer_rules
from einsmith.ir.rewrite.rules import RULES, RewriteRule, p, rule
from einsmith.ir.rewrite.simplify import simplify, simplify_template
from einsmith.ir.template_evaluator import evaluate_template

from .formulas import conditions, integers, k

U, J, R = Axis(0), Axis(1), Axis(2)
boxes = st.tuples(*(st.integers(1, 5) for _ in range(3)))
SPECIAL = (0.0, -0.0, 1.0, -1.0, 2.0, 0.5, -3.0, 0.1, float("inf"), float("-inf"), float("nan"))
PARAMS = ((dt.f32, (5,)), (dt.f64, (4,)), (dt.i32, (6,)), (dt.i64, (3,)))


def f(x: float) -> Const:
    return Const(x, dt.f32)


def x(*index) -> Read:
    return Read(0, index, dt.f32)


@st.composite
def floats(draw, depth: int = 3):
    """A random float32 expression; its reads are guarded, or clamped, so that they stay in bounds."""
    kind = draw(st.integers(0, 9)) if depth else draw(st.integers(0, 2))
    if kind == 0:
        return f(draw(st.sampled_from(SPECIAL)))
    if kind == 1:
        i = draw(integers(depth=2))
        inside = apply("and", apply("le", k(0), i), apply("lt", i, k(5)))
        return apply("where", inside, x(i), draw(floats(depth=0)) if depth else f(7.0))
    if kind == 2:
        return x(apply("mod", draw(integers(depth=2)), k(5)))
    if kind == 3:
        fn = draw(st.sampled_from(["neg", "exp", "abs", "sqrt", "floor", "sign", "tanh", "log"]))
        return apply(fn, draw(floats(depth=depth - 1)))
    if kind == 4:
        c = draw(conditions(depth=1))
        if draw(st.booleans()):
            c = apply(draw(st.sampled_from(["lt", "eq"])), draw(floats(depth=depth - 1)), draw(floats(depth=0)))
        return apply("where", c, draw(floats(depth=depth - 1)), draw(floats(depth=depth - 1)))
    if kind == 5:
        return cast(draw(st.one_of(integers(depth=2), conditions(depth=1))), dt.f32)
    fn = draw(st.sampled_from(["add", "sub", "mul", "div", "min", "max", "pow", "add", "mul", "sub"]))
    return apply(fn, draw(floats(depth=depth - 1)), draw(floats(depth=depth - 1)))


INPUTS = [np.array(v) for v in ([0.1, -0.0, np.nan, np.inf, -7.0], [1.0, 2, 3, 4], [0, 5, -3, 2, 1, 7], [1, 0, 2])]


def values(e, extents) -> np.ndarray:
    return evaluate_template(template(extents, PARAMS, e), INPUTS)[0]


def assert_same(e, new, extents, guards=()) -> None:
    assert new.dtype is e.dtype
    holds = np.ones(extents, bool)
    for g in guards:
        holds &= values(g, extents)
    a, b = values(e, extents)[holds], values(new, extents)[holds]
    assert np.array_equal(a, b, equal_nan=a.dtype.kind == "f"), f"{e}\n-> {new}\n{extents} {guards}"


def check(e, extents, guards=(), rules=RULES) -> None:
    new = simplify(e, extents, guards, rules)
    assert_same(e, new, extents, guards)
    again = simplify(new, extents, guards, rules)
    assert again is new, f"not idempotent: {e}\n-> {new}\n-> {again}\n{extents} {guards}"


def check_drawn(expressions, examples, rules=RULES) -> None:
    """Check so many drawn expressions."""

    @settings(max_examples=examples, deadline=None)
    @given(expressions, boxes)
    def hold(e, extents):
        check(e, extents, rules=rules)

    hold()


@pytest.mark.parametrize("examples", [150, pytest.param(600, marks=pytest.mark.slow)])
def test_integers_keep_their_values(examples):
    check_drawn(integers(depth=4), examples)


@pytest.mark.parametrize("examples", [120, pytest.param(400, marks=pytest.mark.slow)])
def test_conditions_keep_their_values(examples):
    check_drawn(conditions(depth=3), examples)


# The first two keep a -0.0, and 1/x shows it; x*x and 1/x are rounded correctly, which pow of the C library is not.
EXACT = tuple(r for r in RULES if r.name not in ("x + 0", "x - -0", "x ** 2", "x ** -1"))


@pytest.mark.parametrize("examples", [80, pytest.param(200, marks=pytest.mark.slow)])
def test_floats_keep_their_values(examples):
    check_drawn(floats(), examples, EXACT)


@pytest.mark.slow
@settings(max_examples=1000, deadline=None)
@given(floats(), boxes)
def test_many_floats_keep_their_values(e, extents):
    check(e, extents, rules=EXACT)


@settings(max_examples=200, deadline=None)
@given(integers(depth=3), boxes, st.lists(conditions(depth=1), max_size=2))
def test_guards_may_be_used(e, extents, guards):
    assert_same(e, simplify(e, extents, guards), extents, guards)


# ------------------------------------------------------------------------------------------------ what is simplified


def add(a, b):
    return apply("add", a, b)


def mul(a: int, b):
    return apply("mul", k(a), b)


@pytest.mark.parametrize(
    ("e", "extents", "result"),
    [
        (apply("floordiv", add(mul(2, U), R), k(2)), (8, 1, 2), U),
        (apply("mod", add(mul(2, U), R), k(2)), (8, 1, 2), R),
        (apply("floordiv", add(mul(7, U), J), k(7)), (8, 7), U),
        (apply("mod", add(mul(7, U), J), k(7)), (8, 7), J),
        (apply("floordiv", add(add(mul(21, U), mul(7, J)), R), k(7)), (8, 3, 7), add(mul(3, U), J)),
        (apply("floordiv", U, k(1)), (8,), U),
        (apply("mod", U, k(1)), (8,), k(0)),
        (apply("floordiv", add(U, k(-1)), k(-2)), (8,), apply("floordiv", add(mul(-1, U), k(1)), k(2))),
        (apply("mod", U, k(-3)), (8,), mul(-1, apply("mod", mul(-1, U), k(3)))),
        (apply("floordiv", U, k(-1)), (8,), mul(-1, U)),
        (add(mul(-3, apply("floordiv", U, k(-3))), apply("mod", U, k(-3))), (99,), U),
        (apply("floordiv", U, k(0)), (8,), k(0)),
        (apply("mod", U, k(0)), (8,), k(0)),
        (apply("floordiv", apply("floordiv", U, k(3)), k(2)), (99,), apply("floordiv", U, k(6))),
        (apply("mod", apply("mod", U, k(6)), k(3)), (99,), apply("mod", U, k(3))),
        (apply("floordiv", apply("mod", U, k(6)), k(3)), (99,), apply("mod", apply("floordiv", U, k(3)), k(2))),
        (add(mul(6, apply("floordiv", U, k(6))), apply("mod", U, k(6))), (99,), U),
        (add(mul(6, apply("mod", apply("floordiv", U, k(6)), k(4))), apply("mod", U, k(6))), (99,),
         apply("mod", U, k(24))),
        (apply("sub", add(U, J), add(J, U)), (9, 9), k(0)),
        (apply("floordiv", mul(4, U), k(6)), (99,), apply("floordiv", mul(2, U), k(3))),
        (apply("floordiv", add(mul(4, U), R), k(6)), (99, 1, 2), apply("floordiv", mul(2, U), k(3))),
        (apply("mod", add(mul(4, U), R), k(6)), (99, 1, 2), add(R, mul(2, apply("mod", mul(2, U), k(3))))),
        (apply("floordiv", add(add(mul(4, U), mul(6, J)), add(R, k(2))), k(12)), (99, 9, 2),
         apply("floordiv", add(add(mul(2, U), mul(3, J)), k(1)), k(6))),
        (apply("floordiv", add(mul(4, U), R), k(6)), (99, 1, 3), apply("floordiv", add(mul(4, U), R), k(6))),
        (apply("lt", U, k(9)), (9,), Const(True, dt.bool_)),
        (apply("lt", mul(2, U), k(5)), (9,), apply("lt", U, k(3))),
        (apply("lt", k(0), U), (9,), apply("le", k(1), U)),
        (apply("eq", mul(2, U), add(mul(4, J), k(3))), (9, 9), Const(False, dt.bool_)),
        (apply("and", apply("lt", U, k(3)), apply("lt", U, k(5))), (9,), apply("lt", U, k(3))),
        (apply("or", apply("lt", U, k(3)), apply("le", k(2), U)), (9,), Const(True, dt.bool_)),
        (apply("max", U, k(0)), (9,), U),
        (apply("lt", apply("abs", apply("sub", U, J)), k(3)), (9, 9),
         apply("and", apply("le", U, add(J, k(2))), apply("le", J, add(U, k(2))))),
        (apply("le", mul(2, apply("abs", U)), apply("sub", J, k(1))), (9, 9), apply("lt", mul(2, U), J)),
        (apply("le", k(3), apply("abs", apply("sub", U, J))), (9, 9),
         apply("le", k(3), apply("abs", apply("sub", U, J)))),
        (cast(add(cast(U, dt.i64), Const(0, dt.i64)), dt.i32), (9,), U),
    ],
)  # fmt: skip
def test_integer_forms(e, extents, result):
    assert simplify(e, extents) is result


def guarded(c, a, b):
    return apply("where", c, a, b)


C = apply("lt", x(U), f(0.0))


@pytest.mark.parametrize(
    ("e", "result"),
    [
        (apply("mul", f(1.0), x(U)), x(U)),
        (apply("add", x(U), f(0.0)), x(U)),
        (apply("sub", x(U), f(-0.0)), x(U)),
        (apply("neg", apply("neg", x(U))), x(U)),
        (apply("sub", x(U), apply("neg", x(J))), simplify(apply("add", x(J), x(U)), (5, 5))),
        (apply("div", x(U), f(4.0)), apply("mul", x(U), f(0.25))),
        (apply("div", x(U), f(3.0)), apply("div", x(U), f(3.0))),
        (apply("mul", x(U), f(0.0)), apply("mul", x(U), f(0.0))),
        (apply("sub", x(U), x(U)), apply("sub", x(U), x(U))),
        (guarded(C, x(U), x(U)), x(U)),
        (guarded(C, guarded(C, x(U), x(J)), f(2.0)), guarded(C, x(U), f(2.0))),
        (guarded(apply("not", C), x(U), f(2.0)), guarded(C, f(2.0), x(U))),
        (guarded(apply("le", k(1), U), guarded(apply("lt", k(0), U), x(U), f(2.0)), f(3.0)),
         guarded(apply("le", k(1), U), x(U), f(3.0))),
        (guarded(apply("le", k(1), U), guarded(apply("lt", U, k(3)), x(U), f(3.0)), f(3.0)),
         guarded(simplify(apply("and", apply("le", k(1), U), apply("lt", U, k(3))), (5,)), x(U), f(3.0))),
        (apply("add", f(0.1), f(0.6)), apply("add", f(0.1), f(0.6))),
        (apply("add", f(1.5), f(0.5)), f(2.0)),
        (apply("pow", x(U), f(2.0)), apply("mul", x(U), x(U))),
    ],
)  # fmt: skip
def test_float_forms(e, result):
    out = simplify(e, (5, 5))
    assert out is result or (out.fn, out.args) == (result.fn, result.args[::-1])


@pytest.mark.parametrize("dtype", [dt.i32, dt.i64])
def test_elements_are_not_negated_where_their_type_has_no_such_value(dtype, rng):
    """-x of the least integer is the least integer, whose quotient has the other sign."""
    low, high = dtype.range
    data = np.array([low, low + 1, high, 0, -1, *rng.integers(low, high, 11, endpoint=True)], dtype.numpy)
    element, least = Read(0, (U,), dtype), Const(low + 1, dtype)
    for by in (-2, -3, -7, low):
        for fn in ("floordiv", "mod"):
            e = apply(fn, element, Const(by, dtype))
            held = apply("where", apply("le", least, element), e, Const(0, dtype))
            assert simplify(e, data.shape) is e  # any element
            assert by == low or simplify(held, data.shape) is not held  # all but the least
            for x in (e, held):
                t = template(data.shape, ((dtype, data.shape),), x)
                np.testing.assert_array_equal(
                    evaluate_template(simplify_template(t), (data,)), evaluate_template(t, (data,)), strict=True
                )


def test_random_bits_and_rounded_floats_may_be_the_least_integer():
    """Whose absolute value and negative are negative."""
    bits = apply("random_bits", k(1), k(2), U, k(0))
    for word in (bits, cast(Read(0, (U,), dt.f32), dt.i32), cast(apply("mul", cast(U, dt.f32), f(-3e8)), dt.i32)):
        for e in (apply("lt", apply("abs", word), k(4)), apply("floordiv", word, k(-2)), apply("mod", word, k(-3))):
            assert simplify(e, (8,)) is e
    least, at = apply("abs", cast(apply("mul", cast(U, dt.f32), f(-(2.0**31))), dt.i32)), (2,)
    t = template(at, (), apply("lt", least, k(4)))
    np.testing.assert_array_equal(evaluate_template(t, ()), evaluate_template(simplify_template(t), ()))


def test_a_guarded_read_never_leaves_its_guard():
    """A condition that reads what another guards is not merged with it."""
    outer = apply("lt", U, k(5))
    inner = apply("lt", x(U), f(0.0))
    e = guarded(outer, guarded(inner, f(1.0), f(2.0)), f(2.0))
    out = simplify(e, (9,))
    assert_same(e, out, (9, 1, 1))
    assert out.args[0] is outer


def test_commuted_formulas_meet():
    a = apply("add", apply("mul", x(U), x(J)), x(R))
    b = apply("add", x(R), apply("mul", x(J), x(U)))
    assert simplify(a, (5, 5, 5)) is simplify(b, (5, 5, 5))
    c, d = apply("lt", U, k(3)), apply("lt", J, k(2))
    assert simplify(apply("and", c, d), (5, 5)) is simplify(apply("and", d, c), (5, 5))


# --------------------------------------------------------------------------------------------------------- templates


def test_unit_reduction_axes_are_dropped_and_others_renumbered():
    body = Read(0, (U, Axis(1), Axis(2), Axis(3)), dt.f32)
    t = template((5,), [(dt.f32, (5, 1, 7, 1))], Reduce("sum", (1, 7, 1), (body,)))
    want = template((5,), t.params, Reduce("sum", (7,), (Read(0, (U, k(0), Axis(1), k(0)), dt.f32),)))
    assert simplify_template(t) is want
    assert simplify_template(want) is want


@pytest.mark.parametrize("combiner", ["sum", "prod", "max", "min", "argmax", "argmin"])
def test_a_reduction_over_one_point_is_its_body(combiner):
    t = template((5,), [(dt.f32, (5, 1))], Reduce(combiner, (1,), (Read(0, (U, Axis(1)), dt.f32),)))
    out = simplify_template(t)
    assert isinstance(out.parts[0].body, Reduce) == combiner.startswith("arg")
    a = np.random.default_rng().standard_normal((5, 1))
    for u, v in zip(evaluate_template(t, [a]), evaluate_template(out, [a]), strict=True):
        assert (u == v).all()


def test_empty_boxes_are_left_alone():
    t = template((0, 4), [(dt.f32, (0, 4))], Read(0, (U, J), dt.f32))
    assert simplify_template(t) is t
    t = template((4,), [(dt.f32, (4, 0))], Reduce("sum", (0,), (Read(0, (U, J), dt.f32),)))
    assert (evaluate_template(simplify_template(t), [np.zeros((4, 0))])[0] == 0).all()


# ------------------------------------------------------------------------------------------- the check catches faults


def test_a_rule_that_loses_a_guard_is_caught():
    """where(c, x[i], y) -> x[i] is refused: the read leaves its tensor, or the values differ."""
    wrong = rule("lose the guard", p("where", "c", "x", "y"), "x", "f")
    e = guarded(apply("lt", U, k(5)), x(U), f(7.0))
    check(e, (9, 1, 1))
    with pytest.raises(IndexOutOfRange):
        check(e, (9, 1, 1), rules=(*RULES, wrong))
    e = guarded(apply("lt", U, k(3)), x(U), f(9.0))
    with pytest.raises(AssertionError):
        check(e, (5, 1, 1), rules=(*RULES, wrong))


@pytest.mark.parametrize(
    "wrong",
    [
        rule("x * 0", p("mul", "x", 0.0), 0.0, "f"),
        rule("x - x", p("sub", "x", "x"), 0.0, "f"),
        rule("x / x", p("div", "x", "x"), 1.0, "f"),
        rule("not less", p("not", p("lt", "x", "y")), p("le", "y", "x")),
        dataclasses.replace(next(r for r in RULES if r.name == "divide"), rewrite=lambda e, _: e.args[0]),
    ],
    ids=lambda r: r.name,
)
def test_wrong_rules_are_caught(wrong: RewriteRule):
    """Each of these is wrong for NaN, infinity or a bound; the fuzz tests' check refuses it."""
    table = (wrong, *(r for r in RULES if r.name != wrong.name))
    cases = [
        apply("mul", x(U), f(0.0)),
        apply("sub", x(U), x(U)),
        apply("div", x(U), x(U)),
        cast(apply("not", apply("lt", x(U), x(J))), dt.f32),
        apply("floordiv", add(U, J), k(2)),
    ]
    for e in cases:
        check(e, (5, 5, 1))
    with pytest.raises(AssertionError):
        for e in cases:
            check(e, (5, 5, 1), rules=table)


def test_a_long_chain_is_simplified_without_recursion():
    e = x(U)
    for n in range(1100):
        e = guarded(apply("lt", U, k(n % 5)), apply("add", e, f(float(n))), f(2.0))
    out = simplify(e, (5,))
    assert sum(1 for _ in postorder([out])) < sum(1 for _ in postorder([e]))
    c = C
    for n in range(1100):
        c = Apply("or" if n % 2 else "and", (c, apply("lt", x(k(n % 5)), f(float(n)))), dt.bool_)
    simplify(c, (5,))


def test_scatters_from_zeros_have_no_pieces():
    s = Scatter("sum", (5,), (apply("mod", U, k(3)),), Read(0, (U,), dt.f32))
    params = ((dt.f32, (5,)),)
    for value, kept in ((0.0, 1), (-0.0, 2), (1.0, 2)):
        t = Template((3,), params, (Piece((0,), (1,), (3,), Const(value, dt.f32)), s))
        assert len(simplify_template(t).parts) == kept
    most = Scatter("max", s.extents, s.index, s.body)
    for value, kept in ((0.0, 2), (float("inf"), 2), (float("-inf"), 1)):
        t = Template((3,), params, (Piece((0,), (1,), (3,), Const(value, dt.f32)), most))
        assert len(simplify_template(t).parts) == kept
    empty = Template((3,), params, (Piece((0,), (1,), (3,), Const(1.0, dt.f32)), Scatter("sum", (0,), (U,), s.body)))
    assert not simplify_template(empty).is_scatter


def test_partial_sums_of_a_long_sum_are_not_all_normalized(monkeypatch):
    """Each of N partial sums has up to N terms."""
    written = []
    expr = integer_rules._expr

    def counted(form, dtype):
        written.append(len(form.terms))
        return expr(form, dtype)

    monkeypatch.setattr(integer_rules, "_expr", counted)
    e = Read(0, (Const(0, dt.i32),), dt.i32)
    for n in range(1, 300):
        e = apply("add", e, Read(0, (Const(n, dt.i32),), dt.i32))
    simplify(e, ())
    assert max(written) <= integer_rules.MAX_COLLECTED
