"""Count a training's updates, batches and epochs, and hold what its last step has reported."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np


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
        """Count an update of the parameters of these groups, after which no batch waits."""
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
