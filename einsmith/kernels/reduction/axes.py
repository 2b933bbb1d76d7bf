"""Choose the axes of a reduction that are vectorised, tiled in registers and split into parts; price its accesses."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import inf, prod
from typing import NamedTuple

from einsmith.base.locks import cached_property
from einsmith.codegen.loopnest.walk import tile_count
from einsmith.cost.overheads import INSTRUCTIONS
from einsmith.ir.analysis.linear import LinearForm, linear
from einsmith.ir.functions import identity
from einsmith.ir.nodes import Read, cached_postorder
from einsmith.kernels.emit import boxes
from einsmith.kernels.emit.boxes import Box
from einsmith.kernels.emit.loops import Bounds, find_guard_bounds
from einsmith.kernels.pointwise import choose_vector_axis
from einsmith.kernels.reduction.skew import skew
from einsmith.kernels.reduction.windows_of_two import pair_box
from einsmith.schedule.kernel import Kernel

MAX_WINDOW = 16
"""Most points of the innermost reduction axes that are unrolled together."""
MAX_UNROLLED = 400
"""Most instructions emitted by unrolling reduction axes."""
MIN_BOUNDED_POINTS = 2 * MAX_WINDOW
"""Fewest points of a reduction axis, with the axes inside of it, whose loop is limited to the range that its guards
allow."""


class ReductionConfig(NamedTuple):
    """A configuration of a reduction.

    Args:
        mode: 'row': lanes along the reduction; 'column': lanes along an output axis.
        lanes: Lanes of a vector.
        unroll: Vectors (accumulators) at once.
        tasks: Parts of the outputs.
        splits: Parts of the reduction, merged by a second launch (1: not split).
        rows: Points of a second output axis at once, each with accumulators of its own (column mode: a register tile of
            rows x unroll vectors).
        turn: Load reads that are contiguous along the last reduction axis as square tiles and transpose them in
            registers (column mode).
    """

    mode: str
    lanes: int
    unroll: int
    tasks: int
    splits: int
    rows: int = 1
    turn: bool = False


@lru_cache(maxsize=512)
def boxes_of(kernel: Kernel) -> tuple[Box, ...]:
    """Return the kernel's boxes, with reduction variables changed where that makes accesses contiguous (`skew`)."""
    return tuple(skew(box) for box in boxes.boxes(kernel))


def reduced_axes(box: Box) -> range:
    """Return the numbers of a box's reduction axes, which follow the output axes."""
    return range(box.rank, box.rank + len(box.reduce))


@lru_cache(maxsize=1024)
def find_bounds(box: Box, axis: int) -> Bounds:
    """Return the bounds that the guards of all bodies put on a reduction axis; none where it and the axes inside of it
    have few points."""
    if prod(box.reduce[axis - box.rank :]) < MIN_BOUNDED_POINTS or box.combiner is None:
        return Bounds()
    extents, combiner = box.extents + box.reduce, box.combiner
    bounds_by_body = [find_guard_bounds(b, identity(combiner, b.dtype), axis, extents, box.sizes) for b in box.bodies]
    low, high = (
        tuple(x for x in every[0] if all(x in y for y in every)) for every in zip(*bounds_by_body, strict=True)
    )
    return Bounds(low, high)


@lru_cache(maxsize=8192)
def _access_costs(box: Box, axis: int, lanes: int) -> tuple[float, ...]:
    """Return the estimated instructions per vector of each of the body's accesses, with the lanes along `axis`."""
    return tuple(boxes.access_cost([f], axis, lanes, box.guarded) for f in box.flats)


def _estimate_walked(box: Box, axis: int, lanes: int) -> float:
    """Return the estimated fraction of the reduction that loops run over with the lanes along `axis`: what bounds them
    must not depend on it, and a range of its own begins and ends within vectors."""
    extents, out = box.extents + box.reduce, 1.0
    for a in reduced_axes(box):
        bounds = find_bounds(box, a)
        if any(bounds):
            fraction = bounds.without({axis}).estimate_fraction(a, extents)
            out *= min(1.0, fraction + lanes / extents[a]) if a == axis else fraction
    return out


@lru_cache(maxsize=4096)
def choose_row_axis(box: Box, lanes: int) -> int | None:
    """Return the reduction axis that is cheapest to vectorise; None: there is none.

    An arg-reduction is vectorised along its last axis only."""
    axes = reduced_axes(box)
    if box.combiner is not None and box.combiner.startswith("arg"):
        axes = axes[-1:]

    def cost(a: int) -> tuple[float, int]:
        each = _estimate_walked(box, a, lanes) * (sum(_access_costs(box, a, lanes)) + 1)
        return each / boxes.lane_utilization(box.reduce[a - box.rank], lanes), -a

    return min(axes, key=cost, default=None)


