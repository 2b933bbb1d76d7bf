"""Replace sibling tensors, which do not depend on each other, by slices of one tensor that computes them all.

before: A[i] = f(X[i]);  B[k] = f(Y[k]);  C[j] = A[j] + B[7-j]
after:  W[i] = f(X[i]), W[8+k] = f(Y[k]);  C[j] = W[j] + W[8+7-j]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from einsmith.ir.analysis.linear import LinearForm, linear
from einsmith.ir.nodes import Axis, Compute, Const, Expr, Graph, Piece, Read, Role, Template, Tensor, postorder, reads
from einsmith.ir.rebuild import exchanged, map_bodies, readers_of, rebuild, with_args
from einsmith.ir.rewrite.simplify import simplified
from einsmith.ir.views import is_view
from einsmith.passes.algebra.axis_forms import shift

_MAX_VISITED = 1000
"""Most nodes that are searched for a dependence of siblings on each other; beyond, they are not fused."""
MAX_CYCLES = 4
"""Most cycles of several fusions that are resolved by giving up one of them; beyond, none is done."""


class Place(NamedTuple):
    """The part of a fused tensor that equals a tensor of the graph: it begins at `offset` of `axis`, an axis that the
    tensor itself does not have if `is_new`."""

    whole: Compute
    axis: int
    offset: int
    is_new: bool = False


Fusion = dict[Tensor, Place]
"""The places of tensors in fused ones, which are computed all or none of them."""


def places_of(members: Sequence[Compute], axis: int, whole: Compute, is_new: bool = False) -> Fusion:
    """Return the places of members that lie in a fused tensor one after the other."""
    extents = [1 if is_new else m.shape[axis] for m in members[:-1]]
    offsets = accumulate(extents, initial=0)
    return {m: Place(whole, axis, offset, is_new) for m, offset in zip(members, offsets, strict=True)}


class Siblings:
    """Facts of a graph by which siblings are found.

    Attributes:
        nodes: the nodes, arguments ahead of users.
        readers: the nodes that read each tensor.
        role: the role of each node.
        depth: the most nodes on a path that leads to each node.
    """

    def __init__(self, graph: Graph):
        self.nodes: list[Tensor] = list(postorder(graph.roots))
        self.role: Mapping[Tensor, Role] = graph.role
        self.readers = readers_of(self.nodes)
        self._roots = set(graph.roots)
        self.depth: dict[Tensor, int] = {}
        for node in self.nodes:
            self.depth[node] = 1 + max((self.depth[a] for a in node.args), default=0)

    def can_move(self, t: Tensor) -> bool:
        """Return whether a tensor may become a part of another: no root, and readers whose indices can be shifted."""
        return (
            isinstance(t, Compute)
            and len(t.template.dtypes) == 1
            and t not in self._roots
            and all(isinstance(r, Compute) and not is_view(r.template) for r in self.readers[t])
        )

    def are_independent(self, members: Sequence[Compute]) -> bool:
        """Return whether no member depends on another."""
        least = min(self.depth[m] for m in members)
        stack = [a for m in members for a in m.args if self.depth[a] >= least]
        seen: set[Tensor] = set(stack)
        while stack:
            t = stack.pop()
            if t in members or len(seen) > _MAX_VISITED:
                return False
            stack += (new := [a for a in t.args if self.depth[a] >= least and a not in seen])
            seen.update(new)
        return True

    def split_independent(self, members: Sequence[Compute]) -> list[list[Compute]]:
        """Return the members as groups of at least two that do not depend on each other: all of them, or those of equal
        depth in the graph."""
        if self.are_independent(members):
            return [list(members)]
        by_depth: dict[int, list[Compute]] = {}
        for m in members:
            by_depth.setdefault(self.depth[m], []).append(m)
        return [group for group in by_depth.values() if len(group) > 1]


def replace_siblings(graph: Graph, fusions: Sequence[Fusion]) -> Graph:
    """Return the graph with fused tensors in place of their members; without fusions that depend on each other."""
    for _ in range(MAX_CYCLES):
        if not fusions:
            return graph
        places = {t: p for f in fusions for t, p in f.items()}
        order, cyclic = _sort(graph, places)
        if cyclic is None:
            break
        fusions = [f for f in fusions if all(p.whole is not cyclic for p in f.values())]
    else:
        return graph
    new: dict[Tensor, Tensor] = {}
    for node in order:
        t = new[node] = rewire(node, places, new) if node.args else node
        if isinstance(t, Compute) and t not in graph.role and len(t.template.parts) > 1 and _is_whole_copy(t.template):
            new[node] = t.args[0]  # a concatenation of all parts of a fused tensor
    return exchanged(graph, new | {t: new[p.whole] for t, p in places.items() if p.whole in new})


def _is_whole_copy(t: Template) -> bool:
    """Return whether the pieces of a template are the same pieces of its only argument."""
    return (
        len(t.params) == 1
        and t.params[0][1] == t.shape
        and all(
            isinstance(p, Piece)
            and isinstance(p.body, Read)
            and all(
                linear(i) == LinearForm(o, {Axis(d): 1} if n > 1 else {}) and s == 1
                for d, (i, o, s, n) in enumerate(zip(p.body.index, p.offset, p.step, p.extents, strict=True))
            )
            for p in t.parts
        )
    )


def _sort(graph: Graph, places: Mapping[Tensor, Place]) -> tuple[list[Tensor], Tensor | None]:
    """Return (nodes of the graph with fused tensors, arguments first; a fused tensor on a cycle, None without one)."""

    def target(t: Tensor) -> Tensor:
        return places[t].whole if t in places else t

    wholes = {p.whole for p in places.values()}
    done: dict[Tensor, bool] = {}
    order: list[Tensor] = []
    stack: list[tuple[Tensor, bool]] = [(target(t), False) for t in reversed(graph.roots)]
    while stack:
        node, is_left = stack.pop()
        if is_left:
            done[node] = True
            order.append(node)
        elif node not in done:
            done[node] = False
            stack.append((node, True))
            stack += [(target(a), False) for a in node.args]
        elif not done[node]:
            path = [n for n, left in stack if left]
            return order, next(n for n in path[path.index(node) :] if n in wholes)
    return order, None


def rewire(node: Tensor, places: Mapping[Tensor, Place], new: Mapping[Tensor, Tensor]) -> Tensor:
    """Return a node that reads fused tensors where their members are. new: what replaces each argument, if anything."""
    args = tuple(new.get(t := places[a].whole if a in places else a, t) for a in node.args)
    moved = {s: places[a] for s, a in enumerate(node.args) if a in places and args[s].shape != a.shape}
    if not moved or not isinstance(node, Compute):
        return with_args(node, args)

    def move(body: Expr) -> Expr:
        by = {e: (p.axis, p.offset) for e in reads(body) if (p := moved.get(e.slot)) and p.offset and not p.is_new}
        return rebuild([shift(body, by)], insert)[0]

    def insert(e: Expr) -> Expr | None:
        if not isinstance(e, Read) or not (p := moved.get(e.slot)) or not p.is_new:
            return None
        return Read(e.slot, (*e.index[: p.axis], Const(p.offset, e.index[0].dtype), *e.index[p.axis :]), e.dtype)

    params = tuple((a.dtype, a.shape) for a in args)
    return simplified(map_bodies(node.template, move, params), args)
