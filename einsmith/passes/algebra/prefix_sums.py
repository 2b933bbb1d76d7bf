"""Compute prefix sums block by block, with work linear in the number of elements.

before: Y[i] = sum[j](where(j <= i, x[j], 0))
after:  S[b] = sum[l](x[16*b + l]);  E[b] = sum[a](where(a < b, S[a], 0)), recursively if there are many blocks
        R[b, k] = sum[l](where(l <= k, x[16*b + l], 0));  Y[i] = R[i//16, i%16] + E[i//16]

Each element costs about a block of additions on whole vectors, instead of half the elements (Blelloch 1990, "Prefix
sums and their applications"). Suffix sums are prefix sums from the other end.

Factors that depend on the position are taken out of each term: sum[j](where(j <= i, a[i]*x[j] - b[i]*z[j], 0)) is two
prefix sums. A factor that also depends on another reduction axis is multiplied before that axis is summed: the sum over
j comes first in sum[j, d](where(j <= i, a[i, d]*x[j, d], 0)).
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
    Item,
    Piece,
    Read,
    Recurrence,
    Reduce,
    Template,
    Tensor,
    apply,
    axes_of,
    has_no_reduction_axis,
    is_zero,
    size,
    template,
)
from einsmith.ir.rebuild import guarded, operands, prune_args, replace, substitute, whole_sum
from einsmith.ir.rewrite.simplify import simplify

BLOCK = 16
"""Elements of a block: the float32 elements of the widest vectors. R of 1e5 and 1e6 elements takes 0.030 and 0.24 ms in
blocks of 16, 0.028 and 0.23 of 8, 0.072 and 0.68 of 32 on two cores of a Zen 4."""
ROWS = 8
"""Fewest independent sums that are added element by element along time instead of in blocks: on two cores of a Zen 4,
5,000 elements of 2 rows take 0.046 ms along time and 0.025 in blocks, of 4 rows 0.051 and 0.042, of 8 0.055 and 0.063,
of 32 0.11 and 0.21."""
FEW = 4 * BLOCK
"""Most blocks whose sums are added up directly, without recursion."""
TERMS = 8
"""Most terms of a sum that is split; a longer one is treated as one term."""
STEPS = 1 << 16
"""Fewest points of a sum for which blocks pay: below, the kernels of the steps take longer (100 ns each to begin, at
one vector per cycle)."""


def prefix_sums(graph: Graph) -> Graph:
    """Return the graph with prefix sums computed in blocks."""

    def rule(node: Tensor) -> Tensor | None:
        if not isinstance(node, Compute):
            return None
        found = node.template.memo("prefix_sums", _find)
        return None if found is None else _total_of([_steps(p, node) for p in found])

    return replace(graph, rule)


class _Prefix(NamedTuple):
    """where(outside, factors * the sum of where(inside, body) up to position `last` of j, 0).

    Attributes:
        j: the reduction axis that is summed up to a position.
        last: the position, a linear form of an output axis.
        backward: whether the sum begins at the position; positions then count from the end.
        body: expression over the output's axes and the reduction's.
        factors: factors that depend on the position.
        inside: conditions within the sum.
        outside: conditions around the sum.
        outer: output axes that the body and the inner conditions depend on.
        others: reduction axes that are summed along with j.
        kept: reduction axes of the factors, which are summed afterwards.
        domain: extents of all axes.
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


def _find(t: Template) -> tuple[_Prefix, ...] | None:
    """Return the prefix sums whose total a template is; None if it is not one."""
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
    """The condition j <= last, where last is i plus a constant. If `backward`, positions count from the end, and the
    condition means j >= i plus a constant."""

    i: int
    j: int
    backward: bool
    last: LinearForm


def _end(c: Expr, rank: int, domain: Sequence[int]) -> _End | None:
    """Return the bound that a condition puts on a reduction axis by an output axis; None if it is not such a bound."""
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
    """Split a body into prefix sums, one per set of outer factors. If outer factors depend on other reduction axes, the
    sum has an element for each of their positions, and at most `room` elements, the total of arguments and result.
    Return None if a term cannot be split off or the work does not decrease."""
    i, j, backward, last = end
    outside = tuple(c for c in rest if j not in axes_of(c) and has_no_reduction_axis(c, rank))
    inside = tuple(c for c in rest if c not in outside)
    bodies: dict[tuple[Expr, ...], Expr] = {}
    for minus, term in _terms(body):
        # Where an inner condition excludes terms, a factor may be infinite: it stays in the sum.
        every = operands(term, "mul")
        of_place = (x for x in every if has_no_reduction_axis(x, rank) or (i in axes_of(x) and j not in axes_of(x)))
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
    """Return (whether it is subtracted, term) of a sum of at most TERMS terms; the whole expression as one term
    otherwise."""
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
    """Return the sum of tensors of one shape."""
    first, at = sums[0], tuple(map(Axis, range(len(sums[0].shape))))
    reads: list[Expr] = [Read(n, at, first.dtype) for n in range(len(sums))]
    return first if len(sums) == 1 else _compute(first.shape, reduce(partial(apply, "add"), reads), sums)


