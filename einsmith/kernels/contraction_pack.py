"""The sizes that follow from a configuration, and the packing of operands into panels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import gcd, prod
from typing import Any

import numpy as np

from einsmith.errors import CompileError
from einsmith.expr.kernel import Kernel
from einsmith.expr.nodes import Read
from einsmith.kernels import contraction_finish as finish
from einsmith.kernels.contraction_ask import GatheredRows, Results
from einsmith.kernels.contraction_depth import fits
from einsmith.kernels.contraction_exact import Exact, needed
from einsmith.kernels.contraction_finish import Epilogue
from einsmith.kernels.contraction_lanes import State
from einsmith.kernels.contraction_lines import Lines
from einsmith.kernels.contraction_plan import (
    WINDOW_BYTES,
    Config,
    Side,
    masked_tail,
    orientation,
    row_of,
    sampler,
    sides,
    window_pointers,
    windowed,
)
from einsmith.kernels.contraction_problem import Problem
from einsmith.kernels.contraction_sample import Group, Part, Pointer, Sampler
from einsmith.kernels.contraction_traffic import APART, HELD, LINE, far_rows, lines_ahead, steps
from einsmith.kernels.contraction_trim import Trim, trims
from einsmith.kernels.contraction_walk import ceil_div, digits_of, sweep, transpose
from einsmith.kernels.contraction_window import SLOT, Window
from einsmith.loops.nest import Builder, Value, elem_of

LINES_ALONG = 8
"""Lines that rows packed along K are asked for ahead: a vector of each row takes a while to be turned."""
REGISTER_EPILOGUE = 8
"""Operations of an epilogue up to which it is unrolled over the register tile; beyond, rows go through scratch."""


class Panels:
    """The sizes of one configuration, the walks over its tiles, and the packing of both operands."""

    batch: Value
    limit: int | None
    a_batch: Part
    b_batch: Part
    e_batch: Part
    a_pack_batch: Part
    ahead: Sampler
    ahead_batch: Part
    b_along_batch: Part
    e_states: list[State]
    b_states: list[State]
    m_range: tuple[Value | int, Value | int]
    n_range: tuple[Value | int, Value | int]
    home: Value | None = None
    """Where the piece's part of the workspace begins, if not at its start."""

    def __init__(self, kernel: Kernel, config: Config, target: Any, builder: Builder, problem: Problem):
        self.kernel, self.c, self.target, self.b, self.p = kernel, config, target, builder, problem
        b = builder
        original = problem
        self.pointers: dict[int, Pointer] = {
            n: Pointer(b.buffers[n], x.shape, x.dtype) for n, x in enumerate(kernel.buffers)
        }
        root = kernel.stages[0]
        slots = {slot: self.pointers[ref[1]] for slot, ref in enumerate(root.args)}
        self.elem = elem_of(problem.dtype)
        self.lanes = target.lanes(problem.dtype.itemsize)
        self.windows: list[tuple[Window, Value]] = []
        self.cuts: list[tuple[int, Window, Value]] = []
        self.k_outer = False
        if config.windows:
            changed = windowed(problem, config.windows, WINDOW_BYTES)
            assert changed is not None
            problem = self.p = changed.problem
            self.k_heads, self.k_outer = changed.heads, changed.k_outer
            # A row read past its end reaches into what follows, at the end of the window into its slack.
            at = [b.alloc(self.elem, w.elements + 16 * self.lanes) for _, w in changed.windows]
            slots.update(window_pointers(changed, at))
            self.windows = [(w, x) for (_, w), x in zip(changed.windows, at, strict=True)]
            self.cuts = [(i, w, x) for (i, w), x in zip(changed.windows, at, strict=True) if w.block]
        self.slots = slots
        self.m_side, self.n_side = sides(problem, config.swap)
        self.M, self.N = problem.count(self.m_side.axes), problem.count(self.n_side.axes)
        self.row = 0
        if config.rows:
            self.row = row_of(problem, self.n_side, self.lanes)
            self.N = self.N // problem.extents[self.n_side.axes[-1]] * self.row
        self.K, self.B = problem.count(problem.k), problem.count(problem.batch)
        self.mr = config.mr
        self.nr = config.nv * self.lanes // config.depth
        self.width = config.nv * self.lanes
        self.mt, self.nt = ceil_div(self.M, self.mr), ceil_div(self.N, self.nr)
        self.k_max = self.K if config.split == 1 else ceil_div(self.K, config.split)
        self.kc = min(config.kc or self.k_max, self.k_max)
        if self.k_outer:
            self.kc = self.K // self.k_heads
            self.k_max = ceil_div(self.k_heads, config.split) * self.kc
        self.blocked = self.kc < self.k_max
        # Blocks and parts of K begin at multiples of it, as far as vectors along K care.
        self.k_unit = gcd(self.lanes, self.kc if self.blocked else 0, self.k_max if config.split > 1 else 0)
        tail = masked_tail(problem)
        self.tail = tail if self.kc % tail == 0 and self.k_max % tail == 0 else 1
        self.tasks = self.B * config.split * config.tm * config.tn
        p = problem

        def turn(side: Side) -> str:
            def sample(axes: Sequence[int]) -> Sampler:
                return sampler(None, p, side, slots, axes, self.lanes)

            align = self.lanes if side is self.n_side else gcd(self.mr, self.lanes)
            return orientation(sample, side.axes, p.k, self.lanes, align)[0]

        self.a_rows = False
        self.a_in = sampler(b, p, self.m_side, slots, (), 0)
        if config.a != "inline":
            self.a_rows = turn(self.m_side) == "along"
            self.a_pack = sampler(b, p, self.m_side, slots, p.k if self.a_rows else self.m_side.axes, self.lanes)
        read = self.n_side.operand.expr
        loose = self.n_side.operand.plain and isinstance(read, Read) and read.slot >= SLOT
        self.b_in = sampler(b, p, self.n_side, slots, self.n_side.axes, self.lanes, self.row, loose)
        self.b_along: Sampler | None = None
        if config.b != "inline" and not config.rows:
            if turn(self.n_side) == "along" and self.lanes * problem.dtype.itemsize >= 16:
                self.b_along = sampler(b, p, self.n_side, slots, p.k, self.lanes)
        if config.depth > 1:
            beside = fits(p, self.m_side, self.a_in, config.depth, (self.k_max, self.kc)) and config.a == "inline"
            turned = config.b == "panel" and self.b_along is not None and self.nt == 1
            if not beside or not turned or config.windows:
                raise CompileError(f"vectors along N do not hold {config.depth} points of K each in {config}")
        self.k_pad = ceil_div(self.kc, self.lanes) * self.lanes
        if self.a_rows and self.k_pad // self.lanes % 2 == 0:
            self.k_pad += self.lanes  # an odd number of vectors: rows do not meet in one cache set
        a_slab = self.mr * self.k_pad if self.a_rows else self.mr * self.kc + self.lanes
        self.a_slab = ceil_div(a_slab, 16) * 16 if config.a != "inline" else 0
        self.b_slab = self.nr * self.k_pad if config.b != "inline" else 0
        self.a_scratch = b.alloc(self.elem, self.a_slab) if config.a == "panel" else None
        self.b_scratch = b.alloc(self.elem, self.b_slab) if config.b == "panel" else None
        form = finish.of(kernel, problem, config, self.lanes, target.l2)[1] if config.depth == 1 else "straight"
        self.turned = form == "turned"
        axes, tile = (self.m_side.axes, self.mr) if self.turned else (self.n_side.axes, 0)
        self.epi = Epilogue(b, kernel, problem, self.pointers, axes, self.lanes, self.row, tile)
        self.stacked = 1
        if form == "stacked":
            self.stacked = finish.stacked(kernel, problem, self.m_side.axes, self.n_side.axes, self.lanes)
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
        self.lines: Lines | None = None
        if form == "lines":
            self.lines = self._lines(ceil_div(self.mt, config.tm) if config.order == "n" else 1)
        self.results: Results | None = None
        if not (self.lines or self.blocked or self.row or config.split > 1):
            m_axes, n_axes = self.m_side.axes, self.n_side.axes
            self.results = Results(b, kernel, problem, self.pointers, m_axes, n_axes, target.l2)
        self.zero = b.const(0.0, self.elem, self.lanes)
        self.ahead = sampler(b, p, self.n_side, slots, (), 0)
        self.lines_ahead = self._lines_ahead(target)
        self.gathered: GatheredRows | None = None
        if config.b != "inline" and not config.windows and self.b_along is None:
            self.gathered = GatheredRows.of(self.ahead, p, self.n_side, self.b_in, target)
        self.along_ahead = self.b_along is not None and self._streams(self.n_side, self.N, target)
        if self.along_ahead:
            assert self.b_along is not None
            self.along_ahead = all(self.b_along.kind(f, self.k_unit) == "unit" for f in self.b_along.reads.values())
        self.rows_ahead = config.a == "inline" and config.order == "n" and self.mt > 1
        self.rows_ahead = self.rows_ahead and self.mr * config.nv >= 16 and self._streams(self.m_side, self.M, target)
        self.gathered_rows = not self.rows_ahead and self._gathers_rows(target)
        self.exact = self._exact(original, {slot: self.pointers[ref[1]] for slot, ref in enumerate(root.args)})
        # Guards stand in the problem as it was before windows; K must be walked whole, axis by axis.
        self.m_trims: list[Trim] = []
        self.n_trims: list[Trim] = []
        if config.split == 1 and not self.blocked and not self.k_outer and not config.dot and config.depth == 1:
            self.m_trims = trims(original, int(config.swap))
            self.m_trims = [t for t in self.m_trims if t.axes <= {*p.batch, *self.m_side.axes}]
            if config.rows:
                rows = {*p.batch, *self.n_side.axes[:-1]}
                self.n_trims = [t for t in trims(original, 1 - int(config.swap)) if t.axes <= rows]
        self.trimmed = {t.axis for t in (*self.m_trims, *self.n_trims)}

    def _lines(self, tiles: int) -> Lines:
        """Whole lines of results; `tiles`: how many of M wait for their next panel."""
        unit = finish.unit(self.kernel, self.p, self.n_side.axes, self.lanes)
        assert unit is not None
        return Lines(
            self.b, unit, self.epi.places, self.pointers, self.p.extents, self.n_side.axes, self.epi.constants,
            self.epi.far, self.elem, self.lanes, self.mr, self.nr, tiles * self.mr,
        )

    def _lines_ahead(self, target: Any) -> int:
        """Lines of the next panel of N that each tile asks for at every point of K."""
        c, item = self.c, self.p.dtype.itemsize
        if c.order == "m" or c.b == "buffer" or c.windows or c.rows or c.kc or c.dot:
            return 0
        if 2 * self.kc * self.nr * item >= target.l2 * HELD:
            return 0
        self.far_lines = far_rows(steps(self.ahead, self.p, self.n_side, item), self.N * self.K, item, target.l2)
        far = self.far_lines
        asks, m, n, mr, nv, tm = np.array([far, self.M, self.N, self.mr, c.nv, c.tm])
        return int(lines_ahead(asks, m, n, mr, nv, self.lanes, tm))

    def _streams(self, side: Side, points: int, target: Any) -> bool:
        """Whether the rows of a side are streams along K, far apart and beyond the second level."""
        if self.c.windows or not side.operand.plain:
            return False
        s, item = sampler(None, self.p, side, self.slots, (), 0), self.p.dtype.itemsize
        found = steps(s, self.p, side, item)
        return found.k == item and found.side >= APART and points * self.K * item > target.l2

    def _gathers_rows(self, target: Any) -> bool:
        """Whether rows of M are read in place, beyond the second levels, along several axes of K: what follows is near
        nothing that hardware has seen."""
        c, s = self.c, self.a_in
        if c.a != "inline" or c.windows or not self.m_side.operand.plain or self.mr * c.nv < 16:
            return False
        (read,) = s.reads
        far = prod(s.pointers[read.slot].shape) * self.p.dtype.itemsize > target.l2 * target.cores
        return far and self.mt > c.tm and len(s.groups(self.p.k)) > 1

    def _exact(self, original: Problem, pointers: dict[int, Pointer]) -> Exact | None:
        """What makes sums again that a zero operand leaves NaN; it reads the operands where they lie."""
        if not needed(original):
            return None
        return Exact(self.b, original, pointers, self.n_side.axes, self.lanes, self.mr * self.nr, self.row)

    # -- sizes in the workspace

    @property
    def partial_row(self) -> int:
        """Elements of a row of partial sums in the workspace."""
        return ceil_div(self.N, self.lanes) * self.lanes

    @property
    def partials(self) -> int:
        return self.B * self.M * self.partial_row

    def _range(self, t: Value, parts: int, tiles: int) -> tuple[Value | int, Value | int]:
        if parts == 1:
            return 0, tiles
        b = self.b
        lo = b.op("floordiv", b.mul(t, b.const(tiles)), b.const(parts))
        hi = b.op("floordiv", b.mul(b.add(t, b.const(1)), b.const(tiles)), b.const(parts))
        return lo, hi

    def _level(
        self, span, tiles: int, size: int, unit: int, full: int, body: Callable[[Value, int, bool], None]
    ) -> None:
        """Runs body(tile number, tile's units, whether it is the tail) for the tiles of a range."""
        b = self.b
        lo, hi = span
        tail = size - (tiles - 1) * full * unit
        units = ceil_div(tail, unit)
        whole = tiles if units == full and tail % unit == 0 else tiles - 1
        if isinstance(lo, int):
            stop: Value | int = min(hi, whole)
        else:
            stop = b.op("min", hi, b.const(whole)) if whole < tiles else hi
        if whole:
            if isinstance(lo, int) and lo == 0 and stop == 1:
                body(b.const(0), full, False)
            else:
                with b.loop(lo, stop) as loop:
                    body(loop.var, full, False)
        if whole < tiles:
            if isinstance(hi, int):
                body(b.const(whole), units, True)
            else:
                with b.if_(b.op("lt", b.const(whole), hi)):
                    body(b.const(whole), units, True)

    def _n_level(self, body: Callable[[Value, int], None]) -> None:
        def panel(jn: Value, nv: int, tail: bool) -> None:
            last = tail or self.c.depth > 1  # all points of N
            self.limit = self.N if last and self.N % self.lanes else None
            body(jn, nv)

        self._level(self.n_range, self.nt, self.N, self.lanes // self.c.depth, self.c.nv, panel)

    def _m_level(self, body: Callable[[Value, int], None]) -> None:
        self._level(self.m_range, self.mt, self.M, 1, self.mr, lambda jm, mr, _: body(jm, mr))

    def _n_states(self, jn: Value, nv: int) -> None:
        """Lane states of the panel for its reads in place and for the epilogue."""
        b = self.b
        limit = self.limit
        n0 = b.mul(jn, b.const(self.nr))
        starts = [b.add(n0, b.const(v * self.lanes)) for v in range(nv)]
        if self.c.split == 1 and not self.turned:
            self.e_states = [
                State(self.epi.sampler, x, limit, self.lanes, column=self._column(v)).bind(self.e_batch)
                for v, x in enumerate(starts[: ceil_div(nv, self.c.depth)])
            ]
        if self.c.b == "inline":
            self.b_states = [
                State(self.b_in, x, limit, self.lanes, column=self._column(v)).bind(self.b_batch)
                for v, x in enumerate(starts)
            ]

    def _column(self, v: int) -> int | None:
        """Where in its row vector v of a panel begins, if that is the same in every panel."""
        if not self.row:
            return None
        if self.row == self.lanes:
            return 0
        return v * self.lanes % self.row if self.nr % self.row == 0 or self.nt == 1 else None

    def _slot(self, base: Value, slab: int, tile: Value) -> Value:
        b = self.b
        return b.address(base, b.mul(tile, b.const(slab)), self.elem)

    def _b_panel(self, jn: Value, nv: int, lo, hi) -> Value | None:
        c = self.c
        if c.b == "inline":
            return None
        if c.b == "buffer":
            return self._slot(self.b_buffer(), self.b_slab, self._buffer_index(self.n_side, jn, self.nt, lo))
        assert self.b_scratch is not None
        self.pack_b(self.b_scratch, jn, nv, lo, hi)
        return self.b_scratch

    def _a_panel(self, jm: Value, mr: int, lo, hi) -> Value | None:
        c = self.c
        if c.a == "inline":
            return None
        if c.a == "buffer":
            return self._slot(self.a_buffer(), self.a_slab, self._buffer_index(self.m_side, jm, self.mt, lo))
        assert self.a_scratch is not None
        self.pack_a(self.a_scratch, jm, mr, lo, hi)
        return self.a_scratch

    # Packed buffers in the workspace: [batch][K block][tile]; with split or blocks a K block is one of kc points.

    @property
    def k_blocks(self) -> int:
        return ceil_div(self.K, self.kc)

    def _points(self, side: Side) -> int:
        """Batch points of an operand's packed buffer: one where it depends on no batch axis."""
        return self.B if any(a in side.operand.axes for a in self.p.batch) else 1

    def _buffer_index(self, side: Side, tile: Value, tiles: int, lo) -> Value:
        b = self.b
        at = self.batch if self._points(side) > 1 else b.const(0)
        if self.k_blocks > 1:
            low = b.const(lo) if isinstance(lo, int) else lo
            at = b.add(b.mul(at, b.const(self.k_blocks)), b.op("floordiv", low, b.const(self.kc)))
        return b.add(b.mul(at, b.const(tiles)), tile)

    def buffer_elements(self) -> tuple[int, int]:
        a = self._points(self.m_side) * self.k_blocks * self.mt * self.a_slab if self.c.a == "buffer" else 0
        b = self._points(self.n_side) * self.k_blocks * self.nt * self.b_slab if self.c.b == "buffer" else 0
        return a, b

    @property
    def workspace(self) -> Value:
        return self.b.buffers[-1] if self.home is None else self.home

    def a_buffer(self) -> Value:
        return self.workspace

    def b_buffer(self) -> Value:
        return self.b.address(self.workspace, self.b.const(self.buffer_elements()[0]), self.elem)

    def partial_base(self) -> int:
        return sum(self.buffer_elements())

    def pack_b(self, to: Value, jn: Value, nv: int, lo, hi, start: Value | None = None) -> None:
        """The panel's points, [k][vectors]; `start` as for `pack_a`."""
        b, n, p = self.b, self.lanes, self.p
        width = nv * n
        n0 = b.mul(jn, b.const(self.nr))
        low = start if start is not None else b.const(lo) if isinstance(lo, int) else lo
        if self.b_along is not None:
            self._pack_b_along(to, n0, nv, lo, hi, low)
            return
        s = self.b_in
        limit = self.limit
        states = [
            State(s, b.add(n0, b.const(v * n)), limit, n, column=self._column(v)).bind(self.b_batch) for v in range(nv)
        ]
        groups = s.groups(p.k)
        cut = len(groups)
        while cut and prod(g.extent for g in groups[cut:]) < self.tail:
            cut -= 1
        tail = groups[cut:]

        def walk(groups: list[Group], states: Sequence[State], lo, hi, place: Callable[[Value], Value]) -> None:
            def outer(values):
                part = s.part(list(zip(groups[:-1], values, strict=True)))
                if self.gathered is not None and values:
                    self.gathered.ask(n0, self.nr, values[0])
                return [x.bind(part) for x in states]

            def inner(context, last, flat, _):
                part = self._last(s, groups, last)
                if self.gathered is not None and len(groups) == 1:
                    self.gathered.ask(n0, self.nr, last)
                at = b.mul(place(flat), b.const(width))
                for v, state in enumerate(context):
                    b.store(state.bind(part).product(), to, b.add(at, b.const(v * n)))
                return ()

            sweep(b, [g.extent for g in groups], lo, hi, (), outer, inner)

        if not s.conds or not cut or self.tail == 1 or prod(g.extent for g in tail) != self.tail:
            walk(groups, states, lo, hi, lambda flat: b.sub(flat, low))
            return
        size = b.const(self.tail)
        first, end = (x // self.tail if isinstance(x, int) else b.op("floordiv", x, size) for x in (lo, hi))
        start = b.const(first) if isinstance(first, int) else first
        with b.loop(0, self.tail) as loop:  # masks are made once for all that stands before the tail
            part = s.part(list(zip(tail, digits_of(b, loop.var, tail), strict=True)))
            part.axes |= frozenset(p.k) - {a for g in groups[:cut] for a in g.axes}
            masked = [x.bind(part) for x in states]
            walk(groups[:cut], masked, first, end, lambda flat: b.add(b.mul(b.sub(flat, start), size), loop.var))

    def _last(self, s: Sampler, groups: list[Group], value: Value) -> Part:
        part = s.part([(groups[-1], value)]) if groups else Part({}, frozenset(), {})
        part.axes |= frozenset(self.p.k)
        return part

    def _pack_b_along(self, to: Value, n0: Value, nv: int, lo, hi, low: Value) -> None:
        """Vectors along K of as many rows as there are lanes, turned in registers."""
        b, n, s, depth = self.b, self.lanes, self.b_along, self.c.depth
        assert s is not None
        width = nv * n
        points = n // depth
        groups = s.groups(self.n_side.axes)
        last = b.const(self.N - 1)
        with b.loop(0, nv) as vectors:
            at = b.add(n0, b.mul(vectors.var, b.const(points)))
            rows = []
            for j in range(points):
                x = b.add(at, b.const(j))
                if self.N % points:
                    x = b.op("min", x, last)
                part = s.part(list(zip(groups, digits_of(b, x, groups), strict=True)))
                part.axes |= frozenset(self.n_side.axes)
                rows.append(part)

            def chunk(k: Value, limit) -> None:
                state = State(s, k, limit, self.k_unit).bind(self.b_along_batch)
                if self.along_ahead:
                    self._ask_along(state, rows)
                values = transpose(b, [state.bind(row).product() for row in rows], depth)
                out = b.add(b.mul(b.sub(k, low), b.const(width // depth)), b.mul(vectors.var, b.const(n)))
                for j, x in enumerate(values):
                    b.store(x, to, b.add(out, b.const(j * width)))

            self._chunks(lo, hi, chunk)

    def _ask_along(self, state: State, rows: Sequence[Part]) -> None:
        """Starts loads further along K, of as many rows as there are lanes: more streams than hardware follows."""
        s, b = state.s, self.b
        ((read, form),) = s.reads.items()
        pointer, ahead = s.pointers[read.slot].value, b.const(LINES_ALONG * LINE // self.p.dtype.itemsize)
        assert pointer is not None
        for row in rows:
            b.prefetch(pointer, b.add(state.bind(row).offset(form), ahead), self.elem)

    def _chunks(self, lo, hi, chunk: Callable[[Value, Any], None]) -> None:
        """chunk(k, limit) for every vector of K points in lo .. hi; the last one is limited."""
        b, n = self.b, self.lanes
        if isinstance(lo, int) and isinstance(hi, int):
            whole = lo + (hi - lo) // n * n
            if whole > lo:
                with b.loop(lo, whole, step=n) as loop:
                    chunk(loop.var, None)
            if whole < hi:
                chunk(b.const(whole), hi)
            return
        with b.loop(lo, hi, step=n) as loop:
            chunk(loop.var, None if self.k_outer and self.kc % n == 0 else hi)

    def pack_a(self, to: Value, jm: Value, mr: int, lo, hi, start: Value | None = None) -> None:
        """The tile's rows: [row][k] where K is contiguous in the source, else [k][row]. With `start`, lo .. hi is a
        part of what the panel has from point `start` of K on, and the rest of it is left alone."""
        b, n, p, s = self.b, self.lanes, self.p, self.a_pack
        m0 = b.mul(jm, b.const(self.mr))
        low = start if start is not None else b.const(lo) if isinstance(lo, int) else lo
        if self.a_rows:
            groups = s.groups(self.m_side.axes)

            def chunk(k: Value, limit) -> None:
                state = State(s, k, limit, self.k_unit).bind(self.a_pack_batch)
                with b.loop(0, mr) as rows:
                    x = b.add(m0, rows.var)
                    part = s.part(list(zip(groups, digits_of(b, x, groups), strict=True)))
                    part.axes |= frozenset(self.m_side.axes)
                    at = b.add(b.mul(rows.var, b.const(self.k_pad)), b.sub(k, low))
                    b.store(state.bind(part).product(), to, at)

            self._chunks(lo, hi, chunk)
            return
        vectors = ceil_div(mr, n)
        align = gcd(self.mr, n)
        states = []
        for v in range(vectors):
            left = mr - v * n
            state = State(s, b.add(m0, b.const(v * n)), None, align, left if left < n else None)
            states.append(state.bind(self.a_pack_batch))
        groups = s.groups(p.k)

        def outer(values):
            part = s.part(list(zip(groups[:-1], values, strict=True)))
            return [x.bind(part) for x in states]

        def inner(whole: bool, context, last, flat, _):
            part = self._last(s, groups, last)
            at = b.mul(b.sub(flat, low), b.const(mr))
            for v, state in enumerate(context):  # lanes past mr are overwritten by the next k
                left = mr - v * n
                own = None if whole or left >= n else b.op("lt", b.iota(n, "i32"), b.const(left, "i32", n))
                b.store(state.bind(part).product(), to, b.add(at, b.const(v * n)), own)
            return ()

        extents = [g.extent for g in groups]
        if start is None:
            sweep(b, extents, lo, hi, (), outer, partial(inner, True))
            return
        over = ceil_div(vectors * n, mr) - 1  # points that whole vectors reach beyond their own
        last = b.op("max", lo, b.sub(hi, b.const(over)))
        sweep(b, extents, lo, last, (), outer, partial(inner, True))
        sweep(b, extents, last, hi, (), outer, partial(inner, False))
