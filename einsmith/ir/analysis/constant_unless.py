"""Find what a value equals unless a condition holds: where(c, x, -inf) is -inf unless c, its exp is 0 unless c, and a
product with that is 0 unless c.

As in the formula, in which masked values are exact zeros, a factor that is infinite or no number is left out of
account. So is exp(-inf - m) where m is no number or -inf, as the maximum of a row is that a mask excludes whole.
"""

from __future__ import annotations

from collections.abc import Callable
from math import exp, inf
from typing import NamedTuple

from einsmith.base import dtypes as dt
from einsmith.ir.nodes import Apply, Const, Expr, Read, apply, cached_postorder

_FALSE = Const(False, dt.bool_)


class ConstantUnless(NamedTuple):
    """A value that equals `value` at every point at which the condition `unless` does not hold."""

    value: float
    unless: Expr


Known = Callable[[Read], ConstantUnless | None]


def either(a: Expr, b: Expr) -> Expr:
    """Return `a or b`."""
    return a if a is b or b is _FALSE else b if a is _FALSE else apply("or", a, b)


def _and(a: Expr, b: Expr) -> Expr:
    return a if a is b else _FALSE if _FALSE in (a, b) else apply("and", a, b)


def constant_unless(body: Expr, known: Known) -> ConstantUnless | None:
    """Return a constant that a float expression equals unless a condition holds; None if there is none.

    known: the same for each read."""
    values: dict[Expr, ConstantUnless | None] = {}
    for e in cached_postorder((body,)):
        if isinstance(e, Const):
            values[e] = ConstantUnless(float(e.value), _FALSE)
        elif isinstance(e, Read):
            values[e] = known(e)
        elif isinstance(e, Apply) and e.dtype.is_float:
            values[e] = _of_function(e, [values.get(x) for x in e.args])
    return values.get(body)


def _of_function(e: Apply, args: list[ConstantUnless | None]) -> ConstantUnless | None:
    a, b = args[-2] if len(args) > 1 else args[0], args[-1]
    if e.fn == "where":
        c = e.args[0]
        if a is not None and b is not None and a.value == b.value:
            return ConstantUnless(a.value, either(a.unless, b.unless))
        if b is not None:
            return ConstantUnless(b.value, either(c, b.unless))
        return None if a is None else ConstantUnless(a.value, either(apply("not", c), a.unless))
    if e.fn in _UNARY and a is not None:
        return ConstantUnless(_UNARY[e.fn](a.value), a.unless)
    if e.fn == "mul":
        if a is not None and b is not None and a.value == b.value == 0:
            return ConstantUnless(0.0, _and(a.unless, b.unless))
        return next((x for x in (a, b) if x is not None and x.value == 0), None)
    if e.fn == "div":
        return a if a is not None and a.value == 0 else None
    if e.fn in _BINARY:
        if a is not None and b is not None:
            value = _BINARY[e.fn](a.value, b.value)
            return None if value != value else ConstantUnless(value, either(a.unless, b.unless))
        # minus infinity plus or minus a finite number
        if e.fn in ("add", "sub") and a is not None and a.value == -inf:
            return a
        if e.fn == "add" and b is not None and b.value == -inf:
            return b
    return None


_UNARY: dict[str, Callable[[float], float]] = {
    "exp": lambda x: 0.0 if x == -inf else exp(min(x, 700.0)),
    "cast": lambda x: x,
    "stop_gradient": lambda x: x,
    "neg": lambda x: -x,
}
_BINARY: dict[str, Callable[[float, float], float]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "max": max,
    "min": min,
}
