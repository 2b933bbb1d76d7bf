"""The minimum cut that says what is held for the backward pass, against all choices."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from einsmith.schedule.minimum_cut import Network
from einsmith.schedule.recomputation import Option, kept_tensors, saved_set


def best_cut(edges: list[tuple[int, int, int]], nodes: int) -> int:
    """Of all ways to put nodes on the source's side."""
    found = []
    for bits in range(1 << (nodes - 2)):
        side = {0} | {n for n in range(2, nodes) if bits >> (n - 2) & 1}
        found.append(sum(c for a, b, c in edges if a in side and b not in side))
    return min(found)


@pytest.mark.parametrize("chunk", range(4))
def test_cuts_against_all_partitions(chunk):
    rng = random.Random(f"cut {chunk}")
    for _ in range(60):
        nodes = rng.randint(2, 8)
        edges = [(rng.randrange(nodes), rng.randrange(nodes), rng.randint(0, 9)) for _ in range(rng.randint(0, 20))]
        network = Network()
        for _ in range(nodes - 2):
            network.node()
        for e in edges:
            network.edge(*e)
        total, side = network.cut()
        assert network.SOURCE in side and network.SINK not in side
        assert total == best_cut(edges, nodes)
        assert total == sum(c for a, b, c in edges if a in side and b not in side)


def random_options(rng: random.Random) -> list[Option]:
    """Of a graph in which each tensor is made of earlier ones; costs that often tie."""
    out = []
    for i in range(rng.randint(1, 7)):
        sources = tuple(sorted(rng.sample(range(i), rng.randint(0, min(i, 3)))))
        again = math.inf if rng.random() < 0.25 else rng.randint(-2, 5)
        unstored = math.inf if rng.random() < 0.3 else rng.randint(-6, 5)
        out.append(Option(sources, rng.random() < 0.6, rng.randint(0, 8), again, unstored))
    return out


def cost(options: list[Option], again: set[int], unstored: set[int]) -> float:
    """Return the seconds of a choice; inf if a tensor is not stored that is not recomputed."""
    if not unstored <= again:
        return math.inf
    seconds = sum(options[i].recompute_seconds for i in again) + sum(options[i].unstore_seconds for i in unstored)
    return seconds + sum(options[i].keep_seconds for i in kept_tensors(options, again))


def all_choices(options: list[Option]):
    for kinds in itertools.product(range(3), repeat=len(options)):
        yield {i for i, k in enumerate(kinds) if k}, {i for i, k in enumerate(kinds) if k == 2}


@pytest.mark.thinned(4)
@pytest.mark.parametrize("chunk", range(8))
def test_the_saved_set_against_all_choices(chunk):
    rng = random.Random(f"saved {chunk}")
    for _ in range(50):
        options = random_options(rng)
        again, unstored = saved_set(options)
        found = cost(options, again, unstored)
        assert found == min(cost(options, *c) for c in all_choices(options))
        fewest = [c for c in all_choices(options) if cost(options, *c) == found]
        assert len(again) + len(unstored) == min(len(a) + len(u) for a, u in fewest)


def test_a_chain_is_made_of_its_smallest():
    """x of one byte, a and b of eight that follow from it: x is held though nobody but a reads it."""
    x = Option((), False, 1.0)
    a, b = Option((0,), True, 8.0, 2.0), Option((1,), True, 8.0, 2.0)
    assert saved_set([x, a, b]) == ({1, 2}, set())
    assert saved_set([x._replace(keep_seconds=13.0), a, b]) == ({2}, set())
    assert saved_set([x._replace(keep_seconds=13.0), a, b._replace(recompute_seconds=9.0)]) == (set(), set())
    assert saved_set([x, a._replace(recompute_seconds=math.inf), b]) == ({2}, set())


def test_many_layers_take_time_that_grows_with_them():
    layer = [Option((), False, 3.0), Option((0,), True, 8.0, 2.0, -3.0), Option((1,), True, 8.0, 9.0)]
    options = [
        o._replace(sources=tuple(3 * n + s for s in o.sources) + ((3 * n - 1,) if n and not o.sources else ()))
        for n in range(3000) for o in layer
    ]  # fmt: skip
    again, unstored = saved_set(options)
    assert len(again) == len(unstored) == 3000


def test_what_cannot_be_kept_is_recomputed():
    x, a = Option((), False, 1.0), Option((0,), True, math.inf, 5.0)
    again, _ = saved_set([x, a])
    assert again == {1} and kept_tensors([x, a], again) == [0]
    assert kept_tensors([x, a], set()) == [1]
