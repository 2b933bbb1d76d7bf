"""Create tensors of given numbers, under torch's names and argument orders; float32 unless a type is given.

`device` may name the CPU, where all tensors are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from einsmith.base import dtypes as dt
from einsmith.base.arguments import Size
from einsmith.base.arrays import to_array
from einsmith.ops.common import extents, tensor
from einsmith.ops.operator import operator
from einsmith.tracing import builder
from einsmith.tracing.builder import Value
from einsmith.tracing.protocol import is_array_like
from einsmith.tracing.torch_types import check_device


@operator()
def full(size: Sequence[int], fill_value: float | int | bool, *, dtype: Any = None, device: Any = None) -> Value:
    """Return a tensor of one number; its type is the number's, float32, int64 or bool, where none is given."""
    check_device("full", device)
    usual = dt.bool_ if isinstance(fill_value, bool) else dt.i64 if isinstance(fill_value, int) else dt.f32
    return builder.full(extents("full", (size,)), fill_value, usual if dtype is None else dt.dtype_of(dtype))


@operator()
def zeros(*size: Any, dtype: Any = None, device: Any = None) -> Value:
    """Return a tensor of zeros."""
    check_device("zeros", device)
    return builder.full(extents("zeros", size), 0, dt.f32 if dtype is None else dt.dtype_of(dtype))


@operator()
def ones(*size: Any, dtype: Any = None, device: Any = None) -> Value:
    """Return a tensor of ones."""
    check_device("ones", device)
    return builder.full(extents("ones", size), 1, dt.f32 if dtype is None else dt.dtype_of(dtype))


@operator()
def full_like(input: Any, fill_value: float | int | bool, *, dtype: Any = None, device: Any = None) -> Value:
    """Return a tensor of one number in input's shape and type, or another type."""
    check_device("full_like", device)
    x = tensor(input, "full_like", "input")
    return builder.full(x.shape, fill_value, x.dtype if dtype is None else dt.dtype_of(dtype))


@operator()
def zeros_like(input: Any, *, dtype: Any = None, device: Any = None) -> Value:
    """Return zeros in input's shape and type, or another type."""
    return full_like(input, 0, dtype=dtype, device=device)


@operator()
def ones_like(input: Any, *, dtype: Any = None, device: Any = None) -> Value:
    """Return ones in input's shape and type, or another type."""
    return full_like(input, 1, dtype=dtype, device=device)


@operator()
def eye(n: Size, m: Size | None = None, *, dtype: Any = None, device: Any = None) -> Value:
    """Return the n by m matrix of ones on the diagonal and zeros elsewhere; square where m is not given."""
    check_device("eye", device)
    kind = dt.f32 if dtype is None else dt.dtype_of(dtype)
    return builder.compute((n, n if m is None else m), lambda i, j: builder.cast(builder.where(i == j, 1.0, 0.0), kind))


@operator()
def linspace(start: float, end: float, steps: Size, *, dtype: Any = None, device: Any = None) -> Value:
    """Return `steps` numbers at equal distances from `start` to `end`, both among them."""
    check_device("linspace", device)
    kind = dt.f32 if dtype is None else dt.dtype_of(dtype)
    step = (end - start) / max(1, steps - 1)

    def body(i: Any) -> Any:  # computed from both ends, so that both are exact
        k = builder.cast(i, dt.f64)
        return builder.cast(builder.where(i < (steps + 1) // 2, start + k * step, end - (steps - 1 - k) * step), kind)

    return builder.compute((steps,), body)


@operator()
def as_tensor(data: Any, dtype: Any = None, device: Any = None) -> Value:
    """Return numbers, nested lists of numbers, or an array as a tensor; Python's floats give float32, as in torch."""
    check_device("as_tensor", device)
    plain = not (isinstance(data, Value) or is_array_like(data)) or isinstance(data, float)
    x = (
        builder.as_value(to_array(data, "as_tensor: 'data'"), "as_tensor: 'data'")
        if plain
        else tensor(data, "as_tensor", "data")
    )
    usual = dt.f32 if plain and x.dtype.is_float else x.dtype
    return x.astype(usual if dtype is None else dtype)
