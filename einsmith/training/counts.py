"""How many updates each parameter has had, which is what its rule calls `step`, as in torch.optim."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np


@dataclass(eq=False)
class CountGroup:
    """Parameters that were always updated together: `done` updates so far, and the memory in which programs find the
    number of the next one."""

    names: set[str]
    done: int = 0
    memory: np.ndarray = field(default_factory=lambda: np.zeros((), np.float64))


class Counts:
    """The updates of all parameters. One that is frozen, unused or new has had fewer than the others: what its rule
    makes of `step`, such as Adam's correction of means that began at zero, goes by its own number."""

    def __init__(self, names: Iterable[str]):
        self.groups = [CountGroup(set(names))]

    def begin(self, names: Collection[str]) -> None:
        """These have had no update yet."""
        for g in self.groups:
            g.names.difference_update(names)
        self.groups = [g for g in self.groups if g.names] + [CountGroup(set(names))]

    def restrict(self, names: Collection[str]) -> None:
        """Forgets all others."""
        for g in self.groups:
            g.names.intersection_update(names)

    def together(self, names: Collection[str]) -> tuple[list[CountGroup], bool]:
        """(the groups of parameters that a program updates, whether some had to be divided for that: programs that were
        made before then know too few numbers)."""
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
        """Tells programs the numbers of the updates that come next."""
        for g in self.groups:
            g.memory[...] = g.done + 1

    def by_name(self) -> dict[str, int]:
        """The updates of each parameter so far."""
        return {n: g.done for g in self.groups for n in sorted(g.names)}

    def restore(self, done: Mapping[str, int]) -> None:
        """Parameters and their updates, as `by_name` gave them."""
        known: dict[int, set[str]] = {}
        for name, n in done.items():
            known.setdefault(n, set()).add(name)
        self.groups = [CountGroup(names, n) for n, names in known.items()]
