"""Separate exponentials of sums inside of sums: exponentials of small tables, and a product of them.

before: Y[i, c] = sum[j](exp(a[i, j] + b[j, c])*v[j, c])
after:  r[j] = max[i](a[i, j])
        Y[i, c] = sum[j](exp(a[i, j] - r[j])*(exp(b[j, c] + r[j])*v[j, c]))

Terms that are never positive are always separated, without r: exp(a)*exp(b) differs from exp(a + b) by rounding, and if
exp(a) underflows, so does exp(a + b). Other terms are separated only if the user permits it (`base.numerics`). Each
table but the last is then divided by its maximum, and the last table is multiplied by it. An element of the last table
equals the largest exponential to which it contributes, so there is no new overflow; but exponentials smaller than 1e-38
times that one become 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from math import prod
from typing import Any, NamedTuple

from einsmith.base import environment
from einsmith.base.numerics import SEPARATES
from einsmith.base.symbolic import hint
from einsmith.ir.analysis.pointwise import float_body
from einsmith.ir.analysis.signs import is_never
from einsmith.ir.functions import FUNCTIONS
from einsmith.ir.nodes import (
    Apply,
    Axis,
    Compute,
    Const,
    Expr,
    Graph,
    Item,
    Piece,
    Read,
    Recurrence,
    Reduce,
    Template,
    Tensor,
    apply,
    axes_of,
    postorder,
    template,
)
from einsmith.ir.rebuild import guarded, substitute, types_of
from einsmith.ir.rewrite.contraction_order import KERNEL_COST, LOAD_COST, TRANSFER_COST
from einsmith.ir.rewrite.factors import Factor, SumBody, multiply, product_of, split_sum
from einsmith.ir.rewrite.inlining import inline_arguments
from einsmith.ir.rewrite.named_operands import name_operands
from einsmith.ir.rewrite.simplify import canonical
from einsmith.ir.rewrite.sum_steps import may_leave

SEPARATE_EXPONENTIALS = "separate exponentials"
"""Name by which the separation of exponentials can be left out."""
EXPONENTIAL_COST = 16
"""Multiply-adds of a register tile in the time of an exponential (`ir.function_table`: 0.13 ns; a core of 4 GHz with
vectors of 16 floats does 128 multiply-adds in a nanosecond)."""
MAX_TERMS = 8
"""Most terms of a sum whose exponential is separated."""
LOWEST = -1e30
"""Least maximum by which a table is divided: -inf minus it is -inf, as it would not be minus -inf."""

Axes = frozenset[int]


def pays(points: float, tables: Sequence[float]) -> bool:
    """Return whether exponentials of tables of these numbers of elements, and their products, take less time than
    those of `points` sums."""
    after = sum((EXPONENTIAL_COST + TRANSFER_COST) * n + KERNEL_COST for n in tables)
    return after + LOAD_COST * points < EXPONENTIAL_COST * points


class TermGroup(NamedTuple):
    """Terms of a sum that has an exponential: their own sum, and its axes."""

    axes: Axes
    total: Expr


class Separation(NamedTuple):
    """An exponential that separates, a factor of the sum that is a piece of a template.

    piece, factor: their numbers; parts: of its argument, those with axes of the sum first, the smallest first;
    points, tables: numbers of exponentials before and after.
    """

    piece: int
    factor: int
    parts: tuple[TermGroup, ...]
    points: float
    tables: tuple[float, ...]


# ------------------------------------------------------------------------------------------------------- what separates


def separations(t: Template) -> tuple[Separation, ...]:
    """Return the exponentials of a template's sums of which tables have fewer. Computed once per template."""
    return t.memo("separations", _find_separations)


def _find_separations(t: Template) -> tuple[Separation, ...]:
    out = []
    for number, part in enumerate(t.parts):
        body = _sum_body(part)
        for n, (f, divides) in enumerate(body.product.factors if body is not None else ()):
            parts = _parts_of(f, divides, len(part.extents), part.domain)
            if parts:
                tables = tuple(float(hint(prod(part.domain[a] for a in p.axes))) for p in parts)
                points = float(hint(prod(part.domain[a] for a in axes_of(f))))
                if pays(points, tables):
                    out.append(Separation(number, n, parts, points, tables))
    return tuple(out)


