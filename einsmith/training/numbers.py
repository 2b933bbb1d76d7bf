"""Hold the numbers that the programs of a training step read at each run, such as the learning rate."""

from __future__ import annotations

import numpy as np

from einsmith.runtime.nested import check_store, under_way
from einsmith.training.accumulation import Accumulation
from einsmith.training.definition import StepDefinition
from einsmith.training.exchanges import Exchanges
from einsmith.training.loss_scaling import LossScaling
from einsmith.training.state import TrainingState


class StepNumbers:
    """The numbers that the programs of a training step read at each run, as 0-d float64 arrays that graphs capture.

    count: number of the next update, from 1; hyperparameters: those of the optimizer's rules, by `group/name` or name;
    derived: limits, decay, and the numbers of accumulation, by name. Those by name are made when a graph is traced that
    reads them. rank, ranks: this process and the number of processes that train together, which draw different random
    numbers. scaling: the scale of the loss, which steps of float16 read. exchanges: memory of what programs sum over
    these processes; None where they cannot."""

    def __init__(self, definition: StepDefinition, state: TrainingState, accumulation: Accumulation):
        self._definition, self._state, self._accumulation = definition, state, accumulation
        self.rank, self.ranks = 0, 1
        self.exchanges: Exchanges | None = None
        self.count = np.zeros((), np.float64)
        self.hyperparameters: dict[str, np.ndarray] = {}
        self.derived: dict[str, np.ndarray] = {}
        self.scaling = LossScaling()

    def hyperparameter(self, name: str) -> np.ndarray:
        """Return the memory of a hyperparameter, made at the first use."""
        return self.hyperparameters.setdefault(name, np.zeros((), np.float64))

    def derive(self, name: str) -> np.ndarray:
        """Return the memory of a number that follows from settings and batch, made at the first use."""
        return self.derived.setdefault(name, np.zeros((), np.float64))

    def clear(self) -> None:
        """Forget all numbers by name, after the programs that read them."""
        self.hyperparameters.clear()
        self.derived.clear()

    def set(self, arrays: list[np.ndarray]) -> None:
        """Set all numbers for the next run, which is of this batch. The caller holds the guard of the parameters.

        Raises EinsmithError in the middle of a run of this thread, which reads these numbers."""
        if under_way:
            check_store(self._state.store.guard)
        steps = self._accumulation.steps + 1
        self.count[...] = steps
        self._state.counts.set()
        memories = self.hyperparameters
        for name, value in self._definition.optimizer.values(steps).items():
            if name in memories:
                memories[name][...] = value
        if self.derived:
            self._set_derived(arrays)

    def _set_derived(self, arrays: list[np.ndarray]) -> None:
        accumulation, settings = self._accumulation, self._definition.settings
        samples = self._definition.count_samples(arrays)
        batch_number = accumulation.steps * settings.accumulate + accumulation.batches
        values = settings.numbers | {
            "draw": batch_number * self.ranks + self.rank + 1,
            "weight": samples,
            "begins": accumulation.batches == 0,
            "samples": accumulation.samples + samples,
            "norm": 0.0,  # a group of processes sets it
            "loss_scale": self.scaling.scale,
        }
        for name, memory in self.derived.items():
            memory[...] = values[name]
