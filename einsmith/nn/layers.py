"""Layers, under torch.nn's names, arguments, initial distributions, state names and shapes."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod, sqrt
from typing import Any

import numpy as np

from einsmith import functional as F
from einsmith.dtypes import dtype_of
from einsmith.errors import ArgumentError
from einsmith.functional.random import layer_drop
from einsmith.lang import builder as fb
from einsmith.lang.builder import Value
from einsmith.nn import init
from einsmith.nn.module import Module
from einsmith.nn.parameter import Parameter

Ints = int | Sequence[int]


def _pair(x: Ints) -> tuple[int, int]:
    return (x, x) if isinstance(x, int) else (x[0], x[1])


def _empty(shape: tuple[int, ...], dtype: Any) -> Parameter:
    return Parameter(np.zeros(shape, dtype_of(dtype).numpy))


def _reset(weight: Parameter, bias: Parameter | None) -> None:
    """Weight and bias uniform in +-1/sqrt(fan in), as torch's linear and convolution layers have it."""
    init.kaiming_uniform_(weight, a=sqrt(5))
    if bias is not None:
        fan_in, _ = init.fans(weight.shape)
        bound = 1 / sqrt(fan_in) if fan_in else 0.0
        init.uniform_(bias, -bound, bound)


class Linear(Module):
    """x W^T + b: [..., in_features] -> [..., out_features]. weight [out_features, in_features], bias [out_features]."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True, *, dtype: Any = "float32"):
        self.in_features, self.out_features = in_features, out_features
        self.weight = _empty((out_features, in_features), dtype)
        self.register_parameter("bias", _empty((out_features,), dtype) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws new initial values."""
        _reset(self.weight, self.bias)

    def forward(self, input: Value) -> Value:
        return F.linear(input, self.weight, self.bias)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


