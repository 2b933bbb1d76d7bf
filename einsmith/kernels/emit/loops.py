"""Emit the loops around a kernel's boxes, the stores of a box's points, and loop bounds derived from guards.

The pointwise, reduction and scatter patterns share these functions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from einsmith.codegen.loopnest.address import BufferMemory
from einsmith.codegen.loopnest.lanes import conjoin, transpose
from einsmith.codegen.loopnest.nest import Builder
from einsmith.codegen.loopnest.walk import (
    State,
    blocks,
    digits,
    emit_groups,
    part_bounds,
    part_range,
    task_range,
    tile_count,
)
from einsmith.codegen.ssa import SSAValue
from einsmith.cost.facts import LINE, Target
from einsmith.ir.analysis.ends import end_of, guards_around
from einsmith.ir.analysis.linear import linear
from einsmith.ir.analysis.obvious import leaves
from einsmith.ir.nodes import Expr, Read, axes_of, has_read, reads
from einsmith.kernels.emit.boxes import Box
from einsmith.kernels.emit.vector import LanePattern, VectorEmitter
from einsmith.schedule.footprint import touched_bytes
from einsmith.schedule.kernel import Kernel, has_row_limit, limits_of
from einsmith.schedule.limits import find_own_rows


def make_emitter(b: Builder, kernel: Kernel, extents: Sequence[int], lanes: int) -> VectorEmitter:
    """Return a VectorEmitter for a box of these extents, whose slots are the kernel's buffers as flat memory."""
    em = VectorEmitter(b, extents, lanes)
    for n, buffer in enumerate(kernel.buffers):
        em.place(n, BufferMemory(b.buffers[n], buffer.flat))
    return em


