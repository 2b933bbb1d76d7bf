"""Compute pointwise functions, under torch's names and argument orders. Two tensors broadcast against each other."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf, nan, pi
from math import log as _log
from typing import Any

from einsmith.base import dtypes as dt
from einsmith.base.errors import ArgumentError
from einsmith.ops.common import each, pointwise, tensor
from einsmith.ops.operator import Floats, Tensor, operator, pointwise_operator
from einsmith.tracing import builder
from einsmith.tracing.builder import Value


def _logarithm(base: float) -> Callable[[Any], Any]:
    """Return the logarithm to a base in float64, whose rounding errors do not show at powers of the base."""

    def run(x: Any) -> Any:
        y = builder.log(x) * (1 / _log(base))
        whole = builder.round(y)
        return builder.differentiate_as(
            builder.where(builder.abs(y - whole) <= 2.0**-51 * builder.abs(whole), whole, y), y
        )

    return run


def _half_exponential(x: Any) -> Any:
    """Return exp(x)/2, which may be in range where exp(x) is not."""
    root = builder.exp(0.5 * x)
    return 0.5 * root * root


def _sinh(x: Any) -> Any:
    small = 0.5 * (builder.expm1(x) - builder.expm1(-x))
    far = _half_exponential(x) - _half_exponential(-x)
    return builder.differentiate_as(builder.where((x > -1) & (x < 1), small, far), far)


def _sinc(x: Any) -> Any:
    """Return sin(pi*x)/(pi*x) from the distance to the nearest integer, whose digits the product with pi would lose."""
    whole = builder.round(x)
    sine = builder.sin(pi * (x - whole))
    return builder.where(x == 0, 1.0, builder.where(whole % 2 == 0, sine, -sine) / builder.where(x == 0, 1.0, pi * x))


exp = pointwise_operator("exp", "exp(x)", builder.exp, "Exp")
expm1 = pointwise_operator("expm1", "exp(x) - 1, accurate for small x", builder.expm1)
exp2 = pointwise_operator("exp2", "2**x", lambda x: 2.0**x)
log = pointwise_operator("log", "the natural logarithm of x", builder.log, "Log")
log1p = pointwise_operator("log1p", "log(1 + x), accurate for small x", builder.log1p)
log2 = pointwise_operator("log2", "log(x)/log(2), exact for powers of 2", _logarithm(2), double=True)
log10 = pointwise_operator("log10", "log(x)/log(10), exact for powers of 10", _logarithm(10), double=True)
sqrt = pointwise_operator("sqrt", "the square root of x", builder.sqrt, "Sqrt")
rsqrt = pointwise_operator("rsqrt", "1/sqrt(x)", builder.rsqrt)
reciprocal = pointwise_operator("reciprocal", "1/x", lambda x: 1 / x, "Reciprocal")
sin = pointwise_operator("sin", "sin(x)", builder.sin, "Sin")
cos = pointwise_operator("cos", "cos(x)", builder.cos, "Cos")
sinc = pointwise_operator("sinc", "sin(pi*x)/(pi*x), 1 at 0", _sinc)
tan = pointwise_operator("tan", "sin(x)/cos(x)", lambda x: builder.sin(x) / builder.cos(x), "Tan")
sinh = pointwise_operator("sinh", "(exp(x) - exp(-x))/2, of expm1 near 0", _sinh, "Sinh")
cosh = pointwise_operator(
    "cosh", "(exp(x) + exp(-x))/2", lambda x: _half_exponential(x) + _half_exponential(-x), "Cosh"
)
erf = pointwise_operator("erf", "the error function of x", builder.erf, "Erf")
abs = pointwise_operator("abs", "the magnitude of x", builder.abs, "Abs", "Tensor")
neg = pointwise_operator("neg", "-x", lambda x: -x, "Neg", "Tensor")
square = pointwise_operator("square", "x*x", lambda x: x * x, of="Tensor")
floor = pointwise_operator("floor", "the largest integer that is not above x", builder.floor, "Floor", "Tensor")
ceil = pointwise_operator(
    "ceil", "the smallest integer that is not below x", lambda x: -builder.floor(-x), "Ceil", "Tensor"
)
round = pointwise_operator("round", "the nearest integer, halves to the even one", builder.round, "Round", "Tensor")


def _truncate(x: Any) -> Any:
    return builder.where(x < 0, -builder.floor(-x), builder.floor(x))


trunc = pointwise_operator("trunc", "x rounded towards zero", _truncate, of="Tensor")
frac = pointwise_operator("frac", "the fractional part, with the sign of x", lambda x: x - _truncate(x), of="Floats")
isnan = pointwise_operator("isnan", "whether x is NaN", lambda x: x != x, "IsNaN")
isinf = pointwise_operator("isinf", "whether x is plus or minus infinity", lambda x: (x == inf) | (x == -inf))
isfinite = pointwise_operator("isfinite", "whether x is neither infinite nor NaN", lambda x: (x - x) == 0)


@operator()
def sign(input: Tensor) -> Value:
    """Return -1, 0 or 1, elementwise; NaN stays NaN."""
    return builder.sign(input)


@operator()
def logit(input: Floats, eps: float | Value | None = None) -> Value:
    """Return log(x/(1 - x)); with eps, of x clamped to [eps, 1 - eps]."""

    def formula(e: Any) -> Any:
        if eps is not None:
            e = builder.where(e < eps, eps, builder.where(e > 1 - eps, 1 - eps, e))
        middle = (e > 0.25) & (e < 0.75)
        t = builder.where(middle, 2 * e - 1, 0.0)  # the logarithm of (1 + t)/(1 - t), without cancellation
        outer = builder.log(builder.where(middle, 0.25, e)) - builder.log1p(-builder.where(middle, 0.25, e))
        inside = builder.where(middle, builder.log1p(t) - builder.log1p(-t), outer)
        return builder.where((e >= 0) & (e <= 1), inside, e * nan)

    return pointwise(input, formula)


@operator()
def nan_to_num(
    input: Tensor, nan: float | Value = 0.0, posinf: float | Value | None = None, neginf: float | Value | None = None
) -> Value:
    """Return x with NaN, infinity and minus infinity replaced, the latter two by the type's largest and smallest
    number."""
    x = input
    if not x.dtype.is_float:
        return x
    top = {dt.f64: 1.7976931348623157e308}.get(x.dtype, 3.4028234663852886e38)
    high, low = top if posinf is None else posinf, -top if neginf is None else neginf
    return pointwise(
        x, lambda e: builder.where(e != e, nan, builder.where(e == inf, high, builder.where(e == -inf, low, e)))
    )


# -------------------------------------------------------------------------------------------------------- two tensors


@operator(aten="maximum.default")
def maximum(input: Tensor, other: Tensor) -> Value:
    """Return the larger element, with broadcasting; halves of the gradient go to each of equal elements."""
    return input | other if input.dtype.is_bool and other.dtype.is_bool else builder.maximum(input, other)


@operator(aten="minimum.default")
def minimum(input: Tensor, other: Tensor) -> Value:
    """Return the smaller element, with broadcasting; halves of the gradient go to each of equal elements."""
    return input & other if input.dtype.is_bool and other.dtype.is_bool else builder.minimum(input, other)


def _stop_at_nan(x: Value) -> Value:
    """Return x, with the derivative 0 where it is NaN."""
    return builder.where(x == x, x, builder.stop_gradient(x)) if x.dtype.is_float and x.literal is None else x


@operator(also="clip")
def clamp(input: Tensor, min: Any = None, max: Any = None) -> Value:
    """Return `input` with elements below `min` raised to it and elements above `max` lowered to it; NaN stays NaN.

    A bound that is NaN gives NaN. The derivative by `input` is 1 from bound to bound, both included, and 0 elsewhere,
    NaN among it.
    """
    if min is None and max is None:
        raise ArgumentError("clamp: give min, max or both")
    x = _stop_at_nan(input)
    for name, bound, is_beyond in (("min", min, lt), ("max", max, gt)):
        if bound is not None:
            limit = _stop_at_nan(tensor(bound, "clamp", name))
            x = builder.where(is_beyond(x, limit) | (limit != limit), limit, x)
    return x


clip = clamp


@operator()
def where(condition: Tensor, input: Tensor, other: Tensor) -> Value:
    """Return `input` where `condition` is true, `other` elsewhere, with broadcasting."""
    if all(v.literal is not None and v.dtype.is_int for v in (input, other)):  # PyTorch's type of two Python integers
        input, other = builder.cast(input, dt.i64), builder.cast(other, dt.i64)
    return builder.where(condition, input, other)


@operator()
def masked_fill(input: Tensor, mask: Tensor, value: Tensor) -> Value:
    """Return `value`, a number or a 0-d tensor, where `mask` is true, `input` elsewhere; the mask broadcasts to the
    input."""
    if not mask.dtype.is_bool or value.ndim:
        raise ArgumentError("masked_fill: 'mask' must hold bools, and 'value' must be a number or a 0-d tensor")
    return builder.where(mask, value, input).astype(input.dtype)


@operator()
def add(input: Tensor, other: Tensor, *, alpha: float = 1) -> Value:
    """Return input + alpha*other."""
    return input + (other if alpha == 1 else other * alpha)


@operator()
def sub(input: Tensor, other: Tensor, *, alpha: float = 1) -> Value:
    """Return input - alpha*other."""
    return input - (other if alpha == 1 else other * alpha)


@operator()
def mul(input: Tensor, other: Tensor) -> Value:
    """Return input*other."""
    return input * other


@operator()
def div(input: Tensor, other: Tensor, *, rounding_mode: str | None = None) -> Value:
    """Return input/other; rounding_mode="floor" or "trunc": the quotient as the integer below it, or without its
    fraction."""
    x, y = input, other
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


@operator(aten="remainder.Tensor remainder.Scalar remainder.Scalar_Tensor")
def remainder(input: Tensor, other: Tensor) -> Value:
    """Return input - other*floor(input/other): it has the divisor's sign."""
    return input % other


