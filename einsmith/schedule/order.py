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
    made: Sequence[int],
    read: Sequence[Collection[Tensor]],
    sizes: Mapping[Tensor, int],
) -> list[int] | None:
    """Return a topological order of groups; None if there is a cycle.

    A group that frees at least as much as it produces runs as soon as it can, the one that frees most first. Otherwise
    the groups' own order holds.

    Args:
        after: the groups that each group needs.
        made: bytes that each group produces.
        read: tensors that each group reads.
        sizes: bytes that become free after the last read of a tensor.
    """
    n = len(made)
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
    growth = list(made)
    own: list[int] = []
    lean: list[tuple[int, int]] = []
    done = [False] * n

    def offered(g: int) -> None:
        if not missing[g] and growth[g] <= 0:
            heapq.heappush(lean, (growth[g], g))

    def ready(g: int) -> None:
        heapq.heappush(own, g)
        offered(g)

    def seen(t: Tensor) -> None:
        """Credit the last remaining reader of a tensor with its bytes."""
        if t in readers and len(readers[t]) == 1:
            (g,) = readers[t]
            growth[g] -= sizes[t]
            offered(g)

    for t in readers:
        seen(t)
    for g in range(n):
        if not missing[g]:
            ready(g)
    out: list[int] = []
    while own:
        g = heapq.heappop(lean)[1] if lean else heapq.heappop(own)
        if done[g]:
            continue
        done[g] = True
        out.append(g)
        for t in read[g]:
            if t in readers:
                readers[t].discard(g)
                seen(t)
        for u in users[g]:
            missing[u] -= 1
            if not missing[u]:
                ready(u)
    return out if len(out) == n else None


def in_circles(n: int, after: Mapping[int, Collection[int]]) -> set[int]:
    """Return the groups on cycles or between cycles: those left after groups without remaining dependences and groups
    without remaining users are removed repeatedly."""
    left = set(range(n))
    needs = {g: set(after.get(g, ())) for g in left}
    users: dict[int, set[int]] = {g: set() for g in left}
    for g, hs in needs.items():
        for h in hs:
            users[h].add(g)
    for edges, back in ((needs, users), (users, needs)):
        todo = [g for g in left if not edges[g]]
        while todo:
            g = todo.pop()
            left.discard(g)
            for u in back[g]:
                edges[u].discard(g)
                if not edges[u] and u in left:
                    todo.append(u)
    return left
