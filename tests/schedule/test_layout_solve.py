"""The least cost of assignments: against all of them, on random graphs; with cuts that are too wide, near it."""

from __future__ import annotations

from itertools import combinations, product
from math import inf

import numpy as np
import pytest

from einsmith.schedule.layout import solve
from einsmith.schedule.layout.solve import Factor, changes, cost_of, minimize


def random_problem(seed: int) -> tuple[list[int], list[Factor]]:
    """Variables of one to four values, and factors over one to four of them; of some, a part cannot be. Whole numbers,
    so that there are ties."""
    rng = np.random.default_rng(seed)
    sizes = [int(n) for n in rng.integers(1, 5, rng.integers(1, 8))]
    factors = []
    for _ in range(rng.integers(1, 12)):
        over = tuple(int(v) for v in rng.permutation(len(sizes))[: rng.integers(1, 5)])
        costs = rng.integers(0, 20, [sizes[v] for v in over]).astype(float)
        if seed % 3 == 0:
            costs[rng.random(costs.shape) < 0.1] = inf
            costs[(0,) * len(over)] = 5.0  # as it is can always be
        factors.append(Factor(over, costs))
    return sizes, factors


def enumerated(sizes: list[int], factors: list[Factor]) -> float:
    return min(cost_of(values, factors) for values in product(*map(range, sizes)))


@pytest.mark.parametrize("part", range(4))
def test_nothing_costs_less(part):
    """400 random graphs, all assignments enumerated."""
    for seed in range(100 * part, 100 * part + 100):
        sizes, factors = random_problem(seed)
        found = minimize(sizes, factors)
        assert found.exact and found.cost == cost_of(found.values, factors) == enumerated(sizes, factors), seed


def test_cuts_that_are_too_wide():
    """Reductions of at most two neighbours alone: never better than the least, and seldom far from it."""
    ratios, guessed = [], 0
    for seed in range(300):
        sizes, factors = random_problem(seed)
        want, found = enumerated(sizes, factors), minimize(sizes, factors, table=16)
        assert found.cost == cost_of(found.values, factors) >= want
        assert not found.exact or found.cost == want
        guessed += not found.exact
        ratios.append((found.cost + 1) / (want + 1))
    assert guessed > 20 and np.mean(ratios) < 1.05 and np.median(ratios) == 1.0


def test_guesses_that_cannot_be():
    """Every pair of nine variables has a table in which few entries can be, all zeros among them."""
    rng = np.random.default_rng(0)
    for _ in range(40):
        factors = []
        for pair in combinations(range(9), 2):
            costs = np.full(16, inf)
            costs[rng.choice(np.arange(1, 16), 5, replace=False)] = rng.random(5)
            costs[0] = 1.0
            factors.append(Factor(pair, costs.reshape(4, 4)))
        found = minimize([4] * 9, factors, table=64)
        assert not found.exact and found.cost == cost_of(found.values, factors) <= cost_of([0] * 9, factors)
        assert not any(np.isnan(changes(found.values, v, factors, 4)).any() for v in range(9))


def test_dominated_values_go():
    costs = np.array([[3.0, 5.0], [4.0, 6.0], [2.0, 9.0]])
    alive = [np.ones(3, bool), np.ones(2, bool)]
    solve.prune([Factor((0, 1), costs)], alive)
    assert [x.tolist() for x in alive] == [[False, False, True], [True, False]]
    alive = [np.ones(3, bool)]
    solve.prune([Factor((0,), np.array([1.0, 1.0, inf]))], alive)
    assert alive[0].tolist() == [True, False, False], "the first of equal values stays"


def test_factors_that_stay_are_compared_once(monkeypatch):
    """A star whose outer variables lose a value each: at each loss the inner variable's other factors are as before."""
    count, calls, compare = 30, [], solve._distances
    monkeypatch.setattr(solve, "_distances", lambda f, v: calls.append((f.over, v)) or compare(f, v))
    stars = [Factor((0, v), np.array([[0.0, 5.0, 1.0], [1.0, 5.0, 0.0]])) for v in range(1, count + 1)]
    alive = [np.ones(2, bool), *(np.ones(3, bool) for _ in range(count))]
    solve.prune(stars, alive)
    assert all(x.tolist() == [True, False, True] for x in alive[1:])
    assert len(calls) <= 5 * count


def test_costs_of_single_changes():
    sizes, factors = random_problem(1)
    found = minimize(sizes, factors)
    for v, n in enumerate(sizes):
        now = changes(found.values, v, factors, n)
        for k in range(n):
            other = [k if x == v else value for x, value in enumerate(found.values)]
            assert now[k] == cost_of(other, factors) - found.cost >= 0


def test_long_chains_and_impossible_ones():
    """A network's width: 400 variables, each with the two before it."""
    rng = np.random.default_rng(0)
    factors = [Factor((v - 2, v - 1, v), rng.random((4, 4, 4))) for v in range(2, 400)]
    found = minimize([4] * 400, factors)
    state = {(a, b): 0.0 for a in range(4) for b in range(4)}
    for f in factors:
        state = {(b, c): min(state[a, b] + f.costs[a, b, c] for a in range(4)) for b in range(4) for c in range(4)}
    assert found.exact and found.cost == pytest.approx(min(state.values()))
    with pytest.raises(ValueError, match="finite"):
        minimize([2], [Factor((0,), np.array([inf, inf]))])
    assert minimize([], []).values == () and minimize([3], []).values == (0,)
