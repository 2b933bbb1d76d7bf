"""Storing results in whole lines that tiles compute in parts of lines: sums and what lies between them.

Where nothing arrives in a strided convolution's backward pass the result is constant (`Problem.beside`): say, rows of
28 sums two elements apart, and every other row without any. A vector of sums, which begins anywhere in such a row and
may go on in the next, would be stored as parts of eight lines. Here what follows the sums is kept in scratch, side by
side along N, until a *unit* of points is complete whose results, constants included, fill memory without a gap:

    points 0 .. 27 of N  ->  s0 0 s1 0 ... s7 0 | s8 0 ... | s16 0 ... | s24 0 ... s27 0 0 ... 0 | 0 ... 0 | ...

These are seven whole vectors, each made of one load and a shuffle; where they lie at multiples of their length and the
buffer is far, they are stored past the caches. What a panel leaves of a unit waits, for every row of M, for the panel
that follows; at the ends of a task's range of N units are stored in part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from einsmith.kernels.emit.access import OperandAccess, PartialAddress
from einsmith.kernels.emit.address import Affine, Memory
from einsmith.loops.nest import Builder, Value

MOST = 128
"""Points of a unit at most."""
FILLED = 0.85
"""The least part of a unit's vectors that is filled, where they lie anywhere."""

Vector = tuple[tuple[int, int] | None, ...]
"""(result, point) of each lane, None past the end."""


class Stretch(NamedTuple):
    """The results of a unit in one buffer: the one that begins it, and its vectors. aligned: they lie at multiples of
    their length, wherever the unit is."""

    buffer: int
    first: int
    vectors: Sequence[Vector]
    aligned: bool


class Unit(NamedTuple):
    """So many points of N, flattened, whose results fill a stretch of every buffer; units begin at multiples of it."""

    points: int
    stretches: Sequence[Stretch]


