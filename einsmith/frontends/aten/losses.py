"""Losses that PyTorch does not decompose."""

from __future__ import annotations

from einsmith import ops as F
from einsmith.frontends.aten.table import aten, enter
from einsmith.lang import builder
from einsmith.lang.builder import Value

REDUCTIONS = ("none", "mean", "sum")


def _nll(x: Value, target: Value, weight: Value | None, reduction: int, ignore_index: int) -> tuple[Value, Value]:
    loss = F.nll_loss(x, target, weight, ignore_index=ignore_index, reduction=REDUCTIONS[reduction])
    counted = target != ignore_index
    if weight is None:
        each = counted.astype(x.dtype)
    else:
        place = builder.where(counted, target, 0)
        each = builder.where(counted, F.index_select(weight, 0, place.reshape((-1,))).reshape(target.shape), 0.0)
    total = F.sum(each) if each.ndim else each
    return loss, total.astype(x.dtype) if reduction else builder.full((), 0.0, x.dtype)


enter(
    "nll_loss_forward.default nll_loss2d_forward.default",
    "(-weight[t]*x[.., t, ..] for the targets t, reduced; the sum of the weights)",
    _nll,
)


@aten("mse_loss.default")
def mse_loss(x: Value, y: Value, reduction: int = 1) -> Value:
    """(x - y)**2, reduced"""
    d = x - y
    return _reduce(d * d, reduction)


@aten("smooth_l1_loss.default")
def smooth_l1_loss(x: Value, y: Value, reduction: int = 1, beta: float = 1.0) -> Value:
    """d*d/(2*beta) where d = |x - y| < beta, d - beta/2 elsewhere, reduced"""
    d = builder.abs(x - y)
    return _reduce(builder.where(d < beta, 0.5 / beta * d * d, d - 0.5 * beta) if beta else d, reduction)


@aten("huber_loss.default")
def huber_loss(x: Value, y: Value, reduction: int = 1, delta: float = 1.0) -> Value:
    """d*d/2 where d = |x - y| < delta, delta*(d - delta/2) elsewhere, reduced"""
    d = builder.abs(x - y)
    return _reduce(builder.where(d < delta, 0.5 * d * d, delta * (d - 0.5 * delta)), reduction)


def _reduce(x: Value, reduction: int) -> Value:
    if not x.ndim or not reduction:
        return x
    return F.mean(x) if reduction == 1 else F.sum(x)
