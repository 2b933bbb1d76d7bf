"""Find the assignment of least cost: variables of a few values each, and tables of what values cost together.

Dominated values are removed first, as states of a cut are in Megvii's search (Distance(i, j) < T_j - T_i): whatever the
other variables are, another value costs no more (in protein design, dead-end elimination: Goldstein 1994). Variables
are then eliminated one by one, the one first that leaves the smallest table: exact dynamic programming over cuts
(Bertele and Brioschi 1972, "Nonserial dynamic programming"). The elimination of a variable of at most two neighbours is
a reduction R0, R1 or R2 of partitioned boolean quadratic problems. Where a cut is too wide, a variable takes the value
that is locally best (RN; Scholz and Eckstein 2002); in the end each variable is improved again with the others fixed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf, prod
from typing import NamedTuple

import numpy as np

MAX_TABLE_ENTRIES = 1 << 14
"""Most entries of a cut's table."""


class Factor(NamedTuple):
    """A cost table of some variables. `costs` has an axis for each variable in `over`, in order; inf marks impossible
    values."""

    over: tuple[int, ...]
    costs: np.ndarray


@dataclass(frozen=True)
class Assignment:
    """The value of each variable, their total cost, and whether that is proven to be the minimum."""

    values: tuple[int, ...]
    cost: float
    exact: bool


class _Step(NamedTuple):
    """An eliminated variable and its best value for each assignment of its neighbours."""

    variable: int
    others: tuple[int, ...]
    best: np.ndarray


def minimize(sizes: Sequence[int], factors: Iterable[Factor], table: int = MAX_TABLE_ENTRIES) -> Assignment:
    """Return the assignment whose factors sum to the least cost. It never costs more than all zeros.

    Ties are broken toward lower values where one variable decides. Raises ValueError if every assignment costs inf.

    Args:
        sizes: number of values of each variable.
        factors: the cost tables.
        table: most entries of a cut's table.
    """
    merged = _merge(factors, sizes)
    constrained = {v for f in merged for v in f.over}
    alive = [np.arange(n) < (n if v in constrained else 1) for v, n in enumerate(sizes)]
    pruned = prune(merged, alive)
    kept = [x.nonzero()[0] for x in alive]
    numbers, exact = _eliminate([len(k) for k in kept], _restrict(pruned, sizes, kept), table)
    values = [int(kept[v][k]) for v, k in enumerate(numbers)]
    if not exact:  # a heuristic assignment may cost inf
        values = min(values, [0] * len(sizes), key=lambda x: cost_of(x, merged))
        _descend(values, merged, sizes)
    cost = cost_of(values, merged)
    if cost == inf:
        raise ValueError("no assignment has a finite cost")
    return Assignment(tuple(values), cost, exact)


def _restrict(factors: Iterable[Factor], sizes: Sequence[int], kept: Sequence[np.ndarray]) -> list[Factor]:
    """Return the factors restricted to the values that are kept, numbered anew; variables of one value are dropped."""
    out = []
    for over, costs in factors:
        for axis, v in enumerate(over):
            if len(kept[v]) < sizes[v]:
                costs = costs.take(kept[v], axis)
        rest = tuple(v for v in over if len(kept[v]) > 1)
        if rest:
            out.append(Factor(rest, costs.reshape([len(kept[v]) for v in rest])))
    return out


def _eliminate(sizes: Sequence[int], factors: Iterable[Factor], table: int) -> tuple[list[int], bool]:
    """Return (the value of each variable, whether the assignment is optimal) by eliminating the variables one by
    one."""
    tables: dict[int, list[Factor]] = {}  # by variable; a factor of several is listed under each
    for f in factors:
        for v in f.over:
            tables.setdefault(v, []).append(f)
    steps: list[_Step] = []
    exact = True
    cuts = {v: _neighbours(v, tables[v]) for v in sorted(tables)}
    width = {v: prod(sizes[x] for x in cut) for v, cut in cuts.items()}
    while width:
        v = min(width, key=width.__getitem__)
        if width[v] <= table:
            met, others = tables[v], cuts[v]
            summed = _sum((v, *others), met, sizes)
            steps.append(_Step(v, others, summed.argmin(0)))
            new = [Factor(others, summed.min(0))] if others else []
        else:
            exact = False
            v = max(width, key=width.__getitem__)
            met, others = tables[v], cuts[v]
            n = int(np.argmin(sum(_minimize_others(f, v) for f in met)))
            steps.append(_Step(v, (), np.array(n)))
            new = [_fix(f, v, n) for f in met]
        for x in others:
            tables[x] = [f for f in tables[x] if v not in f.over] + [f for f in new if x in f.over]
            cuts[x] = _neighbours(x, tables[x])
            width[x] = prod(sizes[y] for y in cuts[x])
        del width[v]
    values = [0] * len(sizes)
    for step in reversed(steps):
        values[step.variable] = int(step.best[tuple(values[x] for x in step.others)])
    return values, exact


