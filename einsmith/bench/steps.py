"""Set up training steps in Einsmith, as any user writes them."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from einsmith import base, functional, optim
from einsmith.bench.networks import LR, NetworkStep
from einsmith.ops.losses.margin import margin_loss
from einsmith.ops.losses.regression import mse_loss
from einsmith.training import TrainStep

VERSION = f"Einsmith {base.VERSION}"
LOSSES = {
    "cross_entropy": lambda y, t: functional.cross_entropy(
        *((functional.flatten(y, 0, 1), t.reshape((-1,))) if len(y.shape) == 3 else (y, t))
    ),
    "margin_loss": margin_loss,
    "mse_loss": mse_loss,
}


class Session(Protocol):
    """What is timed, set up in one library."""

    def step(self) -> float:
        """Run one training step, or one evaluation with its gradients, until the result is there; return the loss."""
        ...

    def results(self) -> dict[str, np.ndarray]:
        """Return the arrays that a step changes, or gives, by the names of the starting values."""
        ...


class EinsmithStep:
    """A training step of a network of `einsmith.models`. options: those of TrainStep."""

    def __init__(self, problem: NetworkStep, arrays: dict[str, np.ndarray], threads: int, **options: Any):
        self.model = problem.make_network()
        self.model.load_state_dict({n: a for n, a in arrays.items() if n not in ("x", "y")})
        self.batch = (arrays["x"], arrays["y"])
        self.trainer = TrainStep(self.model, LOSSES[problem.loss], optim.SGD(lr=LR), seed=0, threads=threads, **options)

    def step(self) -> float:
        """Train on the batch and return the loss."""
        return self.trainer(*self.batch)

    def results(self) -> dict[str, np.ndarray]:
        """Return the parameters and the running statistics."""
        values = {n: np.asarray(v) for n, v in self.model.state_dict().items()}
        return {n: v for n, v in values.items() if v.dtype.kind == "f"}
