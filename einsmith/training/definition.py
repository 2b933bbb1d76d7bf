"""Hold what a training step computes: the model, its loss, the optimizer and the settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from einsmith.base.arguments import describe, refuse_torch
from einsmith.base.dtypes import f16
from einsmith.base.errors import ArgumentError, KindError
from einsmith.base.numerics import Numerics
from einsmith.training.batch import count_samples
from einsmith.training.precision import precision_of_layers
from einsmith.training.settings import Settings


@dataclass
class StepDefinition:
    """What a training step computes. Every part can be replaced between two steps.

    model, loss, optimizer, seed, threads, winograd, precision: as in TrainStep; settings: clipping, accumulation,
    averages and the choice among several losses; is_alone: neither a group of processes nor an order of sums
    for one is involved; targets: number of targets of a batch, its last arrays.
    """

    model: Any
    loss: Callable
    optimizer: Any
    settings: Settings
    seed: Any = 0
    threads: int | None = None
    winograd: bool = False
    precision: str | Mapping[str, str] = "fp32"
    is_alone: bool = True
    targets: int = 1

    @property
    def numerics(self) -> Numerics:
        """How the programs may round. Raises ArgumentError for a precision that is unknown or cannot be set."""
        if isinstance(self.precision, str):
            out = Numerics(self.winograd, self.precision)
        else:
            out = Numerics(self.winograd, *precision_of_layers(self.precision, self.model))
        if out.stored is f16 and not self.is_alone:
            raise ArgumentError(
                "precision='fp16' scales the loss of one process; in a group, and with deterministic=True, use 'bf16'"
            )
        return out

    @property
    def outline(self) -> str:
        """A text that is the same for equal networks: the class, and the names and shapes of the parameters."""
        kind, shapes = type(self.model), [(n, p.shape) for n, p in self.model.named_parameters()]
        return f"{kind.__module__}.{kind.__qualname__} {shapes}"

    def count_samples(self, arrays: Sequence[np.ndarray]) -> int:
        """Return the number of samples of a batch, which is that of its first target."""
        return count_samples(arrays[-self.targets])

    def check_model_and_loss(self) -> None:
        """Check that the model is a network and the loss a function. Raises ArgumentError or KindError."""
        model, loss = self.model, self.loss
        refuse_torch(model, "model")
        if not hasattr(model, "named_parameters") or isinstance(model, type):
            raise ArgumentError(f"model={_show(model)} is not a network; pass an es.nn.Module")
        if isinstance(loss, type):
            raise ArgumentError(f"loss={_show(loss)} is a class; pass one of its objects, as {loss.__name__}()")
        if (getattr(loss, "__module__", None) or "").startswith("torch."):
            raise KindError(
                f"loss={_show(loss)} is PyTorch's; es.functional has losses under PyTorch's names, such as mse_loss"
            )
        if not callable(loss):
            raise KindError(f"loss={_show(loss)} must be a callable")

    def check_optimizer(self) -> None:
        """Check that the optimizer is an update rule. Raises ArgumentError."""
        optimizer = self.optimizer
        if not hasattr(optimizer, "assign") or isinstance(optimizer, type):
            raise ArgumentError(f"optimizer={_show(optimizer)} is no update rule; pass one, as es.optim.SGD(lr=0.1)")


def _show(x: Any) -> str:
    text = repr(x)
    return text if len(text) <= 60 else describe(x)