def _sum_body(part: object) -> SumBody | None:
    """Return the factors of the sum that a piece is."""
    if not isinstance(part, Piece) or not isinstance(part.body, Reduce) or 0 in part.domain:
        return None
    is_sum = part.body.combiner == "sum" and len(part.body.bodies) == 1
    return split_sum(part.body.bodies[0]) if is_sum else None


def _parts_of(f: Expr, divides: bool, rank: int, domain: Sequence[int]) -> tuple[TermGroup, ...]:
    """Return the parts of the argument of an exponential in a sum, by axes; () if it is none, or has one part. That of
    a divisor is subtracted from 0."""
    exponent = f.args[0] if isinstance(f, Apply) and f.fn == "exp" else None
    terms = [] if exponent is None else _terms(apply("neg", exponent) if divides else exponent)
    if not 2 <= len(terms) <= MAX_TERMS:
        return ()
    axes = [axes_of(x) for x, _ in terms]
    widest = [x for x in dict.fromkeys(axes) if not any(x < other for other in axes)]
    free = frozenset[int]().union(*(x for x in widest if max(x, default=-1) < rank))
    bound = [x for x in widest if max(x, default=-1) >= rank]

    def elements(some: Axes) -> int:
        return int(hint(prod(domain[a] for a in some)))

    bound.sort(key=lambda x: (elements(x), sorted(x)))
    sums: dict[Axes, Expr] = {}
    for (x, minus), own in zip(terms, axes, strict=True):
        place = next((g for g in bound if own <= g), free)
        if place in sums:
            sums[place] = apply("sub" if minus else "add", sums[place], x)
        else:
            sums[place] = apply("neg", x) if minus else x
    return tuple(TermGroup(g, sums[g]) for g in (*bound, free) if g in sums) if len(sums) > 1 and bound else ()


def _terms(x: Expr, depth: int = MAX_TERMS) -> list[tuple[Expr, bool]]:
    """Return the terms of a sum, and whether each is subtracted.

    A factor or divisor of a sum multiplies its terms where two of them then have axes that the other one lacks.

    depth: how deep sums and products may be nested.
    """
    if not isinstance(x, Apply) or not x.dtype.is_float or not depth:
        return [(x, False)]
    if x.fn in ("add", "sub"):
        second = [(e, minus != (x.fn == "sub")) for e, minus in _terms(x.args[1], depth - 1)]
        return _terms(x.args[0], depth - 1) + second
    if x.fn == "neg":
        return [(e, not minus) for e, minus in _terms(x.args[0], depth - 1)]
    for n in {"mul": (0, 1), "div": (0,)}.get(x.fn, ()):
        before, behind = x.args[:n], x.args[n + 1 :]
        terms: list[tuple[Expr, bool]] = [
            (apply(x.fn, *before, e, *behind), minus) for e, minus in _terms(x.args[n], depth - 1)
        ]
        if any(not (a <= b or a >= b) for a, b in combinations([axes_of(e) for e, _ in terms], 2)):
            return terms
    return [(x, False)]


# ------------------------------------------------------------------------------------------------------- the rewriting


def separate(node: Tensor | Recurrence) -> Tensor | Recurrence | None:
    """Return a sum with separate exponentials, where that takes less time and is safe or permitted; None where there
    are none. Elementwise arguments that are such exponentials become part of it."""
    if SEPARATE_EXPONENTIALS in environment.WITHOUT.get() or not isinstance(node, (Compute, Recurrence)):
        return None
    if isinstance(node, Recurrence):
        return _separate_in_steps(node)
    whole = with_exponentials(node)
    factors: dict[tuple[int, int], list[Expr]] = {}
    added: list[Tensor] = []
    free: list[Expr] = []
    for s in separations(whole.template):
        part = whole.template.parts[s.piece]
        if is_safe(s, whole.args, part.domain):
            factors[s.piece, s.factor] = [p.total for p in s.parts]
        elif SEPARATES.get():
            balance = _Balance(whole.template, whole.args, s, added)
            if (totals := balance.totals()) is not None:
                factors[s.piece, s.factor], others = totals[: balance.bound], totals[balance.bound :]
                added, free = balance.tensors, free + others
    if not factors:
        return None
    args = (*whole.args, *added)
    total: Any = canonical(_with_factors(whole.template, factors, types_of(args)), args)
    total = name_operands(total) or total
    return _times(total, free, args) if free else total


