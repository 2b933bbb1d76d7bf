"""Define convolutions and transposed convolutions, under torch.nn's names, arguments, state names and shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from einsmith import ops as F
from einsmith.base.arguments import Count, Size, whole_numbers
from einsmith.base.errors import ArgumentError, ShapeError
from einsmith.nn.linear import empty, reset
from einsmith.nn.module import Variant
from einsmith.ops.common import tensor
from einsmith.ops.conv import same_padding
from einsmith.tracing.builder import Value

Ints = Count | Sequence[Count]
Amounts = Size | Sequence[Size]
PADDING_MODES = "zeros", "reflect", "replicate", "circular"


def repeat(layer: Any, what: str, x: Any, n: int | None = None) -> tuple[Any, ...]:
    """Return `x` as a tuple of `n` elements, by default the layer's dimensions; one element is repeated.

    what: name of the argument, for messages. Raises ArgumentError for another number of elements."""
    n = layer.dims if n is None else n
    many = tuple(x) if isinstance(x, Sequence) else (x,)
    if len(many) == 1:
        many = many * n
    if len(many) != n:
        raise ArgumentError(f"{type(layer).__name__}: {what}={x!r} must be an int or {n} ints")
    return many


def check_sizes(layer: Any, **sizes: Any) -> None:
    """Check named sizes. Raises ArgumentError where their number is neither 1 nor the layer's dimensions."""
    for what, value in sizes.items():
        repeat(layer, what, value)


