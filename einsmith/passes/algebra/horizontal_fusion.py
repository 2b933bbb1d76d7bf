"""Fuse sums over the same points into one sum of several results, which reads shared operands once.

before: A[c] = sum[n,k](G[n, c, k]);  B[c] = sum[n,k](G[n, c, k]*X[n, c, k])
after:  A[c], B[c] = sum[n,k](G[n, c, k]; G[n, c, k]*X[n, c, k])

The backward pass of a batch norm needs two sums over the same tensor; the gradients of a cell's biases and factors are
others. Fused sums must not depend on each other. Sums at equal depth in the graph are fused, and sums that only updates
read, because only updates depend on them; where the predicted time of one kernel is lower than that of theirs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence

from einsmith.ir.analysis.pointwise import pointwise_body
from einsmith.ir.nodes import (
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
from einsmith.ir.rebuild import exchanged, substitute, types_of, whole_sum, with_args
from einsmith.passes.context import PassContext

_MAX_SUMS = 6
"""Most sums of one node; each needs an accumulator per lane."""


def horizontal_fusion(graph: Graph, context: PassContext) -> Graph:
    """Return the graph with sums over the same points fused where the predicted time is lower."""
    if not context.can_price:
        return graph
    nodes = list(postorder(graph.roots))
    depth, roots = _compute_depths(nodes, graph), set(graph.roots)
    groups: dict[tuple, list[Compute]] = defaultdict(list)
    for node in nodes:
        if isinstance(node, Compute) and node not in roots and _is_sum(node.template):
            (piece,) = node.template.parts
            groups[depth[node], node.shape, piece.body.extents, node.dtype].append(node)  # type: ignore[union-attr]
    fused: dict[Tensor, tuple[Compute, int]] = {}
    for sums in groups.values():
        for group in _group_by_operand(sums):
            whole = fuse_sums(group)
            results = [Item(whole, m) for m in range(len(group))]
            if context.price(whole, stored=results) >= sum(map(context.price, group)):
                continue
            fused |= {x: (whole, m) for m, x in enumerate(group)}
    if not fused:
        return graph
    new: dict[Tensor, Tensor] = {}
    for node in sorted(nodes, key=depth.__getitem__):
        whole, m = fused.get(node, (node, 0))
        new_node = with_args(whole, tuple(new[a] for a in whole.args)) if whole.args else whole
        new[node] = Item(new_node, m) if node in fused else new_node
    return exchanged(graph, new)


def _compute_depths(nodes: Sequence[Tensor], graph: Graph) -> dict[Tensor, int]:
    """Return the depth of each node in the graph. Sums that only updates read come after all other nodes, and their
    updates after them."""
    readers: dict[Tensor, set[Tensor]] = defaultdict(set)
    depth: dict[Tensor, int] = {}
    for node in nodes:
        depth[node] = 1 + max((depth[a] for a in node.args), default=0)
        for a in node.args:
            readers[a].add(node)
    updates = {t for _, t in graph.updates} - {*graph.outputs, *(t for t, _ in graph.checks)}
    update_nodes = {
        t for t in updates if isinstance(t, Compute) and not readers[t] and pointwise_body(t.template) is not None
    }
    roots = set(graph.roots)
    for node in nodes:
        if isinstance(node, Compute) and node not in roots and readers[node] and readers[node] <= update_nodes:
            depth[node] = len(nodes) + 1
    return depth | {t: len(nodes) + 2 for t in update_nodes}


def _is_sum(t: Template) -> bool:
    """Return whether a template is one sum over all of its output that reads its largest argument about once."""
    part = whole_sum(t)
    return part is not None and size(part.domain) <= 2 * max((size(s) for _, s in t.params), default=0)


def _group_by_operand(sums: list[Compute]) -> Iterator[list[Compute]]:
    """Yield groups of at least two sums, in order; each sum of a group shares an operand with an earlier one."""
    reads = [_find_reads(x) for x in sums]
    open_sums: dict[object, list[int]] = defaultdict(list)  # read: its sums that have no group yet, in order
    for n, own_reads in enumerate(reads):
        for x in own_reads:
            open_sums[x].append(n)
    grouped: set[int] = set()
    for first in range(len(sums)):
        group: list[int] = []
        next_sum: int | None = None if first in grouped else first
        while next_sum is not None:
            group.append(next_sum)
            for x in reads[next_sum]:
                del open_sums[x][bisect_left(open_sums[x], next_sum)]
            candidates = [
                k[at] for n in group for x in reads[n] if (at := bisect_left(k := open_sums[x], next_sum)) < len(k)
            ]
            next_sum = min(candidates, default=None) if len(group) < _MAX_SUMS else None
        grouped.update(group)
        if len(group) > 1:
            yield [sums[n] for n in group]


def _find_reads(node: Compute) -> set[tuple[Tensor, tuple[Expr, ...]]]:
    """Return the (tensor, index) pairs at which a sum reads."""
    return {(node.args[e.slot], e.index) for e in reads(node.template.parts[0].bodies[0])}


def fuse_sums(group: list[Compute]) -> Compute:
    """Return one node that computes all sums of a group."""
    args = list(dict.fromkeys(a for x in group for a in x.args))
    bodies: list[Expr] = []
    for x in group:
        slots = {s: args.index(a) for s, a in enumerate(x.args)}
        (piece,) = x.template.parts
        bodies.append(substitute(piece.bodies[0], {}, slots))
    assert isinstance(piece, Piece) and isinstance(piece.body, Reduce)
    body = Reduce("sum", piece.body.extents, tuple(bodies))
    part = Piece(piece.offset, piece.step, piece.extents, body)
    return Compute(Template(group[0].shape, types_of(args), (part,)), tuple(args))
