"""Lower kernels as their formula is written: loops over the outputs and the terms in order, without vectors or threads.

Speed-ups ("times the original") are relative to this baseline. The cost model never chooses it; overrides do.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import gcd
from typing import NamedTuple

from einsmith.codegen.loopnest.nest import Builder
from einsmith.codegen.loopnest.walk import emit_carrying_loop
from einsmith.cost.facts import LINE, Target
from einsmith.cost.overheads import INSTRUCTIONS
from einsmith.cost.roofline import distribute
from einsmith.ir.analysis.linear import LinearForm
from einsmith.ir.functions import SELECTIONS
from einsmith.ir.nodes import Apply, Axis, Piece, Reduce
from einsmith.kernels.emit import boxes, loops
from einsmith.kernels.emit.boxes import Box
from einsmith.kernels.emit.combine import Accumulators, Combine
from einsmith.kernels.emit.loops import Ramps
from einsmith.kernels.emit.vector import VectorEmitter
from einsmith.kernels.pattern import Cost, Launch, Lowered, Pattern
from einsmith.schedule.footprint import touched_bytes
from einsmith.schedule.kernel import Beyond, Kernel, MemberKernel, row_major

PAGE = 4096
"""Bytes after which addresses meet in the same sets of L1."""


class ScalarConfig(NamedTuple):
    """A configuration of the scalar pattern. tasks: parts of the outputs that may run at once."""

    tasks: int = 1


class Scalar(Pattern):
    """The pattern of kernels of pieces, pointwise or reductions, with their epilogue, in scalar code."""

    name = "scalar"

    def match(self, kernel: Kernel) -> bool:
        if isinstance(kernel, MemberKernel) or kernel.sums or not all(isinstance(p, Piece) for p in kernel.root.parts):
            return False
        return not any(isinstance(p.body, Reduce) and p.body.combiner in SELECTIONS for p in kernel.root.parts)

    def configs(self, kernel: Kernel, target: Target) -> Sequence[ScalarConfig]:
        return [ScalarConfig()]

    def cost(self, kernel: Kernel, config: ScalarConfig, target: Target) -> Cost:
        """Return the cost: scalar instructions, of which the additions to one sum wait for each other, and bytes."""
        work = [_estimate_work(x, target) for x in boxes.boxes(kernel)]
        moved, footprint = touched_bytes(kernel, LINE)
        memory = target.seconds_for_bytes(moved, footprint, config.tasks)
        arithmetic, special = sum(a for a, _ in work), sum(s for _, s in work)
        return distribute(arithmetic, memory, special, config.tasks, target)

    def lower(self, kernel: Kernel, config: ScalarConfig, target: Target) -> Lowered:
        b = Builder(boxes.function_name(self.name, kernel, config), len(kernel.buffers) + 1)

        def emit(box: Box, tasks: int, first: int, alone: bool) -> int:
            em = loops.make_emitter(b, kernel, box.extents + box.reduce, 0)
            loops.limit_points(em, kernel, box)

            def emit_point(_: Ramps, *__) -> None:
                loops.store_point(em, box, loops.evaluate_point(em, box, _emit_root(em, box)))

            return loops.BoxSweep(em, box, None, 1, emit_point).emit_tasks(tasks, first, alone)

        count = loops.distribute_tasks(boxes.boxes(kernel), config.tasks, emit)
        return Lowered([Launch(b.finish(), count)] if count else [], beyond=Beyond.UNTOUCHED)


def _emit_root(em: VectorEmitter, box: Box) -> Accumulators:
    """Emit the values of the root's members at a point: those of its bodies, or of loops over its terms."""
    if box.combiner is None:
        return [em.emit(e) for e in box.bodies]
    combine = Combine(em, box.combiner, [x.dtype for x in box.bodies])
    axes = range(box.rank, box.rank + len(box.reduce))
    number = LinearForm(0, dict(zip(map(Axis, axes), row_major(box.reduce), strict=True))).expr()

    def emit_terms(axis: int, states: list[Accumulators]) -> list[Accumulators]:
        if axis == axes.stop:
            return [combine.step(states[0], box.bodies, number)]

        def emit_turn(states: list[Accumulators], at: object) -> list[Accumulators]:
            em.bind(axis, at)  # type: ignore[arg-type]
            return emit_terms(axis + 1, states)

        bounds = em.b.index(0), em.b.index(box.reduce[axis - box.rank])
        return emit_carrying_loop(em.b, bounds, 1, states, emit_turn)

    return emit_terms(axes.start, [combine.initial(0, [0])])[0]


@lru_cache(maxsize=4096)
def _estimate_work(box: Box, target: Target) -> tuple[float, float]:
    """Return (seconds of arithmetic, seconds of special functions) of a box.

    Loops are free: their instructions issue in parallel with the others. Cache lines that the innermost loop crosses
    are fetched from L3 in each iteration of the loop around it, unless all lines of one iteration fit in L1."""
    rate = boxes.vectors_per_second(target)
    count, special = boxes.operations(box.bodies, target)
    terms, points = float(box.points * box.reduced), float(box.points)
    inner, outer = count + len(box.flats), 0.0
    if box.combiner is not None:
        has_product = any(isinstance(e, Apply) and e.fn == "mul" for e in box.bodies)
        usual = INSTRUCTIONS.sum_latency[has_product]
        inner = max(inner, INSTRUCTIONS.step_latency.get(box.combiner, usual))
    after, special_after = boxes.operations(box.stages, target)
    outer = after + len(box.epilogue_flats)
    seconds = (terms * inner + points * outer) / rate
    extents = (*box.extents, *box.reduce)
    for flat, item in box.sized_flats if extents else ():
        stride = item * abs(flat.coefficient(Axis(len(extents) - 1)))
        if stride >= LINE and extents[-1] * gcd(stride, PAGE) > target.l1:
            seconds += terms * LINE / target.bytes_per_second[2]
    return seconds, (terms * special + points * special_after) * target.lanes()
