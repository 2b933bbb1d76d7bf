"""Emit the epilogue of a tile.

The epilogue runs in registers, row by row or several rows together; through scratch; on the transposed tile; or in
whole lines of results. Partial sums are stored instead, and another launch adds them and runs the epilogue.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from itertools import chain
from math import gcd

from einsmith.codegen.loopnest.lanes import transpose
from einsmith.codegen.loopnest.walk import ceil_div
from einsmith.codegen.ssa import SSAValue
from einsmith.kernels.contraction import epilogue
from einsmith.kernels.contraction.emission.frame import Frame, Rows, TaskFrame, Tile, TileSums
from einsmith.kernels.contraction.emission.k_pack import add_lanes
from einsmith.kernels.contraction.emission.taken_sums import TakenSums
from einsmith.kernels.contraction.emission.whole_lines import LineBuffer
from einsmith.kernels.contraction.epilogue import MAX_REGISTER_EPILOGUE, Epilogue
from einsmith.kernels.contraction.geometry import Geometry
from einsmith.kernels.emit.cursor import LaneCursor
from einsmith.kernels.emit.epilogue_sums import SumPlaces


def form_of(g: Geometry) -> epilogue.Form:
    """Return the form of the epilogue of a configuration's tiles."""
    return epilogue.choose_form(g, g.original, g.mr, g.c.nv, g.c.split)[1] if g.c.depth == 1 else "straight"


def scratch_tiles(g: Geometry) -> int:
    """Return the tiles of a task whose sums stay in scratch between blocks of K."""
    rows, columns = ceil_div(g.mt, g.c.tm), ceil_div(g.nt, g.c.tn)
    if g.k_outer:
        return rows * columns
    return rows if g.c.order == "n" else columns


