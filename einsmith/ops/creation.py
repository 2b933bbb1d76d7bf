"""Create tensors of given numbers, under torch's names and argument orders; float32 unless a type is given."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any

from einsmith.base import dtypes as dt
from einsmith.base.arguments import Size, show
from einsmith.base.errors import ArgumentError
from einsmith.lang import builder
from einsmith.lang.builder import Value
from einsmith.ops.common import tensor
from einsmith.ops.operator import operator


def _shape(name: str, size: tuple[Any, ...]) -> tuple[int, ...]:
    listed = size[0] if len(size) == 1 and isinstance(size[0], (list, tuple)) else size
    try:
        shape = tuple(index(n) for n in listed)
    except TypeError:
        shape = (-1,)
    if any(not 0 <= n < 2**63 for n in shape):
        raise ArgumentError(f"{name}: size={show(tuple(listed))} must be integers of at least 0")
    return shape


@operator()
def full(size: Sequence[int], fill_value: float | int | bool, *, dtype: Any = None) -> Value:
    """Return a tensor of one number; its type is the number's, float32, int64 or bool, where none is given."""
    usual = dt.bool_ if isinstance(fill_value, bool) else dt.i64 if isinstance(fill_value, int) else dt.f32
    return builder.full(_shape("full", (size,)), fill_value, usual if dtype is None else dt.dtype_of(dtype))


@operator()
def zeros(*size: Any, dtype: Any = None) -> Value:
    """Return a tensor of zeros."""
    return builder.full(_shape("zeros", size), 0, dt.f32 if dtype is None else dt.dtype_of(dtype))


@operator()
def ones(*size: Any, dtype: Any = None) -> Value:
    """Return a tensor of ones."""
    return builder.full(_shape("ones", size), 1, dt.f32 if dtype is None else dt.dtype_of(dtype))


@operator()
def full_like(input: Any, fill_value: float | int | bool, *, dtype: Any = None) -> Value:
    """Return a tensor of one number in input's shape and type, or another type."""
    x = tensor(input, "full_like", "input")
    return builder.full(x.shape, fill_value, x.dtype if dtype is None else dt.dtype_of(dtype))


@operator()
def zeros_like(input: Any, *, dtype: Any = None) -> Value:
    """Return zeros in input's shape and type, or another type."""
    return full_like(input, 0, dtype=dtype)


@operator()
def ones_like(input: Any, *, dtype: Any = None) -> Value:
    """Return ones in input's shape and type, or another type."""
    return full_like(input, 1, dtype=dtype)


@operator()
def eye(n: Size, m: Size | None = None, *, dtype: Any = None) -> Value:
    """Return the n by m matrix of ones on the diagonal and zeros elsewhere; square where m is not given."""
    kind = dt.f32 if dtype is None else dt.dtype_of(dtype)
    return builder.compute((n, n if m is None else m), lambda i, j: builder.cast(builder.where(i == j, 1.0, 0.0), kind))


@operator()
def linspace(start: float, end: float, steps: Size, *, dtype: Any = None) -> Value:
    """Return `steps` numbers at equal distances from `start` to `end`, both among them."""
    kind = dt.f32 if dtype is None else dt.dtype_of(dtype)
    step = (end - start) / max(1, steps - 1)

    def body(i: Any) -> Any:  # computed from both ends, so that both are exact
        k = builder.cast(i, dt.f64)
        return builder.cast(builder.where(i < (steps + 1) // 2, start + k * step, end - (steps - 1 - k) * step), kind)

    return builder.compute((steps,), body)
