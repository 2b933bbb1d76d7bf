"""Derive the dimensions of a tiled configuration before emission: sizes, layout of panels, the workspace."""

from __future__ import annotations

from math import gcd, lcm
from typing import Any, NamedTuple

from einsmith.base.errors import CompileError
from einsmith.base.locks import cached_property
from einsmith.codegen.loopnest.address import FusedAxes, fuse_axes
from einsmith.codegen.loopnest.nest import Builder
from einsmith.codegen.loopnest.walk import ceil_div
from einsmith.codegen.ssa import SSAValue
from einsmith.kernels.contraction.config import HaloSetting, Side, Tiled, depends_on_batch, masked_tail, reject_tiles
from einsmith.kernels.contraction.halo import can_read_past
from einsmith.kernels.contraction.k_bounds import KBound, restrict_bounds
from einsmith.kernels.contraction.k_vectorization import can_vectorize_k
from einsmith.schedule.contraction_problem import Problem
from einsmith.schedule.kernel import Kernel


class PartialSums(NamedTuple):
    """The layout of partial sums in the workspace: [part of K][batch][row of M][point of N], rows padded to whole
    vectors.

    m_axes, n_axes: axes of the rows, and of the points of a row
    padded: extent of the innermost of `n_axes` in whole vectors, 0 where vectors cross it
    base: the workspace element at which they begin
    """

    batch: int
    rows: int
    columns: int
    lanes: int
    parts: int
    m_axes: tuple[int, ...]
    n_axes: tuple[int, ...]
    padded: int = 0
    base: int = 0

    @property
    def row(self) -> int:
        """Return the elements of a row."""
        return ceil_div(self.columns, self.lanes) * self.lanes

    @property
    def part(self) -> int:
        """Return the elements of a part of K."""
        return self.batch * self.rows * self.row

    @property
    def elements(self) -> int:
        """The number of elements of all parts."""
        return self.parts * self.part

    def place(self, b: Builder, part: SSAValue, batch: SSAValue, m: SSAValue, n: SSAValue) -> SSAValue:
        """Return the place (element) of the sum of row `m` at point `n` of N."""
        at = b.add(b.mul(part, self.batch), batch)
        at = b.add(b.mul(at, self.rows), m)
        return b.add(b.add(b.mul(at, self.row), n), self.base)


class OperandTiles(NamedTuple):
    """How an operand reaches the tiles.

    how: read in place ("inline"), packed by the task ("panel") or packed by an earlier launch ("buffer")
    points: points of a tile
    tiles: number of tiles
    along_k: whether it is packed with lanes along K
    slab: elements of a packed tile
    batches: points of the batch that the operand depends on
    shared: elements of its buffer, [batch][block of K][tile]
    base: the workspace element at which its buffer begins
    """

    side: Side
    how: str
    points: int
    tiles: int
    along_k: bool
    slab: int
    batches: int
    shared: int
    base: int


