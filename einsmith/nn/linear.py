"""Linear layers and tables, under torch.nn's names, arguments, initial distributions, state names and shapes."""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np

from einsmith import functional as F
from einsmith.dtypes import dtype_of
from einsmith.errors import ArgumentError
from einsmith.lang.builder import Value
from einsmith.nn import init
from einsmith.nn.module import Module
from einsmith.nn.parameter import Parameter


def empty(shape: tuple[int, ...], dtype: Any) -> Parameter:
    """A parameter of zeros, whose values are yet to be drawn."""
    return Parameter(np.zeros(shape, dtype_of(dtype).numpy))


def reset(weight: Parameter, bias: Parameter | None) -> None:
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
        self.weight = empty((out_features, in_features), dtype)
        self.register_parameter("bias", empty((out_features,), dtype) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws new initial values."""
        reset(self.weight, self.bias)

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
        self.weight = empty((num_embeddings, embedding_dim), dtype)
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
