"""Reductions over axes that their bodies do not depend on: closed forms have the values of the definition."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
from einsmith.base import dtypes as dt
from einsmith.ir.nodes import Apply, Axis, Const, Piece, Read, Reduce, Scatter, Template, apply, cast, template
from einsmith.ir.rewrite.simplify import simplify_template
from einsmith.ir.template_evaluator import evaluate_template

ROW, J, K = Axis(0), Axis(1), Axis(2)
N = 5
SPECIAL = np.array([1.5, -2.0, np.inf, np.nan, -0.75])
EXTENTS = (1, 2, 15, 16, 17)


def x(*at, slot=0, dtype=dt.f64):
    return Read(slot, at, dtype)


def c(n):
    return Const(n, dt.i32)


def where(condition, body):
    return apply("where", condition, body, Const(0, body.dtype))


def both(*conditions):
    out = conditions[0]
    for other in conditions[1:]:
        out = apply("and", out, other)
    return out


def same_values(t: Template, *arrays: np.ndarray) -> Template:
    """The template simplified, which has the values of the one that was given."""
    made = simplify_template(t)
    assert simplify_template(made) is made
    for a, b in zip(evaluate_template(t, arrays), evaluate_template(made, arrays), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-12)
    return made


def reductions(t: Template) -> list[tuple[int, ...]]:
    return [p.body.extents for p in t.parts if isinstance(p, Piece) and isinstance(p.body, Reduce)]


@pytest.mark.parametrize("n", EXTENTS)
@pytest.mark.parametrize("combiner", ["sum", "prod", "max", "min", "argmax", "argmin"])
def test_of_what_is_free_of_all_axes(combiner, n):
    t = template((N,), [(dt.f64, (N,))], Reduce(combiner, (n, 3), (x(ROW),)))
    made = same_values(t, SPECIAL)
    assert reductions(made) == ([()] if combiner.startswith("arg") else [])


@pytest.mark.parametrize("n", EXTENTS[1:])
@pytest.mark.parametrize("combiner", ["sum", "prod", "max", "min", "argmax", "argmin"])
def test_of_what_depends_on_the_other_axis(rng, combiner, n):
    a = rng.standard_normal((N, 7))
    a[0, 3], a[1, 2] = np.nan, np.inf
    outer_free = template((N,), [(dt.f64, (N, 7))], Reduce(combiner, (n, 7), (x(ROW, K),)))
    assert reductions(same_values(outer_free, a)) == [(7,)]
    inner_free = template((N,), [(dt.f64, (N, 7))], Reduce(combiner, (7, n), (x(ROW, J),)))
    # Positions are those of the box that was written, in which the points of the last axis lie side by side.
    assert reductions(same_values(inner_free, a)) == [(7, n) if combiner.startswith("arg") else (7,)]


@pytest.mark.parametrize("combiner", ["sum", "prod"])
def test_integers_wrap_as_the_evaluator_s(combiner):
    a = np.array([3, -7, 2**40 + 1, -(2**62), 0])
    for n in (2, 17, 64):
        t = template((N,), [(dt.i64, (N,))], Reduce(combiner, (n,), (x(ROW, dtype=dt.i64),)))
        assert not reductions(same_values(t, a))


def test_nothing_is_summed_over_nothing():
    for combiner, value in (("sum", 0.0), ("prod", 1.0)):
        t = template((N,), [(dt.f64, (N,))], Reduce(combiner, (0, 3), (x(ROW),)))
        np.testing.assert_array_equal(evaluate_template(simplify_template(t), [SPECIAL])[0], np.full(N, value))


CONDITIONS = {
    "constants": both(apply("le", c(3), J), apply("lt", J, c(11))),
    "nowhere": both(apply("lt", J, c(5)), apply("lt", c(7), J)),
    "beyond": apply("lt", J, c(100)),
    "up to the row": apply("le", J, ROW),
    "from the row on": apply("le", ROW, J),
    "one point": apply("eq", J, apply("mul", c(4), ROW)),
    "every third": apply("le", apply("mul", c(3), J), apply("add", ROW, c(4))),
    "within a window": both(
        apply("le", c(0), apply("sub", apply("add", ROW, apply("mul", c(2), J)), c(5))),
        apply("lt", apply("sub", apply("add", ROW, apply("mul", c(2), J)), c(5)), c(N)),
    ),
    "as many as an element says": apply("lt", J, x(ROW, slot=1, dtype=dt.i32)),
}


@pytest.mark.parametrize("n", EXTENTS[2:])
@pytest.mark.parametrize("name", CONDITIONS)
def test_guards_count_the_points_at_which_they_hold(name, n):
    lengths = np.array([4, 0, -(2**31), 2**31 - 1, 1], np.int32)
    for guarded in (where(CONDITIONS[name], x(ROW)), where(apply("lt", c(0), ROW), where(CONDITIONS[name], x(ROW)))):
        t = template((N,), [(dt.f64, (N,)), (dt.i32, (N,))], Reduce("sum", (n,), (guarded,)))
        assert not reductions(same_values(t, SPECIAL, lengths))


def test_guarded_reads_stay_guarded():
    """x[i + 2] lies outside for the last rows, for which no j is."""
    inside = apply("lt", apply("add", ROW, J), c(3))
    t = template((N,), [(dt.f64, (N,))], Reduce("sum", (17,), (where(inside, x(apply("add", ROW, c(2)))),)))
    assert not reductions(same_values(t, SPECIAL))


def test_conditions_of_other_kinds_stay():
    kept = [
        apply("ne", J, c(3)),
        apply("eq", apply("mod", J, c(3)), c(0)),
        apply("lt", x(J, slot=1, dtype=dt.i32), c(2)),
        apply("or", apply("lt", J, c(2)), apply("lt", c(9), J)),
    ]
    for condition in kept:
        t = template((N,), [(dt.f64, (N,)), (dt.i32, (16,))], Reduce("sum", (16,), (where(condition, x(ROW)),)))
        assert reductions(same_values(t, SPECIAL, np.arange(16, dtype=np.int32) % 4)) == [(16,)]


def test_a_triangle_is_counted_row_by_row(rng):
    """Of where(j <= k, x[i, k], 0) summed over j and k the points j are counted, of each k."""
    t = template((N,), [(dt.f64, (N, 13))], Reduce("sum", (16, 13), (where(apply("le", J, K), x(ROW, K)),)))
    assert reductions(same_values(t, rng.standard_normal((N, 13)))) == [(13,)]


@pytest.mark.parametrize("combiner", ["sum", "max"])
def test_scatters_of_equal_values(rng, combiner):
    at = Read(1, (Axis(1),), dt.i32)
    part = Scatter(combiner, (16, 7), (at,), x(Axis(1)))
    t = Template((N,), ((dt.f64, (7,)), (dt.i32, (7,))), (part,))
    made = same_values(t, rng.standard_normal(7), rng.integers(0, N, 7).astype(np.int32))
    assert [p.extents for p in made.parts] == [(7,)]


def test_odd_powers_keep_their_sign_where_a_float_cannot_hold_the_exponent():
    """2**24 + 1 is no float32; the derivative's exponent, one less, neither of the next."""
    for n in (2**24 + 1, 2**24 + 2):
        f = es.op("y[i] = prod[j](x[i])", extents={"j": n})
        a = np.array([-1.0, 1.0, 0.0, -0.5, -2.0], np.float32)
        even = n % 2 == 0
        np.testing.assert_array_equal(f(a), [1 if even else -1, 1, 0, 0, np.inf if even else -np.inf])
        slope = es.grad(lambda v, f=f: f(v)[:2].sum())(a)
        np.testing.assert_allclose(slope[:2], [-n if even else n, n], rtol=1e-6)


