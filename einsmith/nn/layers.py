"""Activations, changes of shape, and losses as layers, under torch.nn's names and arguments."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from einsmith import functional as F
from einsmith.errors import ArgumentError
from einsmith.lang.builder import Value
from einsmith.nn.module import Module


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
