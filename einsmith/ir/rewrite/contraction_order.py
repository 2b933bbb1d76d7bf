"""Compute sums of products of several factors one step at a time, in the order of the least work.

before: Y[i, l] = sum[j, k](A[i, j]*B[j, k]*C[k, l])
after:  T[i, k] = sum[j](A[i, j]*B[j, k]);  Y[i, l] = sum[k](T[i, k]*C[k, l])

As in opt_einsum (Smith and Gray 2018), every binary tree of products is priced, and an axis is summed as soon as no
factor outside needs it; here a step is priced by its multiply-adds and by the time to write and read its result. Axes
that a step's factors have only within one sum, as i and r of X[i+r], are one axis of its result: a window that is a
product of two becomes two passes. Results equal those of the sum at once, except for the order of its additions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import combinations
from math import prod
from typing import NamedTuple

from einsmith.base.locks import cached_property
from einsmith.base.symbolic import hint
from einsmith.ir.analysis.linear import LinearForm, linear
from einsmith.ir.nodes import (
    Axis,
    Compute,
    Expr,
    Read,
    Reduce,
    Template,
    Tensor,
    apply,
    axes_of,
    postorder,
    size,
    template,
)
from einsmith.ir.rebuild import operands, prune_args, rebuild, substitute, whole_sum

MAX_EXHAUSTIVE_FACTORS = 7
"""Most factors for which all trees are priced: 10,395 trees, by way of 1,000 pairs of sets. Of more factors, the pair
whose product takes the least work is multiplied first."""
TRANSFER_COST = 16
"""Multiply-adds in the time to write and read back an element of a step's result."""
KERNEL_COST = 1 << 14
"""Multiply-adds in the time that one more kernel takes to begin and end. With both TRANSFER_COST and KERNEL_COST
at 0, all of 60 random sums of three and four factors over 1e5 to 2.5e8 points took less time in steps, 1.4 to 700 times
on two threads."""

LARGER_ROOM = 16
"""How many times as many elements as the arguments and the sum's result together a step's result may have, where that
saves half of the work or more."""

Factors = frozenset[int]


def order_contraction(node: Tensor) -> Tensor | None:
    """Return the tensor computed in steps of less work; None if it is not a sum of products, or if summing at once is
    the cheapest."""
    if not isinstance(node, Compute):
        return None
    steps = node.template.memo("contraction_order", _plan_steps)
    if steps is None:
        return None
    results: list[Tensor] = []
    for step in steps:
        results.append(prune_args(step, (*node.args, *results)))
    return results[-1]


def _plan_steps(t: Template) -> tuple[Template, ...] | None:
    """Return the steps' templates, the last one the tensor's; slots are the arguments, then the preceding steps."""
    part = whole_sum(t)
    if part is None or 0 in part.domain or len(part.domain) < t.rank + 2:
        return None
    factors = operands(part.bodies[0], "mul")
    if len(factors) < 2:
        return None
    order = _ContractionOrder(t, factors, part.domain)
    return order.plan_steps() if order.summed == frozenset(range(t.rank, len(part.domain))) else None


class _Coordinate(NamedTuple):
    """A dimension of a step's result: the sum of `terms` over axes, less its least value `low`."""

    terms: frozenset[tuple[int, int]]
    low: int
    extent: int

    def at(self) -> Expr:
        """Return the coordinate as an expression of the axes."""
        return LinearForm(-self.low, {Axis(a): c for a, c in self.terms}).expr()


class _Tree(NamedTuple):
    """The least work of the product of some factors, and the two sets that are multiplied last; () for a single
    factor."""

    work: float
    halves: tuple[Factors, ...]


