"""Activation functions."""

from __future__ import annotations

from typing import Any

from einsmith.frontends.onnx.table import onnx
from einsmith.ops.common import pointwise
from einsmith.tracing import builder
from einsmith.tracing.builder import Value


def clip(e: Any, low: float, high: float) -> Any:
    """Return the expression e limited to [low, high]."""
    return builder.where(e < low, low, builder.where(e > high, high, e))


@onnx("HardSigmoid")
def hardsigmoid(x: Value, *, alpha: float = 0.2, beta: float = 0.5) -> Value:
    """min(max(alpha*x + beta, 0), 1)"""
    return pointwise(x, lambda e: clip(alpha * e + beta, 0.0, 1.0))


@onnx("Selu")
def selu(x: Value, *, alpha: float = 1.6732632423543772, gamma: float = 1.0507009873554805) -> Value:
    """gamma*where(x > 0, x, alpha*expm1(x))"""
    return pointwise(x, lambda e: gamma * builder.where(e > 0, e, alpha * builder.expm1(e)))


@onnx("PRelu")
def prelu(x: Value, slope: Value) -> Value:
    """where(x < 0, slope*x, x)"""
    return builder.where(x < 0, x * slope, x)


@onnx("Shrink")
def shrink(x: Value, *, lambd: float = 0.5, bias: float = 0.0) -> Value:
    """where(x < -lambd, x + bias, where(x > lambd, x - bias, 0))"""
    by, zero = (bias, 0.0) if x.dtype.is_float else (int(bias), 0)
    return pointwise(x, lambda e: builder.where(e < -lambd, e + by, builder.where(e > lambd, e - by, zero)))
