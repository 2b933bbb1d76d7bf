"""Pooling over windows and regions of interest."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from einsmith import ops as F
from einsmith.base import dtypes as dt
from einsmith.base.errors import ShapeError
from einsmith.frontends.onnx.evaluate import NodeCall
from einsmith.frontends.onnx.operators.contractions import pads_of
from einsmith.frontends.onnx.table import enter, onnx
from einsmith.lang import builder
from einsmith.lang.builder import Value
from einsmith.ops.pooling import _max
from einsmith.ops.window import Window, apply_transpose, read


def _windows(n: NodeCall, x: Value) -> list[Window]:
    kernel = n.attr("kernel_shape")
    rank = len(kernel)
    if x.ndim != rank + 2:
        raise ShapeError(f"x of shape {x.shape} needs {rank} dimensions after batch and channels")
    steps, gaps = n.per_dimension("strides", rank, 1), n.per_dimension("dilations", rank, 1)
    pads = pads_of(n, x.shape[2:], kernel, steps, gaps)
    ceil = bool(n.attr("ceil_mode", 0))
    return [
        Window(e, k, s, lo, hi, g, n.node.operator, ceil)
        for e, k, s, (lo, hi), g in zip(x.shape[2:], kernel, steps, pads, gaps, strict=True)
    ]


@onnx("MaxPool")
def max_pool(n: NodeCall, x: Value) -> tuple[Value, ...]:
    """(max over windows, its index in the flattened tensor); the first of equal elements"""
    windows = _windows(n, x)
    wide = x if x.dtype.is_float else x.astype(dt.f64 if x.dtype.bits > 16 else dt.f32)
    if not n.wants(1):
        return (_max(wide, windows, False).astype(x.dtype),)
    values, places = _max(wide, windows, True)
    extents = x.shape[2:]
    if n.attr("storage_order", 0):  # the first dimension runs fastest
        rest, at = places, []
        for e in reversed(extents):
            at.append(rest % e)
            rest = rest // e
        flat, scale = builder.full(places.shape, 0, dt.i64), 1
        for place, e in zip(reversed(at), extents, strict=True):
            flat, scale = flat + place * scale, scale * e
        places = flat
    size, count = prod(extents), x.shape[1]
    found = builder.compute(places.shape, lambda b, c, *p: places[(b, c, *p)] + (b * count + c) * size)
    return values.astype(x.dtype), found.astype(dt.i64)


def _inside(w: Window, p: Any, r: Any, padded: bool) -> Any:
    h = w.position(p, r)
    return (h >= -w.before) & (h < w.extent + w.after) if padded else (h >= 0) & (h < w.extent)


@onnx("AveragePool")
def average_pool(n: NodeCall, x: Value) -> Value:
    """mean over windows, with or without the padding"""
    windows, padded = _windows(n, x), bool(n.attr("count_include_pad", 0))
    r = builder.axes(*(w.kernel for w in windows))
    total = builder.compute(
        (*x.shape[:2], *(w.count for w in windows)),
        lambda b, c, *p: builder.sum(read(x, (b, c), windows, p, r, 0), over=r),
    )

    def many(*p: Any) -> Any:
        holds: Any = None
        for w, a, s in zip(windows, p, r, strict=True):
            inside = _inside(w, a, s, padded)
            holds = inside if holds is None else holds & inside
        return builder.sum(builder.where(holds, 1.0, 0.0), over=r)

    count = builder.compute(tuple(w.count for w in windows), many)
    return (total / count).astype(x.dtype)


@onnx("LpPool")
def lp_pool(n: NodeCall, x: Value) -> Value:
    """(sum over windows of |x|**p)**(1/p)"""
    windows, p_ = _windows(n, x), float(n.attr("p", 2))
    r = builder.axes(*(w.kernel for w in windows))

    def total(b: Any, c: Any, *p: Any) -> Any:
        e = builder.abs(read(x, (b, c), windows, p, r, 0.0))
        return builder.sum(e * e if p_ == 2 else e if p_ == 1 else e**p_, over=r)

    y = builder.compute((*x.shape[:2], *(w.count for w in windows)), total)
    return (y if p_ == 1 else builder.sqrt(y) if p_ == 2 else y ** (1 / p_)).astype(x.dtype)


def _over_places(name: str, formula: str, f: Callable[..., Value]) -> None:
    enter(name, formula, lambda n, x: f(x, tuple(range(2, x.ndim)), True).astype(x.dtype), "pooling")


_over_places("GlobalAveragePool", "mean over all positions", F.mean)
_over_places("GlobalMaxPool", "max over all positions", F.amax)


@onnx("GlobalLpPool")
def global_lp_pool(n: NodeCall, x: Value) -> Value:
    """(sum over all positions of |x|**p)**(1/p)"""
    return F.norm(x, float(n.attr("p", 2)), tuple(range(2, x.ndim)), True).astype(x.dtype)


@onnx("MaxUnpool", static=(2,))
def max_unpool(n: NodeCall, x: Value, places: Value, shape: Value | None = None) -> Value:
    """zeros with x at the indices that MaxPool returns"""
    kernel = n.attr("kernel_shape")
    rank = len(kernel)
    steps, pads = n.per_dimension("strides", rank, 1), n.per_dimension("pads", 2 * rank, 0)
    least = [
        (e - 1) * s + k - pads[d] - pads[d + rank]
        for d, (e, s, k) in enumerate(zip(x.shape[2:], steps, kernel, strict=True))
    ]
    small = (*x.shape[:2], *least)
    out = small if shape is None else n.ints(shape, "the shape of MaxUnpool", 0)
    flat = builder.full((prod(out),), 0, x.dtype)
    k = places.reshape((-1,)).astype(dt.i64)
    if out != small:
        # Places index the smallest output; the rows of the given one are longer.
        rest, moved, scale = k, builder.full(k.shape, 0, dt.i64), 1
        for e, whole in zip(reversed(small), reversed(out), strict=True):
            moved, rest, scale = moved + rest % e * scale, rest // e, scale * whole
        k = moved
    return F.scatter_add(flat, 0, k, x.reshape((-1,))).reshape(out).astype(x.dtype)


@onnx("RoiAlign")
def roi_align(n: NodeCall, x: Value, rois: Value, batch: Value) -> Value:
    """mean or max over a bin's bilinear samples of x

    Source: He et al. 2017, arXiv 1703.06870, section 3.
    """
    high, wide = n.attr("output_height", 1), n.attr("output_width", 1)
    ratio, scale = n.attr("sampling_ratio", 0), float(n.attr("spatial_scale", 1.0))
    half = n.version >= 16 and n.attr("coordinate_transformation_mode", "half_pixel") == "half_pixel"
    shift = 0.5 if half else 0.0
    height, width = x.shape[2:]
    corner = rois * scale - shift
    extent = corner[:, 2:] - corner[:, :2]
    extent = extent if half else builder.maximum(extent, 1.0)
    k = batch.astype(dt.i64)

    def count(d: int, bins: int, size: int) -> tuple[Value, int]:
        """Return (the number of samples in a bin of each roi, the most of them)."""
        if ratio:
            return builder.full((rois.shape[0],), ratio, dt.i64), ratio
        each = builder.stop_gradient(extent[:, 1 - d]) / float(bins)
        many = builder.maximum(-builder.floor(-each), 0.0).astype(dt.i64)
        known = n.known(many)
        if known is not None:
            return many, int(known.max(initial=1))
        # A box that is larger than the image is an IndexError at the call.
        most = -(-size // bins) + 1
        return F.index_select(F.arange(most + 1), 0, many).astype(dt.i64), most

    def sample(d: int, bins: int, size: int, many: Value, most: int) -> tuple[Value, Value, Value, Value]:
        """Return (inside, low place, high place, share of the high one) of each sample [roi, bin, sample]."""
        column = 1 - d  # rois are x, y
        each = builder.maximum(many, 1).astype(corner.dtype)
        at = builder.compute(
            (rois.shape[0], bins, most),
            lambda m, p, s: corner[m, column] + extent[m, column] / bins * (p + (s + 0.5) / each[m]),
        )
        within = (at >= -1.0) & (at <= float(size))
        inside = builder.compute(at.shape, lambda m, p, s: within[m, p, s] & (s < many[m]))
        place = builder.minimum(builder.maximum(at, 0.0), size - 1.0)
        low = builder.stop_gradient(builder.floor(place))
        return inside, low.astype(dt.i64), builder.minimum(low + 1.0, size - 1.0).astype(dt.i64), place - low

    (rows, most_rows), (columns, most_columns) = count(0, high, height), count(1, wide, width)
    iv, lv, hv, sv = sample(0, high, height, rows, most_rows)
    iu, lu, hu, su = sample(1, wide, width, columns, most_columns)
    total = builder.maximum(rows * columns, 1).astype(corner.dtype)
    maximum = n.attr("mode", "avg") == "max"
    s, t = builder.axes(most_rows, most_columns)

    def element(m: Any, c: Any, p: Any, q: Any) -> Any:
        a, b = (m, p, s), (m, q, t)
        found = [
            x[k[m], c, v[a], u[b]] * (sv[a] if v is hv else 1.0 - sv[a]) * (su[b] if u is hu else 1.0 - su[b])
            for v in (lv, hv)
            for u in (lu, hu)
        ]
        inside = iv[a] & iu[b]
        if maximum:
            best = builder.maximum(builder.maximum(found[0], found[1]), builder.maximum(found[2], found[3]))
            return builder.max(builder.where(inside, best, 0.0), over=(s, t))
        value = found[0] + found[1] + found[2] + found[3]
        return builder.sum(builder.where(inside, value, 0.0), over=(s, t)) / total[m]

    return builder.compute((rois.shape[0], x.shape[1], high, wide), element).astype(x.dtype)


@onnx("Col2Im", static=(1, 2))
def col2im(n: NodeCall, x: Value, image: Value, block: Value) -> Value:
    """the sum of the blocks' elements at each position"""
    extents, kernel = n.ints(image, "image_shape of Col2Im", 1), n.ints(block, "block_shape of Col2Im", 1)
    rank = len(extents)
    steps, gaps = n.per_dimension("strides", rank, 1), n.per_dimension("dilations", rank, 1)
    pads = pads_of(n, extents, kernel, steps, gaps)
    windows = [
        Window(e, k, s, lo, hi, g, "Col2Im")
        for e, k, s, (lo, hi), g in zip(extents, kernel, steps, pads, gaps, strict=True)
    ]
    counts = tuple(w.count for w in windows)
    channels = x.shape[1] // prod(kernel)
    blocks = x.reshape((x.shape[0], channels, *kernel, *counts))

    def unfolded(y: Value) -> Value:
        return builder.compute(blocks.shape, lambda b, c, *i: read(y, (b, c), windows, i[rank:], i[:rank], 0))

    return apply_transpose(unfolded, (x.shape[0], channels, *extents), blocks).astype(x.dtype)
