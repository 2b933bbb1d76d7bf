"""Leave out rows of a plan that no result depends on: those beyond a limit that is known when a program runs.

A graph of a capacity (`passes.capacity`) has tensors whose first extent is the capacity. Of these, only the rows below
the limit matter where every reader reads a row at its own row, below the limit too, or under a condition that compares
the row with the limit. This is proven of the graph after all passes, whatever they made of it, tensor by tensor. The
kernels that compute such tensors alone then get the limit as a further buffer (`schedule.kernel.LimitedKernel`), and
row-block fusions as a condition (`schedule.kernel.Activity`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from einsmith.base import dtypes as dt
from einsmith.ir.analysis.bounds import Facts, bounds
from einsmith.ir.analysis.ends import guards_around
from einsmith.ir.analysis.guarded import reads_under
from einsmith.ir.functions import identity
from einsmith.ir.nodes import (
    Axis,
    Compute,
    Const,
    Expr,
    Graph,
    Item,
    Leaf,
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
from einsmith.schedule.kernel import Activity, Kernel, KernelBuffer, LimitedKernel, Member, Rows, Stage
from einsmith.schedule.plan import KernelCall, Plan


class RowLimit(NamedTuple):
    """A limit of rows. leaf: the i32 that holds it in a run, given to the program or computed by it; extent: the
    capacity, the first extent of tensors that it limits; outputs: numbers of the graph's outputs of which only the rows
    below it are read."""

    leaf: Tensor
    extent: int
    outputs: frozenset[int]


class UnlimitedError(Exception):
    """A kernel computes more than what lies below a limit; the text says which."""


def find_limits(graph: Graph) -> list[RowLimit]:
    """Return the limits that a graph computes: integers without dimensions of which an extent is the upper bound."""
    out = []
    for node in postorder(graph.roots):
        if isinstance(node, Compute) and not node.shape and node.template.dtypes == (dt.i32,):
            body = node.template.parts[0].body
            low, high = (None, None) if isinstance(body, Reduce) else bounds(body, ())
            if low is not None and high is not None and 0 <= low < high:
                out.append(RowLimit(node, high, frozenset()))
    return out


def limit_rows(plan: Plan, limits: Iterable[RowLimit]) -> Plan:
    """Return the plan in which kernels leave out rows beyond the limits that no result depends on."""
    for limit in limits:
        tensors = find_limited(plan.graph, limit)
        first = max((n + 1 for n, c in enumerate(plan.calls) if limit.leaf in c.results), default=0)
        calls = [
            _limit_call(c, limit, tensors, plan) if isinstance(c, KernelCall) and n >= first else c
            for n, c in enumerate(plan.calls)
        ]
        _limit_copies(calls, limit, plan)
        plan = replace(plan, calls=calls)
    return plan


def _limit_copies(calls: list[Any], limit: RowLimit, plan: Plan) -> None:
    """Limit calls that write tensors which the graph does not have, such as those of another layout, where all readers
    read rows of their own, below the limit."""
    known = set(postorder((*plan.graph.roots, *plan.graph.gradients)))
    for n in reversed(range(len(calls))):
        call = calls[n]
        if not isinstance(call, KernelCall):
            continue
        written = {t for t, w in zip(call.tensors, call.written, strict=True) if w}
        if not written & known and all(_reads_own_rows(c, written) for c in calls[n + 1 :]):
            calls[n] = _limit_call(call, limit, written, plan)


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
        if (_has_limit(call.kernel) and is_left_out(call.kernel)) or all(_ends_below(call, limit) for limit in limits):
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
                if is_sized and not _is_below(read.index[0], False, facts, numbers):
                    return False
    return True


def _has_limit(kernel: Kernel) -> bool:
    if isinstance(kernel, Rows) and kernel.active is not None:
        return True
    return all(isinstance(k, LimitedKernel) for k in kernel.parts)


def find_limited(graph: Graph, limit: RowLimit) -> set[Tensor]:
    """Return the tensors of a graph of whose rows only those below the limit matter."""
    nodes = list(postorder((*graph.roots, *graph.gradients)))
    limited = {t for t in nodes if not _has_several_results(t) and t.shape[:1] == (limit.extent,)}
    limited.difference_update(t for t, _ in graph.checks)
    limited.difference_update(t for _, t in graph.updates)
    limited.difference_update(t for n, t in enumerate(graph.outputs) if n not in limit.outputs)
    whole: set[Any] = set()  # nodes of several results, all of whose rows matter
    for node in reversed(nodes):
        if isinstance(node, Leaf):
            continue
        if isinstance(node, Item):
            if node not in limited:
                whole.add(node.node)
        elif isinstance(node, Compute):
            is_limited = node in limited or (_has_several_results(node) and node not in whole)
            limited.difference_update(_find_whole_operands(node, limit, is_limited))
        else:
            limited.difference_update(node.args)
    return {t for t in limited if not isinstance(t, Leaf)}


def _has_several_results(node: Any) -> bool:
    return not isinstance(node, (Leaf, Item)) and not (isinstance(node, Compute) and len(node.template.dtypes) == 1)


def _find_whole_operands(node: Compute, limit: RowLimit, is_limited: bool) -> list[Tensor]:
    """Return the operands of which a node reads rows that may lie beyond the limit. is_limited: only rows of the node
    below it matter."""
    numbers = [Read(node.args.index(limit.leaf), (), limit.leaf.dtype)] if limit.leaf in node.args else []
    out = []
    for part in node.template.parts:
        own = is_limited and isinstance(part, Piece) and (part.offset[:1], part.step[:1]) == ((0,), (1,))
        for read, facts in reads_under(part):
            operand = node.args[read.slot]
            if operand.shape[:1] == (limit.extent,) and not _is_below(read.index[0], own, facts, numbers):
                out.append(operand)
    return out


def _is_below(row: Expr, own: bool, facts: Facts, numbers: Sequence[Read]) -> bool:
    """Return whether a row that is read lies below the limit: it is the reader's own row, which does (`own`), or below
    one of `numbers`, reads of the limit."""
    if own and isinstance(row, Axis) and row.position == 0:
        return True
    return any(row.dtype is x.dtype and facts.prove(apply("lt", row, x)) for x in numbers)


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
    if not isinstance(kernel, LimitedKernel):
        return set()
    rows = {n for n, b in enumerate(kernel.buffers) if b.shape[:1] == kernel.shape[:1]}
    for stage in kernel.stages:
        for read in (x for part in stage.template.parts for body in part.bodies for x in reads(body)):
            kind, n, *_ = stage.args[read.slot]
            if kind == "buffer" and not (read.index and read.index[0] is Axis(0)):
                rows.discard(n)
    return rows


def _limit_call(call: KernelCall, limit: RowLimit, limited: set[Tensor], plan: Plan) -> KernelCall:
    """Return a call whose kernel leaves out rows beyond the limit; the call itself where some of them matter."""
    written = [t for t, w in zip(call.tensors, call.written, strict=True) if w]
    kernel = call.kernel
    if isinstance(kernel, LimitedKernel) or call.parts and not isinstance(kernel, Rows):
        return call
    if isinstance(kernel, Rows):
        return _limit_rows_of(call, kernel, limit, limited, plan)
    if not all(t in limited and t not in plan.home for t in written) or not _has_rows(kernel, limit.extent):
        return call
    return _with_limit(call, _limited(kernel, _may_be_short(call, limit, plan)), limit)


def _may_be_short(call: KernelCall, limit: RowLimit, plan: Plan) -> bool:
    """Return whether a call reads or writes rows in memory of the caller's, which may end at the limit."""
    outside = {*plan.graph.inputs, *map(storage, plan.graph.outputs)}
    return any(t.shape[:1] == (limit.extent,) and storage(t) in outside for t in call.tensors)


