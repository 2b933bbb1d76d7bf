"""Kernels whose root is a Reduce of any combiner: row, column, window and whole reductions, with an epilogue.

row: lanes along a reduction axis, several accumulators, merged in a fixed tree at the end of each row.
column: lanes along an output axis, every lane its own result (pooling windows are unrolled).
Few outputs: the reduction is cut into parts, whose partial results a second launch merges in order; the number of parts
is configuration. Any Reduce can be lowered here, sums of products too: this is the plain form of a contraction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from einsmith import dtypes as dt
from einsmith.expr.analysis.linear import Linear
from einsmith.expr.nodes import Axis, Piece, Read, Reduce
from einsmith.kernels import elementwise as pointwise
from einsmith.kernels.elementwise import PointwiseConfig
from einsmith.kernels.emit import boxes as bx
from einsmith.kernels.emit import loops as bl
from einsmith.kernels.emit.address import Memory, address
from einsmith.kernels.emit.boxes import Box
from einsmith.kernels.emit.loops import Ramps
from einsmith.kernels.emit.vector import Lanes, VectorEmitter
from einsmith.kernels.pattern import Cost, Launch, Lowered, Pattern
from einsmith.kernels.reduction import cost as plan
from einsmith.kernels.reduction.axes import (
    ReductionConfig,
    boxes_of,
    lanes_axis,
    part_count,
    split_axis,
    turned_reads,
)
from einsmith.kernels.reduction.cost import SPLITTABLE
from einsmith.kernels.reduction.sweep import Sweep
from einsmith.kernels.reduction.windows_of_two import pairs_of
from einsmith.loops.nest import Builder, Value, elem_of
from einsmith.plan.kernel import Buffer, Kernel, row_major
from einsmith.target.facts import Target

__all__ = ["Reduction", "ReductionConfig"]


def lower_box(b: Builder, kernel: Kernel, box: Box, config: ReductionConfig, first: int, alone: bool = False,
              places: Sequence[tuple[int, Memory]] = ()) -> int:
    """Emits one box for the tasks from `first` on; returns how many. `alone`: it is the only one; `places`: memory of
    slots beside the kernel's buffers."""
    axis = lanes_axis(box, config)
    parts = part_count(box, config)
    pairs = pairs_of(box, axis, config) if parts == 1 else None
    whole = pairs or box
    em = bl.emitter(b, kernel, whole.extents + whole.reduce, config.lanes if axis is not None else 0)
    for slot, memory in places:
        em.place(slot, memory)
    cut = split_axis(box, axis) if parts > 1 else None
    sweep = Sweep(em, box, config, axis, cut, turned_reads(box, axis, config) if parts == 1 else (), pairs)
    column = axis is not None and axis < box.rank
    row = sweep.tile
    others = [a for a in range(box.rank) if not (column and a == axis) and a != row]
    sizes = [box.extents[a] for a in others]
    count = prod(sizes)
    turns = 1 if row is None else -(-box.extents[row] // config.rows)
    runs, tiles = 1, 1
    if config.tasks > 1 and count >= config.tasks:
        runs = bl.row_tasks(sizes, config.tasks)
    elif config.tasks > 1:
        runs = count
        if row is not None:
            tiles = bl.tile_count(turns, -(-config.tasks // count), 1)
        elif column and axis is not None:
            tiles = bl.tile_count(box.extents[axis], -(-config.tasks // count), config.lanes * config.unroll)
    total = runs * tiles * parts
    with bl.task_range(b, first, total, alone) as task:
        tile: Value | None = None
        if parts > 1:
            sweep.part, sweep.parts = b.op("mod", task, b.const(parts)), parts
            task = b.op("floordiv", task, b.const(parts))
            past = b.mul(sweep.part, b.const(box.points))
            for slot, memory in places:
                em.place(slot, Memory(b.address(memory.pointer, past, memory.elem), memory.buffer))
        if tiles > 1:
            tile = b.op("mod", task, b.const(tiles))
            task = b.op("floordiv", task, b.const(tiles))
        with bl.rows(em, others, sizes, task, runs):
            if row is not None and axis is not None:
                _tiled(em, box, config, sweep, (axis, row), turns, tile, tiles)
            elif column:
                assert axis is not None
                bl.vector_tiles(em, box.extents[axis], config.unroll, sweep.column, tile, tiles)
            elif axis is not None:
                sweep.row()
            else:
                sweep.column([(Lanes(0, ()), None)])
    return total


def _tiled(em: VectorEmitter, box: Box, config: ReductionConfig, sweep: Sweep, axes: tuple[int, int], turns: int,
           tile: Value | None, tiles: int) -> None:
    """Register tiles, the rows inside: what the lanes read in one of them is still in the cache for the next rows."""
    b, (axis, row) = em.b, axes
    lo: Value | int = 0
    hi: Value | int = turns
    if tile is not None:
        part = b.const(bl.tile_size(turns, tiles, 1))
        lo = b.mul(tile, part)
        hi = b.op("min", b.add(lo, part), b.const(turns))

    def emit(ramps: Ramps) -> None:
        with b.loop(lo, hi) as loop:
            bl.blocks(b, loop.var, box.extents[row], config.rows, lambda base, rows: sweep.column(ramps, base, rows))

    bl.vector_tiles(em, box.extents[axis], config.unroll, emit)


def _partial(kernel: Kernel, box: Box, parts: int) -> tuple[Box, Box, int, list[tuple[int, int, dt.DType]]]:
    """The box of the first launch (into the workspace), that of the second, the workspace's bytes, and its sections
    (slot, byte offset, type), each [parts, outputs]."""
    base = max(box.results) + 1
    sections, at = [], 0
    for m, body in enumerate(box.bodies):
        sections.append((base + m, at, body.dtype))
        at += -(-parts * box.points * body.dtype.itemsize // 64) * 64
    flat = address([Axis(a) for a in range(box.rank)], row_major(box.extents))
    stores = tuple((slot, s[0], flat) for slot, s in zip(box.results[: box.members], sections, strict=True))
    one = replace(box, stages=(), results=box.results[: box.members], stores=stores)
    read = (flat + Linear(0, {Axis(box.rank): box.points})).expr()
    two = replace(box, reduce=(parts,), bodies=tuple(Read(slot, (read,), d) for slot, _, d in sections))
    return one, two, at, sections


def _workspace(b: Builder, sections, size: int) -> list[tuple[int, Memory]]:
    """Where the sections lie in the workspace of a launch."""
    out = []
    for slot, at, dtype in sections:
        ptr = b.address(b.buffers[-1], b.const(at // dtype.itemsize), elem_of(dtype))
        out.append((slot, Memory(ptr, Buffer(dtype, (size,)))))
    return out


def _second(box: Box, lanes: int) -> ReductionConfig:
    """How the partial results are merged: one task, along whichever is contiguous."""
    column = box.rank > 0 and box.extents[-1] >= 4
    return ReductionConfig("column" if column else "row", lanes, 2 if column else 1, 1, 1)


class Reduction(Pattern):
    """A root whose pieces are Reduces (some may be plain), and its epilogue."""

    name = "reduction"

    def match(self, kernel: Kernel) -> bool:
        parts = kernel.root.parts
        if not all(isinstance(p, Piece) for p in parts):
            return False
        return any(isinstance(p.body, Reduce) for p in parts)

    def bound(self, kernel: Kernel, target: Target) -> float:
        return plan.bound(kernel, target)

    def best(self, kernel: Kernel, target: Target, limit: float = float("inf")) -> ReductionConfig | None:
        return plan.best(kernel, target, limit)

    def configs(self, kernel: Kernel, target: Target) -> list[ReductionConfig]:
        return plan.configs(kernel, target)

    def cost(self, kernel: Kernel, config: ReductionConfig, target: Target) -> Cost:
        return plan.cost(kernel, config, target)

    def lower(self, kernel: Kernel, config: ReductionConfig, target: Target) -> Lowered:
        found = boxes_of(kernel)
        if len(found) == 1 and found[0].combiner in SPLITTABLE and config.splits > 1:
            parts = part_count(found[0], config)
            if parts > 1:
                return self._split(kernel, found[0], config, parts)
        b = bl.start(bx.function_name(self.name, kernel, config), kernel)

        def emit(box: Box, tasks: int, first: int, alone: bool) -> int:
            if box.combiner is None:
                plain = PointwiseConfig(config.lanes, config.unroll, tasks)
                return pointwise.lower_box(b, kernel, box, plain, first, alone)
            return lower_box(b, kernel, box, config._replace(tasks=tasks, splits=1), first, alone)

        count = bl.deal(found, config.tasks, emit)
        return Lowered([Launch(b.finish(), count)] if count else [])

    def _split(self, kernel: Kernel, box: Box, config: ReductionConfig, parts: int) -> Lowered:
        one, two, size, sections = _partial(kernel, box, parts)
        b = bl.start(bx.function_name(self.name, kernel, config), kernel)
        places = _workspace(b, sections, parts * box.points)
        tasks = lower_box(b, kernel, one, config, 0, True, places)
        c = bl.start(bx.function_name(self.name, kernel, config, 1), kernel)
        places = _workspace(c, sections, parts * box.points)
        lower_box(c, kernel, two, _second(two, config.lanes), 0, True, places)
        return Lowered([Launch(b.finish(), tasks), Launch(c.finish(), 1)], size)
