"""Give a kernel's call the limits of what its readers need.

The kernel gets the limit as a further buffer (`schedule.kernel.LimitedKernel`), a row-block fusion also as a condition
of its rows (`schedule.kernel.Activity`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import NamedTuple

from einsmith.base import dtypes as dt
from einsmith.ir.analysis.bounds import Facts
from einsmith.ir.analysis.ends import guards_around
from einsmith.ir.analysis.guarded import reads_under
from einsmith.ir.analysis.linear import linear
from einsmith.ir.analysis.products import is_less
from einsmith.ir.functions import identity
from einsmith.ir.nodes import (
    Axis,
    Const,
    Expr,
    Piece,
    Read,
    Reduce,
    Tensor,
    apply,
    cast,
    size,
)
from einsmith.ir.views import storage
from einsmith.schedule.kernel import (
    Activity,
    Follow,
    Kernel,
    KernelBuffer,
    LimitedKernel,
    Member,
    Rows,
    Stage,
    limits_of,
    row_major,
)
from einsmith.schedule.limited_positions import Limited, RowLimit, value_of
from einsmith.schedule.plan import KernelCall, Plan
from einsmith.schedule.row_blocks import finds_position

_NEW = -1
"""Place of a limit in members of a row-block fusion until its buffer is known."""


class Limiting(NamedTuple):
    """A limit of a plan.

    limited: what it limits; outside: tensors in memory of the caller's, which may end at the limit; limits: all limits
    of the graph, each with what it limits
    """

    limit: RowLimit
    limited: Limited
    plan: Plan
    outside: Collection[Tensor]
    limits: Sequence[tuple[RowLimit, Limited]]


def limit_call(call: KernelCall, x: Limiting) -> KernelCall:
    """Return a call whose kernel leaves out points beyond the limit; the call itself where some of them matter."""
    kernel = call.kernel
    if isinstance(kernel, Rows):
        return _limit_rows_of(call, kernel, x)
    if call.parts:
        return call
    written = [t for t, w in zip(call.tensors, call.written, strict=True) if w]
    if any(t in x.plan.home for t in written):
        return call
    buffers = [b for b, w in zip(kernel.buffers, call.written, strict=True) if w]
    axes = [
        a
        for a in range(len(kernel.shape))
        if a not in limits_of(kernel)
        and (has_whole_axis(kernel, a, x.limit.extent) or _has_parts(kernel, a, x.limit.extent))
        if all((t, _dimension_of(t, b, a, kernel.shape)) in x.limited for t, b in zip(written, buffers, strict=True))
    ]
    if not axes:
        return call
    is_short = 0 in axes and _may_be_short(call, x)
    return _with_limit(call, add_limits(kernel, axes, is_short), x.limit)


def _dimension_of(t: Tensor, buffer: KernelBuffer, axis: int, shape: tuple[int, ...]) -> int | None:
    """Return the dimension of a tensor along which a kernel of this shape, which stores it in `buffer`, moves by an
    output axis; None where none is known."""
    if t.shape == buffer.shape == shape or axis == 0 and t.shape[:1] == shape[:1]:
        return axis
    # Of several leading dimensions, row-block fusions make one.
    d = axis + len(t.shape) - len(shape)
    is_dense = buffer.shape == shape and buffer.strides == row_major(shape) and size(t.shape) == size(shape)
    return d if is_dense and d > 0 and axis > 0 and t.shape[d:] == shape[axis:] else None


def _may_be_short(call: KernelCall, x: Limiting) -> bool:
    """Return whether a call reads or writes rows in memory of the caller's, which may end at the limit."""
    return any(t.shape[:1] == (x.limit.extent,) and storage(t) in x.outside for t in call.tensors)


def add_limits(kernel: Kernel, axes: Sequence[int], is_short: bool = False) -> LimitedKernel:
    """Return a kernel with a limit of some axes, in a buffer behind the others."""
    buffers = (*kernel.buffers, KernelBuffer(dt.i32, ()))
    limits = (*limits_of(kernel).items(), *((a, len(kernel.buffers)) for a in axes))
    is_short |= isinstance(kernel, LimitedKernel) and kernel.is_short
    return LimitedKernel(kernel.stages, buffers, kernel.loop_invariant, kernel.sums, tuple(sorted(limits)), is_short)


def row_axes(rows: Rows) -> dict[int, set[int]]:
    """Return by place of a row-block fusion what its members have in `by_row`."""
    axes: dict[int, set[int]] = {}
    for m in rows.members:
        for place, axis in zip(m.places, m.by_row, strict=True):
            axes.setdefault(place, set()).add(axis)
    return axes