def _limited(kernel: Kernel, is_short: bool) -> LimitedKernel:
    """Return a kernel with a limit, in a buffer behind the others."""
    buffers = (*kernel.buffers, KernelBuffer(dt.i32, ()))
    number = len(kernel.buffers)
    return LimitedKernel(kernel.stages, buffers, kernel.loop_invariant, kernel.sums, number, is_short)


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


def _has_rows(kernel: Kernel, extent: int) -> bool:
    """Return whether output axis 0 of a kernel runs through rows of its results, piece by piece."""
    if kernel.sums or kernel.shape[:1] != (extent,):
        return False
    return all(
        isinstance(p, Piece) and (p.offset[0], p.step[0], p.extents[0]) == (0, 1, extent) for p in kernel.root.parts
    )


def _limit_rows_of(call: KernelCall, rows: Rows, limit: RowLimit, limited: set[Tensor], plan: Plan) -> KernelCall:
    """Return a call of a row-block fusion that leaves out blocks of rows beyond the limit, or, where its own rows are
    others, rows of its members' results."""
    if rows.active is not None or rows.takes_sums or rows.is_online:
        return call
    known = [n for n, t in enumerate(call.tensors) if t is limit.leaf]
    place = known[0] if known else len(rows.buffers)
    times, left = divmod(rows.rows, limit.extent)  # a point of the limited axis has so many rows
    if left or not times or any(not m.reduces and m.axis != 0 for m in rows.members):
        return _limit_members(call, rows, limit, limited, plan, place)
    by_row = _row_axes(rows)
    for m in rows.members:
        if m.reduces:
            if not _is_neutral(m, place):
                return call
        elif m.axis != 0 or not _has_rows(m.kernel, rows.rows):
            return call
    reduced = {
        m.places[n] for m in rows.members if m.reduces for s in m.kernel.stages for n in s.outputs if n is not None
    }
    for n, (t, w) in enumerate(zip(call.tensors, call.written, strict=True)):
        if w and n not in reduced and not (by_row.get(n) == {1} and t in limited and t not in plan.home):
            return call
    end = apply("mul", Read(place, (), dt.i32), Const(times, dt.i32))
    active = Activity(apply("lt", Axis(0), end), (), 1, False)
    return _with_place(call, rows, rows.members, place, limit, active)


