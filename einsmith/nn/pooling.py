"""Define pooling layers, under torch.nn's names and arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from einsmith import ops as F
from einsmith.base.arguments import Count
from einsmith.lang.builder import Value
from einsmith.nn.conv import Amounts, Ints, check_sizes, repeat
from einsmith.nn.module import Module

Sizes = Count | Sequence[Count | None] | None


class _MaxPool(Module):
    dims: int

    def __init__(
        self,
        kernel_size: Ints,
        stride: Ints | None = None,
        padding: Amounts = 0,
        dilation: Ints = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ):
        self.kernel_size, self.stride = kernel_size, kernel_size if stride is None else stride
        self.padding, self.dilation = padding, dilation
        self.return_indices, self.ceil_mode = return_indices, ceil_mode
        check_sizes(self, kernel_size=kernel_size, stride=self.stride, padding=padding, dilation=dilation)

    def forward(self, input: Value) -> Any:
        pool = getattr(F, f"max_pool{self.dims}d")
        return pool(
            input, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode, self.return_indices
        )

    def extra_repr(self) -> str:
        return (
            f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}, dilation={self.dilation}, "
            f"ceil_mode={self.ceil_mode}"
        )


class MaxPool1d(_MaxPool):
    """The largest element of each window of [B, C, L] or [C, L]; see `functional.max_pool1d`."""

    dims = 1


class MaxPool2d(_MaxPool):
    """The largest element of each window; see `functional.max_pool2d`."""

    dims = 2


class MaxPool3d(_MaxPool):
    """The largest element of each window of [B, C, D, H, W] or [C, D, H, W]; see `functional.max_pool3d`."""

    dims = 3


class _MaxUnpool(Module):
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


class MaxUnpool1d(_MaxUnpool):
    """Undoes a `MaxPool1d` that gives indices; see `functional.max_unpool1d`."""

    dims = 1


class MaxUnpool2d(_MaxUnpool):
    """Undoes a `MaxPool2d` that gives indices; see `functional.max_unpool2d`."""

    dims = 2


class MaxUnpool3d(_MaxUnpool):
    """Undoes a `MaxPool3d` that gives indices; see `functional.max_unpool3d`."""

    dims = 3


class AvgPool1d(Module):
    """The mean of each window of [B, C, L] or [C, L]; see `functional.avg_pool1d`."""

    dims = 1

    def __init__(
        self,
        kernel_size: Ints,
        stride: Ints | None = None,
        padding: Amounts = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ):
        self.kernel_size = repeat(self, "kernel_size", kernel_size)
        self.stride = self.kernel_size if stride is None else repeat(self, "stride", stride)
        self.padding = repeat(self, "padding", padding)
        self.ceil_mode, self.count_include_pad = ceil_mode, count_include_pad

    def forward(self, input: Value) -> Value:
        return F.avg_pool1d(input, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad)

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class _AvgPool(Module):
    dims: int

    def __init__(
        self,
        kernel_size: Ints,
        stride: Ints | None = None,
        padding: Amounts = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ):
        self.kernel_size, self.stride, self.padding = kernel_size, kernel_size if stride is None else stride, padding
        self.ceil_mode, self.count_include_pad, self.divisor_override = ceil_mode, count_include_pad, divisor_override
        check_sizes(self, kernel_size=kernel_size, stride=self.stride, padding=padding)

    def forward(self, input: Value) -> Value:
        pool = getattr(F, f"avg_pool{self.dims}d")
        return pool(
            input,
            self.kernel_size,
            self.stride,
            self.padding,
            self.ceil_mode,
            self.count_include_pad,
            self.divisor_override,
        )

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class AvgPool2d(_AvgPool):
    """The mean of each window; see `functional.avg_pool2d`."""

    dims = 2


class AvgPool3d(_AvgPool):
    """The mean of each window of [B, C, D, H, W] or [C, D, H, W]; see `functional.avg_pool3d`."""

    dims = 3


class _AdaptiveAvgPool(Module):
    dims: int

    def __init__(self, output_size: Sizes):
        check_sizes(self, output_size=output_size)
        self.output_size = output_size

    def forward(self, input: Value) -> Value:
        return getattr(F, f"adaptive_avg_pool{self.dims}d")(input, self.output_size)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"


class AdaptiveAvgPool1d(_AdaptiveAvgPool):
    """The means of `output_size` windows; see `functional.adaptive_avg_pool1d`."""

    dims = 1


class AdaptiveAvgPool2d(_AdaptiveAvgPool):
    """The means of windows, as many as `output_size` says; see `functional.adaptive_avg_pool2d`."""

    dims = 2


class AdaptiveAvgPool3d(_AdaptiveAvgPool):
    """The means of windows, as many as `output_size` says; see `functional.adaptive_avg_pool3d`."""

    dims = 3


class _AdaptiveMaxPool(Module):
    dims: int

    def __init__(self, output_size: Sizes, return_indices: bool = False):
        check_sizes(self, output_size=output_size)
        self.output_size, self.return_indices = output_size, return_indices

    def forward(self, input: Value) -> Any:
        return getattr(F, f"adaptive_max_pool{self.dims}d")(input, self.output_size, self.return_indices)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"


class AdaptiveMaxPool1d(_AdaptiveMaxPool):
    """The largest elements of `output_size` windows; see `functional.adaptive_max_pool1d`."""

    dims = 1


class AdaptiveMaxPool2d(_AdaptiveMaxPool):
    """The largest elements of windows, as many as `output_size` says; see `functional.adaptive_max_pool2d`."""

    dims = 2


class AdaptiveMaxPool3d(_AdaptiveMaxPool):
    """The largest elements of windows, as many as `output_size` says; see `functional.adaptive_max_pool3d`."""

    dims = 3


class _LPPool(Module):
    dims: int

    def __init__(self, norm_type: float, kernel_size: Ints, stride: Ints | None = None, ceil_mode: bool = False):
        self.norm_type, self.kernel_size, self.stride, self.ceil_mode = norm_type, kernel_size, stride, ceil_mode
        check_sizes(self, kernel_size=kernel_size, stride=kernel_size if stride is None else stride)

    def forward(self, input: Value) -> Value:
        pool = getattr(F, f"lp_pool{self.dims}d")
        return pool(input, float(self.norm_type), self.kernel_size, self.stride, self.ceil_mode)

    def extra_repr(self) -> str:
        return (
            f"norm_type={self.norm_type}, kernel_size={self.kernel_size}, stride={self.stride}, "
            f"ceil_mode={self.ceil_mode}"
        )


class LPPool1d(_LPPool):
    """The power norm of each window; see `functional.lp_pool1d`."""

    dims = 1


class LPPool2d(_LPPool):
    """The power norm of each window; see `functional.lp_pool2d`."""

    dims = 2


class LPPool3d(_LPPool):
    """The power norm of each window; see `functional.lp_pool3d`."""

    dims = 3
