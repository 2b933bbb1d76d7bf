"""How a reduction is configured: what may pay, and what it costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from math import gcd, prod
from typing import NamedTuple

from einsmith.expr.nodes import Apply, Axis, Expr, below
from einsmith.kernels import elementwise as pointwise
from einsmith.kernels.emit import boxes as bx
from einsmith.kernels.emit.boxes import Box
from einsmith.kernels.footprint import touched_bytes
from einsmith.kernels.pattern import Cost
from einsmith.kernels.reduction.axes import (
    MAX_UNROLLED,
    ReductionConfig,
    body_access,
    body_nodes,
    bounded,
    bounds,
    boxes_of,
    column_axis,
    lanes_axis,
    mentioned,
    part_count,
    part_within,
    row_axis,
    split_axis,
    tile_axis,
    turned_reads,
    window,
)
from einsmith.kernels.reduction.windows_of_two import pairs_of
from einsmith.plan.kernel import Kernel
from einsmith.target.facts import Target

SPLITTABLE = ("sum", "prod", "max", "min")
_STEP = {"max": 3.0, "min": 3.0, "argmax": 5.0, "argmin": 5.0}
"""Instructions of a combiner's step where it is not one: NaN is kept, and an index goes along."""
_MERGE = {"argmax": 14.0, "argmin": 14.0}
"""Instructions of a merge of two states."""
_LATENCY = {"max": 15.0, "min": 15.0, "argmax": 26.0, "argmin": 26.0}
"""Instructions that run while an accumulator waits for its last step; 8 for the combiners that are not here."""
_TILES = ((2, 2), (2, 4), (4, 1), (4, 2), (4, 4), (6, 4), (8, 1), (8, 2))
"""Rows and vectors of register tiles."""
_TURNED = (1, 4, 8, 12)
"""Rows of register tiles of one vector, beside which reads are turned."""
_LINES = 512
"""Lines that a first-level cache keeps, about."""