def _with_limit(call: KernelCall, kernel: Kernel, limit: RowLimit) -> KernelCall:
    offsets = (*call.offsets, 0) if call.offsets else ()
    return replace(
        call, kernel=kernel, tensors=(*call.tensors, limit.leaf), written=(*call.written, False), offsets=offsets
    )


def has_whole_axis(kernel: Kernel, axis: int, extent: int) -> bool:
    """Return whether an output axis of a kernel, of this extent, runs through positions of its results, piece by
    piece."""
    if kernel.sums or kernel.shape[axis : axis + 1] != (extent,):
        return False
    return all(
        isinstance(p, Piece) and (p.offset[axis], p.step[axis], p.extents[axis]) == (0, 1, extent)
        for p in kernel.root.parts
    )


def _has_parts(kernel: Kernel, axis: int, extent: int) -> bool:
    """Return whether pieces of a kernel without sums are each a stretch of an axis of this extent."""
    parts = kernel.root.parts
    return kernel.shape[axis : axis + 1] == (extent,) and all(
        isinstance(p, Piece) and p.step[axis] == 1 and not isinstance(p.body, Reduce) for p in parts
    )


def _limit_rows_of(call: KernelCall, rows: Rows, x: Limiting) -> KernelCall:
    """Return a call of a row-block fusion that leaves out blocks of rows beyond the limit, and what lies beyond it
    along other axes of its members' results."""
    if rows.takes_sums:
        return call
    known = [n for n, t in enumerate(call.tensors) if t is x.limit.leaf]
    place = known[0] if known else len(rows.buffers)
    members = _limit_members(call, rows, x, place)
    active = _limit_of_rows(call, rows, x, place)
    if active is None:
        return call if members is None else _with_place(call, rows, members, place, x.limit, rows.active)
    return _with_place(call, rows, rows.members if members is None else members, place, x.limit, active)


def ends_rows(rows: Rows) -> bool:
    """Return whether the rows that a row-block fusion skips are the last ones."""
    return rows.active is not None and bool(rows.active.ends)


def _limit_of_rows(call: KernelCall, rows: Rows, x: Limiting, place: int) -> Activity | None:
    """Return the condition under which rows matter; None if the limit skips no row. Rows may be several merged
    dimensions, any of which can be the limited one."""
    before = rows.active
    if rows.is_online or (before is not None and not before.is_limit):
        return None
    merged = _merged_dimensions(call, rows, x)
    if merged is None:
        return None
    inner, is_first = merged
    extent = 0 if is_first else x.limit.extent
    end: Expr = Read(place, (), dt.i32)
    if is_first:
        condition = apply("lt", Axis(0), apply("mul", end, Const(inner, dt.i32)))
    else:
        condition = apply("lt", _position(Axis(0), inner, extent), end)
    for m in rows.members:
        if m.reduces:
            if not is_neutral(m, place, inner, extent):
                return None
        elif (m.axis and rows.rows != x.limit.extent) or not has_whole_axis(m.kernel, m.axis, rows.rows):
            return None
    is_short = is_first and _may_be_short(call, x)
    condition = condition if before is None else apply("and", before.condition, condition)
    return Activity(condition, (), 1 if is_short or (before is not None and before.block) else 0, False)


def _position(row: Expr, inner: int, extent: int) -> Expr:
    """Return the position of a row along a dimension of this extent (0: the first one) with `inner` rows each."""
    position = apply("floordiv", row, Const(inner, row.dtype)) if inner > 1 else row
    return apply("mod", position, Const(extent, row.dtype)) if extent else position


def _merged_dimensions(call: KernelCall, rows: Rows, x: Limiting) -> tuple[int, bool] | None:
    """Return (rows of a position along the limited dimension, whether no dimension before it belongs to the rows too);
    None where results that are written have no such dimension, or others than each other."""
    by_row = row_axes(rows)
    reduced = {p for m in rows.members if m.reduces for p in m.results}
    every: set[tuple[int, bool]] | None = None
    for n, (t, w) in enumerate(zip(call.tensors, call.written, strict=True)):
        if not w or n in reduced:
            continue
        (axis, *others) = by_row.get(n, {0})
        if others or not axis or t in x.plan.home:
            return None
        buffer = rows.buffers[n]
        if axis > 1:
            dimension = _dimension_of(t, buffer, axis - 1, buffer.shape)
            own = {(1, True)} if rows.rows == x.limit.extent and (t, dimension) in x.limited else set()
        else:
            lead = next((k for k in range(len(t.shape) + 1) if math.prod(t.shape[:k]) == rows.rows), 0)
            ends = [d for d in range(lead) if t.shape[d] == x.limit.extent and (t, d) in x.limited]
            own = {(math.prod(t.shape[d + 1 : lead]), math.prod(t.shape[:d]) == 1) for d in ends}
            if rows.rows == x.limit.extent and _is_limited_within(t, math.prod(t.shape[1:lead]), x):
                own.add((1, True))
        every = own if every is None else every & own
    if every is None and rows.rows % x.limit.extent == 0:  # members reduce over the rows, and say where they end
        return rows.rows // x.limit.extent, True
    return max(every) if every else None


