"""Define activations as layers, under torch.nn's names, arguments and defaults. `einsmith.ops` computes them."""

from __future__ import annotations

from typing import Any

from einsmith import ops as F
from einsmith.base.arguments import Count
from einsmith.base.errors import ArgumentError, ShapeError
from einsmith.nn.init import constant_
from einsmith.nn.linear import empty
from einsmith.nn.module import Module
from einsmith.nn.operator_layer import OperatorLayer
from einsmith.ops.common import tensor
from einsmith.ops.random import layer_stream, random_relu
from einsmith.tracing.builder import Value, as_value


class _Shrink(OperatorLayer, family="softshrink hardshrink"):
    def extra_repr(self) -> str:
        return str(self.lambd)


class _Hardtanh(OperatorLayer, family="hardtanh"):
    def check(self) -> None:
        if not self.min_val < self.max_val:
            raise ArgumentError(f"Hardtanh: min_val={self.min_val!r} must be below max_val={self.max_val!r}")


class PReLU(Module):
    """x where x > 0, weight*x elsewhere. weight [num_parameters], `init` at first: one, or one a channel."""

    def __init__(self, num_parameters: Count = 1, init: float = 0.25, *, dtype: Any = "float32"):
        self.num_parameters, self.init = num_parameters, init
        self.weight = empty((num_parameters,), dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the weight to its initial value."""
        constant_(self.weight, self.init)

    def forward(self, input: Value) -> Value:
        return F.prelu(input, self.weight)

    def extra_repr(self) -> str:
        return f"num_parameters={self.num_parameters}"


class RReLU(Module):
    """x where x > 0, a*x elsewhere: a drawn evenly from [lower, upper) in training, else (lower + upper)/2."""

    def __init__(self, lower: float = 1 / 8, upper: float = 1 / 3, inplace: bool = False):
        self.lower, self.upper, self.inplace = lower, upper, inplace

    def forward(self, input: Value) -> Value:
        return random_relu(as_value(input), self.lower, self.upper, self.training, layer_stream(self))

    def extra_repr(self) -> str:
        return f"lower={self.lower}, upper={self.upper}" + (", inplace=True" if self.inplace else "")


class Softmax2d(Module):
    """The softmax over the channels of [B, C, H, W] or [C, H, W]."""

    def forward(self, input: Value) -> Value:
        x = tensor(input, "Softmax2d", "input")
        if x.ndim not in (3, 4):
            raise ShapeError(f"Softmax2d: 'input' has shape {x.shape}; it needs [B, C, H, W] or [C, H, W]")
        return F.softmax(x, -3)
