"""Define normalization layers, under torch.nn's names, arguments, state names and shapes."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from einsmith import ops as F
from einsmith.base.arguments import Count, Magnitude
from einsmith.base.dtypes import dtype_of
from einsmith.base.errors import ArgumentError, ShapeError
from einsmith.nn import init
from einsmith.nn.linear import empty
from einsmith.nn.module import Module, Variant
from einsmith.ops.normalization import batch_norm, sync_batch_norm
from einsmith.runtime import buffers
from einsmith.tracing import builder
from einsmith.tracing.builder import Value


class _Affine(Variant):
    """Common base of layers that scale by a weight and add a bias, where they have them."""

    def _make_affine(self, shape: tuple[int, ...], affine: bool, bias: bool, dtype: Any) -> None:
        self.register_parameter("weight", empty(shape, dtype) if affine else None)
        self.register_parameter("bias", empty(shape, dtype) if affine and bias else None)

    def reset_parameters(self) -> None:
        """Set weights to 1 and biases to 0."""
        for name, fill in (("weight", init.ones_), ("bias", init.zeros_)):
            if self._parameters.get(name) is not None:
                fill(getattr(self, name))


class _Norm(_Affine):
    """Base of normalization by statistics of channels, with running statistics where they are tracked."""

    ranks: tuple[int, ...]
    running_mean: Any
    running_var: Any
    num_batches_tracked: Any

    def __init__(
        self,
        num_features: Count,
        eps: Magnitude = 1e-5,
        momentum: Magnitude | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        *,
        bias: bool = True,
        dtype: Any = "float32",
    ):
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.affine, self.track_running_stats = affine, track_running_stats
        shape, kind = (num_features,), dtype_of(dtype).numpy
        self._make_affine(shape, affine, bias, dtype)
        self.register_buffer("running_mean", buffers.zeros(shape, kind) if track_running_stats else None)
        self.register_buffer("running_var", buffers.zeros(shape, kind) + 1 if track_running_stats else None)
        self.register_buffer("num_batches_tracked", np.zeros((), np.int64) if track_running_stats else None)
        self.reset_parameters()

    def reset_running_stats(self) -> None:
        """Reset running means to 0, running variances to 1 and the count of batches to 0."""
        if self.track_running_stats:
            init.zeros_(self.running_mean)
            init.ones_(self.running_var)
            init.zeros_(self.num_batches_tracked)

    def reset_parameters(self) -> None:
        """Set weights to 1 and biases to 0; reset the running statistics."""
        self.reset_running_stats()
        super().reset_parameters()

    def _check_input(self, input: Value) -> Value:
        x = builder.as_value(input)
        if x.ndim not in self.ranks:
            wanted = " or ".join(map(str, self.ranks))
            raise ShapeError(f"{type(self).__name__}: 'input' needs {wanted} dimensions, got shape {x.shape}")
        return x

    def extra_repr(self) -> str:
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
            f"bias={self.bias is not None}, track_running_stats={self.track_running_stats}"
        )


class _BatchNorm(_Norm):
    norm = staticmethod(batch_norm)

    def forward(self, input: Value) -> Value:
        """Return the input normalized by the statistics of the batch, or by the running statistics."""
        x = self._check_input(input)
        momentum, tracked = self.momentum, self.training and self.track_running_stats
        if tracked:
            self.num_batches_tracked = self.num_batches_tracked + 1
            if momentum is None:  # the mean over all batches so far
                momentum = 1.0 / builder.cast(builder.as_value(self.num_batches_tracked), self.running_mean.dtype)
        used = tracked or not self.training
        mean, variance = (self.running_mean, self.running_var) if used else (None, None)
        own = self.training or mean is None
        return self.norm(x, mean, variance, self.weight, self.bias, own, momentum, self.eps)


class BatchNorm1d(_BatchNorm, ranks=(2, 3)):
    """Batch norm of [B, num_features] or [B, num_features, L]; see `BatchNorm2d`."""


class BatchNorm2d(_BatchNorm, ranks=(4,)):
    """Batch norm of [B, num_features, H, W]; see `functional.batch_norm`.

    weight, bias, running_mean, running_var: [num_features]; num_batches_tracked: a count. In training the batch's
    statistics are used, and running statistics, where tracked, become (1 - momentum)*running + momentum*(mean, unbiased
    variance) in the step; with momentum None they are the means over all batches. In evaluation the running statistics
    are used, or, where none are tracked, the batch's.
    """


class BatchNorm3d(_BatchNorm, ranks=(5,)):
    """Batch norm of [B, num_features, D, H, W]; see `BatchNorm2d`."""


class SyncBatchNorm(_BatchNorm):
    """Batch norm of [B, num_features, ...] whose statistics in training are those of the batches of all processes that
    train together (`TrainStep(group=)`); see `functional.sync_batch_norm` and `BatchNorm2d`."""

    ranks = tuple(range(2, 9))
    norm = staticmethod(sync_batch_norm)

    @classmethod
    def convert_sync_batchnorm(cls, module: Module) -> Module:
        """Replace every batch norm in a module by one with the same parameters and buffers; return the module, or the
        replacement of a module that is a batch norm itself."""
        if isinstance(module, _BatchNorm) and not isinstance(module, cls):
            new = cls(
                module.num_features, module.eps, module.momentum, module.affine, module.track_running_stats,
                bias=module.bias is not None,
            )  # fmt: skip
            for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked"):
                setattr(new, name, getattr(module, name))
            return new.train(module.training)
        for name, child in list(module.named_children()):
            setattr(module, name, cls.convert_sync_batchnorm(child))
        return module


class _InstanceNorm(_Norm):
    def __init__(
        self,
        num_features: Count,
        eps: Magnitude = 1e-5,
        momentum: Magnitude | None = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        *,
        bias: bool = True,
        dtype: Any = "float32",
    ):
        super().__init__(num_features, eps, momentum, affine, track_running_stats, bias=bias, dtype=dtype)

    def forward(self, input: Value) -> Value:
        """Return the input normalized by the statistics of each sample, or by the running statistics."""
        x = self._check_input(input)
        single = x.ndim == self.ranks[0]
        x = x.reshape((1, *x.shape)) if single else x
        if x.shape[1] != self.num_features and not self.affine and not self.track_running_stats:
            name = type(self).__name__
            warnings.warn(f"{name}: 'input' has {x.shape[1]} channels, not {self.num_features}", stacklevel=2)
        own = self.training or not self.track_running_stats
        momentum = 0.0 if self.momentum is None else self.momentum
        y = F.instance_norm(x, self.running_mean, self.running_var, self.weight, self.bias, own, momentum, self.eps)
        return y.reshape(y.shape[1:]) if single else y


class InstanceNorm1d(_InstanceNorm, ranks=(2, 3)):
    """Instance norm of [B, num_features, L] or [num_features, L]; see `InstanceNorm2d`."""


class InstanceNorm2d(_InstanceNorm, ranks=(3, 4)):
    """Instance norm of [B, num_features, H, W] or [num_features, H, W]; see `functional.instance_norm`.

    It has weight and bias only with `affine`, and running statistics only with `track_running_stats`; they are those of
    `BatchNorm2d`.
    """


class InstanceNorm3d(_InstanceNorm, ranks=(4, 5)):
    """Instance norm of [B, num_features, D, H, W] or [num_features, D, H, W]; see `InstanceNorm2d`."""


def _shape(layer: Any, normalized_shape: int | Sequence[int]) -> tuple[int, ...]:
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    if not shape or any(n < 1 for n in shape):
        raise ArgumentError(f"{type(layer).__name__}: normalized_shape={normalized_shape!r} must be positive ints")
    return shape


class LayerNorm(_Affine):
    """Layer norm over the last dimensions; see `functional.layer_norm`. weight, bias: `normalized_shape`."""

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: Magnitude = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        *,
        dtype: Any = "float32",
    ):
        self.normalized_shape = _shape(self, normalized_shape)
        self.eps, self.elementwise_affine = eps, elementwise_affine
        self._make_affine(self.normalized_shape, elementwise_affine, bias, dtype)
        self.reset_parameters()

    def forward(self, input: Value) -> Value:
        return F.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        affine = f"elementwise_affine={self.elementwise_affine}, bias={self.bias is not None}"
        return f"{self.normalized_shape}, eps={self.eps}, {affine}"


class RMSNorm(_Affine):
    """Division by the root of the mean square over the last dimensions; see `functional.rms_norm`. weight:
    `normalized_shape`."""

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: Magnitude | None = None,
        elementwise_affine: bool = True,
        *,
        dtype: Any = "float32",
    ):
        self.normalized_shape = _shape(self, normalized_shape)
        self.eps, self.elementwise_affine = eps, elementwise_affine
        self.register_parameter("weight", empty(self.normalized_shape, dtype) if elementwise_affine else None)
        self.reset_parameters()

    def forward(self, input: Value) -> Value:
        return F.rms_norm(input, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


class GroupNorm(_Affine):
    """Normalization by groups of channels of [B, num_channels, ...]; see `functional.group_norm`. weight, bias:
    [num_channels]."""

    def __init__(
        self,
        num_groups: Count,
        num_channels: Count,
        eps: Magnitude = 1e-5,
        affine: bool = True,
        *,
        bias: bool = True,
        dtype: Any = "float32",
    ):
        if num_channels % num_groups:
            raise ArgumentError(f"GroupNorm: num_groups={num_groups} does not divide num_channels={num_channels}")
        self.num_groups, self.num_channels, self.eps, self.affine = num_groups, num_channels, eps, affine
        self._make_affine((num_channels,), affine, bias, dtype)
        self.reset_parameters()

    def forward(self, input: Value) -> Value:
        return F.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        affine = f"affine={self.affine}, bias={self.bias is not None}"
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}, {affine}"


class LocalResponseNorm(Module):
    """Division by a power of the mean square of neighbouring channels; see `functional.local_response_norm`."""

    def __init__(self, size: Count, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0):
        self.size, self.alpha, self.beta, self.k = size, alpha, beta, k

    def forward(self, input: Value) -> Value:
        return F.local_response_norm(input, self.size, self.alpha, self.beta, self.k)

    def extra_repr(self) -> str:
        return f"{self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}"
