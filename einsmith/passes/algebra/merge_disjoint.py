"""Merge disjoint tensors: a sum of tensors that are zero in each other's pieces becomes one tensor of all their pieces.

before: A[i] = sum[b](X[b, i]), A[8+k] = 0;  B[i] = 0, B[8+k] = sum[b](Y[b, k]);  C[j] = W[j] - (A[j] + B[j])
after:  D[i] = sum[b](X[b, i]), D[8+k] = sum[b](Y[b, k]);  C[j] = W[j] - D[j]

The gradient of a weight that several products read in slices is such a sum; an example is a weight that stacks the
columns for a cell's input and for its state. Nothing is reassociated: at every point at most one term is not zero.
"""

from __future__ import annotations

from collections import Counter

from einsmith.ir.analysis.pointwise import is_identity, pointwise_body
from einsmith.ir.nodes import (
    Apply,
    Compute,
    Expr,
    Graph,
    Piece,
    Read,
    Reduce,
    Template,
    Tensor,
    apply,
    is_zero,
    postorder,
)
from einsmith.ir.rebuild import exchanged, map_bodies, operands, prune_args, rebuild, substitute, with_args
from einsmith.ir.rewrite.simplify import simplify_template

_MAX_PIECES = 16
"""Most pieces of one template."""


def merge_disjoint(graph: Graph) -> Graph:
    """Return the graph with sums of disjoint tensors merged, if nothing else reads the terms."""
    users: Counter = Counter()
    for node in postorder(graph.roots):
        users.update(set(node.args))
    roots = set(graph.roots)
    new: dict = {}
    for node in postorder(graph.roots):
        new_node = with_args(node, tuple(new[a] for a in node.args)) if node.args else node
        if isinstance(node, Compute) and pointwise_body(node.template) is not None:
            private_terms = {new[a] for a in node.args if users[a] == 1 and a not in roots}
            while (merged := _merge_terms(new_node, private_terms)) is not None:
                new_node, term = merged
                private_terms.add(term)
        new[node] = new_node
    return exchanged(graph, new)


def _merge_terms(node: Compute, private_terms: set[Tensor]) -> tuple[Compute, Compute] | None:
    """Return (the node with two terms of a sum merged into one tensor, that tensor); None if no two of
    `private_terms` are disjoint."""
    body = pointwise_body(node.template)
    assert body is not None
    slots = {
        s
        for s, a in enumerate(node.args)
        if a in private_terms and isinstance(a, Compute) and _split_zero_pieces(a.template)
    }
    for e in postorder([body]) if len(slots) > 1 else ():
        terms = _terms_of(e)
        reads = [x for x in terms if isinstance(x, Read) and x.slot in slots and is_identity(x, node.shape)]
        for n, x in enumerate(reads):
            for y in reads[n + 1 :]:
                a, b = node.args[x.slot], node.args[y.slot]
                term = _union(a, b) if isinstance(a, Compute) and isinstance(b, Compute) and a is not b else None
                if term is None:
                    continue
                new: Expr = Read(len(node.args), x.index, x.dtype)
                for other in terms:
                    new = new if other in (x, y) else apply("add", new, other)
                params = (*node.template.params, (term.dtype, term.shape))
                t = map_bodies(node.template, lambda z: rebuild([z], {e: new}.get)[0], params)  # noqa: B023
                out = prune_args(t, (*node.args, term))
                return prune_args(simplify_template(out.template), out.args), term
    return None


def _terms_of(e: Expr) -> list[Expr]:
    """Return the terms of a sum, from left to right; an empty list for other expressions."""
    return operands(e, "add") if isinstance(e, Apply) and e.fn == "add" and e.dtype.is_float else []


_Box = tuple[tuple[int, int], ...]
"""(first, stop) along each axis."""


def _union(a: Compute, b: Compute) -> Compute | None:
    """Return the sum of two tensors as pieces; None unless one is zero wherever the other is not."""
    split = [_split_zero_pieces(x.template) for x in (a, b)]
    if a.shape != b.shape or None in split:
        return None
    (full, empty), (other_full, other_empty) = split  # type: ignore[misc]
    if (
        any(_intersect(_box_of(p), _box_of(q)) for p in full for q in other_full)
        or len(full) + len(other_full) > _MAX_PIECES
    ):
        return None
    slots = {s: len(a.args) + s for s in range(len(b.args))}
    parts = [*full, *(_renumber_slots(p, slots) for p in other_full)]
    for p in empty:
        for q in other_empty:
            if box := _intersect(_box_of(p), _box_of(q)):
                offset, extents = tuple(lo for lo, _ in box), tuple(hi - lo for lo, hi in box)
                parts.append(Piece(offset, (1,) * len(box), extents, p.bodies[0]))
    return prune_args(Template(a.shape, (*a.template.params, *b.template.params), tuple(parts)), (*a.args, *b.args))


def _split_zero_pieces(t: Template) -> tuple[list[Piece], list[Piece]] | None:
    """Return (the pieces that are not zero, the pieces that are); None if either is empty or a piece has a step above
    1."""
    return t.memo("disjoint", _find_zero_pieces)


def _find_zero_pieces(t: Template) -> tuple[list[Piece], list[Piece]] | None:
    pieces = [p for p in t.parts if isinstance(p, Piece)]
    if t.is_scatter or len(t.dtypes) > 1 or any(s != 1 for p in pieces for s in p.step):
        return None
    zero = [p for p in pieces if is_zero(p.body)]
    full = [p for p in pieces if p not in zero]
    return (full, zero) if zero and full else None


def _box_of(p: Piece) -> _Box:
    return tuple((o, o + n) for o, n in zip(p.offset, p.extents, strict=True))


def _intersect(a: _Box, b: _Box) -> _Box:
    """Return the intersection of two boxes; () if it is empty."""
    out = tuple((max(x[0], y[0]), min(x[1], y[1])) for x, y in zip(a, b, strict=True))
    return out if all(lo < hi for lo, hi in out) else ()


def _renumber_slots(p: Piece, slots: dict[int, int]) -> Piece:
    bodies = tuple(substitute(x, {}, slots) for x in p.bodies)
    body = Reduce(p.body.combiner, p.body.extents, bodies) if isinstance(p.body, Reduce) else bodies[0]
    return Piece(p.offset, p.step, p.extents, body)
