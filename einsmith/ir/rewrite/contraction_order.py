"""Compute sums of products of several factors one step at a time, in the order of the least time.

before: Y[i, l] = sum[j, k](A[i, j]*B[j, k]*C[k, l])
after:  T[i, k] = sum[j](A[i, j]*B[j, k]);  Y[i, l] = sum[k](T[i, k]*C[k, l])

before: Y[i, k] = sum[v](W[v, k]*(dy[i, v]*s[i, k]) + dy[i, v]*(W[v, k]*x[i, k])*t[i, k])
after:  Y[i, k] = (s[i, k] + x[i, k]*t[i, k])*sum[v](W[v, k]*dy[i, v])

As in opt_einsum (Smith and Gray 2018), every binary tree of products is priced, and an axis is summed as soon as no
factor outside needs it; here a step is priced by the kernel that it becomes, and by the time to write and read its
result. A sum of terms is the product of their common factors and of what is left of it. Axes that a step's factors have
only within one sum, as i and r of X[i+r], are one axis of its result: a window that is a product of two becomes two
passes. Guards around the product stay around each step that has all of their axes. Results equal those of the sum at
once, except for the order of its additions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import combinations
from math import prod
from typing import NamedTuple

from einsmith.base.locks import cached_property
from einsmith.base.symbolic import hint
from einsmith.ir.nodes import Compute, Template, Tensor
from einsmith.ir.rewrite.factors import Factor, multiply
from einsmith.ir.rewrite.simplify import canonical
from einsmith.ir.rewrite.sum_steps import Factors, SumSteps, apply_steps, may_leave, reading, sums_of, with_body

MAX_EXHAUSTIVE_FACTORS = 7
"""Most factors for which all trees are priced: 10,395 trees, by way of 1,000 pairs of sets. Of more factors, the pair
whose product takes the least work is multiplied first."""
LOAD_COST = 3
"""Multiply-adds of a register tile in the time of a load that no other product shares. Of 130 random sums of three and
four factors over 2e5 to 1e8 points, timed at once and in steps on one thread, the price takes the one that is slower by
a tenth or more in 19 to 21 for any value from 2 to 8, and in 23 for 1; the mean loss is 1.06."""
TRANSFER_COST = 16
"""Multiply-adds in the time to write and read back an element of a step's result."""
KERNEL_COST = 1 << 14
"""Multiply-adds in the time that one more kernel takes to begin and end. With both TRANSFER_COST and KERNEL_COST
at 0, all of 60 random sums of three and four factors over 1e5 to 2.5e8 points took less time in steps, 1.4 to 700 times
on two threads."""

LARGER_ROOM = 16
"""How many times as many elements as the arguments and the sum's result together a step's result may have, where that
saves half of the work or more."""

Place = tuple[int, Factors]
"""Factors of the sum that a piece is, with the piece's number."""


def order_contraction(node: Tensor, readers: Mapping[Tensor, float] | None = None) -> Tensor | None:
    """Return the tensor computed in steps of less time; None if it is not a sum of products, or if summing at once is
    the fastest.

    readers: how many sums read each step that several need (`possible_steps`), inf for one that is there already; each
        sum bears its part of the time.
    """
    if not isinstance(node, Compute):
        return None
    shares = ((place, readers.get(step, 1)) for place, step in possible_steps(node)) if readers else ()
    shared = tuple((place, n) for place, n in shares if n > 1)
    steps = node.template.memo(("contraction_order", shared), lambda t: _plan_steps(t, dict(shared)))
    return None if steps is None else apply_steps(steps, node)


def possible_steps(node: Compute) -> list[tuple[Place, Compute]]:
    """Return the pairs of factors whose product is a step, with that step."""
    steps = node.template.memo("possible_steps", _pairs)
    return [(place, canonical(step, node.args)) for place, step in steps]


