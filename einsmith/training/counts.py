"""Count the updates of each parameter, which its rule reads as `step`, as in torch.optim."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np


@dataclass(eq=False)
class CountGroup:
    """Parameters that were always updated together.

    done: updates so far; memory: 0-d array from which programs read the number of the next update."""

    names: set[str]
    done: int = 0
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

    def together(self, names: Collection[str]) -> tuple[list[CountGroup], bool]:
        """Return (the groups that consist of the named parameters, whether a group was split for that).

        After a split, programs compiled before it are invalid: they read too few counts."""
        chosen: list[CountGroup] = []
        rest: list[CountGroup] = []
        divided = False
        for g in self.groups:
            inside = g.names & set(names)
            if inside and inside != g.names:
                divided = True
                rest.append(CountGroup(g.names - inside, g.done))
                g.names = inside
            (chosen if inside else rest).append(g)
        self.groups = chosen + rest
        return chosen, divided

    def set(self) -> None:
        """Write the number of each group's next update to the memory that programs read."""
        for g in self.groups:
            g.memory[...] = g.done + 1

    def by_name(self) -> dict[str, int]:
        """Return the number of updates so far of each parameter."""
        return {n: g.done for g in self.groups for n in sorted(g.names)}

    def restore(self, done: Mapping[str, int]) -> None:
        """Replace all counts by those that `by_name` returned."""
        known: dict[int, set[str]] = {}
        for name, n in done.items():
            known.setdefault(n, set()).add(name)
        self.groups = [CountGroup(names, n) for n, names in known.items()]
