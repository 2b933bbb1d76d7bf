"""Kernels whose root is a Reduce of any combiner: row, column, window and whole reductions, with an epilogue.

row: lanes along a reduction axis, several accumulators, merged in a fixed tree at the end of each row.
column: lanes along an output axis, every lane its own result (pooling windows are unrolled).
Few outputs: the reduction is cut into parts, whose partial results a second launch merges in order; the number of parts
is configuration. Any Reduce can be lowered here, sums of products too: this is the plain form of a contraction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from math import prod
from typing import NamedTuple

from einsmith import dtypes as dt
from einsmith.expr.kernel import Kernel
from einsmith.expr.linear import Linear
from einsmith.expr.nodes import Axis, Expr, Piece, Read, Reduce, postorder
from einsmith.kernels import boxes as bx
from einsmith.kernels import pointwise
from einsmith.kernels.boxes import Box, Ramps
from einsmith.kernels.combine import Combine, State
from einsmith.kernels.kernel import Cost, Launch, Lowered
from einsmith.kernels.pointwise import PointwiseConfig
from einsmith.kernels.vectorize import Emitter, Lanes, Memory
from einsmith.loops.nest import Builder, Value, elem_of
from einsmith.target.facts import Target

MAX_WINDOW = 16
"""Innermost reduction axes are unrolled up to this many points."""
MAX_UNROLLED = 400
"""Instructions that unrolling may make."""
SPLITTABLE = ("sum", "prod", "max", "min")
_LATENCY = 4.0
"""Turns of one accumulator that could run at once if it were several."""


class ReductionConfig(NamedTuple):
    """mode: 'row' or 'column'; lanes; unroll: vectors (accumulators) at once; tasks: parts of the outputs; splits:
    parts of the reduction, merged by a second launch (1: none)."""

    mode: str
    lanes: int
    unroll: int
    tasks: int
    splits: int


def _flats(box: Box) -> list[Linear]:
    return bx.uses(box.bodies)[0]


def row_axis(box: Box, lanes: int) -> int | None:
    """The reduction axis whose accesses cost least along the lanes. An arg-reduction takes only the last one."""
    last = box.rank + len(box.reduce) - 1
    axes = range(box.rank, last + 1)
    if box.combiner is not None and box.combiner.startswith("arg"):
        axes = range(max(box.rank, last), last + 1)
    flats = _flats(box)

    def cost(a: int) -> tuple[float, int]:
        return (bx.access_cost(flats, a, lanes) + 1) / bx.filled(box.reduce[a - box.rank], lanes), -a

    return min(axes, key=cost, default=None)


def column_axis(box: Box, lanes: int) -> int | None:
    """The output axis that the lanes run along."""
    body, rest = _flats(box), box.epilogue_flats
    weight = max(1, box.reduced)

    def cost(a: int) -> tuple[float, int]:
        each = weight * (bx.access_cost(body, a, lanes) + 1) + bx.access_cost(rest, a, lanes)
        return each / bx.filled(box.extents[a], lanes), -a

    return min(range(box.rank), key=cost, default=None)


def _axis(box: Box, config: ReductionConfig) -> int | None:
    if not config.lanes:
        return None
    row = row_axis(box, config.lanes) if config.mode == "row" else None
    return column_axis(box, config.lanes) if row is None else row


def split_axis(box: Box, axis: int | None) -> int | None:
    """The reduction axis that is cut into parts: the longest; the lanes' own only where it is by far the longest."""
    axes = range(box.rank, box.rank + len(box.reduce))
    return max(axes, key=lambda a: (box.reduce[a - box.rank] / (64 if a == axis else 1), -a), default=None)