@operator()
def pow(input: Tensor, exponent: Tensor) -> Value:
    """Return input to the power of exponent."""
    return input**exponent


@operator()
def lerp(input: Tensor, end: Tensor, weight: Tensor) -> Value:
    """Return input + weight*(end - input)."""
    return input + weight * (end - input)


@operator(aten="logaddexp.default")
def logaddexp(input: Floats, other: Floats) -> Value:
    """Return log(exp(input) + exp(other)), without overflow."""
    return builder.logaddexp(input, other)


@operator(aten="logaddexp2.default")
def logaddexp2(input: Floats, other: Floats) -> Value:
    """Return log2(2**input + 2**other), without overflow."""
    return logaddexp(input * _log(2), other * _log(2)) * (1 / _log(2))


@operator()
def xlogy(input: Tensor, other: Tensor) -> Value:
    """Return input*log(other), which is 0 where the input is 0, whatever the other is (but NaN)."""
    return each(
        (input, other),
        lambda a, b: builder.where((a == 0) & ((b <= 0) | (b == inf)), 0.0, a * builder.log(b)),
    )


def _number(value: Value) -> Value:
    return value.astype(dt.i32) if value.dtype.is_bool else value


def _truth(value: Value) -> Value:
    return value if value.dtype.is_bool else value != 0


