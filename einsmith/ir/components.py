"""Find strongly connected components, in an order of evaluation."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

T = TypeVar("T", bound=Hashable)


def components(roots: Iterable[T], below: Callable[[T], Sequence[T]]) -> list[list[T]]:
    """Return the strongly connected components reachable from the roots, each after those that it reaches.

    The nodes of a component are in the order in which they were met. (Tarjan 1972, without recursion.)
    """
    number: dict[T, int] = {}
    low: dict[T, int] = {}
    open_: list[T] = []
    is_open: set[T] = set()
    out: list[list[T]] = []
    for root in roots:
        if root in number:
            continue
        stack: list[tuple[T, int]] = [(root, 0)]
        while stack:
            node, k = stack.pop()
            if k == 0:
                number[node] = low[node] = len(number)
                open_.append(node)
                is_open.add(node)
            children = below(node)
            if k > 0:
                low[node] = min(low[node], low[children[k - 1]])
            while k < len(children):
                child = children[k]
                k += 1
                if child not in number:
                    stack += [(node, k), (child, 0)]
                    break
                if child in is_open:
                    low[node] = min(low[node], number[child])
            else:
                if low[node] == number[node]:
                    at = len(open_) - 1
                    while open_[at] != node:
                        at -= 1
                    out.append(open_[at:])
                    is_open.difference_update(open_[at:])
                    del open_[at:]
    return out
