"""Represent a schedule: groups of nodes that become kernels, and the group or groups that compute each node.

Nodes are interned: a tensor that several groups compute is one node, and its copies are distinguished by their numbers.
Other groups read copy 0 from memory; any other copy serves its own group alone and is never stored.

before: {a}  {b, c(b, a)}  {d, e(d, a)}
after:  {b, a', c(b, a')}  {d, a'', e(d, a'')}      by recompute(a, 1), recompute(a, 2)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from einsmith.base.errors import ArgumentError
from einsmith.ir.analysis.pointwise import pointwise_body
from einsmith.ir.loop import LoweredLoop
from einsmith.ir.nodes import Compute, Tensor
from einsmith.schedule.fusion import MAX_STAGES, FusionGroup, fits, maker, makers, needs_check, reads_in_place


class Copy(NamedTuple):
    """One of possibly several computations of a node."""

    node: Compute | LoweredLoop
    number: int = 0


class GroupSchedule:
    """The groups of a schedule. groups: the copies that each computes, in order; home: the group of every node's copy
    0. Groups may be empty."""

    def __init__(self, groups: Sequence[FusionGroup], home: dict[Compute | LoweredLoop, int]):
        self.groups = [[Copy(n) for n in g.nodes] for g in groups]
        self.home = dict(home)
        self._copies = dict.fromkeys(home, 1)

    def nodes(self, g: int) -> list[Compute | LoweredLoop]:
        """Return the nodes that a group computes, in order."""
        return [c.node for c in self.groups[g]]

    def operands(self, g: int) -> set[Tensor]:
        """Return the tensors that a group reads from memory: inputs of the graph, and results that other groups
        store."""
        own = set(self.nodes(g))
        return {a for n in own for a in n.args if maker(a) not in own}

    def recompute(self, node: Compute, g: int) -> Copy:
        """Compute a pointwise node once more, in group g, which reads it.

        The group has no new dependences, as it depended on the node's home already. Raises ArgumentError with the
        reason if the group's kernel cannot compute the node: the kernel would read or compute more than a kernel may,
        or reads the node at other elements than its own.
        """
        own = self.nodes(g)
        readers = [i for i, n in enumerate(own) if node in makers(n)]
        reason = self._refusal(node, g, own, readers)
        if reason:
            raise ArgumentError(f"a tensor of shape {node.shape} cannot be recomputed in group {g}: {reason}")
        copy = Copy(node, self._copies[node])
        self._copies[node] += 1
        self.groups[g].insert(readers[0], copy)
        return copy

    def _refusal(self, node: Compute, g: int, own: Sequence[Compute | LoweredLoop], readers: Sequence[int]) -> str:
        if not isinstance(node, Compute) or pointwise_body(node.template) is None:
            return "it is not pointwise"
        if node in own or not readers:
            return "the group computes it already" if node in own else "the group does not read it"
        if needs_check(node):
            return "it reads at indices that are checked at run time"
        if any(isinstance(n, LoweredLoop) or n.template.is_scatter or n.shape != node.shape for n in own):
            return "the group computes tensors of another shape, or is a loop or a scatter"
        if len(own) >= MAX_STAGES or not fits({*own, node}):
            return "the kernel would have too many stages or buffers"
        if not all(reads_in_place(own[i], {node}) for i in readers):  # type: ignore[arg-type]
            return "the group reads it at other elements than those it computes"
        inside = set(own[: readers[0]])
        operands = set(makers(node))
        if operands & set(own) - inside or operands & inside and not reads_in_place(node, inside):
            return "the group computes an operand of it too late, or reads that operand at other elements"
        return ""

    def drop_unread(self, kept: Collection[Tensor]) -> None:
        """Remove each copy 0 that is not in `kept` and that no group reads, because every reader has its own copy."""
        if all(n == 1 for n in self._copies.values()):
            return
        kept_makers = {maker(t) for t in kept}
        while True:
            read = {m for g in range(len(self.groups)) for m in map(maker, self.operands(g))}
            for g, copies in enumerate(self.groups):
                inside = {m for n in self.nodes(g) for m in makers(n)}
                dead = [c for c in copies if not c.number and c.node not in (read | kept_makers | inside)]
                if dead:
                    self.groups[g] = [c for c in copies if c not in dead]
                    break
            else:
                return


Refine = Callable[[GroupSchedule], None]
"""A function that may change a schedule before it is lowered to kernels."""


def keep_all(schedule: GroupSchedule) -> None:
    """Change nothing: every node is computed once."""
