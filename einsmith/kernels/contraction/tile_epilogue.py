"""What becomes of a tile's sums: they are finished in registers, row by row or rows together; by way of scratch; turned
first; in whole lines of results; or kept as partial sums, which another launch adds and finishes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import gcd
from typing import Any

from einsmith.kernels.contraction import epilogue as finish
from einsmith.kernels.contraction.config import Config
from einsmith.kernels.contraction.epilogue import REGISTER_EPILOGUE, Epilogue
from einsmith.kernels.contraction.k_pack import added
from einsmith.kernels.contraction.pack_shared import Buffers
from einsmith.kernels.contraction.prefetch import ResultPrefetch
from einsmith.kernels.contraction.problem import Problem
from einsmith.kernels.contraction.write_combining import LineBuffer, LineSpan
from einsmith.kernels.emit.access import FusedAxes, PartialAddress
from einsmith.kernels.emit.cursor import LaneCursor
from einsmith.kernels.emit.walk import ceil_div, digits_of, transpose
from einsmith.loops.nest import Builder, Value
from einsmith.plan.kernel import Kernel


class Finishing(Buffers):
    """Emission of what follows the sums of a tile. through_scratch: they are stored to `c_scratch` first, where they
    also wait between blocks of K; stacked: so many rows are stored together; turned, lines: see `finish.Form`;
    results: what is asked for of the lines that are stored to."""

    split: Value
    e_batch: PartialAddress
    e_states: list[LaneCursor]
    behind = False
    """Whether what a tile completes is stored while the next one multiplies."""

    def __init__(self, kernel: Kernel, config: Config, target: Any, builder: Builder, problem: Problem):
        super().__init__(kernel, config, target, builder, problem)
        b, p, m_axes, n_axes = self.b, self.p, self.m_side.axes, self.n_side.axes
        form = finish.of(kernel, p, config, self.lanes, target.l2)[1] if config.depth == 1 else "straight"
        self.turned = form == "turned"
        axes, tile = (m_axes, self.mr) if self.turned else (n_axes, 0)
        self.epi = Epilogue(b, kernel, p, self.pointers, axes, self.lanes, self.row, tile)
        self.stacked = finish.stacked(kernel, p, m_axes, n_axes, self.lanes) if form == "stacked" else 1
        self.turn_row = ceil_div(self.mr, self.lanes) * self.lanes
        self.turn_scratch = b.alloc(self.elem, self.nr * self.turn_row) if self.turned else None
        inner_tiles = ceil_div(self.mt, config.tm) if config.order == "n" else ceil_div(self.nt, config.tn)
        if self.k_outer:
            inner_tiles = ceil_div(self.mt, config.tm) * ceil_div(self.nt, config.tn)
        self.tile_size = self.mr * self.width
        long = config.split == 1 and not self.turned and self.epi.size > REGISTER_EPILOGUE
        self.through_scratch = self.blocked or long
        self.c_scratch = None
        if self.blocked:
            self.c_scratch = b.alloc(self.elem, inner_tiles * self.tile_size)
        elif self.through_scratch:
            self.c_scratch = b.alloc(self.elem, self.tile_size)
        self.lines: LineBuffer | None = None
        if form == "lines":
            self.lines = self._lines(ceil_div(self.mt, config.tm) if config.order == "n" else 1)
        self.results: ResultPrefetch | None = None
        if not (self.lines or self.blocked or self.row or config.split > 1):
            self.results = ResultPrefetch(b, kernel, p, self.pointers, m_axes, n_axes, target.l2)
        self.zero = b.const(0.0, self.elem, self.lanes)

    def _lines(self, tiles: int) -> LineBuffer:
        """Whole lines of results; `tiles`: how many of M wait for their next panel."""
        unit = finish.unit(self.kernel, self.p, self.n_side.axes, self.lanes)
        assert unit is not None
        return LineBuffer(
            self.b, unit, self.epi.places, self.pointers, self.p.extents, self.n_side.axes, self.epi.constants,
            self.epi.far, self.elem, self.lanes, self.mr, self.nr, tiles * self.mr,
        )

    def _finish_tile(
        self, rows: Sequence[Sequence[Value]], m0: Value, jn: Value, nv: int, last: Value | None, number: Value
    ) -> None:
        """What follows the sums of a tile whose first row is m0, the tile `number` of those that wait in scratch; last:
        whether the block of K is the last one (None: it is the only one)."""
        b, c, mr = self.b, self.c, len(rows)
        if self.through_scratch:
            self._store_tile(rows, number, nv)
            if last is None:
                self._rows(m0, mr, jn, nv, number)
            else:
                with b.if_(last):
                    self._rows(m0, mr, jn, nv, number)
        elif c.split > 1:
            for i in range(mr):
                self._store_partial(b.add(m0, b.const(i)), jn, added(b, rows[i], c.depth))
        elif self.turned:
            self._turn(rows, m0, jn, nv)
        elif self.lines is not None:
            for i in range(mr):
                self._put(m0, b.const(i), rows[i])
            self._complete(m0, mr, jn)
        else:
            for i in range(0, mr, self.stacked):
                sums = [added(b, row, c.depth) for row in rows[i : i + self.stacked]]
                self._finish_rows(b.add(m0, b.const(i)), sums)

    def _finish_rows(self, m: Value, sums: Sequence[Sequence[Value]]) -> None:
        """The epilogue of row m, or of it and those that are stored with it."""
        b, s = self.b, self.epi.sampler
        parts = [s.part_of(self.m_side.axes, b.add(m, b.const(i)) if i else m) for i in range(len(sums))]
        if self.stacked > 1:
            self.epi.together(self.e_states, parts, sums)
        else:
            self.epi.row(self.e_states, parts[0], sums[0])

    def _ask_results(self, m0: Value, mr: int, jn: Value, nv: int) -> None:
        """Starts the loads of the lines that a tile's results are stored to in parts."""
        b = self.b
        if self.results is not None:
            batch = self.results.sampler.part_of(self.p.batch, self.batch)
            self.results.ask(batch, m0, mr, b.mul(jn, b.const(self.nr)), nv * self.lanes)

    def _store_tile(self, rows, number: Value, nv: int) -> None:
        b = self.b
        assert self.c_scratch is not None
        here = b.mul(number, b.const(self.tile_size)) if self.blocked else b.const(0)
        for i, row in enumerate(rows):
            for v, x in enumerate(row):
                b.store(x, self.c_scratch, b.add(here, b.const(i * self.width + v * self.lanes)))

    def _rows(self, m0: Value, mr: int, jn: Value, nv: int, number: Value) -> None:
        """The epilogue, row by row from scratch."""
        b, step = self.b, self.stacked
        assert self.c_scratch is not None
        here = b.mul(number, b.const(self.tile_size)) if self.blocked else b.const(0)
        if self.turned:
            n = self.lanes
            where = [[b.add(here, b.const(i * self.nr + v * n)) for v in range(nv)] for i in range(mr)]
            self._turn([[b.load(self.c_scratch, x, self.elem, n) for x in row] for row in where], m0, jn, nv)
            return
        with b.loop(0, mr, step=step) as loop:
            sums = []
            for i in range(step):
                at = b.add(here, b.mul(b.add(loop.var, b.const(i)) if i else loop.var, b.const(self.width)))
                places = [b.add(at, b.const(v * self.lanes)) for v in range(nv)]
                row = [b.load(self.c_scratch, x, self.elem, self.lanes) for x in places]
                sums.append(added(b, row, self.c.depth))
            if self.c.split > 1:
                self._store_partial(b.add(m0, loop.var), jn, sums[0])
            elif self.lines is not None:
                self._put(m0, loop.var, sums[0])
            else:
                self._finish_rows(b.add(m0, loop.var), sums)
        if self.lines is not None:
            self._complete(m0, mr, jn)

    def _put(self, m0: Value, row: Value, sums: Sequence[Value]) -> None:
        """What follows the sums of a row of the tile, to be stored in whole lines."""
        assert self.lines is not None
        part = self.epi.sampler.part_of(self.m_side.axes, self.b.add(m0, row))
        for v, (_, values) in enumerate(self.epi.values(self.e_states, part, sums)):
            self.lines.put(row, v, values)

    def _complete(self, m0: Value, mr: int, jn: Value) -> None:
        """Stores what a tile completes, unless the next one does."""
        if not self.behind:
            found = self._found(jn)
            with self.b.loop(0, mr) as loop:
                self._flush(found, m0, loop.var)

    def _found(self, jn: Value) -> LineSpan:
        """What panel jn completes."""
        b, lines = self.b, self.lines
        assert lines is not None
        nr, (low, stop) = b.const(self.nr), (b.index(x) for x in self.n_range)
        begin, last = b.mul(jn, nr), b.op("eq", b.add(jn, b.const(1)), stop)
        end = b.op("min", b.const(self.N), b.add(begin, nr))
        return lines.find(lines.sampler.part_of(self.p.batch, self.batch), begin, end, b.mul(low, nr), last)

    def _flush(self, found: LineSpan, m0: Value, row: Value) -> None:
        """Stores what is found in row `row` of the tile whose first one is m0."""
        b, lines = self.b, self.lines
        assert lines is not None
        m, kept = b.add(m0, row), row
        if self.c.order == "n":
            kept = b.sub(m, b.mul(b.index(self.m_range[0]), b.const(self.mr)))
        lines.flush(found, lines.sampler.part_of(self.m_side.axes, m), row, kept)

    def _before(self, jm: Value, jn: Value) -> tuple[Value, Callable[[Value], None]]:
        """Of the tile before one in the task, how many rows it has (none before the first one), and what stores those
        of its results that it completes in one of them."""
        b, one = self.b, self.b.const(1)
        (m_lo, m_hi), (n_lo, n_hi) = ([b.index(x) for x in r] for r in (self.m_range, self.n_range))
        if self.c.order == "n":
            turn, begins = b.op("eq", jm, m_lo), b.op("eq", jn, n_lo)
            m, n = b.sub(b.select(turn, m_hi, jm), one), b.select(turn, b.sub(jn, one), jn)
        else:
            turn, begins = b.op("eq", jn, n_lo), b.op("eq", jm, m_lo)
            m, n = b.select(turn, b.sub(jm, one), jm), b.sub(b.select(turn, n_hi, jn), one)
        m0, found = b.mul(m, b.const(self.mr)), self._found(n)
        rows = b.select(b.op("and", turn, begins), b.const(0), self._rows_from(m0))
        return rows, lambda row: self._flush(found, m0, row)

    def _rows_from(self, m0: Value) -> Value:
        """The rows of the tile whose first one is m0."""
        return self.b.op("min", self.b.sub(self.b.const(self.M), m0), self.b.const(self.mr))

    def _flush_last(self) -> None:
        """Stores what the last tile of a task completes."""
        b, one = self.b, self.b.const(1)
        (m_lo, m_hi), (n_lo, n_hi) = ([b.index(x) for x in r] for r in (self.m_range, self.n_range))
        m0 = b.mul(b.sub(m_hi, one), b.const(self.mr))
        with b.if_(b.op("and", b.op("lt", m_lo, m_hi), b.op("lt", n_lo, n_hi))):
            found = self._found(b.sub(n_hi, one))
            with b.loop(0, self._rows_from(m0)) as loop:
                self._flush(found, m0, loop.var)

    def _turned(self, rows: Sequence[Sequence[Value]], to: Value, nv: int) -> None:
        """Squares of vectors of a tile are turned into scratch."""
        b, n = self.b, self.lanes
        for v in range(nv):
            for block in range(0, len(rows), n):
                square = [x[v] for x in rows[block : block + n]]
                square += [self.zero] * (n - len(square))
                for lane, x in enumerate(transpose(b, square)):
                    b.store(x, to, b.const((v * n + lane) * self.turn_row + block))

    def _turn(self, rows: Sequence[Sequence[Value]], m0: Value, jn: Value, nv: int) -> None:
        """The epilogue of a tile with vectors along M: it is turned, and then finished column by column."""
        assert self.turn_scratch is not None
        self._turned(rows, self.turn_scratch, nv)
        self._columns([self.turn_scratch], len(rows), m0, jn, nv)

    def _columns(self, places: Sequence[Value], mr: int, m0: Value, jn: Value, nv: int) -> None:
        """The epilogue of a tile that is turned; places: of its sums, and of a mate's."""
        b, n, s, row = self.b, self.lanes, self.epi.sampler, self.turn_row
        blocks = range(0, mr, n)
        align = gcd(self.mr, n)
        states = []
        for block in blocks:
            count = mr - block if mr - block < n else None
            state = LaneCursor(s, b.add(m0, b.const(block)) if block else m0, None, align, count)
            states.append(state.bind(self.e_batch))
        n0 = b.mul(jn, b.const(self.nr))
        columns = nv * n if self.limit is None else self.N - (self.nt - 1) * self.nr
        with b.loop(0, columns) as loop:
            at = b.mul(loop.var, b.const(row))
            sums = [[b.load(x, b.add(at, b.const(block)), self.elem, n) for block in blocks] for x in places]
            self.epi.row(states, s.part_of(self.n_side.axes, b.add(n0, loop.var)), *sums)

    def _store_partial(self, m: Value, jn: Value, sums: Sequence[Value]) -> None:
        b = self.b
        at = b.add(b.mul(self.split, b.const(self.B)), self.batch)
        at = b.add(b.mul(at, b.const(self.M)), m)
        at = b.add(b.mul(at, b.const(self.partial_row)), b.mul(jn, b.const(self.nr)))
        at = b.add(at, b.const(self.partial_base()))
        for v, x in enumerate(sums):
            b.store(x, self.workspace, b.add(at, b.const(v * self.lanes)))

    def run_reduce(self, task: Value, tasks: int) -> None:
        """Adds the partial sums of a range of rows in a fixed tree and finishes them."""
        b, n = self.b, self.lanes
        total = self.B * self.M
        lo = b.op("floordiv", b.mul(task, b.const(total)), b.const(tasks))
        hi = b.op("floordiv", b.mul(b.add(task, b.const(1)), b.const(total)), b.const(tasks))
        s = self.epi.sampler
        with b.loop(lo, hi) as rows:
            batch, m = digits_of(b, rows.var, [FusedAxes((), self.B), FusedAxes((), self.M)])
            part, fixed = s.part_of(self.m_side.axes, m), s.part_of(self.p.batch, batch)
            base = b.add(b.mul(rows.var, b.const(self.partial_row)), b.const(self.partial_base()))
            whole = self.N // n

            def vector(at: Value, limit: int | None) -> None:
                here = b.add(base, at)
                x = self._tree(here)
                self.epi.row([LaneCursor(s, at, limit, n).bind(fixed)], part, [x])

            if whole:
                with b.loop(0, whole * n, step=n) as loop:
                    vector(loop.var, None)
            if self.N % n:
                vector(b.const(whole * n), self.N)

    def _tree(self, at: Value) -> Value:
        """The sum of all partials at an offset: eight interleaved running sums, then a tree of those."""
        b, n, step, count = self.b, self.lanes, self.partials, self.c.split

        def load(i: Value) -> Value:
            return b.load(self.workspace, b.add(at, b.mul(i, b.const(step))), self.elem, n)

        width = min(8, count)
        start = [load(b.const(i)) for i in range(width)]
        full = count // width * width
        sums: Sequence[Value] = start
        if full > width:
            with b.loop(width, full, step=width, init=start) as loop:
                loop.next = [b.add(x, load(b.add(loop.var, b.const(i)))) for i, x in enumerate(loop.carried)]
            sums = loop.results
        out = list(sums)
        for i in range(full, count):
            out[i - full] = b.add(out[i - full], load(b.const(i)))
        while len(out) > 1:
            out = [b.add(out[i], out[i + 1]) if i + 1 < len(out) else out[i] for i in range(0, len(out), 2)]
        return out[0]
