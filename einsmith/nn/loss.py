"""Define losses as modules, under torch.nn's names, arguments and defaults. `einsmith.ops` computes them."""

from __future__ import annotations

from einsmith import ops as F
from einsmith.nn.operator_layer import OperatorLayer
from einsmith.ops.losses.reduction import REDUCTIONS, check_reduction


class _Loss(OperatorLayer):
    """A weight is a buffer: part of the state, and not learned."""

    shown: tuple[str, ...] | None = ()
    stored = ("weight", "pos_weight")
    reductions: tuple[str, ...] = REDUCTIONS

    def check(self) -> None:
        check_reduction(type(self).__name__, self.reduction, self.reductions)


class MSELoss(_Loss, of=F.mse_loss, settings="reduction"):
    """The squared difference of input and target; see `functional.mse_loss`."""


class L1Loss(_Loss, of=F.l1_loss, settings="reduction"):
    """The magnitude of the difference of input and target; see `functional.l1_loss`."""


class SmoothL1Loss(_Loss, of=F.smooth_l1_loss):
    """See `functional.smooth_l1_loss`."""


class HuberLoss(_Loss, of=F.huber_loss, settings="reduction delta"):
    """See `functional.huber_loss`."""


class BCELoss(_Loss, of=F.binary_cross_entropy):
    """The binary cross entropy of probabilities; see `functional.binary_cross_entropy`."""


class BCEWithLogitsLoss(_Loss, of=F.binary_cross_entropy_with_logits):
    """The binary cross entropy of sigmoid(input); see `functional.binary_cross_entropy_with_logits`."""


class KLDivLoss(_Loss, of=F.kl_div):
    """The divergence of log-probabilities from a target; see `functional.kl_div`."""

    reductions = (*REDUCTIONS, "batchmean")


class PoissonNLLLoss(_Loss, of=F.poisson_nll_loss, tensors="log_input target"):
    """See `functional.poisson_nll_loss`."""


class GaussianNLLLoss(_Loss, of=F.gaussian_nll_loss, settings="* full eps reduction"):
    """See `functional.gaussian_nll_loss`."""


class NLLLoss(_Loss, of=F.nll_loss):
    """Minus the log-probability of the target class; see `functional.nll_loss`."""


class CrossEntropyLoss(_Loss, of=F.cross_entropy):
    """Minus the logarithm of the softmax of the logits at the target class; see `functional.cross_entropy`."""


class MarginRankingLoss(_Loss, of=F.margin_ranking_loss):
    """See `functional.margin_ranking_loss`."""


class HingeEmbeddingLoss(_Loss, of=F.hinge_embedding_loss):
    """See `functional.hinge_embedding_loss`."""


class CosineEmbeddingLoss(_Loss, of=F.cosine_embedding_loss):
    """See `functional.cosine_embedding_loss`."""


class SoftMarginLoss(_Loss, of=F.soft_margin_loss):
    """See `functional.soft_margin_loss`."""


class MultiMarginLoss(_Loss, of=F.multi_margin_loss):
    """See `functional.multi_margin_loss`."""


class MultiLabelMarginLoss(_Loss, of=F.multilabel_margin_loss, settings="reduction"):
    """See `functional.multilabel_margin_loss`."""


class MultiLabelSoftMarginLoss(_Loss, of=F.multilabel_soft_margin_loss):
    """See `functional.multilabel_soft_margin_loss`."""


class TripletMarginLoss(_Loss, of=F.triplet_margin_loss):
    """See `functional.triplet_margin_loss`."""


class TripletMarginWithDistanceLoss(_Loss, of=F.triplet_margin_with_distance_loss):
    """See `functional.triplet_margin_with_distance_loss`."""


class CTCLoss(_Loss, of=F.ctc_loss):
    """Connectionist temporal classification; see `functional.ctc_loss`."""
