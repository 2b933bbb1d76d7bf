"""Bound sums over segments: a sum whose conditions place each position in a segment visits only the segments around it.

before: Z[n, d] = sum[r](where(row[r] <= n and n < row[r+1], G[r, d], 0))
after:  C[q, n] += where(row[r] <= n and n < row[r+1], where(q == 0, 1, r), 0)                         (of r, q, n)
        L[n] = where(C[0, n] == 1, C[1, n], 0);  H[n] = where(C[0, n] <= 1, L[n] + C[0, n], R)        (R: extent of r)
        Z[n, d] = sum[r](where(L[n] <= r and r < H[n], where(row[r] <= n and n < row[r+1], G[r, d], 0), 0))

The gradient of a segmented sum is such a sum, and so is the gradient of the product of a sparse matrix, whose rows
begin at the positions in `row`. If a position is in exactly one segment, as every position is if `row` is sorted, C
holds the segment's number. A position in no segment has nothing to sum; one in several segments visits all of them, as
before. The added conditions follow from the existing ones, so that every term is unchanged, whatever `row` holds. C is
a scatter whose loop over n is bounded (see `kernels.emit.loops`): it takes as many steps as the segments have elements,
and so does Z.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from einsmith.base import dtypes as dt
from einsmith.ir.analysis.bounds import Facts
from einsmith.ir.analysis.ends import AxisEnd, end_of, guards_around
from einsmith.ir.functions import identity
from einsmith.ir.nodes import (
    Axis,
    Compute,
    Const,
    Expr,
    Graph,
    Piece,
    Read,
    Reduce,
    Scatter,
    Template,
    Tensor,
    apply,
    axes_of,
    has_read,
    reads,
    template,
)
from einsmith.ir.rebuild import guarded, map_parts, prune_args, replace, substitute

MIN_SEGMENTS = 64
"""Fewest points of the segments' axis, with the axes inside of it, for which a lookup pays: kernels walk short axes
from end to end (`kernels.reduction.axes.MIN_BOUNDED_POINTS`), in vectors, which takes little time."""
MIN_GAIN = 16
"""Fewest points of a sum per element of the tables computed for it; with fewer, the tables do not pay."""


def segments(graph: Graph) -> Graph:
    """Return the graph in which sums over segments are bounded by the segments of each position."""

    def rule(node: Tensor) -> Tensor | None:
        if not isinstance(node, Compute):
            return None
        axis_pair = node.template.memo("segments", _match)
        return None if axis_pair is None else _bound_segments(axis_pair, node)

    return replace(graph, rule)


class _Segments(NamedTuple):
    """A part whose axis `segment` numbers segments of an earlier axis `place`. `guards` are the conditions that define
    the segments, over these two axes and `others`, in an order in which they can be evaluated."""

    part: int
    segment: int
    place: int
    others: tuple[int, ...]
    guards: tuple[Expr, ...]


def _match(t: Template) -> _Segments | None:
    """Return the first axis of a template that numbers segments of another axis; None if there is none."""
    for n, part in enumerate(t.parts):
        first = 0 if isinstance(part, Scatter) else len(part.extents)
        neutral = _neutral_element(part)
        if neutral is None:
            continue
        guards = [c for c, _ in guards_around(part.bodies[-1], neutral)]
        for segment in range(max(1, first), len(part.domain)):
            for place in reversed(range(segment)):
                axis_pair = _match_axes(n, t, guards, segment, place)
                if axis_pair is not None:
                    return axis_pair
    return None


def _neutral_element(part: Piece | Scatter) -> float | int | bool | None:
    """Return the neutral element of a part's terms; None for parts without terms."""
    if isinstance(part, Scatter):
        return part.neutral
    r = part.body
    if not isinstance(r, Reduce) or len(r.bodies) != 1:
        return None
    return identity(r.combiner, r.bodies[0].dtype)


