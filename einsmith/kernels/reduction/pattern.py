"""Kernels whose root is a Reduce of any combiner: row, column, window and whole reductions, with an epilogue.

row: lanes along a reduction axis, several accumulators, merged in a fixed tree at the end of each row.
column: lanes along an output axis, every lane its own result (pooling windows are unrolled).
Few outputs: the reduction is cut into parts, whose partial results a second launch merges in order; the number of parts
is configuration. Any Reduce can be lowered here, sums of products too: this is the plain form of a contraction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from einsmith import dtypes as dt
from einsmith.expr.analysis.linear import Linear
from einsmith.expr.nodes import Axis, Piece, Read, Reduce
from einsmith.kernels import elementwise as pointwise
from einsmith.kernels.elementwise import PointwiseConfig
from einsmith.kernels.emit import boxes as bx
from einsmith.kernels.emit import loops as bl
from einsmith.kernels.emit.boxes import Box
from einsmith.kernels.emit.loops import Ramps
from einsmith.kernels.footprint import touched_bytes
from einsmith.kernels.pattern import Cost, Launch, Lowered, Pattern
from einsmith.kernels.reduction.axes import (
    ReductionConfig,
    boxes_of,
    lanes_axis,
    part_count,
    split_axis,
    turned_reads,
)
from einsmith.kernels.reduction.cost import SPLITTABLE, Boxes, configs
from einsmith.kernels.reduction.sweep import Sweep
from einsmith.kernels.reduction.windows_of_two import pairs_of
from einsmith.loops.address import Memory, address
from einsmith.loops.nest import Builder, Value, elem_of
from einsmith.plan.kernel import Buffer, Kernel, row_major
from einsmith.target.facts import Target

SHORT = 8
"""Configurations that are looked at for all boxes of a kernel of several: the best for the largest box."""


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
    emit: Callable[[Ramps, Value | int, int], None] = sweep.column
    if axis is not None and axis >= box.rank:
        axis, emit = None, sweep.row

    def begin(part: Value) -> None:
        sweep.part, sweep.parts = part, parts
        past = b.mul(part, box.points)
        for slot, memory in places:
            em.place(slot, Memory(b.address(memory.pointer, past, memory.elem), memory.buffer))

    tile = None if sweep.tile is None else (sweep.tile, config.rows)
    return bl.sweep_box(em, box, axis, config.unroll, config.tasks, emit, first, alone, tile, True, parts, begin)


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
        ptr = b.address(b.buffers[-1], at // dtype.itemsize, elem_of(dtype))
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
        """The bytes, moved by all cores."""
        return target.seconds_for_bytes(*touched_bytes(kernel), target.cores)

    def best(self, kernel: Kernel, target: Target, limit: float = float("inf")) -> ReductionConfig | None:
        found, every = boxes_of(kernel), configs(kernel, target)
        if len(found) > 1:
            main = Boxes(kernel, target, (max(found, key=lambda x: x.points * x.reduced),))
            every = sorted(every, key=lambda c: main.cost(c).rank)[:SHORT]
        boxes = Boxes(kernel, target, found)
        ranks = [(boxes.cost(c).rank, i) for i, c in enumerate(every)]
        rank, i = min(ranks, default=(limit, 0))
        return every[i] if rank < limit else None

    def configs(self, kernel: Kernel, target: Target) -> list[ReductionConfig]:
        return configs(kernel, target)

    def cost(self, kernel: Kernel, config: ReductionConfig, target: Target) -> Cost:
        return Boxes(kernel, target, boxes_of(kernel)).cost(config)

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
