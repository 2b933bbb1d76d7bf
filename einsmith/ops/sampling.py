"""Read images at positions that a tensor gives. Source: Jaderberg et al. 2015, arXiv 1506.02025."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

from einsmith.base import dtypes as dt
from einsmith.base.errors import ArgumentError, ShapeError
from einsmith.ops.activation import hardtanh
from einsmith.ops.common import all_of, extents, tensor
from einsmith.ops.creation import ones_like
from einsmith.ops.elementwise import round
from einsmith.ops.operator import operator
from einsmith.tracing import builder
from einsmith.tracing.builder import Value

CUBIC = -0.75
MODES = ("bilinear", "nearest", "bicubic")
PADDINGS = ("zeros", "border", "reflection")


def _reflect(p: Value, n: int, align_corners: bool) -> Value:
    """Return places mirrored at the first and last element, or at their outer sides."""
    low, high = (0.0, n - 1.0) if align_corners else (-0.5, n - 0.5)
    if high <= low:
        return p * 0.0
    span = high - low
    away = builder.where(p < low, low - p, p - low)
    turns = builder.stop_gradient(builder.floor(away / span))
    rest = away - turns * span
    return builder.where(turns % 2.0 == 0, rest + low, span - rest + low)


def _pad(p: Value, n: int, padding: str, align_corners: bool) -> Value:
    """Map places into the extent by the padding mode; "zeros" leaves them."""
    if padding == "zeros":
        return p
    if padding == "reflection":
        p = _reflect(p, n, align_corners)
    return hardtanh(p, 0.0, n - 1.0) if n > 1 else p * 0.0


def _linear(rest: Any) -> list[tuple[int, Any]]:
    """Return (offset, weight) of the two neighbours of a place, whose fraction is `rest`."""
    return [(0, 1.0 - rest), (1, rest)]


def _cubic(rest: Any) -> list[tuple[int, Any]]:
    """Return (offset, weight) of the four neighbours of a place. Source: Keys 1981, with PyTorch's constant."""

    def near(t: Any) -> Any:
        return ((CUBIC + 2) * t - (CUBIC + 3)) * t * t + 1.0

    def far(t: Any) -> Any:
        return ((CUBIC * t - 5 * CUBIC) * t + 8 * CUBIC) * t - 4 * CUBIC

    return [(-1, far(rest + 1.0)), (0, near(rest)), (1, near(1.0 - rest)), (2, far(2.0 - rest))]


def sample(x: Value, grid: Value, mode: str, padding: str, align_corners: bool) -> Value:
    """Return x [b, c, ..] at the places grid [b, .., n], whose last coordinate runs along the first of the n
    dimensions."""
    sizes = x.shape[2:]

    def place(axis: int) -> Value:
        g, n = grid[..., len(sizes) - 1 - axis], sizes[axis]
        p = (g + 1.0) * 0.5 * (n - 1.0) if align_corners else ((g + 1.0) * float(n) - 1.0) * 0.5
        return p if mode == "bicubic" else _pad(p, n, padding, align_corners)

    def neighbours(p: Value, n: int) -> list[tuple[Value, Value]]:
        """Return (place, weight) of each element that is read along one axis."""
        if mode == "nearest":
            near = builder.stop_gradient(round(p))
            return [(near, ones_like(near))]
        taps = _near(p, _cubic if mode == "bicubic" else _linear)
        return [(_pad(q, n, padding, align_corners) if mode == "bicubic" else q, w) for q, w in taps]

    return _sum_neighbours(x, [neighbours(place(axis), n) for axis, n in enumerate(sizes)])


def read_linearly(x: Value, places: Sequence[Value]) -> Value:
    """Return x [b, c, ..] linearly interpolated at places [b, ..] along each of its dimensions of space; it is 0
    outside."""
    return _sum_neighbours(x, [_near(p, _linear) for p in places])


def _near(p: Value, weights: Callable[[Value], list[tuple[int, Value]]]) -> list[tuple[Value, Value]]:
    """Return (place, weight) of the neighbours of p."""
    first = builder.stop_gradient(builder.floor(p))
    return [(first + float(k), w) for k, w in weights(p - first)]


