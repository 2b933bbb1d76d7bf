"""Hold what the updates of a training step change: parameters, the optimizer's state, and the counts of updates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from einsmith.base.errors import ShapeError
from einsmith.runtime.store import ParameterStore
from einsmith.training.counts import Counts
from einsmith.training.definition import StepDefinition

GRADIENT, AVERAGE, WEIGHT = "#gradient", "#average", "#weight"
"""Names of the step's own state of a parameter; no rule's state can have a name that begins with #."""
STEP_STATE_KINDS = (GRADIENT, AVERAGE, WEIGHT)


class TrainingState:
    """The values that the updates of a training step change, and the rules by which they do.

    store: parameters and the optimizer's state; rules: (group, rule) of each parameter, by name; counts: updates of
    each parameter; is_averaged: whether the model has the averages of its weights in their place."""

    def __init__(self, definition: StepDefinition):
        self.store = ParameterStore()
        for name, p in definition.model.named_parameters():
            self.store.add_parameter(name, p)
        self.store.protect(b.memory for b in definition.model.buffers())
        self.rules: Mapping[str, tuple[str, Any]] = definition.optimizer.assign(definition.model)
        self._check_rules()
        self.counts = Counts(self.store.parameters)
        self.is_averaged = False

    def follow(self, definition: StepDefinition, new_rules: bool) -> bool:
        """Take over the parameters of the model, and the rules of the optimizer; new_rules: whether it is another one.

        State and count of a replaced parameter, or of all with another optimizer, begin anew. Return whether a
        parameter was replaced. Raises ArgumentError where the optimizer is none, ShapeError where a rule does not apply
        to its parameter."""
        store, model = self.store, definition.model
        parameters = dict(model.named_parameters())
        replaced = [n for n, p in store.parameters.items() if parameters.get(n) is not p]
        for name in replaced:
            store.forget(name)
        self.counts.restrict(parameters)
        self.counts.begin([*replaced, *(n for n in parameters if n not in store.parameters)])
        if new_rules:
            definition.check_optimizer()
        if replaced or new_rules or parameters.keys() != store.parameters.keys():
            self.rules = definition.optimizer.assign(model)
        store.parameters = parameters
        store.protect(x.memory for x in (*parameters.values(), *model.buffers()))
        if new_rules:
            store.keep(STEP_STATE_KINDS)
            self.counts.begin(parameters)
            self._check_rules()
        return bool(replaced)

    def untouched_bytes(self, touched: Iterable[np.ndarray]) -> int:
        """Return the bytes of state outside the arrays that a program touches. A gathering program leaves out the
        optimizer's state, for example."""
        known = set(map(id, touched))
        slots = (*self.store.state.values(), *self.store.shards.values())
        memories = [slot.memory.physical for slot in slots]
        return sum(a.nbytes for a in memories if id(a) not in known)

    def _check_rules(self) -> None:
        """Check that every rule applies to its parameter. Raises ShapeError, which names the parameter."""
        for name, (_, rule) in self.rules.items():
            p = self.store.parameters[name]
            if p.requires_grad:
                try:
                    rule.states(p.shape, p.dtype)
                except ShapeError as e:
                    raise ShapeError(f"parameter {name}: {e}") from e
