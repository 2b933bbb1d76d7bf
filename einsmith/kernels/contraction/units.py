"""Find the units of results that fill whole cache lines in every buffer that they are written to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from einsmith.ir.analysis.linear import LinearForm

MAX_UNIT_POINTS = 128
"""Most points of a unit."""


MIN_FILLED_FRACTION = 0.85
"""Least filled fraction of a unit's vectors, where these are not aligned."""


Vector = tuple[tuple[int, int] | None, ...]
"""(result, point) of each lane, None past the end."""


class Stretch(NamedTuple):
    """The results of a unit in one buffer.

    first: the result that begins it
    vectors: its vectors
    aligned: whether the vectors lie at multiples of their length, wherever the unit is
    """

    buffer: int
    first: int
    vectors: Sequence[Vector]
    aligned: bool


class Unit(NamedTuple):
    """Flattened points of N whose results fill a stretch of every buffer; units begin at multiples of `points`."""

    points: int
    stretches: Sequence[Stretch]


def find_unit(
    outputs: Sequence[int], places: Sequence[LinearForm], extents: Sequence[int], axes: Sequence[int], lanes: int
) -> Unit | None:
    """Return the smallest unit whose vectors are aligned, or else the unit that fills its vectors best.

    Returns None where no buffer has several results, or where they leave gaps.

    Args:
        outputs: the buffer of each result
        places: the place of each result in its buffer, a constant and a coefficient by output axis
        extents: extents of the output axes
        axes: axes of N, outer first
        lanes: elements of a vector
    """
    groups: dict[int, list[int]] = {}
    for i, n in enumerate(outputs):
        groups.setdefault(n, []).append(i)
    if all(len(g) == 1 for g in groups.values()):
        return None
    if any(places[i].coef != places[g[0]].coef for g in groups.values() for i in g):
        return None
    axes = [a for a in axes if extents[a] > 1]
    best: tuple[float, Unit] | None = None
    inner_axes: list[int] = []
    width = 1
    for axis in reversed(axes):
        for part in (t for t in range(2, min(extents[axis], MAX_UNIT_POINTS // width) + 1) if extents[axis] % t == 0):
            box = [*((a, extents[a]) for a in inner_axes), (axis, part)]
            stretches = [_find_stretch(n, g, places, extents, box, lanes) for n, g in groups.items()]
            if not all(stretches):
                continue
            unit = Unit(width * part, [s for s in stretches if s is not None])
            if all(s.aligned for s in unit.stretches):
                return unit
            vectors = [v for s in unit.stretches for v in s.vectors]
            filled = sum(x is not None for v in vectors for x in v) / (len(vectors) * lanes)
            if filled >= MIN_FILLED_FRACTION and (best is None or filled > best[0]):
                best = filled, unit
        inner_axes.append(axis)
        width *= extents[axis]
    return best and best[1]


def _find_stretch(
    buffer: int,
    results: Sequence[int],
    places: Sequence[LinearForm],
    extents: Sequence[int],
    box: Sequence[tuple[int, int]],
    lanes: int,
) -> Stretch | None:
    """Return the stretch of a buffer's results over a box (axis and extent, inner first); None where there are gaps."""
    coef, first = places[results[0]].coef, min(results, key=lambda i: places[i].const)
    offsets = [0]
    for axis, n in box:
        offsets = [k * coef.get(axis, 0) + x for k in range(n) for x in offsets]
    lane_at = {places[i].const - places[first].const + x: (i, q) for q, x in enumerate(offsets) for i in results}
    size = len(results) * len(offsets)
    if len(lane_at) != size or min(lane_at) != 0 or max(lane_at) != size - 1:
        return None
    vectors = [tuple(lane_at.get(e) for e in range(s, s + lanes)) for s in range(0, size, lanes)]
    for v in vectors:  # each must consist of one load of every result
        for i in results:
            points = [x[1] for x in v if x is not None and x[0] == i]
            if points and max(points) - min(points) >= lanes:
                return None
    last, part = box[-1]
    whole_axes = {a for a, n in box if n == extents[a]}
    steps = [c * (part if a == last else 1) for a, c in coef.items() if a not in whole_axes and extents[a] > 1]
    aligned = all(x % lanes == 0 for x in (size, places[first].const, *steps))
    return Stretch(buffer, first, vectors, aligned)
