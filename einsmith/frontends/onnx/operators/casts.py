"""Conversions between element types, and constants."""

from __future__ import annotations

from typing import Any

import numpy as np

from einsmith.base import dtypes as dt
from einsmith.base.errors import DtypeError
from einsmith.frontends.onnx.evaluate import NodeCall
from einsmith.frontends.onnx.table import enter, onnx
from einsmith.frontends.onnx.types import ELEMENTS, ElementType
from einsmith.ops.common import pointwise
from einsmith.tracing.builder import Value


def to_element(x: Value, to: ElementType, saturate: bool = True) -> Value:
    """Convert a tensor to another type: floats to integers by truncation, integers modulo the type's range.

    saturate: for types of few bits, whether values out of range become the greatest one.
    """
    if to.dtype.is_int and x.dtype.is_float and (to.wrap is not None or to.dtype.bits < 32):
        x = x.astype(dt.i64)
    if to.convert is not None:
        return to.convert(x, saturate).astype(to.dtype)
    y = x.astype(to.dtype)
    return y if to.wrap is None else to.wrap(y)


@onnx("Cast")
def cast(n: NodeCall, x: Value, *, saturate: int = 1) -> Value:
    """x in another type; from floats to integers truncated, to bools x != 0, to float8 the nearest; with saturate,
    values out of range become the largest float8"""
    return to_element(x, n.result(), bool(saturate))


@onnx("CastLike")
def cast_like(n: NodeCall, x: Value, like: Any, *, saturate: int = 1) -> Value:
    """x in the type of another tensor"""
    return to_element(x, n.result(), bool(saturate))


@onnx("BitCast")
def bitcast(n: NodeCall, x: Value) -> Value:
    """the bits of x as another type of the same width"""
    source, to = ELEMENTS[n.type(0)], n.result()
    if source == to:
        return x
    if source.is_float or to.is_float or source.dtype.is_bool or to.dtype.is_bool:
        values = n.known(x)
        if values is not None:
            return n.context.constant(to.hold(source.release(values).view(to.numpy)), to.dtype)
        raise DtypeError(f"reinterpreting the bits of {source.name} as {to.name} is not supported")
    low, high = np.iinfo(to.numpy).min, np.iinfo(to.numpy).max
    size = high - low + 1
    return x if size.bit_length() > 63 else pointwise(x.astype(dt.i64), lambda e: (e - low) % size + low)


@onnx("Constant")
def constant(n: NodeCall) -> Any:
    """the tensor in the attributes"""
    for name, value in n.node.attributes.items():
        if name in ("value", "sparse_value"):
            return n.context.constant(n.attr(name), n.dtype)
        if name in ("value_float", "value_floats", "value_int", "value_ints"):
            return n.constant(np.asarray(value), n.dtype)
    raise DtypeError("constants of strings are not supported")


enter("Identity", "x", lambda x: x, "casts")


def as_float(x: Value) -> Value:
    """Convert a tensor to floats that hold its values: integers above 16 bits to float64, others to float32."""
    return x if x.dtype.is_float else x.astype(dt.f32 if x.dtype.bits <= 16 else dt.f64)