def _comparison(
    name: str, meaning: str, function: Callable[[Any, Any], Any], of: Any = _number, overloads: str = "Tensor Scalar"
) -> Callable[[Any, Any], Value]:
    """Add the operator function(of(input), of(other)) to the table. overloads: ATen's."""

    def call(input: Tensor, other: Tensor) -> Value:
        return function(of(input), of(other))

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"Return {meaning}, elementwise, as bools."
    return operator(aten=" ".join(f"{name}.{o}" for o in overloads.split()), converts=of is _number)(call)


eq = _comparison("eq", "whether input == other", lambda a, b: a == b)
ne = _comparison("ne", "whether input != other", lambda a, b: a != b)
lt = _comparison("lt", "whether input < other", lambda a, b: a < b)
le = _comparison("le", "whether input <= other", lambda a, b: a <= b)
gt = _comparison("gt", "whether input > other", lambda a, b: a > b)
ge = _comparison("ge", "whether input >= other", lambda a, b: a >= b)

_logical = partial(_comparison, of=_truth, overloads="default")
logical_and = _logical("logical_and", "whether both operands are true", lambda a, b: a & b)
logical_or = _logical("logical_or", "whether an operand is true", lambda a, b: a | b)
logical_xor = _logical("logical_xor", "whether one operand alone is true", lambda a, b: builder.where(a, ~b, b))


@operator(aten="logical_not.default", onnx="Not")
def logical_not(input: Tensor) -> Value:
    """Return whether x is 0 or false, elementwise."""
    return ~_truth(input)
