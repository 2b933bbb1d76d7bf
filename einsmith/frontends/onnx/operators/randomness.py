"""Random numbers from Einsmith's own generator, with a stream for each node.

The attribute `seed` is ignored: the seed is that of the training step or of es.manual_seed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from einsmith.base import dtypes as dt
from einsmith.base.dtypes import DType
from einsmith.frontends.aten import TABLE
from einsmith.frontends.onnx.evaluate import NodeCall
from einsmith.frontends.onnx.table import enter, onnx
from einsmith.lang import builder
from einsmith.lang.builder import Value

RANDOM = (
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
    "Bernoulli",
    "Multinomial",
    "Dropout",
)
"""Operators that draw random numbers, anew in every step of a loop."""


def _normal(n: NodeCall, shape: Sequence[int], dtype: DType) -> Value:
    z = TABLE["randn.default"].run(tuple(shape), dt.f32)
    return (z * float(n.attr("scale", 1.0)) + float(n.attr("mean", 0.0))).astype(dtype)


def _uniform(n: NodeCall, shape: Sequence[int], dtype: DType) -> Value:
    low, high = float(n.attr("low", 0.0)), float(n.attr("high", 1.0))
    return (TABLE["rand.default"].run(tuple(shape), dt.f32) * (high - low) + low).astype(dtype)


def _both(name: str, formula: str, f: Callable[..., Value]) -> None:
    def of_shape(n: NodeCall) -> Any:
        return f(n, n.attr("shape"), n.dtype)

    def like(n: NodeCall, x: Value) -> Any:
        return f(n, x.shape, n.dtype)

    enter(name, formula, of_shape)
    enter(f"{name}Like", f"{formula}, in the shape of x", like)


_both("RandomNormal", "normal numbers with a mean and a standard deviation", _normal)
_both("RandomUniform", "uniform numbers in [low, high)", _uniform)


@onnx("Bernoulli")
def bernoulli(n: NodeCall, p: Value) -> Value:
    """1 with probability p, else 0"""
    u = TABLE["rand.default"].run(p.shape, dt.f32)
    return builder.where(u < p.astype(dt.f32), 1, 0).astype(n.dtype)


@onnx("Multinomial")
def multinomial(n: NodeCall, x: Value) -> Value:
    """classes drawn by unnormalized log-probabilities x: argmax of x - log(-log(u)) for uniform u"""
    count = n.attr("sample_size", 1)
    u = TABLE["rand.default"].run((x.shape[0], count, x.shape[1]), dt.f64)
    (k,) = builder.axes(x.shape[1])
    tiny = 2.0**-40

    def best(b: Any, s: Any) -> Any:
        return builder.argmax(
            builder.cast(x[b, k], dt.f64) - builder.log(-builder.log(u[b, s, k] + tiny) + tiny), over=k
        )

    return builder.compute((x.shape[0], count), best).astype(n.dtype)
