"""Kernels made of kernels: what passes between them lies in the workspace of the whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from einsmith.kernels.pattern import Launch, Lowered
from einsmith.loops.nest import I64, PTR, Function, Op, Value

_FRESH = 1 << 30  # numbers of values that no builder gives


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
            self.lowered.launches.append(Launch(_placed(launch.function, name, where, self.buffers + 1), launch.tasks))


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