@pytest.mark.parametrize("n", [17, 4093])
def test_compiled_within_the_error_of_the_sum(rng, n):
    """A sum of n equal float32 values is off by n units of rounding at most; so may be what stands for it."""
    a = rng.standard_normal((3, 5)).astype(np.float32)
    formulas = {
        "y[i] = sum[j, k](x[i, k])": n * a.astype(np.float64).sum(1),
        "y[i, k] = mean[j](x[i, k])": a.astype(np.float64),
        "y[i, k] = max[j](x[i, k])": a.astype(np.float64),
        "y[i, k] = argmin[j](x[i, k])": np.zeros((3, 5)),
        "y[i, k] = sum[j](where(j <= 2*i and j > 0, x[i, k], 0))": a.astype(np.float64) * [[0], [2], [4]],
    }
    for formula, expected in formulas.items():
        found = es.op(formula, extents={"j": n})(a)
        size = n * np.abs(a).sum()
        assert np.abs(found - expected).max() <= n * np.finfo(np.float32).eps * size


@pytest.mark.parametrize(
    "formula", ["sum[j](x[i])", "prod[j](x[i])", "mean[j](x[i])*x[i]", "sum[j](where(j <= i, x[i], 0))", "max[j](x[i])"]
)
def test_gradients(rng, formula):
    f = es.op(f"y[i] = {formula}", extents={"j": 7})
    es.check_gradients(f, rng.uniform(0.5, 1.5, 5), order=2)


def test_sums_over_more_points_than_can_be_visited():
    """Each of these would take years point by point."""
    n = 10**15 + 1
    a = np.array([0.5, -2.0])
    for formula, expected in {
        "y[i] = sum[j](x[0]*1.0) + i": 0.5 * n + np.arange(2),
        "y[i] = sum[j](where(j >= 5, x[i], 0))": a * (n - 5),
        "y[i] = mean[j](x[i])": a,
        "y[i] = prod[j](x[i])": [0, -np.inf],
        "y[i] = max[j](x[i])": a,
    }.items():
        f = es.op(formula, extents={"i": 2, "j": n} if "+ i" in formula else {"j": n})
        np.testing.assert_allclose(f(a), expected, rtol=1e-12)
        np.testing.assert_allclose(es.interpret(f)(a), expected, rtol=1e-12)
    total = es.op("y[i] = sum[j](x[i])", extents={"j": n})
    np.testing.assert_allclose(es.grad(lambda v: total(v).sum())(a), np.full(2, float(n)))
    assert es.op("y[i] = sum[j](x[i])", extents={"j": n})(np.array([3, 4])).tolist() == [3 * n, 4 * n]


def test_casts_in_the_body_are_folded(rng):
    body = cast(Read(0, (ROW,), dt.f32), dt.f64)
    t = template((N,), [(dt.f32, (N,))], Reduce("sum", (17,), (body,)))
    made = same_values(t, rng.standard_normal(N).astype(np.float32))
    (part,) = made.parts
    assert isinstance(part.body, Apply) and part.body.fn == "mul"
