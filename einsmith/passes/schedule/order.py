"""In which order kernels run: each tensor is read for the last time as soon as can be.

What a training graph computes last is written in the order of its parameters, the first layer's first, whose gradient
needs every cotangent; in that order all cotangents would wait for the other parameters' gradients.

before: g3 = dX(g4); g2 = dX(g3); g1 = dX(g2); update(W1, g1); update(W2, g2); update(W3, g3)
after:  g3 = dX(g4); update(W3, g3); g2 = dX(g3); update(W2, g2); g1 = dX(g2); update(W1, g1)
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from einsmith.expr.nodes import Tensor


def lean_order(
    after: Mapping[int, Collection[int]],
    made: Sequence[int],
    read: Sequence[Collection[Tensor]],
    sizes: Mapping[Tensor, int],
) -> list[int] | None:
    """A topological order of groups; None where there is a cycle. Group g needs those in `after[g]`, makes `made[g]`
    bytes and reads the tensors of `read[g]`; `sizes`: the bytes that are free when nobody reads a tensor any more.

    A group that frees as much as it makes runs as soon as it can, the one that frees most first. Otherwise the groups'
    own order holds.
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
        """Who is the only one left that reads a tensor frees it."""
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
    """The groups that need themselves, through others: what is left when those that need nothing that is left, and
    those that nothing left needs, are taken away."""
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
