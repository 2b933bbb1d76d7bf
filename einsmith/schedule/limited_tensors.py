"""Find of which dimensions of a graph's tensors only the positions below a limit matter.

A graph of a capacity (`passes.capacity`) has tensors of which some extents are the capacity. Along such a dimension,
only the positions below the limit matter where every reader reads at its own position along an axis of its own, below
the limit too, or under a condition that compares the position with the limit. This is proven of the graph after all
passes, whatever they made of it, dimension by dimension.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

from einsmith.base import dtypes as dt
from einsmith.ir.analysis.bounds import Facts, bounds
from einsmith.ir.analysis.guarded import reads_under
from einsmith.ir.analysis.products import is_less
from einsmith.ir.nodes import (
    Axis,
    Compute,
    Const,
    Expr,
    Graph,
    Item,
    Leaf,
    Piece,
    Read,
    Reduce,
    Tensor,
    apply,
    postorder,
)


class RowLimit(NamedTuple):
    """A limit of rows and of other positions. leaf: the i32 that holds it in a run, given to the program or computed by
    it; extent: the capacity, the extent of dimensions that it limits; outputs: (output, dimension) of the graph's
    outputs of which only the positions below it are read; products: (number, leaves of extents) whose product it is in
    every run."""

    leaf: Tensor
    extent: int
    outputs: frozenset[tuple[int, int]]
    products: tuple[tuple[int, tuple[Leaf, ...]], ...] = ()

    def dimensions(self, t: Tensor) -> list[int]:
        """Return the dimensions of a tensor that the limit may limit. A limit that a graph computes is one of rows
        alone, as no conditions keep what lies beyond it from being an index."""
        shape = t.shape if isinstance(self.leaf, Leaf) else t.shape[:1]
        return [d for d, n in enumerate(shape) if n == self.extent]


Limited = AbstractSet[tuple[Tensor, int]]
"""(tensor, dimension) pairs of which only the positions below a limit matter."""


def find_limits(graph: Graph) -> list[RowLimit]:
    """Return the limits that a graph computes: integers without dimensions of which an extent is the upper bound."""
    out = []
    for node in postorder(graph.roots):
        if isinstance(node, Compute) and not node.shape and node.template.dtypes == (dt.i32,):
            body = node.template.parts[0].body
            low, high = (None, None) if isinstance(body, Reduce) else bounds(body, ())
            if low is not None and high is not None and 0 <= low < high:
                out.append(RowLimit(node, high, frozenset()))
    return out


def find_limited(graph: Graph, limit: RowLimit) -> set[tuple[Tensor, int]]:
    """Return the (tensor, dimension) pairs of a graph of whose positions only those below the limit matter."""
    nodes = list(postorder((*graph.roots, *graph.gradients)))
    limited = {(t, d) for t in nodes if not _has_several_results(t) for d in limit.dimensions(t)}

    def keep_whole(tensors: Iterable[Tensor]) -> None:
        limited.difference_update((t, d) for t in tensors for d in range(len(t.shape)))

    keep_whole(t for t, _ in graph.checks)
    keep_whole(t for _, t in graph.updates)
    for n, t in enumerate(graph.outputs):
        limited.difference_update((t, d) for d in range(len(t.shape)) if (n, d) not in limit.outputs)
    whole: dict[Any, set[int]] = {}  # dimensions of nodes of several results of which all positions matter
    for node in reversed(nodes):
        if isinstance(node, Leaf):
            continue
        if isinstance(node, Item):
            dimensions = {d for d in range(len(node.shape)) if (node, d) not in limited}
            whole.setdefault(node.node, set()).update(dimensions)
        elif isinstance(node, Compute):
            if _has_several_results(node):
                own = {d for d, n in enumerate(node.template.shape) if n == limit.extent} - whole.get(node, set())
            else:
                own = {d for d in range(len(node.shape)) if (node, d) in limited}
            limited.difference_update(_find_whole_operands(node, limit, own))
        else:
            keep_whole(node.args)
    return {(t, d) for t, d in limited if not isinstance(t, Leaf)}


def _has_several_results(node: Any) -> bool:
    return not isinstance(node, (Leaf, Item)) and not (isinstance(node, Compute) and len(node.template.dtypes) == 1)


def _find_whole_operands(node: Compute, limit: RowLimit, limited: AbstractSet[int]) -> list[tuple[Tensor, int]]:
    """Return (operand, dimension) where a node reads positions that may lie beyond the limit. limited: dimensions of
    the node of which only the positions below it matter."""
    ends, extents = _ends(node, limit)
    out = []
    for part in node.template.parts:
        own = {d for d in limited if isinstance(part, Piece) and (part.offset[d], part.step[d]) == (0, 1)}
        for read, facts in reads_under(part):
            operand = node.args[read.slot]
            for d in limit.dimensions(operand):
                if not is_below(read.index[d], own, facts, ends, extents):
                    out.append((operand, d))
    return out


def _ends(node: Compute, limit: RowLimit) -> tuple[list[Expr], list[Expr]]:
    """Return (reads of a limit in a node and products that it is, reads of extents, which are at least 1)."""

    def reads_of(leaves: Iterable[Tensor]) -> list[Expr]:
        return [Read(node.args.index(x), (), x.dtype) for x in leaves if x in node.args]

    ends = reads_of([limit.leaf])
    leaves_of = dict.fromkeys((limit.leaf, *(x for _, leaves in limit.products for x in leaves)))
    extents = reads_of(x for x in leaves_of if isinstance(x, Leaf))
    for count, leaves in limit.products:
        factors = reads_of(leaves)
        if len(factors) == len(leaves):
            end: Expr = Const(count, dt.i32)
            for x in factors:
                end = apply("mul", end, x)
            ends.append(end)
    return ends, extents


def is_below(
    place: Expr, own: Collection[int], facts: Facts, ends: Sequence[Expr], extents: Collection[Expr] = ()
) -> bool:
    """Return whether a position that is read lies below the limit: it is the reader's own position along one of the
    axes `own`, which does, or lies below one of `ends`, which are the limit. extents: integers that are at least 1."""
    if isinstance(place, Axis) and place.position in own:
        return True
    return any(place.dtype is x.dtype and is_less(place, x, facts, extents) for x in ends)
