"""Leave out rows of a plan that no result depends on: those beyond a limit that is known when a program runs.

A graph of a capacity (`passes.capacity`) has tensors of which some extents are the capacity. Along such a dimension,
only the positions below the limit matter where every reader reads at its own position along an axis of its own, below
the limit too, or under a condition that compares the position with the limit. This is proven of the graph after all
passes, whatever they made of it, dimension by dimension. The kernels that compute such tensors alone then get the limit
as a further buffer (`schedule.kernel.LimitedKernel`), row-block fusions also as a condition
(`schedule.kernel.Activity`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any

from einsmith.base import dtypes as dt
from einsmith.ir.analysis.bounds import Facts
from einsmith.ir.analysis.ends import guards_around
from einsmith.ir.analysis.guarded import reads_under
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
    postorder,
    reads,
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
    has_row_limit,
    limits_of,
    row_major,
)
from einsmith.schedule.limited_positions import Limited, RowLimit, find_limited, limits_of_step, with_members
from einsmith.schedule.plan import KernelCall, LoopCall, Plan

_NEW = -1
"""Place of a limit in members of a row-block fusion until its buffer is known."""


class UnlimitedError(Exception):
    """A kernel computes more than what lies below a limit; the text says which."""


def limit_rows(plan: Plan, limits: Sequence[RowLimit], is_step: bool = False) -> Plan:
    """Return the plan in which kernels leave out rows beyond the limits that no result depends on.

    is_step: whether the plan is that of a loop's step, whose memory holds the capacity.
    """
    all_limits = with_members(plan.graph, limits)
    limited = find_limited(plan.graph, all_limits)
    calls = [_limit_loop(c, all_limits, limited) if isinstance(c, LoopCall) else c for c in plan.calls]
    outside = set() if is_step else {*plan.graph.inputs, *map(storage, plan.graph.outputs)}
    for limit, tensors in zip(limits, limited, strict=False):
        if not limit.extent:
            continue
        first = max((n + 1 for n, c in enumerate(plan.calls) if limit.leaf in c.results), default=0)
        for n, c in enumerate(calls[first:], first):
            if isinstance(c, KernelCall):
                calls[n] = _limit_call(c, limit, tensors, plan, outside)
        _limit_copies(calls, limit, plan, outside)
    return replace(plan, calls=calls)


def _limit_loop(call: LoopCall, limits: Sequence[RowLimit], limited: Sequence[Limited]) -> LoopCall:
    """Return a loop whose kernels leave out what lies beyond the limits of its members."""
    steps = zip(call.loop.segments, call.plans, strict=True)
    plans = [limit_rows(p, list(limits_of_step(call.loop, s, limits, limited).values()), True) for s, p in steps]
    return replace(call, plans=plans)


def _limit_copies(calls: list[Any], limit: RowLimit, plan: Plan, outside: Collection[Tensor]) -> None:
    """Limit calls that write tensors which the graph does not have, such as those of another layout, where all readers
    read rows of their own, below the limit."""
    known = set(postorder((*plan.graph.roots, *plan.graph.gradients)))
    for n in reversed(range(len(calls))):
        call = calls[n]
        if not isinstance(call, KernelCall):
            continue
        written = {t for t, w in zip(call.tensors, call.written, strict=True) if w}
        if not written & known and all(_reads_own_rows(c, written) for c in calls[n + 1 :]):
            calls[n] = _limit_call(call, limit, {(t, 0) for t in written}, plan, outside)


def _reads_own_rows(call: Any, tensors: set[Tensor]) -> bool:
    """Return whether a call reads of some tensors only rows of its own, and none beyond its limit."""
    if not isinstance(call, KernelCall):
        return False
    places = {n for n, t in enumerate(call.tensors) if t in tensors}
    return not places or places <= find_own_rows(call.kernel)


def check_limited(plan: Plan, limits: Sequence[RowLimit], is_left_out: Callable[[Kernel], bool]) -> None:
    """Raise UnlimitedError where a kernel of a plan of `limit_rows` takes time for rows beyond a limit.

    is_left_out: whether the code of a kernel with a limit leaves out rows beyond it.
    """
    for call in plan.calls:
        if not isinstance(call, KernelCall):
            raise UnlimitedError("a recurrence computes all of the capacity")
    for _, call, _ in plan.kernel_calls():
        # Extents that come of the size, such as those of rows of all images, are multiples of it.
        ends = all(_ends_below(call, x) for x in limits if x.extent)
        if ends or (_has_limit(call.kernel) and is_left_out(call.kernel)):
            continue
        text = ", ".join(f"{t.dtype.name}{list(t.shape)}" for t, w in zip(call.tensors, call.written, strict=True) if w)
        raise UnlimitedError(f"the kernel of {text} computes all of the capacity")


def _ends_below(call: KernelCall, limit: RowLimit) -> bool:
    """Return whether a kernel without the limit takes no time for rows beyond it: it has none, or its sums over them
    end there."""
    sized = [size(t.shape) % limit.extent == 0 for t in call.tensors]
    if not any(sized):
        return True
    kernel = call.kernel
    if isinstance(kernel, Rows) or any(s and w for s, w in zip(sized, call.written, strict=True)):
        return False
    for stage in kernel.stages:
        buffers = {n: b for n, (kind, b, *_) in enumerate(stage.args) if kind == "buffer"}
        numbers = [Read(n, (), dt.i32) for n, b in buffers.items() if call.tensors[b] is limit.leaf]
        for part in stage.template.parts:
            for read, facts in reads_under(part):
                is_sized = read.slot in buffers and sized[buffers[read.slot]]
                if is_sized and not _is_below(read.index[0], (), facts, numbers):
                    return False
    return True


def _is_below(place: Expr, own: Collection[int], facts: Facts, numbers: Sequence[Read]) -> bool:
    """Return whether a position that is read lies below the limit: it is the reader's own position along one of the
    axes `own`, which does, or lies below one of `numbers`, reads of the limit."""
    if isinstance(place, Axis) and place.position in own:
        return True
    return any(place.dtype is x.dtype and facts.prove(apply("lt", place, x)) for x in numbers)


def _has_limit(kernel: Kernel) -> bool:
    if isinstance(kernel, Rows) and kernel.active is not None:
        return True
    return all(map(has_row_limit, kernel.parts))


def find_short(plan: Plan, is_untouched: Callable[[Kernel], bool]) -> set[Tensor]:
    """Return the tensors outside the arena that need no memory beyond the limit of their rows: no kernel touches any.

    is_untouched: whether the code of a kernel touches no row beyond its limit.
    """
    if any(not isinstance(c, KernelCall) for c in plan.calls):  # a loop moves through tensors
        return set()
    short: dict[Tensor, bool] = {}
    for _, call, _ in plan.kernel_calls():
        own = find_own_rows(call.kernel) if is_untouched(call.kernel) else set()
        for n, t in enumerate(call.tensors):
            base = storage(t)
            owner = plan.home.get(base, base)
            is_own = n in own and t is owner and not (call.offsets and call.offsets[n])
            short[owner] = short.get(owner, True) and is_own
    return {t for t, is_short in short.items() if is_short}


def find_own_rows(kernel: Kernel) -> set[int]:
    """Return the buffers of which a kernel that has a limit reads and writes only the rows of its own."""
    if isinstance(kernel, Rows):
        return {n for n, axes in _row_axes(kernel).items() if axes == {1}} if kernel.active is not None else set()
    if not has_row_limit(kernel):
        return set()
    rows = {n for n, b in enumerate(kernel.buffers) if b.shape[:1] == kernel.shape[:1]}
    for stage in kernel.stages:
        for read in (x for part in stage.template.parts for body in part.bodies for x in reads(body)):
            kind, n, *_ = stage.args[read.slot]
            if kind == "buffer" and not (read.index and read.index[0] is Axis(0)):
                rows.discard(n)
    return rows


def _limit_call(
    call: KernelCall, limit: RowLimit, limited: Limited, plan: Plan, outside: Collection[Tensor]
) -> KernelCall:
    """Return a call whose kernel leaves out points beyond the limit; the call itself where some of them matter.

    outside: tensors in memory of the caller's, which may end at the limit.
    """
    kernel = call.kernel
    if isinstance(kernel, Rows):
        return _limit_rows_of(call, kernel, limit, limited, plan)
    if call.parts:
        return call
    written = [t for t, w in zip(call.tensors, call.written, strict=True) if w]
    if any(t in plan.home for t in written):
        return call
    buffers = [b for b, w in zip(kernel.buffers, call.written, strict=True) if w]
    axes = [
        a
        for a in range(len(kernel.shape))
        if a not in limits_of(kernel)
        and (_has_whole_axis(kernel, a, limit.extent) or _has_parts(kernel, a, limit.extent))
        if all((t, _dimension_of(t, b, a, kernel.shape)) in limited for t, b in zip(written, buffers, strict=True))
    ]
    if not axes:
        return call
    is_short = 0 in axes and any(t.shape[:1] == (limit.extent,) and storage(t) in outside for t in call.tensors)
    return _with_limit(call, _limited(kernel, is_short, axes), limit)


def _dimension_of(t: Tensor, buffer: KernelBuffer, axis: int, shape: tuple[int, ...]) -> int | None:
    """Return the dimension of a tensor along which a kernel of this shape, which stores it in `buffer`, moves by an
    output axis; None where none is known."""
    if t.shape == buffer.shape == shape or axis == 0 and t.shape[:1] == shape[:1]:
        return axis
    # Of several leading dimensions, row-block fusions make one.
    d = axis + len(t.shape) - len(shape)
    is_dense = buffer.shape == shape and buffer.strides == row_major(shape) and size(t.shape) == size(shape)
    return d if is_dense and d > 0 and axis > 0 and t.shape[d:] == shape[axis:] else None


def _limited(kernel: Kernel, is_short: bool, axes: Sequence[int]) -> LimitedKernel:
    """Return a kernel with a limit of some axes, in a buffer behind the others."""
    buffers = (*kernel.buffers, KernelBuffer(dt.i32, ()))
    limits = (*limits_of(kernel).items(), *((a, len(kernel.buffers)) for a in axes))
    is_short |= isinstance(kernel, LimitedKernel) and kernel.is_short
    return LimitedKernel(kernel.stages, buffers, kernel.loop_invariant, kernel.sums, tuple(sorted(limits)), is_short)


def _row_axes(rows: Rows) -> dict[int, set[int]]:
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


def _has_whole_axis(kernel: Kernel, axis: int, extent: int) -> bool:
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


def _limit_rows_of(call: KernelCall, rows: Rows, limit: RowLimit, limited: Limited, plan: Plan) -> KernelCall:
    """Return a call of a row-block fusion that leaves out blocks of rows beyond the limit, and what lies beyond it
    along other axes of its members' results."""
    if rows.takes_sums:
        return call
    known = [n for n, t in enumerate(call.tensors) if t is limit.leaf]
    place = known[0] if known else len(rows.buffers)
    members = _limit_members(call, rows, limit, limited, plan, place)
    times = _count_rows_per_point(call, rows, limit, limited, plan, place)
    if not times:
        return call if members is None else _with_place(call, rows, members, place, limit, rows.active)
    end = apply("mul", Read(place, (), dt.i32), Const(times, dt.i32))
    active = Activity(apply("lt", Axis(0), end), (), 1, False)
    return _with_place(call, rows, rows.members if members is None else members, place, limit, active)