def unit_of(
    outputs: Sequence[int], places: Sequence[Affine], extents: Sequence[int], axes: Sequence[int], lanes: int
) -> Unit | None:
    """The smallest unit whose vectors are aligned, or else the one that fills its vectors best; None where no results
    lie between others, or none fill memory. outputs, places: of each result its buffer and its place there, a constant
    and a coefficient by output axis (of `extents`); axes: those of N, outer first."""
    groups: dict[int, list[int]] = {}
    for i, n in enumerate(outputs):
        groups.setdefault(n, []).append(i)
    if all(len(g) == 1 for g in groups.values()):
        return None
    if any(places[i][1] != places[g[0]][1] for g in groups.values() for i in g):
        return None
    axes = [a for a in axes if extents[a] > 1]
    best: tuple[float, Unit] | None = None
    inside: list[int] = []
    width = 1
    for axis in reversed(axes):
        for part in (t for t in range(2, min(extents[axis], MOST // width) + 1) if extents[axis] % t == 0):
            box = [*((a, extents[a]) for a in inside), (axis, part)]
            found = [_stretch(n, g, places, extents, box, lanes) for n, g in groups.items()]
            if not all(found):
                continue
            unit = Unit(width * part, [s for s in found if s is not None])
            if all(s.aligned for s in unit.stretches):
                return unit
            vectors = [v for s in unit.stretches for v in s.vectors]
            filled = sum(x is not None for v in vectors for x in v) / (len(vectors) * lanes)
            if filled >= FILLED and (best is None or filled > best[0]):
                best = filled, unit
        inside.append(axis)
        width *= extents[axis]
    return best and best[1]


def _stretch(
    buffer: int, results: Sequence[int], places: Sequence[Affine], extents: Sequence[int],
    box: Sequence[tuple[int, int]], lanes: int,
) -> Stretch | None:
    """That of the results of the points of a box (axis and extent, inner first); None where there are gaps."""
    coef, first = places[results[0]][1], min(results, key=lambda i: places[i][0])
    offsets = [0]
    for axis, n in box:
        offsets = [k * coef.get(axis, 0) + x for k in range(n) for x in offsets]
    at = {places[i][0] - places[first][0] + x: (i, q) for q, x in enumerate(offsets) for i in results}
    size = len(results) * len(offsets)
    if len(at) != size or min(at) != 0 or max(at) != size - 1:
        return None
    vectors = [tuple(at.get(e) for e in range(s, s + lanes)) for s in range(0, size, lanes)]
    for v in vectors:  # each has what one load gives of every result
        for i in results:
            points = [x[1] for x in v if x is not None and x[0] == i]
            if points and max(points) - min(points) >= lanes:
                return None
    last, part = box[-1]
    inside = {a for a, n in box if n == extents[a]}
    steps = [c * (part if a == last else 1) for a, c in coef.items() if a not in inside and extents[a] > 1]
    aligned = all(x % lanes == 0 for x in (size, places[first][0], *steps))
    return Stretch(buffer, first, vectors, aligned)


def waiting(unit: Unit, width: int, lanes: int) -> int:
    """The points that panels of `width` may leave of a unit, in whole vectors."""
    return 0 if width % unit.points == 0 else -(-(unit.points - 1) // lanes) * lanes


class LineSpan(NamedTuple):
    """Units that a panel completes: how many; the place of the first one behind the panel's first point, and, from
    there on, the first point to be stored and the end of the last one."""

    units: Value
    place: Value
    low: Value
    end: Value


class LineBuffer:
    """Emission, for tiles of `rows` rows and `width` points of N (`axes`); so many rows of M as `kept` wait for
    their next panel at a time. results: the epilogue's (`epilogue.Results`)."""

    def __init__(
        self, b: Builder, unit: Unit, results: Any, memories: Mapping[int, Memory], extents: Sequence[int],
        axes: Sequence[int], elem: str, lanes: int, rows: int, width: int, kept: int,
    ):  # fmt: skip
        self.b, self.unit, self.axes = b, unit, tuple(axes)
        self.constants, self.elem, self.lanes, self.width = results.constants, elem, lanes, width
        self.buffers = memories
        self.live = [i for i in range(len(results.exprs)) if i not in self.constants]
        self.pad = waiting(unit, width, lanes)
        self.row = self.pad + width + lanes
        self.scratch = b.alloc(elem, rows * self.row * len(self.live))
        self.waiting = b.alloc(elem, kept * self.pad * len(self.live)) if self.pad else None
        places = [results.places[s.first] for s in unit.stretches]
        self.sampler = OperandAccess(b, (), (), extents, memories, (), 0, places)
        self.places = b.alloc("i64", (width // unit.points + 2) * len(unit.stretches))

    def put(self, row: Value, vector: int, values: Sequence[Value]) -> None:
        """The results at a vector of a row of the tile."""
        b = self.b
        for n, i in enumerate(self.live):
            b.store(b.splat(values[i], self.lanes), self.scratch, self._place(row, n, self.pad + vector * self.lanes))

    def _place(self, row: Value, live: int, at: int) -> Value:
        b = self.b
        return b.add(b.mul(b.add(b.mul(row, len(self.live)), live), self.row), at)

    def find(self, batch: PartialAddress, begin: Value, end: Value, low: Value, last: Value) -> LineSpan:
        """The units that a panel completes. begin, end: its points of N; low: the first one of the task's range,
        `last`: whether the panel is the last one there. Their places last until others are found."""
        b, points = self.b, self.unit.points
        size = b.const(points)
        first, whole = b.op("floordiv", begin, size), b.op("floordiv", end, size)
        stop = b.select(last, b.op("floordiv", b.add(end, points - 1), size), whole)
        with b.loop(first, stop) as units:
            unit = self.sampler.part_of(self.axes, b.mul(units.var, size))
            at = b.mul(b.sub(units.var, first), len(self.sampler.extra))
            for i, form in enumerate(self.sampler.extra):
                b.store(self.sampler.place(form, batch, unit), self.places, b.add(at, i))
        start = b.mul(first, size)
        return LineSpan(b.sub(stop, first), b.sub(start, begin), b.sub(low, start), b.sub(end, start))

    def flush(self, found: LineSpan, m: PartialAddress, row: Value, kept: Value) -> None:
        """Stores units in row `row` of a tile, whose place is `m`; kept: its number among those that wait."""
        b, points, forms = self.b, self.unit.points, self.sampler.extra
        self._move(row, kept, back=False)
        with b.loop(0, found.units) as units:
            before = b.mul(units.var, points)
            place = b.add(b.add(before, found.place), self.pad)
            starts, ends = b.sub(found.low, before), b.sub(found.end, before)
            some = b.op("or", b.op("lt", 0, starts), b.op("lt", ends, points))
            at = [b.add(b.mul(units.var, len(forms)), i) for i in range(len(forms))]
            bases = [b.load(self.places, x, "i64") for x in at]
            bases = [b.add(x, m.sums[f]) if f in m.sums else x for x, f in zip(bases, forms, strict=True)]
            with b.if_(b.op("not", some)):
                self._store(bases, row, place, None)
            with b.if_(some):
                self._store(bases, row, place, (starts, ends))
        self._move(row, kept, back=True)

    def _move(self, row: Value, kept: Value, back: bool) -> None:
        """What waits comes before a row's results, or their end waits."""
        b, pad, n = self.b, self.pad, self.lanes
        if self.waiting is None:
            return
        waits = b.mul(kept, pad * len(self.live))
        for i in range(len(self.live)):
            for x in range(0, pad, n):
                there = b.add(waits, i * pad + x)
                here = self._place(row, i, x + (self.width if back else 0))
                if back:
                    b.store(b.load(self.scratch, here, self.elem, n), self.waiting, there)
                else:
                    b.store(b.load(self.waiting, there, self.elem, n), self.scratch, here)

    def _store(self, bases: Sequence[Value], row: Value, place: Value, part: tuple[Value, Value] | None) -> None:
        """A unit that begins at `place` of its row in scratch, and whose stretches at `bases`; part: of its points only
        those from the first to before the second."""
        b, n = self.b, self.lanes
        for base, s in zip(bases, self.unit.stretches, strict=True):
            pointer = self.buffers[s.buffer].pointer
            for v, lanes in enumerate(s.vectors):
                value, to = self._vector(lanes, row, place), b.add(base, v * n)
                mask = self._mask(lanes, part)
                if mask is None and s.aligned and self.buffers[s.buffer].buffer.far:
                    b.stream(value, pointer, to)
                else:
                    b.store(value, pointer, to, mask)

    def _vector(self, lanes: Vector, row: Value, place: Value) -> Value:
        """Of a unit that goes on past the panel, lanes that are not stored hold what lies behind the row; behind the
        last one are those that wait, which are as many at least."""
        b, n = self.b, self.lanes
        fixed = [self.constants.get(x[0], 0.0) if x is not None else 0.0 for x in lanes]
        value = b.literal(fixed, self.elem) if len({repr(x) for x in fixed}) > 1 else b.const(fixed[0], self.elem, n)
        for number, i in enumerate(self.live):
            points = [x[1] for x in lanes if x is not None and x[0] == i]
            if points:
                where = b.add(self._place(row, number, min(points)), place)
                loaded = b.load(self.scratch, where, self.elem, n)
                chosen = [x[1] - min(points) if x is not None and x[0] == i else n + e for e, x in enumerate(lanes)]
                value = b.shuffle(loaded, value, chosen)
        return value

    def _mask(self, lanes: Vector, part: tuple[Value, Value] | None) -> Value | None:
        b, n = self.b, self.lanes
        present = [x is not None for x in lanes]
        mask = None if all(present) else b.literal(present, "i1")
        if part is None:
            return mask
        points = b.literal([x[1] if x is not None else -1 for x in lanes], "i32")
        low, high = (b.splat(b.cast(x, "i32"), n) for x in part)
        on = b.op("and", b.op("le", low, points), b.op("lt", points, high))
        return on if mask is None else b.op("and", mask, on)


