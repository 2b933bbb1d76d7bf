"""The blocked form: register tiles inside blocked loops, with operands packed or read in place.

A task owns a batch point, a range of M tiles, a range of N panels and a range of K. Inside, one side is walked in the
outer loop (its panel packed there), the other in the inner loop; around the tile runs a real loop over K. Blocks of K
may be outermost (Goto and van de Geijn 2008), the sums of all tiles waiting in scratch: rows of a block of K are few
enough for a core to keep the addresses of their pages, and what is packed of them serves all tiles of M.
"""

from __future__ import annotations

from collections.abc import Sequence

from einsmith.kernels.contraction.emission import pack, split_k
from einsmith.kernels.contraction.emission.frame import Frame, Panel, Task, count, k_blocks, m_tiles, n_panels, relative
from einsmith.kernels.contraction.emission.microkernel import Microkernel
from einsmith.kernels.contraction.emission.tile_epilogue import TileEpilogue
from einsmith.kernels.contraction.geometry import Geometry
from einsmith.kernels.contraction.halo import CUT, SLOT, HaloCopy
from einsmith.kernels.emit.access import FusedAxes
from einsmith.kernels.emit.address import Memory
from einsmith.kernels.emit.cursor import LaneCursor
from einsmith.kernels.emit.walk import Bound, digits_of, part_range
from einsmith.loops.nest import Builder, Value


