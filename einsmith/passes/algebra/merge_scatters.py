"""Merge a scatter that starts from another one over the same points into one that adds the terms of both.

before: S[i[n], k] += f[n]*g[n, k];  T[n, k] = S[n, k];  T[i[n] + 1, k] += (1 - f[n])*g[n, k]
after:  T[where(a < 1, i[n], i[n] + 1), k] += where(a < 1, f[n]*g[n, k], (1 - f[n])*g[n, k])      for a < 2

The terms of a point, such as the four corners of a bilinear sample, are then adjacent, and common subexpressions are
computed once: where a scatter is compiled, its last axes are unrolled if they are short. The order of additions
changes. The predicted kernel times decide.
"""

from __future__ import annotations

from collections import Counter

from einsmith.base import dtypes as dt
from einsmith.ir.analysis.pointwise import is_identity
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
    apply,
    cast,
    postorder,
    reads,
)
from einsmith.ir.rebuild import exchanged, prune_args, substitute, types_of, with_args
from einsmith.passes.context import PassContext


def merge_scatters(graph: Graph, context: PassContext) -> Graph:
    """Return the graph with scatters over the same points merged where the predicted time is lower."""
    if not context.can_price:
        return graph
    users = Counter(a for node in postorder(graph.roots) for a in set(node.args))
    users.update(graph.roots)
    new: dict = {}
    changed = False
    for node in postorder(graph.roots):
        new_node = with_args(node, tuple(new[a] for a in node.args)) if node.args else node
        start_slot = find_start(node) if isinstance(node, Compute) else None
        if start_slot is not None and users[node.args[start_slot]] == 1:
            merged = _add_terms(new_node, start_slot)
            if merged is not None and _is_cheaper(merged, [new_node.args[start_slot], new_node], context):
                new_node, changed = merged, True
        new[node] = new_node
    return exchanged(graph, new) if changed else graph


def find_start(node: Compute) -> int | None:
    """Return the slot that a scatter starts from, element by element, and reads nowhere else; None if there is none."""
    first, added = node.template.parts[0], node.template.parts[-1]
    if len(node.template.parts) != 2 or not isinstance(added, Scatter) or not isinstance(first, Piece):
        return None
    read = first.body
    if not isinstance(read, Read) or first.extents != node.shape:
        return None
    slot = read.slot
    if not is_identity(read, node.shape, node.args[slot].shape):
        return None
    read_again = any(r.slot == slot for b in added.bodies for r in reads(b))
    return None if read_again or node.args.count(node.args[slot]) > 1 else slot


def _add_terms(node: Compute, start: int) -> Compute | None:
    """Return the node with the terms of the scatter that it starts from added; None if that scatter has other
    points."""
    source = node.args[start]
    if not isinstance(source, Compute) or not source.template.is_scatter or source.dtype is not node.dtype:
        return None
    # Equal arguments have one slot, so that equal terms are one expression.
    known = {a: s for s, a in enumerate(node.args)}
    shift = {s: known.get(a, len(node.args) + s) for s, a in enumerate(source.args)}
    one, two = source.template.parts[-1], node.template.parts[-1]
    assert isinstance(one, Scatter) and isinstance(two, Scatter)
    if one.combiner != two.combiner:
        return None
    axis = len(two.extents)
    if one.extents == two.extents:
        count = 1
    elif one.extents[:-1] == two.extents:  # the source is itself a merged scatter
        count = one.extents[-1]
    else:
        return None
    first = apply("lt", Axis(axis), Const(count, dt.i32))

    def either(a: Expr, b: Expr) -> Expr:
        a = substitute(a, {}, shift)
        if a is b:
            return a
        if a.dtype is not b.dtype:
            a, b = cast(a, dt.i64), cast(b, dt.i64)
        return apply("where", first, a, b)

    index = tuple(either(a, b) for a, b in zip(one.index, two.index, strict=True))
    pieces = tuple(
        Piece(p.offset, p.step, p.extents, substitute(p.body, {}, shift))
        for p in source.template.parts[:-1]
        if isinstance(p, Piece) and not isinstance(p.body, Reduce)
    )
    if len(pieces) < len(source.template.parts) - 1:
        return None
    args = (*node.args, *source.args)
    merged = Scatter(two.combiner, (*two.extents, count + 1), index, either(one.body, two.body))
    return prune_args(Template(node.shape, types_of(args), (*pieces, merged)), args)


def _is_cheaper(merged: Compute, separate: list, context: PassContext) -> bool:
    return context.price(merged) < sum(map(context.price, separate))
