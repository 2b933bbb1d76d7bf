"""Gated delta rules as transformers calls them: with decays by head (Qwen3-Next) or by key (Kimi Linear)."""

from __future__ import annotations

from typing import Any

import torch

import einsmith.functional as F
from einsmith.frontends.torch import operator

__all__ = ["chunk_gated_delta_rule", "fused_recurrent_gated_delta_rule"]


def _delta_rule(
    query: Any, key: Any, value: Any, decay: Any, beta: Any, *initial: Any, normalizes: bool, returns: bool
) -> Any:
    if normalizes:
        query, key = (x * F.rsqrt((x * x).sum(-1, keepdims=True) + 1e-6) for x in (query, key))
    groups = value.shape[2] // key.shape[2]
    if groups > 1:
        query, key = (F.repeat_interleave(x, groups, 2) for x in (query, key))
    first = initial[0] if initial else None
    return F.gated_delta_rule(query, key, value, decay, beta, first, output_final_state=returns)


DELTA_RULES = {
    (normalizes, returns): operator(_delta_rule, normalizes=normalizes, returns=returns)
    for normalizes in (False, True)
    for returns in (False, True)
}
"""(whether queries and keys are normalized, whether the last state is returned) -> operator."""


def chunk_gated_delta_rule(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    chunk_size: int = 64,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return fla's gated delta rule of [B, T, H, K] and [B, T, H, V]; decays g by head or by key. chunk_size is the
    compiler's to choose."""
    del chunk_size
    first = () if initial_state is None else (initial_state,)
    rows = [x.float() for x in (query, key, value, g, beta, *first)]
    out = DELTA_RULES[bool(use_qk_l2norm_in_kernel), bool(output_final_state)](*rows)
    return (out[0].to(query.dtype), out[1]) if output_final_state else (out.to(query.dtype), None)


def fused_recurrent_gated_delta_rule(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return what `chunk_gated_delta_rule` does."""
    options = initial_state, output_final_state, use_qk_l2norm_in_kernel
    return chunk_gated_delta_rule(query, key, value, g, beta, 0, *options)
