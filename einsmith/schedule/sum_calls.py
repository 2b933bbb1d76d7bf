"""Join kernels that sum a kernel's results with it, where that takes less time (`schedule.summed`).

before: {conv};  {mean, variance, normalise}, joined by rows
after:  {conv, mean, variance};  {normalise}

before: {dx};  ...;  {b - rate*sum[n](dx[n,k])}, stored over b
after:  {dx, b - rate*sum[n](dx[n,k])};  ...
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from typing import NamedTuple

from einsmith.cost.facts import Target
from einsmith.ir.interned import Node
from einsmith.ir.nodes import Reduce, Tensor
from einsmith.ir.views import storage
from einsmith.schedule.fusion import maker
from einsmith.schedule.kernel import Rows
from einsmith.schedule.plan import Cost, KernelCall, LoopCall
from einsmith.schedule.residency import calls_seconds
from einsmith.schedule.row_clusters import passed_on
from einsmith.schedule.row_fusion import join_in_turn
from einsmith.schedule.summed import summed_form

CALLS_BEFORE = 4
"""Calls before a kernel whose tensors fill the caches when it begins; most networks' layers have three or four."""
Cluster = tuple[int, ...]
"""Numbers of kernels that one call computes, in order."""


class Unfused(NamedTuple):
    """Kernels that row fusion leaves as they are.

    fixed: kernels that stay where they are. writers: other ones, which write into leaves. gates: kernels of what the
    program checks before it writes into leaves; it does so between two calls.
    """

    fixed: Set[int]
    writers: Set[int]
    gates: Set[int]

    @property
    def all(self) -> Set[int]:
        """The kernels that are not fused by rows."""
        return self.fixed | self.writers


class SumJoiner:
    """Moves sums to the kernels whose results they are of.

    Args:
        clusters: the clusters of kernels in order.
        singles: the call of each kernel.
        call_of: returns the call of a cluster.
        can_join: whether kernels can be a cluster.
        needs: for each kernel, those that come before it.
        unfused: kernels that row fusion leaves as they are.
        kept: tensors that are needed after the program.
        target: the machine.
        cost: predicts kernels.
        cut: nodes whose results pass through memory, whatever `cost` predicts.

    Attributes:
        place: the number of each kernel's cluster.
        readers: the kernels that read each tensor.
        calls: the calls of the clusters.
        last: the number of the last call that each tensor is in.
    """

    def __init__(
        self,
        clusters: Sequence[Cluster],
        singles: Sequence[KernelCall | LoopCall],
        call_of: Callable[[Cluster], KernelCall | LoopCall],
        can_join: Callable[[Cluster], bool],
        needs: Mapping[int, Collection[int]],
        unfused: Unfused,
        kept: Collection[Tensor],
        target: Target,
        cost: Cost,
        cut: Collection[Node],
    ):
        self.clusters, self.singles, self.call_of, self.can_join = list(clusters), singles, call_of, can_join
        self.needs, self.unfused, self.kept, self.target, self.cost = needs, unfused, kept, target, cost
        self.cut = cut
        self.place = {n: c for c, members in enumerate(clusters) for n in members}
        self.readers: dict[Tensor, set[int]] = defaultdict(set)
        for n, call in enumerate(singles):
            for s in call.operands:
                self.readers[s].add(n)
        self.calls: list[KernelCall | LoopCall | None] = [*map(call_of, clusters)]
        self.last = {storage(t): c for c, x in enumerate(self.calls) if x is not None for t in x.tensors}
        self.last |= dict.fromkeys(kept, len(clusters))

    def run(self) -> tuple[list[Cluster], dict[Cluster, KernelCall]]:
        """Return (the clusters, between which sums have moved, the calls of the kernels that take sums)."""
        joined: dict[Cluster, KernelCall] = {}
        unfused = self.unfused.all
        for c, members in enumerate(self.clusters):
            if len(members) != 1 or members[0] in unfused or not self._is_kernel(members[0]):
                continue
            group = self._sums_of(members[0])
            if len(group) > 1:
                whole = self._join(group)
                others = {self.place[n] for n in group[1:]}
                rest = {x: tuple(n for n in self.clusters[x] if n not in group) for x in others}
                if all(map(self.can_join, filter(None, rest.values()))) and self._find_loss(c, whole, rest) < 0:
                    for x, left in rest.items():
                        self.clusters[x] = left
                        self.calls[x] = self.call_of(left) if left else None
                    self.clusters[c], self.calls[c] = tuple(group), whole
                    self.place |= dict.fromkeys(group, c)
                    joined[self.clusters[c]] = whole
        return [members for members in self.clusters if members], joined

    def _is_kernel(self, n: int) -> bool:
        call = self.singles[n]
        return isinstance(call, KernelCall) and not isinstance(call.kernel, Rows)

    def _sums_of(self, main: int) -> list[int]:
        """Return a kernel and those that sum its results and need no kernel between them."""
        call, first = self.singles[main], self.place[main]
        group = [main]
        for n in sorted(set[int]().union(*(self.readers[t] for t in call.results))):
            if n in self.unfused.fixed or self.place[n] == first or not self._is_kernel(n):
                continue
            reading = self.singles[n]
            assert isinstance(reading, KernelCall)
            if not isinstance(reading.kernel.root.parts[0].body, Reduce) or self._is_chain(n):
                continue
            if any(self.place[m] >= first and m not in group for m in self.needs[n]):
                continue
            if self.cut and any(maker(t) in self.cut for t in passed_on(self.singles[m] for m in (*group, n))):
                continue
            if n in self.unfused.writers and not self.unfused.gates.isdisjoint(group):
                continue
            kernel = self._join([*group, n]).kernel
            if isinstance(kernel, Rows) and summed_form(kernel) is not None:
                group.append(n)
        return group

    def _is_chain(self, n: int) -> bool:
        """Return whether a kernel belongs to a chain of products, which use up each other's results."""
        call = self.calls[self.place[n]]
        return isinstance(call, KernelCall) and isinstance(call.kernel, Rows) and call.kernel.reuses

    def _join(self, group: Sequence[int]) -> KernelCall:
        """Return the call of a `Rows` of one row; results that are read only within the group stay local to it."""
        calls = [c for c in (self.singles[n] for n in group) if isinstance(c, KernelCall)]
        results = {t for c in calls for t in c.results}
        outside = {t for t in results if t in self.kept or not self.readers[t] <= set(group)}
        return join_in_turn(calls, outside, takes_sums=True)

    def _find_loss(self, c: int, whole: KernelCall, rest: Mapping[int, Cluster]) -> float:
        """Return the predicted seconds lost (gained, if negative) by moving sums into the kernel of cluster c.

        Args:
            c: the number of the cluster that would compute the sums
            whole: its call with the sums
            rest: number of each cluster that computes them now -> what remains of it

        The calls just before and between these clusters are priced along, as they determine what the caches hold.
        """
        first, end = max(0, c - CALLS_BEFORE), max(c, *rest) + 1
        before = self.calls[first:end]
        after = list(before)
        after[c - first] = whole
        for x, left in rest.items():
            after[x - first] = self.call_of(left) if left else None
        tensors = {storage(t) for call in before if call is not None for t in call.tensors}
        later = {t for t in tensors if self.last.get(t, 0) >= end}
        seconds = [
            calls_seconds([call for call in calls if call is not None], self.cost, self.target, later)
            for calls in (after, before)
        ]
        return seconds[0] - seconds[1]