class Geometry(HaloSetting):
    """The sizes and layouts of one tiled configuration of a problem.

    c: the configuration
    mr, nr: rows of a tile of M, points of a panel of N
    width: elements of one row of a tile's sums
    mt, nt: tiles of M, panels of N
    k_max, kc: points of K in a part and in a block
    blocked: whether a part of K has several blocks
    k_blocks: blocks of all of K
    k_unit: points of K; parts and blocks of K begin at multiples of it, which tells vectors along K their alignment
    tail: points of K whose masks are computed once (`config.masked_tail`); 1 where parts or blocks would cut them
    tasks: tasks of the launch that multiplies
    reads_past_rows: whether lanes past the end of a row of N may be read
    a, b: how M and N reach the tiles
    m_bounds, n_bounds: guards that bound axes of K for a tile's rows, and for a panel's rows of N
    bounded: the axes of K that these guards bound
    """

    def __init__(self, kernel: Kernel, config: Tiled, target: Any, problem: Problem):
        super().__init__(kernel, problem, config.windows, config.swap, config.rows, target)
        self.c = config
        self._count_points()
        self._orient_operands()
        self._bound_k()
        if self.p.in_tiles and (reason := reject_tiles(self.p, config)):
            raise CompileError(reason)

    @property
    def k_outer(self) -> bool:
        """Return True if blocks of K are outermost."""
        return self.halo_k_blocks > 0 or self.c.order == "k"

    def _count_points(self) -> None:
        """Compute how tiles, blocks of K and tasks divide the points."""
        config = self.c
        self.mr = config.mr
        self.nr = config.nv * self.lanes // config.depth
        self.width = config.nv * self.lanes
        self.mt, self.nt = ceil_div(self.M, self.mr), ceil_div(self.N, self.nr)
        self.k_max = self.K if config.split == 1 else ceil_div(self.K, config.split)
        self.kc = min(config.kc or self.k_max, self.k_max)
        if self.halo_k_blocks:
            self.kc = self.K // self.halo_k_blocks
            self.k_max = ceil_div(self.halo_k_blocks, config.split) * self.kc
        self.blocked = self.kc < self.k_max
        if config.split > 1 and self.k_max % self.kc and "buffer" in (config.a, config.b):
            raise CompileError(f"buffers over parts of {self.k_max} points of K, no whole blocks, in {config}")
        self.k_blocks = ceil_div(self.K, self.kc)
        # Blocks and parts of K begin at multiples of it, which tells vectors along K their alignment.
        self.k_unit = gcd(self.lanes, self.kc if self.blocked else 0, self.k_max if config.split > 1 else 0)
        tail = masked_tail(self.p)
        self.tail = tail if self.kc % tail == 0 and self.k_max % tail == 0 else 1
        self.tasks = self.B * config.split * config.tm * config.tn
        for i, w in self.halos:
            tasks = config.tm if i == int(config.swap) else config.tn
            if w.block and not self.halo_k_blocks and tasks != w.blocks:
                raise CompileError(f"{tasks} tasks do not hold a halo copy's {w.blocks} blocks, one each, in {config}")

    def _orient_operands(self) -> None:
        """Choose how the operands are read by tiles and packing."""
        config = self.c
        a_along_k = config.a != "inline" and (
            self.p.in_tiles or self.lies_along_k(self.m_side, gcd(self.mr, self.lanes))
        )
        self.reads_past_rows = False
        if config.rows and self.n_side.operand.plain:
            self.reads_past_rows = can_read_past(self.access(self.n_side), self.n_side.axes[-1])
        b_along_k = config.b != "inline" and not config.rows and self.lanes * self.item >= 16
        b_along_k = b_along_k and self.lies_along_k(self.n_side, self.lanes)
        self.k_pad = ceil_div(self.kc, self.lanes) * self.lanes
        if a_along_k and self.k_pad // self.lanes % 2 == 0:
            self.k_pad += self.lanes  # an odd number of vectors: rows do not fall into one cache set
        a_slab = ceil_div(self.mr * self.k_pad if a_along_k else self.mr * self.kc + self.lanes, 16) * 16
        self.a = self._tiles(self.m_side, config.a, self.mr, self.mt, a_along_k, a_slab, 0)
        self.b = self._tiles(self.n_side, config.b, self.nr, self.nt, b_along_k, self.nr * self.k_pad, self.a.shared)
        if config.depth > 1:
            can_vectorize = can_vectorize_k(self, config.depth, (self.k_max, self.kc))
            is_one_transposed_panel = config.b == "panel" and b_along_k and self.nt == 1
            if not can_vectorize or config.a != "inline" or not is_one_transposed_panel or config.windows:
                raise CompileError(f"vectors along N do not hold {config.depth} points of K each in {config}")

    def _tiles(
        self, side: Side, how: str, points: int, count: int, along_k: bool, slab: int, base: int
    ) -> OperandTiles:
        batches = self.B if depends_on_batch(self.p, side) else 1
        shared = batches * self.k_blocks * count * slab if how == "buffer" else 0
        return OperandTiles(side, how, points, count, along_k, slab, batches, shared, base)

    def _bound_k(self) -> None:
        """Collect the guards that bound axes of K for a tile.

        The guards are those of the problem without halo copies; K must be walked whole, axis by axis.
        """
        c, p = self.c, self.p
        self.m_bounds: tuple[KBound, ...] = ()
        self.n_bounds: tuple[KBound, ...] = ()
        if c.split == 1 and not self.blocked and not self.k_outer and c.depth == 1 and not self.p.in_tiles:
            self.m_bounds = restrict_bounds(self.original, int(c.swap), (*p.batch, *self.m_side.axes))
            if c.rows:
                self.n_bounds = restrict_bounds(self.original, 1 - int(c.swap), (*p.batch, *self.n_side.axes[:-1]))
        self.bounded = {x.axis for x in (*self.m_bounds, *self.n_bounds)}

    @cached_property
    def k_groups(self) -> list[FusedAxes]:
        """Return the axes of K, merged as far as both operands read in place allow."""
        sides = ((self.m_side, self.c.a), (self.n_side, self.c.b))
        inline = [self.access(side) for side, how in sides if how == "inline"]
        return fuse_axes(
            self.p.k,
            self.p.extents,
            lambda a, x: not {a, x.inner} & self.bounded and all(s.evenly(a, x) for s in inline),
        )

    @cached_property
    def part_unit(self) -> int:
        """Return the points of K of which parts may be multiples, where K ends at a number that is known when the
        kernel runs; a divisor of `k_max`."""
        if self.blocked or self.halo_k_blocks or "buffer" in (self.c.a, self.c.b):
            return self.kc
        return lcm(self.k_unit, self.tail, self.c.depth, gcd(self.k_max, self.p.count(self.p.k[1:])))

    def column(self, v: int) -> int | None:
        """Return where in its row vector `v` of a panel begins; None without rows, or if it differs between panels."""
        if not self.row:
            return None
        if self.row == self.lanes:
            return 0
        return v * self.lanes % self.row if self.nr % self.row == 0 or self.nt == 1 else None

    @property
    def partials(self) -> PartialSums:
        """The layout of the partial sums in the workspace."""
        axes = self.m_side.axes, self.n_side.axes
        return PartialSums(
            self.B, self.M, self.N, self.lanes, self.c.split, *axes, self.row, self.a.shared + self.b.shared
        )

    def workspace_elements(self) -> int:
        """Return the elements of the workspace: operands that all tasks share, and partial sums."""
        return self.a.shared + self.b.shared + (self.partials.elements if self.c.split > 1 else 0)