@lru_cache(maxsize=4096)
def _jumps(box: Box, config: ReductionConfig) -> float:
    """By how much slower memory is where each turn of the reduction reads a few vectors of another row: the fewer bytes
    of a row, the worse, and worst where rows lie a page apart, which all fall into the same few sets of the cache. So
    it is with lanes along such rows: each takes one element of a line, gone before the next result needs another."""
    axis = lanes_axis(box, config) if box.combiner and box.reduce else None
    if axis is None or (axis >= box.rank and box.reduced < _LINES):
        return 1.0
    inner = Axis(box.rank + len(box.reduce) - 1)
    wide = 1 if axis >= box.rank else config.lanes * min(config.unroll, -(-box.extents[axis] // config.lanes))
    visit = 4 * wide
    lost = 0.0
    for f in box.flats:
        stride = 4 * abs(f.coefficient(inner))
        along = f.coefficient(Axis(axis)) == 1 if axis < box.rank else stride >= 64
        if along and stride >= 2 * visit:
            lost = max(lost, 40 + 190 * (gcd(stride, 4096) / 4096) ** 0.5)
    return 1 + max(lost / visit, _window_jumps(box, axis, config))


def _window_jumps(box: Box, axis: int, config: ReductionConfig) -> float:
    """What `_jumps` adds where the rows of an unrolled window are read in turn, a few vectors of each at a time."""
    total = box.rank + len(box.reduce)
    lost = 0.0
    unrolled = range(total - window(box, axis, None), total) if axis < box.rank else ()
    for f in box.flats if unrolled else ():
        step = abs(f.coefficient(Axis(axis)))
        reach = 4 * step * config.lanes * min(config.unroll, -(-box.extents[axis] // config.lanes))
        for a in unrolled if 1 <= step <= 4 else ():
            if 4 * abs(f.coefficient(Axis(a))) >= 2 * reach:
                lost = max(lost, 100 / reach)
    return lost


def _tiles(found: Sequence[Box], lanes: int, target: Target) -> list[tuple[int, int]]:
    """(rows, vectors) of the register tiles that may pay: some access is shared by the rows, and the accumulators
    leave room in the registers."""
    out = []
    wide = [x for x in found if x.combiner and x.reduced >= 4 and x.rank > 1 and max(x.extents) >= lanes]
    for rows, unroll in _TILES:
        config = ReductionConfig("column", lanes, unroll, 1, 1, rows)
        fits = shared = False
        for x in wide:
            axis = lanes_axis(x, config)
            tile = tile_axis(x, axis, config)
            if tile is None or axis is None or x.extents[axis] < lanes or x.extents[tile] < rows:
                continue
            width = 2 if x.combiner is not None and x.combiner.startswith("arg") else len(x.bodies)
            fits = rows * unroll * width + unroll + 2 <= target.vector_registers
            shared = any(tile not in inside for inside in mentioned(x))
            if not (fits and shared):
                break
        if fits and shared:
            out.append((rows, unroll))
    return out


def _turns(box: Box, config: ReductionConfig, target: Target) -> bool:
    """Whether square tiles may pay: one fits the registers beside the accumulators, and the body, which is repeated for
    each of its columns, is short."""
    width = len(box.bodies) * (2 if box.combiner is not None and box.combiner.startswith("arg") else 1)
    fits = config.lanes + config.rows * width + 2 <= target.vector_registers
    if not fits or config.lanes * config.rows * _instructions(box) > 3 * MAX_UNROLLED:
        return False
    axis = lanes_axis(box, config)
    row = tile_axis(box, axis, config)
    tall = config.rows == 1 or (row is not None and box.extents[row] > 1)
    return tall and bool(turned_reads(box, axis, config))


@lru_cache(maxsize=1024)
def _instructions(box: Box) -> int:
    return body_nodes(box) - sum(isinstance(e, Axis) for e in below(box.bodies))


def configs(kernel: Kernel, target: Target) -> list[ReductionConfig]:
    """The configurations that may pay for a kernel."""
    lanes = bx.lanes_of(kernel, target)
    found = boxes_of(kernel)
    modes = []
    if any(x.reduce and row_axis(x, lanes) is not None for x in found):
        modes.append("row")
    if any(x.rank for x in found) or not modes:
        modes.append("column")
    alone = target.cores == 1  # one task is as fast as several, and one part of the reduction
    tasks = (1,) if alone else (1, target.cores, 4 * target.cores)
    out = [ReductionConfig(m, lanes, u, t, 1) for m in modes for u in _unrolls(found, m, lanes) for t in tasks]
    wide: list[int] = []
    if "column" in modes:
        vectors = max((-(-x.extents[a] // lanes) for x in found for a in [column_axis(x, lanes)] if a is not None),
                      default=0)
        room = target.vector_registers // (2 * max((len(x.bodies) for x in found), default=1))
        wide = [u for u in (8, 16) if u <= min(vectors, room)]
        out += [ReductionConfig("column", lanes, u, t, 1) for u in wide for t in tasks]
        tiles = _tiles(found, lanes, target)
        out += [ReductionConfig("column", lanes, u, t, 1, r) for r, u in tiles for t in tasks]
        turning = [x for x in found if x.reduce and x.rank and bx.may_turn(
            x.flats, column_axis(x, lanes), x.rank + len(x.reduce) - 1)]  # fmt: skip
        for r in _TURNED:
            config = ReductionConfig("column", lanes, 1, 1, 1, r, True)
            if any(_turns(x, config, target) for x in turning):
                out += [config._replace(tasks=t) for t in tasks]
    if lanes > 4 and all(max((*x.extents, *x.reduce), default=1) <= lanes // 2 for x in found):
        out += [ReductionConfig(m, lanes // 2, 1, t, 1) for m in modes for t in tasks]
    if len(found) == 1 and found[0].combiner in SPLITTABLE and found[0].reduced >= 64 and not alone:
        for m in modes:
            for s in (target.cores, 4 * target.cores):
                for u in (4, *(wide if m == "column" else ())):
                    config = ReductionConfig(m, lanes, u, 1, s)
                    cut = split_axis(found[0], lanes_axis(found[0], config))
                    if part_count(found[0], config) > 1 and not (cut is not None and any(bounds(found[0], cut))):
                        out.append(config)
    return out


def _unrolls(found: Sequence[Box], mode: str, lanes: int) -> list[int]:
    """Vectors at once: no more than a box that is alone has, rounded up."""
    axis = lanes_axis(found[0], ReductionConfig(mode, lanes, 1, 1, 1)) if len(found) == 1 else None
    vectors = 4 if axis is None else -(-(found[0].extents + found[0].reduce)[axis] // lanes)
    return [u for u in (1, 2, 4) if u < 2 * vectors]


class _Work(NamedTuple):
    """A box on one core, whatever the tasks: seconds of arithmetic and of special functions, into how many tasks the
    outputs can be cut at most (None: the box is one), and bytes that come from beyond the second level again."""

    arithmetic: float
    special: float
    parts: int | None
    again: float = 0.0


def _is_product(e: Expr) -> bool:
    """Whether it is multiplied and added in one instruction."""
    return isinstance(e, Apply) and e.fn == "mul" and e.dtype.is_float


@lru_cache(maxsize=4096)
def _operations(box: Box, target: Target) -> tuple[float, float, float, float]:
    """Vector instructions and special-function seconds: of the bodies at a point, of the stages at a result."""
    count, seconds = bx.operations(box.bodies, target)
    count -= sum(_is_product(e) for e in box.bodies) if box.combiner == "sum" else 0
    count -= sum(isinstance(e, Apply) and (e.fn == "where" or e.dtype.is_bool) for e in below(box.bodies))
    return count, seconds, *bx.operations(box.stages, target)


@lru_cache(maxsize=8192)
def _work(box: Box, full: int, config: ReductionConfig, target: Target) -> _Work:
    """full: lanes of a vector; config: with `tasks` and `splits` 1."""
    rate = 2 / target.cycle_seconds * (target.lanes() / full)
    axis = lanes_axis(box, config) if box.combiner else pointwise.vector_axis(box, config.lanes)
    count, seconds, after, after_seconds = _operations(box, target)
    rest = box.epilogue_flats
    total = box.points * box.reduced
    if axis is None:
        arithmetic = (total * (count + len(box.flats) + 4.0) + box.points * (after + len(rest))) / rate
        return _Work(arithmetic, total * seconds + box.points * after_seconds, None)
    extent = (box.extents + box.reduce)[axis]
    vectors = total / extent * -(-extent // config.lanes)
    chains = min(config.unroll, -(-extent // config.lanes))
    turns = box.reduced
    if bounded(box):
        part, group = part_within(box, axis, config) if axis >= box.rank else 1.0, config.lanes * chains
        if part < 1:  # groups are begun on both sides
            vectors = total / extent * chains * min(extent / group, part * extent / group + 1)
        outer = (a for a in range(box.rank, box.rank + len(box.reduce)) if a != axis)
        vectors *= prod(part_within(box, a, config) for a in outer)
    tile = tile_axis(box, axis, config)
    pairs = pairs_of(box, axis, config)
    if pairs is not None:
        vectors = total / (2 * extent) * -(-2 * extent // config.lanes)
        access = bx.access_cost(pairs.flats, box.rank + len(box.reduce) - 1, config.lanes, pairs.guarded)
    else:
        access = body_access(box, axis, tile, config)
    if tile is not None:
        chains *= min(config.rows, box.extents[tile])
    if axis >= box.rank:
        turns //= config.lanes * chains
    kind = box.combiner or ""
    wait = _LATENCY.get(kind, 8.0) / chains * min(1.0, turns / 32)
    point = max(count + _STEP.get(kind, 2 / target.multiplies) + access, wait)
    point += 2.0 / max(1, extent // config.lanes)
    arithmetic = vectors * point / rate
    special = vectors * config.lanes * seconds
    if axis >= box.rank:
        merges = config.lanes.bit_length() + 1.5 * chains
        each = after + len(rest) + merges * _MERGE.get(kind, 1.0) * len(box.bodies)
        arithmetic += box.points * each / rate
        special += box.points * after_seconds * config.lanes
        parts = box.points
    else:
        results = box.points / extent * -(-extent // config.lanes)
        merges = 0.0 if pairs is None else (2.0 + _STEP.get(kind, 1.0)) * len(box.bodies)
        arithmetic += results * (after + bx.access_cost(rest, axis, config.lanes) + 4 + merges) / rate
        special += results * config.lanes * after_seconds
        parts = box.points // extent * -(-extent // (config.lanes * config.unroll))
    again = _again(box, axis, config, target) if axis < box.rank and tile is None else 0.0
    return _Work(arithmetic, special, parts, again)


def _again(box: Box, axis: int, config: ReductionConfig, target: Target) -> float:
    """Bytes that are read once more for every point of the outer axes, where what the lanes' axis and the reduction
    walk through does not stay in the second level; a register tile has its rows inside of that."""
    extents: list[float] = [*box.extents, *box.reduce]
    if bounded(box):
        extents = [n if a < box.rank else n * part_within(box, a, config) for a, n in enumerate(extents)]
    out = 0.0
    for inside in mentioned(box) if 4 * box.points * box.reduced > target.l2 else ():
        turn = 4 * prod(extents[a] for a in inside if a == axis or a >= box.rank)
        if turn > target.l2:
            whole = 4 * prod(extents[a] for a in inside)
            out += whole * (prod(n for a, n in enumerate(box.extents) if a != axis and a not in inside) - 1)
    return out


class Boxes:
    """Boxes of a kernel, to be predicted in several configurations."""

    def __init__(self, kernel: Kernel, target: Target, found: tuple[Box, ...]):
        self.found, self.target, self.full = found, target, bx.lanes_of(kernel, target)
        self.moved, self.footprint = touched_bytes(kernel)

    def cost(self, config: ReductionConfig) -> Cost:
        """Points times instructions over the vector rate (a lone accumulator waits for itself), or bytes."""
        target, one = self.target, config.tasks == config.splits == 1
        alike = config if one else config._replace(tasks=1, splits=1)
        work = [_work(box, self.full, alike, target) for box in self.found]
        tasks = max(1, sum([1 if w.parts is None or one else min(config.tasks, w.parts) for w in work]))
        merging = 0.0
        if config.splits > 1 and len(self.found) == 1:
            parts = part_count(self.found[0], config)
            tasks *= parts
            merging = 1e-6 + parts * self.found[0].points * 2e-10
        memory = target.seconds_for_bytes(self.moved, self.footprint, tasks)
        if self.footprint > target.l1 and self.found:
            memory *= max(_jumps(box, alike) for box in self.found)
        again = sum([w.again for w in work])
        if again:
            memory += target.seconds_for_bytes(again, self.footprint + target.l2 * target.cores, tasks)
        arithmetic, special = sum([w.arithmetic for w in work]), sum([w.special for w in work])
        cost = pointwise.dealt_out(arithmetic, memory, special, tasks, target)
        return replace(cost, launch=cost.launch + merging) if merging else cost
