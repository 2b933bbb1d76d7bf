"""Emit the loops of one box of a reduction: accumulate the outputs of a task, then run the epilogue on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice, product

from einsmith.codegen.loopnest.lanes import merge_in_tree
from einsmith.codegen.loopnest.walk import emit_carrying_loop, emit_groups, part_bounds
from einsmith.codegen.ssa import SSAValue
from einsmith.ir.analysis.linear import LinearForm
from einsmith.ir.nodes import Axis
from einsmith.kernels.emit import loops
from einsmith.kernels.emit.combine import Accumulators, Combine
from einsmith.kernels.emit.loops import Ramps
from einsmith.kernels.emit.vector import LanePattern, VectorEmitter
from einsmith.kernels.reduction.axes import ReductionSchedule, reduced_axes
from einsmith.kernels.reduction.windows_of_two import list_pair_vectors, merge_pairs
from einsmith.schedule.kernel import row_major

Step = Callable[[list[Accumulators]], list[Accumulators]]
"""A function from accumulator states to the states after some more points."""


class Sweep:
    """The emitter of one box of a reduction. part: number of the task's part of the reduction; None: not split."""

    def __init__(self, em: VectorEmitter, s: ReductionSchedule):
        box = s.box
        assert box.combiner is not None
        self.em, self.b, self.s, self.box = em, em.b, s, box
        self.combine = Combine(em, box.combiner, [x.dtype for x in box.bodies])
        self.part: SSAValue | None = None
        self.number = LinearForm(0, dict(zip(map(Axis, reduced_axes(box)), row_major(box.reduce), strict=True))).expr()

    def extent(self, axis: int) -> int:
        """Return the extent of a reduction axis."""
        return self.box.reduce[axis - self.box.rank]

    def emit_nest(self, states: list[Accumulators], inner: Step) -> list[Accumulators]:
        """Emit `inner(states) -> states` at every point of the reduction axes other than the vectorised one."""
        s = self.s
        vectorised = s.last if s.transposed_reads or s.paired_box else s.axis
        loops = [a for a in reduced_axes(self.box) if a != vectorised]
        unrolled = 0 if s.transposed_reads else s.count_unrolled(loops, s.split_axis)
        split = len(loops) - unrolled
        return self._emit_loops(loops[:split], loops[split:], states, inner)

    def _emit_loops(
        self, outer: Sequence[int], points: Sequence[int], states: list[Accumulators], inner: Step
    ) -> list[Accumulators]:
        if outer:
            part = self.part if outer[0] == self.s.split_axis else None
            ends = part_bounds(self.b, self.extent(outer[0]), part, self.s.parts)
            if part is None:
                ends = self._guarded_range(outer[0]) or ends

            def emit_body(states: list[Accumulators], at: SSAValue) -> list[Accumulators]:
                self.em.bind(outer[0], at)
                return self._emit_loops(outer[1:], points, states, inner)

            return emit_carrying_loop(self.b, ends, 1, states, emit_body)
        for at in product(*(range(self.extent(a)) for a in points)):
            for a, i in zip(points, at, strict=True):
                self.em.bind(a, i)
            states = inner(states)
        return states

    def _guarded_range(self, axis: int) -> tuple[SSAValue, SSAValue] | None:
        """Return the range of a reduction axis outside of which its guards fail; None: all of the axis."""
        bounds = self.s.find_bounds(axis)
        return bounds.emit_range(self.em, 0, self.extent(axis)) if any(bounds) else None

    def emit_column(self, ramps: Ramps, base: SSAValue | int = 0, rows: int = 1) -> None:
        """Emit outputs in column mode, each lane an output: the vectors of `ramps` at `rows` points of the tile axis.

        base: first point of the tile axis."""
        em, s = self.em, self.s
        lanes, bodies = em.lanes if s.axis is not None else 0, (s.paired_box or self.box).bodies
        vectors_by_ramp = [[x] for x in ramps] if s.paired_box is None else list_pair_vectors(em, ramps)
        places = list(product(range(rows), (x for of in vectors_by_ramp for x in of)))
        start = [self.combine.initial(lanes, [0] * max(1, lanes)) for _ in places]

        def bind_output(axis: int | None, row: int, at: LanePattern, active: int | None) -> None:
            if s.tile is not None:
                em.bind(s.tile, LanePattern(base, (row,) * lanes, s.config.rows))
            if axis is not None:
                em.bind(axis, at)
            em.mask = active

        def emit_point(states: list[Accumulators]) -> list[Accumulators]:
            out = []
            for (row, at), state in zip(places, states, strict=True):
                bind_output(s.axis if s.paired_box is None else s.last, row, *at)
                out.append(self.combine.step(state, bodies, self.number))
            return out

        def emit_tiles(states: list[Accumulators]) -> list[Accumulators]:
            return self._emit_transposed(ramps, states, places, partial(bind_output, s.axis))

        states = iter(self.emit_nest(start, emit_tiles if s.transposed_reads else emit_point))
        for row, (at, of) in product(range(rows), zip(ramps, vectors_by_ramp, strict=True)):
            own = list(islice(states, len(of)))
            bind_output(s.axis, row, *at)
            self.finish(own[0] if s.paired_box is None else merge_pairs(self.combine, own))

    def _emit_transposed(
        self,
        ramps: Ramps,
        states: list[Accumulators],
        places: Sequence[tuple[int, tuple[LanePattern, int | None]]],
        bind_output: Callable[[int, LanePattern, int | None], None],
    ) -> list[Accumulators]:
        """Emit the last reduction axis in pieces of as many points as there are lanes, with transposed reads.

        A square tile of each read is loaded with that axis along the lanes, and transposed in registers.

        places: (row, (lanes, active lanes)) of each state. stand: binds the output axes to (row, lanes, active)."""
        em, s, n = self.em, self.s, self.em.lanes
        axis = s.axis
        assert axis is not None

        def piece(states: list[Accumulators], base: SSAValue | int, count: int) -> list[Accumulators]:
            em.give({})
            columns = {
                id(at): {
                    x: loops.load_transposed(em, x, axis, at, active, s.last, base, count) for x in s.transposed_reads
                }
                for at, active in ramps
            }
            for c in range(count):
                out = []
                for (row, at), state in zip(places, states, strict=True):
                    em.bind(s.last, LanePattern(base, (c,) * n, n))
                    bind_output(row, *at)
                    em.give({read: transposed[c] for read, transposed in columns[id(at[0])].items()})
                    out.append(self.combine.step(state, self.box.bodies, self.number))
                states = out
            em.give({})
            return states

        return emit_groups(self.b, self.extent(s.last), n, states, piece)

    def emit_row(self, *_) -> None:
        """Emit one output in row mode: lanes along the reduction, `unroll` accumulators, merged in a tree."""
        em, box, axis, n = self.em, self.box, self.s.axis, self.em.lanes
        assert axis is not None
        count, group = self.s.vectors_at_once, n * self.s.vectors_at_once
        start = [self.combine.initial(n, range(u * n, u * n + n)) for u in range(count)]

        def points(states: list[Accumulators], base: SSAValue | int, limit: int) -> list[Accumulators]:
            out = list(states)
            for u, (at, active) in enumerate(loops.make_ramps(base, limit, n, group)):
                em.bind(axis, at)
                em.mask = active
                new = self.combine.step(states[u], box.bodies, self.number)
                out[u] = self.combine.keep(em.lane_mask(), new, states[u])
            em.mask = None
            return out

        def inner(states: list[Accumulators]) -> list[Accumulators]:
            part = self.part if axis == self.s.split_axis else None
            within = self._guarded_range(axis) if part is None else None
            return emit_groups(self.b, self.s.extent, group, states, points, part, self.s.parts, within)

        states = self.emit_nest(start, inner)
        em.mask = None
        self.finish(self.combine.across(merge_in_tree(states, self.combine.merge)))

    def finish(self, state: Accumulators) -> None:
        """Emit the epilogue and the stores of one output or a vector of outputs."""
        loops.store_point(self.em, self.box, loops.evaluate_point(self.em, self.box, state))
