"""Which lines the tiles and the packing of a configuration ask for before they need them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from einsmith.kernels.contraction.config import Config, Side, sampler
from einsmith.kernels.contraction.geometry import Sizes
from einsmith.kernels.contraction.prefetch import RowPrefetch
from einsmith.kernels.contraction.problem import Problem
from einsmith.kernels.contraction.traffic import APART, HELD, LINE, address_steps, far_rows, lines_ahead
from einsmith.kernels.emit.access import OperandAccess, PartialAddress
from einsmith.kernels.emit.cursor import LaneCursor
from einsmith.kernels.emit.walk import ceil_div
from einsmith.loops.nest import Builder, Value
from einsmith.plan.kernel import Kernel

LINES_ALONG = 8
"""Lines that rows packed along K are asked for ahead: a vector of each row takes a while to be turned."""


class Prefetching(Sizes):
    """Emission of what is asked for. lines_ahead: lines of the next panel of N that each tile asks for at every point
    of K; gathered: rows that packing gathers from; along_ahead: whether packing along K asks further along it;
    source_rows: rows along K, of which the next panel of N is packed, that each tile asks for instead, 0 for none;
    rows_ahead, gathered_rows: whether tiles ask for the rows of M of the next one, which lie along K or in several axes
    of it."""

    ahead_batch: PartialAddress

    def __init__(self, kernel: Kernel, config: Config, target: Any, builder: Builder, problem: Problem):
        super().__init__(kernel, config, target, builder, problem)
        b, p = self.b, self.p
        self.ahead = sampler(b, p, self.n_side, self.slots, (), 0)
        self.lines_ahead = self._lines_ahead(target)
        self.gathered: RowPrefetch | None = None
        if config.b != "inline" and not config.windows and self.b_along is None:
            self.gathered = RowPrefetch.of(self.ahead, p, self.n_side, self.b_in, target)
        far = self.b_along is not None and self._streams(self.n_side, self.N, target)
        self.source_rows = self._source_rows() if far else 0
        self.along_ahead = far and not self.source_rows
        if self.along_ahead:
            assert self.b_along is not None
            self.along_ahead = all(self.b_along.kind(f, self.k_unit) == "unit" for f in self.b_along.reads.values())
        self.rows_ahead = config.a == "inline" and config.order == "n" and self.mt > 1
        self.rows_ahead = self.rows_ahead and self.mr * config.nv >= 16 and self._streams(self.m_side, self.M, target)
        self.gathered_rows = not self.rows_ahead and self._gathers_rows(target)

    def _lines_ahead(self, target: Any) -> int:
        """Lines of the next panel of N that each tile asks for at every point of K."""
        c, item = self.c, self.p.dtype.itemsize
        if c.order == "m" or c.b == "buffer" or c.windows or c.rows or c.kc or c.dot:
            return 0
        if 2 * self.kc * self.nr * item >= target.l2 * HELD:
            return 0
        steps = address_steps(self.ahead, self.p, self.n_side, item)
        self.far_lines = far = far_rows(steps, self.N * self.K, item, target.l2)
        asks, m, n, mr, nv, tm = np.array([far, self.M, self.N, self.mr, c.nv, c.tm])
        return int(lines_ahead(asks, m, n, mr, nv, self.lanes, tm))

    def _source_rows(self) -> int:
        """Rows of the next panel's source that each tile of a block of K asks for: memory is then busy while tiles
        multiply, and packing need not wait for it. Blocks lie within rows, but for a few."""
        c, s = self.c, self.ahead
        if not (self.blocked and c.order == "n" and self.mr * c.nv >= 16 and len(s.groups(self.n_side.axes)) == 1):
            return 0
        if s.groups(self.p.k)[-1].extent < 2 * self.kc:
            return 0
        return ceil_div(min(self.nr, self.N), max(1, self.mt // c.tm))

    def _streams(self, side: Side, points: int, target: Any) -> bool:
        """Whether the rows of a side are streams along K, far apart and beyond the second level."""
        if self.c.windows or not side.operand.plain:
            return False
        s, item = sampler(None, self.p, side, self.slots, (), 0), self.p.dtype.itemsize
        found = address_steps(s, self.p, side, item)
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

    def _next_rows(self, jm: Value) -> tuple[LaneCursor, Value]:
        """The first row of M of the next tile; after the last tile, of the first one in the next block of K, whose
        distance comes with it."""
        b, a = self.b, self.a_in
        lo, hi = (b.index(x) for x in self.m_range)
        follows = b.op("lt", b.add(jm, b.const(1)), hi)
        tile = b.select(follows, b.add(jm, b.const(1)), lo)
        rows = LaneCursor(a, 0, None).bind(self.a_batch, a.part_of(self.m_side.axes, b.mul(tile, b.const(self.mr))))
        return rows, b.select(follows, b.const(0), b.const(self.kc))

    def _ask_rows(self, state: LaneCursor, further: Value, step: int, k: Value) -> None:
        """Starts the load of a line of the next tile's rows: at each point of K that of another row, so that all lines
        of a stretch are asked for as it is walked."""
        ((_, form),) = self.a_in.reads.items()
        self._ask_one_of(self.a_in, self.b.add(state.offset(form), further), self.mr, step, k)

    def _ask_one_of(self, s: OperandAccess, at: Value, rows: int, step: int, k: Value) -> None:
        """Starts the load of a line of one of so many rows, `step` apart: another one at each step of a tile."""
        b = self.b
        (read,) = s.reads
        pointer = s.pointers[read.slot].value
        assert pointer is not None
        turns = min(1 << (rows - 1).bit_length(), LINE // self.p.dtype.itemsize // self.c.depth)
        row = b.op("mod", b.op("floordiv", k, b.const(self.c.depth)) if self.c.depth > 1 else k, b.const(turns))
        at = b.add(at, b.mul(row, b.const(step)))
        for first in range(0, rows, turns):
            b.prefetch(pointer, b.add(at, b.const(first * step)), self.elem)

    def _next_source(self, jm: Value, jn: Value, hi: Value) -> Value:
        """Where the first of the rows begins that this tile asks for, of the panel in the block of K from hi on, or
        of the next panel in the first one."""
        b, s = self.b, self.ahead
        ((_, form),) = s.reads.items()
        last = b.op("le", b.index(self.k_hi), hi)
        n0 = b.mul(b.select(last, b.add(jn, b.const(1)), jn), b.const(self.nr))
        n0 = b.add(n0, b.mul(self._relative(jm, self.m_range), b.const(self.source_rows)))
        n0 = b.op("min", n0, b.const(self.N - self.source_rows))
        k = b.select(last, b.index(self.k_lo), hi)
        total = b.const(s.forms[form].const)
        for x in (self.ahead_batch, s.part_of(self.n_side.axes, n0), s.part_of(self.p.k, k)):
            total = b.add(total, x.sums[form]) if form in x.sums else total
        return total

    def _ask_source(self, at: Value, k: Value) -> None:
        """Starts the load of a line of the next panel's source, k points of K on from `at`, as `_ask_rows`."""
        s = self.ahead
        ((_, form),) = s.reads.items()
        (rows,) = s.groups(self.n_side.axes)
        self._ask_one_of(s, self.b.add(at, k), self.source_rows, s.forms[form].coef.get(rows.inner, 0), k)

    def _next_gathered(self, jm: Value, jn: Value) -> LaneCursor:
        """The first row of M of the next tile, or of this one, whose lines are near, where that is another panel's to
        ask for or there is none."""
        b, a = self.b, self.a_in
        end = self.m_range[1]
        follows = b.op("lt", b.add(jm, b.const(1)), b.index(end))
        if self.c.order == "m":
            end = self.n_range[1]
            last = b.op("le", b.index(end), b.add(jn, b.const(1)))
            follows = b.op("and", follows, last)
        tile = b.add(jm, b.select(follows, b.const(1), b.const(0)))
        return LaneCursor(a, 0, None).bind(self.a_batch, a.part_of(self.m_side.axes, b.mul(tile, b.const(self.mr))))

    def _ask_along(self, state: LaneCursor, rows: Sequence[PartialAddress]) -> None:
        """Starts loads further along K, of as many rows as there are lanes: more streams than hardware follows."""
        s, b = state.s, self.b
        ((read, form),) = s.reads.items()
        pointer, ahead = s.pointers[read.slot].value, b.const(LINES_ALONG * LINE // self.p.dtype.itemsize)
        assert pointer is not None
        for row in rows:
            b.prefetch(pointer, b.add(state.bind(row).offset(form), ahead), self.elem)
