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

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from math import prod
from typing import Any, NamedTuple

from einsmith.base.locks import cached_property
from einsmith.base.symbolic import hint
from einsmith.ir.analysis.linear import LinearForm, linear
from einsmith.ir.nodes import (
    Apply,
    Axis,
    Compute,
    Expr,
    Item,
    Piece,
    Read,
    Recurrence,
    Reduce,
    Template,
    Tensor,
    axes_of,
    has_no_reduction_axis,
    postorder,
    reads,
    size,
    template,
)
from einsmith.ir.rebuild import guarded, map_bodies, prune_recurrence, rebuild, substitute
from einsmith.ir.rewrite.products import Factor, SumBody, multiply, split_sum
from einsmith.ir.rewrite.simplify import canonical
from einsmith.ir.verify import out_of_bounds

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

Factors = frozenset[int]
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
    return None if steps is None else _apply(steps, node)


def name_operands(node: Tensor | Recurrence) -> Tensor | Recurrence | None:
    """Return a sum of products with its computed operands as tensors of their own, as if the formula named them: the
    gradients then share them, and the adjoint of each. None where there are none, or where one has more elements than
    the arguments and the result together. In a recurrence these are the operands that read no member.

    before: Y[b, o] = sum[i](w[o, i]*x[b, i]*sigmoid(x[b, i]))
    after:  Z[b, i] = x[b, i]*sigmoid(x[b, i]);  Y[b, o] = sum[i](w[o, i]*Z[b, i])
    """
    if isinstance(node, Compute):
        named = node.template.memo(("name_operands", None), lambda t: _name_operands(t, len(t.params)))
        return None if named is None else _apply(named, node)
    if not isinstance(node, Recurrence):
        return None
    count, first = len(node.args), len(node.args) + len(node.members)
    operands: list[Tensor] = []
    members = list(node.members)
    results = [Item(node, n) for n in range(len(members))]
    places: list[int] = []  # of each member, the number of its first operand
    for n, t in enumerate(node.members):
        named = t.memo(("name_operands", count), lambda t: _name_operands(t, count))
        places.append(len(operands))
        if named is not None:
            operands += (canonical(step, (*node.args, *results)) for step in named[:-1])
            members[n] = named[-1]
    if not operands:
        return None
    params = [(a.dtype, a.shape) for a in (*node.args, *operands)] + list(node.results)
    for n, (t, place) in enumerate(zip(members, places, strict=True)):
        slots = {s: s for s in range(count)}
        slots |= {count + k: count + len(operands) + k for k in range(len(members))}
        slots |= {s: count + place + s - first for s in range(first, len(t.params))}
        bodies = {b: substitute(b, {}, slots) for p in t.parts for b in p.bodies}
        members[n] = map_bodies(t, bodies.__getitem__, tuple(params))
    args = (*node.args, *operands)
    return prune_recurrence(Recurrence(node.steps, node.reverse, node.origins, tuple(members), args, node.checkpoint))


def _name_operands(t: Template, count: int) -> tuple[Template, ...] | None:
    """Return the templates of the operands that read the first `count` slots alone, then the template that reads
    them; None where there are none."""
    steps: list[Template] = []
    parts = list(t.parts)
    for number, order in _orders(t, {}):
        own = steps.copy()
        last = order.name_operands(own, count)
        if len(own) > len(steps) and not any(map(_may_leave, own)):
            steps, parts[number] = own, _with_body(t.parts[number], last)
    return (*steps, _reading(t, steps, parts)) if steps else None


def _with_body(part: Any, step: Template) -> Piece:
    return Piece(part.offset, part.step, part.extents, step.parts[0].body)


def _reading(t: Template, steps: Sequence[Template], parts: Sequence[Any]) -> Template:
    """Return a template of these parts, which read the steps after the arguments."""
    return Template(t.shape, (*t.params, *((s.dtypes[0], s.shape) for s in steps)), tuple(parts))


def _apply(steps: Iterable[Template], node: Compute) -> Tensor:
    """Return the last of some steps; slots are the arguments of the node, then the preceding steps."""
    results: list[Tensor] = []
    for step in steps:
        results.append(canonical(step, (*node.args, *results)))
    return results[-1]


def possible_steps(node: Compute) -> list[tuple[Place, Compute]]:
    """Return the pairs of factors whose product is a step, with that step."""
    steps = node.template.memo("possible_steps", _pairs)
    return [(place, canonical(step, node.args)) for place, step in steps]


