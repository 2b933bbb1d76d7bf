"""Normalization by statistics, and dropout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from einsmith import ops as F
from einsmith.base import dtypes as dt
from einsmith.base.errors import ArgumentError, ShapeError
from einsmith.frontends.graph import layer
from einsmith.frontends.onnx.evaluate import NodeCall
from einsmith.frontends.onnx.operators.axes import axis
from einsmith.frontends.onnx.table import onnx
from einsmith.lang import builder
from einsmith.lang.builder import Value
from einsmith.nn.parameter import Buffer
from einsmith.ops.random import drop


def _along(v: Value, rank: int, d: int) -> Value:
    """Return a vector along dimension d of `rank`."""
    return v.reshape(tuple(v.shape[0] if k == d else 1 for k in range(rank)))


def _moments(x: Value, dims: Sequence[int]) -> tuple[Value, Value]:
    """Return mean and variance over dims, which stay with extent 1."""
    mean = F.mean(x, tuple(dims), True)
    centred = x - mean
    return mean, F.mean(centred * centred, tuple(dims), True)


@onnx("BatchNormalization")
def batch_norm(n: NodeCall, x: Value, scale: Value, bias: Value, mean: Value, variance: Value) -> Any:
    """(x - mean)/sqrt(variance + epsilon)*scale + bias per channel; in training mode also running statistics"""
    if x.ndim == 1:
        y = batch_norm(n, x.reshape((x.shape[0], 1)), scale, bias, mean, variance)
        return (
            tuple(v.reshape(x.shape) if k == 0 else v for k, v in enumerate(y))
            if isinstance(y, tuple)
            else (y.reshape(x.shape))
        )
    eps, keep = float(n.attr("epsilon", 1e-5)), float(n.attr("momentum", 0.9))
    learns = n.attr("training_mode", 0) if n.version >= 14 else n.wants(1)
    wide = mean.dtype
    if not learns or not n.context.training:
        y = _scale(x, _along(mean, x.ndim, 1), _along(variance, x.ndim, 1), scale, bias, eps)
        return (y, mean, variance)[: max(len(n.node.outputs), 1)]
    m, v = _moments(x.astype(wide), (0, *range(2, x.ndim)))
    y = _scale(x, m, v, scale, bias, eps)
    running = [
        (old * keep + new.reshape(old.shape).astype(wide) * (1 - keep)).astype(wide)
        for old, new in ((mean, m), (variance, v))
    ]
    for k, value in zip((3, 4), running, strict=True):
        stored = n.context.stored.get(n.node.inputs[k])
        if isinstance(stored, Buffer):
            stored.assign(value)
    return (y, *running)


def _scale(x: Value, mean: Value, variance: Value, scale: Value, bias: Value, eps: float) -> Value:
    factor = _along(scale, x.ndim, 1) * builder.rsqrt(variance + eps)
    return ((x - mean) * factor + _along(bias, x.ndim, 1)).astype(x.dtype)


@onnx("InstanceNormalization")
def instance_norm(n: NodeCall, x: Value, scale: Value, bias: Value) -> Value:
    """(x - mean)/sqrt(variance + epsilon)*scale + bias, for each channel of each sample"""
    mean, variance = _moments(x, range(2, x.ndim))
    return _scale(x, mean, variance, scale, bias, float(n.attr("epsilon", 1e-5)))


@onnx("GroupNormalization")
def group_norm(n: NodeCall, x: Value, scale: Value, bias: Value) -> Value:
    """(x - mean)/sqrt(variance + epsilon)*scale + bias, for each channel group of each sample"""
    groups, (b, c) = n.attr("num_groups"), x.shape[:2]
    wide = dt.f32 if n.attr("stash_type", 1) == 1 and x.dtype.bits <= 32 else x.dtype
    rows = x.astype(wide).reshape((b, groups, -1))
    mean, variance = _moments(rows, (2,))
    y = ((rows - mean) * builder.rsqrt(variance + float(n.attr("epsilon", 1e-5)))).reshape(x.shape)
    if scale.shape[0] != c:  # before version 21 a group has one
        scale, bias = (F.repeat_interleave(v, c // groups, 0) for v in (scale, bias))
    return (y.astype(x.dtype) * _along(scale, x.ndim, 1) + _along(bias, x.ndim, 1)).astype(x.dtype)


@onnx("LayerNormalization")
def layer_norm(n: NodeCall, x: Value, scale: Value, bias: Value | None = None) -> tuple[Value, ...]:
    """((x - mean)/sqrt(variance + epsilon)*scale + bias, mean, 1/sqrt(variance + epsilon)) over the last dimensions"""
    d = axis(n.attr("axis", -1), x.ndim)
    wide = dt.f32 if n.attr("stash_type", 1) == 1 and x.dtype.bits <= 32 else x.dtype
    mean, variance = _moments(x.astype(wide), range(d, x.ndim))
    inverse = builder.rsqrt(variance + float(n.attr("epsilon", 1e-5)))
    y = ((x.astype(wide) - mean) * inverse).astype(x.dtype) * scale
    return (y if bias is None else y + bias).astype(x.dtype), mean.astype(wide), inverse.astype(wide)


@onnx("RMSNormalization")
def rms_norm(n: NodeCall, x: Value, scale: Value) -> Value:
    """x/sqrt(mean(x*x) + epsilon)*scale over the last dimensions"""
    d = axis(n.attr("axis", -1), x.ndim)
    wide = dt.f32 if n.attr("stash_type", 1) == 1 and x.dtype.bits <= 32 else x.dtype
    z = x.astype(wide)
    square = F.mean(z * z, tuple(range(d, x.ndim)), True)
    return ((z * builder.rsqrt(square + float(n.attr("epsilon", 1e-5)))).astype(x.dtype) * scale).astype(n.dtype)


@onnx("MeanVarianceNormalization")
def mean_variance(n: NodeCall, x: Value) -> Value:
    """(x - mean)/(sqrt(variance) + 1e-9) over axes"""
    dims = tuple(axis(d, x.ndim) for d in n.attr("axes", (0, 2, 3)))
    mean, variance = _moments(x, dims)
    return ((x - mean) / (builder.sqrt(variance) + 1e-9)).astype(x.dtype)


@onnx("LRN")
def lrn(n: NodeCall, x: Value) -> Value:
    """x/(bias + alpha/size*sum of squares of neighbouring channels)**beta"""
    size, alpha = n.attr("size"), float(n.attr("alpha", 1e-4))
    before = (size - 1) // 2
    (r,) = builder.axes(size)

    def squares(b: Any, c: Any, *p: Any) -> Any:
        k = c + r - before
        inside = (k >= 0) & (k < x.shape[1])
        e = x[(b, builder.minimum(builder.maximum(k, 0), x.shape[1] - 1), *p)]
        return builder.sum(builder.where(inside, e * e, 0.0), over=r)

    total = builder.compute(x.shape, squares)
    below = total * (alpha / size) + float(n.attr("bias", 1.0))
    return (x * below ** -float(n.attr("beta", 0.75))).astype(x.dtype)


@onnx("LpNormalization")
def lp_norm(n: NodeCall, x: Value) -> Value:
    """x/(sum[axis](|x|**p))**(1/p); 0 where the divisor is 0"""
    d, p = axis(n.attr("axis", -1), x.ndim), n.attr("p", 2)
    if p == 1:
        length = F.sum(builder.abs(x), (d,), True)
    elif p == 2:
        length = F.norm(x, 2.0, (d,), True)
    else:
        raise ShapeError(f"LpNormalization: p={p} is neither 1 nor 2")
    return builder.where(length == 0, 0.0, x / builder.where(length == 0, 1.0, length)).astype(x.dtype)


@onnx("Dropout", static=(1, 2))
def dropout(n: NodeCall, x: Value, ratio: Value | None = None, training: Value | None = None) -> tuple[Value, Value]:
    """(x/(1 - ratio), or 0 with probability ratio, in training mode; mask of the kept elements)"""
    share = n.attr("ratio", 0.5)
    if ratio is not None:
        share = n.number(ratio, "the ratio of Dropout")
        if not 0 <= share < 1:
            raise ArgumentError(f"the ratio of Dropout is {share}; it must be at least 0 and less than 1")
    on = training is not None and bool(n.static(training, "training_mode of Dropout").reshape(-1)[0])
    if n.version < 7:
        on = not n.attr("is_test", 0)
    mask = n.result(1).dtype if n.wants(1) else dt.bool_  # before version 10 it has the type of x
    if not on or not n.context.training or not share:
        return x, builder.full(x.shape, True, dt.bool_).astype(mask)
    stream = f"{layer.get()}/"
    if n.wants(1):
        ones = drop(builder.full(x.shape, 1.0, x.dtype), share, stream)
        return (x * ones).astype(x.dtype), (ones != 0).astype(mask)
    return drop(x, share, stream).astype(x.dtype), builder.full(x.shape, True, dt.bool_)