def _count_rows_per_point(
    call: KernelCall, rows: Rows, limit: RowLimit, limited: Limited, plan: Plan, place: int
) -> int:
    """Return how many rows of a row-block fusion a point of the limited dimension has; 0 where rows beyond the limit
    matter, or other conditions leave rows out."""
    times, left = divmod(rows.rows, limit.extent)
    if left or rows.active is not None or rows.is_online:
        return 0
    for m in rows.members:
        if m.reduces:
            if not _is_neutral(m, place):
                return 0
        elif (m.axis and times != 1) or not _has_whole_axis(m.kernel, m.axis, rows.rows):
            return 0
    by_row = _row_axes(rows)
    reduced = {
        m.places[n] for m in rows.members if m.reduces for s in m.kernel.stages for n in s.outputs if n is not None
    }
    for n, (t, w) in enumerate(zip(call.tensors, call.written, strict=True)):
        if not w or n in reduced:
            continue
        (axis, *others) = by_row.get(n, {0})
        dimension = _dimension_of(t, rows.buffers[n], axis - 1, rows.buffers[n].shape) if axis > 1 else axis - 1
        if others or not axis or (axis > 1 and times != 1) or (t, dimension) not in limited or t in plan.home:
            return 0
    return times


def _with_place(
    call: KernelCall, rows: Rows, members: Sequence[Member], place: int, limit: RowLimit, active: Activity | None
) -> KernelCall:
    """Return a call of a row-block fusion that has the limit in buffer `place`; the last buffer, if that is new. The
    members have it in the place _NEW."""
    count = len(rows.buffers)
    is_new = place == count

    def moved(m: Member) -> Member:
        places = tuple(place if p == _NEW else p + (is_new and p >= count) for p in m.places)
        return Member(m.kernel, places, m.by_row, m.reduces, m.axis, _moved_follow(m.follows, count, is_new))

    buffers = (*rows.buffers, KernelBuffer(dt.i32, ())) if is_new else rows.buffers
    limited = Rows(rows.rows, tuple(map(moved, members)), buffers, rows.local, active, rows.takes_sums)
    return _with_limit(call, limited, limit) if is_new else replace(call, kernel=limited)


