"""Elementwise operators with NumPy's broadcasting."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from einsmith import ops as F
from einsmith.base import dtypes as dt
from einsmith.base.errors import DtypeError
from einsmith.frontends.aten import TABLE
from einsmith.frontends.onnx.evaluate import NodeCall
from einsmith.frontends.onnx.table import enter, onnx
from einsmith.lang import builder
from einsmith.lang.builder import Value
from einsmith.ops.common import pointwise

_sign = TABLE["sign.default"]
enter("Sign", _sign.formula, lambda n, x: _sign.run(x), "pointwise")


def _binary(name: str, formula: str, f: Callable[[Value, Value], Value]) -> None:
    enter(name, formula, lambda n, a, b: f(a, b).astype(a.dtype))


_binary("Add", "a + b", lambda a, b: a + b)
_binary("Sub", "a - b", lambda a, b: a - b)
_binary("Mul", "a*b", lambda a, b: a * b)


@onnx("Div")
def div(n: NodeCall, a: Value, b: Value) -> Value:
    """a/b; for integers, truncated"""
    return (a / b if a.dtype.is_float else F.div(a, b, rounding_mode="trunc")).astype(a.dtype)


@onnx("Mod")
def mod(n: NodeCall, a: Value, b: Value) -> Value:
    """a - b*floor(a/b), with the sign of b; with fmod, a - b*trunc(a/b), with the sign of a"""
    return TABLE["fmod.Tensor" if n.attr("fmod", 0) else "remainder.Tensor"].run(a, b).astype(a.dtype)


@onnx("Pow")
def power(n: NodeCall, a: Value, b: Value) -> Value:
    """a**b, in the type of a; for integers, by repeated multiplication"""
    exponent = n.known(b)
    if exponent is not None and exponent.size == 1 and a.ndim >= b.ndim and b.dtype is not dt.bf16:
        number = exponent.reshape(-1)[0].item()
        if a.dtype.is_float:
            return (a * a if number == 2 else a ** float(number)).astype(a.dtype)
        b = builder.full(b.shape, number, b.dtype)
    if a.dtype.is_float:
        return (a ** b.astype(a.dtype)).astype(a.dtype)
    if b.dtype.is_float:
        return (a.astype(dt.f64) ** b.astype(dt.f64)).astype(a.dtype)
    return TABLE["pow.Tensor_Tensor"].run(a, b.astype(a.dtype)).astype(a.dtype)


# -------------------------------------------------------------------------------------------------- comparisons, logic


def _number(x: Value) -> Value:
    return x.astype(dt.i32) if x.dtype.is_bool else x


for _name, _formula, _f in (
    ("Equal", "a == b", lambda a, b: a == b),
    ("Greater", "a > b", lambda a, b: a > b),
    ("Less", "a < b", lambda a, b: a < b),
    ("GreaterOrEqual", "a >= b", lambda a, b: a >= b),
    ("LessOrEqual", "a <= b", lambda a, b: a <= b),
):
    enter(_name, _formula, lambda n, a, b, f=_f: f(_number(a), _number(b)), "pointwise")

enter("And", "a and b", lambda n, a, b: a & b)
enter("Or", "a or b", lambda n, a, b: a | b)
enter("Xor", "a != b, for truth values", lambda n, a, b: F.logical_xor(a, b))


@onnx("Where")
def where(n: NodeCall, condition: Value, a: Value, b: Value) -> Value:
    """where(condition, a, b)"""
    return builder.where(condition, a, b).astype(a.dtype)


@onnx("IsInf")
def isinf(n: NodeCall, x: Value) -> Value:
    """x == inf or x == -inf, as detect_positive and detect_negative say"""
    both = {"detect_positive": float("inf"), "detect_negative": -float("inf")}
    signs = [v for name, v in both.items() if n.attr(name, 1)]
    if not signs:
        return builder.full(x.shape, False, dt.bool_)
    return pointwise(x, lambda e: reduce(lambda p, q: p | q, [e == v for v in signs]))


# -------------------------------------------------------------------------------------------------------- several


def _several(name: str, formula: str, f: Callable[[Any, Any], Any]) -> None:
    def run(n: NodeCall, *inputs: Value) -> Value:
        return reduce(lambda a, b: f(a, b).astype(a.dtype), inputs)

    enter(name, formula, run)


_several("Sum", "a + b + ..", lambda a, b: a + b)
_several("Max", "max(a, b, ..)", builder.maximum)
_several("Min", "min(a, b, ..)", builder.minimum)


@onnx("Mean")
def mean(n: NodeCall, *inputs: Value) -> Value:
    """(a + b + ..)/count"""
    return (reduce(lambda a, b: a + b, inputs) / float(len(inputs))).astype(inputs[0].dtype)


@onnx("Clip")
def clip(n: NodeCall, x: Value, low: Value | None = None, high: Value | None = None) -> Value:
    """min(max(x, low), high); the derivative is 1 from low to high, bounds included"""
    bounds = [low, high]
    if n.version < 11:
        bounds = [None if b is None else builder.full((), b, x.dtype) for b in (n.attr("min"), n.attr("max"))]
    number = [None if b is None else b.reshape(()) for b in bounds]
    if number == [None, None]:
        return x
    if all(b is not None for b in number) and not x.dtype.is_float:
        return builder.minimum(builder.maximum(x, number[0]), number[1]).astype(x.dtype)
    return F.clamp(x, *number).astype(x.dtype)


# --------------------------------------------------------------------------------------------------------------- bits


@onnx("BitShift")
def bitshift(n: NodeCall, x: Value, y: Value) -> Value:
    """x*2**y or floor(x/2**y), as direction says, wrapped to the type"""
    bits = np.iinfo(n.result().numpy).bits
    wide, by = x.astype(dt.i64), y.astype(dt.i64)
    power = builder.full((), 1, dt.i64)
    for k in range(6):  # computes 2**y from the bits of y
        power = builder.where(by // (1 << k) % 2 == 1, power * (1 << (1 << k)) if k < 5 else power * (2**31) * 2, power)
    left = n.attr("direction", "") == "LEFT"
    if left:
        size = 1 << bits
        value = (wide * power) % size if bits < 64 else wide * power
    else:
        value = wide // power
    beyond: Any = 0 if left else builder.where(wide < 0, -1, 0)
    return builder.where((by < 0) | (by >= bits), beyond, value).astype(x.dtype)


for _name in ("And", "Or", "Xor"):
    _entry = TABLE[f"bitwise_{_name.lower()}.Tensor"]
    enter(f"Bitwise{_name}", _entry.formula, lambda n, a, b, f=_entry.run: f(a, b).astype(a.dtype), "pointwise")


@onnx("BitwiseNot")
def bitwise_not(n: NodeCall, x: Value) -> Value:
    """-1 - x, wrapped to the type"""
    if x.dtype.is_float:
        raise DtypeError("BitwiseNot takes integers")
    return (-1 - x.astype(dt.i64)).astype(x.dtype) if x.dtype.signed else (255 - x.astype(dt.i64)).astype(x.dtype)
