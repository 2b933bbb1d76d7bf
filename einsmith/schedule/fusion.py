"""Group tensors into kernels: pointwise tensors join the kernel of a tensor that they read.

A pointwise tensor joins the group of a tensor that it reads at the identity index if the group stays convex: no node
outside the group lies between two members. Pointwise groups over the same box that a member reads join the group in
turn.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from einsmith.ir.analysis.linear import LinearForm, linear
from einsmith.ir.analysis.pointwise import pointwise_body
from einsmith.ir.analysis.reads import has_data_index
from einsmith.ir.interned import Node
from einsmith.ir.loop import LoweredLoop
from einsmith.ir.nodes import Axis, Compute, Leaf, Piece, Read, Reduce, Template, Tensor, postorder, reads
from einsmith.ir.views import is_view, producer, storage
from einsmith.schedule.partition import Partition

_MAX_BUFFERS = 24
"""Most buffers of a kernel: external arguments of its nodes and all their results."""
MAX_STAGES = 12
"""Most nodes of a kernel."""


@dataclass
class FusionGroup:
    """A set of nodes that are fused into one kernel, and the groups on whose results it depends."""

    nodes: list[Compute | LoweredLoop] = field(default_factory=list)
    before: int = 0  # bitset of the groups that this one needs, directly or not (`Partition.before`)
    readers: set[Compute | LoweredLoop] = field(default_factory=set)  # the nodes that read its nodes

    def count_outside_readers(self, node: Compute) -> int:
        """Return the number of readers outside the group, not counting `node`."""
        return len(self.readers) - sum(n in self.readers for n in (*self.nodes, node))


def maker(t: Tensor) -> Compute | LoweredLoop | None:
    """Return the node that computes a tensor's storage; None for the graph's inputs."""
    p, _ = producer(t)
    return None if isinstance(p, Leaf) else p


def makers(node: Compute | LoweredLoop) -> Iterator[Compute | LoweredLoop]:
    """Yield the nodes that compute a node's arguments."""
    return (m for m in map(maker, node.args) if m is not None)


def passes_on(
    nodes: Collection[Compute | LoweredLoop], readers: Collection[Compute | LoweredLoop], of: Collection[Node]
) -> bool:
    """Return whether a reader reads results of one of the nodes that is among `of`."""
    return bool(of) and any(m in of and m in nodes for n in readers for m in makers(n))


def needs_check(node: Compute | LoweredLoop) -> bool:
    """Return whether the node, or a step of the loop, accesses memory at an index that is read from a tensor."""
    if isinstance(node, LoweredLoop):
        inner = (n for s in node.segments for n in postorder(s.body.roots) if isinstance(n, (Compute, LoweredLoop)))
        return any(map(needs_check, inner))

    return node.template.memo("needs_check", lambda t: t.is_scatter or has_data_index(t))


def reads_only_own_element(node: Compute | LoweredLoop, pick: Callable[[Tensor], bool]) -> bool:
    """Return whether a node reads the arguments that `pick` accepts only in bodies without reductions, at the element
    that it computes."""
    slots = [s for s, a in enumerate(node.args) if pick(a)]
    return not slots or (not isinstance(node, LoweredLoop) and reads_own_element(node.template, slots))


def reads_own_element(t: Template, slots: Collection[int]) -> bool:
    """Return whether a template reads these slots only in bodies without reductions, at the element that it
    computes."""
    pieces = t.parts
    if t.is_scatter and len(pieces) == 2:
        start, added = pieces
        if start.domain != t.shape or any(e.slot in slots for body in added.bodies for e in reads(body)):
            return False
        pieces = (start,)
    elif t.is_scatter or any(isinstance(p.body, Reduce) for p in pieces):
        return False
    return all(t.params[s][1] == t.shape for s in slots) and all(
        _at_own(e, p)
        for p in pieces
        if isinstance(p, Piece)
        for e in postorder(p.bodies)
        if isinstance(e, Read) and e.slot in slots
    )


def _at_own(e: Read, p: Piece) -> bool:
    """Return whether a piece reads the element at the position that it computes."""
    for d, (i, o, s, n) in enumerate(zip(e.index, p.offset, p.step, p.extents, strict=True)):
        x = linear(i).without(Axis(d)) if n == 1 else linear(i)
        if x != LinearForm(o, {Axis(d): s} if n > 1 else {}):
            return False
    return True


def reads_in_place(node: Compute, members: Collection[Compute | LoweredLoop]) -> bool:
    """Return whether a node reads each of its arguments among the members at its own element, and none through a
    view."""
    if not reads_only_own_element(node, lambda a: maker(a) in members):
        return False
    return not any(is_view(a.template) for a in node.args if isinstance(a, Compute) and maker(a) in members)


def fits(nodes: Collection[Compute | LoweredLoop]) -> bool:
    """Return whether one kernel has enough pointers for the nodes' external arguments and all their results."""
    outside = {storage(a) for n in nodes for a in n.args if maker(a) not in nodes}
    return len(outside) + len(nodes) <= _MAX_BUFFERS