@lru_cache(maxsize=4096)
def choose_column_axis(box: Box, lanes: int) -> int | None:
    """Return the output axis that is cheapest to vectorise; None: there is none."""
    rest = box.epilogue_flats

    def cost(a: int) -> tuple[float, int]:
        each = max(1, box.reduced * _estimate_walked(box, a, lanes)) * (sum(_access_costs(box, a, lanes)) + 1)
        return (each + boxes.access_cost(rest, a, lanes)) / boxes.lane_utilization(box.extents[a], lanes), -a

    return min(range(box.rank), key=cost, default=None)


def count_unrolled(box: Box, axes: Sequence[int], split_axis: int | None = None, copies: int = 1) -> int:
    """Return how many of the innermost of these reduction axes are unrolled.

    split_axis: axis that is split into parts; it and the axes outside of it are not unrolled. copies: times that the
    body of each point is emitted."""
    limit = min(MAX_WINDOW, max(1, MAX_UNROLLED // (copies * max(1, len(cached_postorder(box.bodies))))))
    count, points = 0, 1
    for a in reversed(axes):
        points *= box.reduce[a - box.rank]
        if a == split_axis or points > limit:
            break
        count += 1
    return count


class ReductionSchedule:
    """The schedule of a box in a configuration: axes of lanes, register tile and parts.

    axis: axis of the lanes (None: scalar code). last: innermost reduction axis."""

    def __init__(self, box: Box, config: ReductionConfig):
        self.box, self.config, self.last = box, config, box.rank + len(box.reduce) - 1
        self.axis = self._choose_lane_axis()

    def _choose_lane_axis(self) -> int | None:
        box, c = self.box, self.config
        if box.combiner is None:
            return choose_vector_axis(box, c.lanes)
        row = choose_row_axis(box, c.lanes) if c.mode == "row" else None
        if row is not None:
            return row
        if c.rows == 1 or c.turn or not box.reduce:
            return choose_column_axis(box, c.lanes)
        return self._choose_tiled_lane_axis()

    def _choose_tiled_lane_axis(self) -> int | None:
        """Return the output axis to vectorise with a register tile; None: there is none."""
        box, lanes = self.box, self.config.lanes

        def cost(a: int) -> tuple[float, int]:
            tile = self._choose_tile_axis(a)
            if tile is None:
                return inf, -a
            each = box.reduced * self._tile_cost(a, tile)
            return (each + boxes.access_cost(box.epilogue_flats, a, lanes)) / boxes.lane_utilization(
                box.extents[a], lanes
            ), -a

        return min(range(box.rank), key=cost, default=None)

    @property
    def along_row(self) -> bool:
        """True if the lanes run along the reduction."""
        return self.axis is not None and self.axis >= self.box.rank

    @property
    def column(self) -> int | None:
        """The output axis that the lanes run along. None: they run along the reduction, or the code is scalar."""
        return None if self.along_row else self.axis

    @property
    def extent(self) -> int:
        """Points of the axis that the lanes run along."""
        assert self.axis is not None
        return (self.box.extents + self.box.reduce)[self.axis]

    @property
    def vectors(self) -> int:
        """Vectors along the axis of the lanes."""
        return -(-self.extent // self.config.lanes)

    @property
    def vectors_at_once(self) -> int:
        """Vectors processed at once: `unroll`, or fewer where the axis has fewer."""
        return min(self.config.unroll, self.vectors)

    @cached_property
    def tile(self) -> int | None:
        """Return the output axis of a register tile's rows, which shares most accesses; None: no register tile."""
        return None if self.column is None else self._choose_tile_axis(self.column)

    def _choose_tile_axis(self, column: int) -> int | None:
        box = self.box
        if self.config.rows == 1 or not box.reduce:
            return None
        axes = [a for a in range(box.rank) if a != column and box.extents[a] > 1]
        return min(axes, key=lambda a: (self._tile_cost(column, a), -a), default=None)

    def _tile_cost(self, column: int, row: int) -> float:
        """Return the estimated instructions per vector of operations in a register tile, the operations excluded."""
        return (self._access_instructions(column, row) + 1) / boxes.lane_utilization(
            self.box.extents[row], self.config.rows
        )

    def _access_instructions(self, axis: int, row: int | None, excluded: Sequence[LinearForm] = ()) -> float:
        """Return the estimated instructions of the body's accesses per vector of operations.

        In a register tile, an access that does not vary along the rows is loaded once for all rows, and one that does
        not vary along the lanes once for all vectors of a row. What one step of the lanes covers of an axis, and of
        all reductions, is loaded once for all other points, and then reloaded as whole vectors. left_out: accesses that
        are not counted."""
        box, out = self.box, 0.0
        others = (
            prod(n for a, n in enumerate(box.extents) if a != axis) if row is None and self._is_one_step(axis) else 1
        )
        for f, each in zip(box.flats, _access_costs(box, axis, self.config.lanes), strict=True):
            if f in excluded:
                continue
            if row is not None and row not in f.axes:
                each /= min(self.config.rows, box.extents[row])
            elif row is not None and axis not in f.axes:
                each = 1.0 / self.config.unroll
            elif others > 1 and axis in f.axes and not any(a < box.rank and a != axis for a in f.axes):
                each = min(each, 1.0 + each / others)
            out += each
        return out

    def _is_one_step(self, axis: int) -> bool:
        """Return whether the lanes, along an output axis, take one whole step, and all reductions are unrolled."""
        axes = reduced_axes(self.box)
        whole = axis < self.box.rank and self.vectors // self.config.unroll == 1
        return whole and self.count_unrolled(axes) == len(axes)

    def count_unrolled(self, axes: Sequence[int], split_axis: int | None = None) -> int:
        """Return how many of the innermost of these reduction axes are unrolled, none of which is bounded."""
        count = count_unrolled(self.box, axes, split_axis, self.copies)
        bounded = (n for n, a in enumerate(reversed(axes[len(axes) - count :])) if any(self.find_bounds(a)))
        return next(bounded, count)

    @property
    def copies(self) -> int:
        """Copies of a point's body beyond the few vectors that any configuration has."""
        c = self.config
        return (1 if self.tile is None else c.rows) * (c.unroll // 2 if c.unroll > 4 else 1)

    @cached_property
    def transposed_reads(self) -> Sequence[Read]:
        """Return the reads loaded as square tiles and transposed; the rows of a register tile share them."""
        box = self.box
        if not self.config.turn or self.config.splits > 1 or self.column is None or not box.reduce:
            return ()
        reads = boxes.square_tiles(box, box.bodies).get((self.column, self.last), ())
        shared = all(self.tile not in linear(r.index[0]).axes for r in reads)
        return reads if len(reads) <= 2 and shared else ()

    @cached_property
    def paired_box(self) -> Box | None:
        """Return the box over vectors of adjacent pairs (`windows_of_two`); None where that form does not apply."""
        applies = self.column is not None and self.tile is None and not self.config.turn and self.parts == 1
        return pair_box(self.box, self.column) if applies else None

    @cached_property
    def split_axis(self) -> int | None:
        """Return the reduction axis that is split into parts.

        The longest one is split, where the vectorised one counts 1/64 of its length. None where the configuration asks
        for no split."""
        axes, reduce = reduced_axes(self.box), self.box.reduce
        if self.config.splits == 1:
            return None
        return max(axes, key=lambda a: (reduce[a - self.box.rank] / (64 if a == self.axis else 1), -a), default=None)

    @cached_property
    def parts(self) -> int:
        """Return the number of parts that the reduction is split into after rounding to whole groups."""
        c = self.config
        if self.split_axis is None:
            return 1
        unit = c.lanes * self.vectors_at_once if self.split_axis == self.axis else 1
        return tile_count(self.box.reduce[self.split_axis - self.box.rank], c.splits, unit)

    def find_bounds(self, axis: int) -> Bounds:
        """Return the bounds of a reduction axis that its loop can use.

        They depend neither on the axes of the lanes and the tile, whose points are computed together, nor on reduction
        axes whose loops lie inside of this one."""
        excluded = {self.axis, self.tile}
        if axis != self.axis:
            excluded |= set(range(axis + 1, self.last + 1))
        return find_bounds(self.box, axis).without(excluded)

    @cached_property
    def walked_fractions(self) -> dict[int, float]:
        """Return the estimated fraction of each bounded reduction axis that its loop runs over."""
        box = self.box
        bounded = [a for a in reduced_axes(box) if any(find_bounds(box, a))]
        return {a: self.find_bounds(a).estimate_fraction(a, box.extents + box.reduce) for a in bounded}

    @cached_property
    def access_cost(self) -> float:
        """Return the estimated instructions of the accesses per vector of operations, with all loading methods."""
        box, c = self.box, self.config
        assert self.axis is not None
        if self.paired_box is not None:
            return boxes.access_cost(self.paired_box.flats, self.last, c.lanes, self.paired_box.guarded)
        reads = [linear(r.index[0]) for r in self.transposed_reads]
        tiles = 0.0
        if reads:
            columns = box.reduce[-1]
            tiles = len(reads) * (
                c.lanes.bit_length() - 1 + INSTRUCTIONS.transposed_tile * -(-columns // c.lanes) / columns
            )
        rows = 1 if self.tile is None else min(c.rows, box.extents[self.tile])
        return self._access_instructions(self.axis, self.tile, reads) + tiles / rows


schedule = lru_cache(maxsize=8192)(ReductionSchedule)
