"""Predict the cost of a piece in the direct form: cycles of its boxes, and waits for operands from beyond L2."""

from __future__ import annotations

from math import ceil, prod
from typing import Any

from einsmith.cost.facts import LINE
from einsmith.kernels.contraction import epilogue
from einsmith.kernels.contraction.config import Direct
from einsmith.kernels.contraction.direct_boxes import (
    add_halo_copies,
    count_elements_of,
    inner_axes,
    strip_bytes_of,
    sum_elements,
    tiles_along,
)
from einsmith.kernels.contraction.direct_loads import BoxLoads, loads_of_strips, loops_over_k, moving_axes
from einsmith.kernels.emit.access import OperandAccess
from einsmith.kernels.pattern import Cost
from einsmith.schedule.contraction_problem import Problem
from einsmith.schedule.footprint import bytes_by_buffer
from einsmith.schedule.kernel import Kernel


class DirectCost:
    """The cost of a piece in the direct form: `price` is their sum, the others are its terms.

    original: the problem without halo copies
    p: the problem that reads the configuration's halo copies; halos: (operand, halo copy)
    samplers: the scalar accesses of its operands
    box: (axis, points) of the unrolled box
    inner: axes that move at a point of the outer axes
    """

    def __init__(self, kernel: Kernel, problem: Problem, d: Direct, target: Any):
        halo_problem = add_halo_copies(problem, d)
        assert halo_problem is not None
        self.kernel, self.original, self.d, self.target = kernel, problem, d, target
        self.p, self.halos, _ = halo_problem
        p = self.p
        self.item, self.lanes, self.rank = p.dtype.itemsize, target.lanes(p.dtype.itemsize), len(p.piece.extents)
        self.box, self.inner = [*d.tile, *d.unroll], {*range(len(p.extents))} - {*d.outer, *d.k_outer}
        memories = halo_problem.memories(kernel)
        self.samplers = [OperandAccess(None, [o.expr], o.guards, p.extents, memories) for o in p.operands]

    def price(self) -> Cost:
        """Return the cost without launches."""
        p, d, target = self.p, self.d, self.target
        points = p.count(d.outer) * d.parts * d.split
        tasks = min(target.cores, points)
        imbalance = ceil(points / tasks) * tasks / points
        size = sum(bytes_by_buffer(self.kernel))
        arithmetic = self.cycles() * target.cycle_seconds / tasks * imbalance
        memory = target.seconds_for_bytes(size, size, tasks)
        crowding = target.overheads.crowding(self.count_far_rows()) if size > target.l2 * tasks else 0.0
        waited = self.strip_bytes() + self.refetched_bytes()
        return Cost(arithmetic, memory, memory * crowding + target.seconds_for_bytes(waited, size, tasks))

    def count_far_rows(self) -> int:
        """Return the rows of memory, a line or more apart, of which a box reads a few vectors each.

        Only boxes with lanes along K, or with all of K, have such rows; others return 0.
        """
        p, d = self.p, self.d
        if d.vector < self.rank and any(dict(self.box).get(a, 1) < p.extents[a] for a in p.k):
            return 0
        near = LINE // self.item
        out = 0
        for s in self.samplers:
            strides = [s.forms[i].coef for i in s.reads.values()]
            far = [x for x in self.box if any(abs(c.get(x[0], 0)) >= near for c in strides)]
            out += BoxLoads(s, d.vector, near, self.target).count(far)
        return out

    def strip_bytes(self) -> float:
        """Return the bytes of operands beyond L2 that are waited for because they are read in narrow strips."""
        far = [s for which, s in enumerate(self.samplers) if which not in dict(self.halos)]
        return strip_bytes_of(self.p, far, self.d, self.target)

    def refetched_bytes(self) -> float:
        """Return the bytes of operands beyond L2 that the tiles along other axes fetch once more: images, for each tile
        of filters."""
        p, d, target, out = self.p, self.d, self.target, 0.0
        axes = inner_axes(p, d)
        for o, s in zip(p.operands, self.samplers, strict=True):
            first = next((n for n, a in enumerate(axes) if a in o.axes), len(axes))
            passes = prod(tiles_along(p, d, a) for a in axes[:first])
            if (
                d.vector in o.axes
                and count_elements_of(p, o, self.inner) * self.item > target.l2 * target.overheads.held
            ):
                out += (passes - 1) * sum(s.memories[read.slot].buffer.nbytes for read in s.reads)
        return out

    def cycles(self) -> float:
        """Return the cycles of the problem on one core."""
        p, d, box, lanes, target = self.p, self.d, self.box, self.lanes, self.target
        w, in_k = target.overheads, d.vector >= self.rank
        sums, points = d.vectors * prod(n for _, n in d.tile), prod(n for _, n in d.unroll)
        row_vectors = -(-p.count((*d.fused, d.vector)) // lanes)
        moving = moving_axes(p, d.vector, d.vectors, row_vectors, box)
        loops = loops_over_k(p, d.vector, box, (*d.k_outer, *d.fused))
        load, body = self._load_cycles(), 2.0
        for part, loads_there in loads_of_strips(p, self.samplers, d, lanes, target):
            masks = sum(x.masks(box, d.vector, d.vectors, moving, loops) for x in loads_there)
            body += part * max(sums * points / target.multiplies, load + w.mask * masks, w.latency * points)
        others = (a for a in range(len(p.extents)) if a not in (*d.fused, d.vector))
        rows = prod(-(-p.extents[a] // dict(box).get(a, 1)) for a in others)
        iterations = rows * -(-row_vectors // d.vectors)
        total = iterations * body
        if loops:
            total += iterations / prod(loops.values()) * w.tile / prod(p.extents[a] for a in d.k_outer)
        outputs = prod(p.piece.extents)
        sum_vectors = outputs if in_k else outputs / p.extents[d.vector] * row_vectors  # vectors of sums
        if in_k:
            total += sum_vectors * (w.lane_sum * d.split)
        else:
            total += sum_vectors * (epilogue.cycles(self.kernel, self.original, (d.vector,), lanes, target) + 1.5)
        if d.k_outer:
            near = sum_elements(p, d, lanes) * self.item <= target.l1 * 0.75
            total += sum_vectors * p.extents[d.k_outer[0]] * (2 if near else w.far_sum)
        if d.split > 1:
            total += outputs * d.split * w.partial_sum
        for _, halo in self.halos:
            times = d.parts * prod(p.extents[a] for a in (*d.outer, *d.k_outer))
            total += times * (halo.buffer.size / lanes * w.halo + w.tile)
        return total

    def _load_cycles(self) -> float:
        """Return the cycles of the loads of a box."""
        p, d, target = self.p, self.d, self.target
        l1, vector = target.l1, self.lanes * self.item
        # Bytes of either operand at a point of the outer axes: those of its halo copy, or those read of it.
        sizes = [count_elements_of(p, o, self.inner) * self.item for o in p.operands]
        halo_bytes = {i: x.buffer.size * self.item for i, x in self.halos}
        sizes = [halo_bytes.get(i, n) for i, n in enumerate(sizes)]
        out = 0.0
        for size, s in zip(sizes, self.samplers, strict=True):
            x = BoxLoads(s, d.vector, self.lanes, target)
            weight = x.weight
            if size > l1 * 0.75:
                near = target.seconds_for_bytes(vector * max(1, x.vectors), l1 * target.cores + 1, 1)
                weight = max(weight, near / target.cycle_seconds)
            if d.vector >= self.rank and size > target.l2 and x.moves:
                all_bytes = sum(sizes) * target.cores  # operands that the cores read concurrently
                weight = max(weight, target.seconds_for_bytes(vector, all_bytes, 1) / target.cycle_seconds)
            out += x.count(self.box) * (d.vectors if x.moves else 1) * weight * max(1, len(s.reads))
        return out
