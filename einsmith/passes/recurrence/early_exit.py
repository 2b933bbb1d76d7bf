"""Compute tensors along time only up to the limit of the recurrences that read them (`live_steps`).

before: P[t, b, n] = sum[i](x[t, b, i]*W[n, i]), read by a loop at steps t < max[b](lengths[b]) alone;
        D[n, i] = sum[t, b](g[t, b, n]*x[t, b, i]), g being zero at the other steps
after:  both are needed at steps t < max[b](lengths[b])
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

from einsmith.base import dtypes as dt
from einsmith.ir.analysis.linear import LinearForm, linear
from einsmith.ir.analysis.zeros import ZeroRegions
from einsmith.ir.loop import LoweredLoop
from einsmith.ir.nodes import (
    Apply,
    Axis,
    Compute,
    Expr,
    Item,
    Leaf,
    Piece,
    Read,
    Reduce,
    Tensor,
    is_zero,
    postorder,
    reads,
    template,
)
from einsmith.ir.rewrite.simplify import canonical
from einsmith.ir.views import is_view
from einsmith.passes.recurrence.live_steps import is_equal_up_to_axes
from einsmith.passes.recurrence.time_axis import Along

_BEFORE_START = -(1 << 40)
"""Offset, in positions, that puts an end before every position, whatever its limit."""


class TripCount(NamedTuple):
    """The first max(limit + after, least) positions. `limit` is a 0-d i64 tensor; without one (None) the first `least`
    positions."""

    limit: Tensor | None
    after: int
    least: int

    def shift(self, by: int) -> TripCount:
        """Return the count with all positions moved by `by`."""
        return TripCount(self.limit, self.after + by, self.least + by)


NO_POSITIONS = TripCount(None, _BEFORE_START, _BEFORE_START)
"""The empty range of positions."""


def union(a: TripCount | None, b: TripCount | None) -> TripCount | None:
    """Return the union of two ranges of positions. None means all positions; it is returned if the limits differ."""
    if a is None or b is None or (a.limit is not b.limit and a.limit is not None and b.limit is not None):
        return None
    return TripCount(a.limit if b.limit is None else b.limit, max(a.after, b.after), max(a.least, b.least))


def split_limit(t: Tensor) -> tuple[Compute, int] | None:
    """Split a tensor into (the largest element of an integer tensor, n) if it is that element + n; else return None."""
    part = t.template.parts[0] if isinstance(t, Compute) else None
    if not isinstance(t, Compute) or not isinstance(part, Piece) or t.shape or t.dtype is not dt.i64:
        return None
    if any(not isinstance(n, (Leaf, Compute)) for n in postorder([t])):
        return None
    body = part.body
    form = linear(body.bodies[0] if isinstance(body, Reduce) else body)
    if len(form.terms) != 1 or (isinstance(body, Reduce) and body.combiner != "max"):
        return None
    ((atom, c),) = form.terms.items()
    extents = body.extents if isinstance(body, Reduce) else ()
    inside = [(i, t.template.params[r.slot][1][k]) for r in reads(atom) for k, i in enumerate(r.index)]
    if c != 1 or not all(isinstance(i, Axis) and extents[i.position] == n for i, n in inside):
        return None
    top = LinearForm(0, {atom: 1}).expr(dt.i64)
    new = template((), t.template.params, Reduce("max", extents, (top,)) if extents else top)
    return canonical(new, t.args), form.const


def find_ends(
    order: Sequence[Any], roots: Iterable[Tensor], along: Mapping[Compute, Along], steps: int
) -> tuple[dict[Compute, TripCount | None], set[Compute]]:
    """Return (for each node with a time axis of `steps` steps, the end up to which it has to be computed; the nodes
    among them that are read beyond their end, where they are zero). Nodes with the same limit share one end; None means
    that a node is computed at all steps.

    Args:
        order: all nodes, arguments before users.
        roots: results, which are needed at all steps.
        along: how nodes use the time axis.
        steps: extent of time.
    """
    node_ends: dict[Compute, TripCount | None] = {}
    limit_ends: dict[Tensor, TripCount] = {}
    for _ in range(2):  # the first round finds the end that nodes with one limit share, the second applies it
        zeros: dict[Tensor, Zeros] = {}
        node_ends, filled = {}, set()
        needed: dict[Any, TripCount | None] = defaultdict(lambda: NO_POSITIONS)

        def require(t: Tensor, end: TripCount | None, needed=needed) -> None:
            needed[t] = union(needed[t], end)

        for t in roots:
            require(t, None)
        for n in reversed(order):
            at = along.get(n)
            if at is None:
                for t, end in _find_read_ends(n):
                    require(t, end)
                continue
            end = needed[n]
            if end is not None and end.least >= steps:
                end = None
            if not is_view(n.template):
                if at.total or (end is None and any(isinstance(p.body, Reduce) for p in n.template.parts)):
                    end = None
                    for limit in _find_limits(order, steps):
                        loop_zeros = zeros.setdefault(limit, Zeros(along, steps, limit))
                        if (first := loop_zeros.find_end_of_bodies(n, at)) is not None:
                            end = union(first, limit_ends.get(limit, first))
                            filled |= set() if at.total else {n}
                            break
                elif end is not None and end.limit is not None:
                    end = union(end, limit_ends.get(end.limit, end))
                if end is not None and end.limit is None:
                    end = None
                node_ends[n] = end
            for slot, t in enumerate(n.args):
                distances = at.slots.get(slot)
                require(t, None if distances is None or end is None else end.shift(max(distances)))
        for end in node_ends.values():
            if end is not None and end.limit is not None:
                limit_ends[end.limit] = union(end, limit_ends.get(end.limit, end)) or end
    return node_ends, {n for n in filled if node_ends[n] is not None}


def _find_limits(order: Sequence[Any], steps: int) -> Iterator[Tensor]:
    """Yield the limits of the loops of `steps` steps."""
    seen = set()
    for n in order:
        if isinstance(n, LoweredLoop) and count_steps(n) == steps:
            for s in n.segments:
                limit = None if s.stop is None else split_limit(n.args[s.stop])
                if limit is not None and limit[0] not in seen:
                    seen.add(limit[0])
                    yield limit[0]


def count_steps(loop: LoweredLoop) -> int:
    """Return the number of steps of a recurrence's loop."""
    return sum(s.steps for s in loop.segments if s.first is None)


