"""Emission of what tiles and packing ask for ahead of the next panel of N and the next tile of M (`Prefetches`)."""

from __future__ import annotations

from collections.abc import Sequence

from einsmith.kernels.contraction.emission.frame import Frame, Task, Tile, relative
from einsmith.kernels.emit.access import OperandAccess, PartialAddress
from einsmith.kernels.emit.cursor import LaneCursor
from einsmith.loops.nest import Value
from einsmith.target.facts import LINE

LINES_ALONG = 8
"""Lines that rows packed along K are asked for ahead: a vector of each row takes a while to be transposed."""


def next_panel(f: Frame, t: Task, x: Tile) -> tuple[list[Value], Value]:
    """Where the lines of the next panel of N that this tile asks for begin at the first point of K, and how far apart
    they are along K: the tiles of a panel share the lines of its rows, and each asks for its own in every row that it
    multiplies. Tiles that are left over ask for one line again and again, which costs nothing."""
    b, g, s = f.b, f.g, f.n_scalar
    ((_, form),) = s.reads.items()
    end = t.m_range[1]  # the last tiles ask, so that nothing waits in the second level for long
    turn = b.sub(b.const(end - 1) if isinstance(end, int) else b.sub(end, b.const(1)), x.rows.number)
    points = g.lanes // f.ahead.far_lines  # of a line
    first = b.mul(turn, b.const(f.ahead.lines * points))
    (k,) = s.groups(g.p.k)
    apart = b.const(s.forms[form].coef.get(k.inner, 0))
    needed = b.op("lt", turn, b.const(-(-(f.ahead.far_lines * g.c.nv + 1) // f.ahead.lines)))
    n0 = b.mul(b.add(x.panel.number, b.const(1)), b.const(g.nr))
    out = []
    for i in range(f.ahead.lines):
        at = b.op("min", b.add(first, b.const(i * points)), b.const(g.nr - 1))
        out.append(_place(f, (t.n_scalar, s.part_of(g.n_side.axes, b.add(n0, at)))))
    return out, b.select(needed, apart, b.const(0))


def _place(f: Frame, parts: Sequence[PartialAddress]) -> Value:
    """Where the one read of the N operand lies."""
    b, s = f.b, f.n_scalar
    ((_, form),) = s.reads.items()
    total = b.const(s.forms[form].const)
    for x in parts:
        if form in x.sums:
            total = b.add(total, x.sums[form])
    return total


def ask(f: Frame, places: Sequence[Value], apart: Value, k: Value) -> None:
    """Starts the loads of a row of the next panel."""
    s = f.n_scalar
    ((read, _),) = s.reads.items()
    pointer = s.memories[read.slot].pointer
    row = f.b.mul(k, apart)
    for x in places:
        f.b.prefetch(pointer, f.b.add(x, row), f.elem)


def next_rows(f: Frame, t: Task, jm: Value) -> tuple[LaneCursor, Value]:
    """The first row of M of the next tile; after the last tile, of the first one in the next block of K, whose distance
    comes with it."""
    b, g, a = f.b, f.g, f.a
    lo, hi = (b.index(x) for x in t.m_range)
    follows = b.op("lt", b.add(jm, b.const(1)), hi)
    tile = b.select(follows, b.add(jm, b.const(1)), lo)
    rows = LaneCursor(a, 0, None).bind(t.a, a.part_of(g.m_side.axes, b.mul(tile, b.const(g.mr))))
    return rows, b.select(follows, b.const(0), b.const(g.kc))


def ask_rows(f: Frame, state: LaneCursor, further: Value, step: int, k: Value) -> None:
    """Starts the load of a line of the next tile's rows: at each point of K that of another row, so that all lines of a
    stretch are asked for as it is walked."""
    ((_, form),) = f.a.reads.items()
    _ask_one_of(f, f.a, f.b.add(state.offset(form), further), f.g.mr, step, k)


def _ask_one_of(f: Frame, s: OperandAccess, at: Value, rows: int, step: int, k: Value) -> None:
    """Starts the load of a line of one of so many rows, `step` apart: another one at each step of a tile."""
    b, depth = f.b, f.g.c.depth
    (read,) = s.reads
    pointer = s.memories[read.slot].pointer
    turns = min(1 << (rows - 1).bit_length(), LINE // f.g.item // depth)
    row = b.op("mod", b.op("floordiv", k, b.const(depth)) if depth > 1 else k, b.const(turns))
    at = b.add(at, b.mul(row, b.const(step)))
    for first in range(0, rows, turns):
        b.prefetch(pointer, b.add(at, b.const(first * step)), f.elem)


def next_source(f: Frame, t: Task, x: Tile) -> Value:
    """Where the first of the rows begins that this tile asks for, of the panel in the next block of K, or of the next
    panel in the first one."""
    b, g, s = f.b, f.g, f.n_scalar
    hi, jn = b.index(x.hi), x.panel.number
    last = b.op("le", b.index(t.k_hi), hi)
    n0 = b.mul(b.select(last, b.add(jn, b.const(1)), jn), b.const(g.nr))
    n0 = b.add(n0, b.mul(relative(b, x.rows.number, t.m_range), b.const(f.ahead.source_rows)))
    n0 = b.op("min", n0, b.const(g.N - f.ahead.source_rows))
    k = b.select(last, b.index(t.k_lo), hi)
    return _place(f, (t.n_scalar, s.part_of(g.n_side.axes, n0), s.part_of(g.p.k, k)))


def ask_source(f: Frame, at: Value, k: Value) -> None:
    """Starts the load of a line of the next panel's source, k points of K on from `at`, as `ask_rows`."""
    s = f.n_scalar
    ((_, form),) = s.reads.items()
    (rows,) = s.groups(f.g.n_side.axes)
    _ask_one_of(f, s, f.b.add(at, k), f.ahead.source_rows, s.forms[form].coef.get(rows.inner, 0), k)


def next_gathered(f: Frame, t: Task, x: Tile) -> LaneCursor:
    """The first row of M of the next tile, or of this one, whose lines are near, where that is another panel's to ask
    for or there is none."""
    b, g, a, jm = f.b, f.g, f.a, x.rows.number
    end = t.m_range[1]
    follows = b.op("lt", b.add(jm, b.const(1)), b.index(end))
    if g.c.order == "m":
        end = t.n_range[1]
        last = b.op("le", b.index(end), b.add(x.panel.number, b.const(1)))
        follows = b.op("and", follows, last)
    tile = b.add(jm, b.select(follows, b.const(1), b.const(0)))
    return LaneCursor(a, 0, None).bind(t.a, a.part_of(g.m_side.axes, b.mul(tile, b.const(g.mr))))


def ask_along(f: Frame, state: LaneCursor, rows: Sequence[PartialAddress]) -> None:
    """Starts loads further along K, of as many rows as there are lanes: more streams than hardware follows."""
    s, b = state.s, f.b
    ((read, form),) = s.reads.items()
    pointer, ahead = s.memories[read.slot].pointer, b.const(LINES_ALONG * LINE // f.g.item)
    for row in rows:
        b.prefetch(pointer, b.add(state.bind(row).offset(form), ahead), f.elem)
