"""Lowering a contraction: register tiles inside blocked loops, with operands packed or read in place.

A task owns a batch point, a range of M tiles, a range of N panels and a range of K. Inside, one side is walked in the
outer loop (its panel packed there), the other in the inner loop; around the tile runs a real loop over K.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations
from typing import Any

from einsmith.kernels.contraction.config import Config, row_offsets
from einsmith.kernels.contraction.halo import CUT, SLOT, HaloCopy, fill
from einsmith.kernels.contraction.k_bounds import KBound, KBounds, within
from einsmith.kernels.contraction.k_pack import repeated
from einsmith.kernels.contraction.nan_repair import NanRepair, needed
from einsmith.kernels.contraction.prefetch import LinePrefetch
from einsmith.kernels.contraction.problem import Problem
from einsmith.kernels.contraction.tile_epilogue import Finishing
from einsmith.kernels.emit.access import FusedAxes, Pointer
from einsmith.kernels.emit.cursor import LaneCursor
from einsmith.kernels.emit.walk import ceil_div, digits_of, nest, sweep
from einsmith.loops.nest import Builder, Value
from einsmith.plan.kernel import Kernel

AHEAD = 4096
"""Bytes by which a packed tile of M is asked for ahead. It is one stretch of memory: hardware follows it, but not far
enough for what waits in a level that cores share."""

UNROLLED = 100
"""Multiply-adds in the body of the loop over K up to which a short innermost axis of K is unrolled."""


SHARED = 4
"""Registers for elements of M that several points of K share."""


class Lowering(Finishing):
    """Emission of one kernel function."""

    b_states: list[LaneCursor]

    def __init__(self, kernel: Kernel, config: Config, target: Any, builder: Builder, problem: Problem):
        super().__init__(kernel, config, target, builder, problem)
        self.exact = self._exact(problem, self._operand_pointers())
        # Guards stand in the problem as it was before windows; K must be walked whole, axis by axis.
        self.m_trims: tuple[KBound, ...] = ()
        self.n_trims: tuple[KBound, ...] = ()
        if config.split == 1 and not self.blocked and not self.k_outer and not config.dot and config.depth == 1:
            self.m_trims = within(problem, int(config.swap), (*self.p.batch, *self.m_side.axes))
            if config.rows:
                self.n_trims = within(problem, 1 - int(config.swap), (*self.p.batch, *self.n_side.axes[:-1]))
        self.trimmed = {t.axis for t in (*self.m_trims, *self.n_trims)}
        if self.lines is not None and not self.k_outer and not self.trimmed:
            self.behind = len(self._k_groups()) == 1

    def _exact(self, original: Problem, pointers: dict[int, Pointer]) -> NanRepair | None:
        """What makes sums again that a zero operand leaves NaN; it reads the operands where they lie."""
        if not needed(original):
            return None
        return NanRepair(self.b, original, pointers, self.n_side.axes, self.lanes, self.mr * self.nr, self.row)

    # -- the task

    def run(self, task: Value) -> None:
        self._begin(task)
        if self.k_outer:
            self._k_outer()
        elif self.c.order == "n":
            self._n_level(self._outer_n)
        else:
            self._m_level(self._outer_m)
        if self.behind:
            self._flush_last()

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
        if self.lines_ahead or self.source_rows:
            self.ahead_batch = self.ahead.part_of(p.batch, batch)
        self.e_batch = self.epi.sampler.part_of(p.batch, batch)
        self.m_range = self._range(tm, c.tm, self.mt)
        self.n_range = self._range(tn, c.tn, self.nt)
        if c.split == 1:
            self.k_lo, self.k_hi = 0, self.K
        else:
            lo = b.mul(split, b.const(self.k_max))
            self.k_lo = lo
            self.k_hi = b.op("min", b.add(lo, b.const(self.k_max)), b.const(self.K))
        axes = [FusedAxes((), p.extents[a]) for a in p.batch]
        self.fixed = dict(zip(p.batch, digits_of(b, batch, axes), strict=True))
        if not self.k_outer:
            for i, w, at in self.cuts:
                self._move(i, w, at, tm if i == int(c.swap) else tn)
        if not self.k_outer:
            self._fill()

    def _move(self, i: int, w: HaloCopy, at: Value, number: Value) -> None:
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
        count = b.index(rows)
        columns = self._count(self.n_range)
        tiles = b.mul(count, b.index(columns))
        self._clear(tiles)

        def block(lo, hi, last):
            low = b.index(lo)
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
        lo = b.index(self.k_lo)
        hi = b.index(self.k_hi)
        with b.loop(lo, hi, step=self.kc) as loop:
            end = b.add(loop.var, b.const(self.kc))
            body(loop.var, b.op("min", end, hi), b.op("le", hi, end))

    def _clear(self, tiles: Value | int) -> None:
        b = self.b
        if self.blocked:
            assert self.c_scratch is not None
            count = b.index(tiles)
            with b.loop(0, b.mul(count, b.const(self.tile_size)), step=self.lanes) as loop:
                b.store(self.zero, self.c_scratch, loop.var)

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

    def _n_states(self, jn: Value, nv: int) -> None:
        """Lane states of the panel for its reads in place and for the epilogue."""
        b = self.b
        limit = self.limit
        n0 = b.mul(jn, b.const(self.nr))
        starts = [b.add(n0, b.const(v * self.lanes)) for v in range(nv)]
        if self.c.split == 1 and not self.turned:
            self.e_states = [
                LaneCursor(self.epi.sampler, x, limit, self.lanes, column=self._column(v)).bind(self.e_batch)
                for v, x in enumerate(starts[: ceil_div(nv, self.c.depth)])
            ]
        if self.c.b == "inline":
            self.b_states = [
                LaneCursor(self.b_in, x, limit, self.lanes, column=self._column(v)).bind(self.b_batch)
                for v, x in enumerate(starts)
            ]

    # -- the register tile

    def _k_groups(self) -> list[FusedAxes]:
        """K merged as far as both operands that are read in place allow."""
        inline = [s for s, how in ((self.a_in, self.c.a), (self.b_in, self.c.b)) if how == "inline"]
        axes = [a for a in self.p.k if self.p.extents[a] > 1]
        out: list[FusedAxes] = []
        for a in reversed(axes):
            if out and not {a, out[-1].inner} & self.trimmed and all(
                a not in s.opaque and out[-1].inner not in s.opaque
                and all(f.coef.get(a, 0) == f.coef.get(out[-1].inner, 0) * out[-1].extent for f in s.forms)
                for s in inline
            ):
                out[-1] = FusedAxes((a, *out[-1].axes), out[-1].extent * self.p.extents[a])
            else:
                out.append(FusedAxes((a,), self.p.extents[a]))
        return out[::-1]

    def _tile(self, jm: Value, mr: int, jn: Value, nv: int, lo, hi, last, slab, panel, number: Value) -> None:
        m0 = self.b.mul(jm, self.b.const(self.mr))
        self._ask_results(m0, mr, jn, nv)
        rows = self._sums(jm, mr, jn, nv, lo, hi, slab, panel, number, last)
        self._finish_tile(rows, m0, jn, nv, last, number)

    def _sums(
        self, jm: Value, mr: int, jn: Value, nv: int, lo, hi, slab, panel, number: Value, last: Value | None = None
    ) -> list[list[Value]]:
        """The sums of a tile, row by row; last: as for `_finish_tile`."""
        b, c, n = self.b, self.c, self.lanes
        groups = self._k_groups()
        low = b.index(lo)
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
            a_tile = LaneCursor(a, 0, None).bind(self.a_batch, a.part_of(self.m_side.axes, m0))

        following = self._next_rows(jm) if self.rows_ahead and len(steps) > 1 else None
        lines = LinePrefetch.of(a, steps[:mr], groups[-1]) if self.gathered_rows and groups else None
        gathered = self._next_gathered(jm, jn) if lines else None

        def outer(values):
            pairs = list(zip(groups[:-1], values, strict=True))
            rows = a_tile.bind(a.part(pairs)) if a_tile is not None else None
            more = following[0].bind(a.part(pairs)) if following is not None else None
            if gathered is not None:
                more = gathered.bind(a.part(pairs))
            return rows, [x.bind(bs.part(pairs)) for x in self.b_states] if c.b == "inline" else [], more

        ahead = self._next_panel(jm, jn) if self.lines_ahead else None
        source = self._next_source(jm, jn, b.index(hi)) if self.source_rows else None

        asked = any(x is not None for x in (ahead, source, following, lines)) or self.behind
        points = 1 if asked or not groups else self._points_at_once(groups[-1], steps[:mr], nv)
        together = c.depth * points  # of K, in a turn of the loop

        def inner(context, digit, flat, carried):
            if together > 1:
                digit, flat = (b.mul(x, b.const(together)) for x in (digit, flat))
            k = b.sub(flat, low)
            if points > 1:
                state = context[0].bind(self._last(a, groups, digit))
                return self._shared_loads(state, groups[-1], steps[:mr], points, panel, k, carried)
            if ahead is not None:
                self._ask(*ahead, flat)
            if source is not None:
                self._ask_source(source, k)
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

        extents, unrolled = [g.extent for g in groups], UNROLLED // (mr * nv * points)
        if c.a == "inline" and groups and self._meet(groups[-1], steps[:mr]):
            unrolled = 0
        if c.b == "inline" and any(bs.step(f) == 2 for f in bs.reads.values() if bs.lane_groups):
            unrolled = 0  # loads of several points that wait for their shuffles would take registers from the sums
        if mr * nv + nv + 2 >= self.target.tile_registers:
            unrolled = 0  # without a register to spare the sums would rotate through the stack at every turn
        if self.trimmed:
            bounds = self._bounds(m0, mr, jn, nv)
            box = [bounds.get(g.inner, (0, g.extent)) for g in groups]
            sums = nest(b, extents, box, init, outer, inner, unrolled)
        else:
            begin, end = lo, hi
            if together > 1:
                extents[-1] //= together
                begin, end = (self._turns(x, together) for x in (lo, hi))
            if self.behind:
                sums = self._storing(jm, jn, begin, end, last, init, partial(inner, outer([])))
            else:
                sums = sweep(b, extents, begin, end, init, outer, inner, unrolled)
        if self.exact is not None:
            sums = self.exact.sums(sums, init, self.p.k, lo, hi, partial(self._exactly, m0, jn, nv))
        return [list(sums[i * nv : (i + 1) * nv]) for i in range(mr)]

    def _storing(
        self, jm: Value, jn: Value, lo: Value | int, hi: Value | int, last: Value | None, init: Sequence[Value],
        inner: Callable[[Value, Value, Sequence[Value]], Sequence[Value]],
    ) -> Sequence[Value]:
        """The sums of a tile over a block of K, in as many parts as tiles have rows. After each a row of what the tile
        before completes is stored: all at once, it would keep the next products waiting. last: as for `_finish_tile`.
        """
        b, rows, flush = self.b, *self._before(jm, jn)
        low, count = b.index(lo), b.sub(b.index(hi), b.index(lo))
        if last is not None:
            rows = b.select(last, rows, b.const(0))

        def bound(part: Value) -> Value:
            return b.add(low, b.op("floordiv", b.mul(part, count), b.const(self.mr)))

        with b.loop(0, self.mr, init=init) as loop:
            with b.loop(bound(loop.var), bound(b.add(loop.var, b.const(1))), init=loop.carried) as steps:
                steps.next = inner(steps.var, steps.var, steps.carried)
            with b.if_(b.op("lt", loop.var, rows)):
                flush(loop.var)
            loop.next = steps.results
        return loop.results

    def _turns(self, k: Value | int, points: int) -> Value | int:
        """Turns of a loop that takes so many points of K each, before point k."""
        return k // points if isinstance(k, int) else self.b.op("floordiv", k, self.b.const(points))

    def _meet(self, group: FusedAxes, steps: Sequence[int]) -> bool:
        """Whether rows of a tile read the same element at different points of an axis of K: unrolled, the compiler
        would load it once and keep it in place of a sum."""
        step = self._step(group)
        if not step:
            return group.extent > 1 or len({*steps}) < len(steps)
        apart = (abs(x - y) for x, y in combinations(steps, 2))
        return any(d % step == 0 and d // abs(step) < group.extent for d in apart)

    def _step(self, group: FusedAxes) -> int:
        """Elements between what a row of a tile reads at a point of an axis of K and at the next."""
        return self.a_in.forms[next(iter(self.a_in.reads.values()))].coef.get(group.inner, 0)

    def _elements(self, group: FusedAxes, steps: Sequence[int], points: int) -> dict[int, list[tuple[int, int]]]:
        """What rows of a tile read at so many points of an axis of K: the (row, point) that read each element, by its
        distance from the first one, in the order of the points."""
        step = self._step(group)
        found: dict[int, list[tuple[int, int]]] = {}
        for i, x in enumerate(steps):
            for t in range(points):
                found.setdefault(x + step * t, []).append((i, t))
        return dict(sorted(found.items(), reverse=step < 0))

    def _points_at_once(self, group: FusedAxes, steps: Sequence[int], nv: int) -> int:
        """Points of the innermost axis of K that a turn of the loop takes together, so that an element which rows of a
        tile read at several of them is loaded once; as many as have registers for their vectors of N beside the sums,
        where blocks and parts of K are multiples. Tiles of several vectors load less than they multiply anyway."""
        c, sums = self.c, len(steps) * nv
        if c.a != "inline" or c.b == "inline" or c.depth > 1 or nv > 1 or self.trimmed or not self._meet(group, steps):
            return 1
        free = self.target.tile_registers - sums - SHARED
        return max(d for d in range(1, max(1, min(free, UNROLLED // sums)) + 1)
                   if not any(x % d for x in (group.extent, self.kc, self.k_max)))

    def _shared_loads(
        self, state: LaneCursor, group: FusedAxes, steps: Sequence[int], points: int, panel: Value, k: Value,
        carried: Sequence[Value],
    ) -> list[Value]:
        """The sums of a tile of one vector after so many points of an axis of K, the first of which is `state`'s."""
        b, a, n = self.b, self.a_in, self.lanes
        ((read, form),) = a.reads.items()
        pointer, base = a.pointers[read.slot].value, state.offset(form)
        assert pointer is not None
        right = [b.load(panel, b.mul(b.add(k, b.const(t)), b.const(n)), self.elem, n) for t in range(points)]
        out = list(carried)
        for offset, uses in self._elements(group, steps, points).items():
            x = b.splat(b.load(pointer, b.add(base, b.const(offset)), self.elem), n)
            for i, t in uses:
                out[i] = b.fma(x, right[t], out[i])
        return out

    def _exactly(self, m0: Value, jn: Value, nv: int, number: Value) -> LaneCursor:
        """The lanes of a vector of a tile, for `exact`."""
        b, n = self.b, self.lanes
        assert self.exact is not None
        s = self.exact.sampler
        row, vector = digits_of(b, number, [FusedAxes((), self.mr), FusedAxes((), nv)])
        at = b.add(b.mul(jn, b.const(self.nr)), b.mul(vector, b.const(n)))
        state = LaneCursor(s, at, self.N if self.N % n else None, n)
        return state.bind(s.part_of(self.p.batch, self.batch), s.part_of(self.m_side.axes, b.add(m0, row)))

    def _bounds(self, m0: Value, mr: int, jn: Value, nv: int) -> dict[int, tuple[Value, Value]]:
        """Bounds of the axes of K that guards of either side leave for a tile."""
        b, p = self.b, self.p
        out = KBounds(b, p, self.m_trims, self.m_side.axes, self.slots).bounds(
            self.batch, [b.add(m0, b.const(i)) for i in range(mr)]
        )
        if self.n_trims:  # rows of N: a vector has one value of every axis but the innermost
            n0 = b.mul(jn, b.const(self.nr))
            rows = [b.op("floordiv", b.add(n0, b.const(v * self.lanes)), b.const(self.row)) for v in range(nv)]
            more = KBounds(b, p, self.n_trims, self.n_side.axes[:-1], self.slots).bounds(self.batch, rows)
            for a, (lo, hi) in more.items():
                if a in out:
                    lo, hi = b.op("max", lo, out[a][0]), b.op("min", hi, out[a][1])
                out[a] = (lo, hi)
        return out
