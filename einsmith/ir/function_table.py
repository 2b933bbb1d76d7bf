"""The table of the scalar functions of the IR: one record (`ir.functions.ScalarFunction`) for each.

Integer `floordiv` and `mod` follow Python (towards minus infinity). `min` and `max` propagate NaN. Comparisons and
logic give bool. `where` is lazy: only the chosen side is evaluated. The twin of `differentiate_as` is never evaluated:
it defines the derivatives of the value, instead of the expression that computes the value.
"""

from __future__ import annotations

from math import erf, pi, sqrt

import numpy as np

from einsmith.ir.adjoint_rules import Rule, Under, both, choose, constant, mul, neg
from einsmith.ir.analysis.predicates import negate
from einsmith.ir.functions import (
    ScalarFunction,
    add_function,
    choice,
    comparison,
    floats,
    logic,
    numbers,
    same,
    words,
)
from einsmith.ir.nodes import Const, Expr, apply, cast
from einsmith.ir.random import numpy_bits
from einsmith.ir.vecmath import polynomials, trigonometric


def _erf(x):
    return np.vectorize(erf, otypes=[np.float64])(x) if np.size(x) else np.asarray(x, np.float64)


def _pow(x, y):
    # NumPy takes the square root for one exponent 0.5 of many bases, which at -inf is not a power.
    return np.power(x, y + np.zeros_like(x))


def _sigmoid(x):
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


def _make_extreme_rule(fn: str, mine: int) -> Rule:
    """Return the rule of max or min: the adjoint goes to the chosen argument, half to each if both are equal. If one is
    NaN, it goes to both."""

    def rule(g, args, out):
        a, b = args[mine], args[1 - mine]
        loses = apply("lt", a, b) if fn == "max" else apply("lt", b, a)
        return choose(loses, constant(0.0, g), choose(apply("eq", a, b), mul(constant(0.5, g), g), g))

    return rule


def _adjoint_of_base(g, args, out):
    x, y = args
    if isinstance(y, Const):
        if y.value in (0.0, 1.0):
            return g if y.value else None
        if y.value == 2.0:
            return mul(mul(g, constant(2.0, g)), x)
        return mul(mul(g, y), apply("pow", x, constant(y.value - 1.0, g)))
    slope = mul(mul(g, y), apply("pow", x, apply("sub", y, constant(1.0, g))))
    return Under(negate(apply("eq", y, constant(0.0, g))), slope)


def _adjoint_of_exponent(g, args, out):
    x, y = args
    zero = constant(0.0, g)  # 0**y is 0 on both sides of every y > 0, and is taken to be at y = 0
    return Under(negate(both(apply("eq", x, zero), apply("le", zero, y))), mul(mul(g, out), apply("log", x)))


def _logistic_slope(out: Expr) -> Expr:
    return mul(out, apply("sub", constant(1.0, out), out))


def _square(x: Expr) -> Expr:
    return mul(x, x)


def _adjoint_of_cast(g, args, out):
    return cast(g, args[0].dtype.arithmetic) if args[0].dtype.is_float and out.dtype.is_float else None


