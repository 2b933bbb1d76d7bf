"""Pooling over windows, and resizing by interpolation."""

from __future__ import annotations

from collections.abc import Sequence

from einsmith import ops as F
from einsmith.base import dtypes as dt
from einsmith.base.errors import ArgumentError
from einsmith.frontends.aten.table import aten, enter
from einsmith.lang.builder import Value

Ints = Sequence[int]


def _max(name: str) -> None:
    pool = getattr(F, name)

    def run(
        x: Value, kernel: Ints, stride: Ints = (), padding: Ints = (0,), dilation: Ints = (1,), ceil_mode: bool = False
    ) -> tuple[Value, Value]:
        values, places = pool(x, tuple(kernel), tuple(stride) or None, tuple(padding), tuple(dilation), ceil_mode, True)
        return values, places.astype(dt.i64)

    enter(
        f"{name}_with_indices.default", "(max over windows, its index in row-major order), the first of equal ones", run
    )


_max("max_pool1d")
_max("max_pool2d")
_max("max_pool3d")


def _fractional(name: str) -> None:
    pool = getattr(F, name)

    def run(x: Value, kernel: Ints, size: Ints, samples: Value) -> tuple[Value, Value]:
        return pool(x, tuple(kernel), tuple(size), None, True, samples)

    enter(f"{name}.default", "(max over windows at distances that samples choose, its index in row-major order)", run)


_fractional("fractional_max_pool2d")
_fractional("fractional_max_pool3d")


def _adaptive(name: str) -> None:
    pool = getattr(F, name)
    prefix = "" if name.endswith("1d") else "_"
    enter(
        f"{prefix}{name}.default",
        "mean of the elements n*i//m to -(-n*(i + 1)//m) - 1",
        lambda x, size: pool(x, tuple(size)),
    )


_adaptive("adaptive_avg_pool1d")
_adaptive("adaptive_avg_pool2d")
_adaptive("adaptive_avg_pool3d")


def _adaptive_max(name: str) -> None:
    pool = getattr(F, name)

    def run(x: Value, size: Ints) -> tuple[Value, Value]:
        values, places = pool(x, tuple(size), True)
        return values, places.astype(dt.i64)

    enter(f"{name}.default", "(max of the elements n*i//m to -(-n*(i + 1)//m) - 1, its index)", run)


_adaptive_max("adaptive_max_pool1d")
_adaptive_max("adaptive_max_pool2d")
_adaptive_max("adaptive_max_pool3d")


# ------------------------------------------------------------------------------------------------------ interpolation


def _resize(x: Value, size: Ints | None, scales: Sequence[float] | None, mode: str, corners: bool | None) -> Value:
    if size is not None:
        return F.interpolate(x, tuple(size), None, mode, corners)
    return F.interpolate(x, None, tuple(scales or ()), mode, corners)


def _by_factors(x: Value, size: Ints, scales: Sequence[float | None], mode: str) -> Value:
    """Interpolate to the extents `size` by `scales`, which need not be the ratios of the extents.

    A scale of None is the ratio. Raises ArgumentError if the scales give other extents.
    """
    factors = tuple(n / e if s is None else s for s, n, e in zip(scales, size, x.shape[2:], strict=True))
    value = F.interpolate(x, None, factors, mode, None if mode.startswith("nearest") else False)
    if value.shape[2:] != tuple(size):
        raise ArgumentError(f"interpolation to {tuple(size)}, but the factors {factors} give {value.shape[2:]}")
    return value


def _nearest(name: str, mode: str, formula: str) -> None:
    def run(x: Value, size: Ints | None, scales: Sequence[float] | None = None) -> Value:
        return _resize(x, size, scales, mode, None)

    enter(f"{name}.vec", formula, run)

    def sized(x: Value, size: Ints, *scales: float | None) -> Value:
        return _by_factors(x, size, scales, mode) if any(s is not None for s in scales) else run(x, size)

    enter(f"{name}.default", formula, sized)


for _n in (1, 2, 3):
    _nearest(f"upsample_nearest{_n}d", "nearest", "x at floor(p*scale)")
    _nearest(f"_upsample_nearest_exact{_n}d", "nearest-exact", "x at floor((p + 1/2)*scale)")


def _linear(name: str, mode: str) -> None:
    def run(x: Value, size: Ints | None, align_corners: bool, scales: Sequence[float] | None = None) -> Value:
        return _resize(x, size, scales, mode, align_corners)

    formula = "interpolation of the neighbours of (p + 1/2)*scale - 1/2, or of p*scale with align_corners"
    enter(f"{name}.vec", formula, run)

    def sized(x: Value, size: Ints, align_corners: bool, *scales: float | None) -> Value:
        if any(s is not None for s in scales) and not align_corners:
            return _by_factors(x, size, scales, mode)
        return run(x, size, align_corners)

    enter(f"{name}.default", formula, sized)


_linear("upsample_linear1d", "linear")
_linear("upsample_bilinear2d", "bilinear")
_linear("upsample_trilinear3d", "trilinear")
_linear("upsample_bicubic2d", "bicubic")


@aten("im2col.default")
def im2col(x: Value, kernel: Ints, dilation: Ints, padding: Ints, stride: Ints) -> Value:
    """windows as columns"""
    if x.dtype.is_bool:
        return im2col(x.astype(dt.i32), kernel, dilation, padding, stride) != 0
    return F.unfold(x, tuple(kernel), tuple(dilation), tuple(padding), tuple(stride))