def _sum_neighbours(x: Value, neighbours: Sequence[Sequence[tuple[Value, Value]]]) -> Value:
    """Return the weighted sum of x over all combinations of the neighbours (place, weight) along each dimension."""
    total: Any = None
    for taken in product(*neighbours):
        weight = taken[0][1]
        for _, w in taken[1:]:
            weight = weight * w
        shape = (*x.shape[:2], *weight.shape[1:])
        whole = builder.broadcast_to(weight.reshape((weight.shape[0], 1, *weight.shape[1:])), shape)
        term = _read(x, [p for p, _ in taken]) * whole
        total = term if total is None else total + term
    return total


def _read(x: Value, places: Sequence[Value]) -> Value:
    """Return x at whole places, 0 outside."""
    within = [(p >= 0) & (p <= n - 1.0) for p, n in zip(places, x.shape[2:], strict=True)]
    inside = all_of(within)
    rows = [builder.where(inside, p, 0.0).astype(dt.i64) for p in places]
    return builder.compute(
        (*x.shape[:2], *places[0].shape[1:]),
        lambda n, k, *i: builder.where(inside[(n, *i)], x[(n, k, *(r[(n, *i)] for r in rows))], 0.0),
    )


@operator()
def grid_sample(
    input: Any,
    grid: Any,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool | None = None,
) -> Value:
    """Return the input [B, C, H, W] at the positions grid [B, P, Q, 2], (column, row) in [-1, 1]: [B, C, P, Q].

    Also [B, C, D, H, W] at [B, O, P, Q, 3]. mode: "bilinear" (trilinear), "nearest" or "bicubic". padding_mode: what
    is outside: "zeros", "border" or "reflection". align_corners: whether -1 and 1 are the middles of the outer
    elements, not their sides; None is False.
    """
    name = "grid_sample"
    x = tensor(input, name, "input", rank=(4, 5), kind="float")
    g = tensor(grid, name, "grid", rank=x.ndim, kind="float")
    if mode not in MODES or padding_mode not in PADDINGS:
        raise ArgumentError(
            f"{name}: mode={mode!r} must be one of {', '.join(map(repr, MODES))}, and padding_mode={padding_mode!r} "
            f"one of {', '.join(map(repr, PADDINGS))}"
        )
    if mode == "bicubic" and x.ndim == 5:
        raise ArgumentError(
            f"{name}: mode='bicubic' needs an input of 4 dimensions, got shape {x.shape}; use 'bilinear'"
        )
    if g.shape[0] != x.shape[0] or g.shape[-1] != x.ndim - 2:
        raise ShapeError(
            f"{name}: 'grid' has shape {g.shape}, needs the batch {x.shape[0]} of 'input' {x.shape} and {x.ndim - 2} "
            "coordinates as last extent"
        )
    if not all(x.shape[1:]):
        raise ShapeError(f"{name}: 'input' {x.shape} has no elements to read")
    return sample(x, g, mode, padding_mode, bool(align_corners)).astype(x.dtype)


@operator(aten="affine_grid_generator.default")
def affine_grid(theta: Any, size: Sequence[int], align_corners: bool | None = None) -> Value:
    """Return where matrices theta [B, 2, 3] move the positions of an image of `size` [B, C, H, W]: [B, H, W, 2].

    For volumes theta is [B, 3, 4], size [B, C, D, H, W] and the result [B, D, H, W, 3]. See `grid_sample`.
    """
    name = "affine_grid"
    shape = extents(name, (size,))
    n = len(shape) - 2
    t = tensor(theta, name, "theta", rank=3, kind="float")
    if n not in (2, 3) or t.shape != (shape[0], n, n + 1) or not all(shape):
        raise ShapeError(
            f"{name}: size={shape} must be [B, C, H, W] with 'theta' [B, 2, 3], or [B, C, D, H, W] with [B, 3, 4], all "
            f"extents positive; 'theta' has shape {t.shape}"
        )

    def coordinate(i: Any, extent: int) -> Any:
        if align_corners:
            return builder.cast(i, t.dtype) * (2 / (extent - 1)) - 1.0 if extent > 1 else 0.0
        return (2.0 * builder.cast(i, t.dtype) + 1.0) * (1 / extent) - 1.0

    def position(b: Any, *i: Any) -> Any:
        *places, k = i
        total = t[b, k, n]
        for j, (p, extent) in enumerate(zip(reversed(places), reversed(shape[2:]), strict=True)):
            total = total + t[b, k, j] * coordinate(p, extent)
        return total

    return builder.compute((shape[0], *shape[2:], n), position)