class Blocked:
    """Emission of a kernel function that makes one piece."""

    def __init__(self, b: Builder, g: Geometry, base: int = 0, lent: Sequence[tuple[HaloCopy, Value]] = ()):
        self.b, self.g = b, g
        self.f = Frame(b, g, base, lent)
        self.after = TileEpilogue(self.f)
        self.tile_sums = Microkernel(self.f, self.after)

    def run(self, task: Value) -> None:
        """Emits a task."""
        t = self.begin(task)
        if self.g.k_outer:
            self._k_outer(t)
        elif self.g.c.order == "n":
            n_panels(self.f, t.n_range, lambda jn, nv, limit: self._panel_outer(t, jn, nv, limit))
        else:
            m_tiles(self.f, t.m_range, lambda jm, mr: self._row_outer(t, jm, mr))
        if self.after.behind:
            self.after.flush_last(t)

    def run_add(self, task: Value, tasks: int) -> None:
        """Emits a task that adds and finishes partial sums."""
        f, g = self.f, self.g
        results = self.after.epilogue
        split_k.add(self.b, g.partials, f.workspace, results, g.p.batch, g.m_side.axes, f.elem, task, tasks)

    # -- the task

    def begin(self, task: Value) -> Task:
        """What a task is; its halo copies are filled, unless they are those of a block of K."""
        b, f, g, c, p = self.b, self.f, self.g, self.g.c, self.g.p

        def divide(x: Value, n: int) -> tuple[Value, Value]:
            if n == 1:
                return x, b.const(0)
            return b.op("floordiv", x, b.const(n)), b.op("mod", x, b.const(n))

        rest, tm = divide(task, c.tm)
        rest, tn = divide(rest, c.tn)
        batch, split = divide(rest, c.split)
        a = f.a_in.part_of(p.batch, batch)
        right = [f.b_in.part_of(p.batch, batch)]
        a_pack = f.a_pack.part_of(p.batch, batch) if c.a != "inline" else None
        if f.b_along is not None:
            right.append(f.b_along.part_of(p.batch, batch))
        n_scalar = f.n_scalar.part_of(p.batch, batch) if f.ahead.lines or f.ahead.source_rows else None
        results = self.after.epilogue.sampler.part_of(p.batch, batch)
        m_range, n_range = part_range(b, tm, c.tm, g.mt), part_range(b, tn, c.tn, g.nt)
        k_lo: Bound = 0
        k_hi: Bound = g.K
        if c.split > 1:
            k_lo = b.mul(split, b.const(g.k_max))
            k_hi = b.op("min", b.add(k_lo, b.const(g.k_max)), b.const(g.K))
        t = Task(batch, split, m_range, n_range, k_lo, k_hi, a, right, results, a_pack, n_scalar)
        values = digits_of(b, batch, [FusedAxes((), p.extents[x]) for x in p.batch])
        t.fixed = dict(zip(p.batch, values, strict=True))
        if not g.k_outer:
            for i, w, at in f.cuts:
                self._move(t, i, w, at, tm if i == int(c.swap) else tn)
            self.f.fill(t.fixed)
        return t

    def _move(self, t: Task, i: int, w: HaloCopy, at: Value, number: Value) -> None:
        """Lets a halo copy that is cut hold block `number`."""
        t.fixed[CUT] = number
        moved = self.b.address(at, self.b.mul(number, self.b.const(-w.block)), self.f.elem)
        self.f.slots[SLOT + i] = Memory(moved, w.buffer)

    # -- the loops around the tile

    def _panel_outer(self, t: Task, jn: Value, nv: int, limit: int | None) -> None:
        """Panel by panel of N, all tiles of M for each of its blocks of K."""
        self.after.clear(count(self.b, t.m_range))
        panel = self.open_panel(t, jn, nv, limit)

        def block(lo: Bound, hi: Bound, last: Value | None) -> None:
            right = pack.right(self.f, t, panel, lo, hi)

            def tile(jm: Value, mr: int) -> None:
                left = pack.left(self.f, t, jm, mr, lo, hi)
                self.tile(t, jm, mr, panel, lo, hi, last, left, right, relative(self.b, jm, t.m_range))

            m_tiles(self.f, t.m_range, tile)

        k_blocks(self.f, t, block)

    def _row_outer(self, t: Task, jm: Value, mr: int) -> None:
        """Tile by tile of M, all panels of N for each of its blocks of K."""
        self.after.clear(count(self.b, t.n_range))

        def block(lo: Bound, hi: Bound, last: Value | None) -> None:
            left = pack.left(self.f, t, jm, mr, lo, hi)

            def tile(jn: Value, nv: int, limit: int | None) -> None:
                panel = self.open_panel(t, jn, nv, limit)
                right = pack.right(self.f, t, panel, lo, hi)
                self.tile(t, jm, mr, panel, lo, hi, last, left, right, relative(self.b, jn, t.n_range))

            n_panels(self.f, t.n_range, tile)

        k_blocks(self.f, t, block)

    def _k_outer(self, t: Task) -> None:
        """Blocks of K outermost: their halo copies serve every tile; the sums of all tiles wait in scratch."""
        b, f, g = self.b, self.f, self.g
        rows = b.index(count(b, t.m_range))
        columns = count(b, t.n_range)
        self.after.clear(b.mul(rows, b.index(columns)))

        def number(jm: Value, jn: Value) -> Value:
            return b.add(b.mul(relative(b, jn, t.n_range), rows), relative(b, jm, t.m_range))

        def block(lo: Bound, hi: Bound, last: Value | None) -> None:
            if g.heads:
                head = b.op("floordiv", b.index(lo), b.const(g.kc))
                for i, w, at in f.cuts:
                    parts = b.const(w.blocks)
                    self._move(t, i, w, at, b.op("mod", head, parts))
                    head = b.op("floordiv", head, parts)
                t.fixed[g.p.k[0]] = head  # where it is not what is cut
                self.f.fill(t.fixed)

            def by_panels(jn: Value, nv: int, limit: int | None) -> None:
                panel = self.open_panel(t, jn, nv, limit)
                right = pack.right(f, t, panel, lo, hi)

                def tile(jm: Value, mr: int) -> None:
                    left = pack.left(f, t, jm, mr, lo, hi)
                    self.tile(t, jm, mr, panel, lo, hi, last, left, right, number(jm, jn))

                m_tiles(f, t.m_range, tile)

            def by_rows(jm: Value, mr: int) -> None:
                left = pack.left(f, t, jm, mr, lo, hi)

                def tile(jn: Value, nv: int, limit: int | None) -> None:
                    panel = self.open_panel(t, jn, nv, limit)
                    right = pack.right(f, t, panel, lo, hi)
                    self.tile(t, jm, mr, panel, lo, hi, last, left, right, number(jm, jn))

                n_panels(f, t.n_range, tile)

            if g.c.order == "m":
                m_tiles(f, t.m_range, by_rows)
            else:
                n_panels(f, t.n_range, by_panels)

        k_blocks(f, t, block)

    # -- the tile

    def open_panel(self, t: Task, jn: Value, nv: int, limit: int | None) -> Panel:
        """The lanes of a panel, for what is read of it in place and for what follows the sums."""
        b, f, g = self.b, self.f, self.g
        n0 = b.mul(jn, b.const(g.nr))
        starts = [b.add(n0, b.const(v * g.lanes)) for v in range(nv)]
        results = self.after.cursors(t, starts, limit)
        operand: list[LaneCursor] = []
        if g.c.b == "inline":
            operand = [
                LaneCursor(f.b_in, x, limit, g.lanes, column=g.column(v)).bind(t.b[0]) for v, x in enumerate(starts)
            ]
        return Panel(jn, nv, limit, operand, results)

    def tile(
        self, t: Task, jm: Value, mr: int, panel: Panel, lo: Bound, hi: Bound, last: Value | None, left: Value | None,
        right: Value | None, number: Value,
    ) -> None:
        """A tile over a block of K, and what follows its sums."""
        m0 = self.b.mul(jm, self.b.const(self.g.mr))
        self.after.ask(t, m0, mr, panel)
        rows = self.tile_sums.sums(t, jm, mr, panel, lo, hi, left, right, number, last)
        self.after.finish(t, rows, m0, panel, last, number)
