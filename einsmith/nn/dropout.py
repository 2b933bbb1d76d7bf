"""Define dropout layers, under torch.nn's names and arguments.

In a training step a mask is a function of the step's seed, the layer's path and the step's number.
"""

from __future__ import annotations

from einsmith.base.arguments import Share
from einsmith.base.errors import ShapeError
from einsmith.nn.module import Variant
from einsmith.ops.common import tensor
from einsmith.ops.random import channel_dims, layer_drop
from einsmith.tracing.builder import Value


class _Dropout(Variant):
    """`dims`: how many of the last dimensions are dropped as a whole; `alpha`: see `functional.alpha_dropout`."""

    dims = 0
    alpha = False

    def __init__(self, p: Share = 0.5, inplace: bool = False):
        self.p, self.inplace = p, inplace

    def forward(self, input: Value) -> Value:
        x = tensor(input, type(self).__name__, "input", kind="float")
        whole = self._whole(x)
        return layer_drop(x, self.p, self, whole=whole, alpha=self.alpha) if self.training else x

    def _whole(self, x: Value) -> int:
        return channel_dims(x, self.dims, type(self).__name__) if self.dims else 0

    def extra_repr(self) -> str:
        return f"p={self.p}, inplace={self.inplace}"


class Dropout(_Dropout):
    """Dropout: in training each element is zero with probability p and the others are divided by 1 - p; in evaluation
    the input is returned.

    `inplace` is accepted and has no effect.
    """


class Dropout1d(_Dropout, dims=1):
    """Dropout of channels: in training each channel of [B, C, L] or [C, L] is zero with probability p; see
    `functional.dropout1d`."""


class Dropout2d(_Dropout, dims=2):
    """Dropout of channels: in training each channel of [B, C, H, W] is zero with probability p; see
    `functional.dropout2d`."""


class Dropout3d(_Dropout, dims=3):
    """Dropout of channels: in training each channel of [B, C, D, H, W] or [C, D, H, W] is zero with probability p; see
    `functional.dropout3d`."""


class AlphaDropout(_Dropout, alpha=True):
    """Dropout for SELU: in training each element is SELU's floor with probability p; mean 0 and variance 1 stay; see
    `functional.alpha_dropout`."""


class FeatureAlphaDropout(_Dropout):
    """`AlphaDropout` of whole channels of [B, C, ...]; see `functional.feature_alpha_dropout`."""

    alpha = True

    def _whole(self, x: Value) -> int:
        if x.ndim < 2:
            raise ShapeError(f"FeatureAlphaDropout: 'input' needs 2 dimensions or more, got shape {x.shape}")
        return x.ndim - 2