def _pairs(t: Template) -> tuple[tuple[Place, Template], ...]:
    out: list[tuple[Place, Template]] = []
    for number, order in _orders(t, {}):
        if 3 <= len(order.factors) <= MAX_EXHAUSTIVE_FACTORS:
            whole = [n for n in sorted(order.all) if not order.is_step(frozenset({n}))]
            pairs = map(frozenset, combinations(whole, 2))
            out += (((number, some), order.step_of(some, [], {})) for some in pairs if order.is_step(some))
    return tuple(out)


def _orders(t: Template, shared: Mapping[Place, float]) -> Iterator[tuple[int, _ContractionOrder]]:
    """Yield the choice of steps for each piece of a template that is a sum of products, with the piece's number."""
    for number, part in enumerate(t.parts):
        if not isinstance(part, Piece) or not isinstance(part.body, Reduce) or 0 in part.domain:
            continue
        if part.body.combiner != "sum" or len(part.body.bodies) != 1:
            continue
        body = split_sum(part.body.bodies[0])
        if body is not None:
            own = {some: n for (piece, some), n in shared.items() if piece == number}
            order = _ContractionOrder(part.extents, t.params, body, part.domain, own)
            inside = frozenset[int]().union(*order.axes)  # which is where a step can have a guard
            is_whole = order.summed == frozenset(range(t.rank, len(part.domain)))
            if len(order.factors) > 1 and is_whole and all(axes <= inside for _, axes in order.guards):
                yield number, order


def _plan_steps(t: Template, shared: Mapping[Place, float]) -> tuple[Template, ...] | None:
    """Return the steps' templates, the last one the tensor's; slots are the arguments, then the preceding steps."""
    steps: list[Template] = []
    parts = list(t.parts)
    for number, order in _orders(t, shared):
        own = steps.copy()
        last = order.plan_steps(own)
        # A guard that a step lacks may be what keeps its reads in bounds.
        if last is None or order.guards and any(map(_may_leave, [*own[len(steps) :], last])):
            continue
        steps = own
        parts[number] = _with_body(t.parts[number], last)
    return None if parts == list(t.parts) else (*steps, _reading(t, steps, parts))


