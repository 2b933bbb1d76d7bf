"""Packing operands into panels: the points of a tile of M or of a panel of N, in the order that tiles read them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import gcd, prod
from typing import Any

from einsmith.kernels.contraction.config import Side
from einsmith.kernels.contraction.emission import prefetch_panels
from einsmith.kernels.contraction.emission.frame import Frame, Panel, Task
from einsmith.kernels.emit.access import FusedAxes, OperandAccess, PartialAddress
from einsmith.kernels.emit.cursor import LaneCursor
from einsmith.kernels.emit.walk import Bound, ceil_div, digits_of, sweep, transpose
from einsmith.loops.nest import Value


def shared_a(f: Frame) -> Value:
    """Where the M operand lies that is packed into the workspace."""
    return f.workspace


def shared_b(f: Frame) -> Value:
    return f.b.address(f.workspace, f.b.const(f.g.shared_elements()[0]), f.elem)


def _number(f: Frame, side: Side, batch: Value, tile: Value, tiles: int, lo: Bound) -> Value:
    """The number of a tile's slab in the workspace."""
    b, g = f.b, f.g
    at = batch if g.batches(side) > 1 else b.const(0)
    if g.k_blocks > 1:
        low = b.index(lo)
        at = b.add(b.mul(at, b.const(g.k_blocks)), b.op("floordiv", low, b.const(g.kc)))
    return b.add(b.mul(at, b.const(tiles)), tile)


def right(f: Frame, t: Task, panel: Panel, lo: Bound, hi: Bound) -> Value | None:
    """Where a panel of N lies in a block of K: packed now, or before, or (None) not at all."""
    g = f.g
    if g.c.b == "inline":
        return None
    if g.c.b == "buffer":
        return f.slot(shared_b(f), g.b_slab, _number(f, g.n_side, t.batch, panel.jn, g.nt, lo))
    assert f.b_scratch is not None
    pack_b(f, t.b, f.b_scratch, panel, lo, hi)
    return f.b_scratch


def left(f: Frame, t: Task, jm: Value, mr: int, lo: Bound, hi: Bound) -> Value | None:
    """The same of a tile of M of mr rows."""
    g = f.g
    if g.c.a == "inline":
        return None
    if g.c.a == "buffer":
        return f.slot(shared_a(f), g.a_slab, _number(f, g.m_side, t.batch, jm, g.mt, lo))
    assert f.a_scratch is not None and t.a_pack is not None
    pack_a(f, t.a_pack, f.a_scratch, jm, mr, lo, hi)
    return f.a_scratch


def pack_b(
    f: Frame, operand: Sequence[PartialAddress], to: Value, panel: Panel, lo: Bound, hi: Bound,
    start: Value | None = None,
) -> None:
    """The panel's points, [k][vectors]. operand: what the batch adds to the operand's addresses, and to those along K
    where it has such. `start`: as for `pack_a`."""
    b, g = f.b, f.g
    n0 = b.mul(panel.jn, b.const(g.nr))
    low = start if start is not None else b.index(lo)
    if f.b_along is not None:
        _pack_b_along(f, operand[1], to, n0, panel.nv, lo, hi, low, start is None)
    else:
        _pack_b_across(f, operand[0], to, n0, panel, lo, hi, low)


