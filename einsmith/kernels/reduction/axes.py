"""Which axes of a reduction have the lanes, a register tile's rows and the parts; what reading along them takes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from einsmith.expr.analysis.linear import Linear, linear
from einsmith.expr.functions import identity
from einsmith.expr.nodes import Read, below
from einsmith.kernels.emit import boxes as bx
from einsmith.kernels.emit.boxes import Box
from einsmith.kernels.emit.loops import Bounds, bounds_of
from einsmith.kernels.reduction.skew import skewed
from einsmith.loops.walk import tile_count
from einsmith.plan.kernel import Kernel

MAX_WINDOW = 16
"""Innermost reduction axes are unrolled up to this many points."""
MAX_UNROLLED = 400
"""Instructions that unrolling may make."""


LONG = 2 * MAX_WINDOW
"""Points of a reduction axis from which on what a guard leaves of it is walked alone."""


class ReductionConfig(NamedTuple):
    """mode: 'row' or 'column'; lanes; unroll: vectors (accumulators) at once; tasks: parts of the outputs; splits:
    parts of the reduction, merged by a second launch (1: none); rows: points of a second output axis at once, each with
    accumulators of its own (column mode: a register tile of rows x unroll vectors); turn: reads that are contiguous
    along the last reduction axis are loaded as square tiles and transposed in registers (column mode)."""

    mode: str
    lanes: int
    unroll: int
    tasks: int
    splits: int
    rows: int = 1
    turn: bool = False


@lru_cache(maxsize=512)
def boxes_of(kernel: Kernel) -> tuple[Box, ...]:
    """The kernel's boxes, with the reduction variables that suit the accesses."""
    return tuple(skewed(box) for box in bx.boxes(kernel))


@lru_cache(maxsize=1024)
def bounds(box: Box, axis: int) -> Bounds:
    """What the guards around all bodies say of one of its long reduction axes."""
    if box.reduce[axis - box.rank] < LONG or box.combiner is None:
        return Bounds()
    extents, combiner = box.extents + box.reduce, box.combiner
    found = [bounds_of(b, identity(combiner, b.dtype), axis, extents, box.sizes) for b in box.bodies]
    low, high = (tuple(x for x in every[0] if all(x in y for y in every)) for every in zip(*found, strict=True))
    return Bounds(low, high)


def bounded(box: Box) -> bool:
    """Whether any reduction axis has bounds."""
    return any(any(bounds(box, a)) for a in range(box.rank, box.rank + len(box.reduce)))


def bounds_within(box: Box, axis: int, config: ReductionConfig) -> Bounds:
    """Those bounds that are known where a configuration walks along the axis, the same for all that it computes at
    once: of output axes other than the lanes' and a tile's, and of reduction axes outside, which are all for lanes."""
    lanes = lanes_axis(box, config)
    apart = {lanes, tile_axis(box, lanes, config)}
    if axis != lanes:
        apart |= set(range(axis + 1, box.rank + len(box.reduce)))
    return bounds(box, axis).without(apart)


@lru_cache(maxsize=4096)
def part_within(box: Box, axis: int, config: ReductionConfig) -> float:
    """About what part of a reduction axis is walked."""
    return bounds_within(box, axis, config).part(axis, box.extents + box.reduce)


@lru_cache(maxsize=8192)
def _accesses(box: Box, axis: int, lanes: int) -> tuple[float, ...]:
    """About how many instructions each of the body's accesses takes for a vector, when `axis` runs along the lanes."""
    return tuple(bx.access_cost([f], axis, lanes, box.guarded) for f in box.flats)


@lru_cache(maxsize=1024)
def mentioned(box: Box) -> tuple[frozenset[int], ...]:
    """The axes that the offset of each of the body's reads depends on."""
    return tuple(bx.mentioned(f) for f in box.flats)


@lru_cache(maxsize=4096)
def row_axis(box: Box, lanes: int) -> int | None:
    """The reduction axis whose accesses cost least along the lanes. An arg-reduction takes only the last one."""
    last = box.rank + len(box.reduce) - 1
    axes = range(box.rank, last + 1)
    if box.combiner is not None and box.combiner.startswith("arg"):
        axes = range(max(box.rank, last), last + 1)

    def cost(a: int) -> tuple[float, int]:
        return (sum(_accesses(box, a, lanes)) + 1) / bx.filled(box.reduce[a - box.rank], lanes), -a

    return min(axes, key=cost, default=None)


@lru_cache(maxsize=4096)
def column_axis(box: Box, lanes: int) -> int | None:
    """The output axis that the lanes run along."""
    rest, weight = box.epilogue_flats, max(1, box.reduced)

    def cost(a: int) -> tuple[float, int]:
        each = weight * (sum(_accesses(box, a, lanes)) + 1) + bx.access_cost(rest, a, lanes)
        return each / bx.filled(box.extents[a], lanes), -a

    return min(range(box.rank), key=cost, default=None)


def lanes_axis(box: Box, config: ReductionConfig) -> int | None:
    """The axis along the lanes; None: there is none."""
    if not config.lanes:
        return None
    row = row_axis(box, config.lanes) if config.mode == "row" else None
    if row is not None:
        return row
    if config.rows == 1 or config.turn or not box.reduce:
        return column_axis(box, config.lanes)
    return _tiled_axis(box, config.lanes, config.unroll, config.rows)


