# Generated from the table of operators: python -m tests.docs --update

from collections.abc import Callable
from typing import Any

from einsmith.base.arguments import Count, Magnitude, Share
from einsmith.nn.conv import Amounts, Ints
from einsmith.nn.operator_layer import OperatorLayer
from einsmith.nn.pooling import Sizes
from einsmith.tracing.builder import Value

class AdaptiveAvgPool1d(OperatorLayer):
    """The layer of `functional.adaptive_avg_pool1d`."""

    output_size: Sizes
    def __init__(self, output_size: Sizes) -> None: ...
    def forward(self, input: Any) -> Any: ...

class AdaptiveAvgPool2d(OperatorLayer):
    """The layer of `functional.adaptive_avg_pool2d`."""

    output_size: Sizes
    def __init__(self, output_size: Sizes) -> None: ...
    def forward(self, input: Any) -> Any: ...

class AdaptiveAvgPool3d(OperatorLayer):
    """The layer of `functional.adaptive_avg_pool3d`."""

    output_size: Sizes
    def __init__(self, output_size: Sizes) -> None: ...
    def forward(self, input: Any) -> Any: ...

class AdaptiveMaxPool1d(OperatorLayer):
    """The layer of `functional.adaptive_max_pool1d`."""

    output_size: Sizes
    return_indices: bool
    def __init__(self, output_size: Sizes, return_indices: bool = False) -> None: ...
    def forward(self, input: Any) -> Any: ...

class AdaptiveMaxPool2d(OperatorLayer):
    """The layer of `functional.adaptive_max_pool2d`."""

    output_size: Sizes
    return_indices: bool
    def __init__(self, output_size: Sizes, return_indices: bool = False) -> None: ...
    def forward(self, input: Any) -> Any: ...

class AdaptiveMaxPool3d(OperatorLayer):
    """The layer of `functional.adaptive_max_pool3d`."""

    output_size: Sizes
    return_indices: bool
    def __init__(self, output_size: Sizes, return_indices: bool = False) -> None: ...
    def forward(self, input: Any) -> Any: ...

