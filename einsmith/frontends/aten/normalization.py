"""Normalization. Results include the tensors that PyTorch saves for its backward pass: means and
1/sqrt(variance + eps)."""

from __future__ import annotations

from collections.abc import Sequence

from einsmith import ops as F
from einsmith.frontends.aten.table import aten
from einsmith.lang import builder
from einsmith.lang.builder import Value
from einsmith.ops.normalization import moments


def _statistics(x: Value, dims: Sequence[int], eps: float) -> tuple[Value, Value]:
    """Return (mean, 1/sqrt(variance + eps)) over dims, which stay with extent 1."""
    mean, variance = moments(x, dims)
    shape = tuple(1 if d in dims else n for d, n in enumerate(x.shape))
    return mean.reshape(shape), builder.rsqrt(variance + eps).reshape(shape)


@aten("native_layer_norm.default")
def layer_norm(
    x: Value, shape: Sequence[int], weight: Value | None, bias: Value | None, eps: float
) -> tuple[Value, Value, Value]:
    """((x - mean)*rsqrt(variance + eps)*weight + bias, mean, rsqrt(variance + eps)) over the last dimensions"""
    y = F.layer_norm(x, tuple(shape), weight, bias, eps)
    return (y, *_statistics(x, range(x.ndim - len(shape), x.ndim), eps))


@aten("native_group_norm.default")
def group_norm(
    x: Value, weight: Value | None, bias: Value | None, n: int, c: int, hxw: int, group: int, eps: float
) -> tuple[Value, Value, Value]:
    """(each sample's channel groups normalized, mean, rsqrt(variance + eps)); statistics are [N, group]"""
    y = F.group_norm(x, group, weight, bias, eps)
    mean, rstd = _statistics(x.reshape((n, group, c // group * hxw)), (2,), eps)
    return y, mean.reshape((n, group)), rstd.reshape((n, group))


class _Running:
    """A running statistic that `functional.batch_norm` updates like a buffer; `new` is its new value."""

    def __init__(self, value: Value):
        self.new = self.value = value

    def __einsmith_value__(self) -> Value:
        return self.value

    def assign(self, value: Value) -> None:
        self.new = value.astype(self.value.dtype)


def _batch(
    x: Value,
    weight: Value | None,
    bias: Value | None,
    mean: Value | None,
    variance: Value | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Value, ...]:
    """Return (the output, mean and 1/sqrt(variance + eps) for the backward, the running statistics)."""
    means, variances = (None if v is None else _Running(v) for v in (mean, variance))
    y = F.batch_norm(x, means, variances, weight, bias, training, momentum, eps)
    kept: tuple[Value, Value] = (builder.full((0,), 0.0, x.dtype),) * 2
    if training:
        kept = _statistics(x, (0, *range(2, x.ndim)), eps)
    kept = tuple(v.reshape((v.size,)) for v in kept)  # type: ignore[assignment]
    return (y, *kept, *(r.new for r in (means, variances) if r is not None))


@aten("_native_batch_norm_legit_functional.default")
def batch_norm_functional(
    x: Value,
    weight: Value | None,
    bias: Value | None,
    mean: Value,
    variance: Value,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Value, ...]:
    """(each channel normalized, mean, rsqrt(variance + eps), updated running mean, updated running variance)"""
    return _batch(x, weight, bias, mean, variance, training, momentum, eps)


@aten("_native_batch_norm_legit.no_stats")
def batch_norm_no_stats(
    x: Value, weight: Value | None, bias: Value | None, training: bool, momentum: float, eps: float
) -> tuple[Value, ...]:
    """(each channel normalized by the batch's statistics, mean, rsqrt(variance + eps))"""
    return _batch(x, weight, bias, None, None, True, momentum, eps)


@aten("_native_batch_norm_legit_no_training.default")
def batch_norm_no_training(
    x: Value, weight: Value | None, bias: Value | None, mean: Value, variance: Value, momentum: float, eps: float
) -> tuple[Value, ...]:
    """(each channel normalized by the running mean and variance, empty, empty)"""
    return _batch(x, weight, bias, mean, variance, False, momentum, eps)[:3]


@aten("_fused_rms_norm.default")
def rms_norm(x: Value, shape: Sequence[int], weight: Value | None, eps: float | None) -> tuple[Value, Value]:
    """(x*rsqrt(mean(x*x) + eps)*weight, rsqrt(mean(x*x) + eps)) over the last dimensions"""
    small = x.dtype.eps if eps is None else eps
    square = F.mean(x * x, tuple(range(x.ndim - len(shape), x.ndim)), True)
    return F.rms_norm(x, tuple(shape), weight, small), builder.rsqrt(square + small)
