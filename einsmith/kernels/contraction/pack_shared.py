"""Packing operands into the workspace, from where all tasks read them."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from einsmith.kernels.contraction.config import sampler
from einsmith.kernels.contraction.pack import Panels
from einsmith.kernels.contraction.traffic import LINE, address_steps
from einsmith.kernels.emit.access import FusedAxes
from einsmith.kernels.emit.walk import ceil_div, digits_of
from einsmith.loops.nest import Value

TOGETHER = 32
"""Points of K that a task packs of one tile after the other: so few that lines which two tiles share stay close even
where they are whole pages apart, and so many that what is written is no short stretch."""
STRETCH = 1 << 14
"""Bytes of a row that a task packs about."""
PART = 1 << 15
"""Bytes that a task packs about, where there are enough of them for all cores."""


class _Packing(NamedTuple):
    """How an operand is packed into the workspace: of one of `points` of the batch and of `blocks` of K a task has
    one of `parts` of the block, `depth` points of K (0: all), and one of `groups` of the tiles."""

    name: str
    tiles: int
    points: int
    blocks: int
    parts: int
    groups: int
    depth: int

    @property
    def tasks(self) -> int:
        return self.points * self.blocks * self.parts * self.groups


class Buffers(Panels):
    """Emission of the launch that packs."""

    def pack_tasks(self, sides: str) -> int:
        """Tasks that pack the operands "a", "b" or "ab" into the workspace."""
        return sum(x.tasks for x in self._packings(sides))

    def _packings(self, sides: str) -> list[_Packing]:
        out = []
        for name, how, side, tiles, across, width in (
            ("a", self.c.a, self.m_side, self.mt, not self.a_rows, self.mr),
            ("b", self.c.b, self.n_side, self.nt, self.b_along is None, self.nr),
        ):
            if name not in sides or how != "buffer":
                continue
            item, groups, depth = self.p.dtype.itemsize, tiles, 0
            found = address_steps(sampler(None, self.p, side, self.slots, (), 0), self.p, side, item)
            if across and found.even and found.side == item and found.k >= LINE and width * item % LINE:
                groups = min(tiles, ceil_div(tiles * width * item, STRETCH))
                few = ceil_div(tiles, groups) * width * item * TOGETHER  # bytes
                least = ceil_div(4 * self.target.cores, groups * self.k_blocks * self._points(side))
                depth = max(1, min(PART // few, self.kc // TOGETHER // least)) * TOGETHER
            parts = ceil_div(self.kc, depth) if depth else 1
            out.append(_Packing(name, tiles, self._points(side), self.k_blocks, parts, groups, depth))
        return out

    def run_pack(self, task: Value, sides: str) -> None:
        """One task packs one tile's panel of one block of K into the workspace; where tiles share lines, some points of
        K of many tiles."""
        b, p = self.b, self.p
        first = 0
        for x in self._packings(sides):
            t = b.sub(task, b.const(first))
            inside = b.op("and", b.op("le", b.const(0), t), b.op("lt", t, b.const(x.tasks)))
            first += x.tasks
            with b.if_(inside):
                counts = (x.points, x.blocks, x.parts, x.groups)
                batch, block, part, group = digits_of(b, t, [FusedAxes((), n) for n in counts])
                lo: Value | int = 0
                hi: Value | int = self.K
                if x.blocks > 1:
                    lo = b.mul(block, b.const(self.kc))
                    hi = b.op("min", b.add(lo, b.const(self.kc)), b.const(self.K))
                at = b.mul(b.add(b.mul(batch, b.const(x.blocks)), block), b.const(x.tiles))
                if x.name == "a":
                    self.a_pack_batch = self.a_pack.part_of(p.batch, batch)
                    self.m_range = self._range(group, x.groups, x.tiles)
                    pack = partial(self._pack_rows, at)
                else:
                    self.b_batch = self.b_in.part_of(p.batch, batch)
                    if self.b_along is not None:
                        self.b_along_batch = self.b_along.part_of(p.batch, batch)
                    self.n_range = self._range(group, x.groups, x.tiles)
                    pack = partial(self._pack_columns, at)
                if not x.depth:
                    pack(lo, hi, None)
                    continue
                start, end = (b.index(v) for v in (lo, hi))
                here = b.add(start, b.mul(part, b.const(x.depth)))
                stop = b.op("min", b.add(here, b.const(x.depth)), end)
                with b.loop(here, stop, step=TOGETHER) as loop:
                    pack(loop.var, b.op("min", b.add(loop.var, b.const(TOGETHER)), stop), start)

    def _pack_rows(self, at: Value, lo, hi, start: Value | None) -> None:
        def tile(jm: Value, mr: int) -> None:
            to = self._slot(self.a_buffer(), self.a_slab, self.b.add(at, jm))
            self.pack_a(to, jm, mr, lo, hi, start)

        self._m_level(tile)

    def _pack_columns(self, at: Value, lo, hi, start: Value | None) -> None:
        def panel(jn: Value, nv: int) -> None:
            to = self._slot(self.b_buffer(), self.b_slab, self.b.add(at, jn))
            self.pack_b(to, jn, nv, lo, hi, start)

        self._n_level(panel)
