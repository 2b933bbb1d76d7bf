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

_PIECES = 16
"""Most pieces of one template."""


def merge_disjoint(graph: Graph) -> Graph:
    """Return the graph with sums of disjoint tensors merged, if nothing else reads the terms."""
    users: Counter = Counter()
    for node in postorder(graph.roots):
        users.update(set(node.args))
    roots = set(graph.roots)
    new: dict = {}
    for node in postorder(graph.roots):
        made = with_args(node, tuple(new[a] for a in node.args)) if node.args else node
        if isinstance(node, Compute) and pointwise_body(node.template) is not None:
            own = {new[a] for a in node.args if users[a] == 1 and a not in roots}
            while (found := _join(made, own)) is not None:
                made, term = found
                own.add(term)
        new[node] = made
    return exchanged(graph, new)


def _join(node: Compute, own: set[Tensor]) -> tuple[Compute, Compute] | None:
    """Return (the node with two terms of a sum merged into one tensor, that tensor); None if no two terms in `own` are
    disjoint."""
    body = pointwise_body(node.template)
    assert body is not None
    slots = {s for s, a in enumerate(node.args) if a in own and isinstance(a, Compute) and _parts(a.template)}
    for e in postorder([body]) if len(slots) > 1 else ():
        terms = _terms(e)
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


def _terms(e: Expr) -> list[Expr]:
    """Return the terms of a sum, from left to right; an empty list for other expressions."""
    return operands(e, "add") if isinstance(e, Apply) and e.fn == "add" and e.dtype.is_float else []


Box = tuple[tuple[int, int], ...]
"""(first, stop) along each axis."""


def _union(a: Compute, b: Compute) -> Compute | None:
    """Return the sum of two tensors as pieces; None unless one is zero wherever the other is not."""
    split = [_parts(x.template) for x in (a, b)]
    if a.shape != b.shape or None in split:
        return None
    (full, empty), (others, blank) = split  # type: ignore[misc]
    if any(_meet(_box(p), _box(q)) for p in full for q in others) or len(full) + len(others) > _PIECES:
        return None
    slots = {s: len(a.args) + s for s in range(len(b.args))}
    parts = [*full, *(_with_slots(p, slots) for p in others)]
    for p in empty:
        for q in blank:
            if box := _meet(_box(p), _box(q)):
                offset, extents = tuple(lo for lo, _ in box), tuple(hi - lo for lo, hi in box)
                parts.append(Piece(offset, (1,) * len(box), extents, p.bodies[0]))
    return prune_args(Template(a.shape, (*a.template.params, *b.template.params), tuple(parts)), (*a.args, *b.args))


def _parts(t: Template) -> tuple[list[Piece], list[Piece]] | None:
    """Return (the pieces that are not zero, the pieces that are); None if either is empty or a piece has a step above
    1."""
    return t.memo("disjoint", _of_zeros)


def _of_zeros(t: Template) -> tuple[list[Piece], list[Piece]] | None:
    pieces = [p for p in t.parts if isinstance(p, Piece)]
    if t.is_scatter or len(t.dtypes) > 1 or any(s != 1 for p in pieces for s in p.step):
        return None
    zero = [p for p in pieces if is_zero(p.body)]
    full = [p for p in pieces if p not in zero]
    return (full, zero) if zero and full else None


def _box(p: Piece) -> Box:
    return tuple((o, o + n) for o, n in zip(p.offset, p.extents, strict=True))


def _meet(a: Box, b: Box) -> Box:
    """Return the intersection of two boxes; () if it is empty."""
    out = tuple((max(x[0], y[0]), min(x[1], y[1])) for x, y in zip(a, b, strict=True))
    return out if all(lo < hi for lo, hi in out) else ()


def _with_slots(p: Piece, slots: dict[int, int]) -> Piece:
    bodies = tuple(substitute(x, {}, slots) for x in p.bodies)
    body = Reduce(p.body.combiner, p.body.extents, bodies) if isinstance(p.body, Reduce) else bodies[0]
    return Piece(p.offset, p.step, p.extents, body)
