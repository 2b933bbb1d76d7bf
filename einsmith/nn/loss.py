"""Define losses as modules, under torch.nn's names, arguments and defaults. `einsmith.ops` computes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from einsmith import ops as F
from einsmith.base.arguments import Share
from einsmith.lang.builder import Value
from einsmith.nn.module import Module
from einsmith.ops.losses.reduction import REDUCTIONS, check_reduction


class _Loss(Module):
    def __init__(self, reduction: str = "mean"):
        check_reduction(type(self).__name__, reduction)
        self.reduction = reduction


class _Weighted(_Loss):
    """A weight is a buffer: part of the state, and not learned."""

    def __init__(self, weight: Any = None, reduction: str = "mean"):
        super().__init__(reduction)
        self.register_buffer("weight", weight)


class MSELoss(_Loss):
    """The squared difference of input and target; see `functional.mse_loss`."""

    def forward(self, input: Value, target: Value) -> Value:
        return F.mse_loss(input, target, reduction=self.reduction)


class L1Loss(_Loss):
    """The magnitude of the difference of input and target; see `functional.l1_loss`."""

    def forward(self, input: Value, target: Value) -> Value:
        return F.l1_loss(input, target, reduction=self.reduction)


class SmoothL1Loss(_Loss):
    """See `functional.smooth_l1_loss`."""

    def __init__(self, *, reduction: str = "mean", beta: float = 1.0):
        super().__init__(reduction)
        self.beta = beta

    def forward(self, input: Value, target: Value) -> Value:
        return F.smooth_l1_loss(input, target, reduction=self.reduction, beta=self.beta)


class HuberLoss(_Loss):
    """See `functional.huber_loss`."""

    def __init__(self, reduction: str = "mean", delta: float = 1.0):
        super().__init__(reduction)
        self.delta = delta

    def forward(self, input: Value, target: Value) -> Value:
        return F.huber_loss(input, target, reduction=self.reduction, delta=self.delta)


class BCELoss(_Weighted):
    """The binary cross entropy of probabilities; see `functional.binary_cross_entropy`."""

    def __init__(self, weight: Any = None, *, reduction: str = "mean"):
        super().__init__(weight, reduction)

    def forward(self, input: Value, target: Value) -> Value:
        return F.binary_cross_entropy(input, target, self.weight, reduction=self.reduction)


class BCEWithLogitsLoss(_Weighted):
    """The binary cross entropy of sigmoid(input); see `functional.binary_cross_entropy_with_logits`."""

    def __init__(self, weight: Any = None, *, reduction: str = "mean", pos_weight: Any = None):
        super().__init__(weight, reduction)
        self.register_buffer("pos_weight", pos_weight)

    def forward(self, input: Value, target: Value) -> Value:
        return F.binary_cross_entropy_with_logits(
            input, target, self.weight, reduction=self.reduction, pos_weight=self.pos_weight
        )


class KLDivLoss(_Loss):
    """The divergence of log-probabilities from a target; see `functional.kl_div`."""

    def __init__(self, *, reduction: str = "mean", log_target: bool = False):
        check_reduction("KLDivLoss", reduction, (*REDUCTIONS, "batchmean"))
        self.reduction, self.log_target = reduction, log_target

    def forward(self, input: Value, target: Value) -> Value:
        return F.kl_div(input, target, reduction=self.reduction, log_target=self.log_target)


class PoissonNLLLoss(_Loss):
    """See `functional.poisson_nll_loss`."""

    def __init__(self, log_input: bool = True, full: bool = False, *, eps: float = 1e-8, reduction: str = "mean"):
        super().__init__(reduction)
        self.log_input, self.full, self.eps = log_input, full, eps

    def forward(self, log_input: Value, target: Value) -> Value:
        return F.poisson_nll_loss(log_input, target, self.log_input, self.full, eps=self.eps, reduction=self.reduction)


class GaussianNLLLoss(_Loss):
    """See `functional.gaussian_nll_loss`."""

    def __init__(self, *, full: bool = False, eps: float = 1e-6, reduction: str = "mean"):
        super().__init__(reduction)
        self.full, self.eps = full, eps

    def forward(self, input: Value, target: Value, var: Any) -> Value:
        return F.gaussian_nll_loss(input, target, var, self.full, self.eps, self.reduction)


class _ClassLoss(_Weighted):
    """`weight` [C] scales each class; labels equal to `ignore_index` count for nothing."""

    def __init__(self, weight: Any = None, *, ignore_index: int | None = -100, reduction: str = "mean"):
        super().__init__(weight, reduction)
        self.ignore_index = ignore_index


class NLLLoss(_ClassLoss):
    """Minus the log-probability of the target class; see `functional.nll_loss`."""

    def forward(self, input: Value, target: Value) -> Value:
        return F.nll_loss(input, target, self.weight, ignore_index=self.ignore_index, reduction=self.reduction)


class CrossEntropyLoss(_ClassLoss):
    """Minus the logarithm of the softmax of the logits at the target class; see `functional.cross_entropy`."""

    def __init__(
        self,
        weight: Any = None,
        *,
        ignore_index: int | None = -100,
        reduction: str = "mean",
        label_smoothing: Share = 0.0,
    ):
        super().__init__(weight, ignore_index=ignore_index, reduction=reduction)
        self.label_smoothing = label_smoothing

    def forward(self, input: Value, target: Value) -> Value:
        return F.cross_entropy(
            input,
            target,
            self.weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
        )


class MarginRankingLoss(_Loss):
    """See `functional.margin_ranking_loss`."""

    def __init__(self, margin: float = 0.0, *, reduction: str = "mean"):
        super().__init__(reduction)
        self.margin = margin

    def forward(self, input1: Value, input2: Value, target: Value) -> Value:
        return F.margin_ranking_loss(input1, input2, target, self.margin, reduction=self.reduction)


class HingeEmbeddingLoss(_Loss):
    """See `functional.hinge_embedding_loss`."""

    def __init__(self, margin: float = 1.0, *, reduction: str = "mean"):
        super().__init__(reduction)
        self.margin = margin

    def forward(self, input: Value, target: Value) -> Value:
        return F.hinge_embedding_loss(input, target, self.margin, reduction=self.reduction)


class CosineEmbeddingLoss(_Loss):
    """See `functional.cosine_embedding_loss`."""

    def __init__(self, margin: float = 0.0, *, reduction: str = "mean"):
        super().__init__(reduction)
        self.margin = margin

    def forward(self, input1: Value, input2: Value, target: Value) -> Value:
        return F.cosine_embedding_loss(input1, input2, target, self.margin, reduction=self.reduction)


class SoftMarginLoss(_Loss):
    """See `functional.soft_margin_loss`."""

    def __init__(self, *, reduction: str = "mean"):
        super().__init__(reduction)

    def forward(self, input: Value, target: Value) -> Value:
        return F.soft_margin_loss(input, target, reduction=self.reduction)


class MultiMarginLoss(_Weighted):
    """See `functional.multi_margin_loss`."""

    def __init__(self, p: int = 1, margin: float = 1.0, weight: Any = None, *, reduction: str = "mean"):
        super().__init__(weight, reduction)
        self.p, self.margin = p, margin

    def forward(self, input: Value, target: Value) -> Value:
        return F.multi_margin_loss(input, target, self.p, self.margin, self.weight, reduction=self.reduction)


class MultiLabelMarginLoss(_Loss):
    """See `functional.multilabel_margin_loss`."""

    def forward(self, input: Value, target: Value) -> Value:
        return F.multilabel_margin_loss(input, target, reduction=self.reduction)


class MultiLabelSoftMarginLoss(_Weighted):
    """See `functional.multilabel_soft_margin_loss`."""

    def __init__(self, weight: Any = None, *, reduction: str = "mean"):
        super().__init__(weight, reduction)

    def forward(self, input: Value, target: Value) -> Value:
        return F.multilabel_soft_margin_loss(input, target, self.weight, reduction=self.reduction)


class TripletMarginLoss(_Loss):
    """See `functional.triplet_margin_loss`."""

    def __init__(
        self, margin: float = 1.0, p: float = 2.0, eps: float = 1e-6, swap: bool = False, *, reduction: str = "mean"
    ):
        super().__init__(reduction)
        self.margin, self.p, self.eps, self.swap = margin, p, eps, swap

    def forward(self, anchor: Value, positive: Value, negative: Value) -> Value:
        return F.triplet_margin_loss(
            anchor, positive, negative, self.margin, self.p, self.eps, self.swap, reduction=self.reduction
        )


class TripletMarginWithDistanceLoss(_Loss):
    """See `functional.triplet_margin_with_distance_loss`."""

    def __init__(
        self,
        *,
        distance_function: Callable | None = None,
        margin: float = 1.0,
        swap: bool = False,
        reduction: str = "mean",
    ):
        super().__init__(reduction)
        self.distance_function, self.margin, self.swap = distance_function, margin, swap

    def forward(self, anchor: Value, positive: Value, negative: Value) -> Value:
        return F.triplet_margin_with_distance_loss(
            anchor,
            positive,
            negative,
            distance_function=self.distance_function,
            margin=self.margin,
            swap=self.swap,
            reduction=self.reduction,
        )


class CTCLoss(_Loss):
    """Connectionist temporal classification; see `functional.ctc_loss`."""

    def __init__(self, blank: int = 0, reduction: str = "mean", zero_infinity: bool = False):
        super().__init__(reduction)
        self.blank, self.zero_infinity = blank, zero_infinity

    def forward(self, log_probs: Value, targets: Any, input_lengths: Any, target_lengths: Any) -> Value:
        return F.ctc_loss(
            log_probs, targets, input_lengths, target_lengths, self.blank, self.reduction, self.zero_infinity
        )
