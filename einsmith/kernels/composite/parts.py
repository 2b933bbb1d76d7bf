"""Kernels made of kernels: the parts run one after the other, and what passes between them lies in the workspace."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from einsmith.kernels.pattern import Chooser, Cost, Launch, Lowered, Pattern
from einsmith.loops.nest import I64, PTR, Function, Op, Value
from einsmith.plan.kernel import Kernel
from einsmith.target.facts import Target

_FRESH = 1 << 30  # numbers of values that no builder gives


class PartConfig(NamedTuple):
    """A pattern's name and its configuration for one of the kernels."""

    pattern: str
    config: Any

    def __str__(self) -> str:
        return f"{self.pattern} {self.config}"


def part_config(found: Any) -> PartConfig:
    """Of what the chooser answers."""
    return PartConfig(found.pattern.name, found.config)


class Composite(Pattern):
    """A pattern that makes other kernels of one, each of which the chooser gives to whatever pattern suits it.

    The first buffers of a part are those of the whole, in whatever shape; those after them lie in the workspace."""

    def __init__(self, chooser: Chooser):
        self.chooser = chooser

    @abstractmethod
    def parts(self, kernel: Kernel, config: Any, target: Target) -> Iterable[tuple[Kernel, PartConfig]]:
        """The kernels, in the order in which they run."""

    def chosen(self, kernels: Iterable[Kernel], target: Target, limit: float) -> list[PartConfig] | None:
        """What suits each kernel; None where they take `limit` seconds together."""
        out = []
        for kernel in kernels:
            found = self.chooser.choose_below(kernel, target, limit)
            if found is None:
                return None
            out.append(part_config(found))
            limit -= found.cost.seconds
        return out

    def cost(self, kernel: Kernel, config: Any, target: Target) -> Cost:
        parts = self.parts(kernel, config, target)
        costs = [self.chooser.pattern_of(c.pattern).cost(k, c.config, target) for k, c in parts]
        if len(costs) == 1:
            return costs[0]
        # Each takes the longer of its own arithmetic and memory.
        return Cost(sum(max(c.arithmetic, c.memory) for c in costs), 0.0, sum(c.special for c in costs),
                    sum(c.launch for c in costs))  # fmt: skip

    def lowered(self, kernel: Kernel, config: Any, target: Target) -> list[Lowered]:
        """Each of the parts by itself."""
        parts = self.parts(kernel, config, target)
        return [self.chooser.pattern_of(c.pattern).lower(k, c.config, target) for k, c in parts]

    def lower(self, kernel: Kernel, config: Any, target: Target) -> Lowered:
        out = Staged(f"{self.name.replace(' ', '_')}_{kernel.digest.hex()[:8]}", len(kernel.buffers))
        places = [Place(n) for n in range(len(kernel.buffers))]
        parts = self.parts(kernel, config, target)
        for (part, _), lowered in zip(parts, self.lowered(kernel, config, target), strict=True):
            places += [out.room(b.nbytes) for b in part.buffers[len(places) :]]
            out.add(lowered, places)
        return out.lowered


@dataclass(frozen=True)
class Place:
    """Where a part finds a buffer: the whole's buffer `number`, from byte `offset` on."""

    number: int
    offset: int = 0


class Staged:
    """Collects the launches of parts, which run one after the other, for a kernel with `buffers` buffers."""

    def __init__(self, name: str, buffers: int):
        self.name = name
        self.buffers = buffers
        self.lowered = Lowered()

    def room(self, nbytes: int) -> Place:
        """A piece of the workspace that nothing else uses."""
        at = Place(self.buffers, self.lowered.workspace)
        self.lowered.workspace += -(-nbytes // 64) * 64
        return at

    def add(self, part: Lowered, places: Sequence[Place]) -> None:
        """The launches of a part whose buffers (but for its own workspace) are at `places`."""
        where = [*places, self.room(part.workspace)]
        for launch in part.launches:
            name = f"{self.name}_{len(self.lowered.launches)}"
            function = _placed(launch.function, name, where, self.buffers + 1)
            self.lowered.launches.append(Launch(function, launch.tasks, launch.once))


def _placed(f: Function, name: str, places: Sequence[Place], count: int) -> Function:
    """The function with `count` buffers, in which it finds its own at `places`."""
    # A part may be made of parts: its numbers are fresh ones already.
    used = [v.id for v in (*f.buffers, *(x.result for x in f.body if isinstance(x, Op))) if v is not None]
    fresh = max(_FRESH, 1 + max(used))
    outer = [Value(fresh + n, PTR) for n in range(count)]
    first: list[Op] = []
    for own, place in zip(f.buffers, places, strict=True):
        offset = Value(fresh + count + len(first), I64)
        first.append(Op("const", (), offset, (place.offset,)))
        first.append(Op("advance", (outer[place.number], offset), own, ("i8",)))
    return replace(f, name=name, buffers=tuple(outer), body=[*first, *f.body])