class _ContractionOrder:
    """The choice of steps for one sum.

    `domain`: extents of all axes, the output's first; `summed`: reduction axes that some factor has. A step's result
    has at most `room` times as many elements as all arguments and the sum's result together, so that memory grows by a
    factor that the user can foresee.
    """

    def __init__(self, t: Template, factors: list[Expr], domain: tuple[int, ...], room: int = 1):
        self.t, self.factors, self.domain = t, factors, domain
        self.axes = [axes_of(f) for f in factors]
        self.output = frozenset(range(t.rank))
        self.all = frozenset(range(len(factors)))
        self.summed = frozenset().union(*self.axes) - self.output
        self.room = room * hint(size(t.shape) + sum(size(shape) for _, shape in t.params))
        self.refuses = False
        """Whether a step that was priced has too large a result."""
        self._needed_axes: dict[Factors, frozenset[int]] = {}
        self._coordinates: dict[Factors, tuple[_Coordinate, ...]] = {}

    def plan_steps(self) -> tuple[Template, ...] | None:
        if all(self.needed_axes(frozenset({n})) == a for n, a in enumerate(self.axes)) and len(self.factors) < 3:
            return None
        order = self
        least = self.least_work
        if self.refuses:
            larger = _ContractionOrder(self.t, self.factors, self.domain, LARGER_ROOM)
            order = larger if 2 * larger.least_work <= least else self
        if order.least_work >= prod(self.domain):
            return None
        steps: list[Template] = []
        order._emit(self.all, steps, {})
        return tuple(steps) if len(steps) > 1 else None

    # -- what a set of factors is

    def needed_axes(self, some: Factors) -> frozenset[int]:
        """Return the axes of a set of factors that other factors or the output need."""
        if some not in self._needed_axes:
            outside = self.output.union(*(self.axes[n] for n in self.all - some))
            self._needed_axes[some] = outside.intersection(frozenset().union(*(self.axes[n] for n in some)))
        return self._needed_axes[some]

    def is_step(self, some: Factors) -> bool:
        """Return whether a product of some factors is a step of its own: it is summed ahead of multiplying the other
        factors."""
        return some == self.all or self.needed_axes(some) != frozenset().union(*(self.axes[n] for n in some))

    def coordinates(self, some: Factors) -> tuple[_Coordinate, ...]:
        """Return the dimensions of a step's result, in the order of their first axes."""
        if some == self.all:
            return tuple(_Coordinate(frozenset({(a, 1)}), 0, self.domain[a]) for a in range(self.t.rank))
        if some not in self._coordinates:
            needed, alone = self.needed_axes(some), set[int]()
            together = set[frozenset[tuple[int, int]]]()
            for n in sorted(some):
                for form in _forms(self.factors[n]):
                    terms = frozenset((a, c) for a, c in form if a in needed)
                    together.add(terms) if len(terms) > 1 else alone.update(a for a, _ in terms)
            for one, other in combinations(together, 2):
                alone.update({a for a, _ in one} & {a for a, _ in other})
            merged = [x for x in together if not any(a in alone for a, _ in x)]
            single = needed.difference(*({a for a, _ in x} for x in merged))
            every = [self._coordinate(x) for x in (*merged, *(frozenset({(a, 1)}) for a in single))]
            self._coordinates[some] = tuple(sorted(every, key=lambda c: min(a for a, _ in c.terms)))
        return self._coordinates[some]

    def _coordinate(self, terms: frozenset[tuple[int, int]]) -> _Coordinate:
        ends = [c * (self.domain[a] - 1) for a, c in terms]
        low = sum(min(0, x) for x in ends)
        return _Coordinate(terms, low, sum(max(0, x) for x in ends) - low + 1)

    # -- the least work

    @property
    def least_work(self) -> float:
        """Return the work of the cheapest tree of all factors; inf where a step of each is too large."""
        return self.trees[self.all].work

    @cached_property
    def trees(self) -> dict[Factors, _Tree]:
        """Return the cheapest contraction tree for each set of factors. Dynamic programming over subsets; beyond
        MAX_EXHAUSTIVE_FACTORS units, the cheapest pairs are first merged greedily."""
        units = [frozenset({n}) for n in sorted(self.all)]
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
        result is too large."""
        if len(some) == 1:
            inside = self.axes[next(iter(some))]
        else:
            inside = frozenset().union(*map(self.needed_axes, halves))
        if not self.is_step(some):
            return float(hint(prod(self.domain[a] for a in inside))) if len(some) > 1 else 0.0
        points = hint(prod(c.extent for c in self.coordinates(some)))
        work = float(points * hint(prod(self.domain[a] for a in inside - self.needed_axes(some))))
        if some == self.all:
            return work
        if points > self.room:
            self.refuses = True
            return float("inf")
        return work + TRANSFER_COST * points + KERNEL_COST

    # -- emission

    def _emit(self, some: Factors, steps: list[Template], products: dict[Factors, Expr]) -> Expr:
        """Return the product of some factors over the sum's axes, after adding the steps that it needs."""
        if some in products:
            return products[some]
        halves = self.trees[some].halves
        product: Expr
        if halves:
            product = apply("mul", *(self._emit(x, steps, products) for x in halves))
            inside = frozenset().union(*map(self.needed_axes, halves))
        else:
            (n,) = some
            product, inside = self.factors[n], self.axes[n]
        if self.is_step(some):
            coordinates, k = self.coordinates(some), sorted(inside - self.needed_axes(some))
            shape, extents = [c.extent for c in coordinates], tuple(self.domain[a] for a in k)
            places = {a: Axis(len(shape) + n) for n, a in enumerate(k)}
            body = _rewrite_over(product, coordinates, places)
            results = [(s.dtypes[0], s.shape) for s in steps]
            summed = Reduce("sum", extents, (body,)) if extents else body
            steps.append(template(shape, (*self.t.params, *results), summed))
            slot = len(self.t.params) + len(steps) - 1
            product = Read(slot, tuple(c.at() for c in coordinates), body.dtype)
        products[some] = product
        return product


