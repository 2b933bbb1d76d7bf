"""Define functions of the language composed of others, in an order of operations that preserves their precision.

Each is one operation of a formula until it is lowered, so that a reduction in its argument is computed once. Its
derivative is that of its adjoint rule, not of the operations that preserve precision.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from einsmith.base import dtypes as dt
from einsmith.ir.adjoint_rules import mul
from einsmith.ir.functions import ScalarFunction, add_function, floats
from einsmith.ir.nodes import Const, Expr, apply


def compose(f: ScalarFunction, args: Sequence[Expr]) -> Expr:
    """Return the composition of a function, with the derivatives of its adjoint rules if it has some."""
    assert f.composition is not None
    value = f.composition(*args)
    return apply("differentiate_as", value, apply(f.name, *args)) if f.adjoint else value


def _one(x: Expr) -> Const:
    return Const(1.0, x.dtype)


def log1p(x: Expr) -> Expr:
    """Build log(1 + x). A factor compensates for the rounding of 1 + x. Source: Goldberg 1991, theorem 4."""
    u = apply("add", _one(x), x)
    factor = apply("div", x, apply("sub", u, _one(x)))
    exact = apply("eq", u, _one(x))
    infinite = apply("eq", u, Const(float("inf"), x.dtype))
    return apply("where", exact, x, apply("where", infinite, u, apply("mul", apply("log", u), factor)))


def expm1(x: Expr) -> Expr:
    """Build exp(x) - 1 as tanh(x/2)*(exp(x) + 1), which has no cancellation."""
    half = apply("tanh", apply("mul", Const(0.5, x.dtype), x))
    return apply("mul", half, apply("add", apply("exp", x), _one(x)))


def softplus(x: Expr) -> Expr:
    """Build log(1 + exp(x)) without the exponential of a positive number."""
    rest = log1p(apply("exp", apply("neg", apply("abs", x))))
    return apply("add", apply("max", x, Const(0.0, x.dtype)), rest)


def relu(x: Expr) -> Expr:
    """Build where(x <= 0, 0, x), in which NaN stays."""
    zero = Const(0.0, x.dtype)
    return apply("where", apply("le", x, zero), zero, x)


def _difference(x: Expr, y: Expr) -> Expr:
    """Build x - y, which is 0 for two infinities of one sign."""
    infinite = apply("eq", apply("abs", x), Const(float("inf"), x.dtype))
    return apply("where", apply("and", infinite, apply("eq", x, y)), Const(0.0, x.dtype), apply("sub", x, y))


def logaddexp(x: Expr, y: Expr) -> Expr:
    """Build log(exp(x) + exp(y)) without the exponential of a positive number; -inf is the neutral element."""
    rest = log1p(apply("exp", apply("neg", apply("abs", _difference(x, y)))))
    return apply("add", apply("max", x, y), rest)


def log_of_total(x: Expr) -> Expr:
    """Build the logarithm of a sum of exponentials: -inf where all have underflowed, with a derivative of 0."""
    tiny = Const(float(np.finfo(np.float64 if x.dtype is dt.f64 else np.float32).tiny), x.dtype)
    underflows = apply("lt", x, tiny)
    return apply("where", underflows, Const(-float("inf"), x.dtype), apply("log", apply("max", x, tiny)))


def _share(of: int) -> Any:
    """Return the adjoint rule of an operand of logaddexp."""
    return lambda g, a, out: mul(g, apply("sigmoid", _difference(a[of], a[1 - of])))


for _build, _numpy, _adjoint in (
    (relu, lambda x: np.where(x <= 0, 0, x), ()),  # the derivative of the composition
    (log1p, np.log1p, (lambda g, a, out: apply("div", g, apply("add", _one(a[0]), a[0])),)),
    (expm1, np.expm1, (lambda g, a, out: mul(g, apply("exp", a[0])),)),
    (softplus, lambda x: np.logaddexp(0.0, x), (lambda g, a, out: mul(g, apply("sigmoid", a[0])),)),
    (logaddexp, np.logaddexp, (_share(0), _share(1))),
):
    _name = _build.__name__
    _arity = max(len(_adjoint), 1)
    add_function(ScalarFunction(_name, _arity, floats, _numpy, adjoint=_adjoint, call=_name, composition=_build))
add_function(ScalarFunction("log_of_total", 1, floats, np.log, composition=log_of_total))  # formulas do not call it
