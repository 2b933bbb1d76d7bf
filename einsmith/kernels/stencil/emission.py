"""Emit the loops and arithmetic of a stencil in tiles, with border tiles peeled; `loads` emits the tiles' reads.

A tile is some rows by one vector. Rows and columns where every guard holds run in unguarded loops; the other tiles are
emitted one by one at literal positions. Two phases of a row are interleaved and stored as two whole vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import reduce
from math import ceil, prod
from typing import NamedTuple

from einsmith.codegen.loopnest.lanes import combine_lanes
from einsmith.codegen.loopnest.nest import Builder
from einsmith.codegen.loopnest.walk import Bound, digits, part_range
from einsmith.codegen.ssa import SSAValue
from einsmith.cost.facts import Target
from einsmith.ir.nodes import Const, Piece
from einsmith.kernels.contraction.epilogue import Epilogue
from einsmith.kernels.emit.cursor import LaneCursor
from einsmith.kernels.emit.epilogue_sums import EpilogueSums, SumElements, SumPlaces
from einsmith.kernels.emit.loops import is_below_limits, is_limited, load_limit
from einsmith.kernels.stencil.loads import AxisPoint, Reader, StencilTiling
from einsmith.kernels.stencil.terms import Span, Stencil, Term
from einsmith.kernels.stencil.write_combining import PhasePlanes, combined_buffers
from einsmith.schedule.contraction_problem import Operand, Problem
from einsmith.schedule.kernel import Kernel

Carried = list[SSAValue]
MAX_PARTIAL_SUMS = 16
"""Most partial sums of a tile (vector registers); several hide the latency of dependent multiply-adds."""
SPARE_REGISTERS = 8
"""Vector registers kept free for loads and shuffle patterns (count)."""


class PointRange(NamedTuple):
    """The points first, first + step, ... below `end` of an axis: a single one, or the iterations of a loop."""

    first: int
    end: int
    step: int

    @property
    def last(self) -> int:
        """The last point."""
        return self.end - self.step

    @property
    def is_loop(self) -> bool:
        """Return whether there are several points, so that a loop runs over them."""
        return self.last > self.first


def cut_segments(count: int, step: int, whole: Span) -> list[PointRange]:
    """Return the tiles of `step` points over `count` points: those inside `whole` as a loop, the others one by one."""
    tiles = ceil(count / step)
    first = min(max(0, ceil(whole.lo / step)), tiles)
    end = min(max(first, (whole.hi + 1) // step), tiles)

    def peel(some: range) -> list[PointRange]:
        return [PointRange(n * step, n * step + step, step) for n in some]

    loop = [PointRange(first * step, end * step, step)] if first < end else []
    return [*peel(range(first)), *loop, *peel(range(end, tiles))]


def _meet_all(spans: Sequence[Span], least: int) -> Span:
    """Return the intersection of the spans and 0 .. least - 1."""
    return Span(max((x.lo for x in spans), default=0), min([least - 1, *(x.hi for x in spans)]))


def row_segments(s: Stencil, tile: int) -> list[PointRange]:
    """Return the tiles of rows; in the tiles of a loop no guard of a row fails."""
    return cut_segments(s.rows, tile, _meet_all([f.rows for f in s.vectors], min(p.rows for p in s.phases)))


def column_segments(s: Stencil, lanes: int, masks: bool, width: int) -> list[PointRange]:
    """Return the vectors of a row.

    Args:
        s: The stencil.
        lanes: Lanes of a vector.
        masks: A loop may include vectors whose reads have inactive lanes.
        width: Elements of a row of results, which the stores of a loop's vectors must not exceed; 0: stores may have
            inactive lanes too.
    """
    if masks or s.lanes <= lanes:
        last = width // s.steps[1] if width else ceil(s.lanes / lanes) * lanes
        return cut_segments(s.lanes, lanes, Span(0, last - 1))
    return cut_segments(s.lanes, lanes, _meet_all([f.lanes for f in s.vectors], min(p.lanes for p in s.phases)))


def count_partial_sums(sums: int, weights: int, places: int, registers: int) -> int:
    """Return how many partial sums each sum is split into, by the taps' places along a row, to hide latency.

    Args:
        sums: Sums of a tile.
        weights: Most weights of the taps at one place.
        places: Places of taps along a row.
        registers: Vector registers available.
    """
    room = min(MAX_PARTIAL_SUMS, registers - weights - SPARE_REGISTERS)
    return max(1, min(room // max(1, sums), places))


def _tap_position(t: Term) -> int:
    """Return the position of a tap along a row (lanes)."""
    return t.vector.read.shift // t.vector.read.lane


class StencilLowering:
    """The emitter of one stencil function."""

    def __init__(
        self,
        kernel: Kernel,
        s: Stencil,
        t: StencilTiling,
        target: Target,
        b: Builder,
        sums: SumPlaces | None = None,
    ):
        self.b, self.s, self.tile, self.tasks, self.groups = b, s, t.tile, t.tasks, t.groups
        self.reader = r = Reader(kernel, s, t, target, b)
        self.n, self.zero = r.lanes, r.zero
        self.pair, self.points_per_vector = t.pair, r.points_per_vector
        self.registers, self.rows = target.vector_registers, row_segments(s, t.tile)
        # Order by row where points share vectors and the weights are hoisted: rotated vectors are reused across taps.
        self.orders_by_row = t.hoisted and t.pair is not None
        shape = kernel.root.shape
        self.shape = shape
        whole = Piece((0,) * len(shape), (1,) * len(shape), shape, Const(0.0, s.dtype))
        no_operand = Operand(Const(0.0, s.dtype), (), frozenset())
        p = Problem(whole, s.dtype, (no_operand, no_operand), (), (), (), (), (), Const(0.0, s.dtype), ())
        axes, lanes = ((), 0) if s.along_k else ((s.lane,), self.n)
        count = s.sums if s.along_k else s.steps[0] * t.tile * s.steps[1]
        self.epi = Epilogue(b, kernel, p, axes, lanes, room=count * self.n)
        combined = combined_buffers(kernel, s, target) if t.pair is None else frozenset()
        self.kernel = kernel
        self.limit = load_limit(b, kernel) if is_limited(s.outer) else None
        self.phase_planes = PhasePlanes(r, kernel, s, self.epi, combined) if combined else None
        non_temporal = any(self.epi.non_temporal) and shape[-1] % self.n == 0
        self.columns = column_segments(s, self.n, target.vector_bytes >= 64, shape[-1] if non_temporal else 0)
        self.values: dict[int, SSAValue] = {}
        self.taken = None if sums is None else EpilogueSums(b, kernel, sums, 1, 1, self.n)
        if self.taken is not None:
            kept = kernel.sums[0].kept
            self.elements = SumElements(b, kept, shape, [a for a in s.outer if a not in kept])

    def emit_task(self, task: SSAValue) -> None:
        """Emit one task: its range of the points of the outer axes."""
        b, s = self.b, self.s
        extents = [s.extents[a] // self.reader.step(a) for a in s.outer]
        count: Bound = prod(extents)
        if self.limit is not None:
            step = self.reader.step(0)
            count = b.mul(b.op("floordiv", b.add(self.limit, step - 1), step), prod(extents[1:]))
        with b.loop(*part_range(b, task, self.tasks, count)) as points:
            axis_points = zip(s.outer, digits(b, points.var, extents), strict=True)
            self.values = {a: b.mul(x, self.reader.step(a)) for a, x in axis_points}
            below = is_below_limits(b, self.kernel, {a: x for a, x in self.values.items() if a != 0})
            with nullcontext() if below is None else b.if_(below):
                for a, x in self.values.items():
                    self.reader.bind(a, x)
                if s.along_k:
                    for group in self.groups:
                        self._emit_sums(group)
                else:
                    self._emit_results()

    def _emit_results(self) -> None:
        """Emit the rows of results at one point of the outer axes, and its part of the epilogue's sums."""
        if self.taken is not None:
            self.taken.clear()
        self._emit_segments(self.rows, [], lambda h, _: self._emit_row_of_tiles(h))
        if self.taken is not None:
            at = self.elements.access.at(self.values)
            self.taken.finish(0, 0, self.elements.part(at), self.elements.element(at))

    # -- places

    def _emit_segments(
        self, segments: Sequence[PointRange], init: Carried, body: Callable[[AxisPoint, Carried], Carried]
    ) -> Carried:
        b, out = self.b, init
        for segment in segments:
            if not segment.is_loop:
                out = body(AxisPoint(b.const(segment.first), segment.first, segment.first), out)
                continue
            with b.loop(segment.first, segment.end, step=segment.step, init=out, runs=True) as loop:
                loop.next = body(AxisPoint(loop.var, segment.first, segment.last), list(loop.carried))
            out = list(loop.results)
        return out

    # -- along the output

    def _emit_row_of_tiles(self, h: AxisPoint) -> Carried:
        self._emit_segments(self.columns, [], lambda w, _: self._emit_tile(h, w))
        if self.phase_planes is not None:
            b, m = self.b, self.s.steps[0]
            first, more = b.mul(h.value, m), self.tile * m
            if h.first == h.last:
                assert self.s.row is not None
                more = min(more, self.shape[self.s.row] - h.first * m)
            self.phase_planes.flush(first, b.add(first, more))
        return []

    def _begin_tile(self, h: AxisPoint, w: AxisPoint) -> tuple[list[tuple[int, int]], list[tuple[int, int, Term]]]:
        """Begin a tile; return its rows as (phase, row), and (phase, row, term) for each term of each row."""
        s, known = self.s, h.first == h.last
        self.reader.begin_tile(h, w)
        self.h, self.w = h, w
        rows = [
            (i, row)
            for i, phase in enumerate(s.phases)
            for row in range(self.tile)
            if not known or h.first + row < phase.rows
        ]
        return rows, [
            (i, row, t)
            for i, row in rows
            for t in s.phases[i].terms
            if not known or t.rows.lo <= h.first + row <= t.rows.hi
        ]

    def _emit_tile(self, h: AxisPoint, w: AxisPoint) -> Carried:
        b, s = self.b, self.s
        rows, terms = self._begin_tile(h, w)
        work: list[tuple[tuple, int, int, Term]] = []
        for i, row, t in terms:
            a = t.vector.read
            place, at = _tap_position(t), a.row * row + a.const
            work.append(((at - a.shift, place) if self.orders_by_row else (place, at), i, row, t))
        work.sort(key=lambda x: x[:3])
        # Few sums are split into independent partial sums.
        taps: dict[int, set] = {}
        for *_, t in work:
            taps.setdefault(_tap_position(t), set()).add(t.weight)
        count = count_partial_sums(len(rows), max(map(len, taps.values()), default=0), len(taps), self.registers)
        parts = {k: [self.zero] * count for k in rows}
        part_of = {place: n % count for n, place in enumerate(sorted(taps))}
        group = None
        for (of, _), i, row, t in work:
            if of != group:
                group = of
                self.reader.forget_loads()
            part = part_of[_tap_position(t)]
            x, old = self.reader.factor(t.vector, s.phases[i], row), parts[i, row][part]
            # Where the term is zero its weight may still be infinite.
            active = None if t.weight is None else self.reader.find_active_lanes(t, s.phases[i])
            if t.selection is not None:
                if x is self.zero:
                    continue
                active = self.reader.find_selected_lanes(t.selection, s.phases[i], row)
            if t.weight is None:
                new = b.add(old, x)
            elif old is self.zero and active is not None:
                # A product folds a masked load as its operand; in a sum selected against zero the load would stay an
                # instruction of its own (codegen.llvm.faults.UNMASKED).
                new = b.mul(x, self.reader.weight(t))
            else:
                new = b.fma(x, self.reader.weight(t), old)
            parts[i, row][part] = new if active is None else b.select(active, new, old)
        sums = {k: reduce(b.add, x) for k, x in parts.items()}
        for point in range(self.points_per_vector):
            self._store_point(sums, point)
        return []

    def _store_point(self, sums: dict[tuple[int, int], SSAValue], point: int) -> None:
        """Store the result rows of point number `point` of those that share vectors."""
        b, s, n = self.b, self.s, self.n
        m, k = s.steps
        width = self.shape[s.lane]
        states = []
        for j in range(k):
            first, last = k * self.w.first + j * n, k * self.w.last + j * n
            if first < width:
                at = b.add(b.mul(self.w.value, k), j * n)
                states.append(LaneCursor(self.epi.sampler, at, width if last + n > width else None, n))
        values = dict(self.values)
        if self.pair is not None:
            values[self.pair] = b.add(values[self.pair], point)
        if s.row is not None:
            values[s.row] = b.mul(self.h.value, m)
        rows, start = [], point * n // 2
        for row in range(self.tile):
            for i in range(m):
                if (i * k, row) in sums:
                    vectors = [sums[i * k + j, row] for j in range(k)]
                    if k == 2:
                        vectors = self._interleave(vectors[0], vectors[1], start)[: len(states)]
                    elif start:
                        vectors = [b.shuffle(vectors[0], vectors[0], [min(start + j, n - 1) for j in range(n)])]
                    rows.append(vectors)
        self._store_rows(states, values, rows)

    def _interleave(self, even: SSAValue, odd: SSAValue, first: int) -> list[SSAValue]:
        """Interleave two phases of a row, from lane `first` on, into two vectors."""
        n = self.n
        picks = [min(first + i // 2, n - 1) + n * (i % 2) for i in range(2 * n)]
        return [self.b.shuffle(even, odd, picks[at : at + n]) for at in (0, n)]

    def _store_rows(
        self, states: Sequence[LaneCursor], values: dict[int, SSAValue], rows: Sequence[Sequence[SSAValue]]
    ) -> None:
        """Run the epilogue on the result rows and store them, row after row."""
        axis, taken = self.s.row, self.taken
        in_registers = self.epi.room is None or len(rows) == 1
        # Rows whose operands lie where they are stored are all read first: a masked store delays loads next to it.
        pending: list[Sequence[tuple[LaneCursor, Sequence[SSAValue]]]] = []
        group: list[tuple[LaneCursor, Sequence[SSAValue]]] = []
        if taken is not None:
            self.epi.take = (
                group.extend if in_registers else lambda x: taken.add(0, x, taken.weigh(0, [c for c, _ in x]))
            )

        def store_row(number: int | SSAValue, row: Sequence[SSAValue]) -> None:
            place = self.epi.sampler.at(values, {axis: number} if axis is not None else {})
            results = self.epi.values(states, place, row)
            if self.phase_planes is not None:
                self.phase_planes.put(results)
            elif in_registers:
                pending.append(results)
            else:
                self.epi.store(results)

        self.epi.rows(rows, store_row)
        for results in pending:
            self.epi.store(results)
        if taken is not None and in_registers:
            taken.add(0, group, taken.weigh(0, states, len(rows)))

    # -- along the reduction

    def _emit_sums(self, group: Sequence[int]) -> None:
        """Accumulate and store the filter-gradient sums with these numbers, over all rows, lanes and `loops`."""
        b, s = self.b, self.s
        init: Carried = [self.zero] * len(group)

        def emit_level(i: int, carried: Carried) -> Carried:
            if i < len(s.loops):
                axis = s.loops[i]
                count: Bound = s.extents[axis]
                if (end := s.end if axis == s.rank else None) is not None:
                    number = b.load(b.buffers[self.kernel.stages[0].args[end][1]], 0, "i32")
                    count = b.op("min", b.cast(number, "i64"), count)
                with b.loop(0, count, step=self.reader.step(axis), init=carried, runs=end is None) as loop:
                    self.values[axis] = loop.var
                    self.reader.bind(axis, loop.var)
                    loop.next = emit_level(i + 1, list(loop.carried))
                return list(loop.results)
            return self._emit_segments(
                self.rows,
                carried,
                lambda h, x: self._emit_segments(self.columns, x, lambda w, y: self._add_products(h, w, group, y)),
            )

        sums = emit_level(0, init)
        for a in s.loops:
            self.values.pop(a)
        state = LaneCursor(self.epi.sampler, 0, None)
        for number, x in zip(group, sums, strict=True):
            at, rest = dict(self.values), number
            for a in reversed(s.taps):
                at[a], rest = b.const(rest % s.extents[a]), rest // s.extents[a]
            self.epi.row([state], self.epi.sampler.at(at), [combine_lanes(b, "add", x)])

    def _add_products(self, h: AxisPoint, w: AxisPoint, group: Sequence[int], carried: Carried) -> Carried:
        b, (phase,) = self.b, self.s.phases
        place = {number: i for i, number in enumerate(group)}
        work = [
            (row, t.sum, t.vector, t.weight) for _, row, t in self._begin_tile(h, w)[1] if t.sum in place and t.weight
        ]
        # Ordered by the operand that is read at more places; the other one stays in registers.
        places_read = [len({f.read for _, _, *fs in work for f in fs[i : i + 1]}) for i in (0, 1)]
        moving = 2 + int(places_read[1] > places_read[0])

        def sort_key(x: tuple) -> tuple:
            a = x[moving].read
            return (a.row * x[0] + a.const - a.shift) // a.pitch, a.shift // a.lane, a.shift, x[0]

        out = list(carried)
        for row, number, first, second in sorted(work, key=sort_key):
            i = place[number]
            out[i] = b.fma(self.reader.factor(first, phase, row), self.reader.factor(second, phase, row), out[i])
        return out
