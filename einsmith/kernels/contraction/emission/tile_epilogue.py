"""What becomes of a tile's sums: they are finished in registers, row by row or rows together; by way of scratch;
transposed first; in whole lines of results; or kept as partial sums, which another launch adds and finishes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import gcd

from einsmith.kernels.contraction import epilogue
from einsmith.kernels.contraction.emission.frame import Frame, Panel, Task
from einsmith.kernels.contraction.emission.k_pack import added
from einsmith.kernels.contraction.emission.prefetch import ResultPrefetch
from einsmith.kernels.contraction.emission.write_combining import LineBuffer, LineSpan
from einsmith.kernels.contraction.epilogue import REGISTER_EPILOGUE, Epilogue
from einsmith.kernels.contraction.geometry import Geometry
from einsmith.kernels.emit.cursor import LaneCursor
from einsmith.kernels.emit.walk import ceil_div, transpose
from einsmith.loops.nest import Value

Rows = Sequence[Sequence[Value]]
"""The vectors of a tile, row by row."""


def form_of(g: Geometry) -> epilogue.Form:
    """How the tiles of a configuration are finished."""
    return epilogue.of(g.kernel, g.p, g.c, g.lanes, g.target.l2)[1] if g.c.depth == 1 else "straight"


def waiting_tiles(g: Geometry) -> int:
    """Tiles of a task whose sums wait for the next block of K."""
    rows, columns = ceil_div(g.mt, g.c.tm), ceil_div(g.nt, g.c.tn)
    if g.k_outer:
        return rows * columns
    return rows if g.c.order == "n" else columns


class TileEpilogue:
    """Emission of what follows the sums of a tile. transposed: vectors lie along M; lines: of results that are stored
    whole; stacked: so many rows are stored together; through_scratch: sums are stored to `sums` first, where they also
    wait between blocks of K; behind: what a tile completes is stored while the next one multiplies."""

    def __init__(self, f: Frame):
        self.f, g, b = f, f.g, f.b
        p, m_axes, n_axes = g.p, g.m_side.axes, g.n_side.axes
        form = form_of(g)
        self.transposed = form == "turned"
        axes, tile = (m_axes, g.mr) if self.transposed else (n_axes, 0)
        self.epilogue = Epilogue(b, g.kernel, p, f.buffers, axes, g.lanes, g.row, tile)
        self.stacked = epilogue.stacked(g.kernel, p, m_axes, n_axes, g.lanes) if form == "stacked" else 1
        self.column_pad = ceil_div(g.mr, g.lanes) * g.lanes
        self.columns = b.alloc(f.elem, g.nr * self.column_pad) if self.transposed else None
        self.tile_size = g.mr * g.width
        long = g.c.split == 1 and not self.transposed and self.epilogue.size > REGISTER_EPILOGUE
        self.through_scratch = g.blocked or long
        self.sums: Value | None = None
        if self.through_scratch:
            self.sums = b.alloc(f.elem, self.tile_size * (waiting_tiles(g) if g.blocked else 1))
        self.lines = self._lines() if form == "lines" else None
        self.behind = self.lines is not None and not g.k_outer and not g.bounded and len(g.k_groups) == 1
        self.prefetch: ResultPrefetch | None = None
        if not (self.lines or g.blocked or g.row or g.c.split > 1):
            self.prefetch = ResultPrefetch(b, g.kernel, p, f.buffers, m_axes, n_axes, g.target.l2)
        self.zero = b.const(0.0, f.elem, g.lanes)

    def _lines(self) -> LineBuffer:
        """Whole lines of results."""
        g, e = self.f.g, self.epilogue
        unit = epilogue.unit(g.kernel, g.p, g.n_side.axes, g.lanes)
        assert unit is not None
        tiles = ceil_div(g.mt, g.c.tm) if g.c.order != "m" else 1  # of M, that wait for their next panel
        return LineBuffer(
            self.f.b, unit, e.places, self.f.buffers, g.p.extents, g.n_side.axes, e.constants, e.far, self.f.elem,
            g.lanes, g.mr, g.nr, tiles * g.mr,
        )

    def cursors(self, t: Task, starts: Sequence[Value], limit: int | None) -> list[LaneCursor]:
        """The lanes of the results of a panel's vectors, which start there."""
        g = self.f.g
        if g.c.split > 1 or self.transposed:
            return []
        return [
            LaneCursor(self.epilogue.sampler, x, limit, g.lanes, column=g.column(v)).bind(t.results)
            for v, x in enumerate(starts[: ceil_div(len(starts), g.c.depth)])
        ]

    # -- sums that wait in scratch between blocks of K

    def clear(self, tiles: Value | int) -> None:
        """Lets the sums of so many tiles begin at zero."""
        b, g = self.f.b, self.f.g
        if g.blocked:
            assert self.sums is not None
            count = b.index(tiles)
            with b.loop(0, b.mul(count, b.const(self.tile_size)), step=g.lanes) as loop:
                b.store(self.zero, self.sums, loop.var)

    def start(self, mr: int, nv: int, number: Value) -> list[Value]:
        """What the sums of a tile are before a block of K."""
        b, g = self.f.b, self.f.g
        if not g.blocked:
            return [self.zero] * (mr * nv)
        assert self.sums is not None
        here = self._here(number)
        return [
            b.load(self.sums, b.add(here, b.const(i * g.width + v * g.lanes)), self.f.elem, g.lanes)
            for i in range(mr) for v in range(nv)
        ]

    def _here(self, number: Value) -> Value:
        """Where a tile's sums lie in scratch."""
        b = self.f.b
        return b.mul(number, b.const(self.tile_size)) if self.f.g.blocked else b.const(0)

    def _store_tile(self, rows: Rows, number: Value) -> None:
        b, g = self.f.b, self.f.g
        assert self.sums is not None
        here = self._here(number)
        for i, row in enumerate(rows):
            for v, x in enumerate(row):
                b.store(x, self.sums, b.add(here, b.const(i * g.width + v * g.lanes)))

    # -- finishing

    def finish(self, t: Task, rows: Rows, m0: Value, panel: Panel, last: Value | None, number: Value) -> None:
        """What follows the sums of a tile whose first row is m0, the tile `number` of those that wait in scratch; last:
        whether the block of K is the last one (None: it is the only one)."""
        b, g, mr = self.f.b, self.f.g, len(rows)
        if self.through_scratch:
            self._store_tile(rows, number)
            if last is None:
                self._from_scratch(t, m0, mr, panel, number)
            else:
                with b.if_(last):
                    self._from_scratch(t, m0, mr, panel, number)
        elif g.c.split > 1:
            for i in range(mr):
                self._store_partial(t, b.add(m0, b.const(i)), panel.jn, added(b, rows[i], g.c.depth))
        elif self.transposed:
            assert self.columns is not None
            self.transpose(rows, self.columns, panel.nv)
            self.finish_columns(t, [self.columns], mr, m0, panel)
        elif self.lines is not None:
            for i in range(mr):
                self._put(panel, m0, b.const(i), rows[i])
            self._complete(t, m0, mr, panel.jn)
        else:
            for i in range(0, mr, self.stacked):
                sums = [added(b, row, g.c.depth) for row in rows[i : i + self.stacked]]
                self._finish_rows(panel, b.add(m0, b.const(i)), sums)

    def _finish_rows(self, panel: Panel, m: Value, sums: Rows) -> None:
        """The epilogue of row m, or of it and those that are stored with it."""
        b, s = self.f.b, self.epilogue.sampler
        axes = self.f.g.m_side.axes
        parts = [s.part_of(axes, b.add(m, b.const(i)) if i else m) for i in range(len(sums))]
        if self.stacked > 1:
            self.epilogue.together(panel.results, parts, sums)
        else:
            self.epilogue.row(panel.results, parts[0], sums[0])

    def ask(self, t: Task, m0: Value, mr: int, panel: Panel) -> None:
        """Starts the loads of the lines that a tile's results are stored to in parts."""
        b, g = self.f.b, self.f.g
        if self.prefetch is not None:
            batch = self.prefetch.sampler.part_of(g.p.batch, t.batch)
            self.prefetch.ask(batch, m0, mr, b.mul(panel.jn, b.const(g.nr)), panel.nv * g.lanes)

    def _from_scratch(self, t: Task, m0: Value, mr: int, panel: Panel, number: Value) -> None:
        """The epilogue, row by row from scratch."""
        b, g, n, step, nv = self.f.b, self.f.g, self.f.g.lanes, self.stacked, panel.nv
        assert self.sums is not None
        here = self._here(number)
        if self.transposed:
            assert self.columns is not None
            where = [[b.add(here, b.const(i * g.nr + v * n)) for v in range(nv)] for i in range(mr)]
            self.transpose([[b.load(self.sums, x, self.f.elem, n) for x in row] for row in where], self.columns, nv)
            self.finish_columns(t, [self.columns], mr, m0, panel)
            return
        with b.loop(0, mr, step=step) as loop:
            sums = []
            for i in range(step):
                at = b.add(here, b.mul(b.add(loop.var, b.const(i)) if i else loop.var, b.const(g.width)))
                places = [b.add(at, b.const(v * n)) for v in range(nv)]
                sums.append(added(b, [b.load(self.sums, x, self.f.elem, n) for x in places], g.c.depth))
            if g.c.split > 1:
                self._store_partial(t, b.add(m0, loop.var), panel.jn, sums[0])
            elif self.lines is not None:
                self._put(panel, m0, loop.var, sums[0])
            else:
                self._finish_rows(panel, b.add(m0, loop.var), sums)
        if self.lines is not None:
            self._complete(t, m0, mr, panel.jn)

    def _store_partial(self, t: Task, m: Value, jn: Value, sums: Sequence[Value]) -> None:
        b, g = self.f.b, self.f.g
        at = g.partials.place(b, t.split, t.batch, m, b.mul(jn, b.const(g.nr)))
        for v, x in enumerate(sums):
            b.store(x, self.f.workspace, b.add(at, b.const(v * g.lanes)))

    # -- whole lines of results

    def _put(self, panel: Panel, m0: Value, row: Value, sums: Sequence[Value]) -> None:
        """What follows the sums of a row of the tile, to be stored in whole lines."""
        assert self.lines is not None
        part = self.epilogue.sampler.part_of(self.f.g.m_side.axes, self.f.b.add(m0, row))
        for v, (_, values) in enumerate(self.epilogue.values(panel.results, part, sums)):
            self.lines.put(row, v, values)

    def _complete(self, t: Task, m0: Value, mr: int, jn: Value) -> None:
        """Stores what a tile completes, unless the next one does."""
        if not self.behind:
            found = self._found(t, jn)
            with self.f.b.loop(0, mr) as loop:
                self._flush(t, found, m0, loop.var)

    def _found(self, t: Task, jn: Value) -> LineSpan:
        """What panel jn completes."""
        b, g, lines = self.f.b, self.f.g, self.lines
        assert lines is not None
        nr, (low, stop) = b.const(g.nr), (b.index(x) for x in t.n_range)
        begin, last = b.mul(jn, nr), b.op("eq", b.add(jn, b.const(1)), stop)
        end = b.op("min", b.const(g.N), b.add(begin, nr))
        return lines.find(lines.sampler.part_of(g.p.batch, t.batch), begin, end, b.mul(low, nr), last)

    def _flush(self, t: Task, found: LineSpan, m0: Value, row: Value) -> None:
        """Stores what is found in row `row` of the tile whose first one is m0."""
        b, g, lines = self.f.b, self.f.g, self.lines
        assert lines is not None
        m, kept = b.add(m0, row), row
        if g.c.order == "n":
            kept = b.sub(m, b.mul(b.index(t.m_range[0]), b.const(g.mr)))
        lines.flush(found, lines.sampler.part_of(g.m_side.axes, m), row, kept)

    def before(self, t: Task, jm: Value, jn: Value) -> tuple[Value, Callable[[Value], None]]:
        """Of the tile before one in the task, how many rows it has (none before the first one), and what stores those
        of its results that it completes in one of them."""
        b, g = self.f.b, self.f.g
        one = b.const(1)
        (m_lo, m_hi), (n_lo, n_hi) = ([b.index(x) for x in r] for r in (t.m_range, t.n_range))
        if g.c.order == "n":
            first, begins = b.op("eq", jm, m_lo), b.op("eq", jn, n_lo)
            m, n = b.sub(b.select(first, m_hi, jm), one), b.select(first, b.sub(jn, one), jn)
        else:
            first, begins = b.op("eq", jn, n_lo), b.op("eq", jm, m_lo)
            m, n = b.select(first, b.sub(jm, one), jm), b.sub(b.select(first, n_hi, jn), one)
        m0, found = b.mul(m, b.const(g.mr)), self._found(t, n)
        rows = b.select(b.op("and", first, begins), b.const(0), self._rows_from(m0))
        return rows, lambda row: self._flush(t, found, m0, row)

    def _rows_from(self, m0: Value) -> Value:
        """The rows of the tile whose first one is m0."""
        b, g = self.f.b, self.f.g
        return b.op("min", b.sub(b.const(g.M), m0), b.const(g.mr))

    def flush_last(self, t: Task) -> None:
        """Stores what the last tile of a task completes."""
        b, g = self.f.b, self.f.g
        one = b.const(1)
        (m_lo, m_hi), (n_lo, n_hi) = ([b.index(x) for x in r] for r in (t.m_range, t.n_range))
        m0 = b.mul(b.sub(m_hi, one), b.const(g.mr))
        with b.if_(b.op("and", b.op("lt", m_lo, m_hi), b.op("lt", n_lo, n_hi))):
            found = self._found(t, b.sub(n_hi, one))
            with b.loop(0, self._rows_from(m0)) as loop:
                self._flush(t, found, m0, loop.var)

    # -- transposed tiles

    def transpose(self, rows: Rows, to: Value, nv: int) -> None:
        """Squares of vectors of a tile are transposed into scratch."""
        b, n = self.f.b, self.f.g.lanes
        for v in range(nv):
            for block in range(0, len(rows), n):
                square = [x[v] for x in rows[block : block + n]]
                square += [self.zero] * (n - len(square))
                for lane, x in enumerate(transpose(b, square)):
                    b.store(x, to, b.const((v * n + lane) * self.column_pad + block))

    def finish_columns(self, t: Task, places: Sequence[Value], mr: int, m0: Value, panel: Panel) -> None:
        """The epilogue of a transposed tile, column by column; places: of its sums, and of a companion's."""
        b, g, n, s = self.f.b, self.f.g, self.f.g.lanes, self.epilogue.sampler
        blocks = range(0, mr, n)
        align = gcd(g.mr, n)
        states = []
        for block in blocks:
            count = mr - block if mr - block < n else None
            state = LaneCursor(s, b.add(m0, b.const(block)) if block else m0, None, align, count)
            states.append(state.bind(t.results))
        n0 = b.mul(panel.jn, b.const(g.nr))
        columns = panel.nv * n if panel.limit is None else g.N - (g.nt - 1) * g.nr
        with b.loop(0, columns) as loop:
            at = b.mul(loop.var, b.const(self.column_pad))
            sums = [[b.load(x, b.add(at, b.const(block)), self.f.elem, n) for block in blocks] for x in places]
            self.epilogue.row(states, s.part_of(g.n_side.axes, b.add(n0, loop.var)), *sums)