def _moved_follow(follow: Follow | None, count: int, is_new: bool) -> Follow | None:
    """Return how a member follows another one where a buffer is added behind the first `count` ones."""
    if follow is None or not is_new or follow.place < count:
        return follow
    return Follow(follow.reducer, follow.place + 1, follow.index, follow.buffer, follow.is_mean)


def _limit_members(
    call: KernelCall, rows: Rows, limit: RowLimit, limited: Limited, plan: Plan, place: int
) -> list[Member] | None:
    """Return the members of a row-block fusion that leave out what lies beyond the limit along other axes of their
    results than the rows; None where none does. They have the limit in the place _NEW."""
    chosen = {
        (n, a)
        for n, m in enumerate(rows.members)
        if not m.reduces and m.follows is None
        for a in range(len(m.kernel.shape))
        if a != m.axis and _has_whole_axis(m.kernel, a, limit.extent) and a not in limits_of(m.kernel)
    }
    while True:
        left = {x for x in chosen if _matters(call, rows, x, chosen, limited, plan, place)}
        if not left:
            break
        chosen -= left
    if not chosen:
        return None
    members = list(rows.members)
    for n, m in enumerate(rows.members):
        if axes := sorted(a for k, a in chosen if k == n):
            kernel = _limited(m.kernel, False, axes)
            members[n] = Member(kernel, (*m.places, _NEW), (*m.by_row, 0), False, m.axis)
    return members


