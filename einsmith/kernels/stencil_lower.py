"""Emission of stencils: tiles of rows, their borders taken off, every load shared by all terms that want it.

A tile is some rows by one vector. Rows and columns where every guard holds run in loops without any; the others are
emitted once each at known places, where a guard is decided for a row and a constant or a comparison for lanes. Every
other element of a row comes from two loads and a shuffle, which neighbouring taps share; two phases of a row leave as
two whole vectors, shuffled together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from math import prod
from typing import Any, NamedTuple

from einsmith.expr.kernel import Kernel
from einsmith.expr.nodes import Const, Piece
from einsmith.kernels.contraction_finish import Epilogue
from einsmith.kernels.contraction_lanes import State
from einsmith.kernels.contraction_pack import REGISTER_EPILOGUE
from einsmith.kernels.contraction_problem import Operand, Problem
from einsmith.kernels.contraction_sample import Part, Pointer, digits
from einsmith.kernels.stencil_terms import Access, Factor, Phase, Span, Stencil, Term
from einsmith.loops.nest import Builder, Value, elem_of

Carried = list[Value]
LINE = 64
PARTS = 16
"""Sums that are made at a time: a multiply-add waits for the one before it for some cycles."""
WAITING = 8
"""Registers for what is read and how it is shuffled."""
AHEAD = 6144
"""Bytes that are read and written between asking for a row and reading it: what arrives while a miss lasts."""


class Place(NamedTuple):
    """A point of an axis: between `first` and `last`, which are one where it is known."""

    value: Value
    first: int
    last: int


class Segment(NamedTuple):
    """Points first, first + step, ... below `end` of an axis: one, or the turns of a loop."""

    first: int
    end: int
    step: int

    @property
    def last(self) -> int:
        return self.end - self.step

    @property
    def loop(self) -> bool:
        return self.last > self.first


def factors(s: Stencil) -> list[tuple[Term, Factor]]:
    """Every vector of every term."""
    terms = [t for p in s.phases for t in p.terms]
    return [(t, f) for t in terms for f in (t.vector, t.weight) if f is not None and (f is t.vector or s.along_k)]


def _segments(count: int, step: int, whole: Callable[[int], bool]) -> list[Segment]:
    """Turns of `step` points over `count`: those for which `whole` holds in a loop, the others one by one."""
    out: list[Segment] = []
    for first in range(0, count, step):
        if out and whole(first) and whole(out[-1].first):
            out[-1] = Segment(out[-1].first, first + step, step)
        else:
            out.append(Segment(first, first + step, step))
    return out


def row_segments(s: Stencil, tile: int) -> list[Segment]:
    """Tiles of rows; in those of a loop no guard of a row fails."""
    spans = [x for t, f in factors(s) for x in (t.rows, f.rows)]
    least = min(p.rows for p in s.phases)
    whole = Span(max((x.lo for x in spans), default=0), min((x.hi for x in spans), default=least - 1))
    return _segments(s.rows, tile, lambda h: h + tile <= least and whole.covers(Span(h, h + tile - 1)))


def column_segments(s: Stencil, lanes: int, masks: bool, width: int) -> list[Segment]:
    """Vectors of a row; `masks`: a loop may go over vectors of which lanes are off; of those that are stored too, if
    their number `width` is told as 0."""
    if masks or s.lanes <= lanes:
        return _segments(s.lanes, lanes, lambda w: not width or s.steps[1] * (w + lanes) <= width)
    spans = [x for t, f in factors(s) for x in (t.lanes, f.lanes)]
    least = min(p.lanes for p in s.phases)
    whole = Span(max((x.lo for x in spans), default=0), min((x.hi for x in spans), default=least - 1))
    return _segments(s.lanes, lanes, lambda w: w + lanes <= least and whole.covers(Span(w, w + lanes - 1)))


def pairs_of(s: Stencil) -> dict[tuple, Span | None]:
    """Where every other element of a row is read: the elements that neighbouring taps need together, counted from the
    even one of both at lane 0; None where an element between is not to be read."""
    found: dict[tuple, list[Span]] = {}
    last = s.lanes - 1
    for t, f in factors(s):
        if f.read.lane == 2:
            span = _elements(f.read, f.lanes.meet(t.lanes).meet(Span(0, last)))
            found.setdefault(_pair(f.read), []).append(span)
    out: dict[tuple, Span | None] = {}
    for key, spans in found.items():
        both = Span(min(x.lo for x in spans), max(x.hi for x in spans))
        out[key] = both if all(x.lo < both.lo + 2 and both.hi < x.hi + 2 for x in spans) else None
    return out


def _pair(a: Access) -> tuple:
    return a.slot, a.outer, a.row, a.shift // 2


def _elements(a: Access, lanes: Span) -> Span:
    return Span(2 * lanes.lo + a.shift % 2, 2 * lanes.hi + a.shift % 2)


def parts_of(sums: int, weights: int, places: int, registers: int) -> int:
    """In how many parts, of taps at different places along a row, few sums are made. weights: of taps at one place."""
    room = min(PARTS, registers - weights - WAITING)
    return max(1, min(room // max(1, sums), places))


def pair_axis(s: Stencil, lanes: int) -> int | None:
    """The axis of which two points share a vector, half of it each, where rows are that short: one along which the
    numbers for all lanes stay the same, and whose every row is one vector of memory. None where there is none."""
    if 2 * s.lanes > lanes or any(x.hi - x.lo >= lanes for x in reaches(s).values()):
        return None
    weighed = {a for p in s.phases for t in p.terms if t.weight and not s.along_k for a, _ in t.weight.read.outer}
    moved = [{a for a, _ in f.read.outer} for _, f in factors(s)]
    for a in s.loops if s.along_k else s.outer:
        if s.extents[a] % 2 == 0 and a not in weighed and all(a in x for x in moved):
            return a
    return None


def reaches(s: Stencil) -> dict[tuple, Span]:
    """The elements of a row that all taps together read, by what they read."""
    out: dict[tuple, Span] = {}
    for t, f in factors(s):
        lanes = f.lanes.meet(t.lanes)
        if lanes.lo <= lanes.hi:
            a, key = f.read, _kind(f.read)
            span = Span(a.lane * lanes.lo + a.shift, a.lane * lanes.hi + a.shift)
            old = out.get(key, span)
            out[key] = Span(min(old.lo, span.lo), max(old.hi, span.hi))
    return out


def streams(s: Stencil) -> list[Access]:
    """One read of each kind that there is."""
    return list({_kind(f.read): f.read for _, f in factors(s)}.values())


def rows_of(a: Access, tile: int) -> int:
    """Rows of memory by which a read moves from one tile to the next."""
    return max(1, tile * abs(a.row) // a.pitch)


def _kind(a: Access) -> tuple:
    return a.slot, a.outer, a.row, a.lane, a.pitch


class StencilLowering:
    """Emission of one kernel function. tile: rows; groups: the sums of a filter's gradient that are made in one turn;
    hoisted: numbers for all lanes are loaded once for all tiles; pair: the axis of which two points share a vector."""

    def __init__(self, kernel: Kernel, s: Stencil, tile: int, tasks: int, groups: Sequence[Sequence[int]],
                 hoisted: bool, pair: int | None, target: Any, b: Builder):
        self.b, self.s, self.tile, self.tasks, self.groups, self.hoisted = b, s, tile, tasks, groups, hoisted
        self.n = target.lanes(s.dtype.itemsize)
        self.elem = elem_of(s.dtype)
        self.zero = b.const(0.0, self.elem, self.n)
        self.slots = [ref[1] for ref in kernel.stages[0].args]
        self.registers, self.masks = target.vector_registers, target.vector_bytes >= 32
        self.pair, self.planes = pair, 1 if pair is None else 2
        self.reaches = reaches(s)
        self.rows = row_segments(s, tile)
        self.pairs = pairs_of(s)
        size = sum(prod(x.shape) * x.dtype.itemsize for x in kernel.buffers)
        self.ahead = streams(s) if size > target.l2 * target.cores else []
        shape = kernel.root.shape
        self.shape = shape
        whole = Piece((0,) * len(shape), (1,) * len(shape), shape, Const(0.0, s.dtype))
        nothing = Operand(Const(0.0, s.dtype), (), frozenset())
        p = Problem(whole, s.dtype, (nothing, nothing), (), (), (), (), (), Const(0.0, s.dtype), ())
        pointers = {i: Pointer(b.buffers[i], x.shape, x.dtype) for i, x in enumerate(kernel.buffers)}
        axes, lanes = ((), 0) if s.along_k else ((s.lane,), self.n)
        self.epi = Epilogue(b, kernel, p, pointers, axes, lanes, 0)
        self.columns = column_segments(s, self.n, target.vector_bytes >= 64, shape[-1] if any(self.epi.far) else 0)
        self.room: Value | None = None
        if self.epi.size > REGISTER_EPILOGUE:
            count = s.sums if s.along_k else s.steps[0] * tile * s.steps[1]
            self.room = b.alloc(self.elem, count * self.n)
        self.values: dict[int, Value] = {}
        self.bases: dict[tuple, Value] = {}
        self.weights: dict[Access, Value] = {}
        self.made: dict[tuple, Value | None] = {}

    def run(self, task: Value) -> None:
        b, s = self.b, self.s
        extents = [s.extents[a] // self._points(a) for a in s.outer]
        total = prod(extents)
        lo: Value | int = b.op("floordiv", b.mul(task, b.const(total)), b.const(self.tasks))
        hi: Value | int = b.op("floordiv", b.mul(b.add(task, b.const(1)), b.const(total)), b.const(self.tasks))
        with b.loop(*((0, total) if self.tasks == 1 else (lo, hi))) as points:
            found = zip(s.outer, digits(b, points.var, extents) if extents else [], strict=True)
            self.values = {a: b.mul(x, b.const(self._points(a))) for a, x in found}
            if s.along_k:
                for group in self.groups:
                    self._sums(group)
            else:
                self._bind()
                self.weights = {}
                if self.hoisted:
                    for t in (t for p in s.phases for t in p.terms if t.weight is not None):
                        self._weight(t)
                self._over(self.rows, [], lambda h, _: self._over(self.columns, [], lambda w, _: self._tile(h, w)))

    # -- places

    def _apart(self, a: Access) -> int:
        """From one point of those that share vectors to the next."""
        return 0 if self.pair is None else dict(a.outer)[self.pair]

    def _points(self, axis: int) -> int:
        """How many points of an axis one vector has."""
        return self.planes if axis == self.pair else 1

    def _over(self, segments: Sequence[Segment], init: Carried, body: Callable[[Place, Carried], Carried]) -> Carried:
        b, out = self.b, init
        for x in segments:
            if not x.loop:
                out = body(Place(b.const(x.first), x.first, x.first), out)
                continue
            with b.loop(x.first, x.end, step=x.step, init=out, runs=True) as loop:
                loop.next = body(Place(loop.var, x.first, x.last), list(loop.carried))
            out = list(loop.results)
        return out

    def _bind(self) -> None:
        """The addresses of every read at the values of its outer axes."""
        b = self.b
        self.bases = {}
        terms = [t for p in self.s.phases for t in p.terms]
        for a in (f.read for t in terms for f in (t.vector, t.weight) if f is not None):
            if (a.slot, a.outer) not in self.bases:
                at: Value = b.const(0)
                for axis, c in a.outer:
                    at = b.add(at, b.mul(self.values[axis], b.const(c)))
                self.bases[a.slot, a.outer] = at

    def _begin(self, h: Place, w: Place) -> None:
        self.h, self.w = h, w
        self.made = {}

    def _at(self, a: Access) -> Value:
        """The address of a read but for what is known, at the tile's corner."""
        key = ("at", a.slot, a.outer, a.row, a.lane)
        if key not in self.made:
            b = self.b
            at = self.bases[a.slot, a.outer]
            for place, c in ((self.h, a.row), (self.w, a.lane)):
                if c:
                    at = b.add(at, b.mul(place.value, b.const(c)))
            self.made[key] = at
        out = self.made[key]
        assert out is not None
        return out

    def _mask(self, span: Span, scale: int = 1, more: int = 0) -> Value | None:
        """The lanes i of which scale * (the vector's first lane) + more + i is in the span; None for all."""
        key = ("mask", span, scale, more)
        if key in self.made:
            return self.made[key]
        b, n, w = self.b, self.n, self.w
        first, last = scale * w.first + more, scale * w.last + more
        iota, out = b.iota(n, "i32"), None

        def start(edge: int) -> Value:
            x = b.sub(b.const(edge - more), b.mul(w.value, b.const(scale)))
            return b.splat(b.cast(x, "i32"), n)

        if span.lo > first:
            out = b.op("not", b.op("lt", iota, start(span.lo)))
        if span.hi < last + n - 1:
            below = b.op("lt", iota, start(span.hi + 1))
            out = below if out is None else b.op("and", out, below)
        self.made[key] = out
        return out

    # -- loads

    def _vector(self, f: Factor, t: Term, phase: Phase, row: int) -> Value:
        """A factor's vector for row `row` of the tile, zero where the factor or the term is."""
        a, h = f.read, self.h
        lanes = f.lanes.meet(t.lanes).meet(Span(0, phase.lanes - 1))
        if h.first == h.last and not f.rows.lo <= h.first + row <= f.rows.hi:
            return self.zero
        if lanes.hi < self.w.first or lanes.lo > self.w.last + self.n - 1:
            return self.zero
        key = (a.slot, a.outer, a.row * row + a.const, a.row, a.lane, lanes)
        if key not in self.made and self.pair is not None:
            self.made[key] = self._two(a, lanes, row)
        elif key not in self.made:
            self.made[key] = self._pick(a, lanes, row) if a.lane == 2 else self._inside(a, 0, row, lanes)
        out = self.made[key]
        assert out is not None
        return out

    def _load(self, a: Access, more: int, row: int, mask: Value | None) -> Value:
        b = self.b
        at = b.add(self._at(a), b.const(a.const + a.row * row + more))
        return b.load(b.buffers[self.slots[a.slot]], at, self.elem, self.n, mask)

    def _inside(self, a: Access, more: int, row: int, span: Span, moved: int = 0) -> Value:
        """A vector of elements, zero outside of the span; `more` elements beyond the tap's first one, of which `moved`
        count in the span."""
        n, first = self.n, a.lane * self.w.first + moved
        if self.masks or self.w.first != self.w.last or span.hi - span.lo + 1 < n:
            return self._load(a, more, row, self._mask(span, a.lane, moved))
        # Without masks in registers: what lies inside of the span, moved to its lanes.
        off = min(max(first, span.lo), span.hi - n + 1) - first
        found = self._load(a, more + off, row, None)
        if not off:
            return found
        return self.b.shuffle(found, self.zero, [i - off if 0 <= i - off < n else n for i in range(n)])

    def _pick(self, a: Access, lanes: Span, row: int) -> Value:
        """Every other element: of two vectors, which the tap beside has in common."""
        n, odd = self.n, a.shift % 2
        span = self.pairs[_pair(a)] or _elements(a, lanes)
        parts: list[Value] = []
        for more in (0, n):
            key = ("part", a.slot, a.outer, a.row * row + a.const - odd, a.row, more, span)
            if key not in self.made:
                inside = span.hi >= 2 * self.w.first + more and span.lo <= 2 * self.w.last + more + n - 1
                self.made[key] = self._inside(a, more - odd, row, span, more) if inside else self.zero
            part = self.made[key]
            assert part is not None
            parts.append(part)
        return self.b.shuffle(parts[0], parts[1], [2 * i + odd for i in range(n)])

    def _two(self, a: Access, lanes: Span, row: int) -> Value:
        """The rows of two points side by side: from a vector of each, which all taps have in common."""
        b, n, parts = self.b, self.n, list[Value]()
        reach = self.reaches[_kind(a)]
        for point in range(self.planes):
            key = ("row", *_kind(a), a.row * row + a.const - a.shift, point)
            if key not in self.made:
                on = tuple(i <= reach.hi - reach.lo for i in range(n))
                more = reach.lo - a.shift + self._apart(a) * point
                self.made[key] = self._load(a, more, row, None if all(on) else b.literal(on, "i1"))
            part = self.made[key]
            assert part is not None
            parts.append(part)
        picks = [a.lane * (i % (n // 2)) + a.shift - reach.lo for i in range(n)]
        on = tuple(lanes.lo <= i % (n // 2) <= lanes.hi for i in range(n))
        spare = n - 1 if reach.hi - reach.lo < n - 1 else -1  # a lane that was not loaded is zero
        found = b.shuffle(parts[0], parts[1], [x + n * (i >= n // 2) if on[i] else spare for i, x in enumerate(picks)])
        return found if all(on) or spare >= 0 else b.select(b.literal(on, "i1"), found, self.zero)

    def _off(self, t: Term, phase: Phase) -> Value | None:
        """The lanes where a term is not zero whatever its weight is; None for all that are stored."""
        if t.lanes.covers(Span(0, phase.lanes - 1)):
            return None
        if self.pair is None:
            return self._mask(t.lanes)
        half = self.n // 2
        return self.b.literal(tuple(t.lanes.lo <= i % half <= t.lanes.hi for i in range(self.n)), "i1")

    def _weight(self, t: Term) -> Value:
        assert t.weight is not None
        a = t.weight.read
        if a not in self.weights:
            b = self.b
            at = b.add(self.bases[a.slot, a.outer], b.const(a.const))
            self.weights[a] = b.splat(b.load(b.buffers[self.slots[a.slot]], at, self.elem), self.n)
        return self.weights[a]

    def _ask_ahead(self) -> None:
        """Rows that come later are brought nearer, so many tiles before them that a miss has time. A filter's gradient
        goes to another image after its last row: it asks for what the rows before that need."""
        b, s, item = self.b, self.s, self.s.dtype.itemsize
        counts = [rows_of(a, self.tile) for a in self.ahead]
        moved = sum(x * a.pitch for x, a in zip(counts, self.ahead, strict=True))
        if not s.along_k:
            moved += s.steps[0] * self.tile * self.shape[s.lane]
        tiles = -(-AHEAD // max(1, moved * item * self.planes))
        if s.loops:
            tiles = max(1, min(tiles, -(-s.rows // self.tile) - 1))
        columns, line = -(-s.lanes // self.n), LINE // item
        for rows, a in zip(counts, self.ahead, strict=True):
            # Line after line: each vector of a row asks for its share of the tile.
            share, memory = -(-rows * a.pitch // (line * columns)), b.buffers[self.slots[a.slot]]
            at = b.add(self.bases[a.slot, a.outer], b.mul(self.h.value, b.const(a.row)))
            at = b.add(at, b.mul(self.w.value, b.const(share * line // self.n)))
            for point in range(self.planes):
                first = tiles * rows * a.pitch + self._apart(a) * point
                for i in range(share):
                    b.prefetch(memory, b.add(at, b.const(first + i * line)), self.elem)

    # -- along the output

    def _tile(self, h: Place, w: Place) -> Carried:
        b, s = self.b, self.s
        self._begin(h, w)
        self._ask_ahead()
        known = h.first == h.last
        parts: dict[tuple[int, int], list[Value]] = {}
        work: list[tuple[tuple, int, int, Term]] = []
        for i, phase in enumerate(s.phases):
            for row in range(self.tile):
                if known and h.first + row >= phase.rows:
                    continue
                parts[i, row] = [self.zero]
                for t in phase.terms:
                    if not known or t.rows.lo <= h.first + row <= t.rows.hi:
                        a = t.vector.read
                        work.append(((a.shift // a.lane, a.row * row + a.const), i, row, t))
        work.sort(key=lambda x: x[:3])
        # Few sums are made in parts that do not wait for each other.
        taps: dict[int, set] = {}
        for (shift, _), _, _, t in work:
            taps.setdefault(shift, set()).add(t.weight)
        apart = parts_of(len(parts), max(map(len, taps.values()), default=0), len(taps), self.registers)
        parts = {k: [self.zero] * apart for k in parts}
        group, turn = None, -1
        for (shift, _), i, row, t in work:
            if shift != group:
                group, turn = shift, turn + 1
                self.made = {k: v for k, v in self.made.items() if k[0] in ("at", "mask")}
                if not self.hoisted:
                    self.weights = {}
            x, before = self._vector(t.vector, t, s.phases[i], row), parts[i, row][turn % apart]
            new = b.add(before, x) if t.weight is None else b.fma(x, self._weight(t), before)
            # Where the term is zero its weight may still be infinite.
            off = None if t.weight is None else self._off(t, s.phases[i])
            parts[i, row][turn % apart] = new if off is None else b.select(off, new, before)
        sums = {k: reduce(b.add, x) for k, x in parts.items()}
        for point in range(self.planes):
            self._store(sums, point)
        return []

    def _store(self, sums: dict[tuple[int, int], Value], point: int) -> None:
        """The rows of one of the points that share vectors."""
        b, s, n = self.b, self.s, self.n
        m, k = s.steps
        width = self.shape[s.lane]
        states = []
        for j in range(k):
            first, last = k * self.w.first + j * n, k * self.w.last + j * n
            if first < width:
                at = b.add(b.mul(self.w.value, b.const(k)), b.const(j * n))
                states.append(State(self.epi.sampler, at, width if last + n > width else None, n))
        values = dict(self.values)
        if self.pair is not None:
            values[self.pair] = b.add(values[self.pair], b.const(point))
        if s.row is not None:
            values[s.row] = b.mul(self.h.value, b.const(m))
        rows, at = [], point * n // 2
        for row in range(self.tile):
            for i in range(m):
                if (i * k, row) in sums:
                    found = [sums[i * k + j, row] for j in range(k)]
                    if k == 2:
                        found = self._together(found[0], found[1], at)[: len(states)]
                    elif at:
                        found = [b.shuffle(found[0], found[0], [min(at + j, n - 1) for j in range(n)])]
                    rows.append(found)
        self._finish(states, values, rows)

    def _together(self, even: Value, odd: Value, first: int) -> list[Value]:
        """Two phases of a row, from lane `first` on."""
        n = self.n
        picks = [min(first + i // 2, n - 1) + n * (i % 2) for i in range(2 * n)]
        return [self.b.shuffle(even, odd, picks[at : at + n]) for at in (0, n)]

    def _part(self, values: dict[int, Value], steps: dict[int, int]) -> Part:
        """All axes of the result bound: `steps` beyond `values`."""
        b, s = self.b, self.epi.sampler
        sums: dict[int, Value] = {}
        for i, f in enumerate(s.forms):
            at: Value | None = None
            for a, v in values.items():
                c = f.coef.get(a, 0)
                if c:
                    term = b.mul(v, b.const(c))
                    at = term if at is None else b.add(at, term)
            more = sum(f.coef.get(a, 0) * x for a, x in steps.items())
            if more:
                at = b.const(more) if at is None else b.add(at, b.const(more))
            if at is not None:
                sums[i] = at
        every = {**{a: b.const(0) for a in steps}, **values}
        opaque = {a: b.add(v, b.const(steps.get(a, 0))) for a, v in every.items() if a in s.opaque}
        ones = {a for a, x in enumerate(self.shape) if x == 1}
        return Part(sums, frozenset(every) | ones, opaque)

    def _finish(self, states: Sequence[State], values: dict[int, Value], rows: Sequence[Sequence[Value]]) -> None:
        """Row after row of the result."""
        b, n, axis = self.b, self.n, self.s.row
        if self.room is None or len(rows) == 1:
            for i, row in enumerate(rows):
                self.epi.row(states, self._part(values, {axis: i} if axis is not None else {}), row)
            return
        width = len(states) * n
        for i, row in enumerate(rows):
            for j, x in enumerate(row):
                b.store(x, self.room, b.const(i * width + j * n))
        assert axis is not None
        with b.loop(0, len(rows)) as loop:
            at = b.mul(loop.var, b.const(width))
            here = [b.load(self.room, b.add(at, b.const(j * n)), self.elem, n) for j in range(len(states))]
            self.epi.row(states, self._part({**values, axis: b.add(values[axis], loop.var)}, {}), here)

    # -- along the reduction

    def _sums(self, group: Sequence[int]) -> None:
        """The sums of these numbers, over all rows and lanes and turns of `loops`."""
        b, s = self.b, self.s
        init: Carried = [self.zero] * len(group)

        def level(i: int, carried: Carried) -> Carried:
            if i < len(s.loops):
                axis = s.loops[i]
                with b.loop(0, s.extents[axis], step=self._points(axis), init=carried, runs=True) as loop:
                    self.values[s.loops[i]] = loop.var
                    loop.next = level(i + 1, list(loop.carried))
                return list(loop.results)
            self._bind()
            return self._over(
                self.rows, carried,
                lambda h, x: self._over(self.columns, x, lambda w, y: self._products(h, w, group, y)),
            )

        sums = level(0, init)
        for a in s.loops:
            self.values.pop(a)
        state = State(self.epi.sampler, 0, None)
        for number, x in zip(group, sums, strict=True):
            at, rest = {}, number
            for a in reversed(s.taps):
                at[a], rest = rest % s.extents[a], rest // s.extents[a]
            self.epi.row([state], self._part(self.values, at), [b.horizontal("add", x)])

    def _products(self, h: Place, w: Place, group: Sequence[int], carried: Carried) -> Carried:
        b, s = self.b, self.s
        self._begin(h, w)
        self._ask_ahead()
        known, (phase,) = h.first == h.last, s.phases
        place = {number: i for i, number in enumerate(group)}
        work = []
        for row in range(self.tile):
            if known and h.first + row >= phase.rows:
                continue
            for t in phase.terms:
                if t.sum in place and (not known or t.rows.lo <= h.first + row <= t.rows.hi):
                    assert t.weight is not None
                    work.append((row, t, t.vector, t.weight))
        # In the order of the operand that is read at more places; the other one waits in registers.
        many = [len({f.read for _, _, *fs in work for f in fs[i : i + 1]}) for i in (0, 1)]
        moving = 2 + int(many[1] > many[0])

        def order(x: tuple) -> tuple:
            a = x[moving].read
            return (a.row * x[0] + a.const + a.pitch // 2) // a.pitch, a.shift // a.lane, a.shift, x[0]

        out = list(carried)
        for row, t, first, second in sorted(work, key=order):
            i = place[t.sum]
            out[i] = b.fma(self._vector(first, t, phase, row), self._vector(second, t, phase, row), out[i])
        return out
