"""What a pointwise body reads."""

from __future__ import annotations

import pytest

from einsmith.base import dtypes as dt
from einsmith.ir.analysis.pointwise import is_identity
from einsmith.ir.nodes import Axis, Const, Read, apply


@pytest.mark.parametrize(
    ("first", "shape", "tensor", "is_own"),
    [
        (Const(0, dt.i32), (1, 4), (1, 4), True),
        (Axis(0), (1, 4), (1, 4), True),
        (Axis(0), (3, 4), (3, 4), True),
        (Const(1, dt.i32), (1, 4), (2, 4), False),  # a row of a longer tensor
        (Const(0, dt.i32), (1, 4), (2, 4), False),
        (Axis(0), (3, 4), (5, 4), False),
        (Const(0, dt.i32), (3, 4), (3, 4), False),
        (apply("add", Axis(0), Const(1, dt.i32)), (3, 4), (3, 4), False),
    ],
)
def test_a_read_at_the_own_position_of_a_tensor_of_the_same_shape(first, shape, tensor, is_own):
    assert is_identity(Read(0, (first, Axis(1)), dt.f32), shape, tensor) is is_own