@lru_cache(maxsize=4096)
def _tiled_axis(box: Box, lanes: int, unroll: int, rows: int) -> int | None:
    """`lanes_axis` of a register tile."""

    def cost(a: int) -> tuple[float, int]:
        tile = _tile_axis(box, a, lanes, unroll, rows)
        if tile is None:
            return float("inf"), -a
        each = box.reduced * _tile_cost(box, a, tile, lanes, unroll, rows)
        return (each + bx.access_cost(box.epilogue_flats, a, lanes)) / bx.filled(box.extents[a], lanes), -a

    return min(range(box.rank), key=cost, default=None)


def split_axis(box: Box, axis: int | None) -> int | None:
    """The reduction axis that is cut into parts: the longest; the lanes' own only where it is by far the longest."""
    axes = range(box.rank, box.rank + len(box.reduce))
    return max(axes, key=lambda a: (box.reduce[a - box.rank] / (64 if a == axis else 1), -a), default=None)


def _shared(
    box: Box, axis: int, row: int, lanes: int, unroll: int, rows: int, left_out: Sequence[Linear] = ()
) -> float:
    """About how many instructions the body's accesses take for each vector of a register tile: what does not vary
    along the rows is loaded once for all of them, what does not vary along the lanes once for all vectors of a row."""
    out = 0.0
    for f, each, inside in zip(box.flats, _accesses(box, axis, lanes), mentioned(box), strict=True):
        if left_out and f in left_out:
            continue
        if row not in inside:
            each /= rows
        elif axis not in inside:
            each = 1.0 / unroll
        out += each
    return out


def turned_reads(box: Box, axis: int | None, config: ReductionConfig) -> Sequence[Read]:
    """The reads of the body that are loaded as square tiles; the rows of a register tile share them."""
    if not config.turn or config.splits > 1 or axis is None or axis >= box.rank or not box.reduce:
        return []
    found = bx.turned(box, box.bodies, axis, box.rank + len(box.reduce) - 1)
    row = tile_axis(box, axis, config)
    return found if len(found) <= 2 and all(row not in bx.mentioned(linear(r.index[0])) for r in found) else []


def body_access(box: Box, axis: int, row: int | None, config: ReductionConfig) -> float:
    """About how many instructions the body's accesses take for each vector of operations."""
    reads = [linear(r.index[0]) for r in turned_reads(box, axis, config)]
    tiles = float(len(reads)) * (1 + 2 * (config.lanes.bit_length() - 1))
    tiles /= bx.filled(box.reduce[-1], config.lanes) if reads else 1.0
    if row is None:
        each = zip(box.flats, _accesses(box, axis, config.lanes), strict=True)
        return sum(c for f, c in each if not (reads and f in reads)) + tiles
    rows = min(config.rows, box.extents[row])
    return _shared(box, axis, row, config.lanes, config.unroll, rows, reads) + tiles / rows


def tile_axis(box: Box, axis: int | None, config: ReductionConfig) -> int | None:
    """The output axis of a register tile's rows: the one along which the accesses are shared most; None: no tile."""
    return _tile_axis(box, axis, config.lanes, config.unroll, config.rows)


@lru_cache(maxsize=4096)
def _tile_axis(box: Box, axis: int | None, lanes: int, unroll: int, rows: int) -> int | None:
    if rows == 1 or axis is None or axis >= box.rank or not box.reduce:
        return None
    axes = [a for a in range(box.rank) if a != axis and box.extents[a] > 1]
    return min(axes, key=lambda a: (_tile_cost(box, axis, a, lanes, unroll, rows), -a), default=None)


def _tile_cost(box: Box, axis: int, row: int, lanes: int, unroll: int, rows: int) -> float:
    """About how many instructions a vector of operations takes in a register tile, beside the operations."""
    shared = _shared(box, axis, row, lanes, unroll, min(rows, box.extents[row]))
    return (shared + 1) / bx.filled(box.extents[row], rows)


@lru_cache(maxsize=1024)
def body_nodes(box: Box) -> int:
    return len(below(box.bodies))


def window(box: Box, axis: int | None, cut: int | None, copies: int = 1) -> int:
    """How many of the innermost reduction axes (other than the lanes') are unrolled; `copies`: of each point."""
    count = copies * max(1, body_nodes(box))
    limit = min(MAX_WINDOW, max(1, MAX_UNROLLED // count))
    loops = [a for a in range(box.rank, box.rank + len(box.reduce)) if a != axis]
    k, points = 0, 1
    while k < len(loops) and loops[-1 - k] != cut:
        points *= box.reduce[loops[-1 - k] - box.rank]
        if points > limit:
            break
        k += 1
    return k


def part_count(box: Box, config: ReductionConfig) -> int:
    """How many parts the reduction is cut into in the end."""
    if config.splits == 1 or not box.reduce:
        return 1
    axis = lanes_axis(box, config)
    cut = split_axis(box, axis)
    assert cut is not None
    extent = box.reduce[cut - box.rank]
    unit = config.lanes * min(config.unroll, -(-extent // config.lanes)) if cut == axis else 1
    return tile_count(extent, config.splits, unit)
