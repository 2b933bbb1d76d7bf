"""Emit the sums that a contraction's tiles take of their results (`kernels.contraction.sums`)."""

from __future__ import annotations

from math import prod

from einsmith.codegen.loopnest.lanes import between
from einsmith.codegen.loopnest.walk import ceil_div, digits
from einsmith.codegen.ssa import SSAValue
from einsmith.kernels.contraction.emission.frame import Frame, TaskFrame, Tile
from einsmith.kernels.contraction.epilogue import Terms
from einsmith.kernels.contraction.sums import sum_side, summed_batch
from einsmith.kernels.emit.epilogue_sums import EpilogueSums, GroupWeights, SumElements, SumPlaces


class TakenSums:
    """Emits the sums of the tiles of a task: clears them, adds a tile's rows, stores the task's parts."""

    def __init__(self, f: Frame, places: SumPlaces):
        self.f, self.b, self.g, g = f, f.b, f.g, f.g
        self.side = sum_side(g.kernel, g.p, g.m_side.axes, g.n_side.axes)
        rows, panels = ceil_div(g.mt, g.c.tm), ceil_div(g.nt, g.c.tn)  # most tiles of M and panels of N of a task
        slots = {"m": rows * g.mr, "n": panels * g.c.nv}.get(self.side or "", 1)
        self.sums = EpilogueSums(f.b, g.kernel, places, slots, rows if self.side == "m" else 1, g.lanes)
        self.at = SumElements(f.b, g.kernel.sums[0].kept, g.p.extents, summed_batch(g))
        self.weights: GroupWeights | None = None

    def clear(self) -> None:
        """Clear the sums at the beginning of a task."""
        self.sums.clear()

    def begin_tile(self, t: TaskFrame, x: Tile) -> None:
        """Begin to add the rows of a tile."""
        b = self.b
        tile = b.sub(x.rows.number, t.m_range[0]) if self.side == "m" else b.const(0)
        self.weights = self.sums.weigh(tile, x.panel.results)
        self.first_row = b.mul(tile, self.g.mr)
        self.first_vector = b.mul(b.sub(x.panel.number, t.n_range[0]), self.g.c.nv)

    def add(self, row: SSAValue, terms: Terms) -> None:
        """Add the values of a row of the tile."""
        b = self.b
        if self.side == "n":
            for v, vector in enumerate(terms):
                self.sums.add(b.add(self.first_vector, v), [vector], None)
            return
        self.sums.add(b.add(self.first_row, row) if self.side == "m" else 0, terms, self.weights)

    def finish(self, t: TaskFrame, task: SSAValue) -> None:
        """Store the parts of a task."""
        b, g = self.b, self.g
        _, _, tn, tm = digits(b, task, (g.B, g.c.split, g.c.tn, g.c.tm))
        batch = self.at.access.part_of(g.p.batch, t.batch)
        part = self.at.part(batch)
        if self.side != "n":
            part = b.add(b.mul(part, g.c.tn), tn)
        if self.side != "m":
            part = b.add(b.mul(part, g.c.tm), tm)
        if self.side == "":
            self.sums.finish(0, 0, part, self.at.element(batch))
            return
        (first, end), points, each = (t.m_range, g.M, g.mr) if self.side == "m" else (t.n_range, g.N, g.nr)
        start = b.mul(first, each)
        count = b.sub(b.op("min", points, b.mul(end, each)), start)
        if self.side == "m" and not self._rows_follow():
            with b.loop(0, count) as rows:
                element = self.at.element(batch, self.at.access.part_of(g.m_side.axes, b.add(start, rows.var)))
                self.sums.finish(rows.var, b.op("floordiv", rows.var, g.mr), part, element)
            return
        with b.loop(0, count, step=g.lanes) as loop:
            left, at = b.sub(count, loop.var), b.add(start, loop.var)
            if self.side == "n" and g.row:  # the points between the end of a row and the next one are not elements
                width = g.p.extents[g.n_side.axes[-1]]
                row, column = b.op("floordiv", at, g.row), b.op("mod", at, g.row)
                left, at = b.sub(width, column), b.add(b.mul(row, width), column)
            mask = between(b, None, b.iota(g.lanes, "i32"), b.op("min", left, g.lanes))
            assert mask is not None
            element = b.add(self.at.element(batch), at)
            if self.side == "m":  # all tiles of M meet all lanes of the task's panels
                self.sums.finish_slots(loop.var, part, element, mask)
            else:
                self.sums.finish_lanes(b.op("floordiv", loop.var, g.lanes), part, element, mask)

    def _rows_follow(self) -> bool:
        """Return whether rows of M that follow each other are elements of the sums that do."""
        axes, extents, form = self.g.m_side.axes, self.g.p.extents, self.at.access.forms[self.at.access.extra[0]]
        wide = [a for a in axes if extents[a] > 1]
        return all(form.coef.get(a, 0) == prod(extents[x] for x in wide[i + 1 :]) for i, a in enumerate(wide))
