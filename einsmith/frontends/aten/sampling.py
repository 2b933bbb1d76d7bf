"""Images read at places that a tensor gives. Source: Jaderberg et al. 2015, arXiv 1506.02025."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from einsmith import dtypes as dt
from einsmith import functional as F
from einsmith.frontends.aten.table import aten
from einsmith.lang import builder as fb
from einsmith.lang.builder import Value

CUBIC = -0.75


def _reflected(p: Value, n: int, align_corners: bool) -> Value:
    """Places mirrored at the first and last element, or at their outer sides."""
    low, high = (0.0, n - 1.0) if align_corners else (-0.5, n - 0.5)
    if high <= low:
        return p * 0.0
    span = high - low
    away = fb.where(p < low, low - p, p - low)
    turns = fb.stop_gradient(fb.floor(away / span))
    rest = away - turns * span
    return fb.where(turns % 2.0 == 0, rest + low, span - rest + low)


def _kept(p: Value, n: int, padding: int, align_corners: bool) -> Value:
    """Places as the padding has them: 0 zeros, 1 the border, 2 reflection."""
    if padding == 2:
        p = _reflected(p, n, align_corners)
    return F.hardtanh(p, 0.0, n - 1.0) if padding and n > 1 else p * 0.0 if padding else p


def _linear(rest: Value) -> list[tuple[int, Value]]:
    return [(0, 1.0 - rest), (1, rest)]


def _cubic(rest: Value) -> list[tuple[int, Value]]:
    """Weights of the four neighbours. Source: Keys 1981, with PyTorch's constant."""

    def near(t: Value) -> Value:
        return ((CUBIC + 2) * t - (CUBIC + 3)) * t * t + 1.0

    def far(t: Value) -> Value:
        return ((CUBIC * t - 5 * CUBIC) * t + 8 * CUBIC) * t - 4 * CUBIC

    return [(-1, far(rest + 1.0)), (0, near(rest)), (1, near(1.0 - rest)), (2, far(2.0 - rest))]


@aten("grid_sampler_2d.default")
def grid_sampler_2d(x: Value, grid: Value, mode: int, padding: int, align_corners: bool) -> Value:
    """x[b, c, v, u] at the places (u, v) of grid in [-1, 1], of the nearest, or of two or four neighbours a side"""
    b, c, height, width = x.shape

    def place(axis: int, n: int) -> Value:
        g = grid[..., axis]
        p = (g + 1.0) * 0.5 * (n - 1.0) if align_corners else ((g + 1.0) * n - 1.0) * 0.5
        return p if mode == 2 else _kept(p, n, padding, align_corners)

    def neighbours(p: Value, n: int) -> list[tuple[Value, Value]]:
        """(place, weight) of what is read along one axis."""
        if mode == 1:
            near = fb.stop_gradient(F.round(p))
            return [(near, F.ones_like(near))]
        first = fb.stop_gradient(fb.floor(p))
        weights: Callable[[Value], list[tuple[int, Value]]] = _cubic if mode == 2 else _linear
        found = [(first + float(k), w) for k, w in weights(p - first)]
        return [(_kept(q, n, padding, align_corners) if mode == 2 else q, w) for q, w in found]

    total: Any = None
    for v, by_row in neighbours(place(1, height), height):
        for u, by_column in neighbours(place(0, width), width):
            term = _read(x, v, u) * _over_channels(by_row * by_column, c)
            total = term if total is None else total + term
    return total


def _over_channels(weight: Value, c: int) -> Value:
    b, h, w = weight.shape
    return F.broadcast_to(weight.reshape((b, 1, h, w)), (b, c, h, w))


def _read(x: Value, v: Value, u: Value) -> Value:
    """x at whole places, 0 outside."""
    inside = (v >= 0) & (v <= x.shape[2] - 1.0) & (u >= 0) & (u <= x.shape[3] - 1.0)
    row, column = (fb.where(inside, p, 0.0).astype(dt.i64) for p in (v, u))
    b, c, h, w = x.shape[0], x.shape[1], *v.shape[1:]
    return fb.compute(
        (b, c, h, w),
        lambda n, k, i, j: fb.where(inside[n, i, j], x[n, k, row[n, i, j], column[n, i, j]], 0.0),
    )
