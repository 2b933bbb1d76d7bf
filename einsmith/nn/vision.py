"""Define layers that change resolution or move elements between channels and places, named as in torch.nn."""

from __future__ import annotations

from collections.abc import Sequence

from einsmith import ops as F
from einsmith.base.errors import ArgumentError
from einsmith.nn.conv import Amounts, Ints, check_sizes
from einsmith.nn.module import Module
from einsmith.nn.operator_layer import OperatorLayer
from einsmith.ops.resize import RANKS
from einsmith.tracing.builder import Value

Factors = float | Sequence[float] | None


class Upsample(Module):
    """Other extents, by `size` or `scale_factor`; see `functional.interpolate`."""

    def __init__(
        self,
        size: Ints | None = None,
        scale_factor: Factors = None,
        mode: str = "nearest",
        align_corners: bool | None = None,
        recompute_scale_factor: bool | None = None,
    ):
        if mode not in RANKS:
            raise ArgumentError(f"{type(self).__name__}: mode={mode!r} is none of {', '.join(map(repr, RANKS))}")
        if size == () or scale_factor == ():
            raise ArgumentError(f"{type(self).__name__}: size and scale_factor must have at least one number")
        if (size is None) == (scale_factor is None):
            raise ArgumentError(f"{type(self).__name__}: give one of size={size!r} and scale_factor={scale_factor!r}")
        self.size = tuple(size) if isinstance(size, (tuple, list)) else size
        self.scale_factor: float | tuple[float, ...] | None = None
        if isinstance(scale_factor, (tuple, list)):
            self.scale_factor = tuple(map(float, scale_factor))
        elif scale_factor is not None:
            self.scale_factor = float(scale_factor)  # type: ignore[arg-type]
        self.mode, self.align_corners, self.recompute_scale_factor = mode, align_corners, recompute_scale_factor

    def forward(self, input: Value) -> Value:
        return F.interpolate(
            input, self.size, self.scale_factor, self.mode, self.align_corners, self.recompute_scale_factor
        )

    def extra_repr(self) -> str:
        of = f"size={self.size!r}" if self.scale_factor is None else f"scale_factor={self.scale_factor!r}"
        return f"{of}, mode={self.mode!r}"


class UpsamplingNearest2d(Upsample):
    """Other extents of [B, C, H, W], by the nearest elements; see `functional.interpolate`."""

    def __init__(self, size: Ints | None = None, scale_factor: Factors = None):
        super().__init__(size, scale_factor, "nearest")


class UpsamplingBilinear2d(Upsample):
    """Other extents of [B, C, H, W], bilinear with aligned corners; see `functional.interpolate`."""

    def __init__(self, size: Ints | None = None, scale_factor: Factors = None):
        super().__init__(size, scale_factor, "bilinear", align_corners=True)


class _Windows(OperatorLayer, family="unfold fold"):
    output_size: Ints
    kernel_size: Ints
    dilation: Ints
    padding: Amounts
    stride: Ints
    dims = 2

    def check(self) -> None:
        check_sizes(self, **{n: getattr(self, n) for n in self._settings})
