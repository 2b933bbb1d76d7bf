"""List the configurations of a reduction worth pricing, and predict their cost."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from math import gcd, inf, prod
from typing import NamedTuple

from einsmith.cost.facts import LINE, Target
from einsmith.cost.memory_traffic import PAGE, fetches_result_lines, waited_part
from einsmith.cost.roofline import Cost, distribute
from einsmith.ir.analysis.bounds import Facts
from einsmith.ir.nodes import Apply, Axis, cached_postorder
from einsmith.kernels.emit import boxes
from einsmith.kernels.emit.boxes import Box
from einsmith.kernels.reduction.axes import (
    MAX_UNROLLED,
    ReductionConfig,
    ReductionSchedule,
    bounds,
    boxes_of,
    column_axis,
    innermost,
    reduced_axes,
    schedule,
)
from einsmith.schedule.footprint import touched_bytes
from einsmith.schedule.kernel import Kernel

SPLITTABLE = ("sum", "prod", "max", "min")
"""Combiners whose reduction may be split into parts."""
_STEP = {"max": 3.0, "min": 3.0, "argmax": 5.0, "argmin": 5.0}
"""Instructions of a combiner's step where it is not a single one: NaN is propagated, arg-reductions carry an index."""
_MERGE = {"argmax": 14.0, "argmin": 14.0}
"""Instructions that merge two states, for combiners where it is not a single one."""
_LATENCY = {"max": 15.0, "min": 15.0, "argmax": 26.0, "argmin": 26.0}
"""Latency of a combiner's step (instructions that could issue meanwhile); 8 for combiners that are not listed."""
_TILES = ((2, 2), (2, 4), (4, 1), (4, 2), (4, 4), (6, 4), (8, 1), (8, 2))
"""Register tiles tried, as (rows, vectors)."""
_TURNED = (1, 4, 8, 12)
"""Rows of the register tiles of one vector tried with reads that are transposed in registers."""
_BEHIND = 0.2
"""Fraction of the shorter of multiply-adds and loads that is not hidden behind the longer one (345 reductions of random
shapes). Other operations wait for their loads: nothing is hidden."""
_UNALIGNED = 1.5
"""Loads that one vector along the reduction counts as: rows begin anywhere, so half of the loads cross cache lines."""
_WALK = 60.0
"""Cycles of a page walk on a miss in all TLBs (measured: products whose reduction goes over 2,365 and 2,934 rows of 8
and 14 KB, 3 of 153 kernels of random shapes)."""
PARTIAL = 5e-11
"""Seconds per byte of partial results, which a second launch merges."""
_LINES = 512
"""Cache lines that an L1 holds, about."""


def _rows(s: ReductionSchedule) -> int:
    """Return the rows of memory that a register tile reads or writes a few vectors of at once; 0 without a tile.

    Written rows count twice: a line is read before a part of it is written."""
    if s.tile is None:
        return 0
    return min(s.config.rows, s.box.extents[s.tile]) * (2 + sum(s.tile in f.axes for f in s.box.flats))


@lru_cache(maxsize=4096)
def _jumps(s: ReductionSchedule) -> float:
    """Return the fraction by which memory time grows because consecutive iterations read different rows.

    The fewer bytes are read of a row, the larger it is. It is largest where rows lie a multiple of a page apart, as
    they then fall into the same few cache sets. Lanes along a strided reduction pay it as well: each takes one element
    of a line, which is evicted before the next result needs another. The rows of an unrolled window pay a little."""
    box, axis = s.box, s.axis
    if axis is None or not box.reduce or (s.along_row and box.reduced < _LINES):
        return 0.0
    inner, wide = Axis(s.last), 1 if s.along_row else s.config.lanes * s.wide
    lost = 0.0
    axes = reduced_axes(box)
    unrolled = () if s.along_row else axes[len(axes) - innermost(box, axes) :]
    for f, item in box.sized_flats:
        visit, stride, step = item * wide, item * abs(f.coefficient(inner)), abs(f.coefficient(Axis(axis)))
        along = stride >= LINE if s.along_row else f.coefficient(Axis(axis)) == 1
        if along and stride >= 2 * visit:
            lost = max(lost, (40 + 190 * (gcd(stride, PAGE) / PAGE) ** 0.5) / visit)
        reach = step * visit
        if 1 <= step <= 4 and any(item * abs(f.coefficient(Axis(a))) >= 2 * reach for a in unrolled):
            lost = max(lost, 100 / reach)
    return lost


