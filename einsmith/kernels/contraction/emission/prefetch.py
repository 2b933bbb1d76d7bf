"""Emit prefetches, within a tile's loop over K, of the next panel of N and of the next tile of M."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from einsmith.codegen.loopnest.address import BufferMemory
from einsmith.codegen.loopnest.walk import ceil_div
from einsmith.codegen.ssa import SSAValue
from einsmith.cost.facts import LINE
from einsmith.cost.memory_traffic import PAGE
from einsmith.kernels.contraction.config import Side
from einsmith.kernels.contraction.emission.frame import Frame, TaskFrame, Tile
from einsmith.kernels.contraction.geometry import Geometry
from einsmith.kernels.contraction.traffic import (
    MIN_STREAM_STRIDE,
    address_steps,
    count_prefetched_lines,
    count_stream_lines,
)
from einsmith.kernels.emit.access import OperandAccess, PartialAddress

MAX_TILE_LINES = 2
"""Most lines of the next tile that are prefetched at each point of K."""
MIN_STEP_PRODUCTS = 16
"""Fewest multiply-adds of a point of K for which a tile has room for prefetches among them."""
Prefetch = Callable[[SSAValue, Sequence[SSAValue], SSAValue, SSAValue], None]
"""Emits the prefetches of one point of K: emit(place, digits, point, k).

