"""Resizing and sampling by interpolation.

Scales, and thus the positions that are read, are known during compilation.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, floor
from typing import Any

import numpy as np

from einsmith import ops as F
from einsmith.base import dtypes as dt
from einsmith.base.errors import ArgumentError, ShapeError
from einsmith.frontends.onnx.binding import Extents, Known, resolve_axes
from einsmith.frontends.onnx.evaluate import NodeCall
from einsmith.frontends.onnx.operators.casts import as_float
from einsmith.frontends.onnx.table import onnx
from einsmith.ops.sampling import sample
from einsmith.tracing import builder
from einsmith.tracing.builder import Value


def _coordinates(mode: str, count: int, n: int, scale: float, roi: tuple[float, float]) -> np.ndarray:
    """Return the coordinate along the input for each position of the output.

    mode: coordinate_transformation_mode; count, n: extents of output and input; roi: bounds for tf_crop_and_resize.
    Raises ArgumentError for an unknown mode.
    """
    p, whole = np.arange(count, dtype=np.float64), scale * n
    if mode == "align_corners":
        return p * (n - 1) / (whole - 1) if whole != 1 else p * 0.0
    if mode == "asymmetric":
        return p / scale
    if mode == "tf_crop_and_resize":
        low, high = roi
        middle = (high - low) * (n - 1)
        return low * (n - 1) + (p * middle / (whole - 1) if whole != 1 else p * 0.0 + middle / 2)
    at = (p + 0.5) / scale - 0.5
    if mode == "pytorch_half_pixel":
        return at if count != 1 else p * 0.0
    if mode == "half_pixel_symmetric":
        return n / 2 * (1 - count / whole) + at
    if mode != "half_pixel":
        raise ArgumentError(f"coordinate_transformation_mode {mode!r} is none of the standard's")
    return at


def _extent(scale: float, n: int) -> int:
    """Return the extent of n elements after scaling; the standard multiplies in float32.

    Raises ArgumentError for a scale that is not positive and finite.
    """
    if not (scale > 0 and np.isfinite(scale)):
        raise ArgumentError(f"a scale is {scale}; scales must be positive and finite")
    return floor(np.float32(scale) * np.float32(n))


_ROUNDING: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "round_prefer_floor": lambda v: np.ceil(v - 0.5),
    "round_prefer_ceil": lambda v: np.floor(v + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


def _kernel(mode: str, a: float, d: np.ndarray) -> np.ndarray:
    """Return the weights of elements at distances d. Source of the cubic ones: Keys 1981."""
    if mode == "linear":
        return np.maximum(1 - d, 0.0)
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, ((a + 2) * d - (a + 3)) * d * d + 1, np.where(d < 2, far, 0.0))


def _taps(
    n: NodeCall, extent: int, count: int, scale: float, roi: tuple[float, float]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (positions [count, taps], weights [count, taps], whether they lie inside [count]) of one dimension."""
    mode, modern = n.attr("mode", "nearest"), n.version >= 11
    how = n.attr("coordinate_transformation_mode", "half_pixel") if modern else "asymmetric"
    n.table((count,), f"positions of {n.node.operator}")
    at = _coordinates(how, count, extent, scale, roi)[:, None]
    inside = (at[:, 0] >= 0) & (at[:, 0] <= extent - 1) | (how != "tf_crop_and_resize")
    if mode == "nearest":
        near = _ROUNDING[n.attr("nearest_mode", "round_prefer_floor" if modern else "floor")](at)
        weights = np.ones(near.shape)
    else:
        antialias, exclude = n.attr("antialias", 0), n.attr("exclude_outside", 0)
        narrow = min(scale, 1.0) if antialias else 1.0
        reach = ceil((1 if mode == "linear" else 2) / narrow)
        n.table((count, 2 * reach), f"weights of {n.node.operator}")
        near = np.floor(at) + np.arange(1 - reach, reach + 1)
        weights = _kernel(mode, n.attr("cubic_coeff_a", -0.75), np.abs((near - at) * narrow))
        if exclude:
            weights = np.where((near >= 0) & (near < extent), weights, 0.0)
        if antialias or exclude:
            weights = weights / weights.sum(1, keepdims=True)
    return np.clip(near, 0, extent - 1).astype(np.int64), weights, inside


