"""Define the scalar functions of the IR in one table: arity, result type and NumPy meaning.

Integer `floordiv` and `mod` follow Python (towards minus infinity). `min` and `max` propagate NaN. Comparisons and
logic give bool. `where` is lazy: only the chosen side is evaluated. The twin of `differentiate_as` is never evaluated:
it defines the derivatives of the value, instead of the expression that computes the value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import erf

import numpy as np

from einsmith.base import dtypes as dt
from einsmith.base.dtypes import DType
from einsmith.base.errors import DtypeError
from einsmith.ir.random import numpy_bits


@dataclass(frozen=True)
class ScalarFunction:
    """A scalar function. `rule` maps argument types to the result type, or raises DtypeError."""

    name: str
    arity: int
    rule: Callable[..., DType]
    numpy: Callable
    symbol: str | None = None  # the operator in the formula language, where there is one
    precedence: int = 0


def _same(*args: DType) -> DType:
    out = args[0]
    for a in args[1:]:
        if a is not out:
            raise DtypeError(f"operands have types {', '.join(a.name for a in args)}; cast them to one type")
    return out


def _number(*args: DType) -> DType:
    out = _same(*args)
    if out.is_bool:
        raise DtypeError("a bool is not a number here; use where(c, 1, 0)")
    return _check_computes(out)


def _check_computes(dtype: DType) -> DType:
    if dtype.in_memory_only:
        raise DtypeError(f"{dtype.name} is a storage type, without arithmetic; cast it to {dtype.arithmetic.name}")
    return dtype


def _floats(*args: DType) -> DType:
    out = _same(*args)
    if not out.is_float:
        raise DtypeError(f"needs a float, got {out.name}; cast with f32(...)")
    return _check_computes(out)


def _compare(*args: DType) -> DType:
    _check_computes(_same(*args))
    return dt.bool_


def _logic(*args: DType) -> DType:
    if any(not a.is_bool for a in args):
        raise DtypeError("`and`, `or`, `not` need conditions")
    return dt.bool_


def _words(*args: DType) -> DType:
    if any(a is not dt.i32 for a in args):
        raise DtypeError("random bits are made of i32 words")
    return dt.i32


def _where(c: DType, a: DType, b: DType) -> DType:
    _logic(c)
    return _same(a, b)


def _erf(x):
    return np.vectorize(erf, otypes=[np.float64])(x) if np.size(x) else np.asarray(x, np.float64)


def _pow(x, y):
    # NumPy takes the square root for one exponent 0.5 of many bases, which at -inf is not a power.
    return np.power(x, y + np.zeros_like(x))


def _sigmoid(x):
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


FUNCTIONS: dict[str, ScalarFunction] = {
    f.name: f
    for f in (
        ScalarFunction("add", 2, _number, np.add, "+", 5),
        ScalarFunction("sub", 2, _number, np.subtract, "-", 5),
        ScalarFunction("mul", 2, _number, np.multiply, "*", 6),
        ScalarFunction("div", 2, _floats, np.divide, "/", 6),
        ScalarFunction("floordiv", 2, _number, np.floor_divide, "//", 6),
        ScalarFunction("mod", 2, _number, np.mod, "%", 6),
        ScalarFunction("neg", 1, _number, np.negative, "-", 7),
        ScalarFunction("min", 2, _number, np.minimum),
        ScalarFunction("max", 2, _number, np.maximum),
        ScalarFunction("pow", 2, _floats, _pow, "**", 8),
        ScalarFunction("exp", 1, _floats, np.exp),
        ScalarFunction("log", 1, _floats, np.log),
        ScalarFunction("tanh", 1, _floats, np.tanh),
        ScalarFunction("sigmoid", 1, _floats, _sigmoid),
        ScalarFunction("erf", 1, _floats, _erf),
        ScalarFunction("sin", 1, _floats, np.sin),
        ScalarFunction("cos", 1, _floats, np.cos),
        ScalarFunction("sqrt", 1, _floats, np.sqrt),
        ScalarFunction("rsqrt", 1, _floats, lambda x: 1 / np.sqrt(x)),
        ScalarFunction("abs", 1, _number, np.abs),
        ScalarFunction("sign", 1, _number, np.sign),
        ScalarFunction("floor", 1, _floats, np.floor),
        ScalarFunction("round", 1, _floats, np.rint),  # to the nearest whole number, halves to the even one
        ScalarFunction("lt", 2, _compare, np.less, "<", 4),
        ScalarFunction("le", 2, _compare, np.less_equal, "<=", 4),
        ScalarFunction("eq", 2, _compare, np.equal, "==", 4),
        ScalarFunction("ne", 2, _compare, np.not_equal, "!=", 4),
        ScalarFunction("and", 2, _logic, np.logical_and, "and", 2),
        ScalarFunction("or", 2, _logic, np.logical_or, "or", 1),
        ScalarFunction("not", 1, _logic, np.logical_not, "not", 3),
        ScalarFunction("where", 3, _where, np.where),
        ScalarFunction("random_bits", 4, _words, numpy_bits),  # of a key and a counter, two words each: ir/random.py
        ScalarFunction("stop_gradient", 1, lambda a: a, lambda x: x),  # the identity, with derivative zero
        # The identity on weights whose products stay in float32 where others are of 16 bits (passes.algebra.precision).
        ScalarFunction("full_precision", 1, _floats, lambda x: x),
        ScalarFunction(
            "differentiate_as", 2, _same, lambda x, twin: x
        ),  # x, with the derivatives of the twin, its equal
        ScalarFunction("cast", 1, lambda a: a, lambda x: x),  # the result type is the node's own
    )
}

COMBINERS = ("sum", "prod", "max", "min", "argmax", "argmin")
"""Combiners of reductions. sum, prod, max, min give one result per body; argmax and argmin take one body and give
(value, i32 index of its first occurrence, row-major over the reduction axes)."""

COMBINING = {"sum": "add", "prod": "mul", "max": "max", "min": "min"}
"""The function that combines two partial results, for the combiners that have one."""

SCATTERED = {"sum": "+=", "max": "max=", "min": "min="}
"""The combiners of a Scatter, and the assignment operator of each in the formula language."""


def identity(combiner: str, dtype: DType) -> float | int | bool:
    """Return the identity element of a combiner: the value of an empty reduction, which loses against every other
    value."""
    if combiner == "sum":
        return 0.0 if dtype.is_float else 0
    if combiner == "prod":
        return 1.0 if dtype.is_float else 1
    low = combiner in ("max", "argmax")
    if dtype.is_float:
        return float("-inf") if low else float("inf")
    if dtype.is_bool:
        return not low
    return -(1 << (dtype.bits - 1)) if low else (1 << (dtype.bits - 1)) - 1
