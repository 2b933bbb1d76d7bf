"""Run training steps in Einsmith, as any user writes them."""

from __future__ import annotations

import numpy as np

from einsmith import models, optim
from einsmith.bench.networks import LR, NetworkStep
from einsmith.bench.problem import Session
from einsmith.functional import cross_entropy
from einsmith.training import TrainStep
from einsmith.tuning.calibration import calibrate

VERSION = "Einsmith"


def prepare() -> None:
    """Measure the machine, which an installation does once and stores: no part of the first call of a problem."""
    calibrate.target()


class EinsmithTraining:
    """A training step of a network of `einsmith.models`."""

    def __init__(self, problem: NetworkStep, arrays: dict[str, np.ndarray], threads: int):
        self.model = models.get(problem.network)
        self.model.load_state_dict({n: arrays[n] for n in problem.results})
        self.x, self.y = arrays["x"], arrays["y"]
        self._step = TrainStep(self.model, cross_entropy, optim.SGD(lr=LR), threads=threads)

    def step(self) -> float:
        """Train on the batch and return the loss."""
        return self._step(self.x, self.y)

    def results(self) -> dict[str, np.ndarray]:
        """Return the parameters."""
        return {n: np.asarray(v) for n, v in self.model.state_dict().items()}


def build(problem: NetworkStep, arrays: dict[str, np.ndarray], threads: int, peer: str) -> Session:
    """Return the problem's session."""
    return EinsmithTraining(problem, arrays, threads)
