"""Layers that models of transformers share: deformable attention, gated RMS norms, and cross-entropy of many classes.

Each function takes the original function of transformers and returns its replacement. The replacement calls the
original for tensors that are not on the CPU or not float32, and for tensors too small to gain. Within torch.compile,
norms and the cross-entropy call the original, because backends trace it and fuse it with its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any

import torch

from einsmith.frontends.torch import TorchOperator, operator
from einsmith.lang.op import op

__all__ = ["cross_entropy", "deformable_attention", "deformable_attention_function", "gated_rms_norm"]

_DEFORMABLE = """
fx[b,q,h,l,p] = at[b,q,h,l,p,0]*sizes[l,1] - 0.5
fy[b,q,h,l,p] = at[b,q,h,l,p,1]*sizes[l,0] - 0.5
X[b,q,h,l,p,r] = i32(floor(fx[b,q,h,l,p])) + r
Y[b,q,h,l,p,s] = i32(floor(fy[b,q,h,l,p])) + s
w[b,q,h,l,p,r,s] = a[b,q,h,l,p]*(1 - abs(fx[b,q,h,l,p] - floor(fx[b,q,h,l,p]) - r))*(
    1 - abs(fy[b,q,h,l,p] - floor(fy[b,q,h,l,p]) - s))
y[b,q,h,d] = sum[l,p,s,r](where(0 <= X[b,q,h,l,p,r] < sizes[l,1] and 0 <= Y[b,q,h,l,p,s] < sizes[l,0],
    w[b,q,h,l,p,r,s]*v[b,starts[l] + Y[b,q,h,l,p,s]*sizes[l,1] + X[b,q,h,l,p,r],h,d], 0))
return y"""
"""Sums of the four neighbours of each point, by their bilinear weights; neighbours outside of a level are 0."""
_NORM_FIRST = """
m[i] = sum[c](x[i,c]*x[i,c])/x.shape[1]
y[i,c] = w[i % w.shape[0],c]*x[i,c]*rsqrt(m[i] + eps)*z[i,c]*sigmoid(z[i,c])
return y"""
_GATE_FIRST = """
g[i,c] = x[i,c]*z[i,c]*sigmoid(z[i,c])
m[i] = sum[c](g[i,c]*g[i,c])/x.shape[1]
y[i,c] = w[i % w.shape[0],c]*g[i,c]*rsqrt(m[i] + eps)
return y"""
_CROSS_ENTROPY = """
m[i] = max[c](x[i,c])
l[i] = log(sum[c](exp(x[i,c] - m[i]))) + m[i]
y[] = sum[i](where(t[i] == ignored, 0, l[i] - x[i,where(t[i] == ignored, 0, t[i])]))
return y"""

_FEWEST_OF_A_NORM = 1 << 14
"""Fewest elements of a norm that is worth a call (measured: 8,192 elements gain under 5 %, 4,096 lose 15 %)."""
_FEWEST_OF_A_LOSS = 1 << 22
"""Fewest logits of a cross-entropy that is worth a call (measured: 512 x 1,000 lose 5 %)."""
_LONGEST = 2**31 - 1

_deformable = operator(op(_DEFORMABLE, name="deformable_attention", extents={"r": 2, "s": 2}))


@lru_cache(maxsize=64)
def _norm(width: int, eps: float, activation: str, is_gated_first: bool) -> TorchOperator:
    """Return the norm of one width, which is a number of its formula: programs that several numbers of rows share are
    half as fast where they share widths, too."""
    text = _GATE_FIRST if is_gated_first else _NORM_FIRST
    text = text if activation == "silu" else text.replace("*z[i,c]*sigmoid", "*sigmoid")
    return operator(op(text, name="gated_rms_norm", extents={"c": width}), eps=eps)


@lru_cache(maxsize=64)
def _sum_of_losses(width: int, ignored: int) -> TorchOperator:
    """Return the cross-entropy's sum over one number of classes, for the reason of `_norm`."""
    return operator(op(_CROSS_ENTROPY, name="cross_entropy", extents={"c": width}), ignored=ignored)


def _is_taken(*tensors: torch.Tensor) -> bool:
    return all(x.is_cpu and x.dtype is torch.float32 for x in tensors)


