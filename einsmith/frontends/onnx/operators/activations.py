"""Activation functions."""

from __future__ import annotations

from typing import Any

from einsmith.frontends.onnx.evaluate import NodeCall
from einsmith.frontends.onnx.table import onnx
from einsmith.lang import builder
from einsmith.lang.builder import Value
from einsmith.ops.common import pointwise


def clip(e: Any, low: float, high: float) -> Any:
    """Return the expression e limited to [low, high]."""
    return builder.where(e < low, low, builder.where(e > high, high, e))


@onnx("HardSigmoid")
def hardsigmoid(n: NodeCall, x: Value) -> Value:
    """min(max(alpha*x + beta, 0), 1)"""
    alpha, beta = float(n.attr("alpha", 0.2)), float(n.attr("beta", 0.5))
    return pointwise(x, lambda e: clip(alpha * e + beta, 0.0, 1.0)).astype(x.dtype)


@onnx("Selu")
def selu(n: NodeCall, x: Value) -> Value:
    """gamma*where(x > 0, x, alpha*expm1(x))"""
    alpha, gamma = float(n.attr("alpha", 1.6732632423543772)), float(n.attr("gamma", 1.0507009873554805))
    return pointwise(x, lambda e: gamma * builder.where(e > 0, e, alpha * builder.expm1(e))).astype(x.dtype)


@onnx("Swish")
def swish(n: NodeCall, x: Value) -> Value:
    """x*sigmoid(alpha*x)"""
    alpha = float(n.attr("alpha", 1.0))
    return pointwise(x, lambda e: e * builder.sigmoid(alpha * e)).astype(x.dtype)


@onnx("PRelu")
def prelu(n: NodeCall, x: Value, slope: Value) -> Value:
    """where(x < 0, slope*x, x)"""
    return builder.where(x < 0, x * slope, x).astype(x.dtype)


@onnx("Shrink")
def shrink(n: NodeCall, x: Value) -> Value:
    """where(x < -lambd, x + bias, where(x > lambd, x - bias, 0))"""
    edge, bias = float(n.attr("lambd", 0.5)), float(n.attr("bias", 0.0))
    if not x.dtype.is_float:
        return builder.where(x < -edge, x + int(bias), builder.where(x > edge, x - int(bias), 0)).astype(x.dtype)
    return pointwise(x, lambda e: builder.where(e < -edge, e + bias, builder.where(e > edge, e - bias, 0.0))).astype(
        x.dtype
    )
