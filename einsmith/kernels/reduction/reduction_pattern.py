"""Lower kernels whose root is a Reduce of any combiner: row, column, window and whole reductions, with an epilogue.

row: lanes along a reduction axis, several accumulators, merged in a fixed tree at the end of each row.
column: lanes along an output axis, every lane its own result (pooling windows are unrolled).
Few outputs: the reduction is split into parts, whose partial results a second launch merges in order; the configuration
sets the number of parts. Any Reduce can be lowered here, sums of products too: this is the plain form of a contraction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from einsmith.codegen.loopnest.address import BufferMemory, address
from einsmith.codegen.loopnest.nest import Builder
from einsmith.codegen.ssa import SSAValue, elem_of
from einsmith.cost.facts import LINE, Target
from einsmith.ir.analysis.linear import LinearForm
from einsmith.ir.functions import SELECTIONS
from einsmith.ir.nodes import Axis, Piece, Read, Reduce
from einsmith.kernels import pointwise
from einsmith.kernels.emit import loops
from einsmith.kernels.emit.boxes import Box, function_name
from einsmith.kernels.emit.loops import Ramps
from einsmith.kernels.pattern import Cost, Launch, Lowered, Pattern
from einsmith.kernels.pointwise import PointwiseConfig
from einsmith.kernels.reduction import reduction_cost
from einsmith.kernels.reduction.axes import ReductionConfig, boxes_of, schedule
from einsmith.kernels.reduction.sweep import Sweep
from einsmith.schedule.footprint import touched_bytes
from einsmith.schedule.kernel import Beyond, Kernel, KernelBuffer, row_major

MAX_PRICED_CONFIGS = 8
"""Most configurations priced on all boxes of a kernel of several boxes: the best ones for its largest box."""


def lower_box(
    b: Builder,
    kernel: Kernel,
    box: Box,
    config: ReductionConfig,
    first: int,
    alone: bool = False,
    places: Sequence[tuple[int, BufferMemory]] = (),
) -> int:
    """Emit one box for the tasks from `first` on, and return how many tasks it takes.

    alone: no other box shares the launch. places: memory of further slots (slot, memory), such as the workspace."""
    s = schedule(box, config)
    whole = s.paired_box or box
    em = loops.make_emitter(b, kernel, whole.extents + whole.reduce, config.lanes if s.axis is not None else 0)
    if not places:
        loops.limit_points(em, kernel, box)
    for slot, memory in places:
        em.place(slot, memory)
    sweep = Sweep(em, s)
    emit: Callable[[Ramps, SSAValue | int, int], None] = sweep.emit_row if s.along_row else sweep.emit_column

    def begin(part: SSAValue) -> None:
        sweep.part = part
        offset = b.mul(part, box.points)
        for slot, memory in places:
            em.place(slot, BufferMemory(b.address(memory.pointer, offset, memory.elem), memory.buffer))

    loop = loops.BoxSweep(em, box, s.column, config.unroll, emit, s.tile, config.rows, inside=True)
    return loop.emit_tasks(config.tasks, first, alone, s.parts, begin)


def _split_reduction(box: Box, parts: int) -> tuple[Box, Box, list[tuple[int, int, KernelBuffer]], int]:
    """Split a reduction into `parts`; return the boxes of the two launches and the layout of the workspace.

    Returns:
        (first, second, sections, size): `first` stores partial results to the workspace; `second` merges them and runs
        the stages; `sections` of the workspace as (slot, byte offset, buffer of [parts * outputs]); `size` in bytes.
    """
    sections, size = [], 0
    for slot, body in enumerate(box.bodies, max(box.results) + 1):
        sections.append((slot, size, KernelBuffer(body.dtype, (parts * box.points,))))
        size += -(-parts * box.points * body.dtype.itemsize // 64) * 64
    flat = address([Axis(a) for a in range(box.rank)], row_major(box.extents))
    results = box.results[: box.members]
    stores = tuple((slot, s[0], flat) for slot, s in zip(results, sections, strict=True))
    read = (flat + LinearForm(0, {Axis(box.rank): box.points})).expr()
    merged = tuple(Read(slot, (read,), x.dtype) for slot, _, x in sections)
    partial_box = replace(box, stages=(), results=results, stores=stores)
    return partial_box, replace(box, reduce=(parts,), bodies=merged), sections, size


class Reduction(Pattern):
    """The pattern of kernels whose root has a piece that is a Reduce (other pieces may be pointwise), with epilogue."""

    name = "reduction"

    def match(self, kernel: Kernel) -> bool:
        parts = kernel.root.parts
        combiners = {p.body.combiner for p in parts if isinstance(p.body, Reduce)}
        return all(isinstance(p, Piece) for p in parts) and bool(combiners) and combiners.isdisjoint(SELECTIONS)

    def bound(self, kernel: Kernel, target: Target) -> float:
        """Return the seconds in which all cores move the kernel's bytes."""
        return target.seconds_for_bytes(*touched_bytes(kernel, LINE), target.cores)

    def best(self, kernel: Kernel, target: Target, limit: float = float("inf")) -> ReductionConfig | None:
        box_list, candidates = boxes_of(kernel), reduction_cost.configs(kernel, target)

        def rank(boxes: Sequence[Box], c: ReductionConfig) -> float:
            return reduction_cost.cost(kernel, boxes, c, target).rank

        if len(box_list) > 1:
            largest = max(box_list, key=lambda x: x.points * x.reduced)
            candidates = sorted(candidates, key=partial(rank, (largest,)))[:MAX_PRICED_CONFIGS]
        ranks = [(rank(box_list, c), i) for i, c in enumerate(candidates)]
        least, i = min(ranks, default=(limit, 0))
        return candidates[i] if least < limit else None

    def configs(self, kernel: Kernel, target: Target) -> list[ReductionConfig]:
        return reduction_cost.configs(kernel, target)

    def cost(self, kernel: Kernel, config: ReductionConfig, target: Target) -> Cost:
        return reduction_cost.cost(kernel, boxes_of(kernel), config, target)

    def lower(self, kernel: Kernel, config: ReductionConfig, target: Target) -> Lowered:
        box_list = boxes_of(kernel)
        if (
            len(box_list) == 1
            and box_list[0].combiner in reduction_cost.SPLITTABLE
            and schedule(box_list[0], config).parts > 1
        ):
            return self._lower_in_parts(kernel, box_list[0], config)
        b = Builder(function_name(self.name, kernel, config), len(kernel.buffers) + 1)

        plain = PointwiseConfig(config.lanes, config.unroll, config.tasks)

        def beyond_limit(box: Box) -> Beyond:
            if box.combiner is None:
                return pointwise.beyond_limit(box, plain)
            s = schedule(box, config._replace(splits=1))
            return Beyond.TOUCHED if 0 in (s.column, s.tile) else Beyond.UNTOUCHED

        def emit(box: Box, tasks: int, first: int, alone: bool) -> int:
            if box.combiner is None:
                return pointwise.lower_box(b, kernel, box, plain._replace(tasks=tasks), first, alone)
            return lower_box(b, kernel, box, config._replace(tasks=tasks, splits=1), first, alone)

        count = loops.distribute_tasks(box_list, config.tasks, emit, loops.count_blocks(kernel, target))
        beyond = min(map(beyond_limit, box_list), default=Beyond.UNTOUCHED)
        return Lowered([Launch(b.finish(), count)] if count else [], beyond=beyond)

    def _lower_in_parts(self, kernel: Kernel, box: Box, config: ReductionConfig) -> Lowered:
        """Lower a split reduction: a launch that computes the parts, and a launch of one task that merges them."""
        one, two, sections, size = _split_reduction(box, schedule(box, config).parts)
        column = box.rank > 0 and box.extents[-1] >= 4
        merging = ReductionConfig("column" if column else "row", config.lanes, 2 if column else 1, 1, 1)
        out = Lowered(workspace=size)
        for launch, (part, c) in enumerate(((one, config), (two, merging))):
            b = Builder(function_name(self.name, kernel, config, launch), len(kernel.buffers) + 1)
            places = []
            for slot, at, x in sections:
                pointer = b.address(b.buffers[-1], at // x.dtype.itemsize, elem_of(x.dtype))
                places.append((slot, BufferMemory(pointer, x)))
            tasks = lower_box(b, kernel, part, c, 0, True, places)
            out.launches.append(Launch(b.finish(), tasks))
        return out
