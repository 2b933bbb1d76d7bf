"""Sampling of images at positions given by a tensor."""

from __future__ import annotations

from einsmith.frontends.aten.table import aten
from einsmith.ops.sampling import MODES, PADDINGS, sample
from einsmith.tracing.builder import Value


@aten("grid_sampler_2d.default grid_sampler_3d.default")
def grid_sampler(x: Value, grid: Value, mode: int, padding: int, align_corners: bool) -> Value:
    """x[b, c, v, u] or x[b, c, w, v, u] at the positions (u, v) or (u, v, w) of grid in [-1, 1]: nearest, linear along
    each dimension, or bicubic in two"""
    return sample(x, grid, MODES[mode], PADDINGS[padding], align_corners)
