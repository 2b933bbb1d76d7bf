"""Define linear layers and tables, under torch.nn's names, arguments, initial distributions, state names and shapes."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod, sqrt
from typing import Any

from einsmith import ops as F
from einsmith.base.arguments import Share, Size
from einsmith.base.dtypes import dtype_of
from einsmith.base.errors import ShapeError
from einsmith.nn import init
from einsmith.nn.module import Module
from einsmith.nn.parameter import Parameter
from einsmith.ops.losses.reduction import REDUCTIONS, check_reduction
from einsmith.runtime import buffers
from einsmith.tracing.builder import Value


def empty(shape: tuple[int, ...], dtype: Any) -> Parameter:
    """Return a parameter of zeros, to be filled with initial values; its type is float32 where `dtype` is None.

    Raises OutOfMemoryError."""
    values = buffers.empty(shape, dtype_of("float32" if dtype is None else dtype).numpy)
    values[...] = 0
    return Parameter(values)


def reset(weight: Parameter, bias: Parameter | None) -> None:
    """Draw weight and bias uniform in +-1/sqrt(fan in), as torch does for linear layers and convolutions."""
    init.kaiming_uniform_(weight, a=sqrt(5))
    if bias is not None:
        fan_in, _ = init.fans(weight.shape)
        bound = 1 / sqrt(fan_in) if fan_in else 0.0
        init.uniform_(bias, -bound, bound)


def reset_all(module: Module, size: int) -> None:
    """Draw all parameters of a module uniform in +-1/sqrt(size)."""
    bound = 1 / sqrt(size)
    for p in module.parameters():
        init.uniform_(p, -bound, bound)


class Linear(Module):
    """x W^T + b: [..., in_features] -> [..., out_features]. weight [out_features, in_features], bias [out_features]."""

    def __init__(self, in_features: Size, out_features: Size, bias: bool = True, *, dtype: Any = "float32"):
        self.in_features, self.out_features = in_features, out_features
        self.weight = empty((out_features, in_features), dtype)
        self.register_parameter("bias", empty((out_features,), dtype) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new initial values."""
        reset(self.weight, self.bias)

    def forward(self, input: Value) -> Value:
        return F.linear(input, self.weight, self.bias)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


class LinearCrossEntropyLoss(Module):
    """A linear layer and the cross entropy of its logits: input [B, in_features], target [B] -> loss.

    See `functional.linear_cross_entropy`; the layer is `linear`. out_features: extents of logits [B, C, *out_features].
    """

    def __init__(
        self,
        in_features: Size,
        num_classes: Size,
        *,
        out_features: Sequence[int] = (),
        bias: bool = False,
        dtype: Any = "float32",
        reduction: str = "mean",
        weight: Any = None,
        ignore_index: int | None = None,
        label_smoothing: Share = 0.0,
    ):
        check_reduction(type(self).__name__, reduction, REDUCTIONS)
        self.register_buffer("weight", weight)
        if self.weight is not None and self.weight.shape != (num_classes,):
            raise ShapeError(f"LinearCrossEntropyLoss: 'weight' has shape {self.weight.shape}, needs ({num_classes},)")
        self.num_classes, self.out_features, self.reduction = num_classes, tuple(out_features), reduction
        self.ignore_index, self.label_smoothing = ignore_index, float(label_smoothing)
        self.linear = Linear(in_features, num_classes * prod(self.out_features), bias, dtype=dtype)

    def forward(self, input: Value, target: Value) -> Value:
        shape = (self.num_classes, *self.out_features)
        bias = self.linear.bias
        return F.linear_cross_entropy(
            input,
            F.reshape(self.linear.weight, (*shape, self.linear.in_features)),
            target,
            linear_bias=None if bias is None else F.reshape(bias, shape),
            weight=self.weight,
            reduction=self.reduction,
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
        )

    def extra_repr(self) -> str:
        return (
            f"in_features={self.linear.in_features}, num_classes={self.num_classes}, "
            f"out_features={self.out_features}, bias={self.linear.bias is not None}, reduction={self.reduction}, "
            f"ignore_index={self.ignore_index}, label_smoothing={self.label_smoothing}, options=None"
        )
