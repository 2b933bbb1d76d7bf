"""Partition the nodes of a directed acyclic graph into groups, which merge while no third one lies between two."""

from __future__ import annotations

from collections.abc import Iterable

from einsmith.schedule.order import memory_greedy_order


class Partition:
    """Groups of numbered nodes, each group identified by the number of one of its nodes.

    Attributes:
        members: the nodes of each group.
        of: the group of each node.
        before: bitset of the groups that a group needs, directly or not; of a merged one, the bits of all its former
            numbers.
        needs: the nodes of other groups that a group needs directly.
        users: the nodes of other groups that need a group directly.
    """

    def __init__(self) -> None:
        self.members: dict[int, list[int]] = {}
        self.of: dict[int, int] = {}
        self.before: dict[int, int] = {}
        self.needs: dict[int, set[int]] = {}
        self.users: dict[int, set[int]] = {}

    def add(self, n: int, needs: Iterable[int]) -> None:
        """Add a group of one node, which needs only earlier ones."""
        self.members[n], self.of[n], self.before[n] = [n], n, 0
        self.needs[n], self.users[n] = set(needs), set()
        for h in {self.of[h] for h in self.needs[n]}:
            self.before[n] |= self.before[h] | 1 << h
            self.users[h].add(n)

    def has_between(self, a: int, b: int) -> bool:
        """Return whether a third group has to run after group a and before group b."""
        if not self.before[b] >> a & 1:
            return False
        return any(self.before[c] >> a & 1 for c in {self.of[h] for h in self.needs[b]} - {a})

    def merge(self, a: int, b: int) -> None:
        """Merge group b into group a."""
        self.members[a] = sorted(self.members[a] + self.members.pop(b))
        for n in self.members[a]:
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

    def order(self) -> list[list[int]]:
        """Return the groups in a valid order, each at the earliest position that its number permits."""
        groups = sorted(self.members)
        number = {c: n for n, c in enumerate(groups)}
        after = {number[c]: {number[self.of[h]] for h in self.needs[c]} for c in groups}
        order = memory_greedy_order(after, [1] * len(groups), [()] * len(groups), {})
        assert order is not None
        return [self.members[groups[n]] for n in order]