class AvgPool1d(OperatorLayer):
    """The layer of `functional.avg_pool1d`."""

    kernel_size: Ints
    stride: Ints | None
    padding: Amounts
    ceil_mode: bool
    count_include_pad: bool
    def __init__(
        self,
        kernel_size: Ints,
        stride: Ints | None = None,
        padding: Amounts = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None: ...
    def forward(self, input: Any) -> Any: ...

class AvgPool2d(OperatorLayer):
    """The layer of `functional.avg_pool2d`."""

    kernel_size: Ints
    stride: Ints | None
    padding: Amounts
    ceil_mode: bool
    count_include_pad: bool
    divisor_override: int | None
    def __init__(
        self,
        kernel_size: Ints,
        stride: Ints | None = None,
        padding: Amounts = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> None: ...
    def forward(self, input: Any) -> Any: ...

class AvgPool3d(OperatorLayer):
    """The layer of `functional.avg_pool3d`."""

    kernel_size: Ints
    stride: Ints | None
    padding: Amounts
    ceil_mode: bool
    count_include_pad: bool
    divisor_override: int | None
    def __init__(
        self,
        kernel_size: Ints,
        stride: Ints | None = None,
        padding: Amounts = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> None: ...
    def forward(self, input: Any) -> Any: ...

class BCELoss(OperatorLayer):
    """The layer of `functional.binary_cross_entropy`."""

    weight: Any
    reduction: str
    def __init__(self, weight: Any = None, *, reduction: str = "mean") -> None: ...
    def forward(self, input: Any, target: Any) -> Any: ...

class BCEWithLogitsLoss(OperatorLayer):
    """The layer of `functional.binary_cross_entropy_with_logits`."""

    weight: Any
    reduction: str
    pos_weight: Any
    def __init__(self, weight: Any = None, *, reduction: str = "mean", pos_weight: Any = None) -> None: ...
    def forward(self, input: Any, target: Any) -> Any: ...

class CELU(OperatorLayer):
    """The layer of `functional.celu`."""

    alpha: float
    inplace: bool
    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None: ...
    def forward(self, input: Any) -> Any: ...

class ChannelShuffle(OperatorLayer):
    """The layer of `functional.channel_shuffle`."""

    groups: Count
    def __init__(self, groups: Count) -> None: ...
    def forward(self, input: Any) -> Any: ...

class CosineEmbeddingLoss(OperatorLayer):
    """The layer of `functional.cosine_embedding_loss`."""

    margin: float
    reduction: str
    def __init__(self, margin: float = 0.0, *, reduction: str = "mean") -> None: ...
    def forward(self, input1: Any, input2: Any, target: Any) -> Any: ...

class CosineSimilarity(OperatorLayer):
    """The layer of `functional.cosine_similarity`."""

    dim: int
    eps: Magnitude | Value
    def __init__(self, dim: int = 1, eps: Magnitude | Value = 1e-08) -> None: ...
    def forward(self, x1: Any, x2: Any) -> Any: ...

class CrossEntropyLoss(OperatorLayer):
    """The layer of `functional.cross_entropy`."""

    weight: Any
    ignore_index: int | None
    reduction: str
    label_smoothing: Share
    def __init__(
        self,
        weight: Any = None,
        *,
        ignore_index: int | None = -100,
        reduction: str = "mean",
        label_smoothing: Share = 0.0,
    ) -> None: ...
    def forward(self, input: Any, target: Any) -> Any: ...

class CTCLoss(OperatorLayer):
    """The layer of `functional.ctc_loss`."""

    blank: int
    reduction: str
    zero_infinity: bool
    def __init__(self, blank: int = 0, reduction: str = "mean", zero_infinity: bool = False) -> None: ...
    def forward(self, log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any) -> Any: ...

class ELU(OperatorLayer):
    """The layer of `functional.elu`."""

    alpha: float
    inplace: bool
    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None: ...
    def forward(self, input: Any) -> Any: ...

class Flatten(OperatorLayer):
    """The layer of `functional.flatten`."""

    start_dim: int
    end_dim: int
    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None: ...
    def forward(self, input: Any) -> Any: ...

class Fold(OperatorLayer):
    """The layer of `functional.fold`."""

    output_size: Ints
    kernel_size: Ints
    dilation: Ints
    padding: Amounts
    stride: Ints
    def __init__(
        self, output_size: Ints, kernel_size: Ints, dilation: Ints = 1, padding: Amounts = 0, stride: Ints = 1
    ) -> None: ...
    def forward(self, input: Any) -> Any: ...

class GaussianNLLLoss(OperatorLayer):
    """The layer of `functional.gaussian_nll_loss`."""

    full: bool
    eps: float
    reduction: str
    def __init__(self, *, full: bool = False, eps: float = 1e-06, reduction: str = "mean") -> None: ...
    def forward(self, input: Any, target: Any, var: Any) -> Any: ...

class GELU(OperatorLayer):
    """The layer of `functional.gelu`."""

    approximate: str
    def __init__(self, approximate: str = "none") -> None: ...
    def forward(self, input: Any) -> Any: ...

class GLU(OperatorLayer):
    """The layer of `functional.glu`."""

    dim: int
    def __init__(self, dim: int = -1) -> None: ...
    def forward(self, input: Any) -> Any: ...

class Hardshrink(OperatorLayer):
    """The layer of `functional.hardshrink`."""

    lambd: float
    def __init__(self, lambd: float = 0.5) -> None: ...
    def forward(self, input: Any) -> Any: ...

class Hardsigmoid(OperatorLayer):
    """The layer of `functional.hardsigmoid`."""

    inplace: bool
    def __init__(self, inplace: bool = False) -> None: ...
    def forward(self, input: Any) -> Any: ...

class Hardswish(OperatorLayer):
    """The layer of `functional.hardswish`."""

    inplace: bool
    def __init__(self, inplace: bool = False) -> None: ...
    def forward(self, input: Any) -> Any: ...

class Hardtanh(OperatorLayer):
    """The layer of `functional.hardtanh`."""

    min_val: float
    max_val: float
    inplace: bool
    def __init__(self, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> None: ...
    def forward(self, input: Any) -> Any: ...

class HingeEmbeddingLoss(OperatorLayer):
    """The layer of `functional.hinge_embedding_loss`."""

    margin: float
    reduction: str
    def __init__(self, margin: float = 1.0, *, reduction: str = "mean") -> None: ...
    def forward(self, input: Any, target: Any) -> Any: ...

class HuberLoss(OperatorLayer):
    """The layer of `functional.huber_loss`."""

    reduction: str
    delta: float
    def __init__(self, reduction: str = "mean", delta: float = 1.0) -> None: ...
    def forward(self, input: Any, target: Any) -> Any: ...

class KLDivLoss(OperatorLayer):
    """The layer of `functional.kl_div`."""

    reduction: str
    log_target: bool
    def __init__(self, *, reduction: str = "mean", log_target: bool = False) -> None: ...
    def forward(self, input: Any, target: Any) -> Any: ...

class L1Loss(OperatorLayer):
    """The layer of `functional.l1_loss`."""

    reduction: str
    def __init__(self, reduction: str = "mean") -> None: ...
    def forward(self, input: Any, target: Any) -> Any: ...

class LeakyReLU(OperatorLayer):
    """The layer of `functional.leaky_relu`."""

    negative_slope: float
    inplace: bool
    def __init__(self, negative_slope: float = 0.01, inplace: bool = False) -> None: ...
    def forward(self, input: Any) -> Any: ...

class LogSoftmax(OperatorLayer):
    """The layer of `functional.log_softmax`."""

    dim: int | None
    def __init__(self, dim: int | None = None) -> None: ...
    def forward(self, input: Any) -> Any: ...

class LogSigmoid(OperatorLayer):
    """The layer of `functional.logsigmoid`."""

    def __init__(self) -> None: ...
    def forward(self, input: Any) -> Any: ...

class LPPool1d(OperatorLayer):
    """The layer of `functional.lp_pool1d`."""

    norm_type: float
    kernel_size: Ints
    stride: Ints | None
    ceil_mode: bool
    def __init__(
        self, norm_type: float, kernel_size: Ints, stride: Ints | None = None, ceil_mode: bool = False
    ) -> None: ...
    def forward(self, input: Any) -> Any: ...

class LPPool2d(OperatorLayer):
    """The layer of `functional.lp_pool2d`."""

    norm_type: float
    kernel_size: Ints
    stride: Ints | None
    ceil_mode: bool
    def __init__(
        self, norm_type: float, kernel_size: Ints, stride: Ints | None = None, ceil_mode: bool = False
    ) -> None: ...
    def forward(self, input: Any) -> Any: ...

class LPPool3d(OperatorLayer):
    """The layer of `functional.lp_pool3d`."""

    norm_type: float
    kernel_size: Ints
    stride: Ints | None
    ceil_mode: bool
    def __init__(
        self, norm_type: float, kernel_size: Ints, stride: Ints | None = None, ceil_mode: bool = False
    ) -> None: ...
    def forward(self, input: Any) -> Any: ...

class MarginRankingLoss(OperatorLayer):
    """The layer of `functional.margin_ranking_loss`."""

    margin: float
    reduction: str
    def __init__(self, margin: float = 0.0, *, reduction: str = "mean") -> None: ...
    def forward(self, input1: Any, input2: Any, target: Any) -> Any: ...

class MaxPool1d(OperatorLayer):
    """The layer of `functional.max_pool1d`."""

    kernel_size: Ints
    stride: Ints | None
    padding: Amounts
    dilation: Ints
    return_indices: bool
    ceil_mode: bool
    def __init__(
        self,
        kernel_size: Ints,
        stride: Ints | None = None,
        padding: Amounts = 0,
        dilation: Ints = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None: ...
    def forward(self, input: Any) -> Any: ...

class MaxPool2d(OperatorLayer):
    """The layer of `functional.max_pool2d`."""

    kernel_size: Ints
    stride: Ints | None
    padding: Amounts
    dilation: Ints
    return_indices: bool
    ceil_mode: bool
    def __init__(
        self,
        kernel_size: Ints,
        stride: Ints | None = None,
        padding: Amounts = 0,
        dilation: Ints = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None: ...
    def forward(self, input: Any) -> Any: ...

class MaxPool3d(OperatorLayer):
    """The layer of `functional.max_pool3d`."""

    kernel_size: Ints
    stride: Ints | None
    padding: Amounts
    dilation: Ints
    return_indices: bool
    ceil_mode: bool
    def __init__(
        self,
        kernel_size: Ints,
        stride: Ints | None = None,
        padding: Amounts = 0,
        dilation: Ints = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None: ...
    def forward(self, input: Any) -> Any: ...

class Mish(OperatorLayer):
    """The layer of `functional.mish`."""

    inplace: bool
    def __init__(self, inplace: bool = False) -> None: ...
    def forward(self, input: Any) -> Any: ...

class MSELoss(OperatorLayer):
    """The layer of `functional.mse_loss`."""

    reduction: str
    def __init__(self, reduction: str = "mean") -> None: ...
    def forward(self, input: Any, target: Any) -> Any: ...

class MultiMarginLoss(OperatorLayer):
    """The layer of `functional.multi_margin_loss`."""

    p: int
    margin: float
    weight: Any
    reduction: str
    def __init__(self, p: int = 1, margin: float = 1.0, weight: Any = None, *, reduction: str = "mean") -> None: ...
    def forward(self, input: Any, target: Any) -> Any: ...

class MultiLabelMarginLoss(OperatorLayer):
    """The layer of `functional.multilabel_margin_loss`."""

    reduction: str
    def __init__(self, reduction: str = "mean") -> None: ...
    def forward(self, input: Any, target: Any) -> Any: ...

class MultiLabelSoftMarginLoss(OperatorLayer):
    """The layer of `functional.multilabel_soft_margin_loss`."""

    weight: Any
    reduction: str
    def __init__(self, weight: Any = None, *, reduction: str = "mean") -> None: ...
    def forward(self, input: Any, target: Any) -> Any: ...

class NLLLoss(OperatorLayer):
    """The layer of `functional.nll_loss`."""

    weight: Any
    ignore_index: int | None
    reduction: str
    def __init__(self, weight: Any = None, *, ignore_index: int | None = -100, reduction: str = "mean") -> None: ...
    def forward(self, input: Any, target: Any) -> Any: ...

class PixelShuffle(OperatorLayer):
    """The layer of `functional.pixel_shuffle`."""

    upscale_factor: Count
    def __init__(self, upscale_factor: Count) -> None: ...
    def forward(self, input: Any) -> Any: ...

class PixelUnshuffle(OperatorLayer):
    """The layer of `functional.pixel_unshuffle`."""

    downscale_factor: Count
    def __init__(self, downscale_factor: Count) -> None: ...
    def forward(self, input: Any) -> Any: ...

class PoissonNLLLoss(OperatorLayer):
    """The layer of `functional.poisson_nll_loss`."""

    log_input: bool
    full: bool
    eps: float
    reduction: str
    def __init__(
        self, log_input: bool = True, full: bool = False, *, eps: float = 1e-08, reduction: str = "mean"
    ) -> None: ...
    def forward(self, log_input: Any, target: Any) -> Any: ...

class ReLU(OperatorLayer):
    """The layer of `functional.relu`."""

    inplace: bool
    def __init__(self, inplace: bool = False) -> None: ...
    def forward(self, input: Any) -> Any: ...

class ReLU6(OperatorLayer):
    """The layer of `functional.relu6`."""

    inplace: bool
    def __init__(self, inplace: bool = False) -> None: ...
    def forward(self, input: Any) -> Any: ...

class SELU(OperatorLayer):
    """The layer of `functional.selu`."""

    inplace: bool
    def __init__(self, inplace: bool = False) -> None: ...
    def forward(self, input: Any) -> Any: ...

class Sigmoid(OperatorLayer):
    """The layer of `functional.sigmoid`."""

    def __init__(self) -> None: ...
    def forward(self, input: Any) -> Any: ...

class SiLU(OperatorLayer):
    """The layer of `functional.silu`."""

    inplace: bool
    def __init__(self, inplace: bool = False) -> None: ...
    def forward(self, input: Any) -> Any: ...

class SmoothL1Loss(OperatorLayer):
    """The layer of `functional.smooth_l1_loss`."""

    reduction: str
    beta: float
    def __init__(self, *, reduction: str = "mean", beta: float = 1.0) -> None: ...
    def forward(self, input: Any, target: Any) -> Any: ...

class SoftMarginLoss(OperatorLayer):
    """The layer of `functional.soft_margin_loss`."""

    reduction: str
    def __init__(self, *, reduction: str = "mean") -> None: ...
    def forward(self, input: Any, target: Any) -> Any: ...

class Softmax(OperatorLayer):
    """The layer of `functional.softmax`."""

    dim: int | None
    def __init__(self, dim: int | None = None) -> None: ...
    def forward(self, input: Any) -> Any: ...

class Softmin(OperatorLayer):
    """The layer of `functional.softmin`."""

    dim: int | None
    def __init__(self, dim: int | None = None) -> None: ...
    def forward(self, input: Any) -> Any: ...

class Softplus(OperatorLayer):
    """The layer of `functional.softplus`."""

    beta: float
    threshold: float
    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None: ...
    def forward(self, input: Any) -> Any: ...

class Softshrink(OperatorLayer):
    """The layer of `functional.softshrink`."""

    lambd: Magnitude
    def __init__(self, lambd: Magnitude = 0.5) -> None: ...
    def forward(self, input: Any) -> Any: ...

class Softsign(OperatorLayer):
    """The layer of `functional.softsign`."""

    def __init__(self) -> None: ...
    def forward(self, input: Any) -> Any: ...

class Tanh(OperatorLayer):
    """The layer of `functional.tanh`."""

    def __init__(self) -> None: ...
    def forward(self, input: Any) -> Any: ...

class Tanhshrink(OperatorLayer):
    """The layer of `functional.tanhshrink`."""

    def __init__(self) -> None: ...
    def forward(self, input: Any) -> Any: ...

class Threshold(OperatorLayer):
    """The layer of `functional.threshold`."""

    threshold: float
    value: float
    inplace: bool
    def __init__(self, threshold: float, value: float, inplace: bool = False) -> None: ...
    def forward(self, input: Any) -> Any: ...

class ThresholdedReLU(OperatorLayer):
    """The layer of `functional.thresholded_relu`."""

    alpha: float
    def __init__(self, alpha: float = 1.0) -> None: ...
    def forward(self, input: Any) -> Any: ...

class TripletMarginLoss(OperatorLayer):
    """The layer of `functional.triplet_margin_loss`."""

    margin: float
    p: float
    eps: float
    swap: bool
    reduction: str
    def __init__(
        self, margin: float = 1.0, p: float = 2.0, eps: float = 1e-06, swap: bool = False, *, reduction: str = "mean"
    ) -> None: ...
    def forward(self, anchor: Any, positive: Any, negative: Any) -> Any: ...

class TripletMarginWithDistanceLoss(OperatorLayer):
    """The layer of `functional.triplet_margin_with_distance_loss`."""

    distance_function: Callable | None
    margin: float
    swap: bool
    reduction: str
    def __init__(
        self,
        *,
        distance_function: Callable | None = None,
        margin: float = 1.0,
        swap: bool = False,
        reduction: str = "mean",
    ) -> None: ...
    def forward(self, anchor: Any, positive: Any, negative: Any) -> Any: ...

class Unfold(OperatorLayer):
    """The layer of `functional.unfold`."""

    kernel_size: Ints
    dilation: Ints
    padding: Amounts
    stride: Ints
    def __init__(self, kernel_size: Ints, dilation: Ints = 1, padding: Amounts = 0, stride: Ints = 1) -> None: ...
    def forward(self, input: Any) -> Any: ...

__all__ = [
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AdaptiveAvgPool3d",
    "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2d",
    "AdaptiveMaxPool3d",
    "AvgPool1d",
    "AvgPool2d",
    "AvgPool3d",
    "BCELoss",
    "BCEWithLogitsLoss",
    "CELU",
    "CTCLoss",
    "ChannelShuffle",
    "CosineEmbeddingLoss",
    "CosineSimilarity",
    "CrossEntropyLoss",
    "ELU",
    "Flatten",
    "Fold",
    "GELU",
    "GLU",
    "GaussianNLLLoss",
    "Hardshrink",
    "Hardsigmoid",
    "Hardswish",
    "Hardtanh",
    "HingeEmbeddingLoss",
    "HuberLoss",
    "KLDivLoss",
    "L1Loss",
    "LPPool1d",
    "LPPool2d",
    "LPPool3d",
    "LeakyReLU",
    "LogSigmoid",
    "LogSoftmax",
    "MSELoss",
    "MarginRankingLoss",
    "MaxPool1d",
    "MaxPool2d",
    "MaxPool3d",
    "Mish",
    "MultiLabelMarginLoss",
    "MultiLabelSoftMarginLoss",
    "MultiMarginLoss",
    "NLLLoss",
    "PixelShuffle",
    "PixelUnshuffle",
    "PoissonNLLLoss",
    "ReLU",
    "ReLU6",
    "SELU",
    "SiLU",
    "Sigmoid",
    "SmoothL1Loss",
    "SoftMarginLoss",
    "Softmax",
    "Softmin",
    "Softplus",
    "Softshrink",
    "Softsign",
    "Tanh",
    "Tanhshrink",
    "Threshold",
    "ThresholdedReLU",
    "TripletMarginLoss",
    "TripletMarginWithDistanceLoss",
    "Unfold",
]
