"""Compute the minimum cut of a directed graph (Dinic 1970, "Algorithm for solution of a problem of maximum flow")."""

from __future__ import annotations

from collections import deque

UNBOUNDED = 1 << 200
"""Capacity of an edge that no cut may contain."""


class Network:
    """Edges with integer capacities, so that nothing rounds. SOURCE and SINK are nodes 0 and 1."""

    SOURCE, SINK = 0, 1

    def __init__(self) -> None:
        self._heads: list[int] = []  # head of edge e; e ^ 1 is the reverse edge
        self._residual: list[int] = []  # residual capacity of an edge
        self._edges: list[list[int]] = [[], []]  # edges that leave a node

    def node(self) -> int:
        """Return a new node."""
        self._edges.append([])
        return len(self._edges) - 1

    def edge(self, a: int, b: int, capacity: int) -> None:
        """Add an edge from a to b: its capacity is paid if a is on the source's side of the cut and b is not."""
        if capacity > 0:
            for tail, head, n in ((a, b, capacity), (b, a, 0)):
                self._edges[tail].append(len(self._heads))
                self._heads.append(head)
                self._residual.append(n)

    def cut(self) -> tuple[int, set[int]]:
        """Return (the capacity of the minimum cut, the fewest nodes that the source's side of one can have)."""
        total = 0
        while True:
            level = self._levels()
            if self.SINK not in level:
                return total, set(level)
            at = [0] * len(self._edges)
            while path := self._path(level, at):
                most = min(self._residual[e] for e in path)
                for e in path:
                    self._residual[e] -= most
                    self._residual[e ^ 1] += most
                total += most

    def _levels(self) -> dict[int, int]:
        """Return the distance (edges) from the source of every node that it still reaches."""
        level = {self.SOURCE: 0}
        todo = deque([self.SOURCE])
        while todo:
            a = todo.popleft()
            for e in self._edges[a]:
                b = self._heads[e]
                if self._residual[e] and b not in level:
                    level[b] = level[a] + 1
                    todo.append(b)
        return level

    def _path(self, level: dict[int, int], at: list[int]) -> list[int]:
        """Return edges to the sink that lead from level to level and have capacity left; an empty list if there are
        none. `at`: the next edge to try of each node."""
        path: list[int] = []
        a = self.SOURCE
        while a != self.SINK:
            edges = self._edges[a]
            while at[a] < len(edges):
                e = edges[at[a]]
                if self._residual[e] and level.get(self._heads[e]) == level[a] + 1:
                    break
                at[a] += 1
            if at[a] < len(edges):
                path.append(edges[at[a]])
                a = self._heads[path[-1]]
            elif not path:
                return []
            else:  # dead end
                a = self._heads[path.pop() ^ 1]
                at[a] += 1
        return path
