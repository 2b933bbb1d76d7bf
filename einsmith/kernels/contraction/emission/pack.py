"""Pack operands: the points of a tile of M or of a panel of N, in the order in which tiles read them.

A task packs into its scratch; a launch of its own packs into the workspace, from where all tasks read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from functools import partial
from math import gcd, prod
from typing import Any

from einsmith.codegen.loopnest.dots import TILE_ROWS
from einsmith.codegen.loopnest.lanes import transpose
from einsmith.codegen.loopnest.nest import Builder
from einsmith.codegen.loopnest.walk import Bound, digits, strips, sweep, task_range
from einsmith.codegen.ssa import SSAValue
from einsmith.kernels.contraction.emission.frame import (
    Frame,
    Strip,
    TaskFrame,
    is_batch_below,
    is_tile_below,
    limited_side,
    tiles_of,
)
from einsmith.kernels.contraction.geometry import Geometry, OperandTiles
from einsmith.kernels.emit.access import OperandAccess, PartialAddress
from einsmith.kernels.emit.cursor import LaneCursor


def packed_tile(f: Frame, t: TaskFrame, x: OperandTiles, tile: Strip, lo: Bound, hi: Bound) -> SSAValue | None:
    """Return where the packed tile of an operand lies in a block of K; None where it is read in place.

    A "panel" is packed here; a "buffer" was packed by an earlier launch.
    """
    b, g = f.b, f.g
    if x.how == "inline":
        return None
    if x.how == "panel":
        pack(f, x, t.m_part if x is g.a else t.n_part, f.scratch[x], lo, hi, tile)
        return f.scratch[x]
    at = t.batch if x.batches > 1 else b.const(0)
    if g.k_blocks > 1:
        at = b.add(b.mul(at, g.k_blocks), b.op("floordiv", lo, g.kc))
    return f.slot(x, b.add(b.mul(at, x.tiles), tile.number))


def shared_tasks(g: Geometry, x: OperandTiles) -> int:
    """Return the number of tasks that pack an operand into the workspace: one for each tile in each block of K."""
    return x.batches * g.k_blocks * x.tiles if x.how == "buffer" else 0


def pack_shared(g: Geometry, base: int, operands: Sequence[OperandTiles], b: Builder, _: int, task: SSAValue) -> None:
    """Emit one of the tasks that pack the chosen operands; `base`: workspace bytes before this piece's part."""
    f, first = Frame(b, g, base), 0
    for x in (x for x in operands if x.how == "buffer"):
        with task_range(b, task, first, shared_tasks(g, x)) as t:
            batch, block, number = digits(b, t, (x.batches, g.k_blocks, x.tiles))
            lo = b.mul(block, g.kc)
            hi: Bound = b.op("min", b.add(lo, g.kc), g.K)
            counts: list[SSAValue] = []  # conditions that the tile counts in this run
            if g.kernel.loop_invariant is None:  # else the operand may be packed once for runs with other limits
                hi = b.op("max", f.k_end(hi), lo)
                counts = _conditions_below(g, b, x, batch, number)
            operand = (f.m_access if x is g.a else f.n_access).part_of(g.p.batch, batch)
            pack_tile = partial(pack, f, x, operand, f.slot(x, t), lo, hi)
            with ExitStack() as stack:
                for condition in counts:
                    stack.enter_context(b.if_(condition))
                tiles_of(f, x, (number, b.add(number, 1)), pack_tile)
        first += shared_tasks(g, x)


def _conditions_below(g: Geometry, b: Builder, x: OperandTiles, batch: SSAValue, number: SSAValue) -> list[SSAValue]:
    """Return the conditions that a tile has points below the limits of the kernel."""
    points = limited_side(b, g, x.side)
    out = [None if points is None else b.op("lt", b.mul(number, x.points), points), is_tile_below(b, g, x, number)]
    if x.batches > 1:
        out.append(is_batch_below(b, g, batch))
    return [c for c in out if c is not None]


