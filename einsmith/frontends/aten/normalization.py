"""Normalization, without the statistics that PyTorch saves for its backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from einsmith import ops as F
from einsmith.frontends.aten.table import aten
from einsmith.tracing.builder import Value


@aten("native_layer_norm.default")
def layer_norm(x: Value, shape: Sequence[int], weight: Value | None, bias: Value | None, eps: float) -> tuple[Value]:
    """(x - mean)*rsqrt(variance + eps)*weight + bias over the last dimensions"""
    return (F.layer_norm(x, tuple(shape), weight, bias, eps),)


@aten("native_group_norm.default")
def group_norm(
    x: Value, weight: Value | None, bias: Value | None, n: int, c: int, hxw: int, group: int, eps: float
) -> tuple[Value]:
    """each sample's channel groups normalized"""
    return (F.group_norm(x, group, weight, bias, eps),)


class _Running:
    """A running statistic that `functional.batch_norm` updates like a buffer; `new` is its new value."""

    def __init__(self, value: Value):
        self.new = self.value = value

    def __einsmith_value__(self) -> Value:
        return self.value

    def assign(self, value: Value) -> None:
        self.new = value.astype(self.value.dtype)


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
) -> tuple[Any, ...]:
    """(each channel normalized, not available, not available, updated running mean, updated running variance)"""
    means, variances = _Running(mean), _Running(variance)
    y = F.batch_norm(x, means, variances, weight, bias, training, momentum, eps)
    return y, None, None, means.new, variances.new


@aten("_native_batch_norm_legit.no_stats")
def batch_norm_no_stats(
    x: Value, weight: Value | None, bias: Value | None, training: bool, momentum: float, eps: float
) -> tuple[Value]:
    """each channel normalized by the batch's statistics"""
    return (F.batch_norm(x, None, None, weight, bias, True, momentum, eps),)


@aten("_native_batch_norm_legit_no_training.default")
def batch_norm_no_training(
    x: Value, weight: Value | None, bias: Value | None, mean: Value, variance: Value, momentum: float, eps: float
) -> tuple[Value]:
    """each channel normalized by the running mean and variance"""
    return (F.batch_norm(x, mean, variance, weight, bias, False, momentum, eps),)
