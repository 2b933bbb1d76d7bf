"""Losses that PyTorch does not decompose."""

from __future__ import annotations

from einsmith import ops as F
from einsmith.frontends.aten.table import enter
from einsmith.lang import builder
from einsmith.lang.builder import Value

REDUCTIONS = ("none", "mean", "sum")
"""What ATen's numbers of reductions mean."""


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