def _is_limited_within(t: Tensor, inner: int, x: Limiting) -> bool:
    """Return whether the limit is `inner` times another one, which limits the first dimension of a tensor."""
    atoms: dict[Tensor, Expr] = {}
    end = linear(value_of(x.limit, atoms))
    return any(
        (t, 0) in limited and end == linear(apply("mul", value_of(other, atoms), Const(inner, dt.i32)))
        for other, limited in x.limits
    )


def _with_place(
    call: KernelCall, rows: Rows, members: Sequence[Member], place: int, limit: RowLimit, active: Activity | None
) -> KernelCall:
    """Return a call of a row-block fusion that has the limit in buffer `place`; the last buffer, if that is new. The
    members have it in the place _NEW."""
    is_new = place == len(rows.buffers)
    limited = Rows(rows.rows, tuple(members), rows.buffers, rows.local, active, rows.takes_sums)
    if is_new:
        limited = add_place(limited, KernelBuffer(dt.i32, ()))
    kernel = _replace_places(limited, lambda p: place if p == _NEW else p)
    return _with_limit(call, kernel, limit) if is_new else replace(call, kernel=kernel)


def add_place(rows: Rows, buffer: KernelBuffer) -> Rows:
    """Return a row-block fusion with one more buffer, behind the others."""
    count = len(rows.buffers)
    moved = _replace_places(rows, lambda p: p + (p >= count))
    return Rows(rows.rows, moved.members, (*rows.buffers, buffer), rows.local, rows.active, rows.takes_sums)


def _replace_places(rows: Rows, place_of: Callable[[int], int]) -> Rows:
    """Return a row-block fusion whose members have other places."""

    def moved(m: Member) -> Member:
        f = m.follows
        follows = None if f is None else Follow(f.reducer, place_of(f.place), f.index, f.buffer, f.is_mean)
        return Member(m.kernel, tuple(map(place_of, m.places)), m.by_row, m.reduces, m.axis, follows)

    return Rows(rows.rows, tuple(map(moved, rows.members)), rows.buffers, rows.local, rows.active, rows.takes_sums)


def _limit_members(call: KernelCall, rows: Rows, x: Limiting, place: int) -> list[Member] | None:
    """Return the members of a row-block fusion that leave out what lies beyond the limit along other axes of their
    results than the rows; None where none does. They have the limit in the place _NEW."""
    chosen = {
        (n, a)
        for n, m in enumerate(rows.members)
        if m.follows is None and not finds_position(m)
        for a in range(len(m.kernel.shape))
        if (m.reduces or a != m.axis) and has_whole_axis(m.kernel, a, x.limit.extent) and a not in limits_of(m.kernel)
    }
    while True:
        left = {c for c in chosen if _matters(call, rows, c, chosen, x, place)}
        if not left:
            break
        chosen -= left
    if not chosen:
        return None
    members = list(rows.members)
    for n, m in enumerate(rows.members):
        if axes := sorted(a for k, a in chosen if k == n):
            kernel = add_limits(m.kernel, axes)
            members[n] = Member(kernel, (*m.places, _NEW), (*m.by_row, 0), m.reduces, m.axis)
    return members


def _matters(
    call: KernelCall,
    rows: Rows,
    member_axis: tuple[int, int],
    chosen: AbstractSet[tuple[int, int]],
    x: Limiting,
    place: int,
) -> bool:
    """Return whether what a member computes beyond the limit of an axis is read, if the members and axes `chosen` leave
    that out."""
    number, axis = member_axis
    member = rows.members[number]
    for buffer in member.kernel.outputs:
        written, stored = member.places[buffer], member.kernel.buffers[buffer]
        if axis and stored.shape != member.kernel.shape:
            return True
        if written < len(rows.buffers):  # the graph tells who reads it, in this call too
            t = call.tensors[written]
            if (t, _dimension_of(t, stored, axis, member.kernel.shape)) not in x.limited or t in x.plan.home:
                return True
            continue
        for other, m in enumerate(rows.members):
            own = {a for k, a in chosen if k == other}
            ends = _ends_of_axes(call, m, own, x)
            for at in [i for i, p in enumerate(m.places) if p == written]:
                if other != number and not _reads_below(m, at, stored, axis, own, place, ends):
                    return True
    return False