def _walks(s: ReductionSchedule, target: Target) -> float:
    """Return the cycles of TLB misses per iteration of the reduction: it walks more pages than a core's TLBs hold."""
    if s.axis is None or not s.box.reduce:
        return 0.0
    points = s.box.reduce[s.last - s.box.rank] * s.walked.get(s.last, 1.0)
    stride = max((item * abs(f.coefficient(Axis(s.last))) for f, item in s.box.sized_flats), default=0)
    begun = min(1.0, stride / PAGE)
    return _WALK * begun * min(1.0, max(0.0, points * begun / target.overheads.most_pages - 1))


def _states(box: Box) -> int:
    """Return the registers that the accumulators of one result take."""
    return 2 if box.combiner is not None and box.combiner.startswith("arg") else len(box.bodies)


def _tiles(found: Sequence[Box], lanes: int, target: Target) -> list[tuple[int, int]]:
    """Return the register tiles worth pricing, as (rows, vectors).

    Some access is shared by the rows of each, and its accumulators fit the registers."""
    out = []
    wide = [x for x in found if x.combiner and x.reduced >= 4 and x.rank > 1 and max(x.extents) >= lanes]
    for rows, unroll in _TILES:
        some = [schedule(x, ReductionConfig("column", lanes, unroll, 1, 1, rows)) for x in wide]
        tiled = [
            (s.box, s.tile)
            for s in some
            if s.tile is not None
            and s.column is not None
            and s.box.extents[s.column] >= lanes
            and s.box.extents[s.tile] >= rows
        ]
        if tiled and all(
            rows * unroll * _states(x) + unroll + 2 <= target.vector_registers
            and any(tile not in f.axes for f in x.flats)
            for x, tile in tiled
        ):
            out.append((rows, unroll))
    return out


def _turns(box: Box, config: ReductionConfig, target: Target) -> bool:
    """Return whether transposed square tiles are worth pricing: a tile fits the registers together with the
    accumulators, and the body, which is repeated for each column of the tile, is short."""
    body = cached_postorder(box.bodies)
    instructions = len(body) - sum(isinstance(e, Axis) for e in body)
    fits = config.lanes + config.rows * _states(box) + 2 <= target.vector_registers
    if not fits or config.lanes * config.rows * instructions > 3 * MAX_UNROLLED:
        return False
    s = schedule(box, config)
    tall = config.rows == 1 or (s.tile is not None and box.extents[s.tile] > 1)
    return tall and bool(s.turned)