def _pack_b_across(
    f: Frame, operand: PartialAddress, to: Value, n0: Value, panel: Panel, lo: Bound, hi: Bound, low: Value
) -> None:
    """Vectors of points of N."""
    b, g, s = f.b, f.g, f.b_in
    n, width = g.lanes, panel.nv * g.lanes
    rows = f.row_prefetch
    states = [
        LaneCursor(s, b.add(n0, b.const(v * n)), panel.limit, n, column=g.column(v)).bind(operand)
        for v in range(panel.nv)
    ]
    groups = s.groups(g.p.k)
    cut = len(groups)
    while cut and prod(x.extent for x in groups[cut:]) < g.tail:
        cut -= 1
    tail = groups[cut:]

    def walk(
        groups: list[FusedAxes], states: Sequence[LaneCursor], lo: Bound, hi: Bound, place: Callable[[Value], Value]
    ) -> None:
        def outer(values: list[Value]) -> list[LaneCursor]:
            part = s.part(list(zip(groups[:-1], values, strict=True)))
            if rows is not None and values:
                rows.ask(n0, g.nr, values[0])
            return [x.bind(part) for x in states]

        def inner(context: list[LaneCursor], last: Value, flat: Value, _: Any) -> Sequence[Value]:
            part = last_of_k(f, s, groups, last)
            if rows is not None and len(groups) == 1:
                rows.ask(n0, g.nr, last)
            at = b.mul(place(flat), b.const(width))
            for v, state in enumerate(context):
                b.store(state.bind(part).product(), to, b.add(at, b.const(v * n)))
            return ()

        sweep(b, [x.extent for x in groups], lo, hi, (), outer, inner)

    if not s.conds or not cut or g.tail == 1 or prod(x.extent for x in tail) != g.tail:
        walk(groups, states, lo, hi, lambda flat: b.sub(flat, low))
        return
    size = b.const(g.tail)
    first, end = (x // g.tail if isinstance(x, int) else b.op("floordiv", x, size) for x in (lo, hi))
    start = b.index(first)
    with b.loop(0, g.tail) as loop:  # masks are made once for all that stands before the tail
        part = s.part(list(zip(tail, digits_of(b, loop.var, tail), strict=True)))
        part.axes |= frozenset(g.p.k) - {a for x in groups[:cut] for a in x.axes}
        masked = [x.bind(part) for x in states]
        walk(groups[:cut], masked, first, end, lambda flat: b.add(b.mul(b.sub(flat, start), size), loop.var))


def last_of_k(f: Frame, s: OperandAccess, groups: Sequence[FusedAxes], value: Value) -> PartialAddress:
    """What the innermost group of K adds to every address of an operand, of which all of K is then bound."""
    part = s.part([(groups[-1], value)]) if groups else PartialAddress({}, frozenset(), {})
    part.axes |= frozenset(f.g.p.k)
    return part


def _pack_b_along(
    f: Frame, operand: PartialAddress, to: Value, n0: Value, nv: int, lo: Bound, hi: Bound, low: Value, whole: bool
) -> None:
    """Vectors along K of as many rows as there are lanes, transposed in registers; whole: lo .. hi is a block of K."""
    b, g, s, depth = f.b, f.g, f.b_along, f.g.c.depth
    assert s is not None
    n, width = g.lanes, nv * g.lanes
    points = n // depth
    last = b.const(g.N - 1)
    by_rows = f.b_rows if whole else None
    with b.loop(0, nv) as vectors:
        at = b.add(n0, b.mul(vectors.var, b.const(points)))
        rows = []
        for j in range(points):
            x = b.add(at, b.const(j))
            if g.N % points:
                x = b.op("min", x, last)
            rows.append(s.part_of(g.n_side.axes, x))

        def chunk(k: Value, limit: Bound | None, place: Sequence[Value] | None = None) -> None:
            state = LaneCursor(by_rows or s, k, limit, g.k_unit, place=place).bind(operand)
            if f.ahead.along:
                prefetch_panels.ask_along(f, state, rows)
            values = transpose(b, [state.bind(row).product() for row in rows], depth)
            out = b.add(b.mul(b.sub(k, low), b.const(width // depth)), b.mul(vectors.var, b.const(n)))
            for j, x in enumerate(values):
                b.store(x, to, b.add(out, b.const(j * width)))

        if by_rows is None:
            _chunks(f, s, lo, hi, chunk)
        else:
            _row_chunks(f, by_rows.lane_extents[-1], lo, hi, chunk)


def _row_chunks(f: Frame, row: int, lo: Bound, hi: Bound, chunk: Callable[[Value, Bound | None], None]) -> None:
    """chunk(k, None) for the vectors of every row of K points in lo .. hi, of which the last one in each begins within
    the one before."""
    b, n = f.b, f.g.lanes
    with b.loop(lo, hi, step=row) as rows, b.loop(0, row, step=n) as loop:
        chunk(b.add(rows.var, b.op("min", loop.var, b.const(row - n))), None)


def _chunks(f: Frame, s: OperandAccess, lo: Bound, hi: Bound, chunk: Callable[..., None]) -> None:
    """chunk(k, limit, place) for every vector of K points in lo .. hi of an access along K: the last one is limited
    unless K, its parts and its blocks are whole vectors; its place, the digits of k, is told where rows of K are whole
    vectors too."""
    b, g, n = f.b, f.g, f.g.lanes
    if not any(x % n for x in (g.K, g.k_max, g.kc)):
        *heads, row = s.lane_extents
        if row % n:
            heads, row = [], g.K

        def vector(context: list[Value], last: Value, flat: Value, _: Any) -> Sequence[Value]:
            chunk(b.mul(flat, b.const(n)), None, [*context, b.mul(last, b.const(n))] if heads else None)
            return ()

        lo, hi = (x // n if isinstance(x, int) else b.op("floordiv", x, b.const(n)) for x in (lo, hi))
        sweep(b, [*heads, row // n], lo, hi, (), list, vector)
        return
    if isinstance(lo, int) and isinstance(hi, int):
        whole = lo + (hi - lo) // n * n
        if whole > lo:
            with b.loop(lo, whole, step=n) as loop:
                chunk(loop.var, None)
        if whole < hi:
            chunk(b.const(whole), hi)
        return
    with b.loop(lo, hi, step=n) as loop:
        chunk(loop.var, None if g.heads and g.kc % n == 0 else hi)


def pack_a(
    f: Frame, operand: PartialAddress, to: Value, jm: Value, mr: int, lo: Bound, hi: Bound, start: Value | None = None
) -> None:
    """The tile's rows: [row][k] where K is contiguous in the source, else [k][row]. operand: what the batch adds to its
    addresses. With `start`, lo .. hi is a part of what the panel has from point `start` of K on, and the rest of it is
    left alone."""
    b, g = f.b, f.g
    m0 = b.mul(jm, b.const(g.mr))
    low = start if start is not None else b.index(lo)
    if g.a_along:
        _pack_a_along(f, operand, to, m0, mr, lo, hi, low)
    else:
        _pack_a_across(f, operand, to, m0, mr, lo, hi, low, start is not None)


def _pack_a_along(
    f: Frame, operand: PartialAddress, to: Value, m0: Value, mr: int, lo: Bound, hi: Bound, low: Value
) -> None:
    b, g, s = f.b, f.g, f.a_pack

    def chunk(k: Value, limit: Bound | None, place: Sequence[Value] | None = None) -> None:
        state = LaneCursor(s, k, limit, g.k_unit, place=place).bind(operand)
        with b.loop(0, mr) as rows:
            part = s.part_of(g.m_side.axes, b.add(m0, rows.var))
            at = b.add(b.mul(rows.var, b.const(g.k_pad)), b.sub(k, low))
            b.store(state.bind(part).product(), to, at)

    _chunks(f, s, lo, hi, chunk)


def _pack_a_across(
    f: Frame, operand: PartialAddress, to: Value, m0: Value, mr: int, lo: Bound, hi: Bound, low: Value, part_only: bool
) -> None:
    b, g, s, n = f.b, f.g, f.a_pack, f.g.lanes
    vectors = ceil_div(mr, n)
    align = gcd(g.mr, n)
    states = []
    for v in range(vectors):
        rows = mr - v * n
        state = LaneCursor(s, b.add(m0, b.const(v * n)), None, align, rows if rows < n else None)
        states.append(state.bind(operand))
    groups = s.groups(g.p.k)

    def outer(values: list[Value]) -> list[LaneCursor]:
        part = s.part(list(zip(groups[:-1], values, strict=True)))
        return [x.bind(part) for x in states]

    def inner(whole: bool, context: list[LaneCursor], last: Value, flat: Value, _: Any) -> Sequence[Value]:
        part = last_of_k(f, s, groups, last)
        at = b.mul(b.sub(flat, low), b.const(mr))
        for v, state in enumerate(context):  # lanes past mr are overwritten by the next k
            rows = mr - v * n
            own = None if whole or rows >= n else b.op("lt", b.iota(n, "i32"), b.const(rows, "i32", n))
            b.store(state.bind(part).product(), to, b.add(at, b.const(v * n)), own)
        return ()

    extents = [x.extent for x in groups]
    if not part_only:
        sweep(b, extents, lo, hi, (), outer, partial(inner, True))
        return
    over = ceil_div(vectors * n, mr) - 1  # points that whole vectors reach beyond their own
    last = b.op("max", b.index(lo), b.sub(b.index(hi), b.const(over)))
    sweep(b, extents, lo, last, (), outer, partial(inner, True))
    sweep(b, extents, last, hi, (), outer, partial(inner, False))