def fusion_groups(
    nodes: list[Compute | LoweredLoop],
    alone: set[Compute | LoweredLoop],
    early: set[Compute | LoweredLoop],
    gate: Compute | LoweredLoop | None,
    updates: Collection[Compute | LoweredLoop] = (),
    levels: Mapping[Compute | LoweredLoop, int] = MappingProxyType({}),
    cut: Collection[Node] = (),
) -> tuple[list[FusionGroup], dict[Compute | LoweredLoop, int]]:
    """Return (groups of nodes, some of them empty; index of each node's group).

    Args:
        nodes: all nodes, arguments before users.
        alone: nodes that are not fused with others.
        early: the runtime checks and the nodes that they are computed from.
        gate: the node that decides whether any result is stored, or None.
        updates: nodes that are stored into leaves.
        levels: the number of waits for another thread (`Leaf.after`) that precede a node; of those in one group it is
            equal.
        cut: nodes whose results no node of their own group reads.
    """
    unmerged = alone | early | ({gate} if gate is not None else set())
    groups = [FusionGroup() for _ in nodes]
    partition, number = Partition(), {node: n for n, node in enumerate(nodes)}
    of: dict[Compute | LoweredLoop, int] = {}
    users: dict[Compute | LoweredLoop, set[Compute | LoweredLoop]] = defaultdict(set)
    for node in nodes:
        for m in makers(node):
            users[m].add(node)
    for n, node in enumerate(nodes):
        partition.add(n, (number[m] for m in makers(node)))
        needs = {of[m] for m in makers(node)}
        alike = {g for g in needs if levels.get(groups[g].nodes[0], 0) == levels.get(node, 0)}
        best = n
        if isinstance(node, Compute) and node not in alone and _is_fusible(node):
            # Other readers of a group wait for all of it, so the group with the fewest readers is joined first.
            near = sorted(alike, key=lambda g: (groups[g].count_outside_readers(node), -g))
            near = [g for g in near if not (node in updates and _has_other_readers(groups[g], updates))]
            best = next(
                (g for g in near if _can_join(groups, g, node, alone, early, cut) and not partition.has_between(g, n)),
                best,
            )
        if best != n:
            partition.merge(best, n)
        joined = groups[best]
        joined.nodes.append(node)
        joined.readers |= users[node]
        of[node] = best
        if len(joined.nodes) > 1 and isinstance(node, Compute):
            for h in sorted(alike - {best}):
                _absorb(groups, partition, of, best, h, node, unmerged, cut)
    for g, before in partition.before.items():
        groups[g].before = before
    return groups, of


def _has_other_readers(group: FusionGroup, updates: Collection[Compute | LoweredLoop]) -> bool:
    """Return whether a sum has readers other than updates. Row-block fusion may join its kernel with those readers, but
    not a kernel that stores into a leaf."""
    root = group.nodes[0]
    if isinstance(root, LoweredLoop) or pointwise_body(root.template) is not None:
        return False
    return any(n not in updates and n not in group.nodes for n in group.readers)


def _is_fusible(node: Compute) -> bool:
    """Return whether a node is pointwise and a kernel has enough pointers for its arguments, even with those of a
    group."""
    return pointwise_body(node.template) is not None and len(node.args) <= _MAX_BUFFERS + MAX_STAGES


def _can_join(
    groups: list[FusionGroup],
    g: int,
    node: Compute,
    alone: set[Compute | LoweredLoop],
    early: set[Compute | LoweredLoop],
    cut: Collection[Node],
) -> bool:
    """Return whether a pointwise node may join group g, which it needs, if no group lies between them."""
    members = groups[g].nodes
    root = members[0]
    if isinstance(root, LoweredLoop) or root.shape != node.shape or len(members) >= MAX_STAGES:
        return False
    if root.template.is_scatter or any(n in alone for n in members):
        return False
    if root in early and (node not in early or needs_check(node)):
        return False
    if passes_on(members, [node], cut):
        return False
    return reads_in_place(node, set(members)) and fits({*members, node})


def _absorb(
    groups: list[FusionGroup],
    partition: Partition,
    of: dict[Compute | LoweredLoop, int],
    g: int,
    h: int,
    node: Compute,
    unmerged: set[Compute | LoweredLoop],
    cut: Collection[Node],
) -> None:
    """Merge group h into group g if all nodes of h are pointwise over the same box and neither group needs the other.
    `node`, the last of group g, reads results of h at its own element. A tensor that both groups read is then read
    once.

    before: {v},  {m},  p = f(v, m) in v's group
    after:  {v, m, p}
    """
    ours, theirs = groups[g], groups[h]
    members = set(theirs.nodes)
    if any(not isinstance(n, Compute) or n in unmerged or n.shape != node.shape for n in theirs.nodes):
        return
    if passes_on(members, ours.nodes, cut):
        return
    if any(n in unmerged for n in ours.nodes) or len(ours.nodes) + len(theirs.nodes) > MAX_STAGES:
        return
    if any(pointwise_body(n.template) is None for n in (*ours.nodes, *members) if isinstance(n, Compute)):
        return
    # Reads are at the own element, so that a parameter may be updated in the kernel that reads it.
    if not all(reads_only_own_element(n, lambda a: a.shape == node.shape) for n in members) or not reads_in_place(
        node, members
    ):
        return
    # Only the node that has just joined may make g need h.
    needs_earlier = any(of[m] == h for n in ours.nodes[:-1] for m in makers(n))
    if needs_earlier or partition.before[h] >> g & 1 or partition.has_between(h, g):
        return
    if not fits({*ours.nodes, *theirs.nodes}):
        return
    ours.nodes[-1:] = [*theirs.nodes, node]
    theirs.nodes = []
    ours.readers |= theirs.readers
    of |= dict.fromkeys(members, g)
    partition.merge(g, h)
