"""Define the adaptive softmax, whose rare classes have fewer parameters.

Source: Grave et al. 2016, arXiv 1609.04309.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from einsmith import ops as F
from einsmith.base.arguments import Count
from einsmith.base.errors import ArgumentError, ShapeError
from einsmith.nn.containers import ModuleList, Sequential
from einsmith.nn.linear import Linear
from einsmith.nn.module import Module
from einsmith.ops.common import tensor
from einsmith.tracing.builder import Value


class AdaptiveResult(NamedTuple):
    """Log-probabilities of the targets, and the mean of their negatives."""

    output: Any
    loss: Any


class AdaptiveLogSoftmaxWithLoss(Module):
    """The adaptive softmax: input [B, in_features], target [B] -> (log-probabilities of the targets, loss).

    Classes 0 .. cutoffs[0] - 1 are in the head; every further cluster, up to the next of `cutoffs`, is one class of the
    head and has a tail with in_features/div_value**n features. All clusters are computed for all rows: the parameters
    are fewer, not the products.
    """

    def __init__(
        self,
        in_features: Count,
        n_classes: Count,
        cutoffs: Sequence[int],
        div_value: float = 4.0,
        head_bias: bool = False,
        *,
        dtype: Any = "float32",
    ):
        ends = list(cutoffs)
        if not ends or ends != sorted(set(ends)) or ends[0] < 1 or ends[-1] > n_classes - 1:
            raise ArgumentError(
                f"AdaptiveLogSoftmaxWithLoss: cutoffs={tuple(ends)!r} must be increasing integers from 1 to "
                f"{n_classes - 1}"
            )
        self.in_features, self.n_classes, self.div_value, self.head_bias = in_features, n_classes, div_value, head_bias
        self.cutoffs = (*ends, n_classes)
        self.shortlist_size, self.n_clusters = ends[0], len(ends)
        self.head_size = self.shortlist_size + self.n_clusters
        self.head = Linear(in_features, self.head_size, bias=head_bias, dtype=dtype)
        self.tail = ModuleList()
        for n in range(self.n_clusters):
            narrow = int(in_features // div_value ** (n + 1))
            width = self.cutoffs[n + 1] - self.cutoffs[n]
            self.tail.append(
                Sequential(
                    Linear(in_features, narrow, bias=False, dtype=dtype), Linear(narrow, width, bias=False, dtype=dtype)
                )
            )

    def reset_parameters(self) -> None:
        """Draw new initial values."""
        for layer in self.modules():
            if isinstance(layer, Linear):
                layer.reset_parameters()

    def forward(self, input: Value, target: Value) -> AdaptiveResult:
        name = "AdaptiveLogSoftmaxWithLoss"
        x = tensor(input, name, "input", rank=(1, 2), kind="float")
        t = tensor(target, name, "target", kind="int")
        if t.shape != x.shape[:-1]:
            raise ShapeError(f"{name}: 'target' has shape {t.shape}, needs {x.shape[:-1]} for 'input' {x.shape}")
        rows, classes = (x.reshape((1, -1)), t.reshape((1,))) if x.ndim == 1 else (x, t)
        output = F.gather(self.log_prob(rows), 1, classes.reshape((-1, 1))).reshape(t.shape)
        return AdaptiveResult(output, -F.mean(output))

    def log_prob(self, input: Any) -> Any:
        """Return the log-probabilities of all classes: [B, in_features] -> [B, n_classes]."""
        head = F.log_softmax(self.head(input), 1)
        parts = [head[:, : self.shortlist_size]]
        for n, tail in enumerate(self.tail):
            place = self.shortlist_size + n
            parts.append(F.add(F.log_softmax(tail(input), 1), head[:, place : place + 1]))
        return F.cat(parts, 1)

    def predict(self, input: Any) -> Any:  # type: ignore[override]
        """Return the most probable class of each row, int32: [B, in_features] -> [B]."""
        return F.argmax(self.log_prob(input), 1)
