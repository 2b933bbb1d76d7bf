"""Fold reductions over axes that their bodies do not depend on into closed form; the rules are the table `FOLDS`.

before: sum[j](x[i]);  sum[j](where(j <= i, x[i], 0));  prod[j, k](x[i, k]);  max[j](x[i])      with j < n
after:  n*x[i];        where(0 <= i, (i + 1)*x[i], 0);  prod[k](x[i, k]**n);  x[i]

Points that a scatter combines with one element are folded likewise. For a condition that is linear in a free axis, the
points at which it holds are counted. An extent of 0 stays: an empty sum is 0 and an empty product 1, whatever the body
would be.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import NamedTuple

from einsmith.base import dtypes as dt
from einsmith.base.dtypes import DType
from einsmith.ir.analysis.linear import LinearForm, linear, nonnegative
from einsmith.ir.analysis.ranges import wrapped
from einsmith.ir.functions import SELECTIONS
from einsmith.ir.nodes import Apply, Axis, Const, Expr, Reduce, Scatter, apply, axes_of, cast, has_read, is_zero
from einsmith.ir.rebuild import operands, substitute


def fold_free_axes(r: Reduce, outer: Sequence[int]) -> Reduce:
    """Return the reduction without the axes over which it has a closed form; itself where there are none.

    Args:
        r: a reduction.
        outer: extents of the axes around it, which come before its own.
    """
    kept, bodies = _fold(r.combiner, outer, r.extents, r.bodies, ())
    return Reduce(r.combiner, tuple(r.extents[k] for k in kept), bodies) if len(kept) < len(r.extents) else r


def fold_scattered_axes(s: Scatter) -> Scatter:
    """Return the scatter without the axes along which it combines with one element in closed form."""
    kept, bodies = _fold(s.combiner, (), s.extents, (s.body,), s.index)
    if len(kept) == len(s.extents):
        return s
    *index, body = bodies
    return Scatter(s.combiner, tuple(s.extents[k] for k in kept), tuple(index), body)


def _fold(
    combiner: str, outer: Sequence[int], extents: Sequence[int], bodies: tuple[Expr, ...], index: tuple[Expr, ...]
) -> tuple[list[int], tuple[Expr, ...]]:
    """Return the numbers of the axes that remain; then index and bodies over them."""
    rank, kept = len(outer), list(range(len(extents)))
    for k in () if 0 in extents or combiner in SELECTIONS else range(len(extents)):
        if combiner.startswith("arg") and kept.index(k):
            break  # positions count the points of inner axes: only removing the outermost axis keeps them
        folded = [FOLDS[combiner](b, rank + k, (*outer, *extents)) for b in bodies]
        if rank + k not in axes_of(*index) and all(f is not None for f in folded):
            bodies = tuple(f for f in folded if f is not None)
            kept.remove(k)
    axes: dict[int, Expr] = {rank + k: Axis(rank + n) for n, k in enumerate(kept)}
    return kept, tuple(substitute(b, axes) for b in (*index, *bodies))


def _keep_value(body: Expr, axis: int, extents: Sequence[int]) -> Expr | None:
    """Return the maximum or minimum of equal values, at the first position."""
    return None if axis in axes_of(body) else body


def _fold_product(body: Expr, axis: int, extents: Sequence[int]) -> Expr | None:
    if axis in axes_of(body) or body.dtype.is_bool or body.dtype.in_memory_only:
        return None
    return power(body, extents[axis])


def power(x: Expr, n: int) -> Expr:
    """Return x**n for n > 0.

    Powers of integers wrap as products do. A float exponent that its type does not hold would lose its parity, and a
    negative base or its derivative the sign: the exponent is halved, and the base squared.
    """
    if x.dtype.is_float:
        if n == 1:
            return x
        if n <= 1 << x.dtype.digits:
            return apply("pow", x, Const(n, x.dtype))
        even = apply("pow", apply("mul", x, x), Const(n // 2, x.dtype))
        return apply("mul", x, even) if n % 2 else even
    factors: list[Expr] = []
    while n:
        if n % 2:
            factors.append(x)
        x, n = apply("mul", x, x), n // 2
    return reduce(lambda a, b: apply("mul", a, b), factors)


class _GuardLevel(NamedTuple):
    """The condition of one `where` around a body: its parts that depend on the axis, and the others."""

    bound: tuple[Expr, ...]
    free: tuple[Expr, ...]


def _fold_sum(body: Expr, axis: int, extents: Sequence[int]) -> Expr | None:
    """Return the closed form of the body's sum along an axis on which only its guards depend.

    The sum is the innermost value times the number of points at which all guards hold, and 0, without a read of the
    value, where that number is 0. Returns None where no closed form is known, and for dtypes
    without arithmetic.
    """
    if body.dtype.is_bool or body.dtype.in_memory_only:
        return None
    if axis not in axes_of(body):
        return _multiply(Const(extents[axis], dt.i64), body)
    levels: list[_GuardLevel] = []
    inner = body
    while axis in axes_of(inner):
        if not (isinstance(inner, Apply) and inner.fn == "where" and is_zero(inner.args[2])):
            return None
        parts = operands(inner.args[0], "and")
        bound = tuple(c for c in parts if axis in axes_of(c))
        levels.append(_GuardLevel(bound, tuple(c for c in parts if c not in bound)))
        inner = inner.args[1]
    first = next(n for n, level in enumerate(levels) if level.bound)
    conditions = [c for level in levels for c in level.bound]
    if any(has_read(c) for level in levels[first + 1 :] for c in level.bound):
        return None  # its reads may be in bounds only where the preceding conditions hold
    count = _count_points(conditions, axis, extents)
    if count is None:
        return None
    value = _multiply(count, inner)
    for n in reversed(range(len(levels))):
        parts = [*levels[n].free, *([apply("lt", Const(0, count.dtype), count)] if n == first else [])]
        if parts:
            condition = reduce(lambda a, b: apply("and", a, b), parts)
            value = apply("where", condition, value, Const(0, body.dtype))
    return value


def _multiply(count: Expr, x: Expr) -> Expr:
    if isinstance(count, Const) and x.dtype.is_int:
        return apply("mul", Const(wrapped(int(count.value), x.dtype.bits), x.dtype), x)
    return apply("mul", cast(count, x.dtype), x)


def _count_points(conditions: Sequence[Expr], axis: int, extents: Sequence[int]) -> Expr | None:
    """Return the number of points of an axis that meet all conditions (0 or less: none); None where a condition is not
    linear in the axis."""
    low, high = [LinearForm()], [LinearForm(extents[axis] - 1)]
    divided: dict[bool, list[tuple[LinearForm, int]]] = {True: [], False: []}
    forms = []
    for c in conditions:
        form = nonnegative(c)
        if form is not None:
            forms.append(form)
        elif isinstance(c, Apply) and c.fn == "eq" and c.args[0].dtype.is_int:
            difference = linear(c.args[0]) - linear(c.args[1])
            forms += [difference, difference * -1]
        else:
            return None
    at = Axis(axis)
    wide = extents[axis] >= 1 << 31
    for form in forms:
        k, rest = form.coefficient(at), form.without(at)
        if k == 0 or axis in rest.axes or any(a.dtype.bits > 32 for a in rest.atoms):
            return None  # an int64 difference may overflow where the comparison does not
        wide |= bool(rest.atoms)
        if abs(k) == 1:
            (low if k > 0 else high).append(rest * -k)
        else:
            divided[k > 0].append((rest, abs(k)))
    dtype = dt.i64 if wide else dt.i32
    ends = [
        _combine_bounds(fn, plain, [_quotient(f, k, fn == "max", dtype) for f, k in divided[fn == "max"]], dtype)
        for fn, plain in (("max", low), ("min", high))
    ]
    return apply("add", apply("sub", ends[1], ends[0]), Const(1, dtype))


def _quotient(rest: LinearForm, k: int, is_low: bool, dtype: DType) -> Expr:
    """Return the least j with k*j + rest >= 0, or the greatest with rest - k*j >= 0."""
    quotient = apply("floordiv", rest.expr(dtype), Const(k, dtype))
    return apply("neg", quotient) if is_low else quotient


def _combine_bounds(fn: str, plain: Sequence[LinearForm], others: Sequence[Expr], dtype: DType) -> Expr:
    return reduce(lambda a, b: apply(fn, a, b), [*(f.expr(dtype) for f in plain), *others])


FOLDS: Mapping[str, Callable[[Expr, int, Sequence[int]], Expr | None]] = {
    "sum": _fold_sum,
    "prod": _fold_product,
    "max": _keep_value,
    "min": _keep_value,
    "argmax": _keep_value,
    "argmin": _keep_value,
}
"""By combiner: a function that returns the closed form of a body reduced over an axis (its position) of the box of
these extents; None if there is none."""
