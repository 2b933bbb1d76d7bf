"""Losses that PyTorch does not decompose, or whose decompositions differ from eager PyTorch."""

from __future__ import annotations

from functools import partial

from einsmith import ops as F
from einsmith.api.transforms import vjp
from einsmith.frontends.aten.table import aten
from einsmith.ops.losses.margin import listed_classes
from einsmith.tracing.builder import Value

REDUCTIONS = ("none", "mean", "sum")
"""What ATen's numbers of reductions mean."""


@aten("multilabel_margin_loss_forward.default")
def multilabel_margin(x: Value, target: Value, reduction: int) -> tuple[Value, Value]:
    """(functional.multilabel_margin_loss; 1 for the classes before the first -1 of the targets, 0 for others)"""
    loss = F.multilabel_margin_loss(x, target, reduction=REDUCTIONS[reduction])
    if x.ndim == 1 and not reduction:  # PyTorch traces it with this shape; its kernel gives ()
        loss = loss.reshape((1,))
    return loss, listed_classes(target.reshape((-1, x.shape[-1] if x.ndim else 1))).reshape(x.shape).astype(x.dtype)


@aten("multilabel_margin_loss_backward.default")
def multilabel_margin_backward(grad: Value, x: Value, target: Value, reduction: int, is_target: Value) -> Value:
    """the pullback of multilabel_margin_loss_forward"""
    loss = partial(F.multilabel_margin_loss, target=target, reduction=REDUCTIONS[reduction])
    return vjp(loss, x)[1](grad.reshape(()) if x.ndim == 1 else grad)[0]