def _steps(p: _Prefix, node: Compute) -> Tensor:
    n, q = p.domain[p.j], len(p.outer)
    place: dict[int, Expr] = {a: Axis(k) for k, a in enumerate(p.outer)}
    place |= {a: Axis(q + 1 + k) for k, a in enumerate(p.others)}
    place[p.j] = LinearForm(n - 1, {Axis(q): -1}).expr() if p.backward else Axis(q)
    body = guarded([substitute(c, place) for c in p.inside], substitute(p.body, place))
    outer, args = tuple(p.domain[a] for a in p.outer), node.args
    if p.others:
        inner = Reduce("sum", tuple(p.domain[a] for a in p.others), (body,))
        args = (_compute((*outer, n), inner, args),)
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
        made, total = _sum_after(body, args, outer, n), _total(where, at, body.dtype)
    slots = {s: len(made) + s for s in range(len(node.args))}
    for x in p.factors:
        total = apply("mul", total, substitute(x, after, slots))
    if min(ends) < 0:
        total = guarded([apply("le", Const(0, dt.i32), last)], total)
    total = guarded([substitute(c, {}, slots) for c in p.outside], total)
    result = Reduce("sum", tuple(p.domain[a] for a in p.kept), (total,)) if p.kept else total
    return _compute(node.shape, result, (*made, *node.args))


def _row_by_row(body: Expr, args: tuple[Tensor, ...], outer: tuple[int, ...], n: int) -> Tensor:
    """Return P[t, ...] = P[t - 1, ...] + body, for n positions of time."""
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
    """Return R + E at a position."""
    block, place = _in_blocks(at)
    return apply("add", Read(0, (*where, block, place), dtype), Read(1, (*where, block), dtype))


def _in_blocks(at: Expr) -> tuple[Expr, Expr]:
    """Return (the block of a position, the position in the block)."""
    size = Const(BLOCK, dt.i32)
    return apply("floordiv", at, size), apply("mod", at, size)


def _sum_after(body: Expr, args: tuple[Tensor, ...], outer: tuple[int, ...], n: int) -> tuple[Tensor, Tensor]:
    """Return (R, E) of the module's `after`, for a body over the outer axes and one of n positions."""
    q, blocks = len(outer), -(-n // BLOCK)
    where = tuple(map(Axis, range(q)))

    def within(k: int, *conditions: Expr) -> Reduce:
        at = LinearForm(0, {Axis(q): BLOCK, Axis(k): 1}).expr()
        if n % BLOCK:
            conditions = (*conditions, apply("lt", at, Const(n, dt.i32)))
        return Reduce("sum", (BLOCK,), (guarded(conditions, substitute(body, {q: at})),))

    rows = _compute((*outer, blocks, BLOCK), within(q + 2, apply("le", Axis(q + 2), Axis(q + 1))), args)
    sums = _compute((*outer, blocks), within(q + 1), args)
    if blocks <= FEW:
        earlier = guarded([apply("lt", Axis(q + 1), Axis(q))], Read(0, (*where, Axis(q + 1)), body.dtype))
        return rows, _compute((*outer, blocks), Reduce("sum", (blocks,), (earlier,)), (sums,))
    inner, before = _sum_after(Read(0, (*where, Axis(q)), body.dtype), (sums,), outer, blocks)
    total = _total(where, LinearForm(-1, {Axis(q): 1}).expr(), body.dtype)
    later = guarded([apply("le", Const(1, dt.i32), Axis(q))], total)
    return rows, _compute((*outer, blocks), later, (inner, before))


def _compute(shape: Sequence[int], body: Expr | Reduce, args: Sequence[Tensor]) -> Compute:
    return prune_args(template(shape, [(a.dtype, a.shape) for a in args], body), tuple(args))
