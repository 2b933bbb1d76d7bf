"""Give the exponential moving averages of a model's weights, as a state dictionary or in the model itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from einsmith.base.errors import ArgumentError
from einsmith.runtime.signals import Deferred
from einsmith.training.definition import StepDefinition
from einsmith.training.parallel import GroupTraining
from einsmith.training.state import AVERAGE, TrainingState


class WeightAverages:
    """The exponential moving averages of a model's trained weights, which training steps update (`ema`).

    parallel: the training in a group of processes, among which the averages may be divided, or None."""

    def __init__(self, definition: StepDefinition, state: TrainingState, parallel: GroupTraining | None = None):
        self._definition, self._state, self._parallel = definition, state, parallel

    def state_dict(self) -> dict[str, np.ndarray]:
        """Return the model's state dictionary with the averages of trained weights in place of the weights.

        Raises ArgumentError where no average is kept."""
        if self._definition.settings.ema is None:
            raise ArgumentError("no average is kept; make the step with ema=, as TrainStep(..., ema=0.999)")
        model, store = self._definition.model, self._state.store
        with store.guard:
            found = {n: s.data for n, s in store.state.items()}
            if self._parallel is not None:
                found |= self._parallel.gather_state(AVERAGE)
            averages = {id(p): found.get(f"{n}/{AVERAGE}") for n, p in store.parameters.items()}
            state = model.state_dict()
            for name, p in model.named_parameters(remove_duplicate=False):  # a parameter may have several names
                average = averages.get(id(p))
                if average is not None:
                    state[name] = average.copy()
            return state

    @contextmanager
    def in_model(self) -> Iterator[Any]:
        """Context in which the model has the averages in place of its weights, and which gives the model. It holds the
        guard of the parameters: steps of other threads wait until it ends."""
        with self._state.store.guard:
            model = self._definition.model
            averages, before = self.state_dict(), model.state_dict()
            self._state.is_averaged = True
            try:
                model.load_state_dict(averages)
                yield model
            finally:
                with Deferred():
                    model.load_state_dict(before)
                    self._state.is_averaged = False
