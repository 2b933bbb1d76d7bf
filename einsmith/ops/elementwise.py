"""Compute pointwise functions, under torch's names and argument orders. Two tensors broadcast against each other."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from math import log as _log
from typing import Any

from einsmith.base import dtypes as dt
from einsmith.base.errors import ArgumentError
from einsmith.lang import builder
from einsmith.lang.builder import Value
from einsmith.ops.call import accept_arrays
from einsmith.ops.common import each, pointwise, tensor


def _elementwise(name: str, meaning: str) -> Callable[[Any], Value]:
    function = getattr(builder, name)

    def call(input: Any) -> Value:
        return function(tensor(input, name, "input"))

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"{meaning}, elementwise."
    return accept_arrays(call)


exp = _elementwise("exp", "e to the power of x")
expm1 = _elementwise("expm1", "exp(x) - 1, accurate for small x")
log = _elementwise("log", "The natural logarithm")
log1p = _elementwise("log1p", "log(1 + x), accurate for small x")
sqrt = _elementwise("sqrt", "The square root")
rsqrt = _elementwise("rsqrt", "1/sqrt(x)")
sin = _elementwise("sin", "The sine")
cos = _elementwise("cos", "The cosine")
erf = _elementwise("erf", "The error function")
abs = _elementwise("abs", "The magnitude")
sign = _elementwise("sign", "-1, 0 or 1")
floor = _elementwise("floor", "The largest integer that is not above x")
round = _elementwise("round", "The nearest integer, halves to the even one")


def _of_formula(name: str, meaning: str, formula: Callable[[Any], Any], kind: str | None = "float") -> Callable:
    """Return a function of one tensor whose element is `formula` of the input's."""

    def call(input: Any) -> Value:
        return pointwise(tensor(input, name, "input", kind=kind), formula)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"{meaning}, elementwise."
    return accept_arrays(call)


log2 = _of_formula("log2", "The logarithm to the base 2", lambda x: builder.log(x) * (1 / _log(2)))
log10 = _of_formula("log10", "The logarithm to the base 10", lambda x: builder.log(x) * (1 / _log(10)))
exp2 = _of_formula("exp2", "2 to the power of x", lambda x: builder.exp(x * _log(2)))
tan = _of_formula("tan", "The tangent", lambda x: builder.sin(x) / builder.cos(x))
sinh = _of_formula("sinh", "The hyperbolic sine", lambda x: 0.5 * (builder.expm1(x) - builder.expm1(-x)))
cosh = _of_formula("cosh", "The hyperbolic cosine", lambda x: 0.5 * (builder.exp(x) + builder.exp(-x)))
ceil = _of_formula("ceil", "The smallest integer that is not below x", lambda x: -builder.floor(-x))
trunc = _of_formula(
    "trunc", "x rounded towards zero", lambda x: builder.where(x < 0, -builder.floor(-x), builder.floor(x))
)
frac = _of_formula(
    "frac",
    "The fractional part, with the sign of x",
    lambda x: x - builder.where(x < 0, -builder.floor(-x), builder.floor(x)),
)
reciprocal = _of_formula("reciprocal", "1/x", lambda x: 1 / x)
square = _of_formula("square", "x*x", lambda x: x * x, None)
neg = _of_formula("neg", "-x", lambda x: -x, None)
isnan = _of_formula("isnan", "Whether x is NaN", lambda x: x != x, None)
isinf = _of_formula("isinf", "Whether x is plus or minus infinity", lambda x: (x == inf) | (x == -inf))
isfinite = _of_formula("isfinite", "Whether x is neither infinite nor NaN", lambda x: (x - x) == 0)


@accept_arrays
def logit(input: Any, eps: float | Value | None = None) -> Value:
    """Return log(x/(1 - x)); with eps, of x clamped to [eps, 1 - eps]."""
    x = tensor(input, "logit", "input", kind="float")

    def formula(e: Any) -> Any:
        if eps is not None:
            e = builder.where(e < eps, eps, builder.where(e > 1 - eps, 1 - eps, e))
        return builder.log(e) - builder.log1p(-e)

    return pointwise(x, formula)


@accept_arrays
def nan_to_num(
    input: Any, nan: float | Value = 0.0, posinf: float | Value | None = None, neginf: float | Value | None = None
) -> Value:
    """Return x with NaN, infinity and minus infinity replaced, the latter two by the type's largest and smallest
    number."""
    x = tensor(input, "nan_to_num", "input")
    if not x.dtype.is_float:
        return x
    top = {dt.f64: 1.7976931348623157e308}.get(x.dtype, 3.4028234663852886e38)
    high, low = top if posinf is None else posinf, -top if neginf is None else neginf
    return pointwise(
        x, lambda e: builder.where(e != e, nan, builder.where(e == inf, high, builder.where(e == -inf, low, e)))
    )


# -------------------------------------------------------------------------------------------------------- two tensors


@accept_arrays
def maximum(input: Any, other: Any) -> Value:
    """Return the larger element, with broadcasting; halves of the gradient go to each of equal elements."""
    return builder.maximum(*_both("maximum", input, other))


@accept_arrays
def minimum(input: Any, other: Any) -> Value:
    """Return the smaller element, with broadcasting; halves of the gradient go to each of equal elements."""
    return builder.minimum(*_both("minimum", input, other))


