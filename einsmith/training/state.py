"""Hold what the updates of a training step change and read: parameters, state, counts, and the numbers of each run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from einsmith.base.errors import ArgumentError, ShapeError
from einsmith.runtime.nested import check_store, under_way
from einsmith.runtime.signals import Deferred
from einsmith.runtime.store import ParameterStore
from einsmith.training.counters import Accumulation, Counts, Epochs, Reports
from einsmith.training.definition import StepDefinition
from einsmith.training.exchanges import Exchanges

GRADIENT, AVERAGE, WEIGHT = "#gradient", "#average", "#weight"
"""Names of the step's own state of a parameter; no rule's state can have a name that begins with #."""
STEP_STATE_KINDS = (GRADIENT, AVERAGE, WEIGHT)
INITIAL_SCALE = 65536.0
"""First scale, as in torch.amp.GradScaler."""
GROWTH_INTERVAL = 2000
"""Updates without an overflow after which the scale is doubled, as in torch.amp.GradScaler."""
MAX_SCALE = 2.0**24
"""Largest scale: that of a float16's least positive number, 2**-24."""


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


@dataclass
class LossScaling:
    """The scale of the loss of a float16 step, a power of two, so that small cotangents do not vanish and large ones do
    not overflow. steady: runs without an overflow since it changed.

    Source: Micikevicius et al., "Mixed precision training" (2018), section 3.2; the rule is that of
    torch.amp.GradScaler, but for a batch whose gradients overflow, which is computed again with a smaller scale instead
    of being left out."""

    scale: float = INITIAL_SCALE
    steady: int = 0

    def shrink(self) -> bool:
        """Halve the scale after an overflow; return whether there is a smaller one."""
        if self.scale <= 1:
            return False
        self.scale, self.steady = self.scale / 2, 0
        return True

    def count(self) -> None:
        """Count a run without an overflow, and double the scale after GROWTH_INTERVAL of them."""
        self.steady += 1
        if self.steady >= GROWTH_INTERVAL and self.scale < MAX_SCALE:
            self.scale, self.steady = 2 * self.scale, 0


class StepNumbers:
    """The numbers that the programs of a training step read at each run, as 0-d float64 arrays that graphs capture.

    count: number of the next update, from 1; hyperparameters: those of the optimizer's rules, by `group/name` or name;
    derived: limits, decay, and the numbers of accumulation, by name. Those by name are made when a graph is traced that
    reads them. rank, ranks: this process and the number of processes that train together, which draw different random
    numbers. scaling: the scale of the loss, which steps of float16 read. exchanges: memory of what programs sum over
    these processes; None where they cannot."""

    def __init__(self) -> None:
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


@dataclass
class StepParts:
    """The parts of a training step that its programs, its runs and its saves share.

    definition: what it computes, another one after each change; state: what updates change; numbers: what programs read
    at each run; accumulation, epochs, reports: how far the training has come."""

    definition: StepDefinition
    state: TrainingState
    numbers: StepNumbers = field(default_factory=StepNumbers)
    accumulation: Accumulation = field(default_factory=Accumulation)
    epochs: Epochs = field(default_factory=Epochs)
    reports: Reports = field(default_factory=Reports)

    def set_numbers(self, arrays: list[np.ndarray]) -> None:
        """Set all numbers for the next run, which is of this batch. The caller holds the guard of the parameters.

        Raises EinsmithError in the middle of a run of this thread, which reads these numbers."""
        if under_way:
            check_store(self.state.store.guard)
        numbers, steps = self.numbers, self.accumulation.steps + 1
        numbers.count[...] = steps
        self.state.counts.set()
        memories = numbers.hyperparameters
        for name, value in self.definition.optimizer.values(steps).items():
            if name in memories:
                memories[name][...] = value
        if numbers.derived:
            self._set_derived(arrays)

    def _set_derived(self, arrays: list[np.ndarray]) -> None:
        numbers, accumulation, updates = self.numbers, self.accumulation, self.definition.updates
        samples = self.definition.count_samples(arrays)
        batch_number = accumulation.steps * updates.accumulate + accumulation.batches
        values = updates.numbers | {
            "draw": batch_number * numbers.ranks + numbers.rank + 1,
            "weight": samples,
            "begins": accumulation.batches == 0,
            "samples": accumulation.samples + samples,
            "norm": 0.0,  # a group of processes sets it
            "loss_scale": numbers.scaling.scale,
        }
        for name, memory in numbers.derived.items():
            memory[...] = values[name]

    def averages(self, gather: Callable[[str], Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
        """Return the model's state dictionary with the averages of trained weights in place of the weights.

        gather: returns the state of one kind that is divided among the processes of a group. Raises ArgumentError where
        no average is kept."""
        if self.definition.updates.ema is None:
            raise ArgumentError("no average is kept; make the step with ema=, as TrainStep(..., ema=0.999)")
        model, store = self.definition.model, self.state.store
        with store.guard:
            values = {n: s.data for n, s in store.state.items()} | {**gather(AVERAGE)}
            averages = {id(p): values.get(f"{n}/{AVERAGE}") for n, p in store.parameters.items()}
            state: dict[str, np.ndarray] = model.state_dict()
            for name, p in model.named_parameters(remove_duplicate=False):  # a parameter may have several names
                average = averages.get(id(p))
                if average is not None:
                    state[name] = average.copy()
            return state

    @contextmanager
    def averaged(self, gather: Callable[[str], Mapping[str, np.ndarray]]) -> Iterator[Any]:
        """Context in which the model has the averages in place of its weights, and which gives the model. It holds the
        guard of the parameters: steps of other threads wait until it ends. gather: as for `averages`."""
        with self.state.store.guard:
            model = self.definition.model
            averages, before = self.averages(gather), model.state_dict()
            self.state.is_averaged = True
            try:
                model.load_state_dict(averages)
                yield model
            finally:
                with Deferred():
                    model.load_state_dict(before)
                    self.state.is_averaged = False
