"""Activation functions."""

from __future__ import annotations

from typing import Any

from einsmith import ops as F
from einsmith.frontends.onnx.evaluate import NodeCall
from einsmith.frontends.onnx.table import enter, onnx
from einsmith.lang import builder
from einsmith.lang.builder import Value
from einsmith.ops.common import pointwise


def clip(e: Any, low: float, high: float) -> Any:
    """Return the expression e limited to [low, high]."""
    return builder.where(e < low, low, builder.where(e > high, high, e))


SCALAR = {
    "Relu": lambda e, alpha, beta: builder.relu(e),
    "Tanh": lambda e, alpha, beta: builder.tanh(e),
    "Sigmoid": lambda e, alpha, beta: builder.sigmoid(e),
    "Affine": lambda e, alpha, beta: alpha * e + beta,
    "LeakyRelu": lambda e, alpha, beta: builder.where(e < 0, alpha * e, e),
    "ThresholdedRelu": lambda e, alpha, beta: builder.where(e > alpha, e, 0.0),
    "ScaledTanh": lambda e, alpha, beta: alpha * builder.tanh(beta * e),
    "HardSigmoid": lambda e, alpha, beta: clip(alpha * e + beta, 0.0, 1.0),
    "Elu": lambda e, alpha, beta: builder.where(e < 0, alpha * builder.expm1(e), e),
    "Softsign": lambda e, alpha, beta: e / (1.0 + builder.abs(e)),
    "Softplus": lambda e, alpha, beta: builder.softplus(e),
}
"""Functions of an element with two parameters: those that recurrent operators name."""
DEFAULTS = {
    "LeakyRelu": (0.01, 0.0),
    "ThresholdedRelu": (1.0, 0.0),
    "HardSigmoid": (0.2, 0.5),
    "Elu": (1.0, 0.0),
    "Affine": (1.0, 0.0),
    "ScaledTanh": (1.0, 1.0),
}


def _scalar(name: str, formula: str) -> None:
    def run(n: NodeCall, x: Value) -> Value:
        alpha, beta = DEFAULTS.get(name, (0.0, 0.0))
        alpha, beta = float(n.attr("alpha", alpha)), float(n.attr("beta", beta))
        return pointwise(x, lambda e: SCALAR[name](e, alpha, beta)).astype(x.dtype)

    enter(name, formula, run)


_scalar("LeakyRelu", "where(x < 0, alpha*x, x)")
_scalar("ThresholdedRelu", "where(x > alpha, x, 0)")
_scalar("HardSigmoid", "min(max(alpha*x + beta, 0), 1)")
_scalar("Elu", "where(x < 0, alpha*expm1(x), x)")
_scalar("Softsign", "x/(1 + |x|)")
_scalar("Softplus", "log(1 + exp(x))")


@onnx("Relu")
def relu(n: NodeCall, x: Value) -> Value:
    """where(x <= 0, 0, x)"""
    return (F.relu(x) if x.dtype.is_float else builder.maximum(x, 0)).astype(x.dtype)


@onnx("Selu")
def selu(n: NodeCall, x: Value) -> Value:
    """gamma*where(x > 0, x, alpha*expm1(x))"""
    alpha, gamma = float(n.attr("alpha", 1.6732632423543772)), float(n.attr("gamma", 1.0507009873554805))
    return pointwise(x, lambda e: gamma * builder.where(e > 0, e, alpha * builder.expm1(e))).astype(x.dtype)


@onnx("Celu")
def celu(n: NodeCall, x: Value) -> Value:
    """where(x > 0, x, alpha*expm1(x/alpha))"""
    alpha = float(n.attr("alpha", 1.0))
    return pointwise(x, lambda e: builder.where(e > 0, e, alpha * builder.expm1(e / alpha))).astype(x.dtype)


@onnx("HardSwish")
def hardswish(n: NodeCall, x: Value) -> Value:
    """x*min(max(x/6 + 1/2, 0), 1)"""
    return pointwise(x, lambda e: e * clip(e / 6.0 + 0.5, 0.0, 1.0)).astype(x.dtype)


@onnx("Swish")
def swish(n: NodeCall, x: Value) -> Value:
    """x*sigmoid(alpha*x)"""
    alpha = float(n.attr("alpha", 1.0))
    return pointwise(x, lambda e: e * builder.sigmoid(alpha * e)).astype(x.dtype)


@onnx("Gelu")
def gelu(n: NodeCall, x: Value) -> Value:
    """x*(1 + erf(x/sqrt(2)))/2, or its tanh approximation"""
    return F.gelu(x, n.attr("approximate", "none")).astype(x.dtype)


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
