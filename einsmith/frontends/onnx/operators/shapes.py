"""Shapes, constant tensors, and selections by values that are known during compilation."""

from __future__ import annotations

from math import ceil, prod
from typing import Any

import numpy as np

from einsmith import ops as F
from einsmith.base import dtypes as dt
from einsmith.base.dtypes import DType
from einsmith.base.errors import ShapeError
from einsmith.base.symbolic import count_steps
from einsmith.frontends.onnx.binding import Axis, Extents, Known
from einsmith.frontends.onnx.evaluate import NodeCall
from einsmith.frontends.onnx.table import enter, onnx
from einsmith.tracing import builder
from einsmith.tracing.builder import Value

enter("Size", "number of elements of x", lambda n, x: n.extents((prod(x.shape),)).reshape(()), "shapes")


@onnx("Shape")
def shape(n: NodeCall, x: Value, *, start: int = 0, end: int | None = None) -> Value:
    """the extents of dimensions start to end of x"""
    return n.extents(x.shape[start:end])


@onnx("ConstantOfShape")
def constant_of_shape(n: NodeCall, shape: Extents, *, value: Any = None) -> Value:
    """a constant tensor"""
    if value is None:
        return builder.full(shape, 0.0, dt.f32)
    if value.dtype.names:  # bfloat16
        return builder.broadcast_to(n.context.constant(value.reshape(()), n.dtype), shape)
    return builder.full(shape, value.reshape(-1)[0].item(), n.dtype)


@onnx("EyeLike")
def eye_like(x: Value, *, k: int = 0) -> Value:
    """where(j - i == k, 1, 0) in the shape of x"""
    return builder.compute(x.shape, lambda i, j: builder.where(j - i == k, 1, 0))


@onnx("Range", static=(0, 1, 2))
def range_(n: NodeCall, start: Value, limit: Value, delta: Value) -> Value:
    """start + i*delta, up to but without limit"""
    if start.dtype.is_int:
        return _range_of_integers(n, start.dtype, *(n.integer(x, "a bound of Range") for x in (start, limit, delta)))
    wide = [x.dtype.wide(n.static(x, "a bound of Range").reshape(())) for x in (start, limit, delta)]
    if wide[2] == 0 or not np.isfinite(wide).all():
        raise ShapeError(f"Range: start {wide[0]}, limit {wide[1]} and delta {wide[2]} have no finite number of steps")
    count = max(ceil(min((wide[1] - wide[0]) / wide[2], 2.0**62)), 0)
    n.table((count,), "Range")
    values = wide[0] + np.arange(count) * wide[2]
    return n.context.constant(start.dtype.narrow(values), start.dtype)


def _range_of_integers(n: NodeCall, dtype: DType, start: int, limit: int, delta: int) -> Value:
    """Return a range as a formula; its length may depend on a size that varies from call to call."""
    if delta == 0:
        raise ShapeError(f"Range: start {start}, limit {limit} and delta 0 have no finite number of steps")
    count = count_steps(start, limit, delta)
    n.table((count,), "Range")
    return builder.compute((count,), lambda i: builder.cast(start + builder.cast(i, dt.i64) * delta, dtype))


# ------------------------------------------------------------------------------ extents that depend on values


@onnx("NonZero")
def nonzero(n: NodeCall, x: Known) -> Value:
    """indices of nonzero elements, from values known during compilation"""
    places = np.nonzero(x) if x.ndim else np.zeros((0, int(bool(x))))
    return n.constant(np.array(places, np.int64), dt.i64)


@onnx("Compress")
def compress(n: NodeCall, x: Value, condition: Known, *, axis: Axis = None) -> Value:
    """slices along an axis where a condition holds that is known during compilation"""
    if axis is None:
        x, axis = x.reshape((-1,)), 0
    places = np.flatnonzero(condition)
    if places.size and places[-1] >= x.shape[axis]:
        raise ShapeError(f"Compress: the condition holds at {places[-1]}, beyond axis {axis} of shape {x.shape}")
    if not len(places):
        return builder.full((*x.shape[:axis], 0, *x.shape[axis + 1 :]), 0, x.dtype)
    return F.index_select(x, axis, n.constant(places, dt.i64))


@onnx("Unique", static=(0,))
def unique(n: NodeCall, x: Value, *, axis: int | None = None, sorted: int = 1) -> tuple[Value, ...]:
    """(distinct elements or slices, first indices, inverse indices, counts), from values known during compilation"""
    known = n.static(x, "what Unique looks at")
    values, first, inverse, counts = np.unique(known, True, True, True, axis=axis)
    if not sorted:
        order = np.argsort(first)
        back = np.argsort(order)
        values = np.take(values, order, axis=axis or 0)
        first, counts, inverse = first[order], counts[order], back[inverse]
    others = (n.constant(v.reshape(-1), dt.i64) for v in (first, inverse, counts))
    return n.context.constant(np.ascontiguousarray(values), x.dtype), *others


@onnx("NonMaxSuppression")
def non_max_suppression(
    n: NodeCall,
    boxes: Known,
    scores: Known,
    most: Known = 0,
    overlap: Known = 0.0,
    least: Known = None,
    *,
    center_point_box: int = 0,
) -> Value:
    """[batch, class, box] of boxes sorted by score, without those that overlap a previous box too much, from values
    known during compilation

    Source: the standard's text; the share is the intersection over the union.
    """
    b, s = boxes.astype(np.float64), scores.astype(np.float64)
    limit, share = (np.asarray(v).reshape(-1)[0] for v in (most, overlap))
    if center_point_box:
        low, high = b[..., :2] - b[..., 2:] / 2, b[..., :2] + b[..., 2:] / 2
    else:
        low, high = np.minimum(b[..., :2], b[..., 2:]), np.maximum(b[..., :2], b[..., 2:])
    area = np.prod(high - low, axis=-1)
    out: list[tuple[int, int, int]] = []
    for batch, kind in np.ndindex(s.shape[:2]):
        chosen: list[int] = []
        for k in np.argsort(-s[batch, kind], kind="stable"):
            if len(chosen) >= int(limit):
                break
            if least is not None and not s[batch, kind, k] > least.reshape(-1)[0]:
                continue
            top = np.minimum(high[batch, k], high[batch, chosen])
            bottom = np.maximum(low[batch, k], low[batch, chosen])
            common = np.prod(np.clip(top - bottom, 0, None), axis=-1)
            shares = common / (area[batch, chosen] + area[batch, k] - common)
            if all(v <= share for v in shares):
                chosen.append(int(k))
        out += [(batch, kind, k) for k in chosen]
    return n.constant(np.array(out, np.int64).reshape(-1, 3), dt.i64)
