"""Conditions on one output axis become pieces: each evaluates only what holds in its range.

before: Y[i, k] = where(k < 8, exp(A[i, k]), 0) + where(8 <= k, tanh(B[i, k-8]), 0)      (k < 16)
after:  Y[i, k] = exp(A[i, k]);  Y[i, 8+k] = tanh(B[i, k])                              (k < 8 in both)

The cotangent of a tensor that is read in slices, such as the stacked gates of a recurrent cell, is such a sum.

What reads one piece alone of a tensor that is put together from others reads those: `read_parts`.

before: C[k] = A[k];  C[8+k] = B[k];  Y[k] = exp(C[8+k])
after:  Y[k] = exp(B[k])
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import prod

from einsmith.expr.analysis.bounds import Facts
from einsmith.expr.analysis.guarded import reads_under
from einsmith.expr.analysis.linear import linear
from einsmith.expr.nodes import (
    Apply,
    Axis,
    Compute,
    Const,
    Expr,
    Graph,
    Piece,
    Read,
    Reduce,
    Template,
    Tensor,
    postorder,
    reads,
)
from einsmith.expr.rewrite.rebuild import map_bodies, prune_args, rebuild, replace, substitute
from einsmith.expr.rewrite.simplify import restricted, simplify_template
from einsmith.passes.analysis.predicates import cuts_of

_PIECES = 16
"""Pieces of one template at most."""
_GAIN = 0.8
"""The most that pieces may cost, over what the whole costs, to be worth having."""
_CHEAP = {"where", "cast", "lt", "le", "eq", "ne", "and", "or", "not", "add", "sub", "mul", "neg", "min", "max", "abs"}
_VECTOR = 8
_BEGIN = 32.0
"""What it takes to begin a piece, in operations on a vector."""


def pieces(graph: Graph) -> Graph:
    """The graph with conditions on an axis of pointwise bodies as pieces, where that takes less work."""

    def rule(node):
        if not isinstance(node, Compute) or node.template.is_scatter:
            return None
        new = node.template.memo("pieces", _template)
        return None if new is node.template else Compute(new, node.args)

    return replace(graph, rule)


def read_parts(graph: Graph) -> Graph:
    """The graph with reads of one piece of a tensor that only moves elements as reads of what the piece moves."""

    def rule(node):
        return _through(node) if isinstance(node, Compute) else None

    return replace(graph, rule)


def _through(node: Compute) -> Compute | None:
    args: list[Tensor] = list(node.args)
    new: dict[Read, Expr] = {}
    for slot, a in enumerate(node.args):
        pieces = _moved(a)
        found = _pieces_read(node.template, slot, pieces) if pieces else None
        if found is None or not isinstance(a, Compute):
            continue
        slots = {s: len(args) + s for s in range(len(a.args))}
        args += a.args
        for e, p in found.items():
            at = {d: (linear(i) - o).expr() for d, (i, o) in enumerate(zip(e.index, p.offset, strict=True))}
            new[e] = substitute(p.bodies[0], at, slots)
    if not new:
        return None
    params = tuple((a.dtype, a.shape) for a in args)
    out = prune_args(map_bodies(node.template, lambda b: rebuild([b], new.get)[0], params), tuple(args))
    return prune_args(simplify_template(out.template), out.args)


def _moved(a: Tensor) -> list[Piece]:
    """The pieces of a tensor of several that are copies; none for others."""
    if not isinstance(a, Compute) or len(a.template.parts) < 2:
        return []
    pieces = [p for p in a.template.parts if isinstance(p, Piece) and isinstance(p.body, Read | Const)]
    plain = len(pieces) == len(a.template.parts) and all(s == 1 for p in pieces for s in p.step)
    return pieces if plain and not any(reads(i) for p in pieces for e in reads(p.bodies[0]) for i in e.index) else []


def _pieces_read(t: Template, slot: int, pieces: Sequence[Piece]) -> dict[Read, Piece] | None:
    """The piece that each read of a slot lies in; None where one may lie in several."""
    found: dict[Read, Piece] = {}
    for part in t.parts:
        for e, facts in reads_under(part):
            if e.slot != slot:
                continue
            p = next((p for p in pieces if _within(e, p, facts)), None)
            if p is None or found.setdefault(e, p) is not p or any(reads(i) for i in e.index):
                return None
    return found


def _within(e: Read, p: Piece, facts: Facts) -> bool:
    for i, o, n in zip(e.index, p.offset, p.extents, strict=True):
        low, high = facts.bounds(i)
        if low is None or low < o or high is None or high >= o + n:
            return False
    return True


def _template(t: Template) -> Template:
    parts: list[Piece] = []
    for p in t.parts:
        assert isinstance(p, Piece)
        parts += [p] if isinstance(p.body, Reduce) or 0 in p.extents else _split(p, p.body)
    return t if len(parts) == len(t.parts) or len(parts) > _PIECES else Template(t.shape, t.params, tuple(parts))


def _split(piece: Piece, body: Expr) -> list[Piece]:
    """The piece as the cheapest pieces along one axis after the other."""
    best, least = [piece], _GAIN * _cost(piece.extents, body)
    for found in _candidates(piece, body):
        cost = sum(_cost(p.extents, p.bodies[0]) for p in found)
        if cost < least:
            best, least = found, cost
    return best if len(best) == 1 else [q for p in best for q in _split(p, p.bodies[0])]


def _candidates(piece: Piece, body: Expr) -> Iterator[list[Piece]]:
    """For each axis that conditions compare with constants, the pieces between these constants."""
    choices = [e for e in postorder([body]) if isinstance(e, Apply) and e.fn == "where"]
    conditions = {c for e in choices for c in postorder(e.args[:1])}
    for d, n in enumerate(piece.extents):
        cuts = sorted({at for c in conditions for at in cuts_of(c, Axis(d), n)})
        if not 0 < len(cuts) < _PIECES:
            continue
        found: list[Piece] = []
        for first, stop in pairwise([0, *cuts, n]):
            extents = (*piece.extents[:d], stop - first, *piece.extents[d + 1 :])
            found.append(restricted(piece, [first if a == d else 0 for a in range(len(extents))], extents))
        yield found


def _cost(extents: tuple[int, ...], body: Expr) -> float:
    """Vector operations of a pointwise piece."""
    work = 1.0
    for e in postorder([body]):
        if isinstance(e, Read):
            work += 0.5
        elif isinstance(e, Apply) and e.dtype.is_float:
            work += 1 if e.fn in _CHEAP else 8
    vectors = prod(extents[:-1]) * -(-extents[-1] // _VECTOR) if extents else 1
    return vectors * work + _BEGIN
