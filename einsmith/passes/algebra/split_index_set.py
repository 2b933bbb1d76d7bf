"""Split the index set of a pointwise tensor: conditions on one output axis become pieces without these conditions.

before: Y[i, k] = where(k < 8, exp(A[i, k]), 0) + where(8 <= k, tanh(B[i, k-8]), 0)      (k < 16)
after:  Y[i, k] = exp(A[i, k]);  Y[i, 8+k] = tanh(B[i, k])                              (k < 8 in both)

The cotangent of a tensor that is read in slices, such as the stacked gates of a recurrent cell, is such a sum.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from math import prod

from einsmith.ir.analysis.predicates import cuts_of
from einsmith.ir.nodes import (
    Apply,
    Axis,
    Compute,
    Expr,
    Graph,
    Piece,
    Read,
    Reduce,
    Template,
    postorder,
)
from einsmith.ir.rebuild import replace
from einsmith.ir.rewrite.simplify import restricted

_MAX_PIECES = 16
"""Most pieces of one template."""
_MAX_RELATIVE_COST = 0.8
"""Largest cost of the pieces, as a fraction of the whole's, for which a split pays."""
_CHEAP_FUNCTIONS = {
    "where", "cast", "lt", "le", "eq", "ne", "and", "or", "not", "add", "sub", "mul", "neg", "min", "max", "abs"
}  # fmt: skip
"""Functions that cost one operation of a vector; others cost eight."""
_VECTOR_ELEMENTS = 8
"""Elements of a vector."""
_PIECE_COST = 32.0
"""Cost of beginning a piece, in operations on a vector."""


def split_index_set(graph: Graph) -> Graph:
    """Return the graph with conditions on an axis of pointwise bodies replaced by pieces, where that takes less
    work."""

    def rule(node):
        if not isinstance(node, Compute) or node.template.is_scatter:
            return None
        new = node.template.memo("pieces", split_template)
        return None if new is node.template else Compute(new, node.args)

    return replace(graph, rule)


def split_template(t: Template) -> Template:
    """Return the template with conditions on an axis of pointwise bodies replaced by pieces, where that takes less
    work."""
    parts: list[Piece] = []
    for p in t.parts:
        assert isinstance(p, Piece)
        parts += [p] if isinstance(p.body, Reduce) or 0 in p.extents else _split(p, p.body)
    return t if len(parts) == len(t.parts) or len(parts) > _MAX_PIECES else Template(t.shape, t.params, tuple(parts))


def _split(piece: Piece, body: Expr) -> list[Piece]:
    """Return the piece as the cheapest pieces along one axis after the other."""
    best, least = [piece], _MAX_RELATIVE_COST * _cost(piece.extents, body)
    for pieces in _find_candidates(piece, body):
        cost = sum(_cost(p.extents, p.bodies[0]) for p in pieces)
        if cost < least:
            best, least = pieces, cost
    return best if len(best) == 1 else [q for p in best for q in _split(p, p.bodies[0])]


def _find_candidates(piece: Piece, body: Expr) -> Iterator[list[Piece]]:
    """Yield, for each axis that conditions compare with constants, the pieces between these constants."""
    choices = [e for e in postorder([body]) if isinstance(e, Apply) and e.fn == "where"]
    conditions = {c for e in choices for c in postorder(e.args[:1])}
    for d, n in enumerate(piece.extents):
        cuts = sorted({at for c in conditions for at in cuts_of(c, Axis(d), n)})
        if not 0 < len(cuts) < _MAX_PIECES:
            continue
        pieces: list[Piece] = []
        for first, stop in pairwise([0, *cuts, n]):
            extents = (*piece.extents[:d], stop - first, *piece.extents[d + 1 :])
            pieces.append(restricted(piece, [first if a == d else 0 for a in range(len(extents))], extents))
        yield pieces


def _cost(extents: tuple[int, ...], body: Expr) -> float:
    """Return the vector operations of a pointwise piece."""
    work = 1.0
    for e in postorder([body]):
        if isinstance(e, Read):
            work += 0.5
        elif isinstance(e, Apply) and e.dtype.is_float:
            work += 1 if e.fn in _CHEAP_FUNCTIONS else 8
    vectors = prod(extents[:-1]) * -(-extents[-1] // _VECTOR_ELEMENTS) if extents else 1
    return vectors * work + _PIECE_COST
