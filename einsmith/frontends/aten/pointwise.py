"""Elementwise operators with broadcasting and type promotion."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, pi
from typing import Any

import numpy as np

from einsmith import ops as F
from einsmith.base import dtypes as dt
from einsmith.base.dtypes import DType
from einsmith.base.errors import ArgumentError
from einsmith.frontends.aten.promotion import convert, default_float, promote, result_type, tensor
from einsmith.frontends.aten.table import aten, enter
from einsmith.ops.common import each, pointwise
from einsmith.ops.elementwise import logical_and, logical_or, logical_xor, maximum, minimum
from einsmith.tracing import builder
from einsmith.tracing.builder import Value


@aten("sign.default")
def sign(x: Value) -> Value:
    """sign(x); 0 for NaN"""
    if x.dtype.is_float:
        return builder.where(x == x, F.sign(x), 0.0).astype(x.dtype)
    return x if x.dtype.is_bool else F.sign(x).astype(x.dtype)


# ----------------------------------------------------------------------------------------------------- two operands


def _logical(x: Any) -> Value:
    value = tensor(x)
    return value if value.dtype.is_bool else value != 0


def _add_scaled(a: Any, b: Any, alpha: Any, common: DType) -> Value:
    """Return a + alpha*b, rounded once to the type of a and b."""
    if alpha == 1:
        return tensor(a + b, common)
    first, second = (tensor(v, common.arithmetic) for v in (a, b))
    return (first + second * convert(alpha, common)).astype(common)


@aten("add.Tensor add.Scalar")
def add(x: Any, y: Any, alpha: Any = 1) -> Value:
    """x + alpha*y; for bools, x or y"""
    (a, b), common = promote(x, y)
    if common.is_bool:
        return _logical(a) | (_logical(b) & bool(alpha))
    return _add_scaled(a, b, alpha, common)


@aten("sub.Tensor sub.Scalar")
def sub(x: Any, y: Any, alpha: Any = 1) -> Value:
    """x - alpha*y"""
    (a, b), common = promote(x, y)
    return tensor(a - b, common) if alpha == 1 else _add_scaled(a, b, -alpha, common)


@aten("mul.Tensor mul.Scalar")
def mul(x: Any, y: Any) -> Value:
    """x*y; for bools, x and y"""
    (a, b), common = promote(x, y, wide=True)
    return _logical(a) & _logical(b) if common.is_bool else tensor(a * b, common)


@aten("div.Tensor div.Scalar")
def div(x: Any, y: Any) -> Value:
    """x/y, in a float type"""
    (a, b), common = promote(x, y, floats=True, wide=True)
    return tensor(a / b, common)


def _rest(a: Any, b: Any) -> Any:
    """Return the remainder of the truncated division a/b, which has the sign of a."""
    if a.dtype.is_float:
        size = builder.abs(a) % builder.abs(b)
        return builder.where(a < 0, -size, size)
    rest = a % b  # of the sign of b; the smallest integer has no magnitude
    return builder.where((rest != 0) & F.logical_xor(a < 0, b < 0), rest - b, rest)


@aten("div.Tensor_mode div.Scalar_mode")
def div_mode(x: Any, y: Any, rounding_mode: str | None = None) -> Value:
    """x/y, floor(x/y) or trunc(x/y), as rounding_mode says; for integers, exact"""
    if rounding_mode is None:
        return div(x, y)
    (a, b), common = promote(x, y, wide=True)
    if rounding_mode == "trunc":
        quotient = F.div(a if isinstance(a, Value) else tensor(a, common), b, rounding_mode="trunc")
        return builder.stop_gradient(quotient.astype(common))
    if not common.is_float:
        return tensor(a // b, common)
    # (a - fmod)/b is integral up to rounding; floor(a/b) would be wrong where a/b rounds up.
    a, b = (tensor(v, common.arithmetic) for v in (a, b))
    rest = _rest(a, b)
    whole = (a - rest) / b
    whole = builder.where((rest != 0) & F.logical_xor(rest < 0, b < 0), whole - 1.0, whole)
    near = builder.floor(whole)
    near = builder.where(whole - near > 0.5, near + 1.0, near)
    return builder.stop_gradient(builder.where(b == 0, a / b, near).astype(common))


@aten("fmod.Tensor fmod.Scalar")
def fmod(x: Any, y: Any) -> Value:
    """x - y*trunc(x/y), with the sign of x"""
    (a, b), common = promote(x, y)
    return tensor(_rest(tensor(a, common), tensor(b, common)), common)


def _whole_power(base: Any, exponent: Any, common: DType) -> Value:
    """Return base**exponent of integers, by the bits of the exponent; a negative exponent gives 1, -1 or 0."""
    x, e = tensor(base, common), tensor(exponent, common)
    bits = exponent.bit_length() if isinstance(exponent, int) else 6
    out, square = tensor(1, common), x
    for n in range(bits):
        odd = (e // (1 << n)) % 2 == 1
        out, square = builder.where(odd, out * square, out).astype(common), (square * square).astype(common)
    # A literal in `where` would promote its operand to float32, which cannot represent 9**9.
    unit = builder.where(x == 1, 1, builder.where(x == -1, builder.where(e % 2 == 0, 1, -1), 0)).astype(common)
    return builder.where(e < 0, unit, out).astype(common)


@aten("pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar")
def power(x: Any, y: Any) -> Value:
    """x**y; for integers, by repeated multiplication"""
    (a, b), common = promote(x, y)
    if not common.is_float:
        return _whole_power(a, b, common if common.is_int else dt.i64)
    if isinstance(b, float) and b == 0:
        return F.full_like(a, 1.0)
    return tensor(a**b, common)


@aten("clamp.default clamp.Tensor")
def clamp(x: Value, low: Any = None, high: Any = None) -> Value:
    """min(max(x, low), high); the derivative is 1 from low to high, bounds included"""
    common = result_type(x, *(b for b in (low, high) if b is not None))
    bounds = (None if b is None else convert(b, common) for b in (low, high))
    return F.clamp(x.astype(common), *bounds).astype(common)


def _or_the_other(name: str, formula: str, f: Callable, of_bools: Callable) -> None:
    """Enter a maximum or minimum that prefers a number to a NaN. f: whether the first operand wins; true if equal."""

    def run(x: Any, y: Any) -> Value:
        (a, b), common = promote(x, y)
        chosen = of_bools(a, b) if common.is_bool else builder.where((b != b) | f(a, b), a, b)
        return chosen.astype(common)

    enter(f"{name}.default", f"{formula}; if one operand is NaN, the other one", run)


_or_the_other("fmax", "max(x, y)", lambda a, b: a >= b, maximum)
_or_the_other("fmin", "min(x, y)", lambda a, b: a <= b, minimum)


@aten("copysign.Tensor copysign.Scalar")
def copysign(x: Any, y: Any) -> Value:
    """abs(x) with the sign of y, including that of a zero"""
    (a, b), common = promote(x, y, floats=True)
    first, second = tensor(a, common), tensor(b, common)
    value = builder.where(signbit(second), -builder.abs(first), builder.abs(first))
    return value.astype(common)


@aten("signbit.default")
def signbit(x: Value) -> Value:
    """x < 0, or x is minus zero (1/x is minus infinity)"""
    if x.dtype.is_bool:
        return builder.full(x.shape, False, dt.bool_)
    return pointwise(x, lambda e: (e < 0) | ((e == 0) & (1.0 / e < 0))) if x.dtype.is_float else x < 0


@aten("hypot.default")
def hypot(x: Value, y: Value) -> Value:
    """sqrt(x*x + y*y), scaled by the larger operand so that no square overflows"""
    (a, b), common = promote(x, y)
    a, b = (tensor(v, common.arithmetic) for v in (a, b))
    big = builder.stop_gradient(builder.maximum(builder.abs(a), builder.abs(b)))
    big = builder.where((big == 0) | (big - big != 0), 1.0, big)
    length = big * builder.sqrt((a / big) * (a / big) + (b / big) * (b / big))
    return builder.where(F.isinf(a) | F.isinf(b), inf, length).astype(common)


@aten("round.decimals")
def round_decimals(x: Value, decimals: int = 0) -> Value:
    """round(x*10**decimals)/10**decimals"""
    ten, wide = 10.0 ** abs(decimals), x.astype(x.dtype.arithmetic)
    return (F.round(wide * ten) / ten if decimals >= 0 else F.round(wide / ten) * ten).astype(x.dtype)


# --------------------------------------------------------------------------------------------------------------- bits

POWERS = np.array([1 << n for n in range(63)], np.int64)


def _bits(name: str, text: str, formula: Callable[[Any, Any], Any], of_bools: Callable[[Value, Value], Value]) -> None:
    """Enter a bitwise operator on integers by a formula of two bits, which floor division extracts. text: the formula
    of bits p and q."""

    def run(x: Any, y: Any) -> Value:
        (a, b), common = promote(x, y)
        if common.is_bool:
            return of_bools(_logical(a), _logical(b))
        first, second = tensor(a, dt.i64 if not isinstance(a, Value) else common), tensor(b, common)
        weights = builder.as_value(POWERS)
        (k,) = builder.axes(len(POWERS))

        def word(p: Any, q: Any) -> Any:
            u, v = builder.cast(p, dt.i64), builder.cast(q, dt.i64)
            low = builder.sum(formula(u // weights[k] % 2, v // weights[k] % 2) * weights[k], over=k)
            top = formula(builder.where(u < 0, 1, 0), builder.where(v < 0, 1, 0))
            return low + builder.cast(top, dt.i64) * (-(2**62)) * 2

        return each((first, second), word).astype(common)

    formula_text = f"sum over bits of {text}, where p and q are bits of x and y"
    enter(f"bitwise_{name}.Tensor bitwise_{name}.Scalar", formula_text, run)


_bits("and", "p*q", lambda p, q: p * q, logical_and)
_bits("or", "p + q - p*q", lambda p, q: p + q - p * q, logical_or)
_bits("xor", "p + q - 2*p*q", lambda p, q: p + q - 2 * p * q, logical_xor)


@aten("angle.default")
def angle(x: Value) -> Value:
    """pi where x < 0, else 0; NaN stays NaN"""
    y = x if x.dtype.is_float else x.astype(default_float())
    return builder.where(y < 0, pi, builder.where(y == y, 0.0, builder.stop_gradient(y))).astype(y.dtype)


@aten("bitwise_not.default")
def bitwise_not(x: Value) -> Value:
    """-1 - x; for bools, not x"""
    return ~x if x.dtype.is_bool else (-1 - x.astype(dt.i64)).astype(x.dtype)


@aten("where.self")
def where(condition: Value, x: Any, y: Any) -> Value:
    """where(condition, x, y)"""
    (a, b), common = promote(x, y)
    return builder.where(_logical(condition), tensor(a, common), tensor(b, common)).astype(common)


# --------------------------------------------------------------------------------------------------------- activations


@aten("elu.default")
def elu(x: Value, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Value:
    """where(x > 0, scale*x, scale*alpha*expm1(input_scale*x))"""
    a, s = float(alpha) * float(scale), float(scale)

    def formula(e: Any) -> Any:
        return builder.where(e <= 0, builder.expm1(e * float(input_scale)) * a, e * s)

    return pointwise(x, formula).astype(x.dtype)


@aten("hardtanh.default")
def hardtanh(x: Value, low: float = -1, high: float = 1) -> Value:
    """min(max(x, low), high); the derivative at the bounds is 0"""
    if not x.dtype.is_float:
        return clamp(x, int(low), int(high))
    return F.hardtanh(x, float(low), float(high)).astype(x.dtype)


@aten("_to_copy.default prims::convert_element_type.default")
def to_copy(x: Value, dtype: DType | None = None) -> Value:
    """x in another type; from floats to integers truncated, to bools x != 0"""
    return x if dtype is None else x.astype(dtype)


@aten("_assert_tensor_metadata.default")
def assert_metadata(x: Value, size: Any = None, stride: Any = None, dtype: DType | None = None) -> None:
    """nothing: types and shapes are checked during tracing"""
    if dtype is not None and x.dtype is not dtype:
        raise ArgumentError(f"a tensor of type {x.dtype.name} is not of type {dtype.name}, as the module expects")


@aten("prims::fma.default")
def fma(x: Value, y: Value, z: Value) -> Value:
    """x*y + z"""
    return x * y + z
