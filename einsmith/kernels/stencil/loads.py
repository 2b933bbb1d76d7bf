"""Emit the loads of one tile of a stencil, each shared by all terms that read the same elements.

Every other element of a row (stride 2) comes from two loads and a shuffle; neighbouring taps share the loads, or shift
a tap's vector by one lane. Short rows of two points lie side by side in one vector. Guards are decided once per row;
over the lanes they are a constant mask or a comparison.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from einsmith.codegen.loopnest.address import arguments_of, memories_of
from einsmith.codegen.loopnest.lanes import between, conjoin
from einsmith.codegen.loopnest.nest import Builder
from einsmith.codegen.ssa import BYTES, SSAValue, elem_of
from einsmith.cost.facts import LINE, Target
from einsmith.ir.analysis.linear import LinearForm
from einsmith.ir.nodes import Axis, Expr, reads
from einsmith.kernels.emit.vector import VectorEmitter
from einsmith.kernels.stencil.terms import MAX_STEP, Access, MaskedRead, Phase, Selection, Span, Stencil, Term
from einsmith.schedule.kernel import Kernel

SPARE_REGISTERS = 4
"""Vector registers kept free for loads and shuffles at stride 2 (count)."""
PREFETCH_BYTES = 6144
"""Prefetch distance (bytes read and written between the prefetch of a row and its load): covers a cache miss."""


class AxisPoint(NamedTuple):
    """A point of an axis, known to lie in first .. last; where first == last it is a literal."""

    value: SSAValue
    first: int
    last: int

    @property
    def position(self) -> SSAValue | int:
        """The position: a literal where it is known, otherwise a value."""
        return self.first if self.first == self.last else self.value


class StridedGroup(NamedTuple):
    """A group of taps that read every other element (stride 2) of the same rows.

    span: elements that the group reads, counted from the one that a tap of shift 0 reads at lane 0; None where the taps
    cannot share loads because some tap must not read an element of the others. low, high: least and largest shift."""

    span: Span | None
    low: int
    high: int


def group_strided_taps(s: Stencil, share_loads: bool) -> dict[tuple, StridedGroup]:
    """Return the groups of stride-2 taps that share loads, by `_strided_key`.

    share_loads: the groups span all taps along a row (`can_share_row_loads`)."""
    members: dict[tuple, list[tuple[Access, Span]]] = {}
    every = Span(0, s.lanes - 1)
    for f in s.vectors:
        lanes = f.lanes.meet(every)
        if f.read.lane == 2 and lanes.lo <= lanes.hi:
            members.setdefault(_strided_key(f.read, share_loads), []).append((f.read, lanes))
    out: dict[tuple, StridedGroup] = {}
    for key, accesses in members.items():
        spans = [(_elements(a, x), x) for a, x in accesses]
        whole = Span(min(x.lo for x, _ in spans), max(x.hi for x, _ in spans))
        # Lanes before the first and after the last may hold any value.
        first, last = (0, every.hi) if share_loads else (-1, -1)
        fit = all((x.lo < whole.lo + 2 or y.lo == first) and (whole.hi < x.hi + 2 or y.hi == last) for x, y in spans)
        shifts = [a.shift for a, _ in accesses]
        out[key] = StridedGroup(whole if fit else None, min(shifts), max(shifts))
    return out


def _strided_key(a: Access, share_loads: bool) -> tuple:
    return a.slot, a.outer, a.row, 0 if share_loads else a.shift // 2


def can_share_row_loads(s: Stencil, tile: int, registers: int) -> bool:
    """Return whether all stride-2 taps along a row can share its loads, that is, whether the vectors of all rows of a
    tile stay in registers until the last tap. Filter gradients cannot: they would sum the lanes outside of a row."""
    reads = {f.read for f in s.vectors}
    if s.along_k or not any(a.lane == 2 for a in reads):
        return False
    rows = {(a.slot, a.outer, a.row * i + a.const - a.shift) for a in reads for i in range(tile)}
    weights: dict[int, set] = {}
    for t in (t for p in s.phases for t in p.terms):
        weights.setdefault(t.vector.read.shift, set()).add(t.weight)
    return tile * len(s.phases) + len(rows) + max(map(len, weights.values())) + SPARE_REGISTERS <= registers


def _elements(a: Access, lanes: Span) -> Span:
    return Span(a.lane * lanes.lo + a.shift, a.lane * lanes.hi + a.shift)


def pair_axis(s: Stencil, lanes: int) -> int | None:
    """Return the axis of which two points share a vector, half of it each, where rows are that short; else None.

    The weights must not vary along this axis, every vector read must, and each row must fit one load."""
    if s.selections or 2 * s.lanes > lanes or any(x.hi - x.lo >= lanes for x in find_read_spans(s).values()):
        return None
    excluded = {a for p in s.phases for t in p.terms if t.weight and not s.along_k for a, _ in t.weight.read.outer}
    excluded.update(a for _, m in s.prologues for a in m.axes)
    vector_axes = [{a for a, _ in f.read.outer} for f in s.vectors]
    for a in s.loops if s.along_k else s.outer:
        if a == s.rank and s.end is not None:
            continue  # the number of points may be odd
        if s.extents[a] % 2 == 0 and a not in excluded and all(a in x for x in vector_axes):
            return a
    return None


def find_read_spans(s: Stencil) -> dict[tuple, Span]:
    """Return the span of elements of a row that all taps together read, by `_kind` of access."""
    out: dict[tuple, Span] = {}
    for a, _, lanes in s.vectors:
        if lanes.lo <= lanes.hi:
            span = _elements(a, lanes)
            old = out.get(_kind(a), span)
            out[_kind(a)] = Span(min(old.lo, span.lo), max(old.hi, span.hi))
    return out


def find_rotated_kinds(s: Stencil) -> set[tuple]:
    """Return the kinds of stride-2 access whose taps rotate a vector of even or of odd elements instead of loading.

    More than 4 taps have different shifts there: more vectors than stay in registers, so that rotating saves loads."""
    shifts: dict[tuple, set[int]] = {}
    for f in s.vectors:
        if f.read.lane == 2:
            shifts.setdefault(_kind(f.read), set()).add(f.read.shift)
    return {k for k, x in shifts.items() if len(x) > 4}


def find_short_rows(s: Stencil, lanes: int, width: int) -> set[tuple]:
    """Return the kinds of stride-2 access, in filter gradients, whose rows fit two vectors.

    Each tap is then one two-source shuffle of these vectors. Lanes outside of a row are zero and may be summed."""
    if not s.along_k or s.lanes > lanes or width < LINE:
        return set()
    return {k for k, x in find_read_spans(s).items() if k[3] == 2 and x.hi - x.lo < 2 * lanes}


def list_streams(s: Stencil) -> list[Access]:
    """Return one access of each `_kind`: the streams of memory that a tile reads."""
    return list({_kind(f.read): f.read for f in s.vectors}.values())


def rows_per_tile(a: Access, tile: int) -> int:
    """Return the rows of memory by which an access moves from one tile to the next."""
    return max(1, tile * abs(a.row) // a.pitch)


def _are_rows_adjacent(a: Access) -> bool:
    """Return whether the rows of a tile are adjacent in memory; where its row axis is an outer one, others lie
    between."""
    return abs(a.row) <= MAX_STEP * a.pitch


def _kind(a: Access) -> tuple:
    return a.slot, a.outer, a.row, a.lane, a.pitch


class StencilTiling(NamedTuple):
    """The tiling of a stencil that a configuration asks for.

    tile: rows of a tile. tasks: parallel tasks. groups: numbers of the filter-gradient sums accumulated in each pass.
    hoisted: weights are loaded once for all tiles. pair: axis of which two points share a vector (None: no such axis).
    share_loads: all taps along a row share its loads (`can_share_row_loads`)."""

    tile: int
    tasks: int
    groups: list[list[int]]
    hoisted: bool
    pair: int | None
    share_loads: bool


class Reader(VectorEmitter):
    """An emitter of the loads of one stencil function, with the vectors loaded so far."""

    def __init__(self, kernel: Kernel, s: Stencil, t: StencilTiling, target: Target, b: Builder):
        super().__init__(b, s.extents, target.lanes(s.dtype.itemsize))
        self.s, self.tile, self.pair, self.share_loads, self.hoisted = s, t.tile, t.pair, t.share_loads, t.hoisted
        for axis, n in enumerate(s.extents):
            if n == 1:  # no loop binds it
                self.bind(axis, 0)
        self.elem = elem_of(s.dtype)
        self.zero = self.const(0.0, self.elem, self.lanes)
        self.selector_types = {x.read.read.slot: x.dtype for x in s.selections}
        self.slots, self.prologues = [ref[1] for ref in kernel.stages[0].args], dict(s.prologues)
        arguments = arguments_of(kernel, memories_of(kernel, b.buffers))
        for slot in {r.slot for m in self.prologues.values() for r in reads(m.body) if r is not m.element}:
            self.place(slot, arguments[slot])
        self.masks, self.predicates = target.vector_bytes >= 32, target.vector_bytes >= 64
        self.points_per_vector = 1 if t.pair is None else 2
        self.read_spans, self.strided_groups = find_read_spans(s), group_strided_taps(s, t.share_loads)
        self.rotated_kinds = set() if s.along_k else find_rotated_kinds(s)
        self.short_rows = set() if t.pair is not None else find_short_rows(s, self.lanes, target.vector_bytes)
        beyond_l2 = not target.fits_l2(sum(x.nbytes for x in kernel.buffers))
        streams = [a for a in list_streams(s) if _are_rows_adjacent(a)] if beyond_l2 else []
        self.prefetch = _RowPrefetch(self, streams, kernel.shape[-1])
        self.loaded: dict[tuple, SSAValue] = {}

    def step(self, axis: int) -> int:
        """Return the number of points of an axis in one vector: 2 along `self.pair`, the axis two of whose points share
        a vector, else 1."""
        return self.points_per_vector if axis == self.pair else 1

    def pair_distance(self, a: Access) -> int:
        """Return the distance (elements) between the two points that share a vector; 0 without a pair axis."""
        return 0 if self.pair is None else dict(a.outer)[self.pair]

    def begin_tile(self, h: AxisPoint, w: AxisPoint) -> None:
        """Begin the tile at row h and lane w, and prefetch the rows of a later tile."""
        self.h, self.w = h, w
        if self.s.row is not None:
            self.bind(self.s.row, h.position)
        self.bind(self.s.lane, w.position)
        self.forget_loads()
        self.prefetch.emit()

    def forget_loads(self) -> None:
        """Forget the loaded vectors, so that they are loaded again rather than kept in registers.

        Hoisted weights stay."""
        self.loaded.clear()

    def address_of(self, a: Access, lane: bool = True) -> SSAValue:
        """Return the variable part of an access's address; without `lane`, that of the beginning of the row."""
        terms: dict[Expr, int] = {Axis(axis): c for axis, c in a.outer}
        for axis, c in ((self.s.row, a.row), (self.s.lane, a.lane * lane)):
            if c:
                assert axis is not None
                terms[Axis(axis)] = c
        return self.emit_uniform(LinearForm(0, terms))

    def _mask_of_span(self, span: Span, scale: int = 1, more: int = 0) -> SSAValue | None:
        """Return the mask of lanes i with scale * (the vector's first lane) + more + i in the span; None: all."""
        n, w = self.lanes, self.w
        first, last = scale * w.first + more, scale * w.last + more
        if span.lo <= first and last + n - 1 <= span.hi:
            return None
        if first == last:
            return self.literal([span.lo <= first + i <= span.hi for i in range(n)], "i1")

        def lane_of(edge: int) -> SSAValue:
            x = self.op("sub", self.const(edge - more), self.op("mul", w.value, self.const(scale)))
            if max(abs(edge - first), abs(edge - last)) + n < 2**31:
                return x
            return self.op("max", self.const(-1), self.op("min", x, self.const(n)))

        low = lane_of(span.lo) if span.lo > first else None
        high = lane_of(span.hi + 1) if span.hi < last + n - 1 else None
        return between(self, low, self.literal(range(n), "i32"), high)

    # -- loads

    def factor(self, f: MaskedRead, phase: Phase, row: int) -> SSAValue:
        """Return a factor's vector for row `row` of the tile; it is zero where the factor's guards fail."""
        a, h = f.read, self.h
        lanes = f.lanes.meet(Span(0, phase.lanes - 1))
        if h.first == h.last and not f.rows.lo <= h.first + row <= f.rows.hi:
            return self.zero
        if lanes.hi < max(lanes.lo, self.w.first) or lanes.lo > self.w.last + self.lanes - 1:
            return self.zero
        key = (a.slot, a.outer, a.row * row + a.const, a.row, a.lane, lanes)
        if key not in self.loaded:
            self.loaded[key] = self._load_factor(a, lanes, row)
        return self.loaded[key]

    def _load_factor(self, a: Access, lanes: Span, row: int) -> SSAValue:
        if self.pair is not None:
            return self._load_two_points(a, lanes, row)
        if _kind(a) in self.short_rows:
            return self._load_pair(a, self._elements_by_lane(a, a.shift, lanes), row)
        return self._load_strided(a, lanes, row) if a.lane == 2 else self._load_inside(a, 0, row, lanes)

    def _load_vector(self, a: Access, more: int, row: int, mask: SSAValue | None) -> SSAValue:
        return self._load_element(a, a.const + a.row * row + more, self.lanes, mask)

    def _load_element(self, a: Access, more: int, lanes: int, mask: SSAValue | None = None) -> SSAValue:
        """Load the elements `more` beyond an access's address, once per tile; the load is not hoisted."""
        b, at = self.b, self.address_of(a)
        key = (a.slot, at.id, more, lanes, None if mask is None else mask.id)
        if key not in self.loaded:
            x = b.load(b.buffers[self.slots[a.slot]], b.add(at, more), self.element_type(a), lanes, mask)
            self.loaded[key] = self._apply_prologue(a.slot, x, mask)
        return self.loaded[key]

    def element_type(self, a: Access) -> str:
        """Return the element type of an access's slot."""
        return elem_of(self.selector_types.get(a.slot, self.s.dtype))

    def find_selected_lanes(self, x: Selection, phase: Phase, row: int) -> SSAValue:
        """Return the mask of lanes in which a selection holds, where its read's guards hold too."""
        number = self.const(x.number, elem_of(x.dtype))
        return self.op("eq", self.factor(x.read, phase, row), self.splat(number))

    def _apply_prologue(self, slot: int, x: SSAValue, mask: SSAValue | None) -> SSAValue:
        """Apply the slot's prologue to loaded elements; lanes that were not loaded are zero."""
        prologue = self.prologues.get(slot)
        if prologue is None:
            return x
        self.give({prologue.element: x})
        out = self.emit(prologue.body)
        return out if mask is None else self.op("where", mask, out, self.zero)

    def _load_inside(self, a: Access, more: int, row: int, span: Span, span_shift: int = 0) -> SSAValue:
        """Load a vector of elements, zero outside of the span.

        more: offset (elements) from the tap's first element. span_shift: the part of it by which the span moves too."""
        n, first = self.lanes, a.lane * self.w.first + span_shift
        if self.masks or self.w.first != self.w.last or span.hi - span.lo + 1 < n:
            return self._load_vector(a, more, row, self._mask_of_span(span, a.lane, span_shift))
        # Without vector masks: load whole vectors inside of the span, and shift the elements to their lanes.
        lane_shift = min(max(first, span.lo), span.hi - n + 1) - first
        vector = self._load_vector(a, more + lane_shift, row, None)
        if not lane_shift:
            return vector
        zero = self.const(0, self.element_type(a), n) if a.slot in self.selector_types else self.zero
        return self.shuffle(vector, zero, [i - lane_shift if 0 <= i - lane_shift < n else n for i in range(n)])

    def _load_strided(self, a: Access, lanes: Span, row: int) -> SSAValue:
        """Load every other element: shuffle two vectors, or shift a neighbouring tap's vector and add one element."""
        n, (shared, low, high) = self.lanes, self.strided_groups[_strided_key(a, self.share_loads)]
        if shared is None:
            low = high = a.shift
        span = shared or _elements(a, lanes)
        base = min(max(low, 0), high) // 2 * 2  # the even shift from which whole vectors are read

        def load_whole(first: int) -> SSAValue:
            """Return the elements first, first + 1, ... from lane 0 on."""
            inside = span.hi >= 2 * self.w.first + first and span.lo <= 2 * self.w.last + first + n - 1
            return self._load_inside(a, first - a.shift, row, span, first) if inside else self.zero

        def select_every_other(first: int) -> SSAValue:
            if first < base:
                at = low + (first - low) // n * n
                return self.shuffle(select_every_other(first + 2), load_whole(at), [n + first - at, *range(n - 1)])
            if first >= base + 2:
                last = first + 2 * n - 2
                at = high + n - 1 - max(0, -((last - high - n + 1) // n)) * n
                return self.shuffle(select_every_other(first - 2), load_whole(at), [*range(1, n), n + last - at])
            return self.shuffle(load_whole(base), load_whole(base + n), [2 * i + first - base for i in range(n)])

        return select_every_other(a.shift)

    def _load_two_points(self, a: Access, lanes: Span, row: int) -> SSAValue:
        """Load the rows of two points side by side in one vector.

        At stride 2, taps at an even distance may rotate one vector; lanes between the rows, into which nothing is
        loaded, then supply the zeros around the rows."""
        n, half, reach = self.lanes, self.lanes // 2, self.read_spans[_kind(a)]
        elements = self._elements_by_lane(a, a.shift, lanes)
        start = a.shift % a.lane
        turn = (a.shift - start) // a.lane
        source = [(i + turn) % n for i in range(n)]
        whole_row = Span(-((start - reach.lo) // a.lane), (reach.hi - start) // a.lane)
        first = self._elements_by_lane(a, start, whole_row)
        # Stored lanes that the rotation fills with a wrong element; lanes that shall be zero are cleared.
        wrong = [
            i
            for i, x in enumerate(source)
            if i % half < self.s.lanes
            and (elements[i] != first[x] or (first[x] is not None and i // half != x // half))
        ]
        loads_alone = _kind(a) not in self.rotated_kinds or reach.hi - reach.lo >= n - 1
        if loads_alone or any(elements[i] is not None for i in wrong):
            return self._load_pair(a, elements, row)
        rotated = self._load_pair(a, first, row)
        if turn:
            rotated = self.shuffle(rotated, rotated, source)
        return self._clear(rotated, [i not in wrong for i in range(n)])

    def _clear(self, x: SSAValue, on: Sequence[bool]) -> SSAValue:
        """Return x with zeros in the lanes that are not `on`."""
        return x if all(on) else self.op("where", self.literal(on, "i1"), x, self.zero)

    def _elements_by_lane(self, a: Access, shift: int, lanes: Span) -> list[int | None]:
        """Return, for each lane, the element of its point's row that it holds (None: zero); points share the lanes
        equally."""
        share = self.lanes // self.points_per_vector
        every = [i % share for i in range(self.lanes)]
        return [a.lane * i + shift if lanes.lo <= i <= lanes.hi else None for i in every]

    def _load_pair(self, a: Access, elements: Sequence[int | None], row: int) -> SSAValue:
        """Return elements of a row by a shuffle of two loads: one of each point's row, or the two of a single row.

        All taps share the loads. elements: by lane, None for zero."""
        n, two_points, reach = self.lanes, self.points_per_vector == 2, self.read_spans[_kind(a)]
        count, parts = reach.hi - reach.lo + 1, []
        for part in range(2):
            on = [i < (count if two_points else count - n * part) for i in range(n)]
            more = reach.lo - a.shift + (self.pair_distance(a) if two_points else n) * part
            parts.append(self._load_vector(a, more, row, None if all(on) else self.literal(on, "i1")))
        room = n if two_points else 2 * n
        spare = room - 1 if count < room else 0  # a lane that was not loaded is zero
        where = [n * (i >= n // 2) if two_points else 0 for i in range(n)]
        picks = [spare if x is None else x - reach.lo + at for x, at in zip(elements, where, strict=True)]
        vector = self.shuffle(parts[0], parts[1], picks)
        return vector if spare else self._clear(vector, [x is not None for x in elements])

    def find_active_lanes(self, t: Term, phase: Phase) -> SSAValue | None:
        """Return the mask of lanes in which a term counts; elsewhere it is zero, whatever its weight. None: all."""
        if t.lanes.covers(Span(0, phase.lanes - 1)):
            return None
        n, known = self.lanes, self.w.first == self.w.last
        if self.pair is None:
            on = self._mask_of_span(t.lanes)
        else:
            on = self.literal([t.lanes.lo <= i % (n // 2) <= t.lanes.hi for i in range(n)], "i1")
        return conjoin(self, on, self._all_lanes()) if on is not None and known and self.predicates else on

    def _all_lanes(self) -> SSAValue | None:
        """Return a mask of all lanes that the compiler cannot know to be constant.

        Of a multiply-add with a constant mask LLVM makes three instructions instead of one: an unmasked multiply-add, a
        copy and a blend. The mask depends on the task number, which is never below 0."""
        b, n = self.b, self.lanes
        return between(b, None, b.iota(n, "i32"), b.add(b.op("min", b.task, 0), n))

    def weight(self, t: Term) -> SSAValue:
        """Return the weight of a term as a vector, the same in all lanes."""
        assert t.weight is not None
        a = t.weight.read
        if not self.hoisted:
            return self.splat(self._load_element(a, a.const, 0))
        at = self.op("add", self.address_of(a), self.const(a.const))
        return self.splat(self.load(self.b.buffers[self.slots[a.slot]], at, self.elem))


class _RowPrefetch:
    """The prefetching of the rows of later tiles from memory beyond L2.

    streams: an access of each stream of rows that is prefetched. width: elements of a row of results."""

    def __init__(self, reader: Reader, streams: Sequence[Access], width: int):
        self.reader, self.streams, self.width = reader, streams, width

    def emit(self) -> None:
        """Prefetch rows of later tiles, PREFETCH_BYTES of traffic ahead; each vector prefetches its share of lines."""
        r, b, s = self.reader, self.reader.b, self.reader.s
        items = [BYTES[r.element_type(a)] for a in self.streams]
        counts = [rows_per_tile(a, r.tile) * a.pitch for a in self.streams]
        stored = 0 if s.along_k else s.steps[0] * r.tile * self.width * s.dtype.itemsize
        size = sum(n * item for n, item in zip(counts, items, strict=True)) + stored
        tiles = -(-PREFETCH_BYTES // max(1, size * r.points_per_vector))
        for count, item, a in zip(counts, items, self.streams, strict=True):
            line = LINE // item
            row = r.op("add", r.address_of(a, lane=False), self._distance(a, tiles, count))
            share = -(-count // (line * -(-s.lanes // r.lanes)))
            memory, elem = b.buffers[r.slots[a.slot]], r.element_type(a)
            for point in range(r.points_per_vector):
                at = b.add(row, b.mul(r.w.value, share * line // r.lanes))
                for i in range(share):
                    b.prefetch(memory, b.add(at, r.pair_distance(a) * point + i * line), elem)

    def _distance(self, a: Access, tiles: int, step: int) -> SSAValue:
        """Return the distance (elements) from an access to its address `tiles` tiles later.

        A tile is `step` elements. In a filter gradient the later tile may fall into a later turn of the innermost loop.
        """
        r, b, h = self.reader, self.reader.b, self.reader.h
        every = -(-r.s.rows // r.tile)
        if not r.s.loops:
            return b.const(tiles * step)
        turns, more = divmod(tiles, every)
        last = (every - more) * r.tile
        same_turn, next_turn = (self._distance_after(a, turns + i, (more - i * every) * step) for i in (0, 1))
        if h.last < last or h.first >= last:
            return same_turn if h.last < last else next_turn
        return b.select(b.op("lt", h.value, last), same_turn, next_turn)

    def _distance_after(self, a: Access, turns: int, more: int) -> SSAValue:
        """Return the distance (elements) from an access to `more` elements beyond its address `turns` turns later.

        A turn is one of the innermost loop; after its last turn come the next sums."""
        r, b, s = self.reader, self.reader.b, self.reader.s
        loop, strides = s.loops[-1], dict(a.outer)
        sums, rest = divmod(turns * r.step(loop), s.extents[loop])
        per_turn, per_sum = strides.get(loop, 0), sum(strides.get(x, 0) for x in s.outer[-1:])
        same_sum = sums * per_sum + rest * per_turn + more
        if not rest:
            return b.const(same_sum)
        next_sum, at = same_sum + per_sum - s.extents[loop] * per_turn, r.position(loop)
        assert isinstance(at, SSAValue)
        return b.select(b.op("lt", at, s.extents[loop] - rest), same_sum, next_sum)