def pack(f: Frame, x: OperandTiles, operand: PartialAddress, to: SSAValue, lo: Bound, hi: Bound, tile: Strip) -> None:
    """Pack a tile's points lo .. hi of K.

    Panels of N are [k][vectors]; tiles of M are [row][k] where K is contiguous in the source or tile registers multiply
    them, else [k][row]. `operand` is what the batch adds to the operand's addresses.
    """
    first = f.b.mul(tile.number, x.points)
    if not x.along_k:
        _pack_across_k(f, x, operand, to, first, tile, lo, hi)
    elif x is f.g.a:
        _pack_rows_along_k(f, operand, to, first, tile.size, lo, hi)
    else:
        _pack_columns_along_k(f, operand, to, first, tile.size, lo, hi)
    if f.g.p.in_tiles and f.g.K % TILE_ROWS:
        _clear_past_k(f, x, to, tile.size, lo, hi)


def _clear_past_k(f: Frame, x: OperandTiles, to: SSAValue, size: int, lo: Bound, hi: Bound) -> None:
    """Set the words between the end of a block of K and whole tile registers to zero. size: rows of M, or vectors."""
    b, g, n = f.b, f.g, TILE_ROWS
    count = b.sub(hi, lo)
    whole = b.mul(b.op("floordiv", count, n), n)
    zero = b.const(0, f.elem, n)
    with b.if_(b.op("lt", whole, count)):
        if x is g.a:
            past = b.op("le", b.splat(b.sub(count, whole), n), b.iota(n))
            with b.loop(0, size) as rows:
                b.store(zero, to, b.add(b.mul(rows.var, g.k_pad), whole), past)
            return
        with b.loop(count, b.add(whole, n)) as k:
            for v in range(size):
                b.store(zero, to, b.add(b.mul(k.var, size * n), v * n))


def _pack_across_k(
    f: Frame, x: OperandTiles, operand: PartialAddress, to: SSAValue, first: SSAValue, tile: Strip, lo: Bound, hi: Bound
) -> None:
    """Pack vectors along the side. Lanes past the rows of a tile of M are overwritten by the next point of K."""
    b, g, n = f.b, f.g, f.g.lanes
    if x is g.a:
        s, width, align = f.m_access, tile.size, gcd(g.mr, n)
        ends: list[tuple[int | None, int | None, int | None]] = [  # limit, lanes that count, column
            (None, tile.size - v if tile.size - v < n else None, None) for v in range(0, tile.size, n)
        ]
    else:
        s, width, align = f.n_access, tile.size * n, n
        ends = [(tile.limit, None, g.column(v)) for v in range(tile.size)]
    states = [
        LaneCursor(s, b.add(first, v * n), limit, align, count, column).bind(operand)
        for v, (limit, count, column) in enumerate(ends)
    ]
    groups = s.groups(g.p.k)
    cut = len(groups)
    while cut and prod(x.extent for x in groups[cut:]) < g.tail:
        cut -= 1
    if x is g.a or not s.conds or not cut or prod(x.extent for x in groups[cut:]) != g.tail:
        cut = len(groups)
    groups, tail = groups[:cut], groups[cut:]
    points = prod(x.extent for x in tail)
    start, end = (b.op("floordiv", x, points) for x in (lo, hi))
    with (
        b.loop(0, points) if tail else nullcontext() as loop
    ):  # masks are computed once for all points of the outer groups
        number = b.const(0) if loop is None else loop.var
        part = s.part_of([a for x in tail for a in x.axes], number)
        masked = [x.bind(part) for x in states]

        def outer(values: list[SSAValue]) -> list[LaneCursor]:
            part = s.part(groups[:-1], values)
            return [x.bind(part) for x in masked]

        def inner(context: list[LaneCursor], last: SSAValue, flat: SSAValue, _: Any) -> Sequence[SSAValue]:
            part = s.part(groups[-1:], [last])
            at = b.mul(b.add(b.mul(b.sub(flat, start), points), number), width)
            for v, state in enumerate(context):
                b.store(state.bind(part).product(), to, b.add(at, v * n))
            return ()

        sweep(b, [x.extent for x in groups], start, end, (), outer, inner)


