"""Compute softmax and its relatives, along any dimension, without overflow."""

from __future__ import annotations

import warnings
from typing import Any

from einsmith.base import dtypes as dt
from einsmith.base.errors import ArgumentError
from einsmith.ops.common import dimension, dimensions, merge, tensor, without
from einsmith.ops.operator import operator
from einsmith.ops.random import WORDS, random_bits
from einsmith.tracing import builder
from einsmith.tracing.builder import Value


def softmax_parts(x: Value, dim: int) -> tuple[Value, Value]:
    """Return the maximum m along `dim`, as a constant since no result depends on it, and the sum of exp(x - m)."""
    (k,) = builder.axes(x.shape[dim])
    rest = without(x.shape, (dim,))

    def at(i: tuple, j: Any) -> tuple:
        return merge(x.ndim, (dim,), (j,), i)

    top = builder.compute(rest, lambda *i: builder.max(builder.stop_gradient(x[at(i, k)]), over=k))
    total = builder.compute(rest, lambda *i: builder.sum(builder.exp(x[at(i, k)] - top[i]), over=k))
    return top, total


def _input_and_dim(input: Any, name: str, dim: int | None, dtype: Any) -> tuple[Value, int]:
    """Return the input, converted to `dtype` if given, and the dimension; None is resolved by the rank, as in torch."""
    x = tensor(input, name, "input", kind=None if dtype is not None else "float")
    x = x if dtype is None else x.astype(dt.dtype_of(dtype))
    if dim is None:
        dim = 0 if x.ndim in (0, 1, 3) else 1
        warnings.warn(
            f"{name}: dim is not given and is chosen by the number of dimensions; pass dim={dim}", stacklevel=4
        )
    return x, dimension(dim, max(x.ndim, 1), name)


def _softmax(x: Value, d: int) -> Value:
    if not x.ndim or not x.size:
        return builder.exp(x - x)
    top, total = softmax_parts(x, d)

    def body(*i: Any) -> Any:
        j = without(i, (d,))
        return builder.exp(x[i] - top[j]) / total[j]

    return builder.compute(x.shape, body)


@operator("Softmax", settings="dim")
def softmax(input: Any, dim: int | None = None, *, dtype: Any = None) -> Value:
    """Return exp(x)/sum of exp(x) along `dim`, computed without overflow; `dtype`: the type that the input is converted
    to.

    A dimension that is not given is chosen by the rank, as torch does, with a warning.
    """
    return _softmax(*_input_and_dim(input, "softmax", dim, dtype))


@operator("Softmin", settings="dim")
def softmin(input: Any, dim: int | None = None, *, dtype: Any = None) -> Value:
    """Return the softmax of -x along `dim`."""
    x, d = _input_and_dim(input, "softmin", dim, dtype)
    return _softmax(-x, d)


@operator("LogSoftmax", settings="dim")
def log_softmax(input: Any, dim: int | None = None, *, dtype: Any = None) -> Value:
    """Return x - log(sum of exp(x)) along `dim`, computed without overflow."""
    x, d = _input_and_dim(input, "log_softmax", dim, dtype)
    if not x.ndim or not x.size:
        return x - x
    top, total = softmax_parts(x, d)
    scale = builder.log(total)  # a tensor of its own: one logarithm per row, not per element

    def body(*i: Any) -> Any:
        j = without(i, (d,))
        return x[i] - top[j] - scale[j]

    return builder.compute(x.shape, body)


@operator()
def logsumexp(input: Any, dim: int | tuple[int, ...], keepdim: bool = False) -> Value:
    """Return log(sum of exp(x)) over one dimension or several, without overflow; -inf where all elements are -inf, or
    there are none."""
    x = tensor(input, "logsumexp", "input")
    if not x.dtype.is_float:
        x = x.astype(dt.f32)
    if not x.ndim:
        return x
    return builder.logsumexp(x, axis=dimensions(dim, x.ndim, "logsumexp"), keepdims=keepdim)


@operator()
def gumbel_softmax(logits: Any, tau: float = 1, hard: bool = False, *, dim: int = -1) -> Value:
    """Return the softmax of (logits + Gumbel noise)/tau along `dim`: a differentiable sample of a category.

    hard: the sample itself, one-hot, with the derivatives of the soft one. Other noise at every call. Source: Jang et
    al. 2017, arXiv 1611.01144.
    """
    x = tensor(logits, "gumbel_softmax", "logits", kind="float")
    if not tau > 0:
        raise ArgumentError(f"gumbel_softmax: tau={tau!r} must be a positive number")
    d = dimension(dim, x.ndim, "gumbel_softmax")
    bits = random_bits(x.shape, "gumbel_softmax")

    def noisy(*i: Any) -> Any:
        share = (builder.cast(bits[i], dt.f64) + (WORDS + 0.5)) * (0.5 / WORDS)  # in (0, 1)
        return (x[i] + builder.cast(-builder.log(-builder.log(share)), x.dtype)) * (1 / tau)

    soft = _softmax(builder.compute(x.shape, noisy), d)
    if not hard:
        return soft
    (k,) = builder.axes(x.shape[d])
    best = builder.compute(
        without(x.shape, (d,)),
        lambda *i: builder.argmax(builder.stop_gradient(soft[merge(x.ndim, (d,), (k,), i)]), over=k),
    )
    chosen = builder.compute(
        x.shape,
        lambda *i: (
            builder.where(best[without(i, (d,))] == i[d], 1.0, 0.0)
            if x.ndim > 1
            else builder.where(best == i[d], 1.0, 0.0)
        ),
    ).astype(x.dtype)
    return builder.differentiate_as(chosen, soft)
