"""Choose coordinates of reduction axes (the reduction basis) in which the factors of a product share the fewest axes.

before: R[w, d] = sum[j](where(0 <= j-w+255 < 256, S[j-w+255, j]*Q[j-w+255, d], 0))        (w in both factors)
after:  R[w, d] = sum[i](where(0 <= i+w-255 < 256, S[i, i+w-255]*Q[i, d], 0))             (a matrix product)

The gradient of a read at j - i + c may be summed over i or over j. An output axis that both factors depend on needs a
matrix-vector product for each of its values; if it occurs in one factor, it is an axis of a matrix product. The new
coordinate is an index of a read whose dimension is no longer than the old axis, so that no points are added.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from einsmith.ir.analysis.bounds import Facts
from einsmith.ir.analysis.linear import LinearForm, linear
from einsmith.ir.nodes import (
    Apply,
    Axis,
    Compute,
    Const,
    Expr,
    Graph,
    Piece,
    Reduce,
    Template,
    apply,
    axes_of,
    is_zero,
    reads,
)
from einsmith.ir.rebuild import replace, substitute
from einsmith.ir.rewrite.simplify import simplify


def reduction_basis(graph: Graph) -> Graph:
    """Return the graph with the reduction axes of sums of products chosen so that factors share the fewest output
    axes."""

    def rule(node):
        if not isinstance(node, Compute) or node.template.is_scatter:
            return None
        new = node.template.memo("coordinates", _choose_axes)
        return None if new is node.template else Compute(new, node.args)

    return replace(graph, rule)


def _choose_axes(t: Template) -> Template:
    parts = tuple(_choose_piece_axes(t, p) for p in t.parts if isinstance(p, Piece))
    return t if parts == t.parts else Template(t.shape, t.params, parts)


def _choose_piece_axes(t: Template, piece: Piece) -> Piece:
    """Return the piece with reduction axes replaced, one by one, as long as that lowers the repeated axes."""
    body = piece.body
    while isinstance(body, Reduce) and body.combiner == "sum" and len(body.bodies) == 1:
        fewest = _count_repeated_axes(body.bodies[0], piece.extents)
        substitutions = (
            _replace_axis(piece.extents, body, *c) for c in _find_candidates(t, piece.extents, body) if fewest
        )
        better = next((r for r in substitutions if _count_repeated_axes(r.bodies[0], piece.extents) < fewest), None)
        if better is None:
            break
        body = better
        piece = Piece(piece.offset, piece.step, piece.extents, body)
    return piece


def _split_guard(e: Expr) -> tuple[Expr | None, list[Expr]]:
    """Return (the condition around a whole body, or None; its factors)."""
    guard: Expr | None = None
    if isinstance(e, Apply) and e.fn == "where" and is_zero(e.args[2]):
        guard, e = e.args[0], e.args[1]
    factors, stack = [], [e]
    seen: set[Expr] = set()  # a repeated product is split once
    while stack:
        e = stack.pop()
        if isinstance(e, Apply) and e.fn in ("mul", "neg") and e not in seen:
            seen.add(e)
            stack += e.args
        else:
            factors.append(e)
    return guard, factors


def _count_repeated_axes(body: Expr, extents: Sequence[int]) -> int:
    """Return the number of repeated occurrences of output axes in the factors: an axis in n factors counts n - 1."""
    factor_axes = [axes_of(f) for f in _split_guard(body)[1]]
    return sum(max(sum(a in axes for axes in factor_axes) - 1, 0) for a, n in enumerate(extents) if n > 1)


def _find_candidates(t: Template, extents: Sequence[int], r: Reduce) -> Iterator[tuple[int, LinearForm, int]]:
    """Yield (reduction axis, index to take its place, extent of that index)."""
    rank, domain = len(extents), (*extents, *r.extents)
    guard, factors = _split_guard(r.bodies[0])
    if len(factors) < 2:
        return
    facts = Facts.of(domain, () if guard is None else (guard,))
    seen = set()
    for read in (x for f in factors for x in reads(f)):
        for index, n in zip(read.index, t.params[read.slot][1], strict=True):
            form = linear(index)
            axes = {a.position: c for a, c in form.terms.items() if isinstance(a, Axis)}
            if index in seen or len(axes) != len(form.terms) or len(axes) < 2 or min(axes) >= rank:
                continue
            seen.add(index)
            inside = [apply("le", Const(0, index.dtype), index), apply("lt", index, Const(n, index.dtype))]
            for k, c in axes.items():
                if k >= rank and abs(c) == 1 and n <= domain[k] and all(map(facts.prove, inside)):
                    yield k, form, n


def _replace_axis(extents: Sequence[int], r: Reduce, k: int, form: LinearForm, n: int) -> Reduce:
    """Return the reduction with axis k replaced by the index `form`, which determines it."""
    axis = Axis(k)
    c = form.coefficient(axis)
    old = ((LinearForm(0, {axis: 1}) - form.without(axis)) * c).expr()
    rank, domain = len(extents), (*extents, *r.extents)
    body = substitute(r.bodies[0], {k: old})
    inside = apply("and", apply("le", Const(0, old.dtype), old), apply("lt", old, Const(domain[k], old.dtype)))
    new = tuple(n if rank + i == k else m for i, m in enumerate(r.extents))
    zero = Const(0, body.dtype)
    guarded = apply("where", inside, body, zero)
    return Reduce("sum", new, (simplify(guarded, (*extents, *new)),))