def _times(total: Tensor, free: Sequence[Expr], args: Sequence[Tensor]) -> Tensor | None:
    """Return a sum times exponentials that are free of its axes; 0 where it is 0, though they may have overflowed. None
    where they read what a condition keeps in bounds."""
    at = Read(len(args), tuple(Axis(d) for d in range(len(total.shape))), total.dtype)
    product: Expr = at
    for x in free:
        product = apply("mul", product, apply("exp", x))
    zero = Const(0.0, total.dtype)
    args = (*args, total)
    t = template(total.shape, types_of(args), apply("where", apply("eq", at, zero), zero, product))
    return None if may_leave(t) else canonical(t, args)


def _separate_in_steps(node: Recurrence) -> Any:
    """Return a recurrence with separate exponentials in its members' sums, where they are safe."""
    args = (*node.args, *(Item(node, n) for n in range(len(node.members))))
    members = []
    for t in node.members:
        safe = [s for s in separations(t) if is_safe(s, args, t.parts[s.piece].domain)]
        members.append(_with_factors(t, {(s.piece, s.factor): [p.total for p in s.parts] for s in safe}, t.params))
    if members == list(node.members):
        return None
    new = node.replaced(members=tuple(members))
    return name_operands(new) or new


def is_safe(s: Separation, args: Sequence[Tensor], domain: Sequence[int]) -> bool:
    """Return whether all parts of an exponential's argument are never positive."""
    return all(is_never(1, p.total, args, domain) for p in s.parts)


def with_exponentials(node: Compute) -> Compute:
    """Inline elementwise arguments of a sum that are exponentials, or exponents, if exponentials then separate into
    factors; return the node itself otherwise."""
    exponentials = {a for a in node.args if isinstance(a, Compute) and a.template.memo("is_exponential", _is_sum_of)}
    if not exponentials or not any(_sum_body(p) for p in node.template.parts):
        return node
    whole = inline_arguments(node, exponentials)
    return whole if separations(whole.template) else node


def _is_sum_of(t: Template) -> bool:
    """Return whether a template is elementwise, and a sum over different axes, or has the exponential of one as a
    factor."""
    body = float_body(t)
    if body is None or (product := product_of(body)) is None:
        return False
    factors = ((apply("exp", body), False), *product.factors)
    return any(_parts_of(f, divides, 0, t.shape) for f, divides in factors)


def _with_factors(t: Template, factors: Mapping[tuple[int, int], Sequence[Expr]], params: tuple) -> Template:
    """Return a template with products of exponentials in place of factors: (piece, factor) -> the arguments."""
    if not factors:
        return t
    parts = list(t.parts)
    for piece in {n for n, _ in factors}:
        part = parts[piece]
        body = _sum_body(part)
        assert body is not None and isinstance(part, Piece) and isinstance(part.body, Reduce)
        new: list[Factor] = []
        for n, f in enumerate(body.product.factors):
            totals = factors.get((piece, n))
            new += [f] if totals is None else [(apply("exp", x), False) for x in totals]
        total = guarded(body.guards, multiply(new, body.product.minus))
        parts[piece] = Piece(part.offset, part.step, part.extents, Reduce("sum", part.body.extents, (total,)))
    return Template(t.shape, params, tuple(parts))