def _find_read_ends(n: Any) -> Iterator[tuple[Tensor, TripCount | None]]:
    """Yield (argument, end up to which it is read) for a node that does not go along time."""
    if isinstance(n, LoweredLoop):
        for s in n.segments:
            stop = None if s.stop is None else split_limit(n.args[s.stop])
            for k in (s.first, s.stop):
                if k is not None:
                    yield n.args[k], None
            for p in s.places:
                if p.kind == "argument":
                    end = None
                    if p.first is not None and p.stride == 1 and stop is not None:
                        end = TripCount(stop[0], stop[1] + p.first, p.first)
                    elif p.first is not None:
                        end = TripCount(None, _BEFORE_START, max(p.first, p.first + p.stride * (s.steps - 1)) + 1)
                    yield n.args[p.number], end
        for _, _, slots in n.initial:
            yield from ((n.args[k], None) for k in slots)
    elif isinstance(n, Compute):
        for part in n.template.parts:
            for e in postorder(part.bodies):
                if isinstance(e, Read):
                    yield n.args[e.slot], _bound_positions(e, part.domain)
    else:
        yield from ((a, None) for a in n.args)


def _bound_positions(e: Read, domain: tuple[int, ...]) -> TripCount | None:
    """Return the positions of dimension 0 that a read may access; None if they are not known."""
    form = linear(e.index[0]) if e.index else None
    if form is None or not all(isinstance(a, Axis) for a in form.terms):
        return None
    last = form.const + sum(max(c * (domain[a.position] - 1), 0) for a, c in form.terms.items())  # type: ignore[union-attr, misc]
    return TripCount(None, _BEFORE_START, last + 1)