def _match_axes(n: int, t: Template, guards: Sequence[Expr], segment: int, place: int) -> _Segments | None:
    """Return axis `segment` of part n as segments of axis `place`; None if the guards do not bound these segments from
    both sides, cannot be evaluated outside of the part, or bounds do not pay."""
    domain = t.parts[n].domain
    if prod(domain[segment:]) < MIN_SEGMENTS:
        return None
    ends: dict[Expr, AxisEnd] = {}
    for c in guards:
        end = end_of(c, place)
        if end is not None and any(segment in axes_of(x) for x in reads(end.at)):
            ends[c] = end
    if {x.low for x in ends.values()} != {True, False}:
        return None
    axes = axes_of(*ends)
    others = tuple(sorted(axes - {segment, place}))
    if any(a > segment for a in others):
        return None
    known = [c for c in guards if not has_read(c) and axes_of(c) <= axes]
    facts = Facts.of(domain, known)
    for x in _find_reads(tuple(ends)):
        for i, extent in zip(x.index, t.params[x.slot][1], strict=True):
            low, high = facts.bounds(i)
            if low is None or low < 0 or high is None or high >= extent:
                return None
    table_elements = prod(domain[a] for a in others) * (domain[segment] + 2 * domain[place])
    if prod(domain) < MIN_GAIN * table_elements:
        return None
    return _Segments(n, segment, place, others, (*known, *ends))


def _find_reads(exprs: tuple[Expr, ...]) -> list[Read]:
    """Return every distinct Read inside expressions."""
    return list(dict.fromkeys(x for e in exprs for x in reads(e)))


def _bound_segments(s: _Segments, node: Compute) -> Compute:
    """Return the node with the bounds of `segment` as conditions around its terms."""
    t = node.template
    low, high = _compute_bounds(s, node)
    at = tuple(map(Axis, (*s.others, s.place)))
    slots = len(t.params), len(t.params) + 1
    own, (first, end) = Axis(s.segment), (Read(slot, at, dt.i32) for slot in slots)
    in_segments = apply("and", apply("le", first, own), apply("lt", own, end))
    bounded_part = t.parts[s.part]
    neutral = _neutral_element(bounded_part)
    assert neutral is not None

    def rule(part: Piece | Scatter) -> tuple[Expr, ...]:
        if part is not bounded_part:
            return part.bodies
        *index, body = part.bodies
        return (*index, apply("where", in_segments, body, Const(neutral, body.dtype)))

    params = (*t.params, (dt.i32, low.shape), (dt.i32, high.shape))
    return prune_args(map_parts(t, rule, params), (*node.args, low, high))


def _compute_bounds(s: _Segments, node: Compute) -> tuple[Compute, Compute]:
    """Return (L, H) of the module's `after`, over the axes `others` and `place`."""
    t = node.template
    domain = t.parts[s.part].domain
    other_count, one = len(s.others), Const(1, dt.i32)
    # The axes of the table's loop: the others, the segment, which of the two numbers, the place.
    new_axes: dict[int, Expr] = {a: Axis(k) for k, a in enumerate((*s.others, s.segment))}
    new_axes[s.place] = Axis(other_count + 2)
    which, shape = Axis(other_count + 1), tuple(domain[a] for a in (*s.others, s.place))
    number = apply("where", apply("eq", which, Const(0, dt.i32)), one, Axis(other_count))
    body = guarded([substitute(c, new_axes) for c in s.guards], number)
    extents = (*(domain[a] for a in (*s.others, s.segment)), 2, domain[s.place])
    index = (which, *map(Axis, range(other_count)), Axis(other_count + 2))
    table = prune_args(Template((2, *shape), t.params, (Scatter("sum", extents, index, body),)), node.args)

    here = tuple(map(Axis, range(len(shape))))
    params = [(dt.i32, table.shape)]
    segment_count, segment_sum = (Read(0, (Const(k, dt.i32), *here), dt.i32) for k in range(2))
    low = apply("where", apply("eq", segment_count, one), segment_sum, Const(0, dt.i32))
    high = apply(
        "where", apply("le", segment_count, one), apply("add", low, segment_count), Const(domain[s.segment], dt.i32)
    )
    return tuple(Compute(template(shape, params, e), (table,)) for e in (low, high))  # type: ignore[return-value]
