"""Sampling of images at positions given by a tensor."""

from __future__ import annotations

from einsmith.frontends.aten.table import aten
from einsmith.lang.builder import Value
from einsmith.ops.sampling import MODES, PADDINGS, sample


@aten("grid_sampler_2d.default")
def grid_sampler_2d(x: Value, grid: Value, mode: int, padding: int, align_corners: bool) -> Value:
    """x[b, c, v, u] at the positions (u, v) of grid in [-1, 1]: nearest, bilinear or bicubic"""
    return sample(x, grid, MODES[mode], PADDINGS[padding], align_corners)


@aten("grid_sampler_3d.default")
def grid_sampler_3d(x: Value, grid: Value, mode: int, padding: int, align_corners: bool) -> Value:
    """x[b, c, w, v, u] at the positions (u, v, w) of grid in [-1, 1]: nearest or trilinear"""
    return sample(x, grid, MODES[mode], PADDINGS[padding], align_corners)
