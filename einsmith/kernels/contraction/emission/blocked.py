"""Emit the tiled form: register tiles inside blocked loops, with operands packed or read in place.

A task owns a batch point, a range of M tiles, a range of N panels and a range of K. Inside, one side is walked in the
outer loop (its panel packed there), the other in the inner loop; around the tile runs a real loop over K. Blocks of K
may be outermost (Goto and van de Geijn 2008), with the sums of all tiles in scratch: a block of K has few enough rows
for the TLB to hold their pages, and a packed panel serves all tiles of M.

Two pieces whose results are interleaved may be computed tile by tile and stored in contiguous stretches. The gradient
of a strided convolution leaves every other element of a row to another piece: computed separately, each piece would
fetch and write every line of the results, in parts; a tile of both has all elements of its lines.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Any

from einsmith.codegen.loopnest.address import BufferMemory
from einsmith.codegen.loopnest.nest import Builder
from einsmith.codegen.loopnest.walk import Bound, Range, digits, part_range
from einsmith.codegen.ssa import SSAValue
from einsmith.kernels.contraction.emission import pack
from einsmith.kernels.contraction.emission.frame import (
    Frame,
    Strip,
    TaskFrame,
    Tile,
    is_batch_below,
    is_tile_below,
    k_blocks,
    limited_axes,
    limited_side,
    tiles_of,
)
from einsmith.kernels.contraction.emission.microkernel import Microkernel
from einsmith.kernels.contraction.emission.tile_epilogue import TileEpilogue
from einsmith.kernels.contraction.geometry import Geometry, OperandTiles
from einsmith.kernels.contraction.halo import BLOCK_AXIS, SLOT, HaloCopy
from einsmith.kernels.emit.access import OperandAccess, PartialAddress
from einsmith.kernels.emit.cursor import LaneCursor
from einsmith.kernels.emit.epilogue_sums import SumPlaces
from einsmith.kernels.emit.loops import is_limited
from einsmith.schedule.contraction_problem import k_limit
from einsmith.schedule.kernel import Beyond, LimitedKernel

CompanionPairs = tuple[tuple[int, int], ...]
"""Pairs of piece numbers: a companion, and the piece whose tiles also compute the companion's sums and store both."""


def beyond_limit(g: Geometry) -> Beyond:
    """Return what the tiles of a `LimitedKernel` do in rows beyond the limit."""
    if is_limited(g.p.batch):
        is_untouched = all(x.how != "buffer" or x.batches == 1 for x in (g.a, g.b))
    elif not any(is_limited(side.axes) for side in (g.m_side, g.n_side)):
        return Beyond.COMPUTED
    else:
        is_untouched = (
            isinstance(g.kernel, LimitedKernel)
            and g.kernel.is_short
            and not (g.row or g.c.windows or g.a.how == "buffer" or (g.c.split > 1 and g.B > 1))
            and is_limited(g.m_side.axes)
        )
    return Beyond.UNTOUCHED if is_untouched else Beyond.TOUCHED