class _Convolution(Variant):
    """Common base of convolutions and transposed convolutions."""

    dims: int
    is_transposed = False
    modes: tuple[str, ...] = PADDING_MODES
    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: Any
    dilation: tuple[int, ...]
    output_padding: tuple[int, ...]

    def _prepare(
        self, channels: int, out: int, groups: int, bias: bool, padding_mode: str, dtype: Any, **sizes: Any
    ) -> None:
        """Check and set the arguments. sizes: those that have a value for each dimension."""
        name = type(self).__name__
        if channels % groups or out % groups:
            raise ArgumentError(f"{name}: groups={groups} must divide in_channels={channels} and out_channels={out}")
        if padding_mode not in self.modes:
            raise ArgumentError(f"{name}: padding_mode={padding_mode!r} is none of {', '.join(map(repr, self.modes))}")
        self.in_channels, self.out_channels, self.groups, self.padding_mode = channels, out, groups, padding_mode
        for what, size in sizes.items():
            is_named = what == "padding" and isinstance(size, str) and not self.is_transposed
            if is_named and size not in ("same", "valid"):
                raise ArgumentError(f"{name}: padding={size!r} must be 'same', 'valid' or ints")
            setattr(self, what, size if is_named else repeat(self, what, size))
        if self.padding == "same" and any(s != 1 for s in self.stride):
            raise ArgumentError(f"{name}: padding='same' needs stride 1, not {self.stride}")
        first, second = (channels, out) if self.is_transposed else (out, channels)
        self.weight = empty((first, second // groups, *self.kernel_size), dtype)
        self.register_parameter("bias", empty((out,), dtype) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new initial values."""
        reset(self.weight, self.bias)

    def extra_repr(self) -> str:
        zeros, ones = (0,) * self.dims, (1,) * self.dims
        usual = {"padding": zeros, "dilation": ones, "output_padding": zeros, "groups": 1}
        sizes = f"kernel_size={self.kernel_size}, stride={self.stride}"
        others = [f"{n}={getattr(self, n)}" for n, v in usual.items() if getattr(self, n) != v]
        others += ["bias=False"] * (self.bias is None)
        others += [f"padding_mode={self.padding_mode}"] * (self.padding_mode != "zeros")
        return ", ".join([str(self.in_channels), str(self.out_channels), sizes, *others])


class _Conv(_Convolution):
    def __init__(
        self,
        in_channels: Count,
        out_channels: Count,
        kernel_size: Ints,
        stride: Ints = 1,
        padding: Amounts | str = 0,
        dilation: Ints = 1,
        groups: Count = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        *,
        dtype: Any = "float32",
    ):
        sizes = {"kernel_size": kernel_size, "stride": stride, "padding": padding, "dilation": dilation}
        self._prepare(in_channels, out_channels, groups, bias, padding_mode, dtype, **sizes, output_padding=0)

    def forward(self, input: Value) -> Value:
        convolve = getattr(F, f"conv{self.dims}d")
        padding: Amounts | str = self.padding
        if self.padding_mode != "zeros":
            pairs = same_padding(self.kernel_size, self.dilation)
            if padding != "same":
                pairs = [(p, p) for p in ((0,) * self.dims if padding == "valid" else padding)]  # type: ignore
            input = F.pad(input, [p for pair in reversed(pairs) for p in pair], self.padding_mode)
            padding = 0
        return convolve(input, self.weight, self.bias, self.stride, padding, self.dilation, self.groups)


class Conv1d(_Conv, dims=1):
    """Cross-correlation, [B, in_channels, L] -> [B, out_channels, L']; see `Conv2d`."""


class Conv2d(_Conv, dims=2):
    """Cross-correlation, [B, in_channels, H, W] -> [B, out_channels, H', W']; see `functional.conv2d`.

    weight [out_channels, in_channels/groups, *kernel_size], bias [out_channels]. padding_mode: values of the padding,
    'zeros', or as in `functional.pad` 'reflect', 'replicate' or 'circular'.
    """


class Conv3d(_Conv, dims=3):
    """Cross-correlation, [B, in_channels, D, H, W] -> [B, out_channels, D', H', W']; see `Conv2d`."""


class _ConvTranspose(_Convolution):
    static_argnames = ("output_size",)
    is_transposed = True
    modes = PADDING_MODES[:1]

    def __init__(
        self,
        in_channels: Count,
        out_channels: Count,
        kernel_size: Ints,
        stride: Ints = 1,
        padding: Amounts = 0,
        output_padding: Amounts = 0,
        groups: Count = 1,
        bias: bool = True,
        dilation: Ints = 1,
        padding_mode: str = "zeros",
        *,
        dtype: Any = "float32",
    ):
        sizes = {"kernel_size": kernel_size, "stride": stride, "padding": padding, "dilation": dilation}
        sizes["output_padding"] = output_padding
        self._prepare(in_channels, out_channels, groups, bias, padding_mode, dtype, **sizes)

    def forward(self, input: Value, output_size: Sequence[int] | None = None) -> Value:
        """Compute the transposed convolution.

        output_size: the extents of the result (or its whole shape), which determine `output_padding`."""
        more = self.output_padding
        if output_size is not None:
            wanted = whole_numbers(output_size, f"{type(self).__name__}: output_size")
            more = self._output_padding(tensor(input, type(self).__name__, "input"), wanted)
        convolve = getattr(F, f"conv_transpose{self.dims}d")
        return convolve(input, self.weight, self.bias, self.stride, self.padding, more, self.groups, self.dilation)

    def _output_padding(self, input: Value, wanted: tuple[int, ...]) -> tuple[int, ...]:
        n = self.dims
        if input.ndim < n:
            raise ShapeError(f"{type(self).__name__}: 'input' has shape {input.shape}, of {input.ndim} dimensions")
        rows = zip(input.shape[-n:], self.stride, self.padding, self.dilation, self.kernel_size, strict=True)
        least = tuple((e - 1) * s - 2 * p + g * (k - 1) + 1 for e, s, p, g, k in rows)
        most = tuple(e + s - 1 for e, s in zip(least, self.stride, strict=True))
        extents = wanted[-n:]
        fits = len(wanted) in (n, input.ndim) and all(a <= e <= b for a, e, b in zip(least, extents, most, strict=True))
        if not fits:
            raise ShapeError(f"{type(self).__name__}: output_size={wanted} must be {n} extents from {least} to {most}")
        return tuple(e - a for e, a in zip(extents, least, strict=True))


class ConvTranspose1d(_ConvTranspose, dims=1):
    """The transpose of a convolution, [B, in_channels, L] -> [B, out_channels, L']; see `ConvTranspose2d`."""


class ConvTranspose2d(_ConvTranspose, dims=2):
    """The transpose of a convolution, [B, in_channels, H, W] -> [B, out_channels, H', W']; see
    `functional.conv_transpose2d`.

    weight [in_channels, out_channels/groups, *kernel_size], bias [out_channels]. A call with `output_size` chooses the
    output padding that results in these extents. padding_mode is 'zeros'.
    """


class ConvTranspose3d(_ConvTranspose, dims=3):
    """The transpose of a convolution, [B, in_channels, D, H, W] -> [B, out_channels, D', H', W']; see
    `ConvTranspose2d`."""
