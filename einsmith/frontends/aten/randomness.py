"""Random numbers from Einsmith's own generator, not PyTorch's.

The stream of an operator is named after the layer of the user's module that contains it, as in `einsmith.nn`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import pi
from typing import Any

from einsmith import ops as F
from einsmith.base import dtypes as dt
from einsmith.base.dtypes import DType
from einsmith.frontends.aten.promotion import default_float
from einsmith.frontends.aten.table import aten
from einsmith.frontends.graph import layer
from einsmith.ops.random import WORDS, drop, random_bits
from einsmith.tracing import builder
from einsmith.tracing.builder import Value


def _stream() -> str:
    return f"{layer.get()}/"


def _share(shape: Sequence[int]) -> Value:
    """Return numbers in (0, 1), in float64."""
    bits = random_bits(tuple(shape), _stream())
    return (bits.astype(dt.f64) + (WORDS + 0.5)) * (0.5 / WORDS)


def _uniform(shape: Sequence[int], dtype: DType) -> Value:
    """Return numbers in [0, 1), of as many digits as the type has, so that none is rounded to 1."""
    digits = min(dtype.digits, 32)
    return (builder.floor(_share(shape) * 2.0**digits) * 2.0**-digits).astype(dtype)


@aten("native_dropout.default")
def native_dropout(x: Value, p: float, train: bool | None = True) -> tuple[Value, Value]:
    """(x/(1 - p), or 0 with probability p; mask of the kept elements)"""
    if train is False:
        return x, builder.full(x.shape, True, dt.bool_)
    kept = drop(builder.full(x.shape, 1.0, x.dtype), float(p), _stream()) != 0
    return builder.where(kept, x * (1 / (1 - p) if p < 1 else 0.0), 0.0).astype(x.dtype), kept


@aten("rand.default")
def rand(size: Sequence[int], dtype: DType | None = None) -> Value:
    """uniform numbers in [0, 1)"""
    return _uniform(size, dtype or default_float())


@aten("rand_like.default")
def rand_like(x: Value, dtype: DType | None = None) -> Value:
    """uniform numbers in [0, 1), in the shape of x"""
    return _uniform(x.shape, dtype or x.dtype)


@aten("randn.default")
def randn(size: Sequence[int], dtype: DType | None = None) -> Value:
    """normal numbers: sqrt(-2*log(u))*cos(2*pi*v) for uniform u and v"""
    return (builder.sqrt(-2.0 * builder.log(_share(size))) * builder.cos(_share(size) * (2 * pi))).astype(
        dtype or default_float()
    )


@aten("randn_like.default")
def randn_like(x: Value, dtype: DType | None = None) -> Value:
    """normal numbers, in the shape of x"""
    return randn(x.shape, dtype or x.dtype)


@aten("randint.low")
def randint_low(low: int, high: int, size: Sequence[int], dtype: DType | None = None) -> Value:
    """low + floor((high - low)*u) for uniform u"""
    return (builder.floor(_share(size) * float(high - low)) + float(low)).astype(dtype or dt.i64)


@aten("randint.default")
def randint(high: int, size: Sequence[int], dtype: DType | None = None) -> Value:
    """floor(high*u) for uniform u"""
    return randint_low(0, high, size, dtype)


@aten("randperm.default")
def randperm(n: int, dtype: DType | None = None) -> Value:
    """argsort of uniform numbers"""
    return F.argsort(_share((n,)), 0).astype(dtype or dt.i64)


@aten("bernoulli.default")
def bernoulli(p: Value) -> Value:
    """1 with probability p, else 0"""
    return builder.where(_share(p.shape) < builder.stop_gradient(p).astype(dt.f64), 1.0, 0.0).astype(p.dtype)


@aten("bernoulli.p")
def bernoulli_p(x: Value, p: float = 0.5) -> Value:
    """1 with probability p, else 0, in the shape of x"""
    return builder.where(_share(x.shape) < float(p), 1.0, 0.0).astype(x.dtype)


@aten("uniform.default")
def uniform(x: Value, low: Any = 0.0, high: Any = 1.0) -> Value:
    """low + (high - low)*u for uniform u, in the shape of x"""
    return _uniform(x.shape, x.dtype) * float(high - low) + float(low)
