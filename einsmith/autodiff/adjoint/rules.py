"""Define the adjoint rules of the scalar functions, as one table.

`RULES[fn]` has one entry per argument: None if the derivative is zero (or the argument is not a number), otherwise a
function `(g, args, out) -> expression` that gives the argument's adjoint from the adjoint g of the result. `out` is the
result's own value, which may be a read of a tensor that holds it. An entry may return `Under(condition, value)`: the
adjoint is `value` where the condition holds and zero elsewhere; `value` is not evaluated elsewhere, so that a guarded
0/0 has no effect. No rule multiplies by a mask: inf * 0 is not 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import pi, sqrt

from einsmith.ir.analysis.predicates import negate
from einsmith.ir.nodes import Apply, Const, Expr, apply, cast


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


def _make_extreme_rule(fn: str, mine: int) -> Rule:
    """Return the rule of max or min: the adjoint goes to the chosen argument, half to each if both are equal. If one is
    NaN, it goes to both."""

    def rule(g, args, out):
        a, b = args[mine], args[1 - mine]
        loses = apply("lt", a, b) if fn == "max" else apply("lt", b, a)
        return choose(loses, constant(0.0, g), choose(apply("eq", a, b), mul(constant(0.5, g), g), g))

    return rule


def _power_base(g, args, out):
    x, y = args
    if isinstance(y, Const):
        if y.value in (0.0, 1.0):
            return g if y.value else None
        if y.value == 2.0:
            return mul(mul(g, constant(2.0, g)), x)
        return mul(mul(g, y), apply("pow", x, constant(y.value - 1.0, g)))
    slope = mul(mul(g, y), apply("pow", x, apply("sub", y, constant(1.0, g))))
    return Under(negate(apply("eq", y, constant(0.0, g))), slope)


def _power_exponent(g, args, out):
    x, y = args
    zero = constant(0.0, g)  # 0**y is 0 on both sides of every y > 0, and is taken to be at y = 0
    return Under(negate(both(apply("eq", x, zero), apply("le", zero, y))), mul(mul(g, out), apply("log", x)))


def _logistic_slope(out: Expr) -> Expr:
    return mul(out, apply("sub", constant(1.0, out), out))


def _square(x: Expr) -> Expr:
    return mul(x, x)


def _cast_adjoint(g, args, out):
    return cast(g, args[0].dtype.arithmetic) if args[0].dtype.is_float and out.dtype.is_float else None


ERF_SLOPE = 2 / sqrt(pi)  # at 0

RULES: dict[str, tuple[Rule | None, ...]] = {
    "add": (lambda g, a, out: g, lambda g, a, out: g),
    "sub": (lambda g, a, out: g, lambda g, a, out: neg(g)),
    "mul": (lambda g, a, out: mul(g, a[1]), lambda g, a, out: mul(g, a[0])),
    "div": (lambda g, a, out: apply("div", g, a[1]), lambda g, a, out: neg(apply("div", mul(g, out), a[1]))),
    "floordiv": (None, None),
    "mod": (lambda g, a, out: g, lambda g, a, out: neg(mul(g, apply("floordiv", *a)))),
    "neg": (lambda g, a, out: neg(g),),
    "min": (_make_extreme_rule("min", 0), _make_extreme_rule("min", 1)),
    "max": (_make_extreme_rule("max", 0), _make_extreme_rule("max", 1)),
    "pow": (_power_base, _power_exponent),
    "exp": (lambda g, a, out: mul(g, out),),
    "log": (lambda g, a, out: apply("div", g, a[0]),),
    "tanh": (lambda g, a, out: mul(g, apply("sub", constant(1.0, g), _square(out))),),
    "sigmoid": (lambda g, a, out: mul(g, _logistic_slope(out)),),
    "erf": (lambda g, a, out: mul(mul(g, constant(ERF_SLOPE, g)), apply("exp", neg(_square(a[0])))),),
    "sin": (lambda g, a, out: mul(g, apply("cos", a[0])),),
    "cos": (lambda g, a, out: neg(mul(g, apply("sin", a[0]))),),
    "sqrt": (lambda g, a, out: apply("div", mul(constant(0.5, g), g), out),),
    "rsqrt": (lambda g, a, out: mul(mul(constant(-0.5, g), g), mul(out, _square(out))),),
    "abs": (
        lambda g, a, out: choose(
            apply("lt", constant(0.0, g), a[0]), g, choose(apply("lt", a[0], constant(0.0, g)), neg(g), 0.0)
        ),
    ),
    "sign": (None,),
    "floor": (None,),
    "round": (None,),
    "lt": (None, None),
    "le": (None, None),
    "eq": (None, None),
    "ne": (None, None),
    "and": (None, None),
    "or": (None, None),
    "not": (None,),
    "where": (None, lambda g, a, out: Under(a[0], g), lambda g, a, out: Under(negate(a[0]), g)),
    "random_bits": (None, None, None, None),
    "stop_gradient": (None,),
    "full_precision": (lambda g, a, out: apply("full_precision", g),),
    "differentiate_as": (None, lambda g, a, out: g),
    "cast": (_cast_adjoint,),
}

USES_VALUE = ("div", "pow", "exp", "tanh", "sigmoid", "sqrt", "rsqrt")
"""Functions whose rules use the result's own value."""
