"""Define the simplifier's rules for integer expressions, indices and integer comparisons. See `rules` for the table.

Sums are in linear normal form; quotients and remainders by constants have every multiple of the divisor taken out, so
that `i*W + j` gives back `i` and `j`; comparisons have one form each.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from einsmith.base import dtypes as dt
from einsmith.base.dtypes import DType
from einsmith.base.symbolic import gcd, to_whole
from einsmith.ir.analysis.bounds import Facts
from einsmith.ir.analysis.linear import LinearForm, linear
from einsmith.ir.analysis.ranges import leaves
from einsmith.ir.nodes import Apply, Axis, Const, Expr, Read, apply, postorder

MAX_COLLECTED = 64
"""Most terms of a sum that is normalized. Each partial sum is as well, so that N terms take time in N squared: a graph
of 16 sums of 1,031 terms compiles in 11 s, and without this limit in more than a minute."""


def fits(value: Any, dtype: DType) -> bool:
    """Return whether an integer type holds a constant and, if signed, its negative; True for other types."""
    return not dtype.is_int or (abs(value) <= dtype.range[1] and value >= dtype.range[0])


def _expr(form: LinearForm, dtype: DType) -> Expr | None:
    """Return the form as an expression, or None where a constant does not fit the type."""
    if dtype.bits < 32 or not all(fits(v, dtype) for v in (form.const, *form.terms.values())):
        return None
    return form.expr(dtype)


@lru_cache(maxsize=1 << 15)
def _has_elements(atom: Expr) -> bool:
    """Return whether an atom contains elements of tensors, random bits or floats, which may be any value of their
    types; others consist of axes and literals."""
    return any(
        isinstance(e, Read) or e.dtype.is_float or (isinstance(e, Apply) and e.fn == "random_bits")
        for e in postorder([atom])
    )


def _is_in_range(form: LinearForm, dtype: DType, facts: Facts) -> bool:
    """Return whether a form that contains elements of tensors fits a type for all values of the elements.

    True for a form without elements, whose type is found for the result as a whole (`ir.analysis.widths`).
    """
    if not any(map(_has_elements, form.terms)):
        return True
    low = high = form.const
    for atom, c in form.terms.items():
        reach, least = facts.interval(LinearForm(0, {atom: 1})), atom.dtype.range
        ends = [c * (own if end is None else end) for end, own in zip(reach, least, strict=True)]
        low, high = low + min(ends), high + max(ends)
    return not leaves((low, high), dtype)


def _to_dividend(form: LinearForm, dtype: DType, facts: Facts) -> Expr | None:
    """Return the form as a dividend, or None where a constant or a value does not fit the type."""
    single = len(form.terms) == 1 and not form.const and 1 in form.terms.values()
    return _expr(form, dtype) if single or _is_in_range(form, dtype, facts) else None


def collect_terms(e: Apply, facts: Facts) -> Expr | None:
    """Normalize +, -, * by constants and widening casts to a linear form, with digits joined."""
    form = linear(e)
    if len(form.terms) > MAX_COLLECTED:
        return None
    if len(form.terms) > 1:
        form = _join_digits(form, facts)
    return _expr(form, e.dtype)


def _digit(x: Expr, fn: str) -> tuple[Expr, int] | None:
    """Return (a, n) where x is fn(a, n) with a constant n > 0, else None."""
    if isinstance(x, Apply) and x.fn == fn and isinstance(x.args[1], Const) and x.args[1].value > 0:
        return x.args[0], to_whole(x.args[1].value)
    return None


def _join_digits(form: LinearForm, facts: Facts) -> LinearForm:
    """Join digits: c*(a % n) + c*n*(a // n) -> c*a, and c*(a % n) + c*n*((a//n) % m) -> c*(a % (n*m))."""
    changed = True
    while changed:
        changed = False
        for low, c in form.terms.items():
            digit = _digit(low, "mod")
            if digit is None:
                continue
            a, n = digit
            quotient = _quotient_of(linear(a), n, low.dtype, facts)
            if quotient is None:
                continue
            if form.terms.get(quotient) == c * n:
                form = form.without(low).without(quotient) + linear(a) * c
                changed = True
                break
            for high, k in form.terms.items():
                above = _digit(high, "mod") if k == c * n else None
                if above is not None and above[0] is quotient and fits(n * above[1], low.dtype):
                    whole = apply("mod", a, Const(n * above[1], low.dtype))
                    form = form.without(low).without(high) + LinearForm(0, {whole: c})
                    changed = True
                    break
            if changed:
                break
    return form


def _quotient_of(inner: LinearForm, k: int, dtype: DType, facts: Facts) -> Expr | None:
    """Return inner // k, k > 0, for a form without multiples of k: (a//m + c)//k -> (a + c*m)//(m*k)."""
    if len(inner.terms) == 1:
        ((atom, c),) = inner.terms.items()
        if c == 1 and atom.dtype is dtype:
            nested = _digit(atom, "floordiv")
            if nested is not None:
                a, m = nested
                joined = linear(a) + inner.const * m
                if fits(k * m, dtype) and _to_dividend(joined, dtype, facts) is not None:
                    inner, k = joined, k * m
            else:
                below = _digit(atom, "mod")
                if below is not None and inner.const == 0 and below[1] % k == 0:
                    q = _quotient_of(linear(below[0]), k, dtype, facts)
                    return None if q is None else apply("mod", q, Const(below[1] // k, dtype))
    if not fits(k, dtype):
        return None
    body = _to_dividend(inner, dtype, facts)
    return None if body is None else apply("floordiv", body, Const(k, dtype))


def divide_by_negative(e: Apply, facts: Facts) -> Expr | None:
    """Rewrite a // -k -> (-a) // k and a % -k -> -((-a) % k), k > 0 constant, so that divisors of integers are
    positive.

    None where the type has no value for -a, whose quotient is another one.
    """
    if not isinstance(e.args[1], Const) or e.args[1].value >= 0:
        return None
    k, form = -to_whole(e.args[1].value), linear(e.args[0]) * -1
    if not fits(k, e.dtype) or not _is_in_range(form, e.dtype, facts):
        return None
    body = _expr(form, e.dtype)
    if body is None:
        return None
    out = apply(e.fn, body, Const(k, e.dtype))
    return apply("neg", out) if e.fn == "mod" else out


def divide(e: Apply, facts: Facts) -> Expr | None:
    """Simplify a // k and a % k, k > 0 constant: take out multiples of k and common factors, or decide by bounds.

    By 0 both are 0.
    """
    if not isinstance(e.args[1], Const) or e.args[1].value < 0:
        return None
    if e.args[1].value == 0:
        return Const(0, e.dtype)
    k, dtype, is_mod = to_whole(e.args[1].value), e.dtype, e.fn == "mod"
    form = linear(e.args[0])
    if is_mod:
        for atom, c in form.terms.items():  # c*(a % m) = c*a modulo k, where k divides c*m
            below = _digit(atom, "mod")
            if below is not None and c * below[1] % k == 0:
                body = _to_dividend(form.without(atom) + linear(below[0]) * c, dtype, facts)
                if body is not None:
                    return apply("mod", body, Const(k, dtype))
    whole = LinearForm(0, {a: c // k for a, c in form.terms.items() if c % k == 0})
    rest = LinearForm(form.const, {a: c for a, c in form.terms.items() if c % k})
    known = facts.quotient(rest, k)
    if known is not None:
        return _expr(rest - known * k if is_mod else whole + known, dtype)
    quotient, const = divmod(rest.const, k)
    g, low = _split_off_digit(rest - (rest.const - const), k, facts)
    inner = LinearForm(const // g, {a: c // g for a, c in rest.terms.items() if a not in low.terms})
    if is_mod:
        body = _to_dividend(inner, dtype, facts)
        core = None if body is None else apply("mod", body, Const(k // g, dtype))
        return None if core is None else _expr(low + LinearForm(0, {core: g}), dtype)
    floor = _quotient_of(inner, k // g, dtype, facts)
    return None if floor is None else _expr(whole + quotient + LinearForm(0, {floor: 1}), dtype)


def _split_off_digit(form: LinearForm, k: int, facts: Facts) -> tuple[int, LinearForm]:
    """Split the form into g*a + r with 0 <= r < g where g divides k, so that r is a digit of its own; return (g, r)."""
    divisors = {k}
    for c in form.terms.values():
        divisors |= {gcd(c, g) for g in divisors}
    for g in sorted(divisors - {1, k}, reverse=True):
        low = LinearForm(form.const % g, {a: c for a, c in form.terms.items() if c % g})
        least, most = facts.interval(low)
        if least is not None and least >= 0 and most is not None and most < g:
            return g, low
    return 1, LinearForm()


def decide_extreme(e: Apply, facts: Facts) -> Expr | None:
    """Replace min and max of integers whose order is known by the chosen operand."""
    a, b = e.args
    lo, hi = facts.interval(linear(a) - linear(b))
    if lo is not None and lo >= 0:
        return a if e.fn == "max" else b
    if hi is not None and hi <= 0:
        return b if e.fn == "max" else a
    return None


def decide_sign(e: Apply, facts: Facts) -> Expr | None:
    """Simplify |x| to x or -x where the facts determine the sign of x; None if they do not."""
    lo, hi = facts.interval(linear(e.args[0]))
    if lo is not None and lo >= 0:
        return e.args[0]
    return apply("neg", e.args[0]) if hi is not None and hi <= 0 else None


def decide(e: Expr, facts: Facts) -> Expr | None:
    """Replace an atom with one value only by the constant. Axes stay, even of extent 1: reads at the identity index
    keep their form."""
    if isinstance(e, (Axis, Const, Read)) or e.fn in SUMS or len(linear(e).terms) != 1:
        return None
    value = facts.quotient(linear(e), 1)
    return Const(value, e.dtype) if value is not None and fits(value, e.dtype) else None


SUMS = ("add", "sub", "neg", "mul", "cast")


def narrow_indices(e: Read, facts: Facts) -> Expr | None:
    """Drop widening casts in a read's indices where int32 is certain to hold their values."""
    out = []
    for i in e.index:
        if isinstance(i, Apply) and i.fn in SUMS:
            form = linear(i)
            i = _expr(form, _choose_type(form, (i,), facts)) or i
        out.append(i)
    return Read(e.slot, tuple(out), e.dtype)


def _choose_type(form: LinearForm, old: Sequence[Expr], facts: Facts, equal: bool = False) -> DType:
    """Return the type of a form made of integers that lie in their types: int32, unless only int64 is certain to hold
    it.

    A form made of the int32 expressions `old` is int32 too if the types of their elements do not guarantee that they
    lie in int32, yet they do (the number of a step).
    """
    values = form.const, *form.terms.values()
    if any(x.dtype.bits > 32 for x in form.terms) or not all(fits(v, dt.i32) for v in values):
        return dt.i64
    if _is_in_range(form, dt.i32, facts):
        return dt.i32
    narrow = all(x.dtype.bits <= 32 for x in old)
    # Both sides of an equation differ by as much as in the original, less than 2^32: a wrapped sum is right.
    return dt.i32 if narrow and (equal or not all(_is_in_range(linear(x), dt.i32, facts) for x in old)) else dt.i64


def compare(e: Apply, facts: Facts) -> Expr | None:
    """Normalize integer comparisons: decide them, or compare the negative terms with the positive ones, over their
    common divisor."""
    a, b = e.args
    if not a.dtype.is_int:
        return None
    for truth in (True, False):
        if facts.prove(e, truth):
            return Const(truth, dt.bool_)
    form = linear(b) - linear(a)
    g = gcd(*form.terms.values())

    def compare_forms(fn: str, x: LinearForm, y: LinearForm) -> Expr | None:
        dtype = max((_choose_type(f, e.args, facts, fn in ("eq", "ne")) for f in (x, y)), key=lambda t: t.bits)
        left, right = _expr(x, dtype), _expr(y, dtype)
        return None if left is None or right is None else apply(fn, left, right)

    if e.fn in ("eq", "ne"):
        form = LinearForm(form.const // g, {x: c // g for x, c in form.terms.items()})  # g divides, or it were decided
        lead = min(form.terms, key=lambda x: (not isinstance(x, Axis), x.position if isinstance(x, Axis) else x.digest))
        if form.terms[lead] < 0:
            form = form * -1
        left, right = _split_by_sign(form)
        if form.const > 0 and left.terms:
            return compare_forms(e.fn, right + form.const, left)
        return compare_forms(e.fn, right, left - form.const)
    if e.fn == "lt":
        form = form - 1
    form = LinearForm(form.const // g, {x: c // g for x, c in form.terms.items()})  # >= 0, rounded down
    distance = next((x for x, c in form.terms.items() if c < 0 and _is_distance(x)), None)
    if distance is not None:  # abs(x) <= c is -c <= x and x <= c, each of which is an end of the axes in it
        rest, x = form.without(distance), linear(distance.args[0]) * form.terms[distance]
        ends = [compare_forms("le", LinearForm(), rest + y) for y in (x, x * -1)]
        new = [c if c is None else compare(c, facts) or c for c in ends]  # type: ignore[arg-type]
        return apply("and", *new) if None not in new else None  # type: ignore[arg-type]
    left, right = _split_by_sign(form)  # left <= right + const
    c = form.const
    if not right.terms:
        return compare_forms("lt", left, LinearForm(c + 1))
    if not left.terms:
        return compare_forms("le", LinearForm(-c), right)
    if c == -1:
        return compare_forms("lt", left, right)
    return compare_forms("le", left, right + c) if c >= 0 else compare_forms("le", left - c, right)


def _is_distance(x: Expr) -> bool:
    """Return whether an expression is the absolute value of an exact integer; the absolute value of a type's least
    element would wrap."""
    return isinstance(x, Apply) and x.fn == "abs" and not _has_elements(x)


def _split_by_sign(form: LinearForm) -> tuple[LinearForm, LinearForm]:
    """Return (the negative terms, negated; the positive terms)."""
    negative = LinearForm(0, {x: -c for x, c in form.terms.items() if c < 0})
    return negative, LinearForm(0, {x: c for x, c in form.terms.items() if c > 0})


def decide_cast(e: Apply, facts: Facts) -> Expr | None:
    """Replace i32(condition) by a constant where the condition is decided."""
    if not e.args[0].dtype.is_bool:
        return None
    lo, hi = facts.interval(linear(e))
    return Const(lo, e.dtype) if lo is not None and lo == hi else None
