"""Divide a sum of products into steps: sums of some of the factors, which the others multiply.

    Y[i, l] = sum[j, k](A[i, j]*B[j, k]*C[k, l])      has the step      T[i, k] = sum[j](A[i, j]*B[j, k])

Axes that a step's factors have only within one sum, as i and r of X[i+r], are one axis of its result. Guards around the
product stay around each step that has all of their axes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

from einsmith.base.symbolic import hint
from einsmith.ir.analysis.in_bounds import out_of_bounds
from einsmith.ir.analysis.linear import LinearForm, linear
from einsmith.ir.nodes import (
    Axis,
    Compute,
    Expr,
    Piece,
    Read,
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
from einsmith.ir.rebuild import guarded, rebuild, substitute
from einsmith.ir.rewrite.factors import Factor, SumBody, multiply, split_sum
from einsmith.ir.rewrite.simplify import canonical

Factors = frozenset[int]
"""Some factors of a sum, by their numbers in `SumSteps.factors`."""


class Coordinate(NamedTuple):
    """A dimension of a step's result: the sum of `terms` over axes, less its least value `low`."""

    terms: frozenset[tuple[int, int]]
    low: int
    extent: int

    def at(self) -> Expr:
        """Return the coordinate as an expression of the axes."""
        return LinearForm(-self.low, {Axis(a): c for a, c in self.terms}).expr()


class SumSteps:
    """The steps that one sum may have.

    Attributes:
        shape, params, domain: of the sum's template; extents of all axes, the output's first.
        body: the sum's factors, and the guards around them.
        free: factors of the sum itself, which multiply it in its own kernel.
        factors, axes: the other factors, in an order that is the same in sums of other results, and the axes of each.
        all, output, summed: all factors; axes of the result, and those that are summed.
        room: elements of all arguments and of the sum's result together.
    """

    def __init__(self, shape: tuple[int, ...], params: tuple, body: SumBody, domain: tuple[int, ...]):
        self.shape, self.params, self.body, self.domain = shape, params, body, domain
        bound = [f for f in body.product.factors if not has_no_reduction_axis(f[0], len(shape))]
        inside = frozenset[int]().union(*(axes_of(f) for f, _ in bound))
        self.free = [f for f in body.product.factors if f not in bound and axes_of(f[0]) <= inside]
        self.factors = sorted(
            (f for f in body.product.factors if f not in self.free), key=lambda f: _outline(f, params)
        )
        self.axes = [axes_of(f) for f, _ in self.factors]
        self.guards = [(g, axes_of(g)) for g in body.guards]
        self.output = frozenset(range(len(shape)))
        self.all = frozenset(range(len(self.factors)))
        self.summed = frozenset().union(*self.axes) - self.output
        self.room = hint(size(shape) + sum(size(s) for _, s in params))
        self._needed_axes: dict[Factors, frozenset[int]] = {}
        self._coordinates: dict[Factors, tuple[Coordinate, ...]] = {}

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

    def coordinates(self, some: Factors) -> tuple[Coordinate, ...]:
        """Return the dimensions of a step's result, in the order in which its factors have them: sums of different
        results have equal steps in the same order."""
        if some == self.all:
            return tuple(Coordinate(frozenset({(a, 1)}), 0, self.domain[a]) for a in range(len(self.shape)))
        if some not in self._coordinates:
            needed, alone = self.needed_axes(some), set[int]()
            together = set[frozenset[tuple[int, int]]]()
            for n in sorted(some):
                for form in _forms(self.factors[n][0]):
                    terms = frozenset((a, c) for a, c in form if a in needed)
                    together.add(terms) if len(terms) > 1 else alone.update(a for a, _ in terms)
            inside = frozenset[int]().union(*(self.axes[n] for n in some))
            alone.update(a for _, axes in self.guards if axes <= inside for a in axes)
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
        widest_first = sorted((r for f in factors for r in reads(f)), key=lambda r: -len(axes_of(r)))
        nodes = postorder([i for r in widest_first for i in r.index] + factors)
        return [*dict.fromkeys(e.position for e in nodes if isinstance(e, Axis))]

    def _coordinate(self, terms: frozenset[tuple[int, int]]) -> Coordinate:
        ends = [c * (self.domain[a] - 1) for a, c in terms]
        low = sum(min(0, x) for x in ends)
        return Coordinate(terms, low, sum(max(0, x) for x in ends) - low + 1)

    def read(self, some: Factors, steps: list[Template]) -> Factor:
        """Return the read of the last of the steps, the product of some factors."""
        slot = len(self.params) + len(steps) - 1
        return Read(slot, tuple(c.at() for c in self.coordinates(some)), steps[-1].dtypes[0]), False

    def step(self, some: Factors, factors: Sequence[Factor], inside: frozenset[int], steps: list[Template]) -> Template:
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


def _rewrite_over(x: Expr, coordinates: tuple[Coordinate, ...], places: Mapping[int, Expr]) -> Expr:
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


def _is_term_of(atom: Expr, c: Coordinate) -> bool:
    return isinstance(atom, Axis) and any(atom.position == a for a, _ in c.terms)


def sums_of(t: Template) -> tuple[tuple[int, SumSteps], ...]:
    """Return each piece of a template that is a sum of several factors, by its number. Computed once per template."""
    return t.memo("sums of products", lambda t: tuple(_find_sums(t)))


def _find_sums(t: Template) -> Iterator[tuple[int, SumSteps]]:
    for number, part in enumerate(t.parts):
        if not isinstance(part, Piece) or not isinstance(part.body, Reduce) or 0 in part.domain:
            continue
        if part.body.combiner != "sum" or len(part.body.bodies) != 1:
            continue
        body = split_sum(part.body.bodies[0])
        if body is not None:
            steps = SumSteps(part.extents, t.params, body, part.domain)
            inside = frozenset[int]().union(*steps.axes)  # which is where a step can have a guard
            is_whole = steps.summed == frozenset(range(t.rank, len(part.domain)))
            if len(steps.factors) > 1 and is_whole and all(axes <= inside for _, axes in steps.guards):
                yield number, steps


def with_body(part: Any, step: Template) -> Piece:
    """Return a piece with the body of a step."""
    return Piece(part.offset, part.step, part.extents, step.parts[0].body)


def reading(t: Template, steps: Sequence[Template], parts: Sequence[Any]) -> Template:
    """Return a template of these parts, which read the steps after the arguments."""
    return Template(t.shape, (*t.params, *((s.dtypes[0], s.shape) for s in steps)), tuple(parts))


def apply_steps(steps: Iterable[Template], node: Compute) -> Tensor:
    """Return the last of some steps; slots are the arguments of the node, then the preceding steps."""
    results: list[Tensor] = []
    for step in steps:
        results.append(canonical(step, (*node.args, *results)))
    return results[-1]


def may_leave(step: Template) -> bool:
    """Return whether a read of a step is not proven in bounds."""
    return any(True for _ in out_of_bounds(step))