def is_below(place: Expr, own: Collection[int], facts: Facts, numbers: Sequence[Read]) -> bool:
    """Return whether a position that is read lies below the limit: it is the reader's own position along one of the
    axes `own`, which does, or lies below one of `numbers`, reads of the limit."""
    if isinstance(place, Axis) and place.position in own:
        return True
    return any(place.dtype is x.dtype and facts.prove(apply("lt", place, x)) for x in numbers)


class _Ends(NamedTuple):
    """What is known of a member of a row-block fusion. end: the limit; conditions: that axes lie below their limits;
    atoms: what limits consist of."""

    end: Expr
    conditions: list[Expr]
    atoms: Collection[Expr]


def _ends_of_axes(call: KernelCall, member: Member, own: Collection[int], x: Limiting) -> _Ends:
    """Return where the axes of a member end, of which `own` end at a limit."""
    atoms: dict[Tensor, Expr] = {}
    end, by_leaf = value_of(x.limit, atoms), {limit.leaf: limit for limit, _ in x.limits}
    ends = dict.fromkeys(own, end)
    for axis, buffer in limits_of(member.kernel).items():
        place = member.places[buffer]
        known = by_leaf.get(call.tensors[place]) if 0 <= place < len(call.tensors) else None
        if known is not None:
            ends[axis] = value_of(known, atoms)
    return _Ends(end, [apply("lt", Axis(a), n) for a, n in ends.items()], list(atoms.values()))


def _reads_below(
    member: Member,
    buffer: int,
    stored: KernelBuffer,
    dimension: int,
    own: AbstractSet[int],
    place: int,
    ends: _Ends,
) -> bool:
    """Return whether a member reads a buffer only at positions below the limit along a dimension.

    Args:
        member: the member of a row-block fusion
        buffer: number of the buffer in the member's kernel, where it may have another shape than in memory
        stored: the buffer as it is in memory
        dimension: the dimension of `stored`
        own: output axes of the member that end at the limit
        place: place, in the fusion, of the buffer that holds the limit
        ends: the ends of the member's axes
    """
    for stage in member.kernel.stages:
        numbers = _reads_of_limit(member, stage, place)
        for part in stage.template.parts:
            for read, facts in reads_under(part):
                if stage.args[read.slot][:2] != ("buffer", buffer):
                    continue
                at = position_along(read.index, member.kernel.buffers[buffer], stored, dimension)
                if at is None or not (
                    is_below(at, own, facts, numbers)
                    or is_less(at, ends.end, facts.assume_all(ends.conditions), ends.atoms)
                ):
                    return False
    return True


def position_along(index: Sequence[Expr], buffer: KernelBuffer, stored: KernelBuffer, dimension: int) -> Expr | None:
    """Convert an index into a reshaped buffer to the position along one dimension of the buffer as it is stored.

    Returns None where that dimension is no product of consecutive dimensions of the reshaped buffer.
    """
    shape = buffer.shape
    if shape[: dimension + 1] == stored.shape[: dimension + 1]:
        return index[dimension]
    if any(x.strides != row_major(x.shape) for x in (buffer, stored)) or size(shape) != size(stored.shape):
        return None
    before, extent = math.prod(stored.shape[:dimension]), stored.shape[dimension]
    parts = [
        (i, j)
        for i in range(len(shape))
        for j in range(i + 1, len(shape) + 1)
        if math.prod(shape[:i]) == before and math.prod(shape[i:j]) == extent
    ]
    if not parts:
        return None
    first, end = parts[0]
    position = index[first]
    for k in range(first + 1, end):
        position = apply("add", apply("mul", position, Const(shape[k], position.dtype)), cast(index[k], position.dtype))
    return position


def _reads_of_limit(member: Member, stage: Stage, place: int) -> list[Read]:
    """Return the reads of the limit, which is in buffer `place` of the fusion, that a member's stage can have."""
    return [
        Read(n, (), dt.i32)
        for n, (kind, b, *_) in enumerate(stage.args)
        if kind == "buffer" and member.places[b] == place
    ]


def is_neutral(member: Member, place: int, inner: int = 1, extent: int = 0) -> bool:
    """Return whether a member that reduces over the rows adds nothing beyond the limit, which is in buffer `place`, of
    a dimension of this extent (0: the first one) with `inner` rows for each position."""
    kernel = member.kernel
    numbers = _reads_of_limit(member, kernel.stages[0], place)
    for part in kernel.root.parts:
        if not isinstance(part, Piece) or not isinstance(part.body, Reduce):
            return False
        rank = len(part.extents)
        for body in part.body.bodies:
            guards = [c for c, _ in guards_around(body, identity(part.body.combiner, body.dtype))]
            facts = Facts.of(part.domain, guards)
            positions = {Axis(rank), _position(Axis(rank), inner, extent)}
            if not any(facts.prove(apply("lt", p, x)) for x in numbers for p in positions):
                return False
    return True
