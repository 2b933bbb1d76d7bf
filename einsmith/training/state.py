"""Hold what the updates of a training step change and read: parameters, state, counts of updates, batches and epochs,
what the last step has reported, and the numbers of each run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from einsmith.base.errors import ArgumentError, ShapeError
from einsmith.ir.nodes import Leaf
from einsmith.runtime.nested import check_store, under_way
from einsmith.runtime.signals import Deferred
from einsmith.runtime.store import ParameterStore
from einsmith.training.definition import StepDefinition
from einsmith.training.exchanges import Exchanges


@dataclass(eq=False)
class CountGroup:
    """Parameters that were always updated together.

    updates: number of updates so far; memory: 0-d array from which programs read the number of the next update."""

    names: set[str]
    updates: int = 0
    memory: np.ndarray = field(default_factory=lambda: np.zeros((), np.float64))


class Counts:
    """Counts of the updates of all parameters.

    A parameter that is frozen, unused or new has fewer updates than others; terms of its rule that depend on `step`,
    such as Adam's bias correction, use its own count."""

    def __init__(self, names: Iterable[str]):
        self.groups = [CountGroup(set(names))]

    def begin(self, names: Collection[str]) -> None:
        """Set the counts of the named parameters to zero."""
        for g in self.groups:
            g.names.difference_update(names)
        self.groups = [g for g in self.groups if g.names] + [CountGroup(set(names))]

    def restrict(self, names: Collection[str]) -> None:
        """Forget all parameters but the named ones."""
        for g in self.groups:
            g.names.intersection_update(names)

    def regroup(self, names: Collection[str]) -> tuple[list[CountGroup], bool]:
        """Split groups so that some consist of the named parameters alone; return (these, whether a group was split).

        After a split, programs compiled before it are invalid: they read too few counts."""
        selected: list[CountGroup] = []
        others: list[CountGroup] = []
        divided = False
        for g in self.groups:
            common = g.names & set(names)
            if common and common != g.names:
                divided = True
                others.append(CountGroup(g.names - common, g.updates))
                g.names = common
            (selected if common else others).append(g)
        self.groups = selected + others
        return selected, divided

    def set(self) -> None:
        """Write the number of each group's next update to the memory that programs read."""
        for g in self.groups:
            g.memory[...] = g.updates + 1

    def by_name(self) -> dict[str, int]:
        """Return the number of updates so far of each parameter."""
        return {n: g.updates for g in self.groups for n in sorted(g.names)}

    def restore(self, updates: Mapping[str, int]) -> None:
        """Replace all counts by those that `by_name` returned."""
        known: dict[int, set[str]] = {}
        for name, n in updates.items():
            known.setdefault(n, set()).add(name)
        self.groups = [CountGroup(names, n) for n, names in known.items()]


@dataclass
class Accumulation:
    """The number of updates so far, and of the batches that are accumulated for the next one.

    steps: updates; batches, samples: batches whose gradients wait for the update, and their samples."""

    steps: int = 0
    batches: int = 0
    samples: int = 0

    def add(self, samples: int) -> None:
        """Count a batch whose gradients wait for the update."""
        self.batches, self.samples = self.batches + 1, self.samples + samples

    def end_update(self, groups: Iterable[CountGroup]) -> None:
        """Count an update of the parameters of these groups, and set the numbers of accumulated batches and samples to
        0."""
        self.steps += 1
        for group in groups:
            group.updates += 1
        self.batches = self.samples = 0

    def drop(self) -> None:
        """Forget the batches that wait for the update."""
        self.batches = self.samples = 0


@dataclass
class Epochs:
    """How far a training in epochs has come, so that another call of `fit` continues it.

    epoch: epochs done; position: batches done in the current epoch; loss, samples: sum of the samples' losses in the
    current epoch, and their number; losses: the sums of several losses, by name; history: a row of results of each
    epoch; source: batches of an iterator in an unfinished epoch; loader_state: the state of torch's generator for the
    order of the epoch's batches, in hexadecimal."""

    epoch: int = 0
    position: int = 0
    loss: float = 0.0
    samples: int = 0
    losses: dict[str, float] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    source: Any = None
    loader_state: str | None = None

    def add(self, loss: float, samples: int, losses: Mapping[str, float]) -> None:
        """Count a batch with its loss, its number of samples, and several losses by name."""
        self.position += 1
        self.loss += loss * samples
        self.samples += samples
        for name, part in losses.items():
            self.losses[name] = self.losses.get(name, 0.0) + part * samples

    def end_epoch(self, row: dict[str, Any], loader_state: str | None) -> None:
        """Begin the next epoch. row: results of the one that ends; loader_state: that of the next one."""
        self.epoch, self.position, self.loss, self.samples = self.epoch + 1, 0, 0.0, 0
        self.losses, self.source, self.loader_state = {}, None, loader_state
        self.history.append(row)


class Reports:
    """The values that the last step reported in addition to its loss.

    names: names of the programs' outputs after the loss; is_known: whether a program has been traced; losses: the
    losses by name, where there are several; grad_norm: the norm of the gradients before they were clipped, None where
    it is not limited."""

    def __init__(self) -> None:
        self.names: tuple[str, ...] = ()
        self.is_known = False
        self.losses: dict[str, float] = {}
        self.grad_norm: float | None = None

    def read(self, outputs: Sequence[np.ndarray], is_norm_limited: bool) -> None:
        """Take over the values from a program's outputs, of which the first is the loss."""
        values = {n: float(a) for n, a in zip(self.names, outputs[1:], strict=False)}
        self.grad_norm = values.pop("grad_norm", self.grad_norm) if is_norm_limited else None
        self.losses = values

    def clear(self) -> None:
        """Forget names and values, after the programs that report them."""
        self.names, self.losses, self.grad_norm, self.is_known = (), {}, None, False


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

    def names_of(self, bind: Mapping[Leaf, np.ndarray]) -> dict[Leaf, str]:
        """Return the names of parameters, state and numbers among bound leaves, for a dump of a graph."""
        store, numbers = self.state.store, self.numbers
        memories = {**store.parameters, **store.state}
        arrays = {n: m.memory.physical for n, m in memories.items()} | numbers.hyperparameters | numbers.derived
        arrays |= {"count": numbers.count}
        arrays |= {f"updates_{n}": g.memory for n, g in enumerate(self.state.counts.groups)}
        names = {id(a): n for n, a in arrays.items()}
        return {x: names[id(a)] for x, a in bind.items() if id(a) in names}

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