@accept_arrays
def clamp(input: Any, min: Any = None, max: Any = None) -> Value:
    """Return `input` with elements below `min` raised to it and elements above `max` lowered to it; NaN stays NaN.

    The derivative by `input` is 1 from bound to bound, both included, and 0 elsewhere, NaN among it.
    """
    x = tensor(input, "clamp", "input")
    if min is None and max is None:
        raise ArgumentError("clamp: give min, max or both")
    if x.dtype.is_float:
        x = builder.where(x == x, x, builder.stop_gradient(x))
    if min is not None:
        low = tensor(min, "clamp", "min")
        x = builder.where(x < low, low, x)
    if max is not None:
        high = tensor(max, "clamp", "max")
        x = builder.where(x > high, high, x)
    return x


clip = clamp


@accept_arrays
def where(condition: Any, input: Any, other: Any) -> Value:
    """Return `input` where `condition` is true, `other` elsewhere, with broadcasting."""
    c, x, y = (tensor(v, "where", n) for v, n in ((condition, "condition"), (input, "input"), (other, "other")))
    if all(v.literal is not None and v.dtype.is_int for v in (x, y)):  # PyTorch's type of two Python integers
        x, y = builder.cast(x, dt.i64), builder.cast(y, dt.i64)
    return builder.where(c, x, y)


@accept_arrays
def masked_fill(input: Any, mask: Any, value: Any) -> Value:
    """Return `value`, a number or a 0-d tensor, where `mask` is true, `input` elsewhere; the mask broadcasts to the
    input."""
    x, m = tensor(input, "masked_fill", "input"), tensor(mask, "masked_fill", "mask")
    v = tensor(value, "masked_fill", "value")
    if not m.dtype.is_bool or v.ndim:
        raise ArgumentError("masked_fill: 'mask' must hold bools, and 'value' must be a number or a 0-d tensor")
    return builder.where(m, v, x).astype(x.dtype)


def _both(name: str, input: Any, other: Any, second: str = "other") -> tuple[Value, Value]:
    return tensor(input, name, "input"), tensor(other, name, second)


@accept_arrays
def add(input: Any, other: Any, *, alpha: float = 1) -> Value:
    """Return input + alpha*other."""
    x, y = _both("add", input, other)
    return x + (y if alpha == 1 else y * alpha)


@accept_arrays
def sub(input: Any, other: Any, *, alpha: float = 1) -> Value:
    """Return input - alpha*other."""
    x, y = _both("sub", input, other)
    return x - (y if alpha == 1 else y * alpha)


@accept_arrays
def mul(input: Any, other: Any) -> Value:
    """Return input*other."""
    x, y = _both("mul", input, other)
    return x * y


@accept_arrays
def div(input: Any, other: Any, *, rounding_mode: str | None = None) -> Value:
    """Return input/other; rounding_mode="floor" or "trunc": the quotient as the integer below it, or without its
    fraction."""
    x, y = _both("div", input, other)
    if rounding_mode is None:
        return x / y
    if rounding_mode == "floor":
        return x // y
    if rounding_mode != "trunc":
        raise ArgumentError(f"div: rounding_mode={rounding_mode!r} must be None, 'floor' or 'trunc'")
    if x.dtype.is_float or y.dtype.is_float:
        return trunc(x / y)
    below = x // y
    return builder.where((below < 0) & (below * y != x), below + 1, below)


@accept_arrays
def remainder(input: Any, other: Any) -> Value:
    """Return input - other*floor(input/other): it has the divisor's sign."""
    x, y = _both("remainder", input, other)
    return x % y


@accept_arrays
def pow(input: Any, exponent: Any) -> Value:
    """Return input to the power of exponent."""
    x, y = _both("pow", input, exponent, "exponent")
    return x**y


@accept_arrays
def lerp(input: Any, end: Any, weight: Any) -> Value:
    """Return input + weight*(end - input)."""
    x, y = _both("lerp", input, end, "end")
    return x + tensor(weight, "lerp", "weight") * (y - x)


@accept_arrays
def logaddexp(input: Any, other: Any) -> Value:
    """Return log(exp(input) + exp(other)), without overflow."""
    x, y = (tensor(v, "logaddexp", n, kind="float") for v, n in ((input, "input"), (other, "other")))
    value = builder.where(x == y, x + _log(2), builder.maximum(x, y) + builder.log1p(builder.exp(-builder.abs(x - y))))
    return builder.differentiate_as(value, y + builder.softplus(x - y))


@accept_arrays
def xlogy(input: Any, other: Any) -> Value:
    """Return input*log(other), which is 0 where the input is 0, whatever the other is (but NaN)."""
    x, y = _both("xlogy", input, other)
    return each((x, y), lambda a, b: builder.where((a == 0) & (b == b), 0.0, a * builder.log(b)))


def _comparison(name: str, sign: str, function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Value]:
    def call(input: Any, other: Any) -> Value:
        return function(*_both(name, input, other))

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"Whether input {sign} other, elementwise, as bools."
    return accept_arrays(call)


eq = _comparison("eq", "==", lambda a, b: a == b)
ne = _comparison("ne", "!=", lambda a, b: a != b)
lt = _comparison("lt", "<", lambda a, b: a < b)
le = _comparison("le", "<=", lambda a, b: a <= b)
gt = _comparison("gt", ">", lambda a, b: a > b)
ge = _comparison("ge", ">=", lambda a, b: a >= b)


def _truth(value: Value) -> Value:
    return value if value.dtype.is_bool else value != 0


logical_and = _comparison("logical_and", "and", lambda a, b: _truth(a) & _truth(b))
logical_or = _comparison("logical_or", "or", lambda a, b: _truth(a) | _truth(b))
logical_xor = _comparison("logical_xor", "xor", lambda a, b: builder.where(_truth(a), ~_truth(b), _truth(b)))


@accept_arrays
def logical_not(input: Any) -> Value:
    """Return whether x is 0 or false, elementwise."""
    return ~_truth(tensor(input, "logical_not", "input"))
