"""Sums of all elements up to each are added up block by block.

before: Y[i] = sum[j](where(j <= i, x[j], 0))
after:  S[b] = sum[l](x[16*b + l]);  E[b] = sum[a](where(a < b, S[a], 0)), of many blocks in the same way again
        R[b, k] = sum[l](where(l <= k, x[16*b + l], 0));  Y[i] = R[i//16, i%16] + E[i//16]

The work is so many additions an element, of whole vectors, in place of half the elements (Blelloch 1990, "Prefix sums
and their applications"). Sums from an element on are those up to one from the other end.

Factors of the place are taken out of each term: sum[j](where(j <= i, a[i]*x[j] - b[i]*z[j], 0)) is two such sums.
What depends on another reduction axis too is multiplied before that one is summed: of sum[j, d](where(j <= i,
a[i, d]*x[j, d], 0)) the sum over j comes first.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from math import prod
from typing import NamedTuple

from einsmith import dtypes as dt
from einsmith.expr.analysis.linear import LinearForm, nonnegative
from einsmith.expr.nodes import (
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
    is_free,
    is_zero,
    size,
    template,
)
from einsmith.expr.rewrite.rebuild import guarded, operands, prune_args, replace, substitute, whole_sum
from einsmith.expr.rewrite.simplify import simplify

BLOCK = 16
"""Elements of a block: what a vector holds of float32 where vectors are widest. R of 1e5 and 1e6 elements takes 0.030
and 0.24 ms in blocks of 16, 0.028 and 0.23 of 8, 0.072 and 0.68 of 32 on two cores of a Zen 4."""
ROWS = 8
"""Sums beside each other from which on they are added up element by element along time: on that machine 5,000 elements
of 2 rows take 0.046 ms so and 0.025 in blocks, of 4 rows 0.051 and 0.042, of 8 0.055 and 0.063, of 32 0.11 and 0.21."""
FEW = 4 * BLOCK
"""Blocks whose sums are added up each by itself."""
TERMS = 8
"""Of a sum of sums: one of more is summed as it is."""
STEPS = 1 << 16
"""Terms of a sum that are less than the kernels of its steps take: 100 ns each to begin, at a vector a cycle."""


def prefix_sums(graph: Graph) -> Graph:
    """The graph with such sums in steps."""

    def rule(node: Tensor) -> Tensor | None:
        if not isinstance(node, Compute):
            return None
        found = node.template.memo("prefix_sums", _found)
        return None if found is None else _total_of([_steps(p, node) for p in found])

    return replace(graph, rule)


class _Prefix(NamedTuple):
    """where(outside, factors * the sum of where(inside, body) up to place `last` of j, 0); last: of an output axis.

    body: over the output's axes and the reduction's. outer: output axes that the body and what is inside depend on.
    others: reduction axes that are summed along with j; kept: those of the factors, which are summed afterwards.
    backward: the sum is from the place on, and places are counted from the end.
    """

    j: int
    last: LinearForm
    backward: bool
    body: Expr
    factors: tuple[Expr, ...]
    inside: tuple[Expr, ...]
    outside: tuple[Expr, ...]
    outer: tuple[int, ...]
    others: tuple[int, ...]
    kept: tuple[int, ...]
    domain: tuple[int, ...]


def _found(t: Template) -> tuple[_Prefix, ...] | None:
    """The sums up to a place that a sum is the sum of."""
    part = whole_sum(t)
    if part is None or prod(part.domain) < STEPS:
        return None
    (e,) = part.bodies
    if not (isinstance(e, Apply) and e.fn == "where" and is_zero(e.args[2])):
        return None
    conditions = operands(e.args[0], "and")
    room = size(t.shape) + sum(size(shape) for _, shape in t.params)
    for c in conditions:
        rest = [x for x in conditions if x is not c]
        c, rest, body, domain = _from_place(c, rest, e.args[1], t.rank, part.domain)
        end = _end(c, t.rank, domain)
        made = end and _prefixes(end, body, rest, t.rank, domain, room)
        if made:
            return made
    return None


def _from_place(
    c: Expr, rest: list[Expr], body: Expr, rank: int, domain: tuple[int, ...]
) -> tuple[Expr, list[Expr], Expr, tuple[int, ...]]:
    """Condition, others, body and domain with k = i + j in the place of j where the condition is i + j <= n: i <= k."""
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
    """j <= last, which is i and a constant; or, in places from the end, the same of j >= i and a constant."""

    i: int
    j: int
    backward: bool
    last: LinearForm


def _end(c: Expr, rank: int, domain: Sequence[int]) -> _End | None:
    """What a condition says of an output axis and a reduction axis; None where that is no end of a sum."""
    form = nonnegative(c)
    axes = {} if form is None else {x.position: k for x, k in form.terms.items() if isinstance(x, Axis)}
    if form is None or len(axes) != 2 or len(form.terms) != 2 or sorted(axes.values()) != [-1, 1]:
        return None
    i, j = min(axes), max(axes)
    if not i < rank <= j:
        return None
    if axes[j] == -1:
        return _End(i, j, False, LinearForm(form.const, {Axis(i): 1}))
    return _End(i, j, True, LinearForm(domain[j] - 1 + form.const, {Axis(i): -1}))


def _prefixes(
    end: _End, body: Expr, rest: Sequence[Expr], rank: int, domain: tuple[int, ...], room: int
) -> tuple[_Prefix, ...] | None:
    """Of a body's terms those with the same factors outside are one sum. Where such a factor depends on other reduction
    axes, a sum of each of their places has no more elements than `room`, those of arguments and result together."""
    i, j, backward, last = end
    outside = tuple(c for c in rest if j not in axes_of(c) and is_free(c, rank))
    inside = tuple(c for c in rest if c not in outside)
    bodies: dict[tuple[Expr, ...], Expr] = {}
    for minus, term in _terms(body):
        # Beside a condition of the sum's own a factor may be infinite where no term is: it stays.
        every = operands(term, "mul")
        of_place = (x for x in every if is_free(x, rank) or (i in axes_of(x) and j not in axes_of(x)))
        factors = () if inside else tuple(of_place)
        summed = [x for x in every if x not in factors]
        if not summed:
            return None
        x = reduce(partial(apply, "mul"), summed)
        if factors in bodies:
            bodies[factors] = apply("sub" if minus else "add", bodies[factors], x)
        else:
            bodies[factors] = apply("neg", x) if minus else x
    found, work = [], 0
    for factors, body in bodies.items():
        depends = axes_of(body, *inside)
        if i in depends or j not in depends:
            return None
        kept = tuple(sorted(a for a in axes_of(*factors) if a >= rank))
        others = tuple(a for a in range(rank, len(domain)) if a != j and a not in kept)
        outer = tuple(sorted(a for a in depends if a < rank or a in kept))
        points = prod(domain[a] for a in (*outer, j))
        if kept and points > room:
            return None
        work += points * (prod(domain[a] for a in others) + 2 * BLOCK) + prod(domain[a] for a in (*range(rank), *kept))
        found.append(_Prefix(j, last, backward, body, factors, inside, outside, outer, others, kept, domain))
    return tuple(found) if work < prod(domain) else None


def _terms(body: Expr) -> list[tuple[bool, Expr]]:
    """(whether it is taken off, term) of a sum of few; the whole of what is none, or has more."""
    found: list[tuple[bool, Expr]] = []
    stack = [(False, body)]
    while stack:
        minus, e = stack.pop()
        if isinstance(e, Apply) and e.fn in ("add", "sub"):
            stack += [(minus != (e.fn == "sub"), e.args[1]), (minus, e.args[0])]
        elif isinstance(e, Apply) and e.fn == "neg":
            stack.append((not minus, e.args[0]))
        else:
            found.append((minus, e))
        if len(found) + len(stack) > TERMS:
            return [(False, body)]
    return found


def _total_of(sums: Sequence[Tensor]) -> Tensor:
    """The sum of tensors of one shape."""
    first, at = sums[0], tuple(map(Axis, range(len(sums[0].shape))))
    reads: list[Expr] = [Read(n, at, first.dtype) for n in range(len(sums))]
    return first if len(sums) == 1 else _made(first.shape, reduce(partial(apply, "add"), reads), sums)


def _steps(p: _Prefix, node: Compute) -> Tensor:
    n, q = p.domain[p.j], len(p.outer)
    place: dict[int, Expr] = {a: Axis(k) for k, a in enumerate(p.outer)}
    place |= {a: Axis(q + 1 + k) for k, a in enumerate(p.others)}
    place[p.j] = LinearForm(n - 1, {Axis(q): -1}).expr() if p.backward else Axis(q)
    body = guarded([substitute(c, place) for c in p.inside], substitute(p.body, place))
    outer, args = tuple(p.domain[a] for a in p.outer), node.args
    if p.others:
        inner = Reduce("sum", tuple(p.domain[a] for a in p.others), (body,))
        args = (_made((*outer, n), inner, args),)
        body = Read(0, tuple(map(Axis, range(q + 1))), body.dtype)
    ((axis, sign),) = p.last.terms.items()
    assert isinstance(axis, Axis)
    ends = p.last.const, p.last.const + sign * (p.domain[axis.position] - 1)
    at = last = p.last.expr()
    if max(ends) >= n:
        at = apply("min", last, Const(n - 1, dt.i32))
    after: dict[int, Expr] = {a: Axis(len(node.shape) + k) for k, a in enumerate(p.kept)}
    where = tuple(after.get(a, Axis(a)) for a in p.outer)
    made: tuple[Tensor, ...]
    total: Expr
    if prod(outer) >= ROWS:
        made, total = (_row_by_row(body, args, outer, n),), Read(0, (at, *where), body.dtype)
    else:
        made, total = _added(body, args, outer, n), _total(where, at, body.dtype)
    slots = {s: len(made) + s for s in range(len(node.args))}
    for x in p.factors:
        total = apply("mul", total, substitute(x, after, slots))
    if min(ends) < 0:
        total = guarded([apply("le", Const(0, dt.i32), last)], total)
    total = guarded([substitute(c, {}, slots) for c in p.outside], total)
    result = Reduce("sum", tuple(p.domain[a] for a in p.kept), (total,)) if p.kept else total
    return _made(node.shape, result, (*made, *node.args))


def _row_by_row(body: Expr, args: tuple[Tensor, ...], outer: tuple[int, ...], n: int) -> Tensor:
    """P[t, ...] = P[t - 1, ...] + body, for n places of time."""
    q = len(outer)
    rows = {k: Axis(k + 1) for k in range(q)}

    def at(t: Expr) -> Expr:
        return substitute(body, {**rows, q: t})

    earlier = Read(len(args), tuple(map(Axis, range(q + 1))), body.dtype)
    start = Piece((0,) * (q + 1), (1,) * (q + 1), (1, *outer), at(Const(0, dt.i32)))
    step = apply("add", earlier, at(LinearForm(1, {Axis(0): 1}).expr()))
    steps = Piece((1, *(0,) * q), (1,) * (q + 1), (n - 1, *outer), step)
    params = [*((a.dtype, a.shape) for a in args), (body.dtype, (n, *outer))]
    return Item(Recurrence(n - 1, False, (1,), (Template((n, *outer), tuple(params), (start, steps)),), args), 0)


def _total(where: Sequence[Expr], at: Expr, dtype: dt.DType) -> Expr:
    """R + E at a place."""
    block, place = _in_blocks(at)
    return apply("add", Read(0, (*where, block, place), dtype), Read(1, (*where, block), dtype))


def _in_blocks(at: Expr) -> tuple[Expr, Expr]:
    """The block of a place, and the place in it."""
    size = Const(BLOCK, dt.i32)
    return apply("floordiv", at, size), apply("mod", at, size)


def _added(body: Expr, args: tuple[Tensor, ...], outer: tuple[int, ...], n: int) -> tuple[Tensor, Tensor]:
    """(R, E) of the module's `after`, of a body over the outer axes and one of n places."""
    q, blocks = len(outer), -(-n // BLOCK)
    where = tuple(map(Axis, range(q)))

    def within(k: int, *conditions: Expr) -> Reduce:
        at = LinearForm(0, {Axis(q): BLOCK, Axis(k): 1}).expr()
        if n % BLOCK:
            conditions = (*conditions, apply("lt", at, Const(n, dt.i32)))
        return Reduce("sum", (BLOCK,), (guarded(conditions, substitute(body, {q: at})),))

    rows = _made((*outer, blocks, BLOCK), within(q + 2, apply("le", Axis(q + 2), Axis(q + 1))), args)
    sums = _made((*outer, blocks), within(q + 1), args)
    if blocks <= FEW:
        earlier = guarded([apply("lt", Axis(q + 1), Axis(q))], Read(0, (*where, Axis(q + 1)), body.dtype))
        return rows, _made((*outer, blocks), Reduce("sum", (blocks,), (earlier,)), (sums,))
    inner, before = _added(Read(0, (*where, Axis(q)), body.dtype), (sums,), outer, blocks)
    total = _total(where, LinearForm(-1, {Axis(q): 1}).expr(), body.dtype)
    later = guarded([apply("le", Const(1, dt.i32), Axis(q))], total)
    return rows, _made((*outer, blocks), later, (inner, before))


def _made(shape: Sequence[int], body: Expr | Reduce, args: Sequence[Tensor]) -> Compute:
    return prune_args(template(shape, [(a.dtype, a.shape) for a in args], body), tuple(args))
