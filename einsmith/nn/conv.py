"""Define convolutions and transposed convolutions, under torch.nn's names, arguments, state names and shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from einsmith import ops as F
from einsmith.base.arguments import Count, Size, whole_numbers
from einsmith.base.errors import ArgumentError, ShapeError
from einsmith.lang.builder import Value
from einsmith.nn.linear import empty, reset
from einsmith.nn.module import Module
from einsmith.ops.common import tensor
from einsmith.ops.conv import same_padding

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


def _prepare(layer: Any, sizes: dict[str, Any], bias: bool, dtype: Any) -> None:
    """Check and set the common attributes of convolutions and transposed convolutions. sizes: their arguments."""
    name, transposed = type(layer).__name__, isinstance(layer, _ConvTranspose)
    channels, out, groups = sizes["in_channels"], sizes["out_channels"], sizes["groups"]
    if channels % groups or out % groups:
        raise ArgumentError(f"{name}: groups={groups} must divide in_channels={channels} and out_channels={out}")
    modes = PADDING_MODES[:1] if transposed else PADDING_MODES
    if layer.padding_mode not in modes:
        raise ArgumentError(f"{name}: padding_mode={layer.padding_mode!r} is none of {', '.join(map(repr, modes))}")
    layer.in_channels, layer.out_channels, layer.groups = channels, out, groups
    for what in ("kernel_size", "stride", "padding", "dilation", "output_padding"):
        size = sizes[what]
        if what == "padding" and isinstance(size, str) and not transposed:
            if size not in ("same", "valid"):
                raise ArgumentError(f"{name}: padding={size!r} must be 'same', 'valid' or ints")
            layer.padding = size
            continue
        setattr(layer, what, repeat(layer, what, size))
    if layer.padding == "same" and any(s != 1 for s in layer.stride):
        raise ArgumentError(f"{name}: padding='same' needs stride 1, not {layer.stride}")
    first, second = (channels, out) if transposed else (out, channels)
    layer.weight = empty((first, second // groups, *layer.kernel_size), dtype)
    layer.register_parameter("bias", empty((out,), dtype) if bias else None)
    reset(layer.weight, layer.bias)


def _text(layer: Any) -> str:
    zeros, ones = (0,) * layer.dims, (1,) * layer.dims
    text = f"{layer.in_channels}, {layer.out_channels}, kernel_size={layer.kernel_size}, stride={layer.stride}"
    if layer.padding != zeros:
        text += f", padding={layer.padding}"
    if layer.dilation != ones:
        text += f", dilation={layer.dilation}"
    if layer.output_padding != zeros:
        text += f", output_padding={layer.output_padding}"
    if layer.groups != 1:
        text += f", groups={layer.groups}"
    if layer.bias is None:
        text += ", bias=False"
    return text + ("" if layer.padding_mode == "zeros" else f", padding_mode={layer.padding_mode}")


class _Conv(Module):
    dims: int
    dilation: tuple[int, ...]
    padding: tuple[int, ...] | str
    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    groups: int

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
        self.padding_mode = padding_mode
        sizes = {
            "in_channels": in_channels,
            "out_channels": out_channels,
            "kernel_size": kernel_size,
            "stride": stride,
            "padding": padding,
            "dilation": dilation,
            "output_padding": 0,
            "groups": groups,
        }
        _prepare(self, sizes, bias, dtype)

    def reset_parameters(self) -> None:
        """Draw new initial values."""
        reset(self.weight, self.bias)

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

    def extra_repr(self) -> str:
        return _text(self)


class Conv1d(_Conv):
    """Cross-correlation, [B, in_channels, L] -> [B, out_channels, L']; see `Conv2d`."""

    dims = 1


class Conv2d(_Conv):
    """Cross-correlation, [B, in_channels, H, W] -> [B, out_channels, H', W']; see `functional.conv2d`.

    weight [out_channels, in_channels/groups, *kernel_size], bias [out_channels]. padding_mode: values of the padding,
    'zeros', or as in `functional.pad` 'reflect', 'replicate' or 'circular'.
    """

    dims = 2


class Conv3d(_Conv):
    """Cross-correlation, [B, in_channels, D, H, W] -> [B, out_channels, D', H', W']; see `Conv2d`."""

    dims = 3


class _ConvTranspose(Module):
    static_argnames = ("output_size",)
    dims: int
    dilation: tuple[int, ...]
    padding: tuple[int, ...]
    output_padding: tuple[int, ...]
    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    groups: int

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
        self.padding_mode = padding_mode
        sizes = {
            "in_channels": in_channels,
            "out_channels": out_channels,
            "kernel_size": kernel_size,
            "stride": stride,
            "padding": padding,
            "dilation": dilation,
            "output_padding": output_padding,
            "groups": groups,
        }
        _prepare(self, sizes, bias, dtype)

    def reset_parameters(self) -> None:
        """Draw new initial values."""
        reset(self.weight, self.bias)

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

    def extra_repr(self) -> str:
        return _text(self)


class ConvTranspose1d(_ConvTranspose):
    """The transpose of a convolution, [B, in_channels, L] -> [B, out_channels, L']; see `ConvTranspose2d`."""

    dims = 1


class ConvTranspose2d(_ConvTranspose):
    """The transpose of a convolution, [B, in_channels, H, W] -> [B, out_channels, H', W']; see
    `functional.conv_transpose2d`.

    weight [in_channels, out_channels/groups, *kernel_size], bias [out_channels]. A call with `output_size` chooses the
    output padding that results in these extents. padding_mode is 'zeros'.
    """

    dims = 2


class ConvTranspose3d(_ConvTranspose):
    """The transpose of a convolution, [B, in_channels, D, H, W] -> [B, out_channels, D', H', W']; see
    `ConvTranspose2d`."""

    dims = 3