def _along(n: NodeCall, x: Value, d: int, places: np.ndarray, weights: np.ndarray) -> Value:
    """Return the weighted sums of the elements at given positions along d."""
    count, taps = places.shape
    shape = (*x.shape[:d], count, *x.shape[d + 1 :])
    even = np.arange(count) * x.shape[d] // max(count, 1)
    if taps == 1:
        if (places[:, 0] == even).all():
            a, b = x.shape[d], count
            return builder.compute(shape, lambda *i: x[(*i[:d], i[d] * a // b, *i[d + 1 :])])
        k = n.constant(places[:, 0], dt.i64)
        return builder.compute(shape, lambda *i: x[(*i[:d], k[i[d]], *i[d + 1 :])])
    k, w = n.constant(places, dt.i64), n.constant(weights, x.dtype)
    (r,) = builder.axes(taps)
    return builder.compute(shape, lambda *i: builder.sum(x[(*i[:d], k[i[d], r], *i[d + 1 :])] * w[i[d], r], over=r))


@onnx("Resize", static=(1, 2))
def resize(
    n: NodeCall,
    x: Value,
    roi: Value | None = None,
    scales: Value | None = None,
    sizes: Extents = None,
    *,
    axes: Any = None,
    mode: str = "nearest",
    keep_aspect_ratio_policy: str = "stretch",
    extrapolation_value: float = 0.0,
) -> Value:
    """interpolation: nearest, linear or cubic in each dimension, optionally antialiased when an extent shrinks"""
    if n.version < 11:
        roi, scales = None, roi
    dims = resolve_axes(axes or range(x.ndim), x.ndim)
    factors, region = (
        () if v is None else n.static(v, f"{what} of Resize").astype(np.float64).reshape(-1)
        for v, what in ((scales, "scales"), (roi, "roi"))
    )
    if len(region) and (len(region) != 2 * len(dims) or not np.isfinite(region).all()):
        raise ArgumentError(f"roi of Resize must be two finite numbers for each of {len(dims)} dimensions")
    if sizes:
        ratio = [w / x.shape[d] for w, d in zip(sizes, dims, strict=True)]
        if keep_aspect_ratio_policy != "stretch":
            one = min(ratio) if keep_aspect_ratio_policy == "not_larger" else max(ratio)
            ratio, sizes = [one] * len(dims), [floor(one * x.shape[d] + 0.5) for d in dims]
    elif len(factors):
        ratio = list(factors)
        sizes = [_extent(s, x.shape[d]) for s, d in zip(ratio, dims, strict=True)]
    else:
        raise ShapeError("Resize needs scales or sizes")
    y, outside = x if mode == "nearest" else as_float(x), None
    for m, (d, scale, size) in enumerate(zip(dims, ratio, sizes, strict=True)):
        if scale == 1 and size == x.shape[d] and not len(region):
            continue
        part = (region[m], region[m + len(dims)]) if len(region) else (0.0, 1.0)
        places, weights, inside = _taps(n, x.shape[d], size, float(scale), part)
        y = _along(n, y, d, places, weights)
        if not inside.all():
            beyond = n.constant(~inside, dt.bool_).reshape(tuple(size if k == d else 1 for k in range(x.ndim)))
            outside = beyond if outside is None else outside | beyond
    if outside is not None:
        y = builder.where(outside, extrapolation_value, y)
    return F.round(y) if x.dtype.is_int and y.dtype.is_float else y


@onnx("Upsample")
def upsample(n: NodeCall, x: Value, scales: Known = None) -> Value:
    """Resize with the coordinates p/scale"""
    y = x
    for d, s in enumerate(np.reshape(scales, -1)):
        if s != 1:
            places, weights, _ = _taps(n, x.shape[d], _extent(float(s), x.shape[d]), float(s), (0.0, 1.0))
            y = _along(n, y, d, places, weights)
    return y


@onnx("GridSample")
def grid_sample(
    x: Value, grid: Value, *, mode: str = "linear", padding_mode: str = "zeros", align_corners: int = 0
) -> Value:
    """x[b, c, ..] at the positions of grid in [-1, 1]: nearest, linear or cubic in each dimension

    Source: Jaderberg et al. 2015, arXiv 1506.02025.
    """
    mode = {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode)
    wide = grid if grid.dtype.bits >= 32 else grid.astype(dt.f32)
    return sample(x, wide, mode, padding_mode, bool(align_corners))
