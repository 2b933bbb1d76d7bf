"""Run training steps of networks in Einsmith, as any user writes them."""

from __future__ import annotations

from typing import Any

import numpy as np

from einsmith import base, functional, models, optim
from einsmith.bench.networks import LR, NetworkStep
from einsmith.bench.peers import einsmith_recurrent
from einsmith.bench.peers.described import described
from einsmith.bench.problem import Session
from einsmith.bench.recurrent import Recurrent
from einsmith.training import TrainStep
from einsmith.tuning.calibration import calibrate

VERSION = f"Einsmith {base.VERSION}"

LOSSES = {
    "cross_entropy": lambda y, t: functional.cross_entropy(
        *((functional.flatten(y, 0, 1), t.reshape((-1,))) if len(y.shape) == 3 else (y, t))
    ),
    "margin_loss": functional.margin_loss,
    "mse_loss": functional.mse_loss,
}


def prepare() -> None:
    """Measure the machine, which an installation does once and stores: no part of the first call of a problem."""
    calibrate.target()


class EinsmithTraining:
    """A training step of a network of `einsmith.models`. options: those of TrainStep."""

    def __init__(self, problem: NetworkStep, arrays: dict[str, np.ndarray], threads: int, **options: Any):
        self.model = problem.network_of(models.get)
        self.model.load_state_dict({n: a for n, a in arrays.items() if n not in ("x", "y")})
        self.x, self.y = arrays["x"], arrays["y"]
        optimizer = optim.SGD(lr=LR)
        self._step = TrainStep(self.model, LOSSES[problem.loss], optimizer, seed=0, threads=threads, **options)

    def step(self) -> float:
        """Train on the batch and return the loss."""
        return self._step(self.x, self.y)

    def results(self) -> dict[str, np.ndarray]:
        """Return the parameters and the running statistics."""
        found = {n: np.asarray(v) for n, v in self.model.state_dict().items()}
        return {n: v for n, v in found.items() if v.dtype.kind == "f"}

    def describe(self) -> dict[str, Any]:
        """Return what the program says of itself."""
        return described(self._step)


def build(
    problem: NetworkStep | Recurrent, arrays: dict[str, np.ndarray], threads: int, peer: str, **options: Any
) -> Session:
    """Return the problem's session. options: those of TrainStep."""
    if isinstance(problem, Recurrent):
        return einsmith_recurrent.RecurrentTraining(problem, arrays, threads, **options)
    return EinsmithTraining(problem, arrays, threads, **options)
