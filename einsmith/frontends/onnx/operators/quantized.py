"""Quantized operators: integers q represent floats (q - zero point)*scale.

Integers are multiplied and added exactly where the standard uses integers. Results are rounded once, to the nearest,
ties to even. Integers have no derivative.
"""

from __future__ import annotations

from typing import Any

from einsmith import ops as F
from einsmith.base import dtypes as dt
from einsmith.base.errors import ShapeError
from einsmith.frontends.onnx.evaluate import NodeCall
from einsmith.frontends.onnx.operators.axes import axis
from einsmith.frontends.onnx.operators.casts import to_element
from einsmith.frontends.onnx.operators.contractions import convolve
from einsmith.frontends.onnx.table import onnx
from einsmith.frontends.onnx.types import ELEMENTS, ElementType
from einsmith.lang import builder
from einsmith.lang.builder import Value
from einsmith.quantization.decoded import Decoded


def _broadcast(n: NodeCall, s: Value, x: Value) -> Value:
    """Broadcast scales or zero points to x: one for all, one for each place of an axis, or one for each block."""
    if not s.ndim or s.size == 1 and s.ndim <= 1:
        return s.reshape(())
    d, block = axis(n.attr("axis", 1), x.ndim), n.attr("block_size", 0)
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
def quantize(n: NodeCall, x: Value, scale: Value, zero: Value | None = None) -> Value:
    """round(x/scale) + zero point, saturated to the type; for float8, the float8 nearest to x/scale"""
    to = n.result()
    s = _broadcast(n, scale, x)
    precision = n.attr("precision", 0)
    wide = {
        0: dt.promote(dt.f32, x.dtype) if x.dtype.is_float else dt.f32,
        1: dt.f32,
        10: dt.f16,
        11: dt.f64,
        16: dt.bf16,
    }[precision]
    if not precision and scale.dtype is dt.f16:
        wide = dt.f16
    ratio = x.astype(wide) / s.astype(wide)
    if to.is_float:
        return to_element(ratio.astype(dt.f32), to, bool(n.attr("saturate", 1)))
    offset = None if zero is None else _broadcast(n, zero, x)
    return _quantize(ratio.astype(wide.arithmetic), offset, to)


@onnx("DequantizeLinear")
def dequantize(n: NodeCall, x: Value, scale: Value, zero: Value | None = None) -> Value:
    """(x - zero point)*scale"""
    if x.dtype.is_float:  # float8, whose zero point is 0
        return (x * _broadcast(n, scale, x).astype(dt.f32)).astype(n.dtype)
    whole = x.astype(dt.i64 if x.dtype.bits >= 32 else dt.i32)
    if zero is not None:
        whole = whole - _broadcast(n, zero, x).astype(whole.dtype)
    out = (whole.astype(dt.f32) * _broadcast(n, scale, x).astype(dt.f32)).astype(n.dtype)
    if x.dtype in (dt.u8, dt.i8) and not n.attr("block_size", 0):
        _note_decoded(n, out, x, scale, zero)
    return out


def _note_decoded(n: NodeCall, out: Value, x: Value, scale: Value, zero: Value | None) -> None:
    """Record that a result stands for integers, which products of such results multiply in its place."""
    known = None if zero is None else n.known(zero)
    if known is not None and not known.any():
        zero = None
    if zero is None or zero.size == 1:
        along = axis(n.attr("axis", 1), x.ndim) if scale.size > 1 else None
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


def _subtract_zero_point(x: Value, zero: Value | None, shape: Any = None) -> Value:
    """Return x minus its zero point, as int32."""
    y = x.astype(dt.i32)
    if zero is None:
        return y
    return y - (
        zero.reshape(shape) if shape is not None and zero.size > 1 else zero.reshape(()) if zero.size == 1 else zero
    ).astype(dt.i32)


def _columns(v: Value | None, b: Value) -> Any:
    """Return the shape that broadcasts scales or zero points v along b's columns; None if v needs none."""
    return None if v is None or v.ndim > 1 else (*(1,) * (b.ndim - 1), v.size)


def _rows(v: Value | None, a: Value) -> Any:
    return None if v is None or v.ndim > 1 else (*(1,) * (a.ndim - 2), v.size, 1)


@onnx("MatMulInteger")
def matmul_integer(n: NodeCall, a: Value, b: Value, za: Value | None = None, zb: Value | None = None) -> Value:
    """sum[k]((a[.., i, k] - za)*(b[.., k, j] - zb)) in int32"""
    return builder.matmul(
        _subtract_zero_point(a, za, _rows(za, a)), _subtract_zero_point(b, zb, _columns(zb, b))
    ).astype(dt.i32)


@onnx("ConvInteger")
def conv_integer(n: NodeCall, x: Value, w: Value, zx: Value | None = None, zw: Value | None = None) -> Value:
    """the convolution of x - zx and w - zw in int32; padding is zx"""
    return convolve(
        n, _subtract_zero_point(x, zx), _subtract_zero_point(w, zw, (-1, *(1,) * (w.ndim - 1))), None
    ).astype(dt.i32)


def _requantize(y: Value, sa: Value, sb: Value, sy: Value, zero: Value | None, to: ElementType) -> Value:
    """Convert integer sums to integers of another scale."""
    factor = (sa.astype(dt.f32) * sb.astype(dt.f32) / sy.astype(dt.f32)).astype(dt.f32)
    return _quantize(y.astype(dt.f32) * factor, zero, to)


@onnx("QLinearMatMul")
def qlinear_matmul(
    n: NodeCall, a: Value, sa: Value, za: Value, b: Value, sb: Value, zb: Value, sy: Value, zy: Value
) -> Value:
    """round(sum[k]((a - za)*(b - zb))*sa*sb/sy) + zy, saturated to the type"""
    y = builder.matmul(_subtract_zero_point(a, za, _rows(za, a)), _subtract_zero_point(b, zb, _columns(zb, b)))

    def shaped(v: Value, shape: Any) -> Value:
        return v.reshape(()) if v.size == 1 else v.reshape(shape) if shape is not None else v

    return _requantize(
        y,
        shaped(sa, _rows(sa, a)),
        shaped(sb, _columns(sb, b)),
        shaped(sy, _rows(sy, a)),
        shaped(zy, _rows(zy, a)),
        n.result(),
    )


@onnx("QLinearConv")
def qlinear_conv(
    n: NodeCall,
    x: Value,
    sx: Value,
    zx: Value,
    w: Value,
    sw: Value,
    zw: Value,
    sy: Value,
    zy: Value,
    bias: Value | None = None,
) -> Value:
    """round((the convolution of x - zx and w - zw, plus bias)*sx*sw/sy) + zy, saturated to the type"""
    y = convolve(n, _subtract_zero_point(x, zx), _subtract_zero_point(w, zw, (-1, *(1,) * (w.ndim - 1))), bias)
    channels = (1, -1, *(1,) * (w.ndim - 2))
    return _requantize(
        y,
        sx.reshape(()),
        sw.reshape(()) if sw.size == 1 else sw.reshape(channels),
        sy.reshape(()),
        zy.reshape(()),
        n.result(),
    )
