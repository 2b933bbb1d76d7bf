"""Normalization by statistics, and dropout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from einsmith import ops as F
from einsmith.base import dtypes as dt
from einsmith.base.dtypes import DType
from einsmith.base.errors import ArgumentError
from einsmith.frontends.graph import layer
from einsmith.frontends.onnx.binding import Axis, Known, Number, resolve_axes
from einsmith.frontends.onnx.evaluate import NodeCall
from einsmith.frontends.onnx.table import onnx
from einsmith.nn.parameter import Buffer
from einsmith.ops.random import drop
from einsmith.tracing import builder
from einsmith.tracing.builder import Value


def _along(v: Value, rank: int, d: int) -> Value:
    """Return a vector along dimension d of `rank`."""
    return v.reshape(tuple(v.shape[0] if k == d else 1 for k in range(rank)))


def _moments(x: Value, dims: Sequence[int]) -> tuple[Value, Value]:
    """Return mean and variance over dims, which stay with extent 1."""
    mean = F.mean(x, tuple(dims), True)
    centred = x - mean
    return mean, F.mean(centred * centred, tuple(dims), True)


def _scale(x: Value, mean: Value, variance: Value, scale: Value, bias: Value, epsilon: float) -> Value:
    factor = _along(scale, x.ndim, 1) * builder.rsqrt(variance + epsilon)
    return ((x - mean) * factor + _along(bias, x.ndim, 1)).astype(x.dtype)


@onnx("BatchNormalization")
def batch_norm(
    n: NodeCall,
    x: Value,
    scale: Value,
    bias: Value,
    mean: Value,
    variance: Value,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: int = 0,
) -> tuple[Value, ...]:
    """(x - mean)/sqrt(variance + epsilon)*scale + bias per channel; in training mode also running statistics"""
    shape, wide = x.shape, mean.dtype
    x = x if x.ndim > 1 else x.reshape((*shape, 1))
    learns = training_mode if n.version >= 14 else n.wants(1)
    if not learns or not n.context.training:
        y = _scale(x, _along(mean, x.ndim, 1), _along(variance, x.ndim, 1), scale, bias, epsilon)
        return y.reshape(shape), mean, variance
    m, v = _moments(x.astype(wide), (0, *range(2, x.ndim)))
    running = [
        (old * momentum + new.reshape(old.shape).astype(wide) * (1 - momentum)).astype(wide)
        for old, new in ((mean, m), (variance, v))
    ]
    for k, value in zip((3, 4), running, strict=True):
        stored = n.context.stored.get(n.node.inputs[k])
        if isinstance(stored, Buffer):
            stored.assign(value)
    return _scale(x, m, v, scale, bias, epsilon).reshape(shape), *running


@onnx("InstanceNormalization")
def instance_norm(x: Value, scale: Value, bias: Value, *, epsilon: float = 1e-5) -> Value:
    """(x - mean)/sqrt(variance + epsilon)*scale + bias, for each channel of each sample"""
    return _scale(x, *_moments(x, range(2, x.ndim)), scale, bias, epsilon)


def _stash(x: Value, stash_type: int) -> DType:
    """Return the type in which statistics of x are computed."""
    return dt.f32 if stash_type == 1 and x.dtype.bits <= 32 else x.dtype


@onnx("GroupNormalization")
def group_norm(
    x: Value, scale: Value, bias: Value, *, num_groups: int, epsilon: float = 1e-5, stash_type: int = 1
) -> Value:
    """(x - mean)/sqrt(variance + epsilon)*scale + bias, for each channel group of each sample"""
    b, c = x.shape[:2]
    rows = x.astype(_stash(x, stash_type)).reshape((b, num_groups, -1))
    mean, variance = _moments(rows, (2,))
    y = ((rows - mean) * builder.rsqrt(variance + epsilon)).reshape(x.shape)
    if scale.shape[0] != c:  # before version 21 a group has one
        scale, bias = (F.repeat_interleave(v, c // num_groups, 0) for v in (scale, bias))
    return y.astype(x.dtype) * _along(scale, x.ndim, 1) + _along(bias, x.ndim, 1)


@onnx("LayerNormalization")
def layer_norm(
    x: Value, scale: Value, bias: Value | None = None, *, axis: Axis = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> tuple[Value, ...]:
    """((x - mean)/sqrt(variance + epsilon)*scale + bias, mean, 1/sqrt(variance + epsilon)) over the last dimensions"""
    wide = x.astype(_stash(x, stash_type))
    mean, variance = _moments(wide, range(axis, x.ndim))
    inverse = builder.rsqrt(variance + epsilon)
    y = ((wide - mean) * inverse).astype(x.dtype) * scale
    return y if bias is None else y + bias, mean, inverse


@onnx("RMSNormalization")
def rms_norm(x: Value, scale: Value, *, axis: Axis = -1, epsilon: float = 1e-5, stash_type: int = 1) -> Value:
    """x/sqrt(mean(x*x) + epsilon)*scale over the last dimensions"""
    z = x.astype(_stash(x, stash_type))
    square = F.mean(z * z, tuple(range(axis, x.ndim)), True)
    return (z * builder.rsqrt(square + epsilon)).astype(x.dtype) * scale


@onnx("MeanVarianceNormalization")
def mean_variance(x: Value, *, axes: Sequence[int] = (0, 2, 3)) -> Value:
    """(x - mean)/(sqrt(variance) + 1e-9) over axes"""
    mean, variance = _moments(x, resolve_axes(axes, x.ndim))
    return (x - mean) / (builder.sqrt(variance) + 1e-9)


@onnx("LRN")
def lrn(x: Value, *, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0) -> Value:
    """x/(bias + alpha/size*sum of squares of neighbouring channels)**beta"""
    before = (size - 1) // 2
    (r,) = builder.axes(size)

    def squares(b: Any, c: Any, *p: Any) -> Any:
        k = c + r - before
        inside = (k >= 0) & (k < x.shape[1])
        e = x[(b, builder.minimum(builder.maximum(k, 0), x.shape[1] - 1), *p)]
        return builder.sum(builder.where(inside, e * e, 0.0), over=r)

    return x * (builder.compute(x.shape, squares) * (alpha / size) + bias) ** -beta


_NORMS: dict[str, Callable[[Value, int], Value]] = {
    "MAX": lambda x, d: F.amax(x, (d,), True),
    "L1": lambda x, d: F.sum(builder.abs(x), (d,), True),
    "L2": lambda x, d: F.norm(x, 2.0, (d,), True),
}


def scale_to_norm(x: Value, d: int, norm: str, other: float | None = None) -> Value:
    """Return x divided by a norm along d; `other` where the norm is 0, or x itself if that is None."""
    if norm not in _NORMS:
        raise ArgumentError(f"norm {norm!r} is none of {', '.join(_NORMS)}")
    length = _NORMS[norm](x, d)
    return builder.where(length == 0, x if other is None else other, x / builder.where(length == 0, 1.0, length))


@onnx("LpNormalization")
def lp_norm(x: Value, *, axis: Axis = -1, p: int = 2) -> Value:
    """x/(sum[axis](|x|**p))**(1/p); 0 where the divisor is 0"""
    return scale_to_norm(x, axis, f"L{p}", 0.0)


@onnx("Dropout")
def dropout(n: NodeCall, x: Value, ratio: Number = 0.5, training: Known = None) -> tuple[Value, Value]:
    """(x/(1 - ratio), or 0 with probability ratio, in training mode; mask of the kept elements)"""
    if not 0 <= ratio < 1:
        raise ArgumentError(f"the ratio of Dropout is {ratio}; it must be at least 0 and less than 1")
    on = training is not None and bool(training.reshape(-1)[0])
    everything = builder.full(x.shape, True, dt.bool_)
    if not on or not n.context.training or not ratio:
        return x, everything
    stream = f"{layer.get()}/"
    if not n.wants(1):
        return drop(x, ratio, stream), everything
    ones = drop(builder.full(x.shape, 1.0, x.dtype), ratio, stream)
    return x * ones, ones != 0
