"""Lowering a contraction: register tiles inside blocked loops, with operands packed or read in place.

A task owns a batch point, a range of M tiles, a range of N panels and a range of K. Inside, one side is walked in the
outer loop (its panel packed there), the other in the inner loop; around the tile runs a real loop over K.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import gcd

from einsmith.kernels.contraction_ask import TileLines
from einsmith.kernels.contraction_buffer import Buffers
from einsmith.kernels.contraction_depth import added, repeated
from einsmith.kernels.contraction_lanes import State
from einsmith.kernels.contraction_plan import row_offsets
from einsmith.kernels.contraction_sample import Group, Pointer
from einsmith.kernels.contraction_traffic import LINE
from einsmith.kernels.contraction_trim import Trimmer
from einsmith.kernels.contraction_walk import digits_of, nest, sweep, transpose
from einsmith.kernels.contraction_window import CUT, SLOT, Window, fill
from einsmith.loops.nest import Value

AHEAD = 4096
"""Bytes by which a packed tile of M is asked for ahead. It is one stretch of memory: hardware follows it, but not far
enough for what waits in a level that cores share."""

UNROLLED = 100
"""Multiply-adds in the body of the loop over K up to which a short innermost axis of K is unrolled."""



class Lowering(Buffers):
    """Emission of one kernel function."""

    # -- the task

    def run(self, task: Value) -> None:
        self._begin(task)
        if self.k_outer:
            self._k_outer()
        elif self.c.order == "n":
            self._n_level(self._outer_n)
        else:
            self._m_level(self._outer_m)

    def _begin(self, task: Value) -> None:
        """What a task is, and its windows."""
        b, c = self.b, self.c

        def divide(x: Value, n: int) -> tuple[Value, Value]:
            if n == 1:
                return x, b.const(0)
            return b.op("floordiv", x, b.const(n)), b.op("mod", x, b.const(n))

        rest, tm = divide(task, c.tm)
        rest, tn = divide(rest, c.tn)
        batch, split = divide(rest, c.split)
        self.batch, self.split = batch, split
        p = self.p
        self.a_batch = self.a_in.part_of(p.batch, batch)
        self.b_batch = self.b_in.part_of(p.batch, batch)
        if c.a != "inline":
            self.a_pack_batch = self.a_pack.part_of(p.batch, batch)
        if self.b_along is not None:
            self.b_along_batch = self.b_along.part_of(p.batch, batch)
        if self.lines_ahead:
            self.ahead_batch = self.ahead.part_of(p.batch, batch)
        self.e_batch = self.epi.sampler.part_of(p.batch, batch)
        self.m_range = self._range(tm, c.tm, self.mt)
        self.n_range = self._range(tn, c.tn, self.nt)
        if c.split == 1:
            self.k_lo: Value | int = 0
            self.k_hi: Value | int = self.K
        else:
            lo = b.mul(split, b.const(self.k_max))
            self.k_lo = lo
            self.k_hi = b.op("min", b.add(lo, b.const(self.k_max)), b.const(self.K))
        self.fixed = dict(zip(p.batch, digits_of(b, batch, [Group((), p.extents[a]) for a in p.batch]), strict=True))
        if not self.k_outer:
            for i, w, at in self.cuts:
                self._move(i, w, at, tm if i == int(c.swap) else tn)
        if not self.k_outer:
            self._fill()

    def _move(self, i: int, w: Window, at: Value, number: Value) -> None:
        """Lets a window that is cut hold block `number`."""
        self.fixed[CUT] = number
        moved = self.b.address(at, self.b.mul(number, self.b.const(-w.block)), self.elem)
        self.slots[SLOT + i] = Pointer(moved, w.shape, w.dtype)

    def _fill(self) -> None:
        for w, to in self.windows:
            fill(self.b, w, self.slots, to, self.lanes, self.fixed)

    def _k_outer(self) -> None:
        """Blocks of K outermost: their windows serve every tile; the sums of all tiles wait in scratch."""
        b, c = self.b, self.c
        rows = self._count(self.m_range)
        count = b.const(rows) if isinstance(rows, int) else rows
        columns = self._count(self.n_range)
        tiles = b.mul(count, b.const(columns) if isinstance(columns, int) else columns)
        self._clear(tiles)

        def block(lo, hi, last):
            low = b.const(lo) if isinstance(lo, int) else lo
            head = b.op("floordiv", low, b.const(self.kc))
            for i, w, at in self.cuts:
                parts = b.const(self.k_heads // self.p.extents[self.p.k[0]])
                self._move(i, w, at, b.op("mod", head, parts))
                head = b.op("floordiv", head, parts)
            self.fixed[self.p.k[0]] = head
            self._fill()

            def number(jm: Value, jn: Value) -> Value:
                return b.add(b.mul(self._relative(jn, self.n_range), count), self._relative(jm, self.m_range))

            if c.order == "n":

                def column(jn: Value, nv: int) -> None:
                    self._n_states(jn, nv)
                    panel = self._b_panel(jn, nv, lo, hi)

                    def tile(jm: Value, mr: int) -> None:
                        slab = self._a_panel(jm, mr, lo, hi)
                        self._tile(jm, mr, jn, nv, lo, hi, last, slab, panel, number(jm, jn))

                    self._m_level(tile)

                self._n_level(column)
                return

            def row(jm: Value, mr: int) -> None:
                slab = self._a_panel(jm, mr, lo, hi)

                def tile(jn: Value, nv: int) -> None:
                    self._n_states(jn, nv)
                    panel = self._b_panel(jn, nv, lo, hi)
                    self._tile(jm, mr, jn, nv, lo, hi, last, slab, panel, number(jm, jn))

                self._n_level(tile)

            self._m_level(row)

        self._k_level(block)

    def _k_level(self, body: Callable[[Value | int, Value | int, Value | None], None]) -> None:
        """body(lo, hi, last) for the blocks of K; `last` is None where there is one block."""
        b = self.b
        if not self.blocked:
            body(self.k_lo, self.k_hi, None)
            return
        lo = b.const(self.k_lo) if isinstance(self.k_lo, int) else self.k_lo
        hi = b.const(self.k_hi) if isinstance(self.k_hi, int) else self.k_hi
        with b.loop(lo, hi, step=self.kc) as loop:
            end = b.add(loop.var, b.const(self.kc))
            body(loop.var, b.op("min", end, hi), b.op("le", hi, end))

    def _clear(self, tiles: Value | int) -> None:
        b = self.b
        if self.blocked:
            assert self.c_scratch is not None
            count = b.const(tiles) if isinstance(tiles, int) else tiles
            with b.loop(0, b.mul(count, b.const(self.tile_size)), step=self.lanes) as loop:
                b.store(self.zero, self.c_scratch, loop.var)

    def _count(self, span) -> Value | int:
        lo, hi = span
        return hi - lo if isinstance(lo, int) else self.b.sub(hi, lo)

    def _outer_n(self, jn: Value, nv: int) -> None:
        self._clear(self._count(self.m_range))

        def block(lo, hi, last):
            panel = self._b_panel(jn, nv, lo, hi)

            def tile(jm: Value, mr: int) -> None:
                slab = self._a_panel(jm, mr, lo, hi)
                self._tile(jm, mr, jn, nv, lo, hi, last, slab, panel, self._relative(jm, self.m_range))

            self._m_level(tile)

        self._n_states(jn, nv)
        self._k_level(block)

    def _outer_m(self, jm: Value, mr: int) -> None:
        self._clear(self._count(self.n_range))

        def block(lo, hi, last):
            slab = self._a_panel(jm, mr, lo, hi)

            def tile(jn: Value, nv: int) -> None:
                self._n_states(jn, nv)
                panel = self._b_panel(jn, nv, lo, hi)
                self._tile(jm, mr, jn, nv, lo, hi, last, slab, panel, self._relative(jn, self.n_range))

            self._n_level(tile)

        self._k_level(block)

    def _next_panel(self, jm: Value, jn: Value) -> tuple[list[Value], Value]:
        """Where the lines of the next panel of N that this tile asks for begin at the first point of K, and how far
        apart they are along K: the tiles of a panel share the lines of its rows, and each asks for its own in every row
        that it multiplies. Tiles that are left over ask for one line again and again, which costs nothing."""
        b, s = self.b, self.ahead
        ((_, form),) = s.reads.items()
        end = self.m_range[1]  # the last tiles ask, so that nothing waits in the second level for long
        turn = b.sub(b.const(end - 1) if isinstance(end, int) else b.sub(end, b.const(1)), jm)
        points = self.lanes // self.far_lines  # of a line
        first = b.mul(turn, b.const(self.lines_ahead * points))
        (k,) = s.groups(self.p.k)
        apart = b.const(s.forms[form].coef.get(k.inner, 0))
        needed = b.op("lt", turn, b.const(-(-(self.far_lines * self.c.nv + 1) // self.lines_ahead)))
        n0 = b.mul(b.add(jn, b.const(1)), b.const(self.nr))
        out = []
        for i in range(self.lines_ahead):
            at = b.op("min", b.add(first, b.const(i * points)), b.const(self.nr - 1))
            parts = (self.ahead_batch, s.part_of(self.n_side.axes, b.add(n0, at)))
            total = b.const(s.forms[form].const)
            for x in parts:
                if form in x.sums:
                    total = b.add(total, x.sums[form])
            out.append(total)
        return out, b.select(needed, apart, b.const(0))

    def _ask(self, places: Sequence[Value], apart: Value, k: Value) -> None:
        """Starts the loads of a row of the next panel."""
        s = self.ahead
        ((read, _),) = s.reads.items()
        pointer = s.pointers[read.slot].value
        row = self.b.mul(k, apart)
        assert pointer is not None
        for x in places:
            self.b.prefetch(pointer, self.b.add(x, row), self.elem)

    def _next_rows(self, jm: Value) -> tuple[State, Value]:
        """The first row of M of the next tile; after the last tile, of the first one in the next block of K, whose
        distance comes with it."""
        b, a = self.b, self.a_in
        lo, hi = (b.const(x) if isinstance(x, int) else x for x in self.m_range)
        follows = b.op("lt", b.add(jm, b.const(1)), hi)
        tile = b.select(follows, b.add(jm, b.const(1)), lo)
        rows = State(a, 0, None).bind(self.a_batch, a.part_of(self.m_side.axes, b.mul(tile, b.const(self.mr))))
        return rows, b.select(follows, b.const(0), b.const(self.kc))

    def _ask_rows(self, state: State, further: Value, step: int, k: Value) -> None:
        """Starts the load of a line of the next tile's rows: at each point of K that of another row, so that all lines
        of a stretch are asked for as it is walked."""
        b, a = self.b, self.a_in
        ((read, form),) = a.reads.items()
        pointer = a.pointers[read.slot].value
        assert pointer is not None
        turns = min(1 << (self.mr - 1).bit_length(), LINE // self.p.dtype.itemsize // self.c.depth)
        row = b.op("mod", b.op("floordiv", k, b.const(self.c.depth)) if self.c.depth > 1 else k, b.const(turns))
        at = b.add(b.add(state.offset(form), further), b.mul(row, b.const(step)))
        for first in range(0, self.mr, turns):
            b.prefetch(pointer, b.add(at, b.const(first * step)), self.elem)

    def _next_gathered(self, jm: Value, jn: Value) -> State:
        """The first row of M of the next tile, or of this one, whose lines are near, where that is another panel's to
        ask for or there is none."""
        b, a = self.b, self.a_in
        end = self.m_range[1]
        follows = b.op("lt", b.add(jm, b.const(1)), b.const(end) if isinstance(end, int) else end)
        if self.c.order == "m":
            end = self.n_range[1]
            last = b.op("le", b.const(end) if isinstance(end, int) else end, b.add(jn, b.const(1)))
            follows = b.op("and", follows, last)
        tile = b.add(jm, b.select(follows, b.const(1), b.const(0)))
        return State(a, 0, None).bind(self.a_batch, a.part_of(self.m_side.axes, b.mul(tile, b.const(self.mr))))

    def _relative(self, tile: Value, span) -> Value:
        lo = span[0]
        return tile if isinstance(lo, int) else self.b.sub(tile, lo)

    # -- the register tile

    def _k_groups(self) -> list[Group]:
        """K merged as far as both operands that are read in place allow."""
        inline = [s for s, how in ((self.a_in, self.c.a), (self.b_in, self.c.b)) if how == "inline"]
        axes = [a for a in self.p.k if self.p.extents[a] > 1]
        out: list[Group] = []
        for a in reversed(axes):
            if out and not {a, out[-1].inner} & self.trimmed and all(
                a not in s.opaque and out[-1].inner not in s.opaque
                and all(f.coef.get(a, 0) == f.coef.get(out[-1].inner, 0) * out[-1].extent for f in s.forms)
                for s in inline
            ):
                out[-1] = Group((a, *out[-1].axes), out[-1].extent * self.p.extents[a])
            else:
                out.append(Group((a,), self.p.extents[a]))
        return out[::-1]

    def _tile(self, jm: Value, mr: int, jn: Value, nv: int, lo, hi, last, slab, panel, number: Value) -> None:
        b, c = self.b, self.c
        m0 = b.mul(jm, b.const(self.mr))
        self._ask_results(m0, mr, jn, nv)
        rows = self._sums(jm, mr, jn, nv, lo, hi, slab, panel, number)
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
            self._flush(m0, mr, jn, nv)
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

    def _sums(self, jm: Value, mr: int, jn: Value, nv: int, lo, hi, slab, panel, number: Value) -> list[list[Value]]:
        """The sums of a tile, row by row."""
        b, c, n = self.b, self.c, self.lanes
        groups = self._k_groups()
        low = b.const(lo) if isinstance(lo, int) else lo
        m0 = b.mul(jm, b.const(self.mr))
        init = [self.zero] * (mr * nv)
        if self.blocked:
            assert self.c_scratch is not None
            here = b.mul(number, b.const(self.tile_size))
            init = [
                b.load(self.c_scratch, b.add(here, b.const(i * self.width + v * n)), self.elem, n)
                for i in range(mr) for v in range(nv)
            ]
        a, bs = self.a_in, self.b_in
        a_tile, steps = None, [0]
        if c.a == "inline":
            steps = row_offsets(a, self.m_side.axes, min(self.mr, self.M)) or [0]
            a_tile = State(a, 0, None).bind(self.a_batch, a.part_of(self.m_side.axes, m0))

        following = self._next_rows(jm) if self.rows_ahead and len(steps) > 1 else None
        lines = TileLines.of(a, steps[:mr], groups[-1]) if self.gathered_rows and groups else None
        gathered = self._next_gathered(jm, jn) if lines else None

        def outer(values):
            pairs = list(zip(groups[:-1], values, strict=True))
            rows = a_tile.bind(a.part(pairs)) if a_tile is not None else None
            more = following[0].bind(a.part(pairs)) if following is not None else None
            if gathered is not None:
                more = gathered.bind(a.part(pairs))
            return rows, [x.bind(bs.part(pairs)) for x in self.b_states] if c.b == "inline" else [], more

        ahead = self._next_panel(jm, jn) if self.lines_ahead else None

        def inner(context, digit, flat, carried):
            if c.depth > 1:
                digit, flat = (b.mul(x, b.const(c.depth)) for x in (digit, flat))
            k = b.sub(flat, low)
            if ahead is not None:
                self._ask(*ahead, flat)
            if following is not None:
                self._ask_rows(context[2].bind(self._last(a, groups, digit)), following[1], steps[1] - steps[0], flat)
            if lines is not None:
                lines.ask(context[2].bind(self._last(a, groups, digit)), digit)
            if c.b == "inline":
                part = self._last(bs, groups, digit)
                right = [x.bind(part).product() for x in context[1]]
            else:
                at = b.mul(k, b.const(nv * n // c.depth))
                right = [b.load(panel, b.add(at, b.const(v * n)), self.elem, n) for v in range(nv)]
            if c.a == "inline":
                read = next(iter(a.reads))
                state = context[0].bind(self._last(a, groups, digit))
                pointer, base = a.pointers[read.slot].value, state.offset(a.reads[read])
                offsets = [b.add(base, b.const(steps[i])) for i in range(mr)]
            else:
                pointer = slab
                if self.a_rows:
                    offsets = [b.add(k, b.const(i * self.k_pad)) for i in range(mr)]
                else:
                    at = b.mul(k, b.const(mr))
                    offsets = [b.add(at, b.const(i)) for i in range(mr)]
                    if c.a == "buffer":
                        assert slab is not None
                        b.prefetch(slab, b.add(at, b.const(AHEAD // self.p.dtype.itemsize)), self.elem)
            out = []
            assert pointer is not None
            for i in range(mr):
                x = repeated(b, pointer, offsets[i], self.elem, c.depth, n)
                out += [b.fma(x, right[v], carried[i * nv + v]) for v in range(nv)]
            return out

        extents, unrolled = [g.extent for g in groups], UNROLLED // (mr * nv)
        if c.a == "inline" and groups and self._meet(groups[-1], steps[:mr]):
            unrolled = 0
        if mr * nv + nv + 2 >= self.target.tile_registers:
            unrolled = 0  # without a register to spare the sums would rotate through the stack at every turn
        if self.trimmed:
            bounds = self._bounds(m0, mr, jn, nv)
            box = [bounds.get(g.inner, (0, g.extent)) for g in groups]
            sums = nest(b, extents, box, init, outer, inner, unrolled)
        else:
            if c.depth > 1:
                extents[-1] //= c.depth
                lo, hi = (self._steps(x) for x in (lo, hi))
            sums = sweep(b, extents, lo, hi, init, outer, inner, unrolled)
        if self.exact is not None:
            sums = self.exact.sums(sums, init, self.p.k, lo, hi, partial(self._exactly, m0, jn, nv))
        return [list(sums[i * nv : (i + 1) * nv]) for i in range(mr)]

    def _steps(self, k: Value | int) -> Value | int:
        """The step of a tile that begins with a point of K."""
        return k // self.c.depth if isinstance(k, int) else self.b.op("floordiv", k, self.b.const(self.c.depth))

    def _meet(self, group: Group, steps: Sequence[int]) -> bool:
        """Whether rows of a tile read the same element at different points of an axis of K: unrolled, the compiler
        would load it once and keep it in place of a sum."""
        step = self.a_in.forms[next(iter(self.a_in.reads.values()))].coef.get(group.inner, 0)
        return len({x + step * i for x in steps for i in range(group.extent)}) < len(steps) * group.extent

    def _exactly(self, m0: Value, jn: Value, nv: int, number: Value) -> State:
        """The lanes of a vector of a tile, for `exact`."""
        b, n = self.b, self.lanes
        assert self.exact is not None
        s = self.exact.sampler
        row, vector = digits_of(b, number, [Group((), self.mr), Group((), nv)])
        at = b.add(b.mul(jn, b.const(self.nr)), b.mul(vector, b.const(n)))
        state = State(s, at, self.N if self.N % n else None, n)
        return state.bind(s.part_of(self.p.batch, self.batch), s.part_of(self.m_side.axes, b.add(m0, row)))

    def _bounds(self, m0: Value, mr: int, jn: Value, nv: int) -> dict[int, tuple[Value, Value]]:
        """Bounds of the axes of K that guards of either side leave for a tile."""
        b, p = self.b, self.p
        out = Trimmer(b, p, self.m_trims, self.m_side.axes, self.slots).bounds(
            self.batch, [b.add(m0, b.const(i)) for i in range(mr)]
        )
        if self.n_trims:  # rows of N: a vector has one value of every axis but the innermost
            n0 = b.mul(jn, b.const(self.nr))
            rows = [b.op("floordiv", b.add(n0, b.const(v * self.lanes)), b.const(self.row)) for v in range(nv)]
            more = Trimmer(b, p, self.n_trims, self.n_side.axes[:-1], self.slots).bounds(self.batch, rows)
            for a, (lo, hi) in more.items():
                if a in out:
                    lo, hi = b.op("max", lo, out[a][0]), b.op("min", hi, out[a][1])
                out[a] = (lo, hi)
        return out

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
            self._flush(m0, mr, jn, nv)

    def _put(self, m0: Value, row: Value, sums: Sequence[Value]) -> None:
        """What follows the sums of a row of the tile, to be stored in whole lines."""
        assert self.lines is not None
        part = self.epi.sampler.part_of(self.m_side.axes, self.b.add(m0, row))
        for v, (_, values) in enumerate(self.epi.values(self.e_states, part, sums)):
            self.lines.put(row, v, values)

    def _flush(self, m0: Value, mr: int, jn: Value, nv: int) -> None:
        b, lines = self.b, self.lines
        assert lines is not None
        s, n, nr = lines.sampler, self.lanes, b.const(self.nr)
        low, stop, first = (b.const(x) if isinstance(x, int) else x for x in (*self.n_range, self.m_range[0]))
        begin = b.mul(jn, nr)
        end = b.const(self.N) if self.limit is not None else b.add(begin, b.const(nv * n))
        kept = b.sub(m0, b.mul(first, b.const(self.mr))) if self.c.order == "n" else b.const(0)
        lines.flush(
            s.part_of(self.p.batch, self.batch), lambda i: s.part_of(self.m_side.axes, b.add(m0, i)), mr, kept,
            begin, end, b.mul(low, nr), b.op("eq", b.add(jn, b.const(1)), stop),
        )  # fmt: skip

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
            state = State(s, b.add(m0, b.const(block)) if block else m0, None, align, count)
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
            batch, m = digits_of(b, rows.var, [Group((), self.B), Group((), self.M)])
            part, fixed = s.part_of(self.m_side.axes, m), s.part_of(self.p.batch, batch)
            base = b.add(b.mul(rows.var, b.const(self.partial_row)), b.const(self.partial_base()))
            whole = self.N // n

            def vector(at: Value, limit: int | None) -> None:
                here = b.add(base, at)
                x = self._tree(here)
                self.epi.row([State(s, at, limit, n).bind(fixed)], part, [x])

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