def _pairs(t: Template) -> tuple[tuple[Place, Template], ...]:
    out: list[tuple[Place, Template]] = []
    for number, total in sums_of(t):
        order = _ContractionOrder(total, {})
        if 3 <= len(total.factors) <= MAX_EXHAUSTIVE_FACTORS:
            whole = [n for n in sorted(total.all) if not total.is_step(frozenset({n}))]
            pairs = map(frozenset, combinations(whole, 2))
            out += (((number, some), order.step_of(some, [], {})) for some in pairs if total.is_step(some))
    return tuple(out)


def _plan_steps(t: Template, shared: Mapping[Place, float]) -> tuple[Template, ...] | None:
    """Return the steps' templates, the last one the tensor's; slots are the arguments, then the preceding steps."""
    steps: list[Template] = []
    parts = list(t.parts)
    for number, total in sums_of(t):
        order = _ContractionOrder(total, {some: n for (piece, some), n in shared.items() if piece == number})
        own = steps.copy()
        last = order.plan_steps(own)
        # A guard that a step lacks may be what keeps its reads in bounds.
        if last is None or total.guards and any(map(may_leave, [*own[len(steps) :], last])):
            continue
        steps = own
        parts[number] = with_body(t.parts[number], last)
    return None if parts == list(t.parts) else (*steps, reading(t, steps, parts))


class _Tree(NamedTuple):
    """The least work of the product of some factors, and the two sets that are multiplied last; () for a single
    factor."""

    work: float
    halves: tuple[Factors, ...]