_ERF_SLOPE = 2 / sqrt(pi)  # at 0
_NONE: tuple[Rule | None, ...] = (None, None)
_ROWS = (
    ScalarFunction("add", 2, numbers, np.add, "+", 5, adjoint=(lambda g, a, out: g, lambda g, a, out: g)),
    ScalarFunction("sub", 2, numbers, np.subtract, "-", 5, adjoint=(lambda g, a, out: g, lambda g, a, out: neg(g))),
    ScalarFunction(
        "mul", 2, numbers, np.multiply, "*", 6,
        adjoint=(lambda g, a, out: mul(g, a[1]), lambda g, a, out: mul(g, a[0])),
    ),
    ScalarFunction(
        "div", 2, floats, np.divide, "/", 6,
        adjoint=(lambda g, a, out: apply("div", g, a[1]), lambda g, a, out: neg(apply("div", mul(g, out), a[1]))),
        uses_value=True, seconds=0.08e-9, instructions=10,
    ),
    ScalarFunction("floordiv", 2, numbers, np.floor_divide, "//", 6, adjoint=_NONE, seconds=0.3e-9),
    ScalarFunction(
        "mod", 2, numbers, np.mod, "%", 6,
        adjoint=(lambda g, a, out: g, lambda g, a, out: neg(mul(g, apply("floordiv", *a)))),
        seconds=0.2e-9,
    ),
    ScalarFunction("neg", 1, numbers, np.negative, "-", 7, adjoint=(lambda g, a, out: neg(g),), keeps_zero=True),
    ScalarFunction(
        "min", 2, numbers, np.minimum, call="min",
        adjoint=(_make_extreme_rule("min", 0), _make_extreme_rule("min", 1)),
    ),
    ScalarFunction(
        "max", 2, numbers, np.maximum, call="max",
        adjoint=(_make_extreme_rule("max", 0), _make_extreme_rule("max", 1)),
    ),
    ScalarFunction(
        "pow", 2, floats, _pow, "**", 8, call="pow",
        adjoint=(_adjoint_of_base, _adjoint_of_exponent), uses_value=True,
        lanes=polynomials.pow, seconds=1e-9, instructions=70,
    ),
    ScalarFunction(
        "exp", 1, floats, np.exp, call="exp",
        adjoint=(lambda g, a, out: mul(g, out),), uses_value=True,
        lanes=polynomials.exp, seconds=0.13e-9, instructions=8,
    ),
    ScalarFunction(
        "log", 1, floats, np.log, call="log",
        adjoint=(lambda g, a, out: apply("div", g, a[0]),),
        lanes=polynomials.log, seconds=0.24e-9, instructions=14,
    ),
    ScalarFunction(
        "tanh", 1, floats, np.tanh, call="tanh",
        adjoint=(lambda g, a, out: mul(g, apply("sub", constant(1.0, g), _square(out))),), uses_value=True,
        lanes=polynomials.tanh, seconds=0.24e-9, instructions=24, keeps_zero=True,
    ),
    ScalarFunction(
        "sigmoid", 1, floats, _sigmoid, call="sigmoid",
        adjoint=(lambda g, a, out: mul(g, _logistic_slope(out)),), uses_value=True,
        lanes=polynomials.sigmoid, seconds=0.18e-9, instructions=16,
    ),
    ScalarFunction(
        "erf", 1, floats, _erf, call="erf",
        adjoint=(lambda g, a, out: mul(mul(g, constant(_ERF_SLOPE, g)), apply("exp", neg(_square(a[0])))),),
        lanes=polynomials.erf, seconds=0.22e-9, instructions=24, keeps_zero=True,
    ),
    ScalarFunction(
        "sin", 1, floats, np.sin, call="sin",
        adjoint=(lambda g, a, out: mul(g, apply("cos", a[0])),),
        lanes=trigonometric.sin, seconds=0.15e-9, instructions=24,
    ),
    ScalarFunction(
        "cos", 1, floats, np.cos, call="cos",
        adjoint=(lambda g, a, out: neg(mul(g, apply("sin", a[0]))),),
        lanes=trigonometric.cos, seconds=0.15e-9, instructions=24,
    ),
    ScalarFunction(
        "sqrt", 1, floats, np.sqrt, call="sqrt",
        adjoint=(lambda g, a, out: apply("div", mul(constant(0.5, g), g), out),), uses_value=True,
        seconds=0.1e-9, instructions=10, keeps_zero=True,
    ),
    ScalarFunction(
        "rsqrt", 1, floats, lambda x: 1 / np.sqrt(x), call="rsqrt",
        adjoint=(lambda g, a, out: mul(mul(constant(-0.5, g), g), mul(out, _square(out))),), uses_value=True,
        seconds=0.15e-9, instructions=10,
    ),
    ScalarFunction(
        "abs", 1, numbers, np.abs, call="abs",
        adjoint=(
            lambda g, a, out: choose(
                apply("lt", constant(0.0, g), a[0]), g, choose(apply("lt", a[0], constant(0.0, g)), neg(g), 0.0)
            ),
        ),
        keeps_zero=True,
    ),
    ScalarFunction("sign", 1, numbers, np.sign, call="sign", adjoint=(None,), keeps_zero=True),
    ScalarFunction("floor", 1, floats, np.floor, call="floor", adjoint=(None,), keeps_zero=True),
    ScalarFunction("round", 1, floats, np.rint, adjoint=(None,)),  # the nearest whole number, halves to the even one
    ScalarFunction("lt", 2, comparison, np.less, "<", 4, adjoint=_NONE),
    ScalarFunction("le", 2, comparison, np.less_equal, "<=", 4, adjoint=_NONE),
    ScalarFunction("eq", 2, comparison, np.equal, "==", 4, adjoint=_NONE),
    ScalarFunction("ne", 2, comparison, np.not_equal, "!=", 4, adjoint=_NONE),
    ScalarFunction("and", 2, logic, np.logical_and, "and", 2, adjoint=_NONE),
    ScalarFunction("or", 2, logic, np.logical_or, "or", 1, adjoint=_NONE),
    ScalarFunction("not", 1, logic, np.logical_not, "not", 3, adjoint=(None,)),
    ScalarFunction(
        "where", 3, choice, np.where, call="where",
        adjoint=(None, lambda g, a, out: Under(a[0], g), lambda g, a, out: Under(negate(a[0]), g)),
    ),
    ScalarFunction(  # of a key and a counter, two words each: ir/random.py
        "random_bits", 4, words, numpy_bits, call="random_bits", adjoint=(None,) * 4, instructions=60
    ),
    ScalarFunction(  # the identity, with derivative zero
        "stop_gradient", 1, lambda a: a, lambda x: x, call="stop_gradient", adjoint=(None,),
        keeps_zero=True, is_identity=True,
    ),
    ScalarFunction(  # the identity on weights whose products stay in float32 where others are of 16 bits (precision)
        "full_precision", 1, floats, lambda x: x,
        adjoint=(lambda g, a, out: apply("full_precision", g),), is_identity=True,
    ),
    ScalarFunction(  # x, with the derivatives of the twin, its equal
        "differentiate_as", 2, same, lambda x, twin: x, adjoint=(None, lambda g, a, out: g), is_identity=True
    ),
    ScalarFunction(  # the result type is the node's own
        "cast", 1, lambda a: a, lambda x: x, adjoint=(_adjoint_of_cast,), keeps_zero=True, is_identity=True
    ),
)  # fmt: skip
for _row in _ROWS:
    add_function(_row)
