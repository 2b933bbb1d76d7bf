"""Write sums up to a position as scans over the output axis, which kernels compute with work linear in its length.

before: Y[i, b] = sum[j](where(j < i, x[j]*w[i, b], 0))
after:  P[i] = sum[j](where(j <= i, where(1 <= j, x[j - 1], 0), 0));  Y[i, b] = P[i]*w[i, b]

A scan (`kernels.scan`) is a sum over j <= i, or i <= j, of elements that do not depend on i, where j and i have one
extent. Sums of other offsets, and of more or fewer positions than elements, are scans of shifted elements, or read one
at a shifted position.

Factors that depend on the position are taken out of each term: sum[j](where(j <= i, a[i]*x[j] - b[i]*z[j], 0)) is two
scans. A factor that also depends on another reduction axis is multiplied before that axis is summed: the sum over j
comes first in sum[j, d](where(j <= i, a[i, d]*x[j, d], 0)).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from math import prod
from typing import NamedTuple

from einsmith.base import dtypes as dt
from einsmith.ir.analysis.linear import LinearForm, nonnegative
from einsmith.ir.nodes import (
    Apply,
    Axis,
    Compute,
    Const,
    Expr,
    Graph,
    Read,
    Reduce,
    Template,
    Tensor,
    apply,
    axes_of,
    has_no_reduction_axis,
    is_zero,
    read_whole,
    size,
    template,
)
from einsmith.ir.rebuild import guarded, operands, prune_args, replace, substitute, types_of, whole_sum
from einsmith.ir.rewrite.simplify import simplify

MAX_TERMS = 8
"""Most terms of a sum that is split; a longer one is treated as one term."""
MIN_POINTS = 1 << 12
"""Fewest points of a sum that is rewritten; fewer are added in the time that another kernel takes to begin (100 ns)."""


def prefix_sums(graph: Graph) -> Graph:
    """Return the graph with prefix sums as scans."""

    def rule(node: Tensor) -> Tensor | None:
        if not isinstance(node, Compute):
            return None
        prefixes = node.template.memo("prefix_sums", _match)
        return None if prefixes is None else _add([_compute_prefix(p, node) for p in prefixes])

    return replace(graph, rule)


class _Prefix(NamedTuple):
    """where(outside, factors * the sum of where(inside, body) over the positions of j up to an end, 0).

    Attributes:
        end: the condition on j.
        body: expression over the output's axes and the reduction's.
        factors: factors that depend on the position.
        inside: conditions within the sum.
        outside: conditions around the sum.
        outer: output axes that the body and the inner conditions depend on.
        others: reduction axes that are summed along with j.
        kept: reduction axes of the factors, which are summed afterwards.
        domain: extents of all axes.
    """

    end: _End
    body: Expr
    factors: tuple[Expr, ...]
    inside: tuple[Expr, ...]
    outside: tuple[Expr, ...]
    outer: tuple[int, ...]
    others: tuple[int, ...]
    kept: tuple[int, ...]
    domain: tuple[int, ...]


def _match(t: Template) -> tuple[_Prefix, ...] | None:
    """Return the prefix sums whose total a template is; None if it is not one."""
    part = whole_sum(t)
    if part is None or prod(part.domain) < MIN_POINTS:
        return None
    (e,) = part.bodies
    if not (isinstance(e, Apply) and e.fn == "where" and is_zero(e.args[2])):
        return None
    conditions = operands(e.args[0], "and")
    max_elements = size(t.shape) + sum(size(shape) for _, shape in t.params)
    for c in conditions:
        rest = [x for x in conditions if x is not c]
        c, rest, body, domain = _shift_axis(c, rest, e.args[1], t.rank, part.domain)
        end = _find_end(c, t.rank)
        prefixes = end and _split_body(end, body, rest, t.rank, domain, max_elements)
        if prefixes:
            return prefixes
    return None


def _shift_axis(
    c: Expr, rest: list[Expr], body: Expr, rank: int, domain: tuple[int, ...]
) -> tuple[Expr, list[Expr], Expr, tuple[int, ...]]:
    """Return (condition, others, body, domain) after the substitution k = i + j, if the condition is i + j <= n; it
    becomes i <= k."""
    form = nonnegative(c)
    axes = [] if form is None else [x.position for x in form.terms if isinstance(x, Axis)]
    if form is None or len(axes) != 2 or len(form.terms) != 2 or set(form.terms.values()) != {-1}:
        return c, rest, body, domain
    i, j = sorted(axes)
    if not i < rank <= j or not 0 <= form.const < domain[j]:
        return c, rest, body, domain
    domain = (*domain[:j], form.const + 1, *domain[j + 1 :])
    place = {j: LinearForm(0, {Axis(j): 1, Axis(i): -1}).expr()}
    body, *rest = (simplify(substitute(x, place), domain) for x in (body, *rest))
    return apply("le", Axis(i), Axis(j)), rest, body, domain


class _End(NamedTuple):
    """The condition j <= i + offset, or j >= i + offset if `backward`."""

    i: int
    j: int
    backward: bool
    offset: int


def _elements(end: _End, domain: Sequence[int]) -> range:
    """Return the elements that at least one position includes; the conditions that keep other reads within their
    tensors may hold for these alone."""
    i, j, backward, offset = end
    return range(max(0, offset), domain[j]) if backward else range(min(domain[j], domain[i] + offset))


def _find_end(c: Expr, rank: int) -> _End | None:
    """Return the bound that a condition puts on a reduction axis by an output axis; None if it is not such a bound."""
    form = nonnegative(c)
    axes = {} if form is None else {x.position: k for x, k in form.terms.items() if isinstance(x, Axis)}
    if form is None or len(axes) != 2 or len(form.terms) != 2 or sorted(axes.values()) != [-1, 1]:
        return None
    i, j = min(axes), max(axes)
    if not i < rank <= j:
        return None
    if axes[j] == -1:
        return _End(i, j, False, form.const)
    return _End(i, j, True, -form.const)


def _split_body(
    end: _End, body: Expr, rest: Sequence[Expr], rank: int, domain: tuple[int, ...], max_elements: int
) -> tuple[_Prefix, ...] | None:
    """Split a body into prefix sums, one per set of outer factors. If outer factors depend on other reduction axes, the
    sum has an element for each of their positions, and at most `max_elements` elements, the total of arguments and
    result. Return None if a term cannot be split off or the work does not decrease."""
    i, j = end.i, end.j
    if not _elements(end, domain):
        return None
    outside = tuple(c for c in rest if j not in axes_of(c) and has_no_reduction_axis(c, rank))
    inside = tuple(c for c in rest if c not in outside)
    bodies: dict[tuple[Expr, ...], Expr] = {}
    for minus, term in _split_terms(body):
        # Where an inner condition excludes terms, a factor may be infinite: it stays in the sum.
        all_factors = operands(term, "mul")
        position_factors = (
            x for x in all_factors if has_no_reduction_axis(x, rank) or (i in axes_of(x) and j not in axes_of(x))
        )
        factors = () if inside else tuple(position_factors)
        summed_factors = [x for x in all_factors if x not in factors]
        if not summed_factors:
            return None
        x = reduce(partial(apply, "mul"), summed_factors)
        if factors in bodies:
            bodies[factors] = apply("sub" if minus else "add", bodies[factors], x)
        else:
            bodies[factors] = apply("neg", x) if minus else x
    prefixes, work = [], 0
    for factors, body in bodies.items():
        depends = axes_of(body, *inside)
        if i in depends or j not in depends:
            return None
        kept = tuple(sorted(a for a in axes_of(*factors) if a >= rank))
        others = tuple(a for a in range(rank, len(domain)) if a != j and a not in kept)
        outer = tuple(sorted(a for a in depends if a < rank or a in kept))
        points = prod(domain[a] for a in (*outer, j))
        if kept and points > max_elements:
            return None
        work += points * (prod(domain[a] for a in others) + 1) + prod(domain[a] for a in (*range(rank), *kept))
        prefixes.append(_Prefix(end, body, factors, inside, outside, outer, others, kept, domain))
    return tuple(prefixes) if work < prod(domain) else None


def _split_terms(body: Expr) -> list[tuple[bool, Expr]]:
    """Return (whether it is subtracted, term) of a sum of at most MAX_TERMS terms; the whole expression as one term
    otherwise."""
    terms: list[tuple[bool, Expr]] = []
    stack = [(False, body)]
    while stack:
        minus, e = stack.pop()
        if isinstance(e, Apply) and e.fn in ("add", "sub"):
            stack += [(minus != (e.fn == "sub"), e.args[1]), (minus, e.args[0])]
        elif isinstance(e, Apply) and e.fn == "neg":
            stack.append((not minus, e.args[0]))
        else:
            terms.append((minus, e))
        if len(terms) + len(stack) > MAX_TERMS:
            return [(False, body)]
    return terms


def _add(sums: Sequence[Tensor]) -> Tensor:
    """Return the sum of tensors of one shape."""
    first = sums[0]
    reads: list[Expr] = [read_whole(n, first.shape, first.dtype) for n in range(len(sums))]
    return first if len(sums) == 1 else _build_tensor(first.shape, reduce(partial(apply, "add"), reads), sums)


def _compute_prefix(p: _Prefix, node: Compute) -> Tensor:
    """Return one of the prefix sums of a node, of the node's shape."""
    i, _, backward, offset = p.end
    rank, positions, included = len(node.shape), p.domain[i], _elements(p.end, p.domain)
    elements, offset = len(included), offset - included.start
    # A scan over the positions has every element, unless some lie before the first one (backward: after the last one).
    every = positions + offset >= elements if backward else offset <= 0
    length, shift = (positions, offset) if every else (elements, 0)
    axes = [*(a for a in range(rank) if a == i or a in p.outer), *(a for a in p.kept if a in p.outer)]
    table = _scan(p, node.args, axes, length, shift)
    if axes == list(range(rank)) and every and not p.factors and not p.outside:
        return table
    after: dict[int, Expr] = {a: Axis(rank + k) for k, a in enumerate(p.kept)}
    index: dict[int, Expr] = {a: after.get(a, Axis(a)) for a in axes}
    at = LinearForm(offset, {Axis(i): 1}).expr()
    if not every:
        limit = Const(0 if backward else elements - 1, dt.i32)
        index[i] = apply("max" if backward else "min", at, limit)
    slots = {s: s + 1 for s in range(len(node.args))}
    total: Expr = Read(0, tuple(index.values()), table.dtype)
    for x in p.factors:
        total = apply("mul", total, substitute(x, after, slots))
    # A factor of a sum without elements may be infinite, or lie outside of its tensor.
    if p.factors and not backward and offset < 0:
        total = guarded([apply("le", Const(0, dt.i32), at)], total)
    if p.factors and backward and positions + offset > elements:
        total = guarded([apply("lt", at, Const(elements, dt.i32))], total)
    total = guarded([substitute(c, {}, slots) for c in p.outside], total)
    result = Reduce("sum", tuple(p.domain[a] for a in p.kept), (total,)) if p.kept else total
    return _build_tensor(node.shape, result, (table, *node.args))


