"""Pooling over windows, and resizing by interpolation."""

from __future__ import annotations

from collections.abc import Sequence

from einsmith import ops as F
from einsmith.base import dtypes as dt
from einsmith.frontends.aten.table import aten, enter
from einsmith.tracing.builder import Value

Ints = Sequence[int]


def _fractional(name: str) -> None:
    pool = getattr(F, name)

    def run(x: Value, kernel: Ints, size: Ints, samples: Value) -> tuple[Value, Value]:
        return pool(x, tuple(kernel), tuple(size), None, True, samples)

    enter(f"{name}.default", "(max over windows at distances that samples choose, its index in row-major order)", run)


_fractional("fractional_max_pool2d")
_fractional("fractional_max_pool3d")


def _adaptive(name: str) -> None:
    pool = getattr(F, name)
    enter(
        f"_{name}.default",
        "mean of the elements n*i//m to -(-n*(i + 1)//m) - 1",
        lambda x, size: pool(x, tuple(size)),
    )


_adaptive("adaptive_avg_pool2d")
_adaptive("adaptive_avg_pool3d")


# ------------------------------------------------------------------------------------------------------ interpolation


def _resize(name: str, mode: str, formula: str) -> None:
    """Enter an interpolation to extents, or by factors where there are none."""

    def run(x: Value, size: Ints | None, corners: bool | None, scales: Sequence[float] | None = None) -> Value:
        if size is not None:
            return F.interpolate(x, tuple(size), None, mode, corners)
        return F.interpolate(x, None, tuple(scales or ()), mode, corners)

    def nearest(x: Value, size: Ints | None, scales: Sequence[float] | None = None) -> Value:
        return run(x, size, None, scales)

    enter(f"{name}.vec", formula, nearest if mode.startswith("nearest") else run)


for _n in (1, 2, 3):
    _resize(f"upsample_nearest{_n}d", "nearest", "x at floor(p*scale)")
    _resize(f"_upsample_nearest_exact{_n}d", "nearest-exact", "x at floor((p + 1/2)*scale)")
for _name, _mode in (("linear1d", "linear"), ("bilinear2d", "bilinear"), ("trilinear3d", "trilinear"),
                     ("bicubic2d", "bicubic")):  # fmt: skip
    _neighbours = "interpolation of the neighbours of (p + 1/2)*scale - 1/2, or of p*scale with align_corners"
    _resize(f"upsample_{_name}", _mode, _neighbours)


@aten("im2col.default")
def im2col(x: Value, kernel: Ints, dilation: Ints, padding: Ints, stride: Ints) -> Value:
    """windows as columns"""
    if x.dtype.is_bool:
        return im2col(x.astype(dt.i32), kernel, dilation, padding, stride) != 0
    return F.unfold(x, tuple(kernel), tuple(dilation), tuple(padding), tuple(stride))