def _pack_rows_along_k(
    f: Frame, operand: PartialAddress, to: SSAValue, m0: SSAValue, mr: int, lo: Bound, hi: Bound
) -> None:
    """Pack each row in vectors along K."""
    b, g, s = f.b, f.g, f.m_access

    def pack_chunk(k: SSAValue, limit: Bound | None, place: Sequence[SSAValue] | None = None) -> None:
        state = LaneCursor(s, k, limit, g.k_unit, place=place).bind(operand)
        with b.loop(0, mr) as rows:
            part = s.part_of(g.m_side.axes, b.add(m0, rows.var))
            at = b.add(b.mul(rows.var, g.k_pad), b.sub(k, lo))
            b.store(state.bind(part).product(), to, at)

    _for_each_chunk(f, s, lo, hi, pack_chunk)


def _pack_columns_along_k(
    f: Frame, operand: PartialAddress, to: SSAValue, n0: SSAValue, nv: int, lo: Bound, hi: Bound
) -> None:
    """Pack vectors along K of as many rows as there are lanes, transposed in registers."""
    b, g, s, depth, n = f.b, f.g, f.n_access, f.g.c.depth, f.g.lanes
    width, points, last = nv * n, n // depth, b.const(g.N - 1)
    with b.loop(0, nv) as vectors:
        at = b.add(n0, b.mul(vectors.var, points))
        rows = []
        for j in range(points):
            x = b.add(at, j)
            if g.N % points:
                x = b.op("min", x, last)
            rows.append(s.part_of(g.n_side.axes, x))

        def pack_chunk(k: SSAValue, limit: Bound | None, place: Sequence[SSAValue] | None = None) -> None:
            state = LaneCursor(s, k, limit, g.k_unit, place=place).bind(operand)
            values = transpose(b, [state.bind(row).product() for row in rows], depth)
            out = b.add(b.mul(b.sub(k, lo), width // depth), b.mul(vectors.var, n))
            for j, x in enumerate(values):
                b.store(x, to, b.add(out, j * width))

        _for_each_chunk(f, s, lo, hi, pack_chunk)


def _for_each_chunk(f: Frame, s: OperandAccess, lo: Bound, hi: Bound, pack_chunk: Callable[..., None]) -> None:
    """Call pack_chunk(k, limit, place) for every vector of K points in lo .. hi of an access along K.

    The last vector is limited unless K, its parts and its blocks are whole vectors. `place`, the digits of k, is passed
    where rows of K are whole vectors too.
    """
    b, g, n = f.b, f.g, f.g.lanes
    if not any(x % n for x in (g.K, g.k_max, g.kc)):
        *outer_extents, row = s.lane_extents
        if row % n:
            outer_extents, row = [], g.K

        def call_chunk(context: list[SSAValue], last: SSAValue, flat: SSAValue, _: Any) -> Sequence[SSAValue]:
            pack_chunk(b.mul(flat, n), None, [*context, b.mul(last, n)] if outer_extents else None)
            return ()

        # A range may end at a number that is known at run time; nothing reads what the last vector has beyond it.
        lo, hi = b.op("floordiv", lo, n), b.op("floordiv", b.add(hi, n - 1), n)
        sweep(b, [*outer_extents, row // n], lo, hi, (), list, call_chunk)
        return
    first, end = b.known(lo), b.known(hi)
    if first is not None and end is not None:
        strips(b, first, end, n, lambda k, count, _: pack_chunk(k, None if count == n else hi))
        return
    with b.loop(lo, hi, step=n) as loop:
        pack_chunk(loop.var, None if g.halo_k_blocks and g.kc % n == 0 else hi)
