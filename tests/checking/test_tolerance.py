"""The error analysis where a decision is uncertain."""

from __future__ import annotations

import numpy as np
import pytest

from einsmith.base import dtypes as dt
from einsmith.checking.tolerance import template_errors
from einsmith.ir.functions import FUNCTIONS
from einsmith.ir.nodes import Axis, Const, Piece, Read, Reduce, Scatter, Template, apply, cast


def test_uncertain_scatter_targets_widen_the_bound():
    """y[i, k[i]] += v[i], k[1] being 1 or 2."""
    place = cast(apply("floor", Read(0, (Axis(0),), dt.f32)), dt.i32)
    value = Read(1, (Axis(0),), dt.f32)
    t = Template((2, 3), ((dt.f32, (2,)), (dt.f32, (2,))), (Scatter("sum", (2,), (Axis(0), place), value),))
    k, e = np.array([0.5, 1.9]), np.array([0.1, 0.2])
    ((y, error),), _ = template_errors(t, [(k, e), (np.array([3.0, 4.0]), np.zeros(2))])
    np.testing.assert_array_equal(y, [[3, 0, 0], [0, 4, 0]])
    assert np.isfinite(error[0]).all() and np.isinf(error[1]).all()


def test_a_value_near_the_middle_of_two_halves_may_be_either():
    body = cast(Read(0, (Axis(0),), dt.f32), dt.f16)
    t = Template((2,), ((dt.f32, (2,)),), (Piece((0,), (1,), (2,), body),))
    middle = 1 + 2.0**-11
    ((y, error),), _ = template_errors(t, [(np.array([middle, 1.0]), np.array([1e-6, 1e-6]))])
    np.testing.assert_array_equal(y, [1, 1])
    assert error[0] >= dt.f16.eps and error[1] < dt.f16.eps / 100


UNARY = ["neg", "exp", "log", "tanh", "sigmoid", "erf", "sin", "cos", "sqrt", "rsqrt", "abs", "sign", "floor", "round"]
BINARY = ["add", "sub", "mul", "div", "floordiv", "mod", "min", "max", "pow"]


@pytest.mark.parametrize("fn", UNARY + BINARY)
def test_no_argument_within_its_error_leads_farther(fn, rng):
    """At zeros, poles and waves, and from arguments of which nothing is known."""
    arity, n = (1 if fn in UNARY else 2), 400
    reads = [Read(i, (Axis(0),), dt.f32) for i in range(arity)]
    t = Template((n,), ((dt.f32, (n,)),) * arity, (Piece((0,), (1,), (n,), apply(fn, *reads)),))
    values = [np.round(rng.standard_normal(n) * 3, 1) for _ in range(arity)]
    near = [np.where(rng.random(n) < 0.3, 0.0, 10.0 ** rng.integers(-4, 2, n)) for _ in range(arity)]
    unknown = [np.where(rng.random(n) < 0.1, np.inf, e) for e in near]
    ((value, bound),), _ = template_errors(t, list(zip(values, unknown, strict=True)))
    numpy = FUNCTIONS[fn].numpy
    with np.errstate(all="ignore"):
        for _ in range(300):
            reach = [np.where(np.isinf(e), 1e6 * rng.standard_normal(n), e) for e in unknown]
            moved = numpy(*(v + rng.uniform(-1, 1, n) * e for v, e in zip(values, reach, strict=True)))
            away = np.abs(moved - value)
            worse = np.where(np.isnan(away), np.isfinite(value) & (bound < np.inf), away > bound * (1 + 1e-12))
            where = int(np.argmax(worse))
            assert not worse.any(), ([v[where] for v in values], [e[where] for e in unknown], bound[where])


def test_division_by_a_possible_zero_is_unbounded():
    """g/sqrt(g*g), g being a sum that cancels: the rule of Adam on a bias before a batch norm."""
    g = Read(0, (Axis(0),), dt.f32)
    body = apply("div", g, apply("sqrt", apply("mul", g, g)))
    t = Template((2,), ((dt.f32, (2,)),), (Piece((0,), (1,), (2,), body),))
    ((_, error),), _ = template_errors(t, [(np.array([1e-9, 1.0]), np.array([1e-5, 1e-9]))])
    assert np.isinf(error[0]) and error[1] < 1e-5


def test_factors_outside_a_sum_may_turn_infinity_into_nan():
    """sum[k](x[i,k]*c[i]) is c[i]*sum[k](x[i,k]) but where c is infinite; sum[k](x[i,k]*w[k]) is itself."""
    values, infinite = np.array([[1.0, 2.0], [0.0, -4.0]]), np.array([np.inf, np.inf])
    x, t = Read(0, (Axis(0), Axis(1)), dt.f32), ((dt.f32, (2, 2)), (dt.f32, (2,)))
    found = []
    for axis in (0, 1):
        sums = Reduce("sum", (2,), (apply("mul", x, Read(1, (Axis(axis),), dt.f32)),))
        pairs, _ = template_errors(Template((2,), t, (Piece((0,), (1,), (2,), sums),)), [
            (values, np.zeros((2, 2))), (infinite, np.zeros(2))
        ])  # fmt: skip
        found += pairs
    (loose, unsure), (strict, sure) = found
    assert np.isnan(loose[1]) and np.isnan(strict[1]) and np.isinf(unsure[1]) and not np.isinf(sure[1])
    # So is what is made of it, be it a choice.
    chosen = cast(apply("lt", Read(0, (Axis(0),), dt.f32), Const(0.0, dt.f32)), dt.f32)
    t = Template((2,), ((dt.f32, (2,)),), (Piece((0,), (1,), (2,), chosen),))
    for error, expected in ((unsure, np.inf), (sure, 0.0)):
        ((_, made),), _ = template_errors(t, [(np.array([1.0, np.nan]), np.array([0.0, error[1]]))])
        assert made[0] < 1e-6 and (made[1] >= 1) == (expected > 0)
