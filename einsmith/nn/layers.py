"""Define layers that change only shapes, under torch.nn's names and arguments."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from einsmith import ops as F
from einsmith.base.errors import ArgumentError
from einsmith.nn.module import Module
from einsmith.ops.common import dimension, tensor
from einsmith.tracing.builder import Value


class Identity(Module):
    """The identity function. Arguments are accepted and ignored."""

    def __init__(self, *args: Any, **kwargs: Any):
        pass

    def forward(self, input: Value) -> Value:
        return input


class Unflatten(Module):
    """Dimension `dim` split into the extents `unflattened_size`."""

    def __init__(self, dim: int, unflattened_size: Sequence[int]):
        if not unflattened_size:
            raise ArgumentError("Unflatten: unflattened_size=() must be one extent or more")
        self.dim, self.unflattened_size = dim, tuple(unflattened_size)

    def forward(self, input: Value) -> Value:
        x = tensor(input, "Unflatten", "input")
        shape, d = x.shape, dimension(self.dim, x.ndim, "Unflatten")
        if prod(self.unflattened_size) != shape[d] and -1 not in self.unflattened_size:
            raise ArgumentError(f"Unflatten: dimension {d} has extent {shape[d]}, not {self.unflattened_size}")
        return F.reshape(x, (*shape[:d], *self.unflattened_size, *shape[d + 1 :]))

    def extra_repr(self) -> str:
        return f"dim={self.dim}, unflattened_size={self.unflattened_size}"
