"""Lower pointwise kernels (no reduction): one vectorised pass over each canonical box, with any number of results."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import NamedTuple

from einsmith.codegen.loopnest.nest import Builder
from einsmith.codegen.ssa import SSAValue
from einsmith.cost.facts import LINE, Target
from einsmith.cost.overheads import INSTRUCTIONS
from einsmith.cost.roofline import distribute
from einsmith.ir.analysis.linear import linear
from einsmith.ir.nodes import Piece, Reduce
from einsmith.kernels.emit import boxes, loops
from einsmith.kernels.emit.boxes import Box
from einsmith.kernels.emit.loops import Ramps
from einsmith.kernels.emit.vector import LanePattern, VectorEmitter
from einsmith.kernels.pattern import Cost, Launch, Lowered, Pattern
from einsmith.schedule.footprint import touched_bytes
from einsmith.schedule.kernel import Beyond, Kernel

MAX_TRANSPOSED_INSTRUCTIONS = 20
"""Most instructions of a body that is repeated for every row of a transposed square tile."""


class PointwiseConfig(NamedTuple):
    """A configuration of the pointwise pattern.

    lanes: vector length. unroll: vectors per iteration. tasks: parallel tasks. turn: load reads that are contiguous
    along another axis than the results as square tiles, and transpose them in registers."""

    lanes: int
    unroll: int
    tasks: int
    turn: bool = False


@lru_cache(maxsize=4096)
def choose_vector_axis(box: Box, lanes: int) -> int | None:
    """Return the output axis that is cheapest per point to vectorise; None: there is none."""
    flats = box.every_flat

    def cost(axis: int) -> tuple[float, int]:
        return (boxes.access_cost(flats, axis, lanes, box.guarded) + 1) / boxes.lane_utilization(
            box.extents[axis], lanes
        ), -axis

    return min(range(box.rank), key=cost, default=None)


@lru_cache(maxsize=4096)
def choose_tile_axes(box: Box, lanes: int) -> tuple[float, int, int] | None:
    """Return (instructions of a vector's accesses, axis of the lanes, axis across them) of the cheapest square tiles.

    None where no reads form square tiles. A tile's rows are loaded and transposed by one shuffle per row and bit."""
    flats = box.every_flat
    best = None
    for (along, across), reads in boxes.square_tiles(box, box.exprs).items():
        if len(reads) > 3:
            continue
        of_reads = [linear(r.index[0]) for r in reads]
        other_cost = boxes.access_cost(flats, along, lanes) - boxes.access_cost(of_reads, along, lanes)
        tile_cost = len(reads) * (1 + 2 * (lanes.bit_length() - 1)) / boxes.lane_utilization(box.extents[across], lanes)
        candidate = (
            (other_cost + tile_cost) / boxes.lane_utilization(box.extents[along], lanes),
            other_cost + tile_cost,
            along,
            across,
        )
        best = min(best or candidate, candidate)
    return best[1:] if best else None


def _choose_axes(box: Box, config: PointwiseConfig) -> tuple[int | None, tuple[float, int, int] | None]:
    """Return the axis of the lanes (None: scalar code), and `choose_tile_axes` if reads are transposed."""
    tile = choose_tile_axes(box, config.lanes) if config.turn else None
    return choose_vector_axis(box, config.lanes) if tile is None else tile[1], tile


def beyond_limit(box: Box, config: PointwiseConfig) -> Beyond:
    """Return how the code of `lower_box` for a `LimitedKernel` treats points beyond the limit: vectors along axis 0 may
    reach there."""
    axis, tile = _choose_axes(box, config)
    return Beyond.TOUCHED if axis == 0 or (tile is not None and tile[2] == 0) else Beyond.UNTOUCHED


def lower_box(b: Builder, kernel: Kernel, box: Box, config: PointwiseConfig, first: int, alone: bool = False) -> int:
    """Emit one box for the tasks from `first` on, and return how many tasks it takes.

    alone: no other box shares the launch."""
    axis, tile = _choose_axes(box, config)
    em = loops.make_emitter(b, kernel, box.extents, 0 if axis is None else config.lanes)
    loops.limit_points(em, kernel, box)
    if tile is not None:
        _, along, across = tile
        emit_tile = partial(_emit_transposed_tile, em, box, along, across)
        return loops.BoxSweep(em, box, along, 1, emit_tile, across, em.lanes).emit_tasks(config.tasks, first, alone)

    def bind_lanes(lanes: LanePattern, active: int | None) -> None:
        if axis is not None:
            em.bind(axis, lanes)
        em.mask = active

    def emit(ramps: Ramps, *_) -> None:
        values_by_vector = []
        for at in ramps:
            bind_lanes(*at)
            values_by_vector.append(_evaluate_point(em, box))
        for at, values in zip(ramps, values_by_vector, strict=True):
            bind_lanes(*at)
            loops.store_point(em, box, values)

    return loops.BoxSweep(em, box, axis, config.unroll, emit).emit_tasks(config.tasks, first, alone)


def _emit_transposed_tile(
    em: VectorEmitter, box: Box, along: int, across: int, ramps: Ramps, base: SSAValue | int, rows: int
) -> None:
    """Emit one square tile: results have axis `along` in their lanes, loads have axis `across`."""
    n, ((lanes, active),) = em.lanes, ramps
    em.give({})
    reads = boxes.square_tiles(box, box.exprs)[along, across]
    columns = {read: loops.load_transposed(em, read, along, lanes, active, across, base, rows) for read in reads}
    em.mask = active
    for c in range(rows):
        em.bind(across, LanePattern(base, (c,) * n, n))
        em.bind(along, lanes)
        em.give({read: transposed[c] for read, transposed in columns.items()})
        loops.store_point(em, box, _evaluate_point(em, box))


def _evaluate_point(em: VectorEmitter, box: Box) -> dict[int, SSAValue]:
    return loops.evaluate_point(em, box, [em.emit(e) for e in box.bodies])


@lru_cache(maxsize=4096)
def _estimate_work(kernel: Kernel, config: PointwiseConfig, target: Target) -> tuple[int, float, float]:
    """Return (points, seconds of arithmetic, seconds of special functions) on one core."""
    arithmetic = special = 0.0
    box_list, rate = boxes.boxes(kernel), boxes.vectors_per_second(target)
    for box in box_list:
        (axis, tile), flats, lanes = _choose_axes(box, config), box.every_flat, config.lanes
        count, seconds = boxes.operations(box.exprs, target)
        points = vectors = float(box.points)
        if axis is None:
            count += len(flats)
        else:
            extent = box.extents[axis]
            vectors = box.points / extent * -(-extent // lanes)
            points = vectors * lanes
            if tile is not None:
                count += tile[0] + 1.5
            else:
                inner, inner_seconds = boxes.operations(box.exprs, target, axis)
                before, seconds_before = count - inner, seconds - inner_seconds
                count, seconds = inner, inner_seconds
                arithmetic += box.points / extent * before / rate
                special += box.points / extent * lanes * seconds_before
                groups = -(-extent // (lanes * config.unroll))
                count += boxes.access_cost(flats, axis, lanes, box.guarded) + 1.5 * groups * lanes / extent
                count += 4.0 / -(-extent // lanes)
        arithmetic += vectors * count / rate
        special += points * seconds
    return sum([x.points for x in box_list]), arithmetic, special


class Pointwise(Pattern):
    """The pattern of kernels without a reduction or scatter, of one or several pieces, with their epilogue."""

    name = "pointwise"

    def match(self, kernel: Kernel) -> bool:
        return all(isinstance(p, Piece) and not isinstance(p.body, Reduce) for p in kernel.root.parts)

    def floor(self, kernel: Kernel, target: Target) -> float:
        """Return a lower bound (seconds): the operations, with every access at its cheapest, on all cores."""
        seconds, rate = 0.0, boxes.vectors_per_second(target) * boxes.lanes_of(kernel, target)
        for box in boxes.boxes(kernel):
            count, special = boxes.operations(box.exprs, target)
            count += INSTRUCTIONS.uniform * len(box.every_flat)
            seconds += box.points * (count / rate + special)
        return seconds / target.cores

    def configs(self, kernel: Kernel, target: Target) -> list[PointwiseConfig]:
        lanes = boxes.lanes_of(kernel, target)
        count = max((boxes.operations(x.exprs, target)[0] for x in boxes.boxes(kernel)), default=0)
        unrolls = (1, 2, 4) if count <= 12 else (1, 2) if count <= 40 else (1,)
        tasks = (1, target.cores, 4 * target.cores) if target.cores > 1 else (1,)
        widths = [lanes]
        if lanes > 4 and all(x.extents and max(x.extents) <= lanes // 2 for x in boxes.boxes(kernel)):
            widths.append(lanes // 2)
        out = [PointwiseConfig(w, u, t) for w in widths for u in unrolls for t in tasks]
        if count <= MAX_TRANSPOSED_INSTRUCTIONS and lanes <= target.vector_registers // 2:
            if any(choose_tile_axes(x, lanes) for x in boxes.boxes(kernel)):
                out += [PointwiseConfig(lanes, 1, t, True) for t in tasks]
        return out

    def cost(self, kernel: Kernel, config: PointwiseConfig, target: Target) -> Cost:
        """Return the cost: instructions over the vector rate, bytes over the bandwidth of the level holding them."""
        points, arithmetic, special = _estimate_work(
            kernel, config if config.tasks == 1 else config._replace(tasks=1), target
        )
        tasks = max(1, min(config.tasks, points // max(1, config.lanes)))
        memory = target.seconds_for_bytes(*touched_bytes(kernel, LINE), tasks)
        return distribute(arithmetic, memory, special, tasks, target)

    def lower(self, kernel: Kernel, config: PointwiseConfig, target: Target) -> Lowered:
        b = Builder(boxes.function_name(self.name, kernel, config), len(kernel.buffers) + 1)

        def emit(box: Box, tasks: int, first: int, alone: bool) -> int:
            return lower_box(b, kernel, box, config._replace(tasks=tasks), first, alone)

        box_list = boxes.boxes(kernel)
        count = loops.distribute_tasks(box_list, config.tasks, emit, loops.count_blocks(kernel, target))
        beyond = min((beyond_limit(x, config) for x in box_list), default=Beyond.UNTOUCHED)
        return Lowered([Launch(b.finish(), count)] if count else [], beyond=beyond)