def _matters(
    call: KernelCall,
    rows: Rows,
    member_axis: tuple[int, int],
    chosen: AbstractSet[tuple[int, int]],
    limited: Limited,
    plan: Plan,
    place: int,
) -> bool:
    """Return whether what a member computes beyond the limit of an axis is read, if the members and axes `chosen` leave
    that out."""
    number, axis = member_axis
    member = rows.members[number]
    for buffer in {n for s in member.kernel.stages for n in s.outputs if n is not None}:
        written, stored = member.places[buffer], member.kernel.buffers[buffer]
        if axis and stored.shape != member.kernel.shape:
            return True
        if written < len(rows.buffers):  # the graph tells who reads it, in this call too
            t = call.tensors[written]
            if (t, _dimension_of(t, stored, axis, member.kernel.shape)) not in limited or t in plan.home:
                return True
            continue
        for other, m in enumerate(rows.members):
            own = {a for k, a in chosen if k == other}
            for at in [i for i, p in enumerate(m.places) if p == written]:
                # Other members may have the buffer in another shape.
                is_same = m.kernel.buffers[at].shape[: axis + 1] == stored.shape[: axis + 1]
                if other != number and not (is_same and _reads_below(m, at, axis, own, place)):
                    return True
    return False


def _reads_below(member: Member, buffer: int, dimension: int, own: AbstractSet[int], place: int) -> bool:
    """Return whether a member reads a buffer only below the limit, which is in `place`, along a dimension of the
    buffer. own: the axes along which it computes its own results only there."""
    for stage in member.kernel.stages:
        numbers = _reads_of_limit(member, stage, place)
        for part in stage.template.parts:
            for read, facts in reads_under(part):
                if stage.args[read.slot][:2] == ("buffer", buffer):
                    if not _is_below(read.index[dimension], own, facts, numbers):
                        return False
    return True


def _reads_of_limit(member: Member, stage: Stage, place: int) -> list[Read]:
    """Return the reads of the limit, which is in buffer `place` of the fusion, that a member's stage can have."""
    return [
        Read(n, (), dt.i32)
        for n, (kind, b, *_) in enumerate(stage.args)
        if kind == "buffer" and member.places[b] == place
    ]


def _is_neutral(member: Member, place: int) -> bool:
    """Return whether a member that reduces over the rows adds nothing beyond the limit, which is in buffer `place`."""
    kernel = member.kernel
    numbers = _reads_of_limit(member, kernel.stages[0], place)
    for part in kernel.root.parts:
        if not isinstance(part, Piece) or not isinstance(part.body, Reduce):
            return False
        rank = len(part.extents)
        for body in part.body.bodies:
            guards = [c for c, _ in guards_around(body, identity(part.body.combiner, body.dtype))]
            facts = Facts.of(part.domain, guards)
            if not any(facts.prove(apply("lt", Axis(rank), x)) for x in numbers):
                return False
    return True
