"""Compare axes with lengths that are known when a program runs by one number for each extent, also in sums whose terms
are zero beyond a length.

before: g[e, m] = where(e < n[], exp(x[e, m]), 0);  d[m, k] = sum[e](g[e, m]*g[e, k])                   with e < 48000
after:  c[] = i32(min(max(n[], 0), 48000))
        g[e, m] = where(e < c[], exp(x[e, m]), 0);  d[m, k] = sum[e](where(e < c[], g[e, m]*g[e, k], 0))

Sums and scatters end at the number. Where no reader needs rows of g beyond it, the kernel of g leaves them out
(`schedule.limits`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence, Set
from typing import Any

from einsmith.base import dtypes as dt
from einsmith.ir.analysis.ends import end_of, guards_around
from einsmith.ir.analysis.zeros import ZeroRegions
from einsmith.ir.nodes import (
    Apply,
    Axis,
    Compute,
    Const,
    Expr,
    Graph,
    Leaf,
    Piece,
    Read,
    Reduce,
    Scatter,
    Tensor,
    apply,
    axes_of,
    cast,
    postorder,
    reads,
    size,
    template,
)
from einsmith.ir.rebuild import guarded, map_parts, rebuild, replace, types_of, whole_piece
from einsmith.ir.rewrite.simplify import canonical

MIN_POINTS = 1 << 14
"""Fewest points of a part for which a kernel that computes the number pays: it takes 1 us."""

Ends = frozenset[tuple[int, Tensor]] | None
"""Pairs (axis, number): a value is zero where the axis is not below the number. None: it is zero everywhere."""


def length_limits(graph: Graph, known: Collection[Tensor] = ()) -> Graph:
    """Return the graph in which lengths limit axes by numbers that are at most the extents.

    known: leaves that limit rows as they are (`schedule.limited_positions.RowLimit`).
    """
    lengths: set[Tensor] = {
        x for x in postorder(graph.roots) if isinstance(x, Leaf) and x.dtype.is_int and x.after is None and not x.shape
    }
    rewriter = _LengthRewriter(lengths.difference(known))
    return replace(graph, rewriter.rewrite) if rewriter.lengths else graph


class _LengthRewriter:
    """Rewrites the nodes of a graph, operands first.

    Attributes:
        lengths: the leaves that hold lengths
        limits: the numbers made of them, in order
        ends: where the elements of rewritten nodes are zero, by dimension
    """

    def __init__(self, lengths: Set[Tensor]):
        self.lengths = lengths
        self.limits: dict[Tensor, int] = {}
        self.ends: dict[Tensor, Ends] = {}

    def rewrite(self, node: Any) -> Compute | None:
        """Return a node that compares with limits; None for nodes that are not templates."""
        if not isinstance(node, Compute):
            return None
        if not self.lengths.isdisjoint(node.args):
            node = _rewrite_parts(node, self._exchange_conditions)
        if any(a in self.limits or a in self.ends for a in node.args):
            node = _rewrite_parts(node, self._guard_terms)
            ends = self._find_row_ends(node)
            if ends:
                self.ends[node] = ends
        return node

    def _exchange_conditions(self, part: Piece | Scatter, args: list[Tensor]) -> Sequence[Expr]:
        """Return the bodies of a part with limits in comparisons of axes with lengths."""

        def rule(e: Expr) -> Expr | None:
            if not isinstance(e, Apply) or e.fn not in ("lt", "le") or len(axes_of(e)) != 1:
                return None
            (axis,) = axes_of(e)
            end, extent = end_of(e, axis), part.domain[axis]
            slots = set() if end is None else {r.slot for r in reads(end.at)}
            if end is None or end.low or axes_of(end.at) or not slots or extent > dt.i32.range[1]:
                return None
            if any(args[s] not in self.lengths for s in slots):
                return None
            at = apply("min", apply("max", end.at, Const(0, dt.i64)), Const(extent, dt.i64))
            limit = canonical(template((), types_of(args), cast(at, dt.i32)), args)
            self.limits.setdefault(limit, len(self.limits))
            return _below(axis, limit, args)

        return rebuild(part.bodies, rule)

    def _guard_terms(self, part: Piece | Scatter, args: list[Tensor]) -> Sequence[Expr]:
        """Return the bodies of a part whose sum ends where all of its terms are zero."""
        is_scatter, rank = isinstance(part, Scatter), len(part.extents)
        if getattr(part if is_scatter else part.body, "combiner", "") != "sum":
            return part.bodies
        index, terms = (part.bodies[:-1], part.bodies[-1:]) if is_scatter else ((), part.bodies)
        first = next((a for a in range(rank, len(part.domain)) if part.domain[a] > 1), -1)
        common = _common([self._find_ends(x, args) for x in terms]) or ()
        ends = [(a, c) for a, c in common if is_scatter or a == first]  # kernels of products end along their first axis
        guards = [_below(a, c, args) for a, c in sorted(ends, key=lambda x: (x[0], self.limits[x[1]]))]
        return (*index, *(guarded([g for g in guards if g not in dict(guards_around(x, 0))], x) for x in terms))

    def _find_row_ends(self, node: Compute) -> Ends:
        """Return the positions from which on all elements of a node are zero, by dimension of the node."""
        t = node.template
        part = whole_piece(t)
        if part is None or len(t.dtypes) > 1:
            return frozenset()
        if isinstance(part.body, Reduce) and part.body.combiner != "sum":
            return frozenset()
        ends = self._find_ends(part.bodies[0], node.args)
        return ends and frozenset((a, c) for a, c in ends if a < t.rank)

    def _find_ends(self, body: Expr, args: Sequence[Tensor]) -> Ends:
        """Return the positions from which on a body is zero, by axis of its part."""
        return ZeroRegions[Ends](
            everywhere=None,
            nowhere=frozenset(),
            read=lambda e: self._find_zeros(e, args[e.slot]),
            fails=lambda c: frozenset(self._find_limit(c, args)),
            both=_common,
            either=lambda some: None if None in some else frozenset().union(*(x for x in some if x)),
            takes_finite=False,
        ).of(body)

    def _find_zeros(self, e: Read, arg: Tensor) -> Ends:
        """Return the positions from which on a read is zero, by axis."""
        at = {d: i.args[0] if isinstance(i, Apply) and i.fn == "cast" else i for d, i in enumerate(e.index)}
        known = self.ends.get(arg) or ()
        return frozenset((x.position, c) for d, c in known if isinstance(x := at[d], Axis))

    def _find_limit(self, c: Expr, args: Sequence[Tensor]) -> list[tuple[int, Tensor]]:
        """Return (axis, limit) of a condition that an axis is below a limit."""
        if (
            not isinstance(c, Apply)
            or c.fn != "lt"
            or not isinstance(c.args[0], Axis)
            or not isinstance(c.args[1], Read)
        ):
            return []
        limit = args[c.args[1].slot]
        return [(c.args[0].position, limit)] if limit in self.limits else []


def _common(ends: Sequence[Ends]) -> Ends:
    """Return where several values are all zero."""
    known = [x for x in ends if x is not None]
    return frozenset.intersection(*known) if known else None


def _below(axis: int, limit: Tensor, args: list[Tensor]) -> Expr:
    """Return the condition that an axis is below a limit, which becomes an argument."""
    if limit not in args:
        args.append(limit)
    return apply("lt", Axis(axis), Read(args.index(limit), (), limit.dtype))


def _rewrite_parts(node: Compute, rule: Callable[[Piece | Scatter, list[Tensor]], Sequence[Expr]]) -> Compute:
    """Return a node with the bodies that `rule` returns for its large parts, to whose arguments it may append."""
    args: list[Tensor] = list(node.args)
    t = node.template
    bodies = [tuple(rule(p, args)) if size(p.domain) >= MIN_POINTS else p.bodies for p in t.parts]
    if all(b == p.bodies for b, p in zip(bodies, t.parts, strict=True)):
        return node
    new = iter(bodies)
    return canonical(map_parts(t, lambda _: next(new), types_of(args)), args)
