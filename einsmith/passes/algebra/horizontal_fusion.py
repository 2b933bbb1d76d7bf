"""Sums over the same points that only updates read become one sum of several results, which reads what they share once.

before: A[n] = sum[b](G[b, n]);  B[n] = sum[b](G[b, n]*U[b, n]);  updates p[n] - A[n], q[n] - B[n]
after:  A[n], B[n] = sum[b](G[b, n]; G[b, n]*U[b, n]);  the same updates

The gradients of a cell's biases and factors are such sums. Nothing but updates waits for them, so that nothing can need
one of them before all are there.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator

from einsmith.expr.nodes import (
    Compute,
    Expr,
    Graph,
    Item,
    Piece,
    Reduce,
    Template,
    Tensor,
    postorder,
    reads,
    size,
)
from einsmith.expr.rewrite.rebuild import exchanged, substitute, whole_sum, with_args
from einsmith.passes.algebra.inline import pointwise_body

_MEMBERS = 6
"""Sums of one node at most: a lane has an accumulator of each."""
_SHARED = 1 << 15
"""Elements of what sums must share to be worth one sweep: what lies in the first cache is read again at no cost."""


def together(graph: Graph) -> Graph:
    """The graph with such sums as one node."""
    users: Counter = Counter()
    readers: dict[Tensor, list[Tensor]] = defaultdict(list)
    for node in postorder(graph.roots):
        users.update(set(node.args))
        for a in set(node.args):
            readers[a].append(node)
    updates = {t for _, t in graph.updates}
    others = {*graph.outputs, *(t for t, _ in graph.checks)}
    groups: dict[tuple, list[Compute]] = defaultdict(list)
    for node in postorder(graph.roots):
        if not isinstance(node, Compute) or node in others or not _is_sum(node.template):
            continue
        used = readers[node]
        if len(used) == 1 and used[0] in updates and users[used[0]] == 0 and used[0] not in others:
            (piece,) = node.template.parts
            if isinstance(used[0], Compute) and pointwise_body(used[0].template) is not None:
                groups[node.shape, piece.body.extents, node.dtype].append(node)  # type: ignore[union-attr]
    joined: dict[Tensor, Tensor] = {}
    for found in groups.values():
        for group in _sharing(found):
            whole = _joined(group)
            joined |= {x: Item(whole, m) for m, x in enumerate(group)}
    if not joined:
        return graph
    new: dict = {}
    for node in postorder(graph.roots):
        new[node] = joined[node] if node in joined else (
            with_args(node, tuple(new[a] for a in node.args)) if node.args else node
        )
    return exchanged(graph, new)


def _is_sum(t: Template) -> bool:
    """Whether it is one sum, over all of its output, that reads its largest argument about once."""
    part = whole_sum(t)
    return part is not None and size(part.domain) <= 2 * max((size(s) for _, s in t.params), default=0)


def _sharing(sums: list[Compute]) -> Iterator[list[Compute]]:
    """Groups of two sums and more, in order, each of which reads what an earlier one of its group does."""
    reads = [_shared(x) for x in sums]
    left: dict[object, list[int]] = defaultdict(list)  # what is read: the sums of no group yet that read it, in order
    for n, found in enumerate(reads):
        for x in found:
            left[x].append(n)
    taken: set[int] = set()
    for first in range(len(sums)):
        group: list[int] = []
        new: int | None = None if first in taken else first
        while new is not None:
            group.append(new)
            for x in reads[new]:
                del left[x][bisect_left(left[x], new)]
            after = [k[at] for n in group for x in reads[n] if (at := bisect_left(k := left[x], new)) < len(k)]
            new = min(after, default=None) if len(group) < _MEMBERS else None
        taken.update(group)
        if len(group) > 1:
            yield [sums[n] for n in group]


def _shared(node: Compute) -> set[tuple[Tensor, tuple[Expr, ...]]]:
    """What a sum reads of large tensors, and where."""
    return {
        (node.args[e.slot], e.index) for e in reads(node.template.parts[0].bodies[0])
        if size(node.template.params[e.slot][1]) >= _SHARED
    }


def _joined(group: list[Compute]) -> Compute:
    """One node of all sums."""
    args = list(dict.fromkeys(a for x in group for a in x.args))
    bodies: list[Expr] = []
    for x in group:
        slots = {s: args.index(a) for s, a in enumerate(x.args)}
        (piece,) = x.template.parts
        bodies.append(substitute(piece.bodies[0], {}, slots))
    assert isinstance(piece, Piece) and isinstance(piece.body, Reduce)
    body = Reduce("sum", piece.body.extents, tuple(bodies))
    params = tuple((a.dtype, a.shape) for a in args)
    part = Piece(piece.offset, piece.step, piece.extents, body)
    return Compute(Template(group[0].shape, params, (part,)), tuple(args))