def configs(kernel: Kernel, target: Target) -> list[ReductionConfig]:
    """Return the configurations worth pricing for a kernel."""
    lanes = boxes.lanes_of(kernel, target)
    found = boxes_of(kernel)
    modes = ["row"] if any(x.reduce for x in found) else []
    if any(x.rank for x in found) or not modes:
        modes.append("column")
    alone = target.cores == 1  # one task is as fast as several, and one part of the reduction
    tasks = (1,) if alone else (1, target.cores, 4 * target.cores)
    out = [ReductionConfig(m, lanes, u, t, 1) for m in modes for u in _unrolls(found, m, lanes) for t in tasks]
    wide: list[int] = []
    if "column" in modes:
        columns = [column_axis(x, lanes) for x in found]
        vectors = [-(-x.extents[a] // lanes) for x, a in zip(found, columns, strict=True) if a is not None]
        room = target.vector_registers // (2 * max((len(x.bodies) for x in found), default=1))
        wide = [u for u in (8, 16) if u <= min(max(vectors, default=0), room)]
        made = [ReductionConfig("column", lanes, u, 1, 1) for u in wide]
        made += [ReductionConfig("column", lanes, u, 1, 1, r) for r, u in _tiles(found, lanes, target)]
        turning = [
            x
            for x, a in zip(found, columns, strict=True)
            if x.reduce and (a, x.rank + len(x.reduce) - 1) in boxes.square_tiles(x, x.bodies)
        ]
        turned = [ReductionConfig("column", lanes, 1, 1, 1, r, True) for r in _TURNED]
        made += [c for c in turned if any(_turns(x, c, target) for x in turning)]
        out += [c._replace(tasks=t) for c in made for t in tasks]
    if lanes > 4 and all(max((*x.extents, *x.reduce), default=1) <= lanes // 2 for x in found):
        out += [ReductionConfig(m, lanes // 2, 1, t, 1) for m in modes for t in tasks]
    if len(found) == 1 and found[0].combiner in SPLITTABLE and found[0].reduced >= 64 and not alone:
        for m, splits in product(modes, (target.cores, 4 * target.cores)):
            for u in (4, *(wide if m == "column" else ())):
                s = schedule(found[0], ReductionConfig(m, lanes, u, 1, splits))
                if s.cut is not None and s.parts > 1 and not any(bounds(s.box, s.cut)):
                    out.append(s.config)
    return out


def _unrolls(found: Sequence[Box], mode: str, lanes: int) -> list[int]:
    """Return the numbers of vectors at once worth pricing; a lone box needs no more than it has, rounded up."""
    s = schedule(found[0], ReductionConfig(mode, lanes, 1, 1, 1)) if len(found) == 1 else None
    vectors = 4 if s is None or s.axis is None else s.vectors
    return [u for u in (1, 2, 4) if u < 2 * vectors]


class _Work(NamedTuple):
    """The work of a box on one core.

    arithmetic, special: seconds of arithmetic and of special functions. parts: most tasks that the outputs can be
    split into (None: the box is one task). again: bytes that are reloaded from beyond L2."""

    arithmetic: float
    special: float
    parts: int | None
    again: float = 0.0


@lru_cache(maxsize=4096)
def _operations(box: Box, target: Target) -> tuple[float, float, float, float]:
    """Return (vector instructions, special-function seconds) of the bodies per point, then of the stages per result."""
    count, seconds = boxes.operations(box.bodies, target)
    if box.combiner == "sum":  # a product is multiplied and added in one instruction
        count -= sum(isinstance(e, Apply) and e.fn == "mul" and e.dtype.is_float for e in box.bodies)
    count -= sum(isinstance(e, Apply) and (e.fn == "where" or e.dtype.is_bool) for e in cached_postorder(box.bodies))
    return count, seconds, *boxes.operations(box.stages, target)


@lru_cache(maxsize=8192)
def _work(s: ReductionSchedule, target: Target) -> _Work:
    """Return the work of a box under a schedule of one task and one part."""
    rate = 2 / target.cycle_seconds
    box, c = s.box, s.config
    count, seconds, after, after_seconds = _operations(box, target)
    rest = box.epilogue_flats
    total = box.points * box.reduced
    if s.axis is None:
        arithmetic = (total * (count + len(box.flats) + 4.0) + box.points * (after + len(rest))) / rate
        return _Work(arithmetic, total * seconds + box.points * after_seconds, None)
    extent, chains, turns = s.extent, s.wide, box.reduced
    vectors = total / extent * s.vectors
    if s.walked:
        part, group = s.walked.get(s.axis, 1.0), c.lanes * chains
        if part < 1:  # the range begins and ends within groups
            vectors = total / extent * chains * min(extent / group, part * extent / group + 1)
        vectors *= prod(x for a, x in s.walked.items() if a != s.axis)
    if s.pairs is not None:
        vectors = total / (2 * extent) * -(-2 * extent // c.lanes)
    if s.tile is not None:
        chains *= min(c.rows, box.extents[s.tile])
    if s.along_row:
        turns //= c.lanes * chains
    kind = box.combiner or ""
    wait = _LATENCY.get(kind, 8.0) / chains * min(1.0, turns / 32)
    loads = s.access * 2 / target.multiplies * (_UNALIGNED if s.along_row else 1.0)
    step = count + _STEP.get(kind, 2 / target.multiplies)
    behind = _BEHIND if kind == "sum" and count == 0 else 1.0
    point = max(max(step, loads) + behind * min(step, loads), wait)
    point += 2.0 / max(1, extent // c.lanes) / chains * min(1.0, turns / 32)
    arithmetic = vectors * point / rate
    special = vectors * c.lanes * seconds
    if not s.along_row:
        arithmetic += vectors / chains * _walks(s, target) * target.cycle_seconds
    if s.along_row:
        merges = c.lanes.bit_length() + 1.5 * chains
        each = after + len(rest) + merges * _MERGE.get(kind, 1.0) * len(box.bodies)
        arithmetic += box.points * each / rate
        special += box.points * after_seconds * c.lanes
        return _Work(arithmetic, special, box.points, _again(s, target))
    results = box.points / extent * s.vectors
    merges = 0.0 if s.pairs is None else (2.0 + _STEP.get(kind, 1.0)) * len(box.bodies)
    arithmetic += results * (after + boxes.access_cost(rest, s.axis, c.lanes) + 4 + merges) / rate
    special += results * c.lanes * after_seconds
    parts = box.points // extent * -(-extent // (c.lanes * c.unroll))
    return _Work(arithmetic, special, parts, _again(s, target))


def _again(s: ReductionSchedule, target: Target) -> float:
    """Return the bytes that are reloaded from beyond L2.

    An operand that does not depend on an output axis is read again at each of its points, unless all that is read of
    the operand inside that loop stays in L2."""
    box = s.box
    if max([item for _, item in box.sized_flats], default=0) * box.points * box.reduced <= target.l2:
        return 0.0
    inner = [a for a in (s.tile, s.axis) if a is not None and a < box.rank]
    at_once = {s.tile: s.config.rows, s.axis: s.config.lanes * s.config.unroll}
    out, facts = 0.0, Facts((*box.extents, *box.reduce))
    for flat, item in box.sized_flats:
        inside, (low, high) = flat.axes, facts.interval(flat)
        room = inf if low is None or high is None else item * (high - low + 1.0)  # windows and remainders overlap
        reduced = [n * s.walked.get(a, 1.0) for a, n in enumerate(box.reduce, box.rank) if a in inside]
        span, times = min(room, item * prod(reduced)), 1.0
        for a in (*inner, *(a for a in reversed(range(box.rank)) if a not in inner)):
            n = box.extents[a]
            if a in inside:
                span = min(room, span * n)
            elif span > target.l2:
                times *= -(-n // at_once.get(a, 1))
        out += span * (times - 1)
    return out


def _in_strips(kernel: Kernel, s: ReductionSchedule, target: Target) -> float:
    """Return the bytes of results whose line fetches stall a tile that writes several rows at once (`waited_part`)."""
    box, (tile, axis) = s.box, (s.tile, s.axis)
    if tile is None or axis is None or axis != box.rank - 1 or s.along_row:
        return 0.0
    items = [kernel.buffers[n].dtype.itemsize for _, n, _ in box.stores]
    waited = sum([item for item in items if fetches_result_lines(item * box.extents[axis])])
    return waited * box.points * float(waited_part(box.extents[tile], target.overheads.streams))


def _fetched_bytes(kernel: Kernel, s: ReductionSchedule) -> int:
    """Return the bytes of non-temporal results whose vectors begin within cache lines.

    These lines are fetched before they are written."""
    box = s.box
    stores = [(f, kernel.buffers[n].dtype.itemsize) for _, n, f in box.stores if kernel.buffers[n].non_temporal]
    apart = [a for a, n in enumerate(box.extents) if n > 1 and a != s.axis]
    within = s.along_row or any(item * f.coefficient(Axis(a)) % LINE for f, item in stores for a in apart)
    return within * box.points * sum([item for _, item in stores])


def cost(kernel: Kernel, found: Sequence[Box], config: ReductionConfig, target: Target) -> Cost:
    """Return the predicted cost of some of the kernel's boxes in a configuration.

    Arithmetic is points times instructions over the vector rate, or the latency of the accumulators; memory is bytes.
    """
    moved, footprint = touched_bytes(kernel, LINE)
    one = config.tasks == config.splits == 1
    schedules = [schedule(box, config if one else config._replace(tasks=1, splits=1)) for box in found]
    work = [_work(s, target) for s in schedules]
    tasks = max(1, sum([1 if w.parts is None or one else min(config.tasks, w.parts) for w in work]))
    beside = 0.0
    if config.splits > 1 and len(found) == 1:
        parts = schedule(found[0], config).parts
        tasks *= parts
        beside = 1e-6 + parts * found[0].points * PARTIAL * sum([e.dtype.itemsize for e in found[0].bodies])
    memory = target.seconds_for_bytes(moved + sum([_fetched_bytes(kernel, s) for s in schedules]), footprint, tasks)
    if footprint > target.l1 and found:
        far = footprint > target.l2 * tasks  # beyond L2, rows that are read in turn stall too
        beside += memory * max(max(_jumps(s), far * target.overheads.crowding(_rows(s))) for s in schedules)
    strips = sum([_in_strips(kernel, s, target) for s in schedules])
    beside += target.overheads.strips * strips / LINE * target.cycle_seconds / tasks * (strips > target.l2 * tasks)
    again = sum([w.again for w in work])
    if again:
        memory += target.seconds_for_bytes(again, footprint + target.l2 * target.cores, tasks)
    arithmetic, special = sum([w.arithmetic for w in work]), sum([w.special for w in work])
    whole = distribute(arithmetic, memory, special, tasks, target)
    return whole._replace(launch=whole.launch + beside)
