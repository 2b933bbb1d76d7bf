"""Prove that a position lies below an extent where both are sums of products of numbers that a run knows.

An axis of B*n positions is one of B times n: position i*n + j, with i < B and j < n. `Facts` bounds linear forms; here
the terms are products of axes and of extents, which are at least 1 and known by name alone.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection
from typing import Any

from einsmith.ir.analysis.bounds import Facts
from einsmith.ir.analysis.linear import linear
from einsmith.ir.nodes import Apply, Axis, Const, Expr, Read, apply, cast

_Monomial = tuple[Expr, ...]
"""A product of extents, in the order of their slots; () is 1."""
_Polynomial = Counter[_Monomial]


def is_less(x: Expr, end: Expr, facts: Facts, extents: Collection[Expr]) -> bool:
    """Return whether an integer is proven to be less than another one, at least 1.

    Args:
        x: the integer.
        end: the other one, an extent or a product of extents and numbers.
        facts: what holds.
        extents: reads of extents, which are at least 1.
    """
    if isinstance(x, Apply) and x.fn in ("min", "max"):  # of an index that is kept inside
        return (any if x.fn == "min" else all)(is_less(a, end, facts, extents) for a in x.args)
    if isinstance(x, Apply) and x.fn == "mod" and _of(x.args[1]) == _of(end) and _of(end) in map(_of, extents):
        return True
    if facts.prove(apply("lt", x, cast(end, x.dtype))):
        return True
    if isinstance(x, Apply) and x.fn == "floordiv" and isinstance(x.args[1], Const) and x.args[1].value > 0:
        return is_less(x.args[0], apply("mul", Const(x.args[1].value, end.dtype), end), facts, extents)
    most, limit = _most(x, facts, extents), _polynomial(end, extents)
    if most is None or limit is None:
        return False
    left = Counter(limit)
    left.subtract(most)
    # Each product of extents is at least 1.
    return all(c >= 0 for m, c in left.items() if m) and sum(left.values()) >= 1


def _of(x: Expr) -> Expr:
    """Return what is widened."""
    return x.args[0] if isinstance(x, Apply) and x.fn == "cast" else x


def _factors(x: Expr) -> list[Expr]:
    """Return the factors of a product."""
    x = _of(x)
    return [f for a in x.args for f in _factors(a)] if isinstance(x, Apply) and x.fn == "mul" else [x]


def _polynomial(x: Expr, extents: Collection[Expr]) -> _Polynomial | None:
    """Return a sum of products of extents; None for another expression."""
    form = linear(x)
    out: _Polynomial = Counter({(): form.const})
    for atom, c in form.terms.items():
        factors = _factors(atom)
        constants = [int(f.value) for f in factors if isinstance(f, Const)]
        others = [f for f in factors if not isinstance(f, Const)]
        if any(f not in extents for f in others):
            return None
        out[_ordered(others)] += c * math.prod(constants)
    return out


def _ordered(extents: Collection[Expr]) -> _Monomial:
    return tuple(sorted(extents, key=lambda x: x.slot if isinstance(x, Read) else -1))


def _most(x: Expr, facts: Facts, extents: Collection[Expr]) -> _Polynomial | None:
    """Return an upper bound, a sum of products of extents; None where none is known."""
    form = linear(x)
    out: _Polynomial = Counter({(): form.const})
    for atom, c in form.terms.items():
        bound: _Polynomial = Counter({(): c})
        for f in _factors(atom):
            part: _Polynomial | None = Counter({(f,): 1}) if f in extents else _most_factor(f, facts, extents)
            if part is None:
                return None
            bound = _product(bound, part) if c > 0 or f in extents else Counter()
        out.update(bound)
    return out


def _most_factor(x: Expr, facts: Facts, extents: Collection[Expr]) -> _Polynomial | None:
    """Return an upper bound of a factor that is not negative; None where none is known."""
    if not _is_natural(x, facts, extents):
        return None
    if isinstance(x, Apply) and x.fn == "max" and isinstance(x.args[1], Const) and x.args[1].value <= 0:
        return _most_factor(_of(x.args[0]), facts, extents)
    if isinstance(x, Apply) and x.fn == "min":  # an extent tells more than a number
        bounds = [b for a in x.args if (b := _most_factor(_of(a), facts, extents)) is not None]
        return max(bounds, key=lambda b: (len(b), -b[()]), default=None)
    if isinstance(x, Apply) and x.fn == "mod" and _of(x.args[1]) in extents:
        return Counter({(_of(x.args[1]),): 1, (): -1})
    if isinstance(x, Apply) and x.fn == "floordiv" and (quotient := _most_quotient(x, facts, extents)) is not None:
        return quotient
    if isinstance(x, Axis):
        for e in extents:
            if facts.prove(apply("lt", x, cast(e, x.dtype))):
                return Counter({(e,): 1, (): -1})
    _, high = facts.bounds(x)
    return None if high is None else Counter({(): high})


def _most_quotient(x: Apply, facts: Facts, extents: Collection[Expr]) -> _Polynomial | None:
    """Return an upper bound of a quotient by an extent; None where what is divided is not known to be less than a
    multiple of that."""
    place, divisor = map(_of, x.args)
    for condition, truth in facts.known:
        if not (truth and isinstance(condition, Apply) and condition.fn == "lt" and _of(condition.args[0]) == place):
            continue
        end = {m: c for m, c in (_polynomial(condition.args[1], extents) or Counter()).items() if c}
        if len(end) == 1 and divisor in (monomial := next(iter(end))):
            rest = list(monomial)
            rest.remove(divisor)
            bound: _Polynomial = Counter({_ordered(rest): end[monomial]})
            bound[()] -= 1
            return bound
    return None


def _is_natural(x: Expr, facts: Facts, extents: Collection[Expr]) -> bool:
    """Return whether an integer is proven not to be negative."""
    x = _of(x)
    if x in extents or isinstance(x, Axis):
        return True
    if isinstance(x, Apply) and x.fn in ("add", "mul", "min", "max"):
        return (any if x.fn == "max" else all)(_is_natural(a, facts, extents) for a in x.args)
    if isinstance(x, Apply) and x.fn in ("mod", "floordiv") and _of(x.args[1]) in extents:
        return x.fn == "mod" or _is_natural(x.args[0], facts, extents)
    low, _ = facts.bounds(x)
    return low is not None and low >= 0


def _product(a: _Polynomial, b: _Polynomial) -> _Polynomial:
    out: _Polynomial = Counter()
    for x, c in a.items():
        for y, d in b.items():
            out[_ordered((*x, *y))] += c * d
    return out


def without_bounds(x: Any) -> tuple[Any, float, float]:
    """Strip clamps by constants from an integer: min(max(x, a), b) is (x, a, b); the bounds are infinite without."""
    low, high = -math.inf, math.inf
    while isinstance(x, Apply) and x.dtype.is_int:
        if x.fn == "cast" and x.args[0].dtype.is_int:
            x = x.args[0]
        elif x.fn in ("min", "max") and isinstance(x.args[1], Const):
            low = max(low, x.args[1].value) if x.fn == "max" else low
            high = min(high, x.args[1].value) if x.fn == "min" else high
            x = x.args[0]
        else:
            break
    return x, low, high
