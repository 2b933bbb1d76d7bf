"""Shapes, constant tensors, and selections by values that are known during compilation."""

from __future__ import annotations

from math import ceil, prod

import numpy as np

from einsmith.base import dtypes as dt
from einsmith.base.errors import ShapeError
from einsmith.frontends.onnx.evaluate import NodeCall
from einsmith.frontends.onnx.operators.axes import axis
from einsmith.frontends.onnx.table import onnx
from einsmith.lang import builder
from einsmith.lang.builder import Value


@onnx("Shape")
def shape(n: NodeCall, x: Value) -> Value:
    """the extents of dimensions start to end of x"""
    start, end = n.attr("start", 0), n.attr("end", x.ndim)
    return n.constant(x.shape[start:end], dt.i64)


@onnx("Size")
def size(n: NodeCall, x: Value) -> Value:
    """number of elements of x"""
    return n.constant(prod(x.shape), dt.i64)


@onnx("ConstantOfShape", static=(0,))
def constant_of_shape(n: NodeCall, extents: Value) -> Value:
    """a constant tensor"""
    value = n.attr("value")
    dtype = n.dtype if value is not None else dt.f32
    found = n.ints(extents, "the shape of ConstantOfShape", 0)
    if value is None:
        return builder.full(found, 0.0, dt.f32)
    if value.dtype.names:  # bfloat16
        return builder.broadcast_to(n.context.constant(value.reshape(()), dtype), found)
    return builder.full(found, value.reshape(-1)[0].item(), dtype)


@onnx("EyeLike")
def eye_like(n: NodeCall, x: Value) -> Value:
    """where(j - i == k, 1, 0) in the shape of x"""
    k = n.attr("k", 0)
    return builder.compute(x.shape, lambda i, j: builder.where(j - i == k, 1, 0)).astype(n.dtype)


@onnx("Range", static=(0, 1, 2))
def range_(n: NodeCall, start: Value, limit: Value, delta: Value) -> Value:
    """start + i*delta, up to but without limit"""
    wide = [x.dtype.wide(n.static(x, "a bound of Range").reshape(())) for x in (start, limit, delta)]
    if wide[2] == 0 or not np.isfinite(wide).all():
        raise ShapeError(f"Range: start {wide[0]}, limit {wide[1]} and delta {wide[2]} have no finite number of steps")
    if start.dtype.is_int:
        count = max(-((int(wide[0]) - int(wide[1])) // int(wide[2])), 0)
    else:
        count = max(ceil(min((wide[1] - wide[0]) / wide[2], 2.0**62)), 0)
    n.table((count,), "Range")
    values = wide[0] + np.arange(count) * wide[2]
    return n.context.constant(start.dtype.narrow(values), start.dtype)


# ------------------------------------------------------------------------------ extents that depend on values


@onnx("NonZero", static=(0,))
def nonzero(n: NodeCall, x: Value) -> Value:
    """indices of nonzero elements, from values known during compilation"""
    found = n.static(x, "what NonZero looks at")
    places = np.array(np.nonzero(found) if x.ndim else np.zeros((0, int(bool(found)))), np.int64)
    return n.constant(places, dt.i64)


@onnx("Compress", static=(1,))
def compress(n: NodeCall, x: Value, condition: Value) -> Value:
    """slices along an axis where a condition holds that is known during compilation"""
    holds = n.static(condition, "the condition of Compress").reshape(-1)
    along = n.attr("axis")
    if along is None:
        x, along = x.reshape((-1,)), 0
    d = axis(along, x.ndim)
    places = np.flatnonzero(holds)
    if places.size and places[-1] >= x.shape[d]:
        raise ShapeError(f"Compress: the condition holds at {places[-1]}, beyond axis {d} of shape {x.shape}")
    out = (*x.shape[:d], len(places), *x.shape[d + 1 :])
    if not len(places):
        return builder.full(out, 0, x.dtype)
    k = n.constant(places, dt.i64)
    return builder.compute(out, lambda *i: x[(*i[:d], k[i[d]], *i[d + 1 :])])


@onnx("Unique", static=(0,))
def unique(n: NodeCall, x: Value) -> tuple[Value, Value, Value, Value]:
    """(distinct elements or slices, first indices, inverse indices, counts), from values known during compilation"""
    found = n.static(x, "what Unique looks at")
    along = n.attr("axis")
    values, first, inverse, counts = np.unique(found, True, True, True, axis=along)
    if not n.attr("sorted", 1):
        order = np.argsort(first)
        back = np.argsort(order)
        values = np.take(values, order, axis=along or 0)
        first, counts, inverse = first[order], counts[order], back[inverse]
    others = (n.constant(v.reshape(-1), dt.i64) for v in (first, inverse, counts))
    a, b, c = others
    return n.context.constant(np.ascontiguousarray(values), x.dtype), a, b, c


@onnx("NonMaxSuppression", static=(0, 1, 2, 3, 4))
def non_max_suppression(
    n: NodeCall,
    boxes: Value,
    scores: Value,
    most: Value | None = None,
    overlap: Value | None = None,
    least: Value | None = None,
) -> Value:
    """[batch, class, box] of boxes sorted by score, without those that overlap a previous box too much, from values
    known during compilation

    Source: the standard's text; the share is the intersection over the union.
    """
    b, s = (n.static(v, "what NonMaxSuppression looks at").astype(np.float64) for v in (boxes, scores))
    limit, share, floor = (
        None if v is None else n.static(v, "a limit of NonMaxSuppression").reshape(-1)[0]
        for v in (most, overlap, least)
    )
    if n.attr("center_point_box", 0):
        low, high = b[..., :2] - b[..., 2:] / 2, b[..., :2] + b[..., 2:] / 2
    else:
        low, high = np.minimum(b[..., :2], b[..., 2:]), np.maximum(b[..., :2], b[..., 2:])
    out: list[tuple[int, int, int]] = []
    for batch in range(s.shape[0]):
        for kind in range(s.shape[1]):
            chosen: list[int] = []
            for k in np.argsort(-s[batch, kind], kind="stable"):
                if len(chosen) >= (0 if limit is None else int(limit)):
                    break
                if floor is not None and not s[batch, kind, k] > floor:
                    continue
                top = np.minimum(high[batch, k], high[batch, chosen])
                bottom = np.maximum(low[batch, k], low[batch, chosen])
                common = np.prod(np.clip(top - bottom, 0, None), axis=-1)
                area = np.prod(high[batch] - low[batch], axis=-1)
                shares = common / (area[chosen] + area[k] - common)
                if all(v <= (0.0 if share is None else share) for v in shares):
                    chosen.append(int(k))
            out += [(batch, kind, k) for k in chosen]
    return n.constant(np.array(out, np.int64).reshape(-1, 3), dt.i64)
