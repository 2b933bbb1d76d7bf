"""Tensors of constants and ranges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from einsmith import ops as F
from einsmith.base import dtypes as dt
from einsmith.base.dtypes import DType
from einsmith.frontends.aten.promotion import convert, default_float, type_of
from einsmith.frontends.aten.table import aten, enter
from einsmith.tracing import builder
from einsmith.tracing.builder import Value


@aten("full.default")
def full(size: Sequence[int], value: Any, dtype: DType | None = None) -> Value:
    """a constant"""
    dtype = dtype or type_of(value)
    return builder.full(tuple(size), convert(value, dtype), dtype)


@aten("full_like.default")
def full_like(x: Value, value: Any, dtype: DType | None = None) -> Value:
    """a constant, in the shape of x"""
    return full(x.shape, value, dtype or x.dtype)


@aten("scalar_tensor.default")
def scalar_tensor(value: Any, dtype: DType | None = None) -> Value:
    """a number as a 0-d tensor"""
    return full((), value, dtype or type_of(float(value)))


_NOTHING = "0, for uninitialized tensors"
enter(
    "_efficientzerotensor.default empty.memory_format",
    _NOTHING,
    lambda size, dtype=None: full(size, 0, dtype or default_float()),
)
enter("empty_strided.default", _NOTHING, lambda size, stride, dtype=None: full(size, 0, dtype or default_float()))
enter("empty_like.default", _NOTHING, lambda x, dtype=None: full(x.shape, 0, dtype or x.dtype))
enter("new_empty.default", _NOTHING, lambda x, size, dtype=None: full(size, 0, dtype or x.dtype))
enter("new_empty_strided.default", _NOTHING, lambda x, size, stride, dtype=None: full(size, 0, dtype or x.dtype))


@aten("arange.start_step")
def arange(start: float, end: float, step: float = 1, dtype: DType | None = None) -> Value:
    """start + step*i"""
    floats = any(isinstance(v, float) for v in (start, end, step))
    return F.arange(start, end, step, dtype=dtype or type_of(1.0 if floats else 1))


@aten("linspace.default linspace.Tensor_Tensor linspace.Tensor_Scalar linspace.Scalar_Tensor")
def linspace(start: Any, end: Any, steps: int, dtype: DType | None = None) -> Value:
    """start + step*i in the first half, end - step*(steps - 1 - i) in the second"""
    kind = dtype or default_float()
    exact = kind if kind.is_float else dt.f64
    numbers = (v if isinstance(v, Value) else builder.full((), float(v), dt.f64) for v in (start, end))
    first, last = (v.astype(kind).astype(exact) for v in numbers)
    if steps == 0:
        return builder.full((0,), 0, kind)
    step = (last - first) / float(max(steps - 1, 1))
    i = F.arange(steps)
    rise, fall = i.astype(exact), (steps - 1 - i).astype(exact)
    return builder.where((i < steps // 2) | (steps == 1), first + step * rise, last - step * fall).astype(kind)