def _scan(p: _Prefix, args: tuple[Tensor, ...], axes: Sequence[int], length: int, shift: int) -> Compute:
    """Return the scan over these axes of the included elements at `shift` after each of `length` positions."""
    i, j, rank, included = axes.index(p.end.i), Axis(len(axes)), len(axes), _elements(p.end, p.domain)
    place: dict[int, Expr] = {a: Axis(n) for n, a in enumerate(axes)}
    at = LinearForm(shift, {j: 1}).expr()
    inside = (*p.inside, p.body)
    if p.others:
        place |= {a: Axis(rank + n) for n, a in enumerate(p.others)}
        element = LinearForm(included.start, {Axis(i): 1}).expr()
        *conditions, body = (substitute(x, {**place, p.end.j: element}) for x in inside)
        inner = Reduce("sum", tuple(p.domain[a] for a in p.others), (guarded(conditions, body),))
        shape = tuple(len(included) if n == i else p.domain[a] for n, a in enumerate(axes))
        args = (_build_tensor(shape, inner, args),)
        inside = (Read(0, tuple(at if n == i else Axis(n) for n in range(rank)), p.body.dtype),)
    else:
        element = LinearForm(shift + included.start, {j: 1}).expr()
        inside = tuple(substitute(x, {**place, p.end.j: element}) for x in inside)
    bounds = [apply("le", j, Axis(i)) if not p.end.backward else apply("le", Axis(i), j)]
    bounds += [apply("le", Const(0, dt.i32), at)] if shift < 0 else []
    bounds += [apply("lt", at, Const(len(included), dt.i32))] if length + shift > len(included) else []
    *conditions, body = inside
    shape = tuple(length if n == i else p.domain[a] for n, a in enumerate(axes))
    return _build_tensor(shape, Reduce("sum", (length,), (guarded([*bounds, *conditions], body),)), args)


def _build_tensor(shape: Sequence[int], body: Expr | Reduce, args: Sequence[Tensor]) -> Compute:
    return prune_args(template(shape, types_of(args), body), tuple(args))
