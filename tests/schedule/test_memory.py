"""The arena's places are the lowest that are free, as a plain search finds them; kernels run in an order that needs few
of them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from einsmith.schedule.arena import _Occupancy
from einsmith.schedule.order import find_cycles, memory_greedy_order


def _searched(items: list[tuple[int, int, int]]) -> list[int]:
    """The offsets of (bytes, first, last), one after the other, by looking at all that is there."""
    placed: list[tuple[int, int, int, int]] = []
    for n, first, last in items:
        at = 0
        for start, stop, a, b in sorted(placed):
            if b < first or last < a:
                continue
            if start - at >= n:
                break
            at = max(at, stop)
        placed.append((at, at + n, first, last))
    return [p[0] for p in placed]


@pytest.mark.parametrize("seed", range(60))
def test_places_are_the_lowest_that_are_free(seed: int):
    rng = np.random.default_rng(seed)
    times = int(rng.integers(1, 41))
    items = []
    for _ in range(int(rng.integers(1, 61))):
        first, last = sorted(rng.integers(0, times, 2).tolist())
        if rng.integers(2):
            last = min(times - 1, first + int(rng.integers(0, 3)))
        items.append((64 * int(rng.integers(0, 7 if seed % 2 else 3)), first, last))
    if seed % 3:
        items.sort(key=lambda item: -item[0])
    placed = _Occupancy(times)
    assert [placed.place(*item) for item in items] == _searched(items)


def _trained(layers: int) -> tuple[dict[int, set[int]], list[int], list[set[str]], dict[str, int]]:
    """The groups of a chain of layers and their gradients, numbered as the updates of the first layer ask for them:
    activations x0, x1 ..., cotangents g, of 8 bytes each; an update makes nothing that stays."""
    groups: list[tuple[str, set[str]]] = []
    groups += [(f"x{n + 1}", {f"x{n}"} if n else set()) for n in range(layers)]
    groups += [(f"g{n}", {f"g{n + 1}", f"x{n + 1}"} if n < layers else {f"x{n}"}) for n in range(layers, 0, -1)]
    groups += [(f"w{n}", {f"g{n}", f"x{n - 1}"} if n > 1 else {f"g{n}"}) for n in range(1, layers + 1)]
    place = {name: i for i, (name, _) in enumerate(groups)}
    after = {i: {place[r] for r in reads} for i, (_, reads) in enumerate(groups)}
    sizes = {name: 8 for name, _ in groups if name[0] != "w"}
    return after, [sizes.get(name, 0) for name, _ in groups], [reads for _, reads in groups], sizes


def _peak(order: list[int], made: list[int], read: list[set[str]], sizes: dict[str, int]) -> int:
    """The most bytes that are live at once."""
    ends = {t: max(i for i, g in enumerate(order) if t in read[g]) for t in sizes if any(t in r for r in read)}
    live = most = 0
    for i, g in enumerate(order):
        live += made[g]
        most = max(most, live)
        live -= sum(sizes[t] for t in read[g] if ends.get(t) == i)
    return most


def test_each_gradient_is_used_before_the_next_is_made():
    layers = 9
    after, made, read, sizes = _trained(layers)
    order = memory_greedy_order(after, made, read, sizes)
    assert order is not None and sorted(order) == list(range(len(made)))
    assert all(order.index(h) < order.index(g) for g in after for h in after[g])
    # All activations, and two cotangents where one is made of the other.
    assert _peak(order, made, read, sizes) <= 8 * (layers + 2) < _peak(list(range(len(made))), made, read, sizes)


def _drawn(rng: np.random.Generator, n: int):
    """Groups that need earlier ones, of random sizes, one tensor each."""
    read = [{str(h) for h in range(g) if rng.random() < 0.4} for g in range(n)]
    made = [8 * int(rng.integers(0, 5)) for _ in range(n)]
    users = set().union(*read)
    sizes = {str(g): made[g] for g in range(n) if str(g) in users}
    return {g: {int(t) for t in read[g]} for g in range(n)}, [sizes.get(str(g), 0) for g in range(n)], read, sizes


def test_orders_are_near_the_best_of_all():
    over = []
    for seed in range(120):
        after, made, read, sizes = _drawn(np.random.default_rng(seed), 6)
        order = memory_greedy_order(after, made, read, sizes)
        assert order is not None and all(order.index(h) < order.index(g) for g in after for h in after[g])
        best = min(
            _peak(list(p), made, read, sizes) for p in itertools.permutations(range(6))
            if all(p.index(h) < p.index(g) for g in after for h in after[g])
        )  # fmt: skip
        over.append(_peak(order, made, read, sizes) / best if best else 1.0)
    assert np.median(over) == 1.0 and np.quantile(over, 0.9) <= 1.3, (np.median(over), np.quantile(over, 0.9))


def test_cycles_are_found():
    assert memory_greedy_order({0: {1}, 1: {0}, 2: set()}, [0, 0, 0], [set()] * 3, {}) is None
    assert find_cycles(4, {0: {1}, 1: {0}, 2: {1}}) == {0, 1}