def cost_of(values: Sequence[int], factors: Iterable[Factor]) -> float:
    """Return the cost of an assignment."""
    return float(sum(f.costs[tuple(values[v] for v in f.over)] for f in factors))


def changes(values: Sequence[int], v: int, factors: Iterable[Factor], size: int) -> np.ndarray:
    """Return how much more each value of variable v would cost than its present value, the other variables being
    fixed."""
    out = np.zeros(size)
    for f in factors:
        if v in f.over:
            out += f.costs[tuple(slice(None) if x == v else values[x] for x in f.over)]
    now = out[values[v]]
    with np.errstate(invalid="ignore"):
        return np.where(out == now, 0.0, out - now)


def _merge(factors: Iterable[Factor], sizes: Sequence[int]) -> list[Factor]:
    """Sum the factors over equal sets of variables into one factor each."""
    by: dict[tuple[int, ...], list[Factor]] = {}
    for f in factors:
        by.setdefault(tuple(sorted(f.over)), []).append(f)
    return [Factor(over, _sum(over, same, sizes)) for over, same in by.items()]


def _neighbours(v: int, met: Sequence[Factor]) -> tuple[int, ...]:
    """Return the neighbours of a variable."""
    return tuple(sorted({x for f in met for x in f.over} - {v}))


def _sum(over: Sequence[int], factors: Iterable[Factor], sizes: Sequence[int]) -> np.ndarray:
    """Return the sum of factors as a table with an axis for each variable in `over`."""
    out = np.zeros([sizes[v] for v in over])
    for f in factors:
        order = sorted(range(len(f.over)), key=lambda k: over.index(f.over[k]))
        shape = [sizes[v] if v in f.over else 1 for v in over]
        out = out + f.costs.transpose(order).reshape(shape)
    return out


def _minimize_others(f: Factor, v: int) -> np.ndarray:
    """Return, for each value of variable v, the minimum of a factor over the other variables."""
    return f.costs.min(tuple(k for k, x in enumerate(f.over) if x != v))


def _fix(f: Factor, v: int, n: int) -> Factor:
    """Return the factor restricted to value n of variable v."""
    return Factor(tuple(x for x in f.over if x != v), f.costs.take(n, f.over.index(v)))


def prune(factors: Sequence[Factor], alive: list[np.ndarray]) -> list[Factor]:
    """Return the factors with the entries of dominated values set to inf; `alive` is updated to mark the other
    values."""
    tables = list(factors)
    met: dict[int, list[int]] = {}  # the factors of a variable
    for k, f in enumerate(tables):
        for v in f.over:
            met.setdefault(v, []).append(k)
    distances: dict[tuple[int, int], np.ndarray] = {}  # (factor, variable) -> `_distances`, until the factor changes
    todo = {v for v in met if len(alive[v]) > 1}
    while todo:
        v = min(todo)
        todo.remove(v)
        with np.errstate(invalid="ignore"):  # inf - inf: worse by one factor, better by another
            for k in met[v]:
                if (k, v) not in distances:
                    distances[k, v] = _distances(tables[k], v)
            dominates = sum([distances[k, v] for k in met[v]], np.zeros([len(alive[v])] * 2)) <= 0
        np.fill_diagonal(dominates, False)
        gone = False
        for b in range(len(dominates) - 1, -1, -1) if dominates.any() else ():
            if alive[v][b] and (dominates[:, b] & alive[v]).any():
                alive[v][b], gone = False, True
        for k in met[v] if gone else ():
            over, costs = tables[k]
            costs = costs.copy()
            costs.swapaxes(0, over.index(v))[~alive[v]] = inf
            tables[k] = Factor(over, costs)
            for x in over:
                distances.pop((k, x), None)
            todo.update(x for x in over if x != v and len(alive[x]) > 1)
    return tables


def _distances(f: Factor, v: int) -> np.ndarray:
    """Return, for each pair of values of variable v, the largest excess of the first value's cost over the second's,
    over all values of the other variables. Entries that are impossible with the second value do not count."""
    costs = f.costs.swapaxes(0, f.over.index(v)).reshape(f.costs.shape[f.over.index(v)], -1)
    possible = costs < inf
    less = np.where(possible, costs, 0.0)
    return np.where(possible, costs[:, None] - less, -inf).max(-1)


def _descend(values: list[int], factors: Sequence[Factor], sizes: Sequence[int]) -> None:
    """Improve one variable at a time while that lowers the cost."""
    better = True
    while better:
        better = False
        for v, size in enumerate(sizes):
            now = changes(values, v, factors, size)
            n = int(np.argmin(now))
            if now[n] < -1e-12 * max(1.0, abs(cost_of(values, factors))):
                values[v], better = n, True
