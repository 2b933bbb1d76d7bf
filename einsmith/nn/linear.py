"""Define linear layers and tables, under torch.nn's names, arguments, initial distributions, state names and shapes."""

from __future__ import annotations

from math import sqrt
from typing import Any

from einsmith import ops as F
from einsmith.base.arguments import Size
from einsmith.base.dtypes import dtype_of
from einsmith.lang.builder import Value
from einsmith.nn import init
from einsmith.nn.module import Module
from einsmith.nn.parameter import Parameter
from einsmith.runtime import buffers


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
