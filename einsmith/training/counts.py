"""Count the updates of each parameter, which its rule reads as `step`, as in torch.optim."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

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