class _ContractionOrder:
    """The choice of the steps of one sum.

    shared: how many sums read a step that several read. A step's result has at most `room` times as many elements as
    all arguments and the sum's result together, so that memory grows by a factor that the user can foresee.
    """

    def __init__(self, total: SumSteps, shared: Mapping[Factors, float], room: int = 1):
        self.total, self.shared, self.room = total, shared, room
        self.refuses = False
        """Whether a step that was priced has too large a result."""

    def plan_steps(self, steps: list[Template]) -> Template | None:
        """Append all steps of the cheapest order but the last to `steps`, and return the last; None if a single sum
        over all axes is the fastest."""
        is_summed_alone = any(self.total.needed_axes(frozenset({n})) != a for n, a in enumerate(self.total.axes))
        if len(self.total.factors) < 3 and not is_summed_alone and not self.total.body.is_factored:
            return None
        order = self
        least = self.least_work
        if self.refuses:
            larger = _ContractionOrder(self.total, self.shared, LARGER_ROOM)
            order = larger if 2 * larger.least_work <= least else self
        if order.least_work >= self.work_at_once():
            return None
        count = len(steps)
        last = order.step_of(self.total.all, steps, {})
        return last if len(steps) > count or self.total.body.is_factored else None

    # -- the least work

    @property
    def least_work(self) -> float:
        """Return the work of the cheapest tree of all factors; inf where a step of each is too large."""
        return self.trees[self.total.all].work

    @cached_property
    def trees(self) -> dict[Factors, _Tree]:
        """Return the cheapest contraction tree for each set of factors. Dynamic programming over subsets; beyond
        MAX_EXHAUSTIVE_FACTORS units, the cheapest pairs are first merged greedily."""
        units = [frozenset({n}) for n in sorted(self.total.all)]
        trees_by_factors = {x: _Tree(self.work(x, x), ()) for x in units}

        def tree(one: Factors, other: Factors) -> _Tree:
            both = trees_by_factors[one].work + trees_by_factors[other].work
            return _Tree(both + self.work(one | other, one, other), (one, other))

        while len(units) > MAX_EXHAUSTIVE_FACTORS:
            one, other = min(combinations(units, 2), key=lambda x: tree(*x).work)
            trees_by_factors[one | other] = tree(one, other)
            units = [x for x in units if x not in (one, other)] + [one | other]
        for count in range(2, len(units) + 1):
            for some in combinations(units, count):
                halves = (x for n in range(count - 1) for x in combinations(some[1:], n))
                trees = (tree(h := some[0].union(*x), frozenset().union(*some) - h) for x in halves)
                best = min(trees, key=lambda x: x.work)
                trees_by_factors[best.halves[0] | best.halves[1]] = best
        return trees_by_factors

    def work(self, some: Factors, *halves: Factors) -> float:
        """Return the work of multiplying the halves and summing over the axes that no other factor needs; inf where the
        result is too large. The unit is a multiply-add of a register tile."""
        sides = [self.total.axes[next(iter(some))]] if len(some) == 1 else [self.total.needed_axes(x) for x in halves]
        inside = frozenset[int]().union(*sides)
        if not self.total.is_step(some):
            return self.evaluation_work(inside) if len(some) > 1 else 0.0
        points = hint(prod(c.extent for c in self.total.coordinates(some)))
        summed = hint(prod(self.total.domain[a] for a in inside - self.total.needed_axes(some)))
        work = points * summed * self.product_work(self.total.needed_axes(some), *sides)
        if some == self.total.all:
            return work
        if points > self.room * self.total.room:
            self.refuses = True
            return float("inf")
        return (work + TRANSFER_COST * points + KERNEL_COST) / self.shared.get(some, 1)

    def work_at_once(self) -> float:
        """Return the work of the sum in one kernel: of the cheapest two groups of factors as operands, or over all of
        its points where its terms are no product."""
        points = float(hint(prod(self.total.domain)))
        if self.total.body.is_factored:
            return self.evaluation_work(range(len(self.total.domain))) * len(self.total.factors)
        others, best = sorted(self.total.all)[1:], float("inf")
        for count in range(len(others)) if len(others) < MAX_EXHAUSTIVE_FACTORS else ():
            for group in combinations(others, count):
                one = frozenset({0, *group})
                sides = [frozenset[int]().union(*(self.total.axes[n] for n in x)) for x in (one, self.total.all - one)]
                work = points * self.product_work(self.total.output, *sides)
                work += sum(
                    (len(x) - 1) * self.evaluation_work(axes)
                    for x, axes in zip((one, self.total.all - one), sides, strict=True)
                )
                best = min(best, work)
        return min(best, self.evaluation_work(range(len(self.total.domain))) * (len(self.total.factors) - 1))

    def evaluation_work(self, axes: Iterable[int]) -> float:
        """Return the work of one more factor of an operand that has these axes."""
        return float(max(1, LOAD_COST) * hint(prod(self.total.domain[a] for a in axes)))

    def product_work(self, result: frozenset[int], *sides: frozenset[int]) -> float:
        """Return the work of one product of a sum: in a register tile, each load is shared by the products along the
        axes that the other operand alone has; without such axes each product waits for loads of its own."""
        if len(sides) == 1:
            return float(LOAD_COST)
        one, other = (hint(prod(self.total.domain[a] for a in (sides[n] - sides[1 - n]) & result)) for n in range(2))
        return max(1.0, LOAD_COST / one + LOAD_COST / other)

    # -- emission

    def _emit(self, some: Factors, steps: list[Template], products: dict[Factors, Factor]) -> Factor:
        """Return the product of some factors over the sum's axes, after adding the steps that it needs."""
        if some in products:
            return products[some]
        halves = self.trees[some].halves
        if self.total.is_step(some):
            steps.append(self.step_of(some, steps, products))
            product = self.total.read(some, steps)
        elif halves:
            product = (multiply([self._emit(x, steps, products) for x in halves], False), False)
        else:
            (n,) = some
            product = self.total.factors[n]
        products[some] = product
        return product

    def step_of(self, some: Factors, steps: list[Template], products: dict[Factors, Factor]) -> Template:
        """Return the step that multiplies some factors, after adding the steps that it needs."""
        halves = self.trees[some].halves
        if halves:
            factors = [self._emit(x, steps, products) for x in halves]
            inside = frozenset().union(*map(self.total.needed_axes, halves))
        else:
            (n,) = some
            factors, inside = [self.total.factors[n]], self.total.axes[n]
        if some == self.total.all:
            factors += self.total.free
        return self.total.step(some, factors, inside, steps)
