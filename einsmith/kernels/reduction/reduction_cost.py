"""List the configurations of a reduction worth pricing, and predict their cost."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from math import gcd, inf, prod
from typing import NamedTuple

from einsmith.cost.facts import LINE, Target
from einsmith.cost.memory_traffic import PAGE, fetches_result_lines, waited_part
from einsmith.cost.overheads import INSTRUCTIONS
from einsmith.cost.roofline import Cost, distribute
from einsmith.ir.analysis.bounds import Facts
from einsmith.ir.nodes import Apply, Axis, cached_postorder
from einsmith.kernels.emit import boxes
from einsmith.kernels.emit.boxes import Box
from einsmith.kernels.reduction.axes import (
    MAX_UNROLLED,
    ReductionConfig,
    ReductionSchedule,
    boxes_of,
    choose_column_axis,
    count_unrolled,
    find_bounds,
    reduced_axes,
    schedule,
)
from einsmith.schedule.footprint import touched_bytes
from einsmith.schedule.kernel import Kernel

SPLITTABLE = ("sum", "prod", "max", "min")
"""Combiners whose reduction may be split into parts."""
_REGISTER_TILES = ((2, 2), (2, 4), (4, 1), (4, 2), (4, 4), (6, 4), (8, 1), (8, 2))
"""Register tiles that are priced, as (rows, vectors)."""
_TRANSPOSED_TILE_ROWS = (1, 4, 8, 12)
"""Rows of the register tiles, one vector wide, that are priced with reads transposed in registers."""
_L1_LINES = 512
"""Cache lines that an L1 holds (32 KB)."""


def _count_streams(s: ReductionSchedule) -> int:
    """Return the rows of memory that a register tile reads or writes a few vectors of at once; 0 without a tile.

    Written rows count twice: a line is read before a part of it is written. A square tile that is transposed in
    registers reads a row for each lane."""
    if s.config.turn:
        return s.config.lanes * len(s.transposed_reads)
    if s.tile is None:
        return 0
    return min(s.config.rows, s.box.extents[s.tile]) * (2 + sum(s.tile in f.axes for f in s.box.flats))


@lru_cache(maxsize=4096)
def conflict_fraction(s: ReductionSchedule) -> float:
    """Return the fraction by which memory time grows because consecutive iterations read different rows.

    The fewer bytes are read of a row, the larger it is. It is largest where rows lie a multiple of a page apart, as
    they then fall into the same few cache sets. Lanes along a strided reduction pay it as well: each takes one element
    of a line, which is evicted before the next result needs another. The rows of an unrolled window pay a little."""
    box, axis = s.box, s.axis
    if axis is None or not box.reduce or (s.along_row and box.reduced < _L1_LINES):
        return 0.0
    inner, wide = Axis(s.last), 1 if s.along_row else s.config.lanes * s.vectors_at_once
    fraction = 0.0
    axes = reduced_axes(box)
    unrolled = () if s.along_row else axes[len(axes) - count_unrolled(box, axes) :]
    for f, item in box.sized_flats:
        visit, stride, step = item * wide, item * abs(f.coefficient(inner)), abs(f.coefficient(Axis(axis)))
        along = stride >= LINE if s.along_row else f.coefficient(Axis(axis)) == 1
        if along and stride >= 2 * visit:
            fraction = max(fraction, (40 + 190 * (gcd(stride, PAGE) / PAGE) ** 0.5) / visit)
        reach = step * visit
        if 1 <= step <= 4 and any(item * abs(f.coefficient(Axis(a))) >= 2 * reach for a in unrolled):
            fraction = max(fraction, 100 / reach)
    return fraction


def _count_registers(box: Box) -> int:
    """Return the registers that the accumulators of one result take (vectors per vector of results)."""
    return 2 if box.combiner is not None and box.combiner.startswith("arg") else len(box.bodies)


def _list_register_tiles(box_list: Sequence[Box], lanes: int, target: Target) -> list[tuple[int, int]]:
    """Return the register tiles worth pricing, as (rows, vectors).

    Some access is shared by the rows of each, and its accumulators fit the registers."""
    out = []
    candidates = [x for x in box_list if x.combiner and x.reduced >= 4 and x.rank > 1 and max(x.extents) >= lanes]
    for rows, unroll in _REGISTER_TILES:
        schedules = [schedule(x, ReductionConfig("column", lanes, unroll, 1, 1, rows)) for x in candidates]
        tiled = [
            (s.box, s.tile)
            for s in schedules
            if s.tile is not None
            and s.column is not None
            and s.box.extents[s.column] >= lanes
            and s.box.extents[s.tile] >= rows
        ]
        if tiled and all(
            rows * unroll * _count_registers(x) + unroll + 2 <= target.vector_registers
            and any(tile not in f.axes for f in x.flats)
            for x, tile in tiled
        ):
            out.append((rows, unroll))
    return out


def _can_transpose(box: Box, config: ReductionConfig, target: Target) -> bool:
    """Return whether transposed square tiles are worth pricing: a tile fits the registers together with the
    accumulators, and the body, which is repeated for each column of the tile, is short."""
    body = cached_postorder(box.bodies)
    instructions = len(body) - sum(isinstance(e, Axis) for e in body)
    fits = config.lanes + config.rows * _count_registers(box) + 2 <= target.vector_registers
    if not fits or config.lanes * config.rows * instructions > 3 * MAX_UNROLLED:
        return False
    s = schedule(box, config)
    tall = config.rows == 1 or (s.tile is not None and box.extents[s.tile] > 1)
    return tall and bool(s.transposed_reads)


def configs(kernel: Kernel, target: Target) -> list[ReductionConfig]:
    """Return the configurations worth pricing for a kernel."""
    lanes = boxes.lanes_of(kernel, target)
    box_list = boxes_of(kernel)
    modes = ["row"] if any(x.reduce for x in box_list) else []
    if any(x.rank for x in box_list) or not modes:
        modes.append("column")
    single_core = target.cores == 1  # one task is as fast as several, and one part of the reduction
    tasks = (1,) if single_core else (1, target.cores, 4 * target.cores)
    out = [ReductionConfig(m, lanes, u, t, 1) for m in modes for u in _list_unrolls(box_list, m, lanes) for t in tasks]
    wide_unrolls: list[int] = []
    if "column" in modes:
        columns = [choose_column_axis(x, lanes) for x in box_list]
        vectors = [-(-x.extents[a] // lanes) for x, a in zip(box_list, columns, strict=True) if a is not None]
        room = target.vector_registers // (2 * max((len(x.bodies) for x in box_list), default=1))
        wide_unrolls = [u for u in (8, 16) if u <= min(max(vectors, default=0), room)]
        tiled = [ReductionConfig("column", lanes, u, 1, 1) for u in wide_unrolls]
        tiled += [
            ReductionConfig("column", lanes, u, 1, 1, r) for r, u in _list_register_tiles(box_list, lanes, target)
        ]
        transposable = [
            x
            for x, a in zip(box_list, columns, strict=True)
            if x.reduce and (a, x.rank + len(x.reduce) - 1) in boxes.square_tiles(x, x.bodies)
        ]
        transposed = [ReductionConfig("column", lanes, 1, 1, 1, r, True) for r in _TRANSPOSED_TILE_ROWS]
        tiled += [c for c in transposed if any(_can_transpose(x, c, target) for x in transposable)]
        out += [c._replace(tasks=t) for c in tiled for t in tasks]
    if lanes > 4 and all(max((*x.extents, *x.reduce), default=1) <= lanes // 2 for x in box_list):
        out += [ReductionConfig(m, lanes // 2, 1, t, 1) for m in modes for t in tasks]
    if len(box_list) == 1 and box_list[0].combiner in SPLITTABLE and box_list[0].reduced >= 64 and not single_core:
        for m, splits in product(modes, (target.cores, 4 * target.cores)):
            for u in (4, *(wide_unrolls if m == "column" else ())):
                s = schedule(box_list[0], ReductionConfig(m, lanes, u, 1, splits))
                if s.split_axis is not None and s.parts > 1 and not any(find_bounds(s.box, s.split_axis)):
                    out.append(s.config)
    return out


def _list_unrolls(box_list: Sequence[Box], mode: str, lanes: int) -> list[int]:
    """Return the numbers of vectors at once worth pricing; a lone box needs no more than it has, rounded up."""
    s = schedule(box_list[0], ReductionConfig(mode, lanes, 1, 1, 1)) if len(box_list) == 1 else None
    vectors = 4 if s is None or s.axis is None else s.vectors
    return [u for u in (1, 2, 4) if u < 2 * vectors]


class _Work(NamedTuple):
    """The work of a box on one core.

    arithmetic, special: seconds of arithmetic and of special functions. parts: most tasks that the outputs can be
    split into (None: the box is one task). reloaded: bytes that are reloaded from beyond L2."""

    arithmetic: float
    special: float
    parts: int | None
    reloaded: float = 0.0


@lru_cache(maxsize=4096)
def _operations(box: Box, target: Target) -> tuple[float, float, float, float]:
    """Return (vector instructions, special-function seconds) of the bodies per point, then of the stages per result."""
    count, seconds = boxes.operations(box.bodies, target)
    if box.combiner == "sum":  # a product is multiplied and added in one instruction
        count -= sum(isinstance(e, Apply) and e.fn == "mul" and e.dtype.is_float for e in box.bodies)
    count -= sum(isinstance(e, Apply) and (e.fn == "where" or e.dtype.is_bool) for e in cached_postorder(box.bodies))
    return count, seconds, *boxes.operations(box.stages, target)


def _mask_instructions(s: ReductionSchedule) -> float:
    """Return the instructions of the masks of guarded reads per vector of operations, beyond `access_cost`.

    The rows of a register tile share them. Where all reductions are unrolled, masks are computed once for many points.
    """
    box, axes = s.box, reduced_axes(s.box)
    unrolled = s.count_unrolled(axes)
    if s.along_row or s.axis is None or unrolled == len(axes):
        return 0.0
    adjacent, apart = INSTRUCTIONS.reduction_mask[unrolled > 0]
    out = 0.0
    for f in box.flats:
        stride = abs(f.coefficient(Axis(s.axis)))
        if f.key in box.guarded and 1 <= stride <= 4:
            shared = s.tile is not None and s.tile not in f.axes
            rows = min(s.config.rows, box.extents[s.tile]) if shared and s.tile is not None else 1
            out += (adjacent if stride == 1 else apart) / rows
    return out


@lru_cache(maxsize=8192)
def _estimate_work(s: ReductionSchedule, target: Target) -> _Work:
    """Return the work of a box under a schedule of one task and one part."""
    rate = 2 / target.cycle_seconds
    box, c = s.box, s.config
    count, seconds, after, after_seconds = _operations(box, target)
    rest = box.epilogue_flats
    total = box.points * box.reduced
    if s.axis is None:
        arithmetic = (total * (count + len(box.flats) + 4.0) + box.points * (after + len(rest))) / rate
        return _Work(arithmetic, total * seconds + box.points * after_seconds, None)
    extent, chains, iterations = s.extent, s.vectors_at_once, box.reduced
    vectors = total / extent * s.vectors
    if s.walked_fractions:
        part, group = s.walked_fractions.get(s.axis, 1.0), c.lanes * chains
        if part < 1:  # the range begins and ends within groups
            vectors = total / extent * chains * min(extent / group, part * extent / group + 1)
        vectors *= prod(x for a, x in s.walked_fractions.items() if a != s.axis)
    if s.paired_box is not None:
        vectors = total / (2 * extent) * -(-2 * extent // c.lanes)
    if s.tile is not None:
        chains *= min(c.rows, box.extents[s.tile])
    if s.along_row:
        iterations //= c.lanes * chains
    kind = box.combiner or ""
    wait = INSTRUCTIONS.step_latency.get(kind, 8.0) / chains * min(1.0, iterations / 32)
    loads = s.access_cost * 2 / target.multiplies * (target.overheads.unaligned_loads if s.along_row else 1.0)
    loads += _mask_instructions(s) * 2 / target.multiplies
    step = count + INSTRUCTIONS.step.get(kind, 2 / target.multiplies)
    exposed = target.overheads.exposed if kind == "sum" and count == 0 else 1.0
    point = max(max(step, loads) + exposed * min(step, loads), wait)
    point += 2.0 / max(1, extent // c.lanes) / chains * min(1.0, iterations / 32)
    arithmetic = vectors * point / rate
    special = vectors * c.lanes * seconds
    if s.along_row:
        merges = c.lanes.bit_length() + 1.5 * chains
        each = after + len(rest) + merges * INSTRUCTIONS.merge.get(kind, 1.0) * len(box.bodies)
        arithmetic += box.points * each / rate
        special += box.points * after_seconds * c.lanes
        return _Work(arithmetic, special, box.points, reloaded_bytes(s, target))
    results = box.points / extent * s.vectors
    merges = 0.0 if s.paired_box is None else (2.0 + INSTRUCTIONS.step.get(kind, 1.0)) * len(box.bodies)
    arithmetic += results * (after + boxes.access_cost(rest, s.axis, c.lanes) + 4 + merges) / rate
    special += results * c.lanes * after_seconds
    parts = box.points // extent * -(-extent // (c.lanes * c.unroll))
    return _Work(arithmetic, special, parts, reloaded_bytes(s, target))


def reloaded_bytes(s: ReductionSchedule, target: Target) -> float:
    """Return the bytes that are reloaded from beyond L2.

    An operand that does not depend on an output axis is read again at each of its points, unless all that is read of
    the operand inside that loop stays in L2. So are elements of the operand that several points read, such as those at
    positions read from data."""
    box = s.box
    if max([item for _, item in box.sized_flats], default=0) * box.points * box.reduced <= target.l2:
        return 0.0
    inner = [a for a in (s.tile, s.axis) if a is not None and a < box.rank]
    at_once = {s.tile: s.config.rows, s.axis: s.config.lanes * s.config.unroll}
    out, facts = 0.0, Facts((*box.extents, *box.reduce))
    for flat, item in box.sized_flats:
        inside, (low, high) = flat.axes, facts.interval(flat)
        most = inf if low is None or high is None else high - low + 1.0  # windows and remainders overlap
        room = item * min(most, box.elements.get(flat.key, inf))
        reduced = [n * s.walked_fractions.get(a, 1.0) for a, n in enumerate(box.reduce, box.rank) if a in inside]
        span, times = min(room, item * prod(reduced)), 1.0
        for a in (*inner, *(a for a in reversed(range(box.rank)) if a not in inner)):
            n = box.extents[a]
            if a in inside:
                times *= max(1.0, span * n / room) if span > target.l2 else 1.0
                span = min(room, span * n)
            elif span > target.l2:
                times *= -(-n // at_once.get(a, 1))
        out += span * (times - 1)
    return out


def stalled_bytes(kernel: Kernel, s: ReductionSchedule, target: Target) -> float:
    """Return the bytes of results whose line fetches stall a tile that writes several rows at once (`waited_part`)."""
    box, (tile, axis) = s.box, (s.tile, s.axis)
    if tile is None or axis is None or axis != box.rank - 1 or s.along_row:
        return 0.0
    items = [kernel.buffers[n].dtype.itemsize for _, n, _ in box.stores]
    waited = sum([item for item in items if fetches_result_lines(item * box.extents[axis])])
    return waited * box.points * float(waited_part(box.extents[tile], target.overheads.streams))


def fetched_bytes(kernel: Kernel, s: ReductionSchedule) -> int:
    """Return the bytes of non-temporal results whose vectors begin within cache lines.

    These lines are fetched before they are written."""
    box = s.box
    stores = [(f, kernel.buffers[n].dtype.itemsize) for _, n, f in box.stores if kernel.buffers[n].non_temporal]
    other_axes = [a for a, n in enumerate(box.extents) if n > 1 and a != s.axis]
    misaligned = s.along_row or any(item * f.coefficient(Axis(a)) % LINE for f, item in stores for a in other_axes)
    return misaligned * box.points * sum([item for _, item in stores])


def cost(kernel: Kernel, box_list: Sequence[Box], config: ReductionConfig, target: Target) -> Cost:
    """Return the predicted cost of some of the kernel's boxes in a configuration.

    Arithmetic is points times instructions over the vector rate, or the latency of the accumulators; memory is bytes.
    """
    moved, footprint = touched_bytes(kernel, LINE)
    undivided = config.tasks == config.splits == 1
    schedules = [schedule(box, config if undivided else config._replace(tasks=1, splits=1)) for box in box_list]
    work = [_estimate_work(s, target) for s in schedules]
    tasks = max(1, sum([1 if w.parts is None or undivided else min(config.tasks, w.parts) for w in work]))
    extra = 0.0
    if config.splits > 1 and len(box_list) == 1:
        parts = schedule(box_list[0], config).parts
        tasks *= parts
        partial = parts * box_list[0].points * sum([e.dtype.itemsize for e in box_list[0].bodies])
        extra = 1e-6 + target.seconds_for_bytes(2 * partial, partial, tasks)  # written, and read by a second launch
    memory = target.seconds_for_bytes(moved + sum([fetched_bytes(kernel, s) for s in schedules]), footprint, tasks)
    if footprint > target.l1 and box_list:
        beyond_l2 = footprint > target.l2 * tasks  # beyond L2, rows that are read in turn stall too
        extra += memory * max(
            max(conflict_fraction(s), beyond_l2 * target.overheads.crowding(_count_streams(s))) for s in schedules
        )
    strips = sum([stalled_bytes(kernel, s, target) for s in schedules])
    extra += target.overheads.strips * strips / LINE * target.cycle_seconds / tasks * (strips > target.l2 * tasks)
    reloaded = sum([w.reloaded for w in work])
    if reloaded:
        memory += target.seconds_for_bytes(reloaded, footprint + target.l2 * target.cores, tasks)
    arithmetic, special = sum([w.arithmetic for w in work]), sum([w.special for w in work])
    total = distribute(arithmetic, memory, special, tasks, target)
    return total._replace(launch=total.launch + extra)