def _window(box: Box, axis: int | None, cut: int | None) -> int:
    """How many of the innermost reduction axes (other than the lanes') are unrolled."""
    count = max(1, sum(1 for _ in postorder(box.bodies)))
    limit = min(MAX_WINDOW, max(1, MAX_UNROLLED // count))
    loops = [a for a in range(box.rank, box.rank + len(box.reduce)) if a != axis]
    k, points = 0, 1
    while k < len(loops) and loops[-1 - k] != cut:
        points *= box.reduce[loops[-1 - k] - box.rank]
        if points > limit:
            break
        k += 1
    return k


def _grouped(flat: Sequence[Value], like: list[State]) -> list[State]:
    """Values of a loop as states of the same widths as `like`."""
    width = len(like[0])
    return [list(flat[i : i + width]) for i in range(0, len(flat), width)]


class _Sweep:
    """Emits one box of a kernel."""

    def __init__(self, em: Emitter, box: Box, config: ReductionConfig, axis: int | None, cut: int | None):
        assert box.combiner is not None
        self.em, self.b, self.box, self.config, self.axis, self.cut = em, em.b, box, config, axis, cut
        self.combine = Combine(em, box.combiner, [x.dtype for x in box.bodies])
        self.part: Value | None = None
        self.parts = 1
        number, stride = Linear(), 1
        for a in reversed(range(box.rank, box.rank + len(box.reduce))):
            number = number + Linear(0, {Axis(a): stride})
            stride *= box.reduce[a - box.rank]
        self.number: Expr = number.expr()

    def extent(self, axis: int) -> int:
        return self.box.reduce[axis - self.box.rank]

    def _bounds(self, axis: int, unit: int = 1) -> tuple[Value | int, Value | int]:
        """The range of a reduction axis that this task's part takes, in whole units."""
        n = self.extent(axis) // unit * unit
        if axis != self.cut or self.part is None:
            return 0, n
        size = bx.tile_size(self.extent(axis), self.parts, unit)
        lo = self.b.mul(self.part, self.b.const(size))
        return lo, self.b.op("min", self.b.add(lo, self.b.const(size)), self.b.const(n))

    def nest(self, states: list[State], inner: Callable[[list[State]], list[State]]) -> list[State]:
        """`inner(states) -> states` at every point of the reduction axes other than the lanes' own."""
        loops = [a for a in range(self.box.rank, self.box.rank + len(self.box.reduce)) if a != self.axis]
        split = len(loops) - _window(self.box, self.axis, self.cut)
        return self._loops(loops[:split], loops[split:], states, inner)

    def _loops(self, outer, window, states, inner) -> list[State]:
        if outer:
            lo, hi = self._bounds(outer[0])
            with self.b.loop(lo, hi, init=[v for s in states for v in s]) as loop:
                self.em.bind(outer[0], loop.var)
                inside = self._loops(outer[1:], window, _grouped(loop.carried, states), inner)
                loop.next = [v for s in inside for v in s]
            return _grouped(loop.results, states)
        for at in product(*(range(self.extent(a)) for a in window)):
            for a, i in zip(window, at, strict=True):
                self.em.bind(a, i)
            states = inner(states)
        return states

    def column(self, ramps: Ramps) -> None:
        """Every lane its own output: the vectors of `ramps` side by side."""
        em, box = self.em, self.box
        lanes = em.lanes if self.axis is not None else 0
        start = [self.combine.initial(lanes, [0] * max(1, lanes)) for _ in ramps]

        def inner(states: list[State]) -> list[State]:
            out = []
            for (at, active), state in zip(ramps, states, strict=True):
                if self.axis is not None:
                    em.bind(self.axis, at)
                em.mask = active
                out.append(self.combine.step(state, box.bodies, self.number))
            return out

        for (at, active), state in zip(ramps, self.nest(start, inner), strict=True):
            if self.axis is not None:
                em.bind(self.axis, at)
            em.mask = active
            self.finish(state)

    def row(self) -> None:
        """One output: lanes along the reduction, `unroll` accumulators, then a tree."""
        em, b, box = self.em, self.b, self.box
        axis, n = self.axis, self.em.lanes
        assert axis is not None
        extent = self.extent(axis)
        count = min(self.config.unroll, -(-extent // n))
        group = n * count
        whole = extent // group * group
        start = [self.combine.initial(n, range(u * n, u * n + n)) for u in range(count)]

        def points(states: list[State], base: Value | int, limit: int) -> list[State]:
            out = list(states)
            for u in range(count):
                left = limit - u * n
                if left <= 0:
                    break
                em.bind(axis, Lanes(base, tuple(range(u * n, u * n + n)), group))
                em.mask = None if left >= n else left
                new = self.combine.step(states[u], box.bodies, self.number)
                out[u] = self.combine.keep(em.lane_mask(), new, states[u])
            em.mask = None
            return out

        def carried(states: list[State], lo, hi, step: int, base: int | None, limit: int) -> list[State]:
            with b.loop(lo, hi, step, init=[v for s in states for v in s]) as loop:
                inside = points(_grouped(loop.carried, states), loop.var if base is None else base, limit)
                loop.next = [v for s in inside for v in s]
            return _grouped(loop.results, states)

        def inner(states: list[State]) -> list[State]:
            cut = axis == self.cut and self.part is not None
            if whole == group and not cut:
                states = points(states, 0, group)
            elif whole:
                states = carried(states, *self._bounds(axis, group), group, None, group)
            if whole < extent and not cut:
                states = points(states, whole, extent - whole)
            elif whole < extent:
                assert self.part is not None
                last = b.op("eq", self.part, b.const(self.parts - 1))
                states = carried(states, 0, b.cast(last, "i64"), 1, whole, extent - whole)
            return states

        states = self.nest(start, inner)
        em.mask = None
        self.finish(self.combine.across(self.combine.tree(states)))

    def finish(self, state: State) -> None:
        """The epilogue of an output (or of a vector of them)."""
        for slot, value in zip(self.box.results, state, strict=False):
            self.em.place(slot, value)
        bx.finish_point(self.em, self.box)


def _part_count(box: Box, config: ReductionConfig) -> int:
    """How many parts the reduction is cut into in the end."""
    if config.splits == 1 or not box.reduce:
        return 1
    axis = _axis(box, config)
    cut = split_axis(box, axis)
    assert cut is not None
    extent = box.reduce[cut - box.rank]
    unit = config.lanes * min(config.unroll, -(-extent // config.lanes)) if cut == axis else 1
    return bx.tile_count(extent, config.splits, unit)


def lower_box(b: Builder, kernel: Kernel, box: Box, config: ReductionConfig, first: int, alone: bool = False,
              places: Sequence[tuple[int, Memory]] = ()) -> int:
    """Emits one box for the tasks from `first` on; returns how many. `alone`: it is the only one; `places`: memory of
    slots beside the kernel's buffers."""
    axis = _axis(box, config)
    em = bx.emitter(b, kernel, box, config.lanes if axis is not None else 0)
    for slot, memory in places:
        em.place(slot, memory)
    parts = _part_count(box, config)
    sweep = _Sweep(em, box, config, axis, split_axis(box, axis) if parts > 1 else None)
    column = axis is not None and axis < box.rank
    others = [a for a in range(box.rank) if not (column and a == axis)]
    sizes = [box.extents[a] for a in others]
    count = prod(sizes)
    runs, tiles = 1, 1
    if config.tasks > 1 and count >= config.tasks:
        runs = bx.row_tasks(sizes, config.tasks)
    elif config.tasks > 1:
        runs = count
        if column and axis is not None:
            tiles = bx.tile_count(box.extents[axis], -(-config.tasks // count), config.lanes * config.unroll)
    total = runs * tiles * parts
    with bx.task_range(b, first, total, alone) as task:
        tile: Value | None = None
        if parts > 1:
            sweep.part, sweep.parts = b.op("mod", task, b.const(parts)), parts
            task = b.op("floordiv", task, b.const(parts))
            past = b.mul(sweep.part, b.const(box.points))
            for slot, memory in places:
                ptr = b.address(memory.ptr, past, elem_of(memory.dtype))
                em.place(slot, Memory(ptr, memory.dtype, memory.shape))
        if tiles > 1:
            tile = b.op("mod", task, b.const(tiles))
            task = b.op("floordiv", task, b.const(tiles))
        with bx.rows(em, others, sizes, task, runs):
            if column:
                assert axis is not None
                bx.vector_tiles(em, box.extents[axis], config.unroll, sweep.column, tile, tiles)
            elif axis is not None:
                sweep.row()
            else:
                sweep.column([(Lanes(0, ()), None)])
    return total


def _partial(kernel: Kernel, box: Box, parts: int) -> tuple[Box, Box, int, list[tuple[int, int, dt.DType]]]:
    """The box of the first launch (into the workspace), that of the second, the workspace's bytes, and its sections
    (slot, byte offset, type), each [parts, outputs]."""
    base = max(box.results) + 1
    sections, at = [], 0
    for m, body in enumerate(box.bodies):
        sections.append((base + m, at, body.dtype))
        at += -(-parts * box.points * body.dtype.itemsize // 64) * 64
    flat, stride = Linear(), 1
    for a in reversed(range(box.rank)):
        flat = flat + Linear(0, {Axis(a): stride})
        stride *= box.extents[a]
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
        out.append((slot, Memory(ptr, dtype, (size,))))
    return out


def _second(box: Box, lanes: int) -> ReductionConfig:
    """How the partial results are merged: one task, along whichever is contiguous."""
    column = box.rank > 0 and box.extents[-1] >= 4
    return ReductionConfig("column" if column else "row", lanes, 2 if column else 1, 1, 1)


class Reduction:
    """A root whose pieces are Reduces (some may be plain), and its epilogue."""

    name = "reduction"

    def match(self, kernel: Kernel) -> bool:
        parts = kernel.root.parts
        if not all(isinstance(p, Piece) for p in parts):
            return False
        return any(isinstance(p.body, Reduce) for p in parts)

    def configs(self, kernel: Kernel, target: Target) -> list[ReductionConfig]:
        lanes = bx.lanes_of(kernel, target)
        found = bx.boxes(kernel)
        modes = []
        if any(x.reduce and row_axis(x, lanes) is not None for x in found):
            modes.append("row")
        if any(x.rank for x in found) or not modes:
            modes.append("column")
        tasks = dict.fromkeys((1, target.cores, 4 * target.cores))
        out = [ReductionConfig(m, lanes, u, t, 1) for m in modes for u in (1, 2, 4) for t in tasks]
        if lanes > 4 and all(max((*x.extents, *x.reduce), default=1) <= lanes // 2 for x in found):
            out += [ReductionConfig(m, lanes // 2, 1, t, 1) for m in modes for t in tasks]
        if len(found) == 1 and found[0].combiner in SPLITTABLE and found[0].reduced >= 64:
            for m in modes:
                for s in dict.fromkeys((target.cores, 4 * target.cores)):
                    config = ReductionConfig(m, lanes, 4, 1, s)
                    if s > 1 and _part_count(found[0], config) > 1:
                        out.append(config)
        return out

    def cost(self, kernel: Kernel, config: ReductionConfig, target: Target) -> Cost:
        """Points times instructions over the vector rate (a lone accumulator waits for itself), or bytes."""
        full = bx.lanes_of(kernel, target)
        rate = target.fma_per_second / full
        arithmetic = special = 0.0
        available = 0
        found = bx.boxes(kernel)
        for box in found:
            axis = _axis(box, config) if box.combiner else pointwise.vector_axis(box, config.lanes)
            count, seconds = bx.operations(box.bodies, target)
            after, after_seconds = bx.operations(box.stages, target)
            flats, rest = _flats(box), box.epilogue_flats
            total = box.points * box.reduced
            if axis is None:
                arithmetic += (total * (count + len(flats) + _LATENCY) + box.points * (after + len(rest))) / rate
                special += total * seconds + box.points * after_seconds
                available += 1
                continue
            extent = (box.extents + box.reduce)[axis]
            vectors = total / extent * -(-extent // config.lanes)
            chains = min(config.unroll, -(-extent // config.lanes))
            point = max(count + 1 + bx.access_cost(flats, axis, config.lanes), _LATENCY * 2 / chains)
            point += 2.0 / max(1, extent // config.lanes)
            arithmetic += vectors * point / rate
            special += vectors * config.lanes * seconds
            if axis >= box.rank:
                each = after + 2.0 * len(rest) + 8 * chains + 24
                arithmetic += box.points * each / rate
                special += box.points * after_seconds * 4
                available += min(config.tasks, box.points)
            else:
                results = box.points / extent * -(-extent // config.lanes)
                arithmetic += results * (after + bx.access_cost(rest, axis, config.lanes) + 4) / rate
                special += results * config.lanes * after_seconds
                groups = box.points // extent * -(-extent // (config.lanes * config.unroll))
                available += min(config.tasks, groups)
        launch = 0.0
        if config.splits > 1 and len(found) == 1:
            parts = _part_count(found[0], config)
            available *= parts
            launch += 1e-6 + parts * found[0].points * 2e-10
        cores = max(1, min(target.cores, available))
        tasks = max(1, available)
        uneven = 1.0 if tasks == 1 else 1 + 0.15 * cores / tasks
        launch += pointwise.TASK_SECONDS * tasks
        if tasks > 1:
            launch += target.launch_seconds + pointwise.SMALL_SECONDS
        moved, footprint = bx.touched_bytes(kernel)
        memory = target.seconds_for_bytes(moved, footprint, tasks)
        return Cost(arithmetic * uneven / cores, memory, special * uneven / cores, launch)

    def lower(self, kernel: Kernel, config: ReductionConfig, target: Target) -> Lowered:
        found = bx.boxes(kernel)
        if len(found) == 1 and found[0].combiner in SPLITTABLE and config.splits > 1:
            parts = _part_count(found[0], config)
            if parts > 1:
                return self._split(kernel, found[0], config, parts)
        b = bx.start(bx.function_name(self.name, kernel, config), kernel)
        first, total = 0, sum(x.points * x.reduced for x in found)
        alone = len(found) == 1
        for box in found:
            tasks = pointwise.share(config.tasks, box.points * box.reduced, total)
            if box.combiner is None:
                plain = PointwiseConfig(config.lanes, config.unroll, tasks)
                first += pointwise.lower_box(b, kernel, box, plain, first, alone)
            else:
                first += lower_box(b, kernel, box, config._replace(tasks=tasks, splits=1), first, alone)
        return Lowered([Launch(b.finish(), first)] if first else [])

    def _split(self, kernel: Kernel, box: Box, config: ReductionConfig, parts: int) -> Lowered:
        one, two, size, sections = _partial(kernel, box, parts)
        b = bx.start(bx.function_name(self.name, kernel, config), kernel)
        places = _workspace(b, sections, parts * box.points)
        tasks = lower_box(b, kernel, one, config, 0, True, places)
        c = bx.start(bx.function_name(self.name, kernel, config, 1), kernel)
        places = _workspace(c, sections, parts * box.points)
        lower_box(c, kernel, two, _second(two, config.lanes), 0, True, places)
        return Lowered([Launch(b.finish(), tasks), Launch(c.finish(), 1)], size)