def _may_leave(step: Template) -> bool:
    """Return whether a read of a step is not proven in bounds."""
    return any(True for _ in out_of_bounds(step))


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

    `domain`: extents of all axes, the output's first; `summed`: reduction axes that some factor has; `shared`: of steps
    that several sums read, how many do. A step's result
    has at most `room` times as many elements as all arguments and the sum's result together, so that memory grows by a
    factor that the user can foresee.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        params: tuple,
        body: SumBody,
        domain: tuple[int, ...],
        shared: Mapping[Factors, float],
        room: int = 1,
    ):
        self.shape, self.params, self.body, self.domain, self.shared = shape, params, body, domain, shared
        bound = [f for f in body.product.factors if not has_no_reduction_axis(f[0], len(shape))]
        inside = frozenset[int]().union(*(axes_of(f) for f, _ in bound))
        self.free = [f for f in body.product.factors if f not in bound and axes_of(f[0]) <= inside]
        """Factors of the sum itself, which multiply it in its own kernel."""
        self.factors = sorted(
            (f for f in body.product.factors if f not in self.free), key=lambda f: _outline(f, params)
        )
        self.axes = [axes_of(f) for f, _ in self.factors]
        self.guards = [(g, axes_of(g)) for g in body.guards]
        self.output = frozenset(range(len(shape)))
        self.all = frozenset(range(len(self.factors)))
        self.summed = frozenset().union(*self.axes) - self.output
        self.room = room * hint(size(shape) + sum(size(s) for _, s in params))
        self.refuses = False
        """Whether a step that was priced has too large a result."""
        self._needed_axes: dict[Factors, frozenset[int]] = {}
        self._coordinates: dict[Factors, tuple[_Coordinate, ...]] = {}

    def plan_steps(self, steps: list[Template]) -> Template | None:
        """Return the last step after adding the others; None if summing at once is the fastest."""
        is_summed_alone = any(self.needed_axes(frozenset({n})) != a for n, a in enumerate(self.axes))
        if len(self.factors) < 3 and not is_summed_alone and not self.body.is_factored:
            return None
        order = self
        least = self.least_work
        if self.refuses:
            larger = _ContractionOrder(self.shape, self.params, self.body, self.domain, self.shared, LARGER_ROOM)
            order = larger if 2 * larger.least_work <= least else self
        if order.least_work >= self.work_at_once():
            return None
        count = len(steps)
        last = order.step_of(self.all, steps, {})
        return last if len(steps) > count or self.body.is_factored else None

    # -- what a set of factors is

    def needed_axes(self, some: Factors) -> frozenset[int]:
        """Return the axes of a set of factors that other factors or the output need."""
        if some not in self._needed_axes:
            inside = frozenset[int]().union(*(self.axes[n] for n in some))
            outside = self.output.union(
                *(self.axes[n] for n in self.all - some), *(axes for _, axes in self.guards if not axes <= inside)
            )
            self._needed_axes[some] = outside & inside
        return self._needed_axes[some]

    def is_step(self, some: Factors) -> bool:
        """Return whether a product of some factors is a step of its own: it is summed ahead of multiplying the other
        factors."""
        return some == self.all or self.needed_axes(some) != frozenset().union(*(self.axes[n] for n in some))

    def coordinates(self, some: Factors) -> tuple[_Coordinate, ...]:
        """Return the dimensions of a step's result, in the order in which its factors have them: sums of different
        results have equal steps in the same order."""
        if some == self.all:
            return tuple(_Coordinate(frozenset({(a, 1)}), 0, self.domain[a]) for a in range(len(self.shape)))
        if some not in self._coordinates:
            needed, alone = self.needed_axes(some), set[int]()
            together = set[frozenset[tuple[int, int]]]()
            for n in sorted(some):
                for form in _forms(self.factors[n][0]):
                    terms = frozenset((a, c) for a, c in form if a in needed)
                    together.add(terms) if len(terms) > 1 else alone.update(a for a, _ in terms)
            for one, other in combinations(together, 2):
                alone.update({a for a, _ in one} & {a for a, _ in other})
            merged = [x for x in together if not any(a in alone for a, _ in x)]
            single = needed.difference(*({a for a, _ in x} for x in merged))
            every = [self._coordinate(x) for x in (*merged, *(frozenset({(a, 1)}) for a in single))]
            place = {a: n for n, a in enumerate(self.ordered_axes(some))}
            self._coordinates[some] = tuple(sorted(every, key=lambda c: min(place[a] for a, _ in c.terms)))
        return self._coordinates[some]

    def ordered_axes(self, some: Factors) -> list[int]:
        """Return the axes of some factors, in the order in which their reads have them, those of the most axes
        first."""
        factors = [self.factors[n][0] for n in sorted(some)]
        found = sorted((r for f in factors for r in reads(f)), key=lambda r: -len(axes_of(r)))
        nodes = postorder([i for r in found for i in r.index] + factors)
        return [*dict.fromkeys(e.position for e in nodes if isinstance(e, Axis))]

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
        result is too large. The unit is a multiply-add of a register tile."""
        sides = [self.axes[next(iter(some))]] if len(some) == 1 else [self.needed_axes(x) for x in halves]
        inside = frozenset[int]().union(*sides)
        if not self.is_step(some):
            return self.evaluation_work(inside) if len(some) > 1 else 0.0
        points = hint(prod(c.extent for c in self.coordinates(some)))
        summed = hint(prod(self.domain[a] for a in inside - self.needed_axes(some)))
        work = points * summed * self.product_work(self.needed_axes(some), *sides)
        if some == self.all:
            return work
        if points > self.room:
            self.refuses = True
            return float("inf")
        return (work + TRANSFER_COST * points + KERNEL_COST) / self.shared.get(some, 1)

    def work_at_once(self) -> float:
        """Return the work of the sum in one kernel: of the cheapest two groups of factors as operands, or over all of
        its points where its terms are no product."""
        points = float(hint(prod(self.domain)))
        if self.body.is_factored:
            return self.evaluation_work(range(len(self.domain))) * len(self.factors)
        others, best = sorted(self.all)[1:], float("inf")
        for count in range(len(others)) if len(others) < MAX_EXHAUSTIVE_FACTORS else ():
            for group in combinations(others, count):
                one = frozenset({0, *group})
                sides = [frozenset[int]().union(*(self.axes[n] for n in x)) for x in (one, self.all - one)]
                work = points * self.product_work(self.output, *sides)
                work += sum(
                    (len(x) - 1) * self.evaluation_work(axes)
                    for x, axes in zip((one, self.all - one), sides, strict=True)
                )
                best = min(best, work)
        return min(best, self.evaluation_work(range(len(self.domain))) * (len(self.factors) - 1))

    def evaluation_work(self, axes: Iterable[int]) -> float:
        """Return the work of one more factor of an operand that has these axes."""
        return float(max(1, LOAD_COST) * hint(prod(self.domain[a] for a in axes)))

    def product_work(self, result: frozenset[int], *sides: frozenset[int]) -> float:
        """Return the work of one product of a sum: in a register tile, each load is shared by the products along the
        axes that the other operand alone has; without such axes each product waits for loads of its own."""
        if len(sides) == 1:
            return float(LOAD_COST)
        one, other = (hint(prod(self.domain[a] for a in (sides[n] - sides[1 - n]) & result)) for n in range(2))
        return max(1.0, LOAD_COST / one + LOAD_COST / other)

    # -- emission

    def _emit(self, some: Factors, steps: list[Template], products: dict[Factors, Factor]) -> Factor:
        """Return the product of some factors over the sum's axes, after adding the steps that it needs."""
        if some in products:
            return products[some]
        halves = self.trees[some].halves
        if self.is_step(some):
            steps.append(self.step_of(some, steps, products))
            product = self._read(some, steps)
        elif halves:
            product = (multiply([self._emit(x, steps, products) for x in halves], False), False)
        else:
            (n,) = some
            product = self.factors[n]
        products[some] = product
        return product

    def step_of(self, some: Factors, steps: list[Template], products: dict[Factors, Factor]) -> Template:
        """Return the step that multiplies some factors, after adding the steps that it needs."""
        halves = self.trees[some].halves
        if halves:
            factors = [self._emit(x, steps, products) for x in halves]
            inside = frozenset().union(*map(self.needed_axes, halves))
        else:
            (n,) = some
            factors, inside = [self.factors[n]], self.axes[n]
        if some == self.all:
            factors += self.free
        return self._template(some, factors, inside, steps)

    def name_operands(self, steps: list[Template], count: int) -> Template:
        """Return the sum at once, after adding the operands that it computes from the first `count` slots as steps."""
        factors: list[Factor] = []
        widest = [x for x in dict.fromkeys(self.axes) if not any(x < other for other in self.axes)]
        groups: dict[frozenset[int], set[int]] = {x: set() for x in widest}
        for n, axes in enumerate(self.axes):
            groups[min((x for x in widest if axes <= x), key=lambda x: hint(prod(self.domain[a] for a in x)))].add(n)
        for axes, group in groups.items():
            own = [self.factors[n] for n in sorted(group)]
            some = frozenset(group)
            is_computed = len(groups) > 1 and axes == self.needed_axes(some) and (len(own) > 1 or _computes(own[0]))
            is_computed &= all(r.slot < count for f, _ in own for r in reads(f))
            if is_computed and hint(prod(c.extent for c in self.coordinates(some))) <= self.room:
                steps.append(self._template(some, own, axes, steps))
                own = [self._read(some, steps)]
            factors += own
        return self._template(self.all, factors + self.free, frozenset(range(len(self.domain))), steps)

    def _read(self, some: Factors, steps: list[Template]) -> Factor:
        """Return the read of the last of the steps, the product of some factors."""
        slot = len(self.params) + len(steps) - 1
        return Read(slot, tuple(c.at() for c in self.coordinates(some)), steps[-1].dtypes[0]), False

    def _template(
        self, some: Factors, factors: Sequence[Factor], inside: frozenset[int], steps: list[Template]
    ) -> Template:
        """Return the step of some factors over the axes `inside`, which are summed where no other factor needs them."""
        coordinates = self.coordinates(some)
        k = [a for a in self.ordered_axes(some) if a in inside - self.needed_axes(some)]
        shape, extents = [c.extent for c in coordinates], tuple(self.domain[a] for a in k)
        places = {a: Axis(len(shape) + n) for n, a in enumerate(k)}
        product = multiply(factors, some == self.all and self.body.product.minus)
        product = guarded([g for g, axes in self.guards if axes <= inside], product)
        body = _rewrite_over(product, coordinates, places)
        results = [(s.dtypes[0], s.shape) for s in steps]
        summed = Reduce("sum", extents, (body,)) if extents else body
        return template(shape, (*self.params, *results), summed)


def _computes(f: Factor) -> bool:
    """Return whether a factor is more than a read under guards."""
    return any(isinstance(e, Apply) and e.dtype.is_float and e.fn not in ("where", "cast") for e in postorder([f[0]]))


def _outline(f: Factor, params: tuple) -> tuple:
    """Return a sort key of a factor that depends neither on the numbers of axes nor on those of slots; what reads the
    largest tensors comes first, and its axes are the outer ones of a step's result."""
    nodes = [*postorder([f[0]])]
    shapes = [params[e.slot][1] for e in nodes if isinstance(e, Read)]
    return f[1], -sum(hint(size(s)) for s in shapes), sorted(shapes, key=str), len(nodes)


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
