"""The error analysis where a decision is uncertain."""

from __future__ import annotations

import numpy as np

from einsmith import dtypes as dt
from einsmith.check.tolerance import template_errors
from einsmith.expr.nodes import Axis, Piece, Read, Scatter, Template, apply, cast


def test_what_may_be_added_elsewhere_is_uncertain_there():
    """y[i, k[i]] += v[i], k[1] being 1 or 2."""
    place = cast(apply("floor", Read(0, (Axis(0),), dt.f32)), dt.i32)
    value = Read(1, (Axis(0),), dt.f32)
    t = Template((2, 3), ((dt.f32, (2,)), (dt.f32, (2,))), (Scatter((2,), (Axis(0), place), value),))
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