class TileEpilogue:
    """Emits the epilogue of a tile.

    transposed: vectors lie along M
    lines: buffer of results that are stored in whole lines, or None
    stacked: rows that are stored together
    scratch_sums: sums that go through scratch, where they also stay between blocks of K, or None
    companion_sums: sums of the companion's tile, which are computed first, or None
    taken: what takes the sums of the kernel's epilogue, or None
    """

    def __init__(self, f: Frame, places: SumPlaces | None = None):
        self.f, g, b = f, f.g, f.b
        p, m_axes, n_axes = g.p, g.m_side.axes, g.n_side.axes
        form = form_of(g)
        self.transposed = form == "turned"
        axes, tile = (m_axes, g.mr) if self.transposed else (n_axes, 0)
        self.epilogue = Epilogue(b, g.kernel, p, axes, g.lanes, g.row, tile)
        self.stacked = epilogue.adjacent_rows(g.kernel, p, m_axes, n_axes, g.lanes) if form == "stacked" else 1
        self.column_pad = ceil_div(g.mr, g.lanes) * g.lanes
        self.companion_sums = TileSums(b, f.sum_elem, 1, g.mr, g.width, g.lanes) if p.companion is not None else None
        sums = (1 + (p.companion is not None)) * self.transposed
        self.columns = [b.alloc(f.sum_elem, g.nr * self.column_pad) for _ in range(sums)]
        self.scratch_sums: TileSums | None = None
        is_long = self.epilogue.results.size > MAX_REGISTER_EPILOGUE
        if g.blocked or p.in_tiles or (g.c.split == 1 and not self.transposed and is_long):
            self.scratch_sums = TileSums(b, f.sum_elem, scratch_tiles(g) if g.blocked else 1, g.mr, g.width, g.lanes)
        unit = epilogue.store_unit(g.kernel, p, n_axes, g.lanes) if form == "lines" else None
        self.lines = LineBuffer(f, unit, self.epilogue.results) if unit is not None else None
        self.zero = b.const(0.0, f.sum_elem, g.lanes)
        self.taken = None if places is None else TakenSums(f, places)
        s, results = self.epilogue.sampler, self.epilogue.results
        used = [(form, f.buffers[r.slot]) for r, form in s.reads.items()]
        used += [(form, f.buffers[n]) for form, n in zip(s.extra, results.outputs, strict=True)]
        fits_l2 = g.target.fits_l2
        self.far = [(form, m) for form, m in used if not (m.buffer.non_temporal or fits_l2(m.buffer.nbytes))]

    def vectors(self, nv: int) -> int:
        """Return the vectors of results along N that rows of `nv` vectors of sums give; 0 where rows give none."""
        return 0 if self.f.g.c.split > 1 or self.transposed else ceil_div(nv, self.f.g.c.depth)

    # -- sums that stay in scratch between blocks of K

    def clear(self, tiles: SSAValue) -> None:
        """Clear the sums of the first `tiles` tiles where blocks of K accumulate in scratch."""
        if self.f.g.blocked:
            assert self.scratch_sums is not None
            self.scratch_sums.clear(tiles)

    def initial_sums(self, x: Tile) -> list[SSAValue]:
        """Return the initial values of a tile's sums for a block of K: zeros, or the sums from scratch."""
        if not self.f.g.blocked:
            return [self.zero] * (x.rows.size * x.panel.size)
        assert self.scratch_sums is not None
        return [v for row in self.scratch_sums.rows(x.number, x.rows.size, x.panel.size) for v in row]

    # -- the epilogue

    def prefetch(self, t: TaskFrame, x: Tile) -> None:
        """Prefetch lines beyond L2 that the tile's epilogue reads and writes, before the tile multiplies."""
        b, g, s = self.f.b, self.f.g, self.epilogue.sampler
        if not self.far or g.c.split > 1 or self.transposed:
            return
        m0 = b.mul(x.rows.number, g.mr)
        with nullcontext() if x.last is None else b.if_(x.last):
            for i in range(x.rows.size):
                row = s.part_of(g.m_side.axes, b.add(m0, i))
                for state in x.panel.results:
                    at = state.bind(row)
                    for form, memory in self.far:
                        at.prefetch(form, memory.pointer, memory.elem)

    def emit(self, t: TaskFrame, x: Tile, rows: Rows | None) -> None:
        """Emit the epilogue of a tile's sums (None: they are in scratch); with blocks of K, store the sums and emit the
        epilogue after the last block."""
        if self.scratch_sums is not None and rows is not None:
            self.scratch_sums.store(rows, x.number)
        with nullcontext() if x.last is None else self.f.b.if_(x.last):
            self._emit_epilogue(t, x, rows if self.scratch_sums is None else None)

    def _emit_epilogue(self, t: TaskFrame, x: Tile, rows: Rows | None) -> None:
        """Emit the epilogue of the sums `rows`, or of the sums in scratch if `rows` is None."""
        b, g, mr, nv, step = self.f.b, self.f.g, x.rows.size, x.panel.size, self.stacked
        m0 = b.mul(x.rows.number, g.mr)
        if self.transposed:
            # Each tile is loaded after the one before has left the registers.
            tiles = (s.rows(x.number, mr, nv) for s in (self.scratch_sums, self.companion_sums) if s is not None)
            for tile, to in zip(chain([rows] if rows is not None else [], tiles), self.columns, strict=True):
                self._transpose(tile, to, nv)
            self._emit_columns(t, x)
            return
        if self.taken is not None:
            self.taken.begin_tile(t, x)
        # A tile that ends at a run-time limit may have rows that make no whole vectors together; each is stored alone.
        whole = mr - mr % step
        for first, end, count in ((0, whole, step), (whole, mr, 1)):
            if rows is not None:
                for i in range(first, end, count):
                    self._emit_rows(t, x, m0, b.const(i), rows[i : i + count])
            elif first < end:
                assert self.scratch_sums is not None
                with b.loop(first, end, step=count) as loop:
                    places = [b.add(loop.var, i) for i in range(count)]
                    self._emit_rows(t, x, m0, loop.var, [self.scratch_sums.load(x.number, at, nv) for at in places])
        if self.lines is not None:
            self.lines.flush(t, x)

    def _emit_rows(self, t: TaskFrame, x: Tile, m0: SSAValue, row: SSAValue, rows: Rows) -> None:
        """Emit the epilogue of one row of the tile, or of several rows that are stored together."""
        b, g, results = self.f.b, self.f.g, x.panel.results
        m = b.add(m0, row)
        sums = [add_lanes(b, v, g.c.depth) for v in rows]
        if g.c.split > 1:
            at = g.partials.place(b, t.split, t.batch, m, b.mul(x.panel.number, g.nr))
            for v, value in enumerate(sums[0]):
                b.store(value, self.f.workspace, b.add(at, v * g.lanes))
            return
        parts = [self.epilogue.sampler.part_of(g.m_side.axes, b.add(m, i)) for i in range(len(sums))]
        if self.lines is not None:
            for v, (_, values) in enumerate(self.epilogue.values(results, parts[0], sums[0])):
                self.lines.put(row, v, values)
        elif len(rows) > 1:
            self.epilogue.store_stacked(results, parts, sums)
        else:
            if self.taken is not None:
                self.epilogue.take = partial(self.taken.add, row)
            companion_sums = (
                self.companion_sums.load(x.number, row, x.panel.size) if self.companion_sums is not None else ()
            )
            self.epilogue.row(results, parts[0], sums[0], companion_sums)

    # -- transposed tiles

    def _transpose(self, rows: Rows, scratch: SSAValue, nv: int) -> None:
        """Transpose a tile into scratch, in squares of vectors."""
        b, n = self.f.b, self.f.g.lanes
        for v in range(nv):
            for block in range(0, len(rows), n):
                square = [x[v] for x in rows[block : block + n]]
                square += [self.zero] * (n - len(square))
                for lane, column in enumerate(transpose(b, square)):
                    b.store(column, scratch, (v * n + lane) * self.column_pad + block)

    def _emit_columns(self, t: TaskFrame, x: Tile) -> None:
        """Emit the epilogue of a transposed tile, column by column."""
        b, g, n, s, mr, panel = self.f.b, self.f.g, self.f.g.lanes, self.epilogue.sampler, x.rows.size, x.panel
        m0 = b.mul(x.rows.number, g.mr)
        blocks, align = range(0, mr, n), gcd(g.mr, n)
        counts = [mr - x if mr - x < n else None for x in blocks]
        states = [
            LaneCursor(s, b.add(m0, x), None, align, count).bind(t.results)
            for x, count in zip(blocks, counts, strict=True)
        ]
        n0 = b.mul(panel.number, g.nr)
        columns = panel.size * n if panel.limit is None else g.N - (g.nt - 1) * g.nr
        with b.loop(0, columns) as loop:
            at = b.mul(loop.var, self.column_pad)
            sums = [[b.load(to, b.add(at, block), self.f.sum_elem, n) for block in blocks] for to in self.columns]
            self.epilogue.row(states, s.part_of(g.n_side.axes, b.add(n0, loop.var)), *sums)