place: place (elements) of the first row of M
digits: the point of every group of K
point: the flattened point of K
k: points of K since the block's first
"""


def tile_prefetches(f: Frame, t: TaskFrame, x: Tile, steps: Sequence[int]) -> list[Prefetch]:
    """Return the prefetches of a tile; `steps`: offsets (elements) of rows of M read in place from the first row."""
    g, out = (
        f.g,
        [
            *_prefetch_next_panel(f, t, x),
            *_prefetch_next_scattered_panel(f, t, x),
            *_prefetch_next_source(f, t, x),
            *_prefetch_adjacent_rows(f, t, x),
        ],
    )
    if g.c.a == "inline" and g.mr * g.c.nv >= MIN_STEP_PRODUCTS:
        if g.c.order == "n" and g.mt > 1 and len(steps) > 1 and _is_streamed(g, g.m_side, g.M):
            out.append(_prefetch_next_rows(f, t, x, steps[1] - steps[0]))
        elif g.mt > g.c.tm and g.k_groups and _is_scattered(g, g.m_side):
            out += _prefetch_scattered_rows(f, t, x, steps[: x.rows.size])
    return out


def _is_streamed(g: Geometry, side: Side, points: int) -> bool:
    """Return whether the rows of a side are streams along K that lie far apart and beyond L2."""
    strides = address_steps(g, side)
    is_contiguous = not g.c.windows and strides.streams > 0 and strides.k == g.item
    return is_contiguous and strides.side >= MIN_STREAM_STRIDE and points * g.K * g.item > g.target.l2


def _is_scattered(g: Geometry, side: Side) -> bool:
    """Return whether a side exceeds the L2 of all cores and is read along several axes of K.

    The hardware prefetcher follows no stream there: the next address is near none that it has seen.
    """
    s = g.access(side)
    if g.c.windows or not side.operand.plain or len(s.groups(g.p.k)) <= 1:
        return False
    (read,) = s.reads
    return not g.target.fits_l2(s.memories[read.slot].buffer.nbytes)


def _places(s: OperandAccess, *parts: PartialAddress) -> list[tuple[BufferMemory, SSAValue]]:
    """Return each tensor that an operand is computed from, with the place read at these parts of the address."""
    return [(s.memories[read.slot], s.place(form, *parts)) for read, form in s.widest]


def _step(s: OperandAccess, axis: int) -> int:
    """Return the elements from one point of an axis to the next, in all tensors that `_places` returns."""
    return s.forms[s.widest[0][1]].coef.get(axis, 0)


def _prefetch_next_panel(f: Frame, t: TaskFrame, x: Tile) -> list[Prefetch]:
    """Return the prefetches of lines of the next panel of N.

    The tiles of a panel share the lines of its rows: at each row that it multiplies, a tile prefetches its own share.
    Tiles left over prefetch one line repeatedly, which costs nothing.
    """
    b, g, c, s = f.b, f.g, f.g.c, f.n_access
    fits_l2 = 2 * g.kc * g.nr * g.item < g.target.l2 * g.target.overheads.held
    if c.order == "m" or c.b == "buffer" or c.windows or c.rows or c.kc or not fits_l2:
        return []
    lines_per_vector = count_stream_lines(address_steps(g, g.n_side), g, g.n_side, g.N)
    stream_lines, m, n, mr, nv, tm = np.array([lines_per_vector, g.M, g.N, g.mr, c.nv, c.tm])
    lines = int(count_prefetched_lines(stream_lines, m, n, mr, nv, g.lanes, tm))
    if not lines:
        return []
    # The last tiles prefetch, so that no line stays in L2 for long before it is used.
    share = b.sub(b.sub(t.m_range[1], 1), x.rows.number)
    points = g.lanes // lines_per_vector  # of a line
    first = b.mul(share, lines * points)
    (k,) = s.groups(g.p.k)
    has_share = b.op("lt", share, -(-(lines_per_vector * c.nv + 1) // lines))
    row_stride = b.select(has_share, _step(s, k.inner), 0)  # elements between lines along K
    n0 = b.mul(b.add(x.panel.number, 1), g.nr)
    places = []
    for i in range(lines):
        at = b.op("min", b.add(first, i * points), g.nr - 1)
        places += _places(s, t.n_part, s.part_of(g.n_side.axes, b.add(n0, at)))

    def emit_prefetch(_: SSAValue, __: Sequence[SSAValue], point: SSAValue, ___: SSAValue) -> None:
        row = b.mul(point, row_stride)
        for source, place in places:
            b.prefetch(source.pointer, b.add(place, row), source.elem)

    return [emit_prefetch]


def _prefetch_next_scattered_panel(f: Frame, t: TaskFrame, x: Tile) -> list[Prefetch]:
    """Return the prefetches of the next panel of N where N is read in place along axes of K that lie pages apart.

    The first tile of M prefetches a part of the lines at each point of the innermost axis of K, whose points share
    them. Measured: a 2x2 convolution of 32 planes of 119 x 119, 4 images, takes 2.1 ms on a core of a Zen 4, and 5.6 ms
    without.
    """
    b, g, s = f.b, f.g, f.n_access
    if (
        g.c.b != "inline"
        or g.c.order == "m"
        or g.nt <= g.c.tn
        or g.mr * g.c.nv < MIN_STEP_PRODUCTS
        or not _is_scattered(g, g.n_side)
    ):
        return []
    ((read, form),) = s.reads.items()
    stride_bytes = max(abs(s.forms[form].coef.get(k.inner, 0)) for k in g.k_groups) * g.item
    if address_steps(g, g.n_side).side != g.item or stride_bytes < PAGE:
        return []
    panel_offset = b.select(b.op("eq", x.rows.number, t.m_range[0]), 1, 0)
    part = s.part_of(g.n_side.axes, b.mul(b.add(x.panel.number, panel_offset), g.nr))
    source, run, places = s.memories[read.slot], g.k_groups[-1], range(g.lanes - 1, g.nr, LINE // g.item)

    def emit_prefetch(_: SSAValue, digits: Sequence[SSAValue], __: SSAValue, ___: SSAValue) -> None:
        _prefetch_part(
            f, source, s.place(form, t.n_part, part, s.part(g.k_groups, digits)), places, run.extent, digits[-1]
        )

    return [emit_prefetch]


def _prefetch_next_source(f: Frame, t: TaskFrame, x: Tile) -> list[Prefetch]:
    """Return the prefetches of source rows of the panel in the next block of K, or of the next panel in the first one.

    Every tile prefetches a line of other rows, so that memory is busy while tiles multiply and packing need not wait
    for it. All but a few blocks lie within rows.
    """
    b, g, c, s = f.b, f.g, f.g.c, f.n_access
    if not (
        g.b.along_k
        and g.blocked
        and c.order == "n"
        and g.mr * c.nv >= MIN_STEP_PRODUCTS
        and _is_streamed(g, g.n_side, g.N)
    ):
        return []
    if len(s.groups(g.n_side.axes)) > 1 or s.groups(g.p.k)[-1].extent < 2 * g.kc:
        return []
    count = ceil_div(min(g.nr, g.N), max(1, g.mt // c.tm))
    (rows,) = s.groups(g.n_side.axes)
    jn, is_last_block = x.panel.number, b.op("le", t.k_hi, x.hi)
    n0 = b.mul(b.select(is_last_block, b.add(jn, 1), jn), g.nr)
    n0 = b.add(n0, b.mul(b.sub(x.rows.number, t.m_range[0]), count))
    n0 = b.op("min", n0, g.N - count)
    start = b.select(is_last_block, t.k_lo, x.hi)
    places = _places(s, t.n_part, s.part_of(g.n_side.axes, n0), s.part_of(g.p.k, start))
    row_stride = _step(s, rows.inner)

    def emit_prefetch(_: SSAValue, __: Sequence[SSAValue], ___: SSAValue, k: SSAValue) -> None:
        for source, at in places:
            _prefetch_one_row(f, source, b.add(at, k), count, row_stride, k)

    return [emit_prefetch]


def _prefetch_next_rows(f: Frame, t: TaskFrame, x: Tile, step: int) -> Prefetch:
    """Return the prefetch of the next tile's rows of M; after the last tile, of the first one's in the next block of K.

    Each point of K prefetches a line of another row, so that all lines of a stretch are prefetched while it is walked.
    """
    b, g = f.b, f.g
    lo, hi = t.m_range
    has_next = b.op("lt", b.add(x.rows.number, 1), hi)
    tile = b.select(has_next, b.add(x.rows.number, 1), lo)
    offset = b.add(_tile_offset(f, x, tile), b.select(has_next, 0, g.kc))
    (read,) = f.m_access.reads
    return lambda place, _, point, __: _prefetch_one_row(
        f, f.m_access.memories[read.slot], b.add(place, offset), g.mr, step, point
    )


def _prefetch_adjacent_rows(f: Frame, t: TaskFrame, x: Tile) -> list[Prefetch]:
    """Return the prefetches of what follows the tile's rows of M, where rows are adjacent and lie far apart along K.

    That is the next tile, or a line further where tiles are shorter than a line. If M fits L2, only the first panel of
    N prefetches: later panels find the rows in the cache.
    """
    b, g, line = f.b, f.g, LINE // f.g.item
    if g.c.a != "inline" or g.c.windows or g.mt <= g.c.tm or g.c.order != "n" or not g.m_side.operand.plain:
        return []
    if count_stream_lines(address_steps(g, g.m_side), g, g.m_side, g.M) != 1:
        return []
    source, distance = f.m_access.memories[next(iter(f.m_access.reads)).slot], b.const(max(g.mr, line))
    if g.nt > g.c.tn and g.M * g.K * g.item <= g.target.l2:
        distance = b.select(b.op("eq", x.panel.number, t.n_range[0]), distance, 0)

    def emit_prefetch(place: SSAValue, _: Sequence[SSAValue], __: SSAValue, ___: SSAValue) -> None:
        for i in range(0, g.mr, line):
            b.prefetch(source.pointer, b.add(b.add(place, distance), i), source.elem)

    return [emit_prefetch]


def _tile_offset(f: Frame, x: Tile, tile: SSAValue) -> SSAValue:
    """Return the elements from the first row of M of this tile to the first row of tile number `tile`."""
    b, a, (form,) = f.b, f.m_access, f.m_access.reads.values()
    target_place, own_place = (
        a.place(form, a.part_of(f.g.m_side.axes, b.mul(n, f.g.mr))) for n in (tile, x.rows.number)
    )
    return b.sub(target_place, own_place)


def _prefetch_one_row(f: Frame, source: BufferMemory, at: SSAValue, rows: int, step: int, k: SSAValue) -> None:
    """Prefetch a line of one of `rows` rows, `step` elements apart; each step `k` of a tile takes another row."""
    b, depth = f.b, f.g.c.depth
    period = min(1 << (rows - 1).bit_length(), LINE // f.g.item // depth)
    row = b.op("mod", b.op("floordiv", k, depth) if depth > 1 else k, period)
    at = b.add(at, b.mul(row, step))
    for first in range(0, rows, period):
        b.prefetch(source.pointer, b.add(at, first * step), source.elem)


def _prefetch_scattered_rows(f: Frame, t: TaskFrame, x: Tile, steps: Sequence[int]) -> list[Prefetch]:
    """Return the prefetches of cache lines of the next tile's rows of M, a part at each point of the last group of K.

    The lines are those that a run of the group shares. If there is no next tile, or another panel prefetches it, this
    tile's own rows, which are close, are prefetched instead. Returns none if the run's points span more than one line,
    or rows touch too many lines.
    """
    b, g, a, jm = f.b, f.g, f.m_access, x.rows.number
    ((read, form),) = a.reads.items()
    source, run = a.memories[read.slot], g.k_groups[-1]
    places: list[int] = []  # elements from the first row to the rows that together touch all lines
    for step in sorted(steps):
        if not places or (step - places[-1]) * g.item >= LINE * 3 // 4:
            places.append(step)
    stride_bytes = abs(a.forms[form].coef.get(run.inner, 0)) * g.item
    if not (0 < stride_bytes * run.extent <= LINE and len(places) <= MAX_TILE_LINES * run.extent):
        return []
    has_next = b.op("lt", b.add(jm, 1), t.m_range[1])
    if g.c.order == "m":
        has_next = b.op("and", has_next, b.op("le", t.n_range[1], b.add(x.panel.number, 1)))

    offset = _tile_offset(f, x, b.add(jm, b.select(has_next, 1, 0)))

    def emit_prefetch(at: SSAValue, digits: Sequence[SSAValue], _: SSAValue, __: SSAValue) -> None:
        _prefetch_part(f, source, b.add(at, offset), places, run.extent, digits[-1])

    return [emit_prefetch]


def _prefetch_part(
    f: Frame, source: BufferMemory, at: SSAValue, places: Sequence[int], extent: int, digit: SSAValue
) -> None:
    """Prefetch a part of the lines at `places` for this digit; all are prefetched over an axis of `extent` points."""
    b, period = f.b, min(extent, len(places))
    phase = b.op("mod", digit, period)
    for first in range(0, len(places), period):
        place = b.const(places[first])
        for i, other in enumerate(places[first + 1 : first + period], 1):
            place = b.select(b.op("lt", phase, i), place, other)
        b.prefetch(source.pointer, b.add(at, place), source.elem)
