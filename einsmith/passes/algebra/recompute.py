"""What is cheap is made again by all who read it, where storing it costs more.

before: T[b,c,p] = max(X[b,c,p]*s[c] + t[c], 0)
        Y[b,o,p] = sum[c](W[o,c]*T[b,c,p]);  dW[o,c] = sum[b,p](G[b,o,p]*T[b,c,p])
after:  Y[b,o,p] = sum[c](W[o,c]*max(X[b,c,p]*s[c] + t[c], 0));  dW[o,c] = sum[b,p](G[b,o,p]*max(X[b,c,p]*s[c] + ...))

A normalisation or an activation stands between contractions, and its gradient needs what it is made of in any case. A
product that makes it while it packs its operand, or a stencil while it loads its rows, reads X in the place of T, which
nobody writes or keeps for the backward pass. The prices of the kernels decide, tensor by tensor.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from einsmith.expr.nodes import Apply, Compute, Expr, Graph, Piece, Reduce, Tensor, is_zero, nbytes, postorder, size
from einsmith.expr.rewrite.rebuild import exchanged, readers_of, with_args
from einsmith.passes.algebra.inline import inlined, points, pointwise_body
from einsmith.passes.schedule.views import is_view

if TYPE_CHECKING:
    from einsmith.passes.pipeline import PassContext

UNCERTAIN = 0.02
"""How far apart the prices of two kernels must be, as a part of one, for their difference to be one on the clock."""


def recompute(graph: Graph, context: PassContext) -> Graph:
    """The graph with such tensors made by their readers."""
    if not context.prices:
        return graph
    nodes = list(postorder(graph.roots))
    readers = readers_of(nodes)
    target = context.target
    known = [n for n in nodes if isinstance(n, Compute) and len(n.template.dtypes) == 1]
    if sum(map(nbytes, known)) > target.l3:  # what waits for the backward pass comes from memory
        context = replace(context, target=replace(target, l3=min(target.l3, target.l2 * target.cores)))
    kept = set(graph.roots)
    taken = {n for n in nodes if n not in kept and _gains(n, readers, context)}
    if not taken:
        return graph
    memo: dict[Tensor, Tensor] = {}
    for node in nodes:
        new = with_args(node, tuple([memo[a] for a in node.args])) if node.args else node
        made = {memo[a] for a in node.args if a in taken}
        memo[node] = inlined(new, made) if made and isinstance(new, Compute) else new
    return exchanged(graph, memo)


def _gains(t: Tensor, readers: dict[Tensor, list[Tensor]], context: PassContext) -> bool:
    """Whether the readers of a tensor take less time to make it than it takes to be stored."""
    users = readers[t]
    if not isinstance(t, Compute) or is_view(t.template) or pointwise_body(t.template) is None or not t.dtype.is_float:
        return False
    source = max(t.args, key=nbytes, default=None)
    # What it is made of is stored for others in any case; what is in cache costs next to nothing to read there.
    if source is None or len(readers[source]) == 1 or nbytes(t) <= context.target.l2 * context.target.cores:
        return False
    if sum(map(nbytes, t.args)) > 1.25 * nbytes(t) or not any(map(_is_product, users)):
        return False
    # Its kernel reads what another one has just read, or made; and so do readers that stand beside others of that.
    target = context.target
    read = target.seconds_for_bytes(nbytes(source), nbytes(source) + nbytes(t), target.cores)
    saved = context.price(t) - read
    if any(r in q.args and not _is_product(r) and not _is_product(q) for r in users for q in readers[source]):
        saved += read
    for r in users:
        if saved <= 0 or not isinstance(r, Compute) or is_view(r.template):
            return False
        if not _is_product(r) and points(r.template) * sum(a is t for a in r.args) > size(t.shape):
            return False
        before = context.price(r)
        saved -= max(0.0, context.price(inlined(r, {t})) - before) + UNCERTAIN * before
    return saved > 0


def _is_product(t: Tensor) -> bool:
    """Whether a tensor is sums of products, whose kernels make an element of an operand a few times for all sums."""
    bodies = [p.body for p in t.template.parts if isinstance(p, Piece)] if isinstance(t, Compute) else []
    return any(isinstance(b, Reduce) and b.combiner == "sum" and _multiplies(b.bodies[0]) for b in bodies)


def _multiplies(x: Expr) -> bool:
    while isinstance(x, Apply) and x.fn == "where" and is_zero(x.args[2]):
        x = x.args[1]
    return isinstance(x, Apply) and x.fn == "mul"
