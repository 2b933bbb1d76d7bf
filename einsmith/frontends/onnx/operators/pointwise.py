"""Elementwise operators with NumPy's broadcasting."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np

from einsmith import ops as F
from einsmith.base import dtypes as dt
from einsmith.base.errors import DtypeError
from einsmith.frontends.aten import TABLE
from einsmith.frontends.onnx.evaluate import NodeCall
from einsmith.frontends.onnx.table import enter, onnx
from einsmith.ops.common import pointwise
from einsmith.tracing import builder
from einsmith.tracing.builder import Value

_OF_ATEN = {
    "Add": "add.Tensor", "Sub": "sub.Tensor", "Mul": "mul.Tensor", "Where": "where.self", "Sign": "sign.default",
    "Equal": "eq.Tensor", "Greater": "gt.Tensor", "Less": "lt.Tensor", "GreaterOrEqual": "ge.Tensor",
    "LessOrEqual": "le.Tensor", **{n: f"logical_{n.lower()}.default" for n in ("And", "Or", "Xor")},
    **{f"Bitwise{n}": f"bitwise_{n.lower()}.Tensor" for n in ("And", "Or", "Xor")},
}  # fmt: skip
"""Operators that are those of ATen."""
for _name, _aten in _OF_ATEN.items():
    enter(_name, TABLE[_aten].formula, TABLE[_aten].run, "pointwise")


@onnx("Div")
def div(a: Value, b: Value) -> Value:
    """a/b; for integers, truncated"""
    return a / b if a.dtype.is_float else F.div(a, b, rounding_mode="trunc")


for _name, _formula, _f in (
    ("Sum", "a + b + ..", lambda a, b: a + b),
    ("Max", "max(a, b, ..)", builder.maximum),
    ("Min", "min(a, b, ..)", builder.minimum),
):
    enter(_name, _formula, lambda *inputs, f=_f: reduce(lambda a, b: f(a, b).astype(a.dtype), inputs), "pointwise")


@onnx("Mean")
def mean(*inputs: Value) -> Value:
    """(a + b + ..)/count"""
    return reduce(lambda a, b: a + b, inputs) / float(len(inputs))


@onnx("Mod")
def mod(a: Value, b: Value, *, fmod: int = 0) -> Value:
    """a - b*floor(a/b), with the sign of b; with fmod, a - b*trunc(a/b), with the sign of a"""
    return TABLE["fmod.Tensor" if fmod else "remainder.Tensor"].run(a, b)


@onnx("Pow")
def power(n: NodeCall, a: Value, b: Value) -> Value:
    """a**b, in the type of a; for integers, by repeated multiplication"""
    exponent = n.known(b)
    if exponent is not None and exponent.size == 1 and a.ndim >= b.ndim and b.dtype is not dt.bf16:
        number = exponent.reshape(-1)[0].item()
        if a.dtype.is_float:
            return a * a if number == 2 else a ** float(number)
        b = builder.full(b.shape, number, b.dtype)
    if a.dtype.is_float:
        return a ** b.astype(a.dtype)
    if b.dtype.is_float:
        return a.astype(dt.f64) ** b.astype(dt.f64)
    return TABLE["pow.Tensor_Tensor"].run(a, b.astype(a.dtype))


@onnx("IsInf")
def isinf(x: Value, *, detect_positive: int = 1, detect_negative: int = 1) -> Value:
    """x == inf or x == -inf, as detect_positive and detect_negative say"""
    signs = [v for v, wanted in ((float("inf"), detect_positive), (-float("inf"), detect_negative)) if wanted]
    if not signs:
        return builder.full(x.shape, False, dt.bool_)
    return pointwise(x, lambda e: reduce(lambda p, q: p | q, [e == v for v in signs]))


@onnx("Clip")
def clip(x: Value, min: Any = None, max: Any = None) -> Value:
    """min(max(x, low), high); the derivative is 1 from low to high, bounds included"""
    bounds = [b.reshape(()) if isinstance(b, Value) else b for b in (min, max)]
    if bounds == [None, None]:
        return x
    if None not in bounds and not x.dtype.is_float:
        return builder.minimum(builder.maximum(x, bounds[0]), bounds[1])
    return F.clamp(x, *bounds)


@onnx("BitShift")
def bitshift(n: NodeCall, x: Value, y: Value, *, direction: str) -> Value:
    """x*2**y or floor(x/2**y), as direction says, wrapped to the type"""
    bits = np.iinfo(n.result().numpy).bits
    wide, by = x.astype(dt.i64), y.astype(dt.i64)
    power = builder.full((), 1, dt.i64)
    for k in range(6):  # computes 2**y from the bits of y
        power = builder.where(by // (1 << k) % 2 == 1, power * (1 << (1 << k)) if k < 5 else power * (2**31) * 2, power)
    beyond: Any = 0
    if direction == "LEFT":
        value = (wide * power) % (1 << bits) if bits < 64 else wide * power
    else:
        value, beyond = wide // power, builder.where(wide < 0, -1, 0)
    return builder.where((by < 0) | (by >= bits), beyond, value)


@onnx("BitwiseNot")
def bitwise_not(x: Value) -> Value:
    """-1 - x, wrapped to the type"""
    if x.dtype.is_float:
        raise DtypeError("BitwiseNot takes integers")
    return (-1 if x.dtype.signed else 255) - x.astype(dt.i64)
