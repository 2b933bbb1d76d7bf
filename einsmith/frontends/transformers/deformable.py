"""Deformable attention over several scales, which models of transformers compute by `grid_sample` scale by scale."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from einsmith.frontends.torch import operator
from einsmith.lang.op import op

__all__ = ["deformable_attention"]

_DEFORMABLE = """
x[b,q,h,l,p] = at[b,q,h,l,p,0]*sizes[l,1] - 0.5
y[b,q,h,l,p] = at[b,q,h,l,p,1]*sizes[l,0] - 0.5
X[b,q,h,l,p,r] = i32(floor(x[b,q,h,l,p])) + r
Y[b,q,h,l,p,s] = i32(floor(y[b,q,h,l,p])) + s
f[b,q,h,l,p,r] = 1 - abs(x[b,q,h,l,p] - floor(x[b,q,h,l,p]) - r)
g[b,q,h,l,p,s] = 1 - abs(y[b,q,h,l,p] - floor(y[b,q,h,l,p]) - s)
o[b,q,h,d] = sum[l,p,s,r](where(0 <= X[b,q,h,l,p,r] < sizes[l,1] and 0 <= Y[b,q,h,l,p,s] < sizes[l,0],
    weight[b,q,h,l,p]*f[b,q,h,l,p,r]*g[b,q,h,l,p,s]
    *value[b,first[l] + Y[b,q,h,l,p,s]*sizes[l,1] + X[b,q,h,l,p,r],h,d], 0))
return o"""
_ATTENTION = operator(op(_DEFORMABLE, name="deformable_attention", extents={"r": 2, "s": 2}))


def deformable_attention(own: Callable) -> Callable:
    """Return the attention of Deformable DETR (Zhu et al. 2020, eq. 3) in the place of a model's own method: points
    between pixels are bilinear, those outside of an image are 0."""

    @wraps(own)
    def chosen(
        self: Any,
        value: torch.Tensor,
        value_spatial_shapes: torch.Tensor,
        value_spatial_shapes_list: Any,
        level_start_index: torch.Tensor,
        sampling_locations: torch.Tensor,
        attention_weights: torch.Tensor,
        im2col_step: int,
    ) -> torch.Tensor:
        tensors = value, sampling_locations, attention_weights
        if any(x.device.type != "cpu" or x.dtype is not torch.float32 for x in tensors):
            scales = value_spatial_shapes, value_spatial_shapes_list, level_start_index
            return own(self, value, *scales, sampling_locations, attention_weights, im2col_step)
        # The list is what the own method goes by; the tensors hold the same numbers.
        shape = torch.tensor(value_spatial_shapes_list, dtype=torch.int32).reshape(-1, 2)
        counts = shape.prod(1)
        first = (counts.cumsum(0) - counts).int()
        out = _ATTENTION(value=value, sizes=shape, first=first, at=sampling_locations, weight=attention_weights)
        return out.flatten(2)

    return chosen
