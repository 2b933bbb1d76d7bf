"""Sampling of images at positions given by a tensor. Source: Jaderberg et al. 2015, arXiv 1506.02025."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

from einsmith import ops as F
from einsmith.base import dtypes as dt
from einsmith.frontends.aten.table import aten
from einsmith.lang import builder
from einsmith.lang.builder import Value
from einsmith.ops.common import all_of

CUBIC = -0.75


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


def _pad(p: Value, n: int, padding: int, align_corners: bool) -> Value:
    """Map places into the extent by the padding mode: 0 zeros (unchanged), 1 border, 2 reflection."""
    if padding == 2:
        p = _reflect(p, n, align_corners)
    return F.hardtanh(p, 0.0, n - 1.0) if padding and n > 1 else p * 0.0 if padding else p


def _linear(rest: Value) -> list[tuple[int, Value]]:
    return [(0, 1.0 - rest), (1, rest)]


def _cubic(rest: Value) -> list[tuple[int, Value]]:
    """Return weights of the four neighbours. Source: Keys 1981, with PyTorch's constant."""

    def near(t: Value) -> Value:
        return ((CUBIC + 2) * t - (CUBIC + 3)) * t * t + 1.0

    def far(t: Value) -> Value:
        return ((CUBIC * t - 5 * CUBIC) * t + 8 * CUBIC) * t - 4 * CUBIC

    return [(-1, far(rest + 1.0)), (0, near(rest)), (1, near(1.0 - rest)), (2, far(2.0 - rest))]


def _sample(x: Value, grid: Value, mode: int, padding: int, align_corners: bool) -> Value:
    """Return x [b, c, ..] at the places grid [b, .., n], whose last coordinate runs along the first of the n
    dimensions."""
    sizes = x.shape[2:]

    def place(axis: int) -> Value:
        g, n = grid[..., len(sizes) - 1 - axis], sizes[axis]
        p = (g + 1.0) * 0.5 * (n - 1.0) if align_corners else ((g + 1.0) * n - 1.0) * 0.5
        return p if mode == 2 else _pad(p, n, padding, align_corners)

    def neighbours(p: Value, n: int) -> list[tuple[Value, Value]]:
        """Return (place, weight) of each element that is read along one axis."""
        if mode == 1:
            near = builder.stop_gradient(F.round(p))
            return [(near, F.ones_like(near))]
        first = builder.stop_gradient(builder.floor(p))
        weights: Callable[[Value], list[tuple[int, Value]]] = _cubic if mode == 2 else _linear
        found = [(first + float(k), w) for k, w in weights(p - first)]
        return [(_pad(q, n, padding, align_corners) if mode == 2 else q, w) for q, w in found]

    total: Any = None
    for taken in product(*(neighbours(place(axis), n) for axis, n in enumerate(sizes))):
        weight = taken[0][1]
        for _, w in taken[1:]:
            weight = weight * w
        whole = F.broadcast_to(weight.reshape((x.shape[0], 1, *weight.shape[1:])), (*x.shape[:2], *weight.shape[1:]))
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


@aten("grid_sampler_2d.default")
def grid_sampler_2d(x: Value, grid: Value, mode: int, padding: int, align_corners: bool) -> Value:
    """x[b, c, v, u] at the positions (u, v) of grid in [-1, 1]: nearest, bilinear or bicubic"""
    return _sample(x, grid, mode, padding, align_corners)


@aten("grid_sampler_3d.default")
def grid_sampler_3d(x: Value, grid: Value, mode: int, padding: int, align_corners: bool) -> Value:
    """x[b, c, w, v, u] at the positions (u, v, w) of grid in [-1, 1]: nearest or trilinear"""
    return _sample(x, grid, mode, padding, align_corners)