def _with_place(
    call: KernelCall, rows: Rows, members: Sequence[Member], place: int, limit: RowLimit, active: Activity | None
) -> KernelCall:
    """Return a call of a row-block fusion that has the limit in buffer `place`; the last buffer, if that is new."""
    count = len(rows.buffers)
    if place < count:
        limited = Rows(rows.rows, tuple(members), rows.buffers, rows.local, active, rows.takes_sums)
        return replace(call, kernel=limited)

    def moved(m: Member) -> Member:
        added = isinstance(m.kernel, LimitedKernel)  # whose last buffer is the limit, in its new place
        places = tuple(p + (p >= count) for p in m.places[: len(m.places) - added]) + (place,) * added
        return Member(m.kernel, places, m.by_row, m.reduces, m.axis, m.follows)

    buffers = (*rows.buffers, KernelBuffer(dt.i32, ()))
    limited = Rows(rows.rows, tuple(map(moved, members)), buffers, rows.local, active, rows.takes_sums)
    return _with_limit(call, limited, limit)


def _limit_members(
    call: KernelCall, rows: Rows, limit: RowLimit, limited: set[Tensor], plan: Plan, place: int
) -> KernelCall:
    """Return a call of a row-block fusion, of other rows than the limit's, whose members leave out what lies beyond the
    limit along axis 0 of their results."""
    chosen = {
        n
        for n, m in enumerate(rows.members)
        if not m.reduces and m.axis != 0 and m.follows is None and _has_rows(m.kernel, limit.extent)
    }
    while True:
        left = {n for n in chosen if _matters(call, rows, n, chosen, limited, plan, place)}
        if not left:
            break
        chosen -= left
    if not chosen:
        return call
    members = list(rows.members)
    for n in chosen:
        m = members[n]
        members[n] = Member(_limited(m.kernel, False), (*m.places, place), (*m.by_row, 0), False, m.axis)
    return _with_place(call, rows, members, place, limit, None)


def _matters(
    call: KernelCall, rows: Rows, number: int, chosen: set[int], limited: set[Tensor], plan: Plan, place: int
) -> bool:
    """Return whether what a member computes beyond the limit is read, if the members `chosen` leave that out."""
    member = rows.members[number]
    for n in {n for s in member.kernel.stages for n in s.outputs if n is not None}:
        written = member.places[n]
        if written < len(rows.buffers):  # the graph tells who reads it, in this call too
            t = call.tensors[written]
            if t not in limited or t in plan.home:
                return True
            continue
        for other, m in enumerate(rows.members):
            for at in [i for i, p in enumerate(m.places) if p == written]:
                if other != number and not _reads_below(m, at, other in chosen, place):
                    return True
    return False


def _reads_below(member: Member, buffer: int, is_limited: bool, place: int) -> bool:
    """Return whether a member reads a buffer only below the limit, which is in `place`, along the buffer's first
    dimension. is_limited: it computes its own results only there."""
    for stage in member.kernel.stages:
        numbers = _reads_of_limit(member, stage, place)
        for part in stage.template.parts:
            for read, facts in reads_under(part):
                if stage.args[read.slot][:2] == ("buffer", buffer):
                    if not _is_below(read.index[0], is_limited, facts, numbers):
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
