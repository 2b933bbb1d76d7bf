"""Define pooling layers, under torch.nn's names and arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from einsmith import ops as F
from einsmith.base.arguments import Count
from einsmith.base.errors import ArgumentError
from einsmith.nn.conv import Amounts, Ints, check_sizes, repeat
from einsmith.nn.module import Variant
from einsmith.nn.operator_layer import OperatorLayer
from einsmith.tracing.builder import Value

Sizes = Count | Sequence[Count | None] | None


class _Pool(OperatorLayer, family="lp_pool"):
    kernel_size: Ints
    stride: Ints | None
    padding: Amounts
    dilation: Ints

    def check(self) -> None:
        sizes = {n: getattr(self, n) for n in ("kernel_size", "stride", "padding", "dilation") if n in self._settings}
        check_sizes(self, **{n: x for n, x in sizes.items() if x is not None})


class _StridedPool(_Pool, family="avg_pool2d avg_pool3d"):
    """Its `stride` is the window's size where none is given."""

    shown: tuple[str, ...] | None = ("kernel_size", "stride", "padding")

    def check(self) -> None:
        if self.stride is None:
            self.stride = self.kernel_size
        super().check()


class _MaxPool(_StridedPool, family="max_pool"):
    shown = ("kernel_size", "stride", "padding", "dilation", "ceil_mode")


class _MaxUnpool(Variant):
    static_argnames = ("output_size",)
    dims: int

    def __init__(self, kernel_size: Ints, stride: Ints | None = None, padding: Amounts = 0):
        self.kernel_size = repeat(self, "kernel_size", kernel_size)
        self.stride = self.kernel_size if stride is None else repeat(self, "stride", stride)
        self.padding = repeat(self, "padding", padding)

    def forward(self, input: Value, indices: Value, output_size: Sequence[int] | None = None) -> Value:
        unpool = getattr(F, f"max_unpool{self.dims}d")
        return unpool(input, indices, self.kernel_size, self.stride, self.padding, output_size)

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class MaxUnpool1d(_MaxUnpool, dims=1):
    """Undoes a `MaxPool1d` that gives indices; see `functional.max_unpool1d`."""


class MaxUnpool2d(_MaxUnpool, dims=2):
    """Undoes a `MaxPool2d` that gives indices; see `functional.max_unpool2d`."""


class MaxUnpool3d(_MaxUnpool, dims=3):
    """Undoes a `MaxPool3d` that gives indices; see `functional.max_unpool3d`."""


class _AvgPool1d(_StridedPool, family="avg_pool1d"):
    def check(self) -> None:
        super().check()
        for name in ("kernel_size", "stride", "padding"):
            setattr(self, name, repeat(self, name, getattr(self, name)))


class _AdaptivePool(OperatorLayer, family="adaptive_avg_pool adaptive_max_pool"):
    output_size: Sizes
    shown = ("output_size",)

    def check(self) -> None:
        check_sizes(self, output_size=self.output_size)


class _FractionalMaxPool(Variant):
    dims: int

    def __init__(
        self,
        kernel_size: Ints,
        output_size: Ints | None = None,
        output_ratio: float | Sequence[float] | None = None,
        return_indices: bool = False,
        _random_samples: Any = None,
    ):
        if (output_size is None) == (output_ratio is None):
            raise ArgumentError(
                f"{type(self).__name__}: give one of output_size={output_size!r} and output_ratio={output_ratio!r}"
            )
        self.kernel_size = repeat(self, "kernel_size", kernel_size)
        self.output_size = None if output_size is None else repeat(self, "output_size", output_size)
        self.output_ratio: float | tuple[float, ...] | None = None
        if output_ratio is not None:
            ratios: Any = output_ratio if isinstance(output_ratio, (tuple, list)) else (output_ratio,) * self.dims
            if len(ratios) != self.dims or not all(0 < r < 1 for r in ratios):
                raise ArgumentError(
                    f"{type(self).__name__}: output_ratio={output_ratio!r} must be a number between 0 and 1, or "
                    f"{self.dims} of them"
                )
            self.output_ratio = tuple(map(float, ratios))
        self.return_indices = return_indices
        self.register_buffer("_random_samples", _random_samples)

    def forward(self, input: Value) -> Any:
        pool = getattr(F, f"fractional_max_pool{self.dims}d")
        return pool(
            input, self.kernel_size, self.output_size, self.output_ratio, self.return_indices, self._random_samples
        )


class FractionalMaxPool2d(_FractionalMaxPool, dims=2):
    """Maxima of windows at random distances; see `functional.fractional_max_pool2d`."""


class FractionalMaxPool3d(_FractionalMaxPool, dims=3):
    """Maxima of windows at random distances; see `functional.fractional_max_pool3d`."""