class Blocked:
    """Emits a kernel function that computes a piece and, with another instance, its companion.

    base: bytes of the workspace before the piece's part. sums: where the parts of the kernel's sums lie
    """

    def __init__(
        self,
        b: Builder,
        g: Geometry,
        base: int = 0,
        companion: Blocked | None = None,
        sums: SumPlaces | None = None,
    ):
        self.b, self.g, self.companion = b, g, companion
        self.f = Frame(b, g, base)
        self.tile_epilogue = TileEpilogue(self.f, sums)
        self.microkernel = Microkernel(self.f, self.tile_epilogue)

    def run(self, task: SSAValue) -> None:
        """Emit a task."""
        g, b = self.g, self.b
        if limited_axes(g.kernel, g.p, g.p.batch):
            below = is_batch_below(b, g, b.op("floordiv", task, g.tasks // g.B))
            assert below is not None
            with b.if_(below):
                self._run(task)
        else:
            self._run(task)

    def _run(self, task: SSAValue) -> None:
        t, g, sums = self.begin_task(task), self.g, self.tile_epilogue.taken
        if sums is not None:
            sums.clear()
        inner = "mn" if g.c.order == "m" else "nm"
        self._loops(t, "k" + inner if g.k_outer else inner[0] + "k" + inner[1])
        if sums is not None:
            sums.finish(t, task)

    # -- the task

    def begin_task(self, task: SSAValue) -> TaskFrame:
        """Bind a task, and fill its halo copies unless they hold a block of K."""
        b, f, g, c, p = self.b, self.f, self.g, self.g.c, self.g.p
        batch, split, tn, tm = digits(b, task, (g.B, c.split, c.tn, c.tm))
        m_points, n_points = (limited_side(b, g, side) for side in (g.m_side, g.n_side))
        m_range = self._tile_range(tm, c.tm, g.mt, self._count_tiles(m_points, g.mr, g.mt))
        n_range = self._tile_range(tn, c.tn, g.nt, self._count_tiles(n_points, g.nr, g.nt))
        k_lo, k_hi = f.k_range(split)
        m_part, n_part, results = (
            s.part_of(p.batch, batch) for s in (f.m_access, f.n_access, self.tile_epilogue.epilogue.sampler)
        )
        halo_values = dict(zip(p.batch, digits(b, batch, [p.extents[x] for x in p.batch]), strict=True))
        companion = None if self.companion is None else self.companion.begin_task(task)
        if g.a.how == "buffer" or not is_limited(g.m_side.axes):  # else tiles were packed with all of their rows
            m_points = None
        t = TaskFrame(
            batch, split, m_range, n_range, k_lo, k_hi, m_part, n_part, results, halo_values, companion, m_points
        )
        if not g.k_outer:
            for i, w, first_block in f.cut_halos:
                self._select_block(t, i, w, first_block, tm if i == int(c.swap) else tn)
            self.f.fill(t.halo_values)
        return t

    def _tile_range(self, number: SSAValue, tasks: int, tiles: int, count: Bound) -> Range:
        """Return the tiles of a task, of the first `count` of all `tiles`; those of a halo copy that the task fills are
        its own in each run."""
        if not self.g.c.windows:
            return part_range(self.b, number, tasks, count)
        low, high = part_range(self.b, number, tasks, tiles)
        return low, high if count is tiles else self.b.op("max", low, self.b.op("min", high, count))

    def _count_tiles(self, points: SSAValue | None, size: int, tiles: int) -> Bound:
        """Return the number of tiles of `size` points that cover `points` along a side. points: None for a whole side
        of `tiles`."""
        b = self.b
        return tiles if points is None else b.op("floordiv", b.add(points, size - 1), size)

    def _select_block(self, t: TaskFrame, i: int, w: HaloCopy, first_block: SSAValue, number: SSAValue) -> None:
        """Make a halo copy that is cut hold block `number`."""
        t.halo_values[BLOCK_AXIS] = number
        moved = self.b.address(first_block, self.b.mul(number, -w.block), self.f.elem)
        self.f.slots[SLOT + i] = BufferMemory(moved, w.buffer)

    # -- the loops around the tile

    def _loops(self, t: TaskFrame, order: str) -> None:
        """Emit the loops over tiles of M, panels of N and blocks of K, with the outermost first in `order`.

        An operand is packed as soon as its tile and its block are known. The sums of the tiles within a block of K stay
        in scratch until the next block.
        """
        b, f, g = self.b, self.f, self.g
        spans = {"m": t.m_range, "n": t.n_range}
        inner_axes = order[order.index("k") + 1 :]

        def enter_axis(axis: str, rest: str, at: dict[str, Any]) -> None:
            """Pack the operands whose tile and block are known in the loop over `axis`, then emit the other loops."""
            if axis != "m" and "panel" in at and "lo" in at:
                at = {**at, "right": pack.packed_tile(f, t, g.b, at["panel"], at["lo"], at["hi"])}
            if axis != "n" and "rows" in at and "lo" in at:
                at = {**at, "left": pack.packed_tile(f, t, g.a, at["rows"], at["lo"], at["hi"])}
            emit_level(rest, at)

        def enter_tile(x: OperandTiles, number: SSAValue, axis: str, rest: str, at: dict[str, Any]) -> None:
            below = is_tile_below(b, g, x, number)
            with nullcontext() if below is None else b.if_(below):
                enter_axis(axis, rest, at)

        def emit_block(rest: str, at: dict[str, Any], lo: Bound, hi: Bound, last: SSAValue | None) -> None:
            if g.halo_k_blocks:
                self._fill_k_block(t, lo, hi)
            enter_axis("k", rest, {**at, "lo": lo, "hi": hi, "last": last})

        def emit_level(rest: str, at: dict[str, Any]) -> None:
            if not rest:
                numbers = {"m": at["rows"].number, "n": at["panel"].number}
                number = b.const(0)
                for axis in inner_axes:
                    lo, hi = spans[axis]
                    number = b.add(b.mul(number, b.sub(hi, lo)), b.sub(numbers[axis], lo))
                self.emit_tile(t, Tile(**at, number=number))
            elif rest[0] == "k":
                tiles = b.const(1)
                for lo, hi in (spans[axis] for axis in inner_axes):
                    tiles = b.mul(tiles, b.sub(hi, lo))
                self.tile_epilogue.clear(tiles)
                k_blocks(f, t, partial(emit_block, rest[1:], at))
            elif rest[0] == "m":
                tiles_of(
                    f, g.a, t.m_range, lambda x: enter_tile(g.a, x.number, "m", rest[1:], {**at, "rows": x}), t.m_points
                )
            else:
                tiles_of(
                    f,
                    g.b,
                    t.n_range,
                    lambda x: enter_tile(g.b, x.number, "n", rest[1:], {**at, "panel": self.open_panel(t, x)}),
                )

        emit_level(order, {})

    def _fill_k_block(self, t: TaskFrame, lo: Bound, hi: Bound) -> None:
        """Fill the halo copies of a block of K, from point lo on; not where the block ends there, at `hi`."""
        b, g = self.b, self.g
        block = b.op("floordiv", lo, g.kc)
        for i, w, first_block in self.f.cut_halos:
            parts = b.const(w.blocks)
            self._select_block(t, i, w, first_block, b.op("mod", block, parts))
            block = b.op("floordiv", block, parts)
        t.halo_values[g.p.k[0]] = block  # where the first axis of K is not the one that is cut
        with nullcontext() if k_limit(g.p) is None else b.if_(b.op("lt", lo, hi)):
            self.f.fill(t.halo_values)

    # -- the tile

    def open_panel(self, t: TaskFrame, panel: Strip) -> Strip:
        """Return the panel with cursors at its vectors of results, and of the operand where that is read in place."""
        b, f, g = self.b, self.f, self.g
        n0 = b.mul(panel.number, g.nr)
        starts = [b.add(n0, v * g.lanes) for v in range(panel.size)]

        def make_cursors(s: OperandAccess, part: PartialAddress, count: int) -> list[LaneCursor]:
            return [
                LaneCursor(s, x, panel.limit, g.lanes, column=g.column(v)).bind(part)
                for v, x in enumerate(starts[:count])
            ]

        return panel._replace(
            operand=make_cursors(f.n_access, t.n_part, panel.size) if g.b.how == "inline" else (),
            results=make_cursors(
                self.tile_epilogue.epilogue.sampler, t.results, self.tile_epilogue.vectors(panel.size)
            ),
            companion=t.companion and self.companion and self.companion.open_panel(t.companion, panel),
        )

    def emit_tile(self, t: TaskFrame, x: Tile) -> None:
        """Emit a tile over a block of K, the companion's tile, and the epilogues of both."""
        if self.companion is not None:
            f, companion_task, companion_sums = self.companion.f, t.companion, self.tile_epilogue.companion_sums
            assert companion_task is not None and companion_sums is not None
            end = f.k_end(f.g.K)
            left = pack.packed_tile(f, companion_task, f.g.a, x.rows, 0, end)
            right = pack.packed_tile(f, companion_task, f.g.b, x.panel, 0, end)
            companion_tile = x._replace(panel=x.panel.companion, lo=0, hi=end, left=left, right=right)
            companion_sums.store(self.companion.microkernel.emit_sums(companion_task, companion_tile), x.number)
        if self.g.p.in_tiles:
            self.microkernel.emit_in_tiles(t, x)
            self.tile_epilogue.emit(t, x, None)
            return
        self.tile_epilogue.emit(t, x, self.microkernel.emit_sums(t, x))
