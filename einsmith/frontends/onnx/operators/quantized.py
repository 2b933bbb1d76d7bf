"""Quantized operators: integers q represent floats (q - zero point)*scale.

Integers are multiplied and added exactly where the standard uses integers. Results are rounded once, to the nearest,
ties to even. Integers have no derivative.
"""

from __future__ import annotations

from typing import Any

from einsmith import ops as F
from einsmith.base import dtypes as dt
from einsmith.base.errors import ShapeError
from einsmith.frontends.onnx.binding import resolve_axis
from einsmith.frontends.onnx.evaluate import NodeCall
from einsmith.frontends.onnx.operators.casts import to_element
from einsmith.frontends.onnx.operators.contractions import convolve
from einsmith.frontends.onnx.table import onnx
from einsmith.frontends.onnx.tensors import type_name
from einsmith.frontends.onnx.types import ELEMENTS, ElementType
from einsmith.quantization.decoded import Decoded
from einsmith.tracing import builder
from einsmith.tracing.builder import Value


def _broadcast(n: NodeCall, s: Value, x: Value) -> Value:
    """Broadcast scales or zero points to x: one for all, one for each place of an axis, or one for each block."""
    if not s.ndim or s.size == 1 and s.ndim <= 1:
        return s.reshape(())
    d, block = resolve_axis(n.attr("axis", 1), x.ndim), n.attr("block_size", 0)
    if s.ndim == 1 and not block:
        if s.shape[0] != x.shape[d]:
            raise ShapeError(f"{s.shape[0]} scales or zero points for axis {d} of shape {x.shape}")
        return s.reshape(tuple(x.shape[d] if k == d else 1 for k in range(x.ndim)))
    if not block:
        return s
    return builder.compute(x.shape, lambda *i: s[(*i[:d], i[d] // block, *i[d + 1 :])])


def limits(to: ElementType) -> tuple[int, int]:
    """Return the least and the greatest integer of a type."""
    bits = int(to.name.removeprefix("u").removeprefix("int"))
    return (0, 2**bits - 1) if to.name.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _quantize(ratio: Value, zero: Value | None, to: ElementType) -> Value:
    """Round ratio + zero to the nearest integers, clamped to the type's range."""
    low, high = limits(to)
    whole = F.round(ratio)
    if zero is not None:
        whole = whole + zero.astype(whole.dtype)
    return builder.minimum(builder.maximum(whole, float(low)), float(high)).astype(dt.i32).astype(to.dtype)


@onnx("QuantizeLinear")
def quantize(
    n: NodeCall, x: Value, scale: Value, zero: Value | None = None, *, precision: int = 0, saturate: int = 1
) -> Value:
    """round(x/scale) + zero point, saturated to the type; for float8, the float8 nearest to x/scale"""
    to = n.result()
    if precision:
        wide = ELEMENTS[type_name(precision)].dtype
    elif scale.dtype is dt.f16:
        wide = dt.f16
    else:
        wide = dt.promote(dt.f32, x.dtype) if x.dtype.is_float else dt.f32
    ratio = x.astype(wide) / _broadcast(n, scale, x).astype(wide)
    if to.is_float:
        return to_element(ratio.astype(dt.f32), to, bool(saturate))
    offset = None if zero is None else _broadcast(n, zero, x)
    return _quantize(ratio.astype(wide.arithmetic), offset, to)


@onnx("DequantizeLinear")
def dequantize(n: NodeCall, x: Value, scale: Value, zero: Value | None = None) -> Value:
    """(x - zero point)*scale"""
    factor = _broadcast(n, scale, x).astype(dt.f32)
    if x.dtype.is_float:  # float8, whose zero point is 0
        return x * factor
    whole = x.astype(dt.i64 if x.dtype.bits >= 32 else dt.i32)
    if zero is not None:
        whole = whole - _broadcast(n, zero, x).astype(whole.dtype)
    out = (whole.astype(dt.f32) * factor).astype(n.dtype)
    if x.dtype in (dt.u8, dt.i8) and not n.attr("block_size", 0):
        _note_decoded(n, out, x, scale, zero)
    return out


def _note_decoded(n: NodeCall, out: Value, x: Value, scale: Value, zero: Value | None) -> None:
    """Record that a result represents integers, so that products of such results multiply the integers instead."""
    known = None if zero is None else n.known(zero)
    if known is not None and not known.any():
        zero = None
    if zero is None or zero.size == 1:
        along = resolve_axis(n.attr("axis", 1), x.ndim) if scale.size > 1 else None
        decoded = Decoded(x.tensor, None if zero is None else zero.tensor, scale.tensor, along)
        n.context.decoded[out.tensor] = decoded


@onnx("DynamicQuantizeLinear")
def dynamic_quantize(n: NodeCall, x: Value) -> tuple[Value, Value, Value]:
    """(round(x/scale) + zero, scale, zero) with scale = (max(x, 0) - min(x, 0))/255, zero = round(-min(x, 0)/scale)"""
    flat = builder.stop_gradient(x.reshape((-1,)))
    top, low = builder.maximum(F.amax(flat, 0), 0.0), builder.minimum(F.amin(flat, 0), 0.0)
    scale = (builder.where(top == low, 1.0, top - low) / 255.0).astype(dt.f32)
    zero = builder.minimum(builder.maximum(F.round(0.0 - low / scale), 0.0), 255.0)
    return _quantize(x / scale, zero, ELEMENTS["uint8"]), scale, zero.astype(dt.i32).astype(dt.u8)


def _subtract_zero_point(x: Value, zero: Value | None, places: tuple[int, ...] = ()) -> Value:
    """Return x minus its zero point, as int32. places: as in `_spread`."""
    y = x.astype(dt.i32)
    return y if zero is None else y - _spread(zero, places).astype(dt.i32)


def _spread(v: Value, places: tuple[int, ...]) -> Value:
    """Return scales or zero points for broadcasting: one for all, a vector in the shape `places`, or themselves."""
    if v.size == 1:
        return v.reshape(())
    return v.reshape(places) if v.ndim <= 1 and places else v


_ROWS, _COLUMNS = (-1, 1), (-1,)
"""Where a vector of scales or zero points of a product's operands runs."""


def _filters(w: Value) -> tuple[int, ...]:
    return (-1, *(1,) * (w.ndim - 1))


@onnx("MatMulInteger")
def matmul_integer(a: Value, b: Value, za: Value | None = None, zb: Value | None = None) -> Value:
    """sum[k]((a[.., i, k] - za)*(b[.., k, j] - zb)) in int32"""
    return builder.matmul(_subtract_zero_point(a, za, _ROWS), _subtract_zero_point(b, zb, _COLUMNS))


@onnx("ConvInteger")
def conv_integer(n: NodeCall, x: Value, w: Value, zx: Value | None = None, zw: Value | None = None) -> Value:
    """the convolution of x - zx and w - zw in int32; padding is zx"""
    return convolve(n, _subtract_zero_point(x, zx), _subtract_zero_point(w, zw, _filters(w)), None)


def _requantize(y: Value, sa: Value, sb: Value, sy: Value, zero: Value | None, to: ElementType) -> Value:
    """Convert integer sums to integers of another scale."""
    factor = (sa.astype(dt.f32) * sb.astype(dt.f32) / sy.astype(dt.f32)).astype(dt.f32)
    return _quantize(y.astype(dt.f32) * factor, zero, to)


@onnx("QLinearMatMul")
def qlinear_matmul(
    n: NodeCall, a: Value, sa: Value, za: Value, b: Value, sb: Value, zb: Value, sy: Value, zy: Value
) -> Value:
    """round(sum[k]((a - za)*(b - zb))*sa*sb/sy) + zy, saturated to the type"""
    y = builder.matmul(_subtract_zero_point(a, za, _ROWS), _subtract_zero_point(b, zb, _COLUMNS))
    left, result, zero = (_spread(v, _ROWS) for v in (sa, sy, zy))
    return _requantize(y, left, _spread(sb, _COLUMNS), result, zero, n.result())


@onnx("QLinearConv")
def qlinear_conv(
    n: NodeCall, x: Value, sx: Value, zx: Value, w: Value, sw: Value, zw: Value, sy: Value, zy: Value, bias: Any = None
) -> Value:
    """round((the convolution of x - zx and w - zw, plus bias)*sx*sw/sy) + zy, saturated to the type"""
    y = convolve(n, _subtract_zero_point(x, zx), _subtract_zero_point(w, zw, _filters(w)), bias)
    channels = _spread(sw, (-1, *(1,) * (w.ndim - 2)))
    return _requantize(y, sx.reshape(()), channels, sy.reshape(()), zy.reshape(()), n.result())