def limit_points(em: VectorEmitter, kernel: Kernel, box: Box) -> None:
    """Restrict the loops over a box of a kernel to the points that count in a run."""
    b = em.b
    for axis, buffer, first, factor in box.limits:
        count = b.cast(b.load(b.buffers[buffer], 0, "i32"), "i64")
        if first or len(kernel.root.parts) > 1:  # this piece may lie before the limit, or behind it
            count = b.op("max", b.op("min", b.sub(count, first), box.extents[axis] // factor), 0)
        em.limits[axis] = b.mul(count, factor)
    if has_row_limit(kernel):
        em.limit = load_limit(b, kernel)
        em.row_sizes = {n: kernel.buffers[n].flat.size // kernel.shape[0] for n in find_own_rows(kernel)}


def is_limited(axes: Sequence[int]) -> bool:
    """Return whether a limit of output axis 0 limits the first of these axes."""
    return bool(axes) and axes[0] == 0


def load_limit(b: Builder, kernel: Kernel, axis: int = 0) -> SSAValue | None:
    """Return the number of points of an output axis that count in this run; None where all do."""
    buffer = limits_of(kernel).get(axis)
    return None if buffer is None else b.cast(b.load(b.buffers[buffer], 0, "i32"), "i64")


def is_below_limits(b: Builder, kernel: Kernel, position: Mapping[int, SSAValue]) -> SSAValue | None:
    """Return whether a position, by output axis, lies below the kernel's limits; None where no axis has one."""
    below = None
    for a, x in position.items():
        limit = load_limit(b, kernel, a)
        if limit is not None:
            below = conjoin(b, below, b.op("lt", x, limit))
    return below


def distribute_tasks(
    box_list: Sequence[Box], tasks: int, emit: Callable[[Box, int, int, bool], int], blocks: int = 1
) -> int:
    """Distribute tasks over the boxes of a kernel; return the number of tasks.

    Boxes with the same rows share their tasks: a task has some rows of all boxes. A core then touches the rows that it
    touches in kernels of a single piece, whose lines its cache still holds (the update of a 384x912 weight in two
    pieces by columns, which the forward pass reads by rows: 38 us with tasks of one piece each, 9 us so). Other boxes
    have tasks in proportion to their work.

    `emit(box, tasks, first, alone)` emits a box for about `tasks` tasks from number `first` on and returns how many it
    takes; `alone`: the box's code need not test the task number. With one task, all boxes belong to that task, so that
    no worker thread is woken. blocks: least number of tasks of boxes with the same rows, if there are as many rows.
    """
    rows = {next((n for n in x.extents if n > 1), 1) for x in box_list}
    if len(box_list) > 1 and len(rows) == 1 and min(rows) >= blocks:
        tasks = max(tasks, blocks)
    alone = len(box_list) == 1 or tasks == 1
    if not alone and len(rows) == 1 and min(rows) >= tasks:
        return max(emit(x, tasks, 0, False) for x in box_list)
    first, total = 0, sum(x.points * x.reduced for x in box_list)
    for box in box_list:
        count = emit(box, max(1, round(tasks * box.points * box.reduced / max(1, total))), first, alone)
        first = max(first, count) if alone else first + count
    return first


BLOCK_FRACTION = 0.25
"""Part of L2 that a block of rows touches, where the boxes of a kernel read the same operands. Gradients of a tensor
product with 9 and 15 pieces over 20,000 rows took 47 ms in whole boxes, 19 to 21 ms with 0.03 to 0.25."""


def count_blocks(kernel: Kernel, target: Target) -> int:
    """Return the number of blocks into which rows are cut, so that the bytes that one box of a kernel touches in a
    block are still in L2 for the next box."""
    return max(1, round(touched_bytes(kernel, LINE)[1] / (target.l2 * BLOCK_FRACTION)))


def evaluate_point(em: VectorEmitter, box: Box, root: Sequence[SSAValue]) -> dict[int, SSAValue]:
    """Return the values that a point stores, by slot: results of the root and the epilogue. Output axes must be bound.

    All values are evaluated before the first store: a buffer that is updated in place is read before it is written."""
    for slot, value in zip(box.results, root, strict=False):
        em.place(slot, value)
    for slot, expr in zip(box.results[box.members :], box.stages, strict=True):
        em.place(slot, em.emit(expr))
    values = {slot: em._slots[slot] for slot, _, _ in box.stores}
    return {slot: value for slot, value in values.items() if isinstance(value, SSAValue)}


def store_point(em: VectorEmitter, box: Box, values: Mapping[int, SSAValue]) -> None:
    """Store the values from `evaluate_point`, with the output axes bound to the same positions.

    A result that may lie over an operand is stored without masks: a masked store delays loads of all bytes in its
    vector's reach, among them the beginning of the next row (planes of 10 x 10 and 28 x 28 took 4.3 and 3.0 times as
    long).
    """
    for slot, buffer, index in box.stores:
        em.store(values[slot], em.memory(buffer), index, buffer in box.replacing)


def _choose_leading_axes(extents: Sequence[int], tasks: int) -> tuple[int, int]:
    """Return (number of leading axes that are distributed over tasks, product of their extents)."""
    rows, k = 1, 0
    while k < len(extents) and rows < tasks:
        rows *= extents[k]
        k += 1
    return k, rows


@contextmanager
def loop_over_rows(
    em: VectorEmitter,
    axes: Sequence[int],
    extents: Sequence[int],
    task: SSAValue,
    tasks: int,
    limits: Mapping[int, SSAValue],
) -> Iterator[None]:
    """Emit loops over `axes`, bound as scalars; with tasks > 1 the leading axes are distributed in equal runs.

    limits: the number of steps that count in this run, in the unit of the extent, by axis; all count of other axes."""
    b = em.b
    limit = limits.get(axes[0]) if axes else None
    with ExitStack() as stack:
        k = 0
        if tasks > 1 or limit is not None:
            if limit is None:
                k, count = _choose_leading_axes(extents, max(2, tasks))
                bounds = part_bounds(b, count, task, tasks)
            else:  # a limit may leave fewer rows than tasks
                k, count = _choose_leading_axes([1, *extents[1:]], max(2, tasks))
                bounds = part_range(b, task, tasks, b.mul(limit, count))
            row = stack.enter_context(b.loop(*bounds)).var
            for axis, at in zip(axes[:k], digits(b, row, extents[:k]), strict=True):
                em.bind(axis, at)
                if axis in limits and axis != axes[0]:
                    stack.enter_context(b.if_(b.op("lt", at, limits[axis])))
        for axis, n in zip(axes[k:], extents[k:], strict=True):
            em.bind(axis, stack.enter_context(b.loop(0, limits.get(axis, n))).var)
        yield


Ramps = list[tuple[LanePattern, int | None]]
"""Neighbouring vectors along one axis, each with its number of active lanes (None: all)."""


def make_ramps(base: SSAValue | int, count: int, lanes: int, multiple: int, first: int = 0) -> Ramps:
    """Return the vectors that hold `count` points from `base + first` on; `multiple` divides `base`."""
    out: Ramps = []
    for at in range(0, count, lanes):
        pattern = tuple(range(first + at, first + at + lanes))
        out.append((LanePattern(base, pattern, multiple), None if at + lanes <= count else count - at))
    return out


def emit_vector_tiles(
    em: VectorEmitter,
    extent: int,
    unroll: int,
    emit: Callable[[Ramps], None],
    tile: SSAValue | None = None,
    tiles: int = 1,
    within: tuple[SSAValue, SSAValue] | None = None,
) -> None:
    """Call `emit` for groups of `unroll` vectors along an axis; tile, tiles, within: see part, parts, within of
    `emit_groups`."""
    group = em.lanes * unroll

    def body(state: State, base: SSAValue | int, count: int) -> State:
        emit(make_ramps(base, count, em.lanes, group))
        return state

    emit_groups(em.b, extent, group, [], body, tile, tiles, within)


@dataclass(frozen=True)
class BoxSweep:
    """The loops over a box's outputs, with vectors along one axis and registers for several rows of another.

    Attributes:
        em: The emitter.
        box: The box.
        axis: Axis of the vectors; None: scalar code.
        unroll: Vectors emitted together.
        emit: Called as `emit(vectors, base, rows)` for `unroll` vectors at every point of the other axes.
        row: Axis of a register tile, of which `emit` takes `height` rows at once, from `base` on; None: one row.
        inside: Loop over `row` inside the loop over vectors, so that their operands stay in cache for the next rows;
            else around it.
        own: Axis that `emit` loops over itself.
    """

    em: VectorEmitter
    box: Box
    axis: int | None
    unroll: int
    emit: Callable[[Ramps, SSAValue | int, int], None]
    row: int | None = None
    height: int = 1
    inside: bool = False
    own: int | None = None

    def emit_tasks(
        self, tasks: int, first: int, alone: bool, parts: int = 1, begin: Callable[[SSAValue], None] | None = None
    ) -> int:
        """Emit the loops for about `tasks` tasks; return how many tasks they take.

        Args:
            tasks: About how many tasks there shall be.
            first: Number of the box's first task.
            alone: No other box shares the launch.
            parts: Tasks that share each set of outputs.
            begin: Called with the part's number at the beginning of a task; needed for several parts.
        """
        em, b, box, row = self.em, self.em.b, self.box, self.row
        others = [a for a in range(box.rank) if a not in (self.axis, row, self.own)]
        sizes = [box.extents[a] for a in others]
        if row is not None and not self.inside:
            at = 0 if em.limit is not None and row == 0 else len(others)  # rows with a limit are the outermost axis
            others.insert(at, row)
            sizes.insert(at, self._row_tiles(row))
        points = prod(sizes)
        row_runs, tiles = min(points, tasks), 1
        if points >= tasks:  # in whole rows, which take equal time
            row_runs = tile_count(_choose_leading_axes(sizes, tasks)[1], tasks, 1)
        elif self.inside and row is not None:
            tiles = tile_count(self._row_tiles(row), -(-tasks // points), 1)
        elif self.axis is not None:
            tiles = tile_count(box.extents[self.axis], -(-tasks // points), em.lanes * self.unroll)
        with task_range(b, b.task, first, row_runs * tiles * parts, alone) as task:
            if parts > 1:
                assert begin is not None
                begin(b.op("mod", task, parts))
                task = b.op("floordiv", task, parts)
            number: SSAValue | None = None
            if tiles > 1:
                number = b.op("mod", task, tiles)
                task = b.op("floordiv", task, tiles)
            limits = {a: self._count_steps(a, self.height if a == row else 1) for a in others if a in em.limits}
            with loop_over_rows(em, others, sizes, task, row_runs, limits):
                self._emit_vectors(number, tiles)
        return row_runs * tiles * parts

    def _row_tiles(self, row: int) -> int:
        return -(-self.box.extents[row] // self.height)

    def _count_steps(self, axis: int, size: int) -> SSAValue:
        """Return the number of steps of `size` points of an axis that hold those below its limit."""
        b = self.em.b
        return b.op("floordiv", b.add(self.em.limits[axis], size - 1), size)

    def _emit_vectors(self, number: SSAValue | None, tiles: int) -> None:
        """Emit part `number` of `tiles` of the vectors, and of the rows inside, at one point of the other axes."""
        em, b, row, axis = self.em, self.em.b, self.row, self.axis
        row_base = None if row is None or self.inside else em.position(row)

        def emit_rows(ramps: Ramps) -> None:
            if row is None:
                self.emit(ramps, 0, 1)
                return
            bounds = part_bounds(b, self._row_tiles(row), number, tiles)
            if row in em.limits:
                bounds = part_range(b, number, tiles, self._count_steps(row, self.height))
            with nullcontext() if row_base is not None else b.loop(*bounds) as loop:
                at = row_base if loop is None else loop.var
                assert isinstance(at, SSAValue)
                blocks(b, at, self.box.extents[row], self.height, lambda base, n: self.emit(ramps, base, n))

        if axis is None:
            emit_rows([(LanePattern(0, ()), None)])
        elif self.inside and row is not None:
            within = None
            if axis in em.limits and self.box.extents[axis] > em.lanes * self.unroll:
                within = b.const(0), em.limits[axis]
            emit_vector_tiles(em, self.box.extents[axis], self.unroll, emit_rows, within=within)
        else:
            within, group = None, em.lanes * self.unroll
            # A group that is the only one is computed whole, without a loop.
            if axis in em.limits and (axis == 0 or self.box.extents[axis] > group):
                low, high = (b.mul(x, group) for x in part_range(b, number, tiles, self._count_steps(axis, group)))
                within = low, b.op("min", high, self.box.extents[axis])
            emit_vector_tiles(em, self.box.extents[axis], self.unroll, emit_rows, number, tiles, within)


def load_transposed(
    em: VectorEmitter,
    read: Read,
    along: int,
    at: LanePattern,
    active: int | None,
    across: int,
    base: SSAValue | int,
    count: int,
) -> list[SSAValue]:
    """Load a square tile of a read that is contiguous along `across`, and transpose it in registers.

    The rows are the lanes `at` of the axis `along`, of which `active` count (None: all); each row is loaded from point
    `base` of the axis `across` on, of which `count` points are loaded. Returns one vector per point of `across`.
    """
    n, rows = em.lanes, list[SSAValue]()
    em.mask = count
    for r in range(n):
        em.bind(along, LanePattern(at.base, (at.pattern[r],) * n, at.multiple))
        em.bind(across, LanePattern(base, tuple(range(n)), n))
        rows.append(em.read(read) if active is None or r < active else em.const(0, rows[0].type.elem, n))
    return transpose(em, rows)


# ---------------------------------------------------------------------------------------------------------- bounds


class Bounds(NamedTuple):
    """Bounds of an axis outside of which a body does nothing: at least each of `low`, and below each of `high`.

    The bounds are expressions of other axes and of data. Loops run over the points inside only:
    `where(row[r] <= n and n < row[r+1], ..., 0)` limits the loop over all stored elements to a row of a sparse matrix.
    """

    low: tuple[Expr, ...] = ()
    high: tuple[Expr, ...] = ()

    def without(self, axes: Collection[int | None]) -> Bounds:
        """Return the bounds that depend on none of these axes."""
        low, high = ([x for x in every if axes_of(x).isdisjoint(axes)] for every in self)
        return Bounds(tuple(low), tuple(high))

    def estimate_fraction(self, axis: int, extents: Sequence[int]) -> float:
        """Return the estimated fraction of the axis inside the bounds.

        Two bounds at a constant distance give that distance. Two bounds that come from data are assumed to partition
        the axis (as rows of a sparse matrix do), and to leave a point of it. Any other bound halves the axis."""
        ends = [x for x in (*self.low, *self.high) if axes_of(x) or has_read(x)]
        spans = (linear(y) - linear(x) for x in self.low for y in self.high)
        distance = min((x.const for x in spans if not x.terms), default=None)
        if distance is not None:
            return min(1.0, max(1, distance) / max(1, extents[axis]))
        if any(map(has_read, self.low)) and any(map(has_read, self.high)):
            return 1 / max(2, min(extents[axis], prod(extents[a] for a in frozenset().union(*map(axes_of, ends)))))
        return 0.5 if ends else 1.0

    def emit_range(self, em: VectorEmitter, first: SSAValue | int, end: SSAValue | int) -> tuple[SSAValue, SSAValue]:
        """Emit the range of the points first .. end inside the bounds, at the other axes' current positions."""
        b = em.b
        em.mask = None
        lo, hi = b.index(first), b.index(end)
        for x in self.low:
            lo = b.op("max", lo, b.cast(em.emit(x), "i64"))
        for x in self.high:
            hi = b.op("min", hi, b.cast(em.emit(x), "i64"))
        return lo, hi


def find_guard_bounds(body: Expr, otherwise: float, axis: int, extents: Sequence[int], sizes: Sequence[int]) -> Bounds:
    """Return the bounds that the guards around a body put on an axis; outside of them its value is `otherwise`.

    extents: points of all axes. sizes: elements of the buffer of each slot (reads are flat).
    """
    ends_of_guards = [
        end_of(c, axis) for c, alone in guards_around(body, otherwise) if alone or _stays_in_bounds(c, extents, sizes)
    ]
    ends = [x for x in ends_of_guards if x is not None]
    return Bounds(tuple(x.at for x in ends if x.low), tuple(x.at for x in ends if not x.low))


def _stays_in_bounds(c: Expr, extents: Sequence[int], sizes: Sequence[int]) -> bool:
    """Return whether all reads of a condition are in bounds at every point of the axes."""
    return all(leaves(linear(x.index[0]), extents, sizes[x.slot]) is False for x in reads(c) if x.index)
