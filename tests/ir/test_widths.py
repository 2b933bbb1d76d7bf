"""Integers over axes lie in their types: a narrow one is refused, the simplifier widens it, and nothing else."""

import numpy as np
import pytest

from einsmith.base import dtypes as dt
from einsmith.base.errors import VerifyError
from einsmith.ir.analysis.widths import widen
from einsmith.ir.nodes import Axis, Const, Read, Reduce, apply, cast, template
from einsmith.ir.rewrite.simplify import simplify_template
from einsmith.ir.template_evaluator import evaluate_template
from einsmith.ir.verify import verify_template


def number(value, dtype=dt.i32):
    return Const(value, dtype)


AXIS, SQUARE = Axis(0), apply("mul", Axis(0), Axis(0))
NARROW = {
    "an index": Read(0, (apply("floordiv", SQUARE, number(100_000)),), dt.f32),
    "a remainder": Read(0, (apply("mod", apply("mul", number(65_537), AXIS), number(7)),), dt.f32),
    "a value": cast(SQUARE, dt.f64),
    "a comparison": cast(apply("lt", SQUARE, number(5)), dt.f32),
    "an element beside it": cast(apply("max", SQUARE, number(3)), dt.f32),
}


@pytest.mark.parametrize("name", NARROW)
def test_a_planted_narrow_type_is_refused_and_widened(name, rng):
    t = template((46_342,), [(dt.f32, (30_000,))], NARROW[name])
    with pytest.raises(VerifyError, match="exceeds its type i32"):
        verify_template(t)
    x = rng.standard_normal(30_000).astype(np.float32)
    for new in (widen(t), simplify_template(t)):
        verify_template(new)
        np.testing.assert_array_equal(evaluate_template(new, [x])[0], evaluate_template(t, [x])[0])


@pytest.mark.parametrize("name", NARROW)
def test_narrow_values_stay_unchanged(name):
    extent = 30_000 if name == "a remainder" else 46_341
    t = template((extent,), [(dt.f32, (30_000,))], NARROW[name])
    verify_template(t)
    assert widen(t) is t


def test_guards_count():
    guard = apply("lt", AXIS, number(40_000))
    body = apply("where", guard, cast(SQUARE, dt.f32), Const(0.0, dt.f32))
    verify_template(template((60_000,), [], body))


def test_positions_that_leave_int32_are_refused():
    with pytest.raises(VerifyError, match="exceeds int32"):
        verify_template(template((), [], Reduce("argmax", (65_536, 65_536), (cast(AXIS, dt.f32),))))