class Zeros:
    """Positions along a time of `steps` steps from which on tensors are zero, as ends at one limit."""

    def __init__(self, along: Mapping[Compute, Along], steps: int, limit: Tensor):
        self.along, self.steps, self.limit = along, steps, limit
        self.memo: dict[Tensor, TripCount | None] = {}

    def find_end(self, t: Tensor) -> TripCount | None:
        """Return the end from which on all positions of a tensor within the time are zero; None if there is none."""
        if t not in self.memo:
            self.memo[t] = None
            if isinstance(t, Item) and isinstance(t.node, LoweredLoop) and count_steps(t.node) == self.steps:
                self.memo[t] = self._find_end_of_member(t.node, t.member)
            elif isinstance(t, Compute) and t in self.along and not self.along[t].total:
                self.memo[t] = self.find_end_of_bodies(t, self.along[t])
        return self.memo[t]

    def _find_end_of_member(self, loop: LoweredLoop, j: int) -> TripCount | None:
        """Return the end from which on a loop's member is zero: one segment from the limit on and all later segments
        store zeros. None if there is none."""
        parts = [
            (at, at + s.steps, s, _is_zero_tensor(x))
            for s in loop.segments
            for x, (k, at) in zip(s.body.outputs, s.targets, strict=True)
            if k == j
        ]
        late = [(at, stop, s) for at, stop, s, zero in parts if s.first is not None and zero]
        if (
            len(late) != 1
            or len(loop.initial)
            and any(k == j and _last_position(t) >= late[0][1] for k, t, _ in loop.initial)
        ):
            return None
        at, stop, s = late[0]
        limit = split_limit(loop.args[s.first])  # type: ignore[index]
        if limit is None or limit[0] is not self.limit or any(a >= stop and not zero for a, _, _, zero in parts):
            return None
        return TripCount(self.limit, limit[1] + at, at)

    def find_end_of_bodies(self, n: Compute, at: Along) -> TripCount | None:
        """Return the end from which on all bodies of a node (of a total, its terms) are zero; None if there is none."""
        end: TripCount | None = NO_POSITIONS
        for p, axis, along in zip(n.template.parts, at.axes, at.reads, strict=True):
            for b in p.bodies:
                end = union(end, self._find_end_of_body(n, axis, along, b))
        return end if end is not None and end.limit is not None else None

    def _find_end_of_body(self, n: Compute, axis: int, along: Mapping[Read, int], body: Expr) -> TripCount | None:
        """Return the end from which on a body is zero; None if there is none. `along`: distance of each read along
        `axis`."""

        def read(e: Read) -> TripCount | None:
            first = self.find_end(n.args[e.slot]) if e in along else None
            return first and first.shift(-along[e])

        return ZeroRegions[TripCount | None](
            everywhere=NO_POSITIONS,
            nowhere=None,
            read=read,
            fails=lambda c: self._find_end_of_condition(n, axis, c),
            both=lambda ends: reduce(union, ends),
            either=_earliest,
            takes_finite=True,
        ).of(body)

    def _find_end_of_condition(self, n: Compute, axis: int, condition: Expr) -> TripCount | None:
        """Return the end from which on a condition on the position is false; None if there is none."""
        if isinstance(condition, Apply) and condition.fn in ("lt", "le") and condition.args[0].dtype.is_int:
            form = linear(condition.args[0]) - linear(condition.args[1])  # t - atom + const
            rest = form.without(Axis(axis))
            if form.coefficient(Axis(axis)) == 1 and len(rest.terms) == 1:
                ((atom, c),) = rest.terms.items()
                own = next(iter(linear(_limit_expression(self.limit)).terms))
                if c == -1 and is_equal_up_to_axes(atom, n.args, own, self.limit.args):
                    return TripCount(self.limit, (condition.fn == "le") - rest.const, _BEFORE_START)
        return None


def _limit_expression(limit: Tensor) -> Expr:
    """Return the expression whose largest value a limit is."""
    assert isinstance(limit, Compute)
    return limit.template.parts[0].bodies[0]


def _earliest(ends: Sequence[TripCount | None]) -> TripCount | None:
    """Return the earliest of the ends that are not None; None if all are."""
    return min((e for e in ends if e is not None), key=lambda e: (e.after, e.least), default=None)


def _last_position(t: Any) -> int:
    """Return the last position that an initial template writes."""
    return max(p.offset[0] + p.step[0] * (p.extents[0] - 1) for p in t.parts)


def _is_zero_tensor(t: Tensor) -> bool:
    """Return whether a tensor of a step is zero, or a copy of a zero tensor."""
    if not isinstance(t, Compute) or t.template.is_scatter or any(isinstance(p.body, Reduce) for p in t.template.parts):
        return False
    for b in (b for p in t.template.parts for b in p.bodies):
        while isinstance(b, Apply) and b.fn == "cast":
            (b,) = b.args
        if not (_is_zero_tensor(t.args[b.slot]) if isinstance(b, Read) else is_zero(b)):
            return False
    return True
