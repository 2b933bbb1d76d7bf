"""Define the context of emission, and the loops over tiles, panels and blocks of K.

`Operands` are the buffers of a kernel function, a `Frame` adds what the tiled form needs, a `TaskFrame` holds what a
task has bound, and a `Tile` says where the emitted code is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from einsmith.base.dtypes import DType
from einsmith.codegen.loopnest.address import BufferMemory, arguments_of, memories_of
from einsmith.codegen.loopnest.lanes import conjoin
from einsmith.codegen.loopnest.nest import Builder
from einsmith.codegen.loopnest.walk import Bound, Range, digits, tiles
from einsmith.codegen.ssa import SSAValue, elem_of
from einsmith.kernels.contraction.config import Side, make_access
from einsmith.kernels.contraction.geometry import Geometry, OperandTiles
from einsmith.kernels.contraction.halo import SLACK_VECTORS, SLOT, HaloCopy, fill
from einsmith.kernels.contraction.words import with_views
from einsmith.kernels.emit.access import PartialAddress
from einsmith.kernels.emit.cursor import LaneCursor
from einsmith.kernels.emit.loops import is_below_limits, load_limit
from einsmith.schedule.contraction_problem import Problem, k_limit
from einsmith.schedule.kernel import Kernel, LimitedKernel, limits_of


def workspace(b: Builder, base: int, item: int, elem: str) -> SSAValue:
    """Return the address of a piece's part of the workspace, `base` bytes from its start."""
    return b.address(b.buffers[-1], base // item, elem) if base else b.buffers[-1]


def clear(b: Builder, scratch: SSAValue, size: SSAValue | int, elem: str, lanes: int) -> None:
    """Set `size` elements of scratch to zero."""
    with b.loop(0, size, step=lanes) as loop:
        b.store(b.const(0.0, elem, lanes), scratch, loop.var)


def limited_axes(kernel: Kernel, p: Problem, axes: Sequence[int]) -> list[int]:
    """Return the axes that end at limits of the kernel and are whole in the problem, which may have points in words."""
    return [a for a in axes if a in limits_of(kernel) and (a == 0 or p.extents[a] == kernel.shape[a])]


def limited_points(
    b: Builder, kernel: Kernel, p: Problem, axes: Sequence[int], points: int | None = None
) -> SSAValue | None:
    """Return the number of points of axes of which the first ends at a limit of the kernel; None where it does not.

    points: points of all the axes, where rows are filled up to whole vectors
    """
    limit = load_limit(b, kernel, axes[0]) if axes and axes[0] in limited_axes(kernel, p, axes) else None
    return None if limit is None else b.mul(limit, (points or p.count(axes)) // p.extents[axes[0]])


def is_batch_below(b: Builder, g: Geometry, batch: SSAValue) -> SSAValue | None:
    """Return whether a point of the batch lies below the limits of all of its axes; None where no axis has one."""
    limited, axes = limited_axes(g.kernel, g.p, g.p.batch), g.p.batch
    if not limited:
        return None
    position = dict(zip(axes, digits(b, batch, [g.p.extents[a] for a in axes]), strict=True))
    return is_below_limits(b, g.kernel, {a: position[a] for a in limited})


def limited_side(b: Builder, g: Geometry, side: Side) -> SSAValue | None:
    """Return the points of a side that tiles below the limit of its first axis cover; None where it has no limit."""
    return limited_points(b, g.kernel, g.p, side.axes, g.N if side is g.n_side else g.M)


def is_tile_below(b: Builder, g: Geometry, x: OperandTiles, number: SSAValue) -> SSAValue | None:
    """Return whether a tile has points below the limits of all axes of its side but the first; None where they have
    none."""
    axes, out = x.side.axes, None
    points = g.N if x.side is g.n_side else g.M
    for a in limited_axes(g.kernel, g.p, axes[1:]):
        limit = load_limit(b, g.kernel, a)
        assert limit is not None
        period = points // g.p.count(axes[: axes.index(a)])  # points of all positions of the axis
        first = b.op("mod", b.mul(number, x.points), period)
        begins = b.op("lt", first, b.mul(limit, period // g.p.extents[a]))
        reaches = b.op("lt", period, b.add(first, x.points))  # the beginning of the next positions
        out = conjoin(b, out, b.op("or", begins, reaches))
    return out


Rows = Sequence[Sequence[SSAValue]]
"""The vectors of a tile, row by row."""


class TileSums:
    """The sums of `tiles` tiles in scratch, [tile][row][vectors]; a row has `width` elements."""

    def __init__(self, b: Builder, elem: str, tiles: int, rows: int, width: int, lanes: int):
        self.b, self.elem, self.tiles, self.width, self.lanes = b, elem, tiles, width, lanes
        self.size = rows * width
        self.sums = b.alloc(elem, tiles * self.size)

    def clear(self, tiles: SSAValue | int) -> None:
        """Set the sums of the first `tiles` tiles to zero."""
        clear(self.b, self.sums, self.b.mul(tiles, self.size), self.elem, self.lanes)

    def _places(self, tile: SSAValue, row: SSAValue | int, nv: int) -> list[SSAValue]:
        b = self.b
        at = b.add(self.place(tile), b.mul(row, self.width))
        return [b.add(at, v * self.lanes) for v in range(nv)]

    def place(self, tile: SSAValue) -> SSAValue:
        """Return where a tile begins."""
        return self.b.mul(tile, self.size) if self.tiles > 1 else self.b.const(0)

    def store(self, rows: Rows, tile: SSAValue) -> None:
        """Store the sums of one tile."""
        for i, row in enumerate(rows):
            for x, at in zip(row, self._places(tile, i, len(row)), strict=True):
                self.b.store(x, self.sums, at)

    def load(self, tile: SSAValue, row: SSAValue | int, nv: int) -> list[SSAValue]:
        """Return the vectors of a row."""
        return [self.b.load(self.sums, x, self.elem, self.lanes) for x in self._places(tile, row, nv)]

    def rows(self, tile: SSAValue, mr: int, nv: int) -> list[list[SSAValue]]:
        """Return the sums of a tile as `mr` rows of `nv` vectors."""
        return [self.load(tile, i, nv) for i in range(mr)]


class Operands:
    """The buffers of a kernel function by number, and the root's arguments by slot.

    slots: the arguments and the halo copies, each of which has scratch
    halos: (operand, halo copy)
    """

    def __init__(self, b: Builder, kernel: Kernel, dtype: DType, lanes: int, halos: Sequence[tuple[int, HaloCopy]]):
        self.b, self.elem, self.lanes = b, elem_of(dtype), lanes
        self.buffers = memories_of(kernel, b.buffers)
        self.arguments = with_views(arguments_of(kernel, self.buffers))
        self.slots = dict(self.arguments)
        self.halo_scratch: list[tuple[HaloCopy, SSAValue]] = []
        for i, w in halos:
            # A row read past its end reaches into the next row; at the end of the copy, into its slack.
            at = b.alloc(self.elem, w.buffer.size + SLACK_VECTORS * lanes)
            self.halo_scratch.append((w, at))
            self.slots[SLOT + i] = BufferMemory(at, w.buffer)

    def load_k_limit(self, slot: int) -> SSAValue:
        """Return the number in an argument at which an axis of K ends in this run."""
        return self.b.op("max", self.b.cast(self.b.load(self.slots[slot].pointer, 0, "i32"), "i64"), 0)

    def fill(self, values: Mapping[int, SSAValue]) -> None:
        """Fill the halo copies for these values of the axes that they fix."""
        for w, to in self.halo_scratch:
            fill(self.b, w, self.slots, to, self.lanes, values)


class Frame(Operands):
    """The operands, halo copies and packed panels of a kernel function in the tiled form.

    base: bytes of the workspace before this piece's part
    elem, sum_elem: element types of the operands, and of the sums
    cut_halos: (operand, halo copy, where its first block lies) for copies that are cut, which move
    (`Blocked._select_block`)
    m_access, n_access: the operands as tiles read them in place, or as they are packed
    """

    def __init__(self, b: Builder, g: Geometry, base: int = 0):
        super().__init__(b, g.kernel, g.p.operand_type, g.lanes, g.halos)
        self.g, p, n = g, g.p, g.lanes
        self.sum_elem = elem_of(p.dtype)
        self.cut_halos = [(i, w, self.slots[SLOT + i].pointer) for i, w in g.halos if w.block]
        axes, lanes = ((), 0) if g.a.how == "inline" else (p.k if g.a.along_k else g.m_side.axes, n)
        self.m_access = make_access(b, p, g.m_side, self.slots, axes, lanes)
        self.n_access = make_access(
            b, p, g.n_side, self.slots, p.k if g.b.along_k else g.n_side.axes, n, g.row, g.reads_past_rows
        )
        self.scratch = {x: b.alloc(self.elem, x.slab) for x in (g.a, g.b) if x.how == "panel"}
        self.workspace = workspace(b, base, g.item, self.elem)

    def k_end(self, hi: Bound) -> Bound:
        """Return where points of K end: at `hi`, or before it, where a number that is known when the kernel runs makes
        all further terms zero."""
        p, slot = self.g.p, k_limit(self.g.p)
        if slot is None or p.in_tiles:
            return hi
        return self.b.op("min", hi, self.b.mul(self.load_k_limit(slot), p.count(p.k[1:])))

    def k_range(self, part: SSAValue) -> tuple[SSAValue, SSAValue]:
        """Return the points of K of a part. Where K ends before its last point, parts are equal up to its end, and the
        last ones may be empty."""
        g, b = self.g, self.b
        end = self.k_end(g.K)
        if isinstance(end, int):
            lo = b.mul(part, g.k_max)
            return lo, b.op("min", b.add(lo, g.k_max), end)
        units = b.op("floordiv", b.add(end, g.part_unit - 1), g.part_unit)
        size = b.mul(b.op("floordiv", b.add(units, g.c.split - 1), g.c.split), g.part_unit)
        lo = b.mul(part, size)
        return lo, b.op("max", b.op("min", b.add(lo, size), end), lo)

    def slot(self, x: OperandTiles, tile: SSAValue) -> SSAValue:
        """Return the address of tile number `tile` of a buffer."""
        b = self.b
        return b.address(self.workspace, b.add(b.mul(tile, x.slab), x.base), self.elem)


@dataclass
class TaskFrame:
    """The values that a task has bound.

    batch, split: the task's point of the batch and part of K
    m_range, n_range, k_lo, k_hi: the task's tiles of M, panels of N and points of K
    m_part, n_part, results: offsets of the batch in the addresses of operands and results
    halo_values: values of the axes along which halo copies hold a single value
    companion: the task of the companion piece, or None
    m_points: the number of points of M at which the last tile ends in this run; None: tiles are whole
    """

    batch: SSAValue
    split: SSAValue
    m_range: Range
    n_range: Range
    k_lo: Bound
    k_hi: Bound
    m_part: PartialAddress
    n_part: PartialAddress
    results: PartialAddress
    halo_values: dict[int, SSAValue]
    companion: TaskFrame | None
    m_points: SSAValue | None = None


class Strip(NamedTuple):
    """Tile `number` of M, of `size` rows, or panel `number` of N, of `size` vectors.

    limit: lanes from here on are inactive (None: all are active)
    operand: a panel's vectors of the operand, where that is read in place
    results: a panel's vectors of the results
    companion: the panel of the companion piece, or None
    """

    number: SSAValue
    size: int
    limit: int | None = None
    operand: Sequence[LaneCursor] = ()
    results: Sequence[LaneCursor] = ()
    companion: Any = None


class Tile(NamedTuple):
    """A register tile: rows of M by a panel of N, over the block lo .. hi of K.

    last: whether the block is the last one (None: there is one block)
    left, right: where the packed operands lie; None for operands read in place
    number: number among the tiles whose sums stay in scratch between blocks of K
    """

    rows: Strip
    panel: Strip
    lo: Bound
    hi: Bound
    last: SSAValue | None
    left: SSAValue | None
    right: SSAValue | None
    number: SSAValue


# -- loops


def tiles_of(
    f: Frame, x: OperandTiles, span: Range, body: Callable[[Strip], None], points: SSAValue | None = None
) -> None:
    """Emit body(strip) for a range of tiles of M or of panels of N. points: the number of points of M if it is only
    known at run time; code for last tiles of several sizes is then emitted."""
    g, b = f.g, f.b

    def emit_panel(jn: SSAValue, nv: int, tail: bool) -> None:
        last = tail or g.c.depth > 1  # all points of N
        body(Strip(jn, nv, g.N if last and g.N % g.lanes else None))

    if points is not None:
        # Where memory is that of the capacity, last tiles have up to a quarter more rows, for less code.
        step = 1 if isinstance(g.kernel, LimitedKernel) and g.kernel.is_short else -(-x.points // 4)
        whole = b.op("min", b.op("floordiv", b.add(points, step - 1), x.points), g.M // x.points)
        with b.loop(span[0], b.op("min", span[1], whole)) as loop:
            body(Strip(loop.var, x.points))
        first, left = b.mul(whole, x.points), g.M % x.points
        rest = b.sub(points, first)
        with b.if_(b.op("and", b.op("le", span[0], whole), b.op("lt", whole, span[1]))):
            for size in range(step, x.points, step):
                fits = b.op("and", b.op("lt", size - step, rest), b.op("le", rest, size))
                with b.if_(b.op("and", fits, b.op("le", b.add(first, size), g.M))):
                    body(Strip(whole, size))
            if left % step:  # the capacity's own last tile
                with b.if_(b.op("lt", g.M - left % step, points)):
                    body(Strip(whole, left))
    elif x is g.a:
        tiles(f.b, span, x.tiles, g.M, 1, x.points, lambda jm, mr, _: body(Strip(jm, mr)))
    else:
        tiles(f.b, span, x.tiles, g.N, g.lanes // g.c.depth, g.c.nv, emit_panel)


def k_blocks(f: Frame, t: TaskFrame, body: Callable[[Bound, Bound, SSAValue | None], None]) -> None:
    """Emit body(lo, hi, last) for a task's blocks of K; `last` is None where there is one block. A task without points
    of K has an empty block, so that its sums are stored."""
    b = f.b
    if not f.g.blocked:
        body(t.k_lo, t.k_hi, None)
        return
    with b.loop(t.k_lo, b.op("max", t.k_hi, b.add(t.k_lo, 1)), step=f.g.kc) as loop:
        end = b.add(loop.var, f.g.kc)
        body(loop.var, b.op("min", end, t.k_hi), b.op("le", t.k_hi, end))