def _attend(value: torch.Tensor, sizes: torch.Tensor, at: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    pixels = sizes.prod(1)
    starts = pixels.cumsum(0) - pixels
    return _deformable(v=value, sizes=sizes, starts=starts, at=at, a=weights).flatten(2)


def _has_levels(value: torch.Tensor, sizes: Any, at: torch.Tensor, weights: torch.Tensor) -> bool:
    """Return whether the tensors are supported, and the sizes (height, width) of the levels add up to the values."""
    pixels = sum(int(height) * int(width) for height, width in sizes)
    return _is_taken(value, at, weights) and pixels == value.shape[1] and value.numel() > 0 and at.numel() > 0


def deformable_attention(own: Callable) -> Callable:
    """Return `MultiScaleDeformableAttention.forward` of values [B, S, H, D] at locations [B, Q, H, L, P, 2]."""

    @wraps(own)
    def forward(
        self: Any,
        value: torch.Tensor,
        value_spatial_shapes: torch.Tensor,
        value_spatial_shapes_list: list[tuple],
        level_start_index: torch.Tensor,
        sampling_locations: torch.Tensor,
        attention_weights: torch.Tensor,
        im2col_step: int,
    ) -> torch.Tensor:
        if _has_levels(value, value_spatial_shapes_list, sampling_locations, attention_weights):
            return _attend(value, value_spatial_shapes, sampling_locations, attention_weights)
        shapes = value_spatial_shapes, value_spatial_shapes_list, level_start_index
        return own(self, value, *shapes, sampling_locations, attention_weights, im2col_step)

    return forward


def deformable_attention_function(own: Callable) -> Callable:
    """Return what `deformable_attention` does for the function of Mask2Former and OneFormer."""

    @wraps(own)
    def attention(
        value: torch.Tensor,
        value_spatial_shapes: Any,
        sampling_locations: torch.Tensor,
        attention_weights: torch.Tensor,
    ) -> torch.Tensor:
        if not _has_levels(value, value_spatial_shapes, sampling_locations, attention_weights):
            return own(value, value_spatial_shapes, sampling_locations, attention_weights)
        return _attend(value, torch.as_tensor(value_spatial_shapes), sampling_locations, attention_weights)

    return attention


def gated_rms_norm(own: Callable) -> Callable:
    """Return `forward` of gated RMS norms, over groups of the last dimension. Attributes of the layer tell
    whether the gate comes first: it does in layers of Mamba-2, which have no activation, and where Falcon-H1 has it."""

    @wraps(own)
    def forward(self: Any, hidden_states: torch.Tensor, gate: torch.Tensor | None = None) -> torch.Tensor:
        x, activation = hidden_states, getattr(self, "activation", "silu")
        if (
            gate is None
            or activation not in ("silu", "sigmoid")
            or x.numel() < _FEWEST_OF_A_NORM
            or not _is_taken(x, gate, self.weight)
            or gate.shape != x.shape
            or torch.compiler.is_compiling()
        ):
            return own(self, hidden_states, gate)
        size = x.shape[-1]
        width = getattr(self, "group_size", size) if not hasattr(self, "n_groups") else size // self.n_groups
        if size % width or self.weight.shape != (size,):
            return own(self, hidden_states, gate)
        is_gated_first = not getattr(self, "norm_before_gate", not hasattr(self, "group_size"))
        f = _norm(width, float(self.variance_epsilon), activation, is_gated_first)
        rows = {name: a.reshape(-1, width) for name, a in {"x": x, "z": gate, "w": self.weight}.items()}
        return f(**rows).view(x.shape)

    return forward


def cross_entropy(own: Callable) -> Callable:
    """Return `fixed_cross_entropy` of logits [N, C] and classes [N]: the mean, or the sum by num_items_in_batch."""

    @wraps(own)
    def loss(
        source: torch.Tensor,
        target: torch.Tensor,
        num_items_in_batch: Any = None,
        ignore_index: int = -100,
        **options: Any,
    ) -> torch.Tensor:
        if (
            not _FEWEST_OF_A_LOSS <= source.numel() <= _LONGEST
            or not _is_taken(source)
            or not target.is_cpu
            or target.dtype is not torch.int64
            or target.ndim != 1
            or source.shape[:-1] != target.shape
            or torch.compiler.is_compiling()
        ):
            return own(source, target, num_items_in_batch, ignore_index, **options)
        total = _sum_of_losses(source.shape[1], ignore_index)(x=source, t=target)
        return total / ((target != ignore_index).sum() if num_items_in_batch is None else num_items_in_batch)

    return loss
