"""Change resolutions: interpolation, and moves of elements between channels and places."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import floor, isfinite, prod
from typing import Any

import numpy as np

from einsmith.base import dtypes as dt
from einsmith.base.arguments import Count
from einsmith.base.errors import ArgumentError, ShapeError
from einsmith.ops.common import all_of, ints, tensor
from einsmith.ops.operator import operator
from einsmith.ops.pooling import adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d
from einsmith.ops.window import Ints, Window, apply_transpose, read
from einsmith.tracing import builder
from einsmith.tracing.builder import Value

RANKS = {
    "nearest": (3, 4, 5),
    "nearest-exact": (3, 4, 5),
    "area": (3, 4, 5),
    "linear": (3,),
    "bilinear": (4,),
    "bicubic": (4,),
    "trilinear": (5,),
}
"""Mode of `interpolate` -> the numbers of dimensions that it takes."""

HALF = Fraction(1, 2)
_MOST = 1 << 24
"""Most positions along a dimension. Each is a fraction that tracing computes, 1e6 in about a second."""

# ------------------------------------------------------------------------------------------------------- interpolation


class _Positions:
    """The exact positions floor((p + shift)*scale - offset) for every p below `count`; `beyond` has the fractions.

    As an index of a formula a position is a quotient of integers, so that gradients need no scatter. Of the scales that
    give equal positions, the fraction with the smallest denominator is used.
    """

    def __init__(self, scale: Fraction, shift: Fraction, offset: Fraction, count: int):
        self._shift, self._offset = int(2 * shift), int(2 * offset)
        a, b = scale.numerator, scale.denominator
        divisions = [divmod((2 * p + self._shift) * a - self._offset * b, 2 * b) for p in range(count)]
        self.begins = np.array([t for t, _ in divisions])
        self.beyond = np.array([rest / (2 * b) for _, rest in divisions])
        low, high = (0, 1), (1, 0)  # bounds of the scales that give these positions: (numerator, denominator)
        for p, (t, _) in enumerate(divisions):
            at, begin, end = 2 * p + self._shift, 2 * t + self._offset, 2 * t + 2 + self._offset
            if at and begin * low[1] > low[0] * at:
                low = begin, at
            if at and end * high[1] < high[0] * at:
                high = end, at
        self._ratio = _simplest(low, high)

    def at(self, p: Any) -> Any:
        """Return the position of p, an axis."""
        a, b = self._ratio
        if not self._shift and not self._offset:
            return a * p if b == 1 else a * p // b
        return (a * (2 * p + self._shift) - b * self._offset) // (2 * b)


def _simplest(low: tuple[int, int], high: tuple[int, int]) -> tuple[int, int]:
    """Return (numerator, denominator) of the fraction in [low, high) with the smallest denominator."""
    for denominator in range(1, low[1]):
        numerator = -(-low[0] * denominator // low[1])
        if numerator * high[1] < high[0] * denominator:
            return numerator, denominator
    return low


def _fraction(number: float) -> Fraction:
    """Return the fraction that a float was written for: 1/3 and not the float nearest to it."""
    short = Fraction(number).limit_denominator(10**6)
    return short if float(short) == number else Fraction(number)


def _cubic(f: np.ndarray) -> list[np.ndarray]:
    """Return weights of the neighbours at distances 1 + f, f, 1 - f and 2 - f. Source: Keys 1981, with a = -0.75."""
    a = -0.75

    def near(t: np.ndarray) -> np.ndarray:
        return ((a + 2) * t - (a + 3)) * t * t + 1

    def far(t: np.ndarray) -> np.ndarray:
        return ((a * t - 5 * a) * t + 8 * a) * t - 4 * a

    return [far(1 + f), near(f), near(1 - f), far(2 - f)]


def _interpolate(x: Value, d: int, count: int, scale: Fraction, cubic: bool, align_corners: bool) -> Value:
    """Resample x to `count` places along dimension `d`, each a weighted sum of two neighbours, or four if `cubic`."""
    extent = x.shape[d]
    if align_corners:
        where = _Positions(Fraction(extent - 1, max(count - 1, 1)), Fraction(0), Fraction(0), count)
    else:
        where = _Positions(scale, HALF, HALF, count)
    f = where.beyond
    first, taps = (-1, _cubic(f)) if cubic else (0, [1 - f, f])
    # Neighbours outside are clamped to the first or the last element, which gets their weight.
    weights = np.zeros((count, len(taps)))
    for n, weight in enumerate(taps):
        inside = np.clip(where.begins + first + n, 0, extent - 1) - where.begins - first
        np.add.at(weights, (np.arange(count), inside), weight)
    w = builder.as_value(weights.astype(np.float64 if x.dtype is dt.f64 else np.float32))
    (t,) = builder.axes(len(taps))
    low, high = where.begins.min() + first, where.begins.max() + first + len(taps) - 1

    def body(*i: Any) -> Any:
        h = where.at(i[d]) + (t + first)
        guards = ([0 <= h] if low < 0 else []) + ([h < extent] if high >= extent else [])
        element = x[(*i[:d], h, *i[d + 1 :])]
        return builder.sum(w[i[d], t] * (builder.where(all_of(guards), element, 0) if guards else element), over=t)

    return builder.compute((*x.shape[:d], count, *x.shape[d + 1 :]), body).astype(x.dtype)


def _nearest(x: Value, counts: Sequence[int], scales: Sequence[Fraction], exact: bool) -> Value:
    """Return x at the places p*scale, or (p + 1/2)*scale where `exact`, rounded down."""
    shift = HALF if exact else Fraction(0)
    places = [_Positions(s, shift, Fraction(0), n) for s, n in zip(scales, counts, strict=True)]
    lead = x.ndim - len(places)

    def body(*i: Any) -> Any:
        at = [where.at(p) for where, p in zip(places, i[lead:], strict=True)]
        return x[(*i[:lead], *at)]

    return builder.compute((*x.shape[:lead], *counts), body)


def _several(value: Any, n: int, what: str, kinds: Any) -> tuple:
    many = tuple(value) if isinstance(value, (tuple, list)) else (value,) * n
    fit = (not isinstance(v, bool) and isinstance(v, kinds) and isfinite(v) and v > 0 for v in many)
    if len(many) != n or not all(fit):
        raise ArgumentError(f"interpolate: {what}={value!r} must be positive, one number or {n}")
    return many


@operator()
def interpolate(
    input: Any,
    size: Ints | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Value:
    """Interpolate input [B, C, *extents] to other extents: `size`, or floor(extent*scale_factor).

    mode: 'nearest', 'nearest-exact', 'area' (means, as `adaptive_avg_pool2d`) for one to three dimensions; 'linear' for
    one, 'bilinear' and 'bicubic' for two, 'trilinear' for three. Place p is read at (p + 1/2)*scale - 1/2, where scale
    is 1/scale_factor, or the ratio of the extents where `size` is given or `recompute_scale_factor` set; with
    `align_corners` at p*(extent - 1)/(new extent - 1), so that first and last elements are kept. Neighbours outside are
    the first or the last element. `antialias` is not supported.
    """
    if mode not in RANKS:
        raise ArgumentError(f"interpolate: mode={mode!r} is none of {', '.join(map(repr, RANKS))}")
    x = tensor(input, "interpolate", "input", kind="float")
    if x.ndim not in RANKS[mode]:
        wanted = " or ".join(map(str, RANKS[mode]))
        raise ShapeError(f"interpolate: mode={mode!r} takes {wanted} dimensions, got shape {x.shape}")
    weighted = mode not in ("nearest", "nearest-exact", "area")
    if align_corners is not None and not weighted:
        raise ArgumentError(f"interpolate: align_corners={align_corners!r} has no meaning in mode={mode!r}")
    if antialias:
        raise ArgumentError("interpolate: antialias=True is not supported; average first, with avg_pool2d")
    if (size is None) == (scale_factor is None):
        raise ArgumentError(f"interpolate: give one of size={size!r} and scale_factor={scale_factor!r}")
    if recompute_scale_factor and size is not None:
        raise ArgumentError("interpolate: recompute_scale_factor=True has no meaning with a size")
    n = x.ndim - 2
    space = x.shape[2:]
    if size is not None:
        counts = _several(size, n, "size", int)
    else:
        factors = _several(scale_factor, n, "scale_factor", (int, float))
        counts = tuple(floor(e * s) for e, s in zip(space, factors, strict=True))
    if any(e < 1 for e in (*space, *counts)) or any(c > _MOST for c in counts):
        raise ShapeError(
            f"interpolate: 'input' {x.shape} would get the spatial shape {counts}, which is empty or too large"
        )
    scales = [Fraction(e, c) for e, c in zip(space, counts, strict=True)]
    if scale_factor is not None and not recompute_scale_factor:
        scales = [1 / _fraction(s) for s in factors]
    if mode == "area":
        return (adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d)[n - 1](x, counts)
    if not weighted:
        return _nearest(x, counts, scales, mode == "nearest-exact")
    for d in reversed(range(n)):
        # A linear mode that keeps the extent keeps the elements, as in torch, whatever the scale.
        if counts[d] != space[d] or (mode == "bicubic" and not align_corners and scales[d] != 1):
            x = _interpolate(x, d + 2, counts[d], scales[d], mode == "bicubic", bool(align_corners))
    return x


# ------------------------------------------------------------------------------------------------- channels and places


@operator("PixelShuffle")
def pixel_shuffle(input: Any, upscale_factor: Count) -> Value:
    """Rearrange input [..., C*r*r, H, W] to [..., C, H*r, W*r], where r is the factor.

    Channel c*r*r + i*r + j of place (h, w) goes to place (h*r + i, w*r + j). Source: Shi et al. 2016, arXiv 1609.05158.
    """
    x, r = tensor(input, "pixel_shuffle", "input"), upscale_factor
    if x.ndim < 3 or x.shape[-3] % (r * r):
        raise ShapeError(f"pixel_shuffle: 'input' {x.shape} needs a multiple of {r * r} channels in dimension -3")
    *lead, c, h, w = x.shape
    n = len(lead)
    y = x.reshape((*lead, c // (r * r), r, r, h, w))
    y = y.transpose((*range(n), n, n + 3, n + 1, n + 4, n + 2))
    return y.reshape((*lead, c // (r * r), h * r, w * r))


@operator("PixelUnshuffle")
def pixel_unshuffle(input: Any, downscale_factor: Count) -> Value:
    """Rearrange input [..., C, H*r, W*r] to [..., C*r*r, H, W]: the inverse of `pixel_shuffle`."""
    x, r = tensor(input, "pixel_unshuffle", "input"), downscale_factor
    if x.ndim < 3 or x.shape[-2] % r or x.shape[-1] % r:
        raise ShapeError(f"pixel_unshuffle: the last two extents of 'input' {x.shape} must be multiples of {r}")
    *lead, c, h, w = x.shape
    n = len(lead)
    y = x.reshape((*lead, c, h // r, r, w // r, r))
    y = y.transpose((*range(n), n, n + 2, n + 4, n + 1, n + 3))
    return y.reshape((*lead, c * r * r, h // r, w // r))


@operator("ChannelShuffle")
def channel_shuffle(input: Any, groups: Count) -> Value:
    """Read the channels of input [B, C, ...], seen as `groups` rows of C/groups, column by column.

    Source: Zhang et al. 2018, ShuffleNet, arXiv 1707.01083.
    """
    x, g = tensor(input, "channel_shuffle", "input"), groups
    if x.ndim < 3 or x.shape[1] % g:
        raise ShapeError(f"channel_shuffle: 'input' {x.shape} needs a multiple of groups={g} channels in dimension 1")
    y = x.reshape((x.shape[0], g, x.shape[1] // g, *x.shape[2:]))
    return y.transpose((0, 2, 1, *range(3, y.ndim))).reshape(x.shape)


def _unfold_windows(
    name: str, extents: Sequence[int], kernel_size: Ints, dilation: Ints, padding: Ints, stride: Ints
) -> list[Window]:
    kernel = ints(kernel_size, 2, name, "kernel_size")
    steps, gaps = ints(stride, 2, name, "stride"), ints(dilation, 2, name, "dilation")
    pads = ints(padding, 2, name, "padding", least=0)
    return [Window(e, k, s, p, p, g, name) for e, k, s, p, g in zip(extents, kernel, steps, pads, gaps, strict=True)]


def _blocks(x: Value, windows: Sequence[Window]) -> Value:
    """Arrange x [B, C, H, W] as [B, C*R*S, P*Q]: the window at each place becomes a column."""
    kernel, space = tuple(w.kernel for w in windows), tuple(w.count for w in windows)
    y = builder.compute(
        (*x.shape[:2], *kernel, *space), lambda b, c, r, s, p, q: read(x, (b, c), windows, (p, q), (r, s), 0)
    )
    return y.reshape((x.shape[0], x.shape[1] * prod(kernel), prod(space)))


@operator("Unfold")
def unfold(input: Any, kernel_size: Ints, dilation: Ints = 1, padding: Ints = 0, stride: Ints = 1) -> Value:
    """Return the windows of input [B, C, H, W] (or [C, H, W]) as columns: [B, C*R*S, L], L being the number of places
    in row-major order. Padding is zeros."""
    x = tensor(input, "unfold", "input", rank=(3, 4))
    if x.ndim == 3:
        return unfold(x.reshape((1, *x.shape)), kernel_size, dilation, padding, stride)[0]
    return _blocks(x, _unfold_windows("unfold", x.shape[2:], kernel_size, dilation, padding, stride))


@operator("Fold", aten="col2im.default")
def fold(
    input: Any, output_size: Ints, kernel_size: Ints, dilation: Ints = 1, padding: Ints = 0, stride: Ints = 1
) -> Value:
    """Sum columns [B, C*R*S, L] (or [C*R*S, L]) at their places: the transpose of `unfold`, [B, C, *output_size].

    Raises ShapeError if the number of columns is not that of windows.
    """
    x = tensor(input, "fold", "input", rank=(2, 3), kind="float")
    if x.ndim == 2:
        return fold(x.reshape((1, *x.shape)), output_size, kernel_size, dilation, padding, stride)[0]
    extents = ints(output_size, 2, "fold", "output_size")
    windows = _unfold_windows("fold", extents, kernel_size, dilation, padding, stride)
    size, places = prod(w.kernel for w in windows), prod(w.count for w in windows)
    if x.shape[1] % size or x.shape[2] != places:
        raise ShapeError(f"fold: 'input' {x.shape} needs a multiple of {size} rows and {places} columns")
    shape = (x.shape[0], x.shape[1] // size, *extents)
    return apply_transpose(lambda y: _blocks(y, windows), shape, x)


@operator()
def upsample(
    input: Any,
    size: Ints | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
) -> Value:
    """Interpolate to other extents: the former name of `interpolate`."""
    return interpolate(input, size, scale_factor, mode, align_corners)


@operator()
def upsample_nearest(
    input: Any, size: Ints | None = None, scale_factor: float | Sequence[float] | None = None
) -> Value:
    """Interpolate to other extents by the nearest elements; see `interpolate`."""
    return interpolate(input, size, scale_factor, "nearest")


@operator()
def upsample_bilinear(
    input: Any, size: Ints | None = None, scale_factor: float | Sequence[float] | None = None
) -> Value:
    """Interpolate to other extents, bilinear with aligned corners; see `interpolate`."""
    return interpolate(input, size, scale_factor, "bilinear", True)
