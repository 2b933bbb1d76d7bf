"""Emit prefetches, within a tile's loop over K, of the next panel of N and of the next tile of M."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from einsmith.codegen.loopnest.address import BufferMemory
from einsmith.codegen.loopnest.nest import SSAValue
from einsmith.codegen.loopnest.walk import ceil_div
from einsmith.cost.facts import LINE
from einsmith.cost.memory_traffic import PAGE
from einsmith.kernels.contraction.config import Side
from einsmith.kernels.contraction.emission.frame import Frame, TaskFrame, Tile
from einsmith.kernels.contraction.geometry import Geometry
from einsmith.kernels.contraction.traffic import APART, address_steps, lines_ahead, streamed_lines
from einsmith.kernels.emit.access import OperandAccess, PartialAddress

TILE_LINES = 2
"""Most lines of the next tile that are prefetched at each point of K."""
WORK = 16
"""Fewest multiply-adds of a point of K for which a tile has room for prefetches among them."""
Ask = Callable[[SSAValue, Sequence[SSAValue], SSAValue, SSAValue], None]
"""Emits the prefetches of one point of K: ask(place, digits, point, k).

place: place (elements) of the first row of M
digits: the point of every group of K
point: the flattened point of K
k: points of K since the block's first
"""


def of_tile(f: Frame, t: TaskFrame, x: Tile, steps: Sequence[int]) -> list[Ask]:
    """Return the prefetches of a tile; `steps`: offsets (elements) of rows of M read in place from the first row."""
    g, out = (
        f.g,
        [*_next_panel(f, t, x), *_next_windows(f, t, x), *_next_source(f, t, x), *_prefetch_adjacent_rows(f, t, x)],
    )
    if g.c.a == "inline" and g.mr * g.c.nv >= WORK:
        if g.c.order == "n" and g.mt > 1 and len(steps) > 1 and _streams(g, g.m_side, g.M):
            out.append(_next_rows(f, t, x, steps[1] - steps[0]))
        elif g.mt > g.c.tm and g.k_groups and _is_scattered(g, g.m_side):
            out += _prefetch_rows(f, t, x, steps[: x.rows.size])
    return out


def _streams(g: Geometry, side: Side, points: int) -> bool:
    """Return whether the rows of a side are streams along K that lie far apart and beyond L2."""
    found = address_steps(g, side)
    along = not g.c.windows and found.streams > 0 and found.k == g.item
    return along and found.side >= APART and points * g.K * g.item > g.target.l2


def _is_scattered(g: Geometry, side: Side) -> bool:
    """Return whether a side exceeds the L2 of all cores and is read along several axes of K.

    The hardware prefetcher follows no stream there: the next address is near none that it has seen.
    """
    s = g.access(side)
    if g.c.windows or not side.operand.plain or len(s.groups(g.p.k)) <= 1:
        return False
    (read,) = s.reads
    return s.memories[read.slot].buffer.nbytes > g.target.l2 * g.target.cores


def _places(s: OperandAccess, *parts: PartialAddress) -> list[tuple[BufferMemory, SSAValue]]:
    """Return each tensor that an operand is computed from, with the place read at these parts of the address."""
    return [(s.memories[read.slot], s.place(form, *parts)) for read, form in s.widest]


def _step(s: OperandAccess, axis: int) -> int:
    """Return the elements from one point of an axis to the next, in all tensors that `_places` returns."""
    return s.forms[s.widest[0][1]].coef.get(axis, 0)


def _next_panel(f: Frame, t: TaskFrame, x: Tile) -> list[Ask]:
    """Return the prefetches of lines of the next panel of N.

    The tiles of a panel share the lines of its rows: at each row that it multiplies, a tile prefetches its own share.
    Tiles left over prefetch one line repeatedly, which costs nothing.
    """
    b, g, c, s = f.b, f.g, f.g.c, f.b_in
    near = 2 * g.kc * g.nr * g.item < g.target.l2 * g.target.overheads.held
    if c.order == "m" or c.b == "buffer" or c.windows or c.rows or c.kc or not near:
        return []
    in_a_row = streamed_lines(address_steps(g, g.n_side), g, g.n_side, g.N)
    asks, m, n, mr, nv, tm = np.array([in_a_row, g.M, g.N, g.mr, c.nv, c.tm])
    lines = int(lines_ahead(asks, m, n, mr, nv, g.lanes, tm))
    if not lines:
        return []
    # The last tiles prefetch, so that no line stays in L2 for long before it is used.
    turn = b.sub(b.sub(t.m_range[1], 1), x.rows.number)
    points = g.lanes // in_a_row  # of a line
    first = b.mul(turn, lines * points)
    (k,) = s.groups(g.p.k)
    needed = b.op("lt", turn, -(-(in_a_row * c.nv + 1) // lines))
    apart = b.select(needed, _step(s, k.inner), 0)  # elements between lines along K
    n0 = b.mul(b.add(x.panel.number, 1), g.nr)
    places = []
    for i in range(lines):
        at = b.op("min", b.add(first, i * points), g.nr - 1)
        places += _places(s, t.b, s.part_of(g.n_side.axes, b.add(n0, at)))

    def ask(_: SSAValue, __: Sequence[SSAValue], point: SSAValue, ___: SSAValue) -> None:
        row = b.mul(point, apart)
        for source, place in places:
            b.prefetch(source.pointer, b.add(place, row), source.elem)

    return [ask]


def _next_windows(f: Frame, t: TaskFrame, x: Tile) -> list[Ask]:
    """Return the prefetches of the next panel of N where N is read in place along axes of K that lie pages apart.

    The first tile of M prefetches a part of the lines at each point of the innermost axis of K, whose points share
    them. Measured: a 2x2 convolution of 32 planes of 119 x 119, 4 images, takes 2.1 ms on a core of a Zen 4, and 5.6 ms
    without.
    """
    b, g, s = f.b, f.g, f.b_in
    if (
        g.c.b != "inline"
        or g.c.order == "m"
        or g.nt <= g.c.tn
        or g.mr * g.c.nv < WORK
        or not _is_scattered(g, g.n_side)
    ):
        return []
    ((read, form),) = s.reads.items()
    apart = max(abs(s.forms[form].coef.get(k.inner, 0)) for k in g.k_groups) * g.item
    if address_steps(g, g.n_side).side != g.item or apart < PAGE:
        return []
    further = b.select(b.op("eq", x.rows.number, t.m_range[0]), 1, 0)
    part = s.part_of(g.n_side.axes, b.mul(b.add(x.panel.number, further), g.nr))
    source, run, places = s.memories[read.slot], g.k_groups[-1], range(g.lanes - 1, g.nr, LINE // g.item)

    def ask(_: SSAValue, digits: Sequence[SSAValue], __: SSAValue, ___: SSAValue) -> None:
        _ask_in_turn(f, source, s.place(form, t.b, part, s.part(g.k_groups, digits)), places, run.extent, digits[-1])

    return [ask]


def _next_source(f: Frame, t: TaskFrame, x: Tile) -> list[Ask]:
    """Return the prefetches of source rows of the panel in the next block of K, or of the next panel in the first one.

    Every tile prefetches a line of other rows, so that memory is busy while tiles multiply and packing need not wait
    for it. All but a few blocks lie within rows.
    """
    b, g, c, s = f.b, f.g, f.g.c, f.b_in
    if not (g.b.along and g.blocked and c.order == "n" and g.mr * c.nv >= WORK and _streams(g, g.n_side, g.N)):
        return []
    if len(s.groups(g.n_side.axes)) > 1 or s.groups(g.p.k)[-1].extent < 2 * g.kc:
        return []
    count = ceil_div(min(g.nr, g.N), max(1, g.mt // c.tm))
    (rows,) = s.groups(g.n_side.axes)
    jn, last = x.panel.number, b.op("le", t.k_hi, x.hi)
    n0 = b.mul(b.select(last, b.add(jn, 1), jn), g.nr)
    n0 = b.add(n0, b.mul(b.sub(x.rows.number, t.m_range[0]), count))
    n0 = b.op("min", n0, g.N - count)
    start = b.select(last, t.k_lo, x.hi)
    places = _places(s, t.b, s.part_of(g.n_side.axes, n0), s.part_of(g.p.k, start))
    apart = _step(s, rows.inner)

    def ask(_: SSAValue, __: Sequence[SSAValue], ___: SSAValue, k: SSAValue) -> None:
        for source, at in places:
            _ask_one_of(f, source, b.add(at, k), count, apart, k)

    return [ask]


def _next_rows(f: Frame, t: TaskFrame, x: Tile, step: int) -> Ask:
    """Return the prefetch of the next tile's rows of M; after the last tile, of the first one's in the next block of K.

    Each point of K prefetches a line of another row, so that all lines of a stretch are prefetched while it is walked.
    """
    b, g = f.b, f.g
    lo, hi = t.m_range
    follows = b.op("lt", b.add(x.rows.number, 1), hi)
    tile = b.select(follows, b.add(x.rows.number, 1), lo)
    further = b.add(_tile_offset(f, x, tile), b.select(follows, 0, g.kc))
    (read,) = f.a.reads
    return lambda place, _, point, __: _ask_one_of(f, f.a.memories[read.slot], b.add(place, further), g.mr, step, point)


def _prefetch_adjacent_rows(f: Frame, t: TaskFrame, x: Tile) -> list[Ask]:
    """Return the prefetches of what follows the tile's rows of M, where rows are adjacent and lie far apart along K.

    That is the next tile, or a line further where tiles are shorter than a line. If M fits L2, only the first panel of
    N prefetches: later panels find the rows in the cache.
    """
    b, g, line = f.b, f.g, LINE // f.g.item
    if g.c.a != "inline" or g.c.windows or g.mt <= g.c.tm or g.c.order != "n" or not g.m_side.operand.plain:
        return []
    if streamed_lines(address_steps(g, g.m_side), g, g.m_side, g.M) != 1:
        return []
    source, ahead = f.a.memories[next(iter(f.a.reads)).slot], b.const(max(g.mr, line))
    if g.nt > g.c.tn and g.M * g.K * g.item <= g.target.l2:
        ahead = b.select(b.op("eq", x.panel.number, t.n_range[0]), ahead, 0)

    def ask(place: SSAValue, _: Sequence[SSAValue], __: SSAValue, ___: SSAValue) -> None:
        for i in range(0, g.mr, line):
            b.prefetch(source.pointer, b.add(b.add(place, ahead), i), source.elem)

    return [ask]


def _tile_offset(f: Frame, x: Tile, tile: SSAValue) -> SSAValue:
    """Return the elements from the first row of M of this tile to the first row of tile number `tile`."""
    b, a, (form,) = f.b, f.a, f.a.reads.values()
    there, here = (a.place(form, a.part_of(f.g.m_side.axes, b.mul(n, f.g.mr))) for n in (tile, x.rows.number))
    return b.sub(there, here)


def _ask_one_of(f: Frame, source: BufferMemory, at: SSAValue, rows: int, step: int, k: SSAValue) -> None:
    """Prefetch a line of one of `rows` rows, `step` elements apart; each step `k` of a tile takes another row."""
    b, depth = f.b, f.g.c.depth
    turns = min(1 << (rows - 1).bit_length(), LINE // f.g.item // depth)
    row = b.op("mod", b.op("floordiv", k, depth) if depth > 1 else k, turns)
    at = b.add(at, b.mul(row, step))
    for first in range(0, rows, turns):
        b.prefetch(source.pointer, b.add(at, first * step), source.elem)


def _prefetch_rows(f: Frame, t: TaskFrame, x: Tile, steps: Sequence[int]) -> list[Ask]:
    """Return the prefetches of lines of the next tile's rows of M, a part at each point of the last group of K.

    The lines are those that a run of the group shares. This tile's own rows, which are near, are prefetched where there
    is no next tile or where another panel prefetches it. Returns none if the run's points span more than one line, or
    rows touch too many lines.
    """
    b, g, a, jm = f.b, f.g, f.a, x.rows.number
    ((read, form),) = a.reads.items()
    source, run = a.memories[read.slot], g.k_groups[-1]
    places: list[int] = []  # elements from the first row to the rows that together touch all lines
    for step in sorted(steps):
        if not places or (step - places[-1]) * g.item >= LINE * 3 // 4:
            places.append(step)
    apart = abs(a.forms[form].coef.get(run.inner, 0)) * g.item
    if not (0 < apart * run.extent <= LINE and len(places) <= TILE_LINES * run.extent):
        return []
    follows = b.op("lt", b.add(jm, 1), t.m_range[1])
    if g.c.order == "m":
        follows = b.op("and", follows, b.op("le", t.n_range[1], b.add(x.panel.number, 1)))

    further = _tile_offset(f, x, b.add(jm, b.select(follows, 1, 0)))

    def ask(at: SSAValue, digits: Sequence[SSAValue], _: SSAValue, __: SSAValue) -> None:
        _ask_in_turn(f, source, b.add(at, further), places, run.extent, digits[-1])

    return [ask]


def _ask_in_turn(
    f: Frame, source: BufferMemory, at: SSAValue, places: Sequence[int], extent: int, digit: SSAValue
) -> None:
    """Prefetch a part of the lines at `places` for this digit; all are prefetched over an axis of `extent` points."""
    b, turns = f.b, min(extent, len(places))
    turn = b.op("mod", digit, turns)
    for first in range(0, len(places), turns):
        place = b.const(places[first])
        for i, other in enumerate(places[first + 1 : first + turns], 1):
            place = b.select(b.op("lt", turn, i), place, other)
        b.prefetch(source.pointer, b.add(at, place), source.elem)
