"""Random numbers from Einsmith's own generator, with a stream for each node.

The attribute `seed` is ignored: the seed is that of the training step or of es.manual_seed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from einsmith.base import dtypes as dt
from einsmith.frontends.aten import TABLE
from einsmith.frontends.onnx.evaluate import NodeCall
from einsmith.frontends.onnx.table import enter, onnx
from einsmith.tracing import builder
from einsmith.tracing.builder import Value

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


def _draw(name: str, shape: Any, dtype: Any = dt.f32) -> Value:
    return TABLE[f"{name}.default"].run(tuple(shape), dtype)


def _normal(n: NodeCall, shape: Any) -> Value:
    return _draw("randn", shape) * n.attr("scale", 1.0) + n.attr("mean", 0.0)


def _uniform(n: NodeCall, shape: Any) -> Value:
    low = n.attr("low", 0.0)
    return _draw("rand", shape) * (n.attr("high", 1.0) - low) + low


def _both(name: str, formula: str, f: Callable[[NodeCall, Any], Value]) -> None:
    enter(name, formula, lambda n: f(n, n.attr("shape")), "randomness")
    enter(f"{name}Like", f"{formula}, in the shape of x", lambda n, x: f(n, x.shape), "randomness")


_both("RandomNormal", "normal numbers with a mean and a standard deviation", _normal)
_both("RandomUniform", "uniform numbers in [low, high)", _uniform)


@onnx("Bernoulli")
def bernoulli(p: Value) -> Value:
    """1 with probability p, else 0"""
    return builder.where(_draw("rand", p.shape) < p.astype(dt.f32), 1, 0)


@onnx("Multinomial")
def multinomial(x: Value, *, sample_size: int = 1) -> Value:
    """classes drawn by unnormalized log-probabilities x: argmax of x - log(-log(u)) for uniform u"""
    u = _draw("rand", (x.shape[0], sample_size, x.shape[1]), dt.f64)
    (k,) = builder.axes(x.shape[1])
    tiny = 2.0**-40

    def best(b: Any, s: Any) -> Any:
        noise = builder.log(-builder.log(u[b, s, k] + tiny) + tiny)
        return builder.argmax(builder.cast(x[b, k], dt.f64) - noise, over=k)

    return builder.compute((x.shape[0], sample_size), best)
