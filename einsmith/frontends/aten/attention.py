"""Scaled dot-product attention."""

from __future__ import annotations

from einsmith import ops as F
from einsmith.frontends.aten.table import aten
from einsmith.lang.builder import Value


@aten("scaled_dot_product_attention.default")
def attention(
    q: Value,
    k: Value,
    v: Value,
    mask: Value | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Value:
    """sum[j](softmax[j](sum[e](q[i, e]*k[j, e])*scale + mask[i, j])*v[j, f]); 0 if the mask excludes all j"""
    if mask is not None and mask.dtype.is_float:
        mask = mask.astype(q.dtype)
    return F.scaled_dot_product_attention(q, k, v, mask, dropout_p, is_causal, scale, enable_gqa)
