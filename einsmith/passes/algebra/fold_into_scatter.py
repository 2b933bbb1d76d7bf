"""Fold a linear function of a scatter into the scatter, which then starts from the rest of the function.

before: S[ids[i], k] += g[i, k];  W_1[n, k] = W[n, k] - lr*S[n, k]              (S from zeros, and read nowhere else)
after:  W_1[n, k] = W[n, k];  W_1[ids[i], k] += -(lr*g[i, k])

If the start is in W_1's memory already, as in an update of W, only the destinations are read and written. Sums are
reassociated; if lr is not finite, elements that nothing is added to keep their values.
"""

from __future__ import annotations

from collections import Counter

from einsmith.ir.analysis.pointwise import is_identity, operations, pointwise_body
from einsmith.ir.analysis.widths import placed
from einsmith.ir.nodes import (
    Apply,
    Compute,
    Expr,
    Graph,
    Read,
    Reduce,
    Scatter,
    apply,
    postorder,
    reads,
    size,
    template,
)
from einsmith.ir.rebuild import exchanged, substitute, template_over, with_args
from einsmith.ir.rewrite.simplify import simplified


def fold_into_scatter(graph: Graph) -> Graph:
    """Return the graph with linear functions of scatters merged into them, if the added work is less than that of the
    scatter's own tensor, which is written and read once."""
    users: Counter = Counter()
    for node in postorder(graph.roots):
        users.update(set(node.args))
    roots = set(graph.roots)
    new: dict = {}
    for node in postorder(graph.roots):
        args = tuple(new[a] for a in node.args)
        new[node] = with_args(node, args) if args else node
        for slot, a in enumerate(node.args):
            argument = new[a]
            if users[a] == 1 and a not in roots and isinstance(argument, Compute) and argument.template.is_scatter:
                merged = _merge(new[node], slot, argument) if isinstance(node, Compute) else None
                if merged is not None:
                    new[node] = merged
                    break
    return exchanged(graph, new)


def _merge(node: Compute, slot: int, scatter: Compute) -> Compute | None:
    """Return the node as one scatter; None if it is not linear in one read of `scatter` at the identity index."""
    body, part = pointwise_body(node.template), scatter.template.parts[-1]
    if body is None or node.shape != scatter.shape or not node.dtype.is_float or not isinstance(part, Scatter):
        return None
    if part.combiner != "sum":
        return None
    matching = [e for e in reads(body) if e.slot == slot]
    if len(matching) != 1 or node.args.count(scatter) > 1 or not is_identity(matching[0], node.shape, scatter.shape):
        return None
    linear_operations = _find_operations(body, matching[0])
    if linear_operations is None or size(part.extents) * _count_operations(linear_operations) > 2 * size(node.shape):
        return None
    shift = {s: len(node.args) + s for s in range(len(scatter.args))}
    start: Expr | None = None
    if len(scatter.template.parts) > 1:
        piece = scatter.template.parts[0]
        if len(scatter.template.parts) > 2 or isinstance(piece.body, Reduce):
            return None
        start = substitute(piece.body, {}, shift)
    index = tuple(substitute(i, {}, shift) for i in part.index)
    at: dict[int, Expr] = dict(enumerate(index))
    term = substitute(part.body, {}, shift)
    for fn, other, is_left in linear_operations:
        start = _apply(fn, start, other, is_left)
        if fn in ("mul", "div"):
            assert other is not None
            factor = placed(other, at)
            term = apply(fn, factor, term) if is_left else apply(fn, term, factor)
        elif fn == "neg" or (fn == "sub" and is_left):
            term = apply("neg", term)
    pieces = () if start is None else template(node.shape, (), start).parts
    args = (*node.args, *scatter.args)
    merged = Scatter(part.combiner, part.extents, index, term)
    return simplified(template_over(args, node.shape, (*pieces, merged)), args)


_Operation = tuple[str, Expr | None, bool]
"""An operation between a read and the body: (function, other operand, whether the other operand is the left one)."""


def _apply(fn: str, x: Expr | None, other: Expr | None, is_left: bool) -> Expr | None:
    """Return the result of an operation for operand x, where None denotes zero."""
    if other is None:
        return None if x is None else apply("neg", x)
    if x is None:
        if fn not in ("add", "sub"):
            return None
        return apply("neg", other) if fn == "sub" and not is_left else other
    return apply(fn, other, x) if is_left else apply(fn, x, other)


def _find_operations(body: Expr, read: Read) -> list[_Operation] | None:
    """Return the operations from the read to the body; None if one of them is not linear."""
    depends_on_read: set[Expr] = {read}
    for e in postorder([body]):
        if any(a in depends_on_read for a in e.args):
            depends_on_read.add(e)
    out: list[_Operation] = []
    e = body
    while e is not read:
        if not isinstance(e, Apply) or e.fn not in ("add", "sub", "mul", "div", "neg"):
            return None
        inside = [a in depends_on_read for a in e.args]
        if sum(inside) != 1 or (e.fn == "div" and inside[1]):
            return None
        other = None if e.fn == "neg" else e.args[inside.index(False)]
        out.append((e.fn, other, e.fn != "neg" and inside[1]))
        e = e.args[inside.index(True)]
    return out[::-1]


def _count_operations(linear_operations: list[_Operation]) -> int:
    """Return the operations that each term takes."""
    return sum(
        1 + operations(other) for fn, other, _ in linear_operations if fn in ("mul", "div") and other is not None
    )
