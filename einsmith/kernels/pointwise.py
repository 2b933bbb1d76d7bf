"""Kernels without a reduction: one pass of vectors over the canonical box, however many results are stored."""

from __future__ import annotations

from typing import NamedTuple

from einsmith.expr.kernel import Kernel
from einsmith.expr.nodes import Piece, Reduce
from einsmith.kernels import boxes as bx
from einsmith.kernels.boxes import Box, Ramps
from einsmith.kernels.kernel import Cost, Launch, Lowered
from einsmith.kernels.vectorize import Emitter
from einsmith.loops.nest import Builder, Value
from einsmith.target.facts import Target

SMALL_SECONDS = 4e-6
"""Work below this is not worth waking another thread for."""
TASK_SECONDS = 1e-7
"""What one more task costs."""


class PointwiseConfig(NamedTuple):
    """lanes: vector length (0: scalars); unroll: vectors a turn; tasks: parts that may run at once."""

    lanes: int
    unroll: int
    tasks: int


def vector_axis(box: Box, lanes: int) -> int | None:
    """The output axis whose accesses cost least per point when it runs along the lanes; None: there is none."""
    flats = bx.uses(box.exprs)[0] + [index for _, _, index in box.stores]

    def cost(axis: int) -> tuple[float, int]:
        return (bx.access_cost(flats, axis, lanes) + 1) / bx.filled(box.extents[axis], lanes), -axis

    return min(range(box.rank), key=cost, default=None)


def _tasks(box: Box, axis: int | None, config: PointwiseConfig) -> tuple[int, int]:
    """(parts of the rows, parts of the vector axis); one of them is 1 unless every row is a part of its own."""
    if axis is None:
        return 1, 1
    others = [n for a, n in enumerate(box.extents) if a != axis]
    count = box.points // box.extents[axis]
    if count >= config.tasks:
        return bx.row_tasks(others, config.tasks), 1
    group = config.lanes * config.unroll
    return count, bx.tile_count(box.extents[axis], -(-config.tasks // count), group)


def lower_box(b: Builder, kernel: Kernel, box: Box, config: PointwiseConfig, first: int, alone: bool = False) -> int:
    """Emits one box for the tasks from `first` on; returns how many tasks it takes. `alone`: it is the only one."""
    axis = vector_axis(box, config.lanes) if config.lanes else None
    em = bx.emitter(b, kernel, box, config.lanes if axis is not None else 0)
    if axis is None:
        with bx.task_range(b, first, 1, alone) as task, bx.rows(em, range(box.rank), box.extents, task, 1):
            _point(em, box)
        return 1
    parts, tiles = _tasks(box, axis, config)
    others = [a for a in range(box.rank) if a != axis]
    sizes = [box.extents[a] for a in others]

    def emit(ramps: Ramps) -> None:
        for lanes, active in ramps:
            em.bind(axis, lanes)
            em.mask = active
            _point(em, box)

    with bx.task_range(b, first, parts * tiles, alone) as task:
        tile: Value | None = None
        if tiles > 1:
            tile = b.op("mod", task, b.const(tiles))
            task = b.op("floordiv", task, b.const(tiles))
        with bx.rows(em, others, sizes, task, parts):
            bx.vector_tiles(em, box.extents[axis], config.unroll, emit, tile, tiles)
    return parts * tiles


def _point(em: Emitter, box: Box) -> None:
    values = [em.emit(e) for e in box.bodies]
    for slot, value in zip(box.results, values, strict=False):
        em.place(slot, value)
    bx.finish_point(em, box)


def share(tasks: int, points: int, total: int) -> int:
    """A piece's part of the tasks."""
    return max(1, round(tasks * points / max(1, total)))


class Pointwise:
    """Any root without a reduction or scatter, of one or several pieces, and its epilogue."""

    name = "pointwise"

    def match(self, kernel: Kernel) -> bool:
        return all(isinstance(p, Piece) and not isinstance(p.body, Reduce) for p in kernel.root.parts)

    def configs(self, kernel: Kernel, target: Target) -> list[PointwiseConfig]:
        lanes = bx.lanes_of(kernel, target)
        count = max((bx.operations(x.exprs, target)[0] for x in bx.boxes(kernel)), default=0)
        unrolls = (1, 2, 4) if count <= 12 else (1, 2) if count <= 40 else (1,)
        tasks = dict.fromkeys((1, target.cores, 4 * target.cores))
        widths = [lanes]
        if lanes > 4 and all(x.extents and max(x.extents) <= lanes // 2 for x in bx.boxes(kernel)):
            widths.append(lanes // 2)
        return [PointwiseConfig(w, u, t) for w in widths for u in unrolls for t in tasks]

    def cost(self, kernel: Kernel, config: PointwiseConfig, target: Target) -> Cost:
        """Instructions over the vector rate, bytes over the bandwidth of the level that holds them."""
        arithmetic = special = 0.0
        full = bx.lanes_of(kernel, target)
        found = bx.boxes(kernel)
        for box in found:
            axis = vector_axis(box, config.lanes) if config.lanes else None
            count, seconds = bx.operations(box.exprs, target)
            flats = bx.uses(box.exprs)[0] + [index for _, _, index in box.stores]
            if axis is None:
                vectors, width = float(box.points), 1
                count += len(flats)
            else:
                extent = box.extents[axis]
                vectors, width = box.points / extent * -(-extent // config.lanes), config.lanes
                groups = -(-extent // (config.lanes * config.unroll))
                count += bx.access_cost(flats, axis, config.lanes) + 1.5 * groups * config.lanes / extent
                count += 4.0 / -(-extent // config.lanes)
            arithmetic += vectors * count / (target.fma_per_second / full)
            special += vectors * width * seconds
        moved, footprint = bx.touched_bytes(kernel)
        tasks = max(1, min(config.tasks, sum(x.points for x in found) // max(1, config.lanes)))
        cores = min(target.cores, tasks)
        uneven = 1.0 if tasks == 1 else 1 + 0.15 * cores / tasks
        launch = TASK_SECONDS * tasks + (target.launch_seconds + SMALL_SECONDS if tasks > 1 else 0.0)
        memory = target.seconds_for_bytes(moved, footprint, tasks)
        return Cost(arithmetic * uneven / cores, memory, special * uneven / cores, launch)

    def lower(self, kernel: Kernel, config: PointwiseConfig, target: Target) -> Lowered:
        b = bx.start(bx.function_name(self.name, kernel, config), kernel)
        first = 0
        found = bx.boxes(kernel)
        total = sum(x.points for x in found)
        for box in found:
            own = config._replace(tasks=share(config.tasks, box.points, total))
            first += lower_box(b, kernel, box, own, first, len(found) == 1)
        return Lowered([Launch(b.finish(), first)] if first else [])
