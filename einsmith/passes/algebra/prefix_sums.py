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
    read_whole,
    size,
    template,
)
from einsmith.ir.rebuild import guarded, operands, prune_args, replace, substitute, whole_sum
from einsmith.ir.rewrite.simplify import simplify

BLOCK = 16
"""Elements of a block: the float32 elements of the widest vectors. R of 1e5 and 1e6 elements takes 0.030 and 0.24 ms in
blocks of 16, 0.028 and 0.23 of 8, 0.072 and 0.68 of 32 on two cores of a Zen 4."""
MIN_ROWS = 8
"""Fewest independent sums that are added element by element along time instead of in blocks: on two cores of a Zen 4,
5,000 elements of 2 rows take 0.046 ms along time and 0.025 in blocks, of 4 rows 0.051 and 0.042, of 8 0.055 and 0.063,
of 32 0.11 and 0.21."""
MAX_DIRECT_BLOCKS = 4 * BLOCK
"""Most blocks whose sums are added up directly, without recursion."""
MAX_TERMS = 8
"""Most terms of a sum that is split; a longer one is treated as one term."""
MIN_POINTS = 1 << 16
"""Fewest points of a sum for which blocks pay: below, the kernels of S, E and R take longer (100 ns each to begin, at
one vector per cycle)."""


def prefix_sums(graph: Graph) -> Graph:
    """Return the graph with prefix sums computed in blocks."""

    def rule(node: Tensor) -> Tensor | None:
        if not isinstance(node, Compute):
            return None
        prefixes = node.template.memo("prefix_sums", _match)
        return None if prefixes is None else _add([_compute_prefix(p, node) for p in prefixes])

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
        end = _find_end(c, t.rank, domain)
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
    """The condition j <= last, where last is i plus a constant. If `backward`, positions count from the end, and the
    condition means j >= i plus a constant."""

    i: int
    j: int
    backward: bool
    last: LinearForm


def _find_end(c: Expr, rank: int, domain: Sequence[int]) -> _End | None:
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


def _split_body(
    end: _End, body: Expr, rest: Sequence[Expr], rank: int, domain: tuple[int, ...], max_elements: int
) -> tuple[_Prefix, ...] | None:
    """Split a body into prefix sums, one per set of outer factors. If outer factors depend on other reduction axes, the
    sum has an element for each of their positions, and at most `max_elements` elements, the total of arguments and
    result. Return None if a term cannot be split off or the work does not decrease."""
    i, j, backward, last = end
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
        work += points * (prod(domain[a] for a in others) + 2 * BLOCK) + prod(domain[a] for a in (*range(rank), *kept))
        prefixes.append(_Prefix(j, last, backward, body, factors, inside, outside, outer, others, kept, domain))
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
    extent, q = p.domain[p.j], len(p.outer)
    place: dict[int, Expr] = {a: Axis(k) for k, a in enumerate(p.outer)}
    place |= {a: Axis(q + 1 + k) for k, a in enumerate(p.others)}
    place[p.j] = LinearForm(extent - 1, {Axis(q): -1}).expr() if p.backward else Axis(q)
    body = guarded([substitute(c, place) for c in p.inside], substitute(p.body, place))
    outer, args = tuple(p.domain[a] for a in p.outer), node.args
    if p.others:
        inner = Reduce("sum", tuple(p.domain[a] for a in p.others), (body,))
        args = (_build_tensor((*outer, extent), inner, args),)
        body = Read(0, tuple(map(Axis, range(q + 1))), body.dtype)
    ((axis, sign),) = p.last.terms.items()
    assert isinstance(axis, Axis)
    ends = p.last.const, p.last.const + sign * (p.domain[axis.position] - 1)
    at = last = p.last.expr()
    if max(ends) >= extent:
        at = apply("min", last, Const(extent - 1, dt.i32))
    after: dict[int, Expr] = {a: Axis(len(node.shape) + k) for k, a in enumerate(p.kept)}
    outer_index = tuple(after.get(a, Axis(a)) for a in p.outer)
    tables: tuple[Tensor, ...]
    total: Expr
    if prod(outer) >= MIN_ROWS:
        tables, total = (_accumulate_along_time(body, args, outer, extent),), Read(0, (at, *outer_index), body.dtype)
    else:
        tables, total = _sum_blocks(body, args, outer, extent), _read_prefix(outer_index, at, body.dtype)
    slots = {s: len(tables) + s for s in range(len(node.args))}
    for x in p.factors:
        total = apply("mul", total, substitute(x, after, slots))
    if min(ends) < 0:
        total = guarded([apply("le", Const(0, dt.i32), last)], total)
    total = guarded([substitute(c, {}, slots) for c in p.outside], total)
    result = Reduce("sum", tuple(p.domain[a] for a in p.kept), (total,)) if p.kept else total
    return _build_tensor(node.shape, result, (*tables, *node.args))


def _accumulate_along_time(body: Expr, args: tuple[Tensor, ...], outer: tuple[int, ...], n: int) -> Tensor:
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


def _read_prefix(outer_index: Sequence[Expr], at: Expr, dtype: dt.DType) -> Expr:
    """Return R + E at a position."""
    block, place = _split_position(at)
    return apply("add", Read(0, (*outer_index, block, place), dtype), Read(1, (*outer_index, block), dtype))


def _split_position(at: Expr) -> tuple[Expr, Expr]:
    """Return (the block of a position, the position in the block)."""
    size = Const(BLOCK, dt.i32)
    return apply("floordiv", at, size), apply("mod", at, size)


def _sum_blocks(body: Expr, args: tuple[Tensor, ...], outer: tuple[int, ...], n: int) -> tuple[Tensor, Tensor]:
    """Return (R, E) of the module's `after`, for a body over the outer axes and one of n positions."""
    q, blocks = len(outer), -(-n // BLOCK)
    outer_index = tuple(map(Axis, range(q)))

    def sum_block(k: int, *conditions: Expr) -> Reduce:
        at = LinearForm(0, {Axis(q): BLOCK, Axis(k): 1}).expr()
        if n % BLOCK:
            conditions = (*conditions, apply("lt", at, Const(n, dt.i32)))
        return Reduce("sum", (BLOCK,), (guarded(conditions, substitute(body, {q: at})),))

    rows = _build_tensor((*outer, blocks, BLOCK), sum_block(q + 2, apply("le", Axis(q + 2), Axis(q + 1))), args)
    sums = _build_tensor((*outer, blocks), sum_block(q + 1), args)
    if blocks <= MAX_DIRECT_BLOCKS:
        earlier = guarded([apply("lt", Axis(q + 1), Axis(q))], Read(0, (*outer_index, Axis(q + 1)), body.dtype))
        return rows, _build_tensor((*outer, blocks), Reduce("sum", (blocks,), (earlier,)), (sums,))
    inner, before = _sum_blocks(Read(0, (*outer_index, Axis(q)), body.dtype), (sums,), outer, blocks)
    total = _read_prefix(outer_index, LinearForm(-1, {Axis(q): 1}).expr(), body.dtype)
    later = guarded([apply("le", Const(1, dt.i32), Axis(q))], total)
    return rows, _build_tensor((*outer, blocks), later, (inner, before))


def _build_tensor(shape: Sequence[int], body: Expr | Reduce, args: Sequence[Tensor]) -> Compute:
    return prune_args(template(shape, [(a.dtype, a.shape) for a in args], body), tuple(args))