class _Balance:
    """The parts of an exponential's argument, less the maxima of all but the last, which is added to the last.

    t, args: the template that has the exponential, and what it is applied to; separation: the parts; tensors: what is
    read after `args`.
    """

    def __init__(self, t: Template, args: Sequence[Tensor], separation: Separation, tensors: Sequence[Tensor] = ()):
        self.args, self.separation, self.tensors = args, separation, list(tensors)
        part = t.parts[separation.piece]
        body = _sum_body(part)
        assert body is not None and isinstance(part, Piece)
        self.guards, self.domain, self.rank = body.guards, part.domain, len(part.extents)
        self.bound = sum(max(p.axes, default=-1) >= self.rank for p in separation.parts)
        self.is_whole = len(t.parts) == 1 and part.extents == t.shape

    @property
    def is_possible(self) -> bool:
        """Return whether maxima include nothing that a condition excludes, as they would for axes of several parts, and
        a part without axes of the sum has a tensor to multiply."""
        is_complete = self.is_whole or self.bound == len(self.separation.parts)
        return is_complete and all(any(axes_of(g) <= p.axes for p in self.separation.parts) for g in self.guards)

    def totals(self) -> list[Expr] | None:
        """Return the parts' arguments. None where they are not possible, where no part has all axes that another one
        shares with the others, or where a maximum may leave a tensor."""
        parts = self.separation.parts
        if not self.is_possible:
            return None
        totals = [p.total for p in parts]
        for n, p in enumerate(parts[:-1]):
            others = range(n + 1, max(self.bound, n + 2))
            shared = p.axes & frozenset[int]().union(*(parts[k].axes for k in others))
            to = next((k for k in others if shared <= parts[k].axes), None)
            most = None if to is None else self._maximum(totals[n], p.axes, sorted(shared))
            if to is None or most is None:
                return None
            totals[n] = apply("sub", totals[n], most)
            totals[to] = apply("add", totals[to], most)
        return totals

    def _maximum(self, total: Expr, axes: Axes, kept: list[int]) -> Expr | None:
        """Return the read of the maximum of a part over all axes but those kept; None where it may leave a tensor."""
        lowest = Const(LOWEST, total.dtype)
        for g in reversed([g for g in self.guards if axes_of(g) <= axes]):
            total = apply("where", g, total, lowest)
        order = [*kept, *sorted(axes - {*kept})]
        places: dict[int, Expr] = {a: Axis(n) for n, a in enumerate(order)}
        shape, extents = (tuple(self.domain[a] for a in x) for x in (kept, order[len(kept) :]))
        args = (*self.args, *self.tensors)
        own = template(shape, types_of(args), Reduce("max", extents, (substitute(total, places),)))
        if may_leave(own):
            return None
        most = canonical(own, args)
        at = Read(len(args), tuple(Axis(a) for a in kept), total.dtype)
        self.tensors.append(most)
        return apply("stop_gradient", apply("max", at, lowest))


# ---------------------------------------------------------------------------------------------------------- the report


def report_exponentials(graph: Graph) -> list[str]:
    """Return a line about the exponentials of a graph that would separate if the user permitted it; none without.

    An exponential that several sums read is counted once.
    """
    exponentials: dict[Any, Separation] = {}
    for node in postorder([*graph.roots, *graph.gradients]):
        if isinstance(node, (Compute, Recurrence)) and SEPARATE_EXPONENTIALS not in environment.WITHOUT.get():
            exponentials |= _permissible(node)
    if not exponentials:
        return []
    before, after = sum(s.points for s in exponentials.values()), sum(sum(s.tables) for s in exponentials.values())
    seconds = FUNCTIONS["exp"].seconds * (before - after)
    return [
        f"exponentials of sums: {before:,.0f}; with separate_exponentials=True they are products of {after:,.0f}, in "
        f"{seconds * 1e6:.1f} us less on a core, and those below 1e-38 of the largest become 0 (docs/semantics.md)"
    ]


def _permissible(node: Compute | Recurrence) -> dict[Any, Separation]:
    """Return the separations of a node that need permission, by a key of the exponential that is separated."""
    if isinstance(node, Recurrence):
        members, args = node.members, (*node.args, *(Item(node, n) for n in range(len(node.members))))
        key: Any = node
    else:
        whole = with_exponentials(node)
        members, args = (whole.template,), whole.args
        key = tuple(a for a in node.args if a not in args) or node
    pairs = [(t, s) for t in members for s in separations(t) if not is_safe(s, args, t.parts[s.piece].domain)]
    balances = [(s, _Balance(t, args, s)) for t, s in pairs]
    return {
        (key, n if key is node else 0): s
        for n, (s, b) in enumerate(balances)
        if (b.is_possible if isinstance(node, Recurrence) else b.totals())
    }
