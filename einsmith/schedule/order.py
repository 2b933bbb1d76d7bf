"""Order kernels so that each tensor is read for the last time as early as possible (memory-greedy list scheduling).

The updates of a training graph are written in the order of the parameters, the first layer's first, whose gradient
needs every cotangent. In that order all cotangents would wait for the gradients of the other parameters.

before: g3 = dX(g4); g2 = dX(g3); g1 = dX(g2); update(W1, g1); update(W2, g2); update(W3, g3)
after:  g3 = dX(g4); update(W3, g3); g2 = dX(g3); update(W2, g2); g1 = dX(g2); update(W1, g1)
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from einsmith.ir.nodes import Tensor


def memory_greedy_order(
    after: Mapping[int, Collection[int]],
    produced: Sequence[int],
    read: Sequence[Collection[Tensor]],
    sizes: Mapping[Tensor, int],
) -> list[int] | None:
    """Return a topological order of groups; None if there is a cycle.

    A group that frees at least as much as it produces runs as soon as it can, the one that frees most first. Otherwise
    the groups' own order holds.

    Args:
        after: the groups that each group needs.
        produced: bytes that each group produces.
        read: tensors that each group reads.
        sizes: bytes that become free after the last read of a tensor.
    """
    n = len(produced)
    users: dict[int, list[int]] = defaultdict(list)
    missing = [len(after.get(g, ())) for g in range(n)]
    for g, needs in after.items():
        for h in needs:
            users[h].append(g)
    readers: dict[Tensor, set[int]] = defaultdict(set)
    for g, tensors in enumerate(read):
        for t in tensors:
            if t in sizes:
                readers[t].add(g)
    growth = list(produced)  # bytes that a group produces, less those that it frees
    in_order: list[int] = []  # heap of the groups that may run
    shrinking: list[tuple[int, int]] = []  # heap of (growth, group) of those that free at least as much as they produce
    done = [False] * n

    def offer(g: int) -> None:
        """Let a group that may run jump the queue if it frees at least as much as it produces."""
        if not missing[g] and growth[g] <= 0:
            heapq.heappush(shrinking, (growth[g], g))

    def enqueue(g: int) -> None:
        """Add a group that may run."""
        heapq.heappush(in_order, g)
        offer(g)

    def credit(t: Tensor) -> None:
        """Credit the last remaining reader of a tensor with its bytes."""
        if t in readers and len(readers[t]) == 1:
            (g,) = readers[t]
            growth[g] -= sizes[t]
            offer(g)

    for t in readers:
        credit(t)
    for g in range(n):
        if not missing[g]:
            enqueue(g)
    out: list[int] = []
    while in_order:
        g = heapq.heappop(shrinking)[1] if shrinking else heapq.heappop(in_order)
        if done[g]:
            continue
        done[g] = True
        out.append(g)
        for t in read[g]:
            if t in readers:
                readers[t].discard(g)
                credit(t)
        for u in users[g]:
            missing[u] -= 1
            if not missing[u]:
                enqueue(u)
    return out if len(out) == n else None


def find_cycles(n: int, after: Mapping[int, Collection[int]]) -> set[int]:
    """Return the groups on cycles or between cycles: those that remain after groups without dependences and groups
    without users are removed repeatedly."""
    remaining = set(range(n))
    needs = {g: set(after.get(g, ())) for g in remaining}
    users: dict[int, set[int]] = {g: set() for g in remaining}
    for g, hs in needs.items():
        for h in hs:
            users[h].add(g)
    for edges, back in ((needs, users), (users, needs)):
        todo = [g for g in remaining if not edges[g]]
        while todo:
            g = todo.pop()
            remaining.discard(g)
            for u in back[g]:
                edges[u].discard(g)
                if not edges[u] and u in remaining:
                    todo.append(u)
    return remaining
