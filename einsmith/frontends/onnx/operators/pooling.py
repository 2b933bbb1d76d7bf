"""Pooling over windows and regions of interest."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import prod
from typing import Any

from einsmith import ops as F
from einsmith.base import dtypes as dt
from einsmith.base.errors import ShapeError
from einsmith.frontends.onnx.binding import Counts, Extents
from einsmith.frontends.onnx.evaluate import NodeCall
from einsmith.frontends.onnx.operators.contractions import read_windows
from einsmith.frontends.onnx.table import enter, onnx
from einsmith.ops.pooling import _max, _mean
from einsmith.ops.tensor import amax, mean
from einsmith.ops.window import Window, apply_transpose, read
from einsmith.tracing import builder
from einsmith.tracing.builder import Value


def _read_windows(n: NodeCall, x: Value) -> list[Window]:
    kernel = n.attr("kernel_shape")
    if x.ndim != len(kernel) + 2:
        raise ShapeError(f"x of shape {x.shape} needs {len(kernel)} dimensions after batch and channels")
    return read_windows(n, x.shape[2:], kernel)


@onnx("MaxPool")
def max_pool(n: NodeCall, x: Value, *, storage_order: int = 0) -> tuple[Value, ...]:
    """(max over windows, its index in the flattened tensor); the first of equal elements"""
    windows = _read_windows(n, x)
    wide = x if x.dtype.is_float else x.astype(dt.f64 if x.dtype.bits > 16 else dt.f32)
    if not n.wants(1):
        return (_max(wide, windows, False),)
    values, places = _max(wide, windows, True)
    extents, channels = x.shape[2:], x.shape[1]
    if storage_order:  # the first dimension runs fastest
        places = _move_places(places, extents, [prod(extents[:d]) for d in range(len(extents))])
    size = prod(extents)
    return values, builder.compute(places.shape, lambda b, c, *p: places[(b, c, *p)] + (b * channels + c) * size)


@onnx("AveragePool")
def average_pool(n: NodeCall, x: Value, *, count_include_pad: int = 0) -> Value:
    """mean over windows, with or without the padding"""
    clip = not count_include_pad
    return _mean(x, _read_windows(n, x), None, lambda w, p: builder.maximum(w.covered(p, clip), 0))


@onnx("LpPool")
def lp_pool(n: NodeCall, x: Value, *, p: int = 2) -> Value:
    """(sum over windows of |x|**p)**(1/p)"""
    e = builder.abs(x)
    y = _mean(e * e if p == 2 else e if p == 1 else e ** float(p), _read_windows(n, x), 1, lambda w, p: w.kernel)
    return y if p == 1 else builder.sqrt(y) if p == 2 else y ** (1 / p)


for _name, _formula, _f in (
    ("GlobalAveragePool", "mean over all positions", mean),
    ("GlobalMaxPool", "max over all positions", amax),
):
    enter(_name, _formula, lambda x, f=_f: f(x, tuple(range(2, x.ndim)), True), "pooling")


@onnx("GlobalLpPool")
def global_lp_pool(x: Value, *, p: int = 2) -> Value:
    """(sum over all positions of |x|**p)**(1/p)"""
    return F.norm(x, float(p), tuple(range(2, x.ndim)), True)


@onnx("MaxUnpool")
def max_unpool(n: NodeCall, x: Value, places: Value, shape: Extents = None, *, kernel_shape: Any) -> Value:
    """zeros with x at the indices that MaxPool returns"""
    rank = len(kernel_shape)
    steps, pads = n.per_dimension("strides", rank, 1), n.per_dimension("pads", 2 * rank, 0)
    space = zip(x.shape[2:], steps, kernel_shape, pads[:rank], pads[rank:], strict=True)
    small = (*x.shape[:2], *((e - 1) * s + k - lo - hi for e, s, k, lo, hi in space))
    out = small if shape is None else shape
    k = places.reshape((-1,)).astype(dt.i64)
    if out != small:  # places index the smallest output; the rows of the given one are longer
        k = _move_places(k, small, [prod(out[d + 1 :]) for d in range(len(out))])
    flat = builder.full((prod(out),), 0, x.dtype)
    return F.scatter_add(flat, 0, k, x.reshape((-1,))).reshape(out)


def _move_places(places: Value, shape: tuple[int, ...], strides: Sequence[int]) -> Value:
    """Return row-major places in a shape as places in memory with the given strides."""
    moved, rest = builder.full(places.shape, 0, dt.i64), places
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        moved, rest = moved + rest % extent * stride, rest // extent
    return moved


@onnx("RoiAlign")
def roi_align(
    n: NodeCall,
    x: Value,
    rois: Value,
    batch: Value,
    *,
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
    mode: str = "avg",
) -> Value:
    """mean or max over a bin's bilinear samples of x

    Source: He et al. 2017, arXiv 1703.06870, section 3.
    """
    half = n.version >= 16 and n.attr("coordinate_transformation_mode", "half_pixel") == "half_pixel"
    corner = rois * spatial_scale - (0.5 if half else 0.0)
    extent = corner[:, 2:] - corner[:, :2]
    extent = extent if half else builder.maximum(extent, 1.0)
    image = batch.astype(dt.i64)

    def count(d: int, bins: int) -> tuple[Value, int]:
        """Return (the number of samples in a bin of each roi along dimension d of space, the most of them)."""
        if sampling_ratio:
            return builder.full((rois.shape[0],), sampling_ratio, dt.i64), sampling_ratio
        each = builder.stop_gradient(extent[:, 1 - d]) / float(bins)
        many = builder.maximum(-builder.floor(-each), 0.0).astype(dt.i64)
        known = n.known(many)
        if known is not None:
            return many, int(known.max(initial=1))
        # A box that is larger than the image is an IndexError at the call.
        most = -(-x.shape[2 + d] // bins) + 1
        return F.index_select(F.arange(most + 1), 0, many).astype(dt.i64), most

    def sample(d: int, bins: int, many: Value, most: int) -> tuple[Value, list[tuple[Value, Any]]]:
        """Return (inside, the two neighbours with their weights) of each sample [roi, bin, sample]."""
        size, column = x.shape[2 + d], 1 - d  # rois are x, y
        each = builder.maximum(many, 1).astype(corner.dtype)
        at = builder.compute(
            (rois.shape[0], bins, most),
            lambda m, p, s: corner[m, column] + extent[m, column] / bins * (p + (s + 0.5) / each[m]),
        )
        within = (at >= -1.0) & (at <= float(size))
        inside = builder.compute(at.shape, lambda m, p, s: within[m, p, s] & (s < many[m]))
        place = builder.minimum(builder.maximum(at, 0.0), size - 1.0)
        low = builder.stop_gradient(builder.floor(place))
        high, share = builder.minimum(low + 1.0, size - 1.0), place - low
        return inside, [
            (low.astype(dt.i64), lambda i: 1.0 - share[i]),
            (high.astype(dt.i64), lambda i: share[i]),
        ]

    (rows, most_rows), (columns, most_columns) = count(0, output_height), count(1, output_width)
    inside_rows, near_rows = sample(0, output_height, rows, most_rows)
    inside_columns, near_columns = sample(1, output_width, columns, most_columns)
    total = builder.maximum(rows * columns, 1).astype(corner.dtype)
    s, t = builder.axes(most_rows, most_columns)

    def element(m: Any, c: Any, p: Any, q: Any) -> Any:
        a, b = (m, p, s), (m, q, t)
        terms = [x[image[m], c, v[a], u[b]] * f(a) * g(b) for v, f in near_rows for u, g in near_columns]
        inside = inside_rows[a] & inside_columns[b]
        if mode == "max":
            return builder.max(builder.where(inside, reduce(builder.maximum, terms), 0.0), over=(s, t))
        value = reduce(lambda e, f: e + f, terms)
        return builder.sum(builder.where(inside, value, 0.0), over=(s, t)) / total[m]

    return builder.compute((rois.shape[0], x.shape[1], output_height, output_width), element)


@onnx("Col2Im")
def col2im(n: NodeCall, x: Value, image_shape: Counts, block_shape: Counts) -> Value:
    """the sum of the blocks' elements at each position"""
    windows, rank = read_windows(n, image_shape, block_shape), len(image_shape)
    channels = x.shape[1] // prod(block_shape)
    blocks = x.reshape((x.shape[0], channels, *block_shape, *(w.count for w in windows)))

    def unfolded(y: Value) -> Value:
        return builder.compute(blocks.shape, lambda b, c, *i: read(y, (b, c), windows, i[rank:], i[:rank], 0))

    return apply_transpose(unfolded, (x.shape[0], channels, *image_shape), blocks)