def _forms(x: Expr) -> list[list[tuple[int, int]]]:
    """Return the axes and coefficients of each index of each read; an axis used otherwise is a form of its own."""
    out: list[list[tuple[int, int]]] = []
    whole = set[Expr]()
    nodes = list(postorder([x]))
    for e in nodes:
        if isinstance(e, Read):
            for i in e.index:
                terms = linear(i).terms
                if all(isinstance(a, Axis) for a in terms):
                    out.append([(a.position, c) for a, c in terms.items() if isinstance(a, Axis)])
                    whole.add(i)
    inside = set(postorder(whole)).difference(_reach_without(x, whole))
    return out + [[(e.position, 1)] for e in nodes if isinstance(e, Axis) and e not in inside]


def _reach_without(x: Expr, whole: set[Expr]) -> Iterable[Expr]:
    """Return the nodes of an expression that are reachable other than through these indices."""
    seen: set[Expr] = set()
    stack: list[Expr] = [x]
    while stack:
        e = stack.pop()
        if e not in seen:
            seen.add(e)
            below = e.args
            if isinstance(e, Read):
                below = tuple(i for i in e.index if i not in whole)
            stack += below
    return seen


def _rewrite_over(x: Expr, coordinates: tuple[_Coordinate, ...], places: Mapping[int, Expr]) -> Expr:
    """Rewrite an expression over a step's own axes: those of its coordinates, and `places` for the axes it sums."""
    merged = {n: c for n, c in enumerate(coordinates) if len(c.terms) > 1}
    axes = {**places, **{a: Axis(n) for n, c in enumerate(coordinates) if n not in merged for a, _ in c.terms}}
    if not merged:
        return substitute(x, axes)

    def index(i: Expr) -> Expr:
        form = linear(i)
        out = LinearForm(form.const)
        for atom, k in form.terms.items():
            if not any(_is_term_of(atom, c) for c in merged.values()):
                out = out + linear(substitute(atom, axes)) * k
        for n, c in merged.items():
            if any(_is_term_of(atom, c) for atom in form.terms):
                out = out + LinearForm(c.low, {Axis(n): 1})
        return out.expr()

    memo = {
        r: Read(r.slot, tuple(map(index, r.index)), r.dtype)
        for r in postorder([x])
        if isinstance(r, Read)
        and any(_is_term_of(a, c) for i in r.index for a in linear(i).terms for c in merged.values())
    }
    return rebuild([x], lambda e: axes.get(e.position) if isinstance(e, Axis) else None, memo)[0]


def _is_term_of(atom: Expr, c: _Coordinate) -> bool:
    return isinstance(atom, Axis) and any(atom.position == a for a, _ in c.terms)
