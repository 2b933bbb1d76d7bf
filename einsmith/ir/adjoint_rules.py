"""Build the adjoint rules of the scalar functions (`ScalarFunction.adjoint`).

A function has one rule per argument: None if the derivative is zero (or the argument is not a number), otherwise a
function `(g, args, out) -> expression` that gives the argument's adjoint from the adjoint g of the result. `out` is the
result's own value, which may be a read of a tensor that holds it. A rule may return `Under(condition, value)`: the
adjoint is `value` where the condition holds and zero elsewhere; `value` is not evaluated elsewhere, so that a guarded
0/0 has no effect. No rule multiplies by a mask: inf * 0 is not 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from einsmith.ir.nodes import Apply, Const, Expr, apply


@dataclass(frozen=True)
class Under:
    """An adjoint that is `value` where `condition` holds, and zero elsewhere."""

    condition: Expr
    value: Expr


Rule = Callable[[Expr, tuple[Expr, ...], Expr], "Expr | Under | None"]


def constant(x: float, like: Expr) -> Const:
    """Return the constant x of the type in which values of the type of `like` are computed."""
    return Const(x, like.dtype.arithmetic)


def mul(a: Expr, b: Expr) -> Expr:
    """Return the product; constants are folded, exact factors 1 and -1 dropped."""
    if isinstance(a, Const) and isinstance(b, Const):
        return Const(a.value * b.value, a.dtype)
    for x, y in ((a, b), (b, a)):
        if isinstance(x, Const) and abs(x.value) == 1:
            return y if x.value == 1 else neg(y)
    return apply("mul", a, b)


def neg(a: Expr) -> Expr:
    """Return -a, with constants folded and a double negation removed."""
    if isinstance(a, Const):
        return Const(-a.value, a.dtype)
    return a.args[0] if isinstance(a, Apply) and a.fn == "neg" else apply("neg", a)


def both(a: Expr, b: Expr) -> Expr:
    """Return `a and b`."""
    return apply("and", a, b)


def add_terms(a: Expr, b: Expr) -> Expr:
    """Return the sum; a negated term is subtracted."""
    if isinstance(b, Apply) and b.fn == "neg":
        return apply("sub", a, b.args[0])
    return apply("add", a, b)


def choose(c: Expr, a: Expr, b: Expr | float) -> Expr:
    """Return `where(c, a, b)`."""
    return apply("where", c, a, b if not isinstance(b, float) else constant(b, a))
