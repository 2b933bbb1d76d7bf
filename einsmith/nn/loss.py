"""Define what the losses among the layers have in common."""

from __future__ import annotations

from einsmith.nn.operator_layer import OperatorLayer
from einsmith.ops.losses.reduction import REDUCTIONS, check_reduction


class _Loss(OperatorLayer, family="losses"):
    """A weight is a buffer: part of the state, and not learned."""

    shown: tuple[str, ...] | None = ()
    stored = ("weight", "pos_weight")
    reductions: tuple[str, ...] = REDUCTIONS

    def check(self) -> None:
        check_reduction(type(self).__name__, self.reduction, self.reductions)


class _Divergence(_Loss, family="kl_div"):
    reductions = (*REDUCTIONS, "batchmean")
