"""Lower kernels that are fused by blocks of rows: a program runs the members in order on some rows.

A member's results lie in memory; tensors local to the rows lie in the workspace; a barrier precedes their
loads. A member that sums over the rows needs the results of all programs: it ends the function, and has functions of
its own.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from math import prod

from einsmith.codegen.ssa import SSAValue
from einsmith.gpu.tiles.ir import TileBuilder
from einsmith.gpu.tiles.pieces import (
    Functions,
    Tiling,
    blocks,
    emit_epilogue,
    least_power,
    lower_pointwise,
    own_memory,
    stage_arguments,
)
from einsmith.gpu.tiles.points import MOST_I32_POINTS, Points, TileMemory, unravel
from einsmith.gpu.tiles.reduction import combine_terms
from einsmith.ir.nodes import Piece, Reduce
from einsmith.schedule.kernel import Kernel, Member, Rows


def places_of(
    functions: Functions, rows: Rows, members: Sequence[Member], unstored: Collection[int] = ()
) -> list[list[TileMemory]]:
    """Return the memory of each member's buffers, in the member's own layout of them. unstored: local buffers, by
    place, that need no memory."""
    memories = own_memory(rows)
    for layout in rows.local:
        memories.append(TileMemory(layout, None) if len(memories) in unstored else functions.reserve(layout))
    return [
        [memories[place]._replace(layout=layout) for place, layout in zip(m.places, m.kernel.buffers, strict=True)]
        for m in members
    ]


def rows_in_block(rows: int, members: Sequence[Member], lanes: int) -> int:
    """Return the rows of a program whose tiles have at most `lanes` lanes, unless a single row has more."""
    columns = max((prod(m.kernel.shape) // max(1, m.kernel.shape[m.axis]) for m in members), default=1)
    return max(1, min(lanes // least_power(columns), rows))


def are_row_wise(rows: Rows) -> bool:
    """Return whether each member that does not sum over the rows computes all columns of each row."""
    return all(
        isinstance(p, Piece) and (p.offset[m.axis], p.step[m.axis]) == (0, 1)
        for m in rows.members
        if not m.reduces
        for p in m.kernel.root.parts
    )


def lower_row_wise(
    functions: Functions, rows: int, members: Sequence[Member], places: Sequence[Sequence[TileMemory]], tiling: Tiling
) -> None:
    """Emit the function of members that do not sum over the rows."""
    columns = [prod(m.kernel.shape) // max(1, m.kernel.shape[m.axis]) for m in members]
    count = rows_in_block(rows, members, tiling.m)
    b = functions.begin("rows")
    program = b.cast(b.program(), "i64") if rows * max(columns) > MOST_I32_POINTS else b.program()
    first = b.op("mul", program, count)
    last = b.op("min", b.op("add", first, count), rows)
    for n, (member, at) in enumerate(zip(members, places, strict=True)):
        if n:
            b.barrier()
        for piece in member.kernel.root.parts:
            assert isinstance(piece, Piece)
            if prod(piece.extents):
                _emit_piece(b, member, piece, at, tiling, first, last, count)
    functions.add(b, blocks(rows, count))


def lower_joined(functions: Functions, rows: Rows, tiling: Tiling) -> None:
    """Emit one function for independent members. Each of its programs runs one program of one member: every member has
    a loop of one iteration in its own programs, and of none in the others."""
    own = Functions()
    for member in rows.members:
        places = [TileMemory(layout, n) for n, layout in zip(member.places, member.kernel.buffers, strict=True)]
        for piece in member.kernel.root.parts:
            assert isinstance(piece, Piece)
            if prod(piece.extents):
                lower_pointwise(own, member.kernel, piece, places, tiling)
    total = sum(f.programs for f in own.done)
    b = functions.begin("joined")
    program, first = b.program(), 0
    for f in own.done:
        number = b.op("sub", program, first)
        start = b.select(b.op("lt", number, 0), b.const(f.programs), number)
        with b.loop(start, b.const(f.programs), total) as loop:
            b.inline(f, loop.var, [(b.parameter(p), b.const(0)) for p in f.parameters])
        first += f.programs
    functions.add(b, total)


def _emit_piece(
    b: TileBuilder,
    member: Member,
    piece: Piece,
    places: Sequence[TileMemory],
    tiling: Tiling,
    first: SSAValue,
    last: SSAValue,
    count: int,
) -> None:
    """Emit a piece's points in the rows first .. last-1, at most `count` rows, block by block. Points are counted in
    the type of `first` and `last`, which is one for all members."""
    kernel: Kernel = member.kernel
    others = [d for d in range(len(piece.extents)) if d != member.axis]
    order = [member.axis, *others]
    extents = [piece.extents[d] for d in order]
    columns = prod(extents[1:])
    terms = prod(piece.body.extents) if isinstance(piece.body, Reduce) else 1
    t = replace(tiling, m=min(tiling.m, least_power(count * columns)), k=min(tiling.k, least_power(terms)))
    end = b.op("mul", last, columns)
    with b.loop(b.op("mul", first, columns), end, t.m) as loop:
        number = b.op("add", loop.var, b.cast(b.arange(t.m), loop.var.elem))
        live = [b.op("lt", number, end)]
        axis_values = dict(zip(order, unravel(b, number, extents), strict=True))
        axes = [axis_values[d] for d in range(len(order))]
        if isinstance(piece.body, Reduce):
            combine, state = combine_terms(b, kernel, piece, axes, live, places, t, 0, terms)
            values = combine.results(state)
        else:
            points = Points(b, piece.domain, axis_values, live, stage_arguments(kernel.stages[0], places))
            values = points.values(piece.bodies)
        emit_epilogue(b, kernel, piece, axes, live, values, places)