class Embedding(Module):
    """Rows of a table chosen by integers: [...] -> [..., embedding_dim]. weight [num_embeddings, embedding_dim].

    Standard normal at first; the row `padding_idx` is zero and gets no gradient.
    """

    def __init__(
        self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None, *, dtype: Any = "float32"
    ):
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise ArgumentError(f"padding_idx={padding_idx} is none of {num_embeddings} rows")
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.padding_idx = None if padding_idx is None else padding_idx % num_embeddings
        self.weight = _empty((num_embeddings, embedding_dim), dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws new initial values."""
        init.normal_(self.weight)
        if self.padding_idx is not None:
            values = self.weight.numpy()
            values[self.padding_idx] = 0
            self.weight.data = values

    def forward(self, input: Value) -> Value:
        return F.embedding(input, self.weight, self.padding_idx)

    def extra_repr(self) -> str:
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}"


class Conv2d(Module):
    """Cross-correlation, [B, in_channels, H, W] -> [B, out_channels, H', W']; see `functional.conv2d`.

    weight [out_channels, in_channels/groups, *kernel_size], bias [out_channels].
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Ints,
        stride: Ints = 1,
        padding: Ints | str = 0,
        dilation: Ints = 1,
        groups: int = 1,
        bias: bool = True,
        *,
        dtype: Any = "float32",
    ):
        if groups < 1 or in_channels % groups or out_channels % groups:
            sizes = f"in_channels={in_channels} and out_channels={out_channels}"
            raise ArgumentError(f"groups={groups} must divide {sizes}")
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.kernel_size, self.stride, self.dilation = _pair(kernel_size), _pair(stride), _pair(dilation)
        self.padding = padding if isinstance(padding, str) else _pair(padding)
        self.weight = _empty((out_channels, in_channels // groups, *self.kernel_size), dtype)
        self.register_parameter("bias", _empty((out_channels,), dtype) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws new initial values."""
        _reset(self.weight, self.bias)

    def forward(self, input: Value) -> Value:
        return F.conv2d(input, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)

    def extra_repr(self) -> str:
        text = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        if self.padding != (0, 0):
            text += f", padding={self.padding!r}"
        if self.dilation != (1, 1):
            text += f", dilation={self.dilation}"
        if self.groups != 1:
            text += f", groups={self.groups}"
        return text + ("" if self.bias is not None else ", bias=False")


class Identity(Module):
    """The input as it is. Arguments are accepted and ignored."""

    def __init__(self, *args: Any, **kwargs: Any):
        pass

    def forward(self, input: Value) -> Value:
        return input


class ReLU(Module):
    """max(x, 0). `inplace` is accepted: tensors have values, not places."""

    def __init__(self, inplace: bool = False):
        self.inplace = inplace

    def forward(self, input: Value) -> Value:
        return F.relu(input)


class Tanh(Module):
    """The hyperbolic tangent."""

    def forward(self, input: Value) -> Value:
        return F.tanh(input)


class Sigmoid(Module):
    """1/(1 + exp(-x))."""

    def forward(self, input: Value) -> Value:
        return F.sigmoid(input)


class GELU(Module):
    """x times the normal distribution function at x; see `functional.gelu`."""

    def __init__(self, approximate: str = "none"):
        self.approximate = approximate

    def forward(self, input: Value) -> Value:
        return F.gelu(input, approximate=self.approximate)

    def extra_repr(self) -> str:
        return f"approximate={self.approximate!r}"


class Dropout(Module):
    """In training each element is zero with probability p and the others are divided by 1 - p; else the input itself.

    In a training step the mask is a function of the step's seed, this layer's path and the step's number.
    """

    def __init__(self, p: float = 0.5, inplace: bool = False):
        if not 0 <= p <= 1:
            raise ArgumentError(f"Dropout: p={p!r} must lie in [0, 1]")
        self.p, self.inplace = p, inplace

    def forward(self, input: Value) -> Value:
        return layer_drop(fb.as_value(input), self.p, self) if self.training else input

    def extra_repr(self) -> str:
        return f"p={self.p}, inplace={self.inplace}"


class Softmax(Module):
    """exp(x)/sum of exp(x) along `dim`."""

    def __init__(self, dim: int):
        self.dim = dim

    def forward(self, input: Value) -> Value:
        return F.softmax(input, self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class LogSoftmax(Softmax):
    """The logarithm of the softmax along `dim`."""

    def forward(self, input: Value) -> Value:
        return F.log_softmax(input, self.dim)


class MaxPool2d(Module):
    """The largest element of each window; see `functional.max_pool2d`."""

    def __init__(
        self,
        kernel_size: Ints,
        stride: Ints | None = None,
        padding: Ints = 0,
        dilation: Ints = 1,
        *,
        ceil_mode: bool = False,
    ):
        self.kernel_size, self.stride = kernel_size, kernel_size if stride is None else stride
        self.padding, self.dilation, self.ceil_mode = padding, dilation, ceil_mode

    def forward(self, input: Value) -> Value:
        return F.max_pool2d(input, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode)

    def extra_repr(self) -> str:
        return (
            f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}, dilation={self.dilation}, "
            f"ceil_mode={self.ceil_mode}"
        )


class AvgPool2d(Module):
    """The mean of each window; see `functional.avg_pool2d`."""

    def __init__(
        self,
        kernel_size: Ints,
        stride: Ints | None = None,
        padding: Ints = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ):
        self.kernel_size, self.stride, self.padding = kernel_size, kernel_size if stride is None else stride, padding
        self.ceil_mode, self.count_include_pad, self.divisor_override = ceil_mode, count_include_pad, divisor_override

    def forward(self, input: Value) -> Value:
        return F.avg_pool2d(
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


class Flatten(Module):
    """Dimensions start_dim to end_dim joined into one."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1):
        self.start_dim, self.end_dim = start_dim, end_dim

    def forward(self, input: Value) -> Value:
        return F.flatten(input, self.start_dim, self.end_dim)

    def extra_repr(self) -> str:
        return f"start_dim={self.start_dim}, end_dim={self.end_dim}"


class Unflatten(Module):
    """Dimension `dim` split into the extents `unflattened_size`."""

    def __init__(self, dim: int, unflattened_size: Sequence[int]):
        self.dim, self.unflattened_size = dim, tuple(unflattened_size)

    def forward(self, input: Value) -> Value:
        shape, d = input.shape, self.dim % input.ndim
        if prod(self.unflattened_size) != shape[d] and -1 not in self.unflattened_size:
            raise ArgumentError(f"Unflatten: dimension {d} has extent {shape[d]}, not {self.unflattened_size}")
        return F.reshape(input, (*shape[:d], *self.unflattened_size, *shape[d + 1 :]))

    def extra_repr(self) -> str:
        return f"dim={self.dim}, unflattened_size={self.unflattened_size}"


class _Loss(Module):
    def __init__(self, reduction: str = "mean"):
        self.reduction = reduction

    def extra_repr(self) -> str:
        return f"reduction={self.reduction!r}"


class MSELoss(_Loss):
    """The squared difference of input and target; see `functional.mse_loss`."""

    def forward(self, input: Value, target: Value) -> Value:
        return F.mse_loss(input, target, reduction=self.reduction)


class _ClassLoss(_Loss):
    """`weight` [C] scales each class; labels equal to `ignore_index` count for nothing."""

    def __init__(self, weight: Any = None, *, ignore_index: int | None = -100, reduction: str = "mean"):
        super().__init__(reduction)
        self.register_buffer("weight", weight)
        self.ignore_index = ignore_index


class NLLLoss(_ClassLoss):
    """Minus the log-probability of the target class; see `functional.nll_loss`."""

    def forward(self, input: Value, target: Value) -> Value:
        return F.nll_loss(input, target, self.weight, ignore_index=self.ignore_index, reduction=self.reduction)


class CrossEntropyLoss(_ClassLoss):
    """Minus the logarithm of the softmax of the logits at the target class; see `functional.cross_entropy`."""

    def __init__(
        self,
        weight: Any = None,
        *,
        ignore_index: int | None = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ):
        super().__init__(weight, ignore_index=ignore_index, reduction=reduction)
        self.label_smoothing = label_smoothing

    def forward(self, input: Value, target: Value) -> Value:
        return F.cross_entropy(
            input,
            target,
            self.weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
        )
