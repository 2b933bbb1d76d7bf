"""Store in whole lines results that tiles compute in parts of lines: sums with constants between them.

Where no gradient arrives in a strided convolution's backward pass the result is constant (`Problem.constant_pieces`):
say, rows of 28 sums two elements apart, and every other row without any. A vector of sums, which begins anywhere in
such a row and may continue in the next, would be stored as parts of eight lines. Here the results are collected in
scratch, side by side along N, until a *unit* of points is complete whose results, constants included, fill memory
without a gap:

    points 0 .. 27 of N  ->  s0 0 s1 0 ... s7 0 | s8 0 ... | s16 0 ... | s24 0 ... s27 0 0 ... 0 | 0 ... 0 | ...

These are seven whole vectors, each made of one load and a shuffle; where they lie at multiples of their length and the
buffer is larger than the caches, they are stored with non-temporal stores. The incomplete unit at the end of a panel is
kept, for every row of M, until the next panel; at the ends of a task's range of N units are stored in part.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from einsmith.codegen.loopnest.lanes import between, conjoin
from einsmith.codegen.loopnest.walk import ceil_div
from einsmith.codegen.ssa import SSAValue
from einsmith.kernels.contraction.emission.frame import Frame, TaskFrame, Tile
from einsmith.kernels.contraction.units import Unit, Vector
from einsmith.kernels.emit.access import OperandAccess


class LineBuffer:
    """Emits the stores of the tiles of a task in whole units; `results` is the epilogue's (`epilogue.Results`)."""

    def __init__(self, f: Frame, unit: Unit, results: Any):
        b, g = f.b, f.g
        self.f, self.b, self.unit, self.constants, self.lanes = f, b, unit, results.constants, g.lanes
        self.nonconstant = [i for i in range(len(results.exprs)) if i not in self.constants]
        # Points of an incomplete unit that panels may leave, in whole vectors.
        self.pad = 0 if g.nr % unit.points == 0 else ceil_div(unit.points - 1, g.lanes) * g.lanes
        self.row = self.pad + g.nr + g.lanes
        self.scratch = b.alloc(f.sum_elem, g.mr * self.row * len(self.nonconstant))
        tiles = 1 if g.c.order == "m" else ceil_div(g.mt, g.c.tm)  # of M, which wait for their next panel
        self.pending = b.alloc(f.sum_elem, tiles * g.mr * self.pad * len(self.nonconstant)) if self.pad else None
        places = [results.places[s.first] for s in unit.stretches]
        self.sampler = OperandAccess(b, (), (), g.p.extents, f.buffers, (), 0, places)

    def put(self, row: SSAValue, vector: int, values: Sequence[SSAValue]) -> None:
        """Store the results of one vector of a row of the tile in scratch."""
        b = self.b
        for n, i in enumerate(self.nonconstant):
            b.store(b.splat(values[i], self.lanes), self.scratch, self._place(row, n, self.pad + vector * self.lanes))

    def _place(self, row: SSAValue, result: int, at: int) -> SSAValue:
        """Return the place in scratch of element `at` of a row, for one result."""
        b = self.b
        return b.add(b.mul(b.add(b.mul(row, len(self.nonconstant)), result), self.row), at)

    def flush(self, t: TaskFrame, x: Tile) -> None:
        """Store the units that a tile completes, in all its rows, and keep the incomplete one.

        After the last of a task's panels the incomplete unit is stored too.
        """
        b, g, s, points = self.b, self.f.g, self.sampler, self.unit.points
        nr, size, m0 = b.const(g.nr), b.const(points), b.mul(x.rows.number, g.mr)
        begin = b.mul(x.panel.number, nr)
        low, end = b.mul(t.n_range[0], nr), b.op("min", g.N, b.add(begin, nr))
        last = b.op("eq", b.add(x.panel.number, 1), t.n_range[1])
        stop = b.op("floordiv", b.select(last, b.add(end, points - 1), end), size)
        first_pending_row = b.sub(m0, b.mul(t.m_range[0], g.mr)) if g.c.order == "n" else b.const(0)
        batch = s.part_of(g.p.batch, t.batch)
        self._move_pending(x.rows.size, first_pending_row, back=False)
        with b.loop(b.op("floordiv", begin, size), stop) as units:
            start = b.mul(units.var, size)
            unit, place = s.part_of(g.n_side.axes, start), b.add(b.sub(start, begin), self.pad)
            part = b.sub(low, start), b.sub(end, start)
            is_partial = b.op("or", b.op("lt", 0, part[0]), b.op("lt", part[1], points))
            with b.loop(0, x.rows.size) as row:
                m = s.part_of(g.m_side.axes, b.add(m0, row.var))
                bases = [s.place(form, batch, unit, m) for form in s.extra]
                with b.if_(b.op("not", is_partial)):
                    self._store(bases, row.var, place, None)
                with b.if_(is_partial):
                    self._store(bases, row.var, place, part)
        self._move_pending(x.rows.size, first_pending_row, back=True)

    def _move_pending(self, rows: int, first_row: SSAValue, back: bool) -> None:
        """Load the kept results before a tile's rows, or keep the rows' ends (`back`).

        `first_row` is the number of the first row among the rows whose results are kept.
        """
        b, pad, n, elem = self.b, self.pad, self.lanes, self.f.sum_elem
        if self.pending is None:
            return
        with b.loop(0, rows) as row:
            pending_place = b.mul(b.add(first_row, row.var), pad * len(self.nonconstant))
            for i in range(len(self.nonconstant)):
                for x in range(0, pad, n):
                    pending_at = b.add(pending_place, i * pad + x)
                    scratch_at = self._place(row.var, i, x + (self.f.g.nr if back else 0))
                    ends = [(self.pending, pending_at), (self.scratch, scratch_at)]
                    source, to = reversed(ends) if back else ends
                    b.store(b.load(*source, elem, n), *to)

    def _store(
        self, bases: Sequence[SSAValue], row: SSAValue, place: SSAValue, part: tuple[SSAValue, SSAValue] | None
    ) -> None:
        """Store a unit that begins at `place` of its row in scratch; its stretches begin at `bases`.

        `part` is None for all points, or the range (first, end) of points to store.
        """
        b, n = self.b, self.lanes
        for base, s in zip(bases, self.unit.stretches, strict=True):
            to = self.f.buffers[s.buffer]
            for v, lanes in enumerate(s.vectors):
                value, at = self._vector(lanes, row, place), b.add(base, v * n)
                mask = self._mask(lanes, part)
                if mask is None and s.aligned and to.buffer.non_temporal:
                    b.stream(value, to.pointer, at)
                else:
                    b.store(value, to.pointer, at, mask)

    def _vector(self, lanes: Vector, row: SSAValue, place: SSAValue) -> SSAValue:
        """Return one vector of a unit.

        Where the unit continues past the panel, lanes that are not stored hold what lies behind the row in scratch.
        Behind the last row lie the kept results, which are at least as many, so that the load stays within scratch.
        """
        b, n, elem = self.b, self.lanes, self.f.sum_elem
        constants = [0.0 if x is None else self.constants.get(x[0], 0.0) for x in lanes]
        value = b.literal(constants, elem) if len({repr(x) for x in constants}) > 1 else b.const(constants[0], elem, n)
        for number, i in enumerate(self.nonconstant):
            points = [x[1] for x in lanes if x is not None and x[0] == i]
            if points:
                where = b.add(self._place(row, number, min(points)), place)
                loaded = b.load(self.scratch, where, elem, n)
                lanes_chosen = [
                    x[1] - min(points) if x is not None and x[0] == i else n + e for e, x in enumerate(lanes)
                ]
                value = b.shuffle(loaded, value, lanes_chosen)
        return value

    def _mask(self, lanes: Vector, part: tuple[SSAValue, SSAValue] | None) -> SSAValue | None:
        """Return the mask of a vector's lanes that are stored; None where all are."""
        b = self.b
        present = [x is not None for x in lanes]
        mask = None if all(present) else b.literal(present, "i1")
        if part is None:
            return mask
        points = b.literal([x[1] if x is not None else -1 for x in lanes], "i32")
        return conjoin(b, mask, between(b, part[0], points, part[1]))
