"""Cluster kernels for row fusion (`row_fusion`): kernels that share a tensor and their rows, one after the other.

A cluster absorbs the latest other cluster that it may be joined with, until there is none, if no kernel that must run
between them is outside. A cluster that does not pay is split again, the last union first.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from einsmith.cost.facts import Target
from einsmith.ir.nodes import Tensor
from einsmith.ir.views import storage
from einsmith.schedule.row_fusion import MEMBERS, RowPart, common_rows, rows_of, streams

_NEAR = 32
"""Most recent clusters sharing a tensor with a kernel that are considered: a tensor of more readers has left all caches
when the last of them runs."""


def clusters(
    parts: Sequence[RowPart],
    after: Mapping[int, Collection[int]],
    apart: Collection[int],
    target: Target,
    pays: Callable[[Sequence[int]], bool],
) -> list[list[int]]:
    """Return the kernels that become one, as lists of numbers in a valid order.

    Args:
        parts: the kernels, in a valid order.
        after: the kernels that each needs.
        apart: kernels that are not fused.
        target: the machine.
        pays: whether a list of kernels takes less time fused.
    """
    made = _Clusters(parts, after)
    holders: dict[Tensor, list[int]] = {}  # the latest kernels so far with a buffer in a tensor's memory
    for g, part in enumerate(parts):
        made.add(g)
        for s in {storage(t) for t in part.tensors}:
            holders[s] = [*holders.get(s, ())[1 - _NEAR :], g]
        c = None if g in apart or not streams(part) or not rows_of(part) else g
        while c is not None:
            last, c = c, None
            near = {made.of[n] for m in made.found[last] for t in parts[m].tensors for n in holders[storage(t)]}
            for other in sorted(near - {last}, reverse=True)[:_NEAR]:
                if other not in apart and made.may_join(other, last, target):
                    c = min(other, last)
                    made.unite(c, max(other, last))
                    break
    return [found for c in made.order() for found in made.paying(c, pays)]


class _Clusters:
    """Kernels as clusters, each known by its first kernel."""

    def __init__(self, parts: Sequence[RowPart], after: Mapping[int, Collection[int]]):
        self.parts = parts
        self.found: dict[int, list[int]] = {}  # a cluster's first kernel -> all of its kernels
        self.before: dict[int, int] = {}  # bitset of the clusters that it needs, united ones by all names
        self.needs: dict[int, set[int]] = {}  # the kernels of others that it needs directly
        self.users: dict[int, set[int]] = {}  # the kernels that need it directly
        self.of: dict[int, int] = {}
        self.halves: dict[tuple[int, ...], tuple[list[int], list[int]]] = {}  # the two parts of a united cluster
        self.after = after

    def add(self, g: int) -> None:
        """Add a cluster of one kernel, which needs only earlier ones."""
        self.found[g], self.of[g], self.before[g] = [g], g, 0
        self.needs[g], self.users[g] = set(self.after.get(g, ())), set()
        for h in {self.of[h] for h in self.needs[g]}:
            self.before[g] |= self.before[h] | 1 << h
            self.users[h].add(g)

    def may_join(self, a: int, b: int, target: Target) -> bool:
        """Return whether two clusters that share a tensor may become one and that pays; no other cluster may lie
        between them."""
        if len(self.found[a]) + len(self.found[b]) > MEMBERS or self._between(a, b) or self._between(b, a):
            return False
        everything = [self.parts[n] for n in sorted(self.found[a] + self.found[b])]
        return all(map(streams, everything)) and common_rows(everything, target)[0] > 0

    def _between(self, a: int, b: int) -> bool:
        """Return whether a cluster that needs a is needed by b."""
        if not self.before[b] >> a & 1:
            return False
        return any(self.before[c] >> a & 1 for c in {self.of[h] for h in self.needs[b]} - {a})

    def unite(self, a: int, b: int) -> None:
        """Merge cluster b into cluster a."""
        halves = self.found[a], self.found.pop(b)
        self.found[a] = sorted(halves[0] + halves[1])
        self.halves[tuple(self.found[a])] = halves
        for n in self.found[a]:
            self.of[n] = a
        self.before[a] |= self.before.pop(b)
        self.before[a] &= ~(1 << a)
        for edges in (self.needs, self.users):
            edges[a] = {h for h in edges[a] | edges.pop(b) if self.of[h] != a}
        todo = [a]
        while todo:
            h = todo.pop()
            for c in {self.of[g] for g in self.users[h]}:
                before = self.before[c] | self.before[h] | 1 << h
                if before != self.before[c]:
                    self.before[c] = before
                    todo.append(c)

    def paying(self, members: list[int], pays: Callable[[Sequence[int]], bool]) -> Iterator[list[int]]:
        """Yield the cluster, or the halves that it was united from if it does not pay, in a valid order. At most one
        half needed the other when they were united."""
        if len(members) == 1 or pays(members):
            yield members
            return
        first, second = self.halves[tuple(members)]
        if any(h in second for n in first for h in self.after.get(n, ())):
            first, second = second, first
        yield from self.paying(first, pays)
        yield from self.paying(second, pays)

    def order(self) -> list[list[int]]:
        """Return the clusters in a valid order, each at the earliest position that its first kernel permits."""
        missing = {c: {self.of[h] for h in self.needs[c]} for c in self.found}
        waiting: dict[int, list[int]] = {}
        for c, needs in missing.items():
            for h in needs:
                waiting.setdefault(h, []).append(c)
        ready = [c for c, needs in missing.items() if not needs]
        heapq.heapify(ready)
        out: list[list[int]] = []
        while ready:
            c = heapq.heappop(ready)
            out.append(self.found[c])
            for user in waiting.get(c, ()):
                missing[user].discard(c)
                if not missing[user]:
                    heapq.heappush(ready, user)
        return out
