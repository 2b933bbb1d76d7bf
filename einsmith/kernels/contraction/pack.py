"""Packing operands into panels: the points of a tile of M or of a panel of N, in the order that tiles read them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import gcd, prod
from typing import Any

from einsmith.kernels.contraction.prefetch_panels import Prefetching
from einsmith.kernels.emit.access import FusedAxes, OperandAccess, PartialAddress
from einsmith.kernels.emit.cursor import LaneCursor
from einsmith.kernels.emit.walk import ceil_div, digits_of, sweep, transpose
from einsmith.loops.nest import Value


class Panels(Prefetching):
    """Emission of the panels, those that a task packs and those that it finds packed."""

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

    def pack_b(self, to: Value, jn: Value, nv: int, lo, hi, start: Value | None = None) -> None:
        """The panel's points, [k][vectors]; `start` as for `pack_a`."""
        b, n, p = self.b, self.lanes, self.p
        width = nv * n
        n0 = b.mul(jn, b.const(self.nr))
        low = start if start is not None else b.index(lo)
        if self.b_along is not None:
            self._pack_b_along(to, n0, nv, lo, hi, low, start is None)
            return
        s = self.b_in
        limit = self.limit
        states = [
            LaneCursor(s, b.add(n0, b.const(v * n)), limit, n, column=self._column(v)).bind(self.b_batch)
            for v in range(nv)
        ]
        groups = s.groups(p.k)
        cut = len(groups)
        while cut and prod(g.extent for g in groups[cut:]) < self.tail:
            cut -= 1
        tail = groups[cut:]

        def walk(
            groups: list[FusedAxes], states: Sequence[LaneCursor], lo, hi, place: Callable[[Value], Value]
        ) -> None:
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
        start = b.index(first)
        with b.loop(0, self.tail) as loop:  # masks are made once for all that stands before the tail
            part = s.part(list(zip(tail, digits_of(b, loop.var, tail), strict=True)))
            part.axes |= frozenset(p.k) - {a for g in groups[:cut] for a in g.axes}
            masked = [x.bind(part) for x in states]
            walk(groups[:cut], masked, first, end, lambda flat: b.add(b.mul(b.sub(flat, start), size), loop.var))

    def _last(self, s: OperandAccess, groups: list[FusedAxes], value: Value) -> PartialAddress:
        part = s.part([(groups[-1], value)]) if groups else PartialAddress({}, frozenset(), {})
        part.axes |= frozenset(self.p.k)
        return part

    def _pack_b_along(self, to: Value, n0: Value, nv: int, lo, hi, low: Value, whole: bool) -> None:
        """Vectors along K of as many rows as there are lanes, turned in registers; whole: lo .. hi is a block of K."""
        b, n, s, depth = self.b, self.lanes, self.b_along, self.c.depth
        assert s is not None
        width = nv * n
        points = n // depth
        groups = s.groups(self.n_side.axes)
        last = b.const(self.N - 1)
        by_rows = self.b_rows if whole else None
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

            def chunk(k: Value, limit, place: Sequence[Value] | None = None) -> None:
                state = LaneCursor(by_rows or s, k, limit, self.k_unit, place=place).bind(self.b_along_batch)
                if self.along_ahead:
                    self._ask_along(state, rows)
                values = transpose(b, [state.bind(row).product() for row in rows], depth)
                out = b.add(b.mul(b.sub(k, low), b.const(width // depth)), b.mul(vectors.var, b.const(n)))
                for j, x in enumerate(values):
                    b.store(x, to, b.add(out, b.const(j * width)))

            if by_rows is None:
                self._chunks(s, lo, hi, chunk)
            else:
                self._row_chunks(by_rows.lane_extents[-1], lo, hi, chunk)

    def _row_chunks(self, row: int, lo, hi, chunk: Callable[[Value, Any], None]) -> None:
        """chunk(k, None) for the vectors of every row of K points in lo .. hi, of which the last one in each begins
        within the one before."""
        b, n = self.b, self.lanes
        with b.loop(lo, hi, step=row) as rows, b.loop(0, row, step=n) as loop:
            chunk(b.add(rows.var, b.op("min", loop.var, b.const(row - n))), None)

    def _chunks(self, s: OperandAccess, lo, hi, chunk: Callable[..., None]) -> None:
        """chunk(k, limit, place) for every vector of K points in lo .. hi of a sampler along K: the last one is limited
        unless K, its parts and its blocks are whole vectors; its place, the digits of k, is told where rows of K are
        whole vectors too."""
        b, n = self.b, self.lanes
        if not any(x % n for x in (self.K, self.k_max, self.kc)):
            *heads, row = s.lane_extents
            if row % n:
                heads, row = [], self.K

            def vector(context, last, flat, _):
                chunk(b.mul(flat, b.const(n)), None, [*context, b.mul(last, b.const(n))] if heads else None)
                return ()

            lo, hi = (x // n if isinstance(x, int) else b.op("floordiv", x, b.const(n)) for x in (lo, hi))
            sweep(b, [*heads, row // n], lo, hi, (), list, vector)
            return
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
        low = start if start is not None else b.index(lo)
        if self.a_rows:
            groups = s.groups(self.m_side.axes)

            def chunk(k: Value, limit, place: Sequence[Value] | None = None) -> None:
                state = LaneCursor(s, k, limit, self.k_unit, place=place).bind(self.a_pack_batch)
                with b.loop(0, mr) as rows:
                    x = b.add(m0, rows.var)
                    part = s.part(list(zip(groups, digits_of(b, x, groups), strict=True)))
                    part.axes |= frozenset(self.m_side.axes)
                    at = b.add(b.mul(rows.var, b.const(self.k_pad)), b.sub(k, low))
                    b.store(state.bind(part).product(), to, at)

            self._chunks(s, lo, hi, chunk)
            return
        vectors = ceil_div(mr, n)
        align = gcd(self.mr, n)
        states = []
        for v in range(vectors):
            left = mr - v * n
            state = LaneCursor(s, b.add(m0, b.const(v * n)), None, align, left if left < n else None)
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
