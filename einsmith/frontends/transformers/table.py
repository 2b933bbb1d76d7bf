"""Tables of Einsmith's functions for layers of transformers."""

from __future__ import annotations

from collections.abc import Callable

from einsmith.frontends.transformers import deformable, delta_rules, loops, state_spaces

FUNCTIONS: dict[str, Callable] = {
    "causal_conv1d_fn": state_spaces.causal_conv1d_fn,
    "causal_conv1d_update": state_spaces.causal_conv1d_update,
    "chunk_gated_delta_rule": delta_rules.chunk_gated_delta_rule,
    "chunk_kda": delta_rules.chunk_gated_delta_rule,
    "fused_recurrent_gated_delta_rule": delta_rules.fused_recurrent_gated_delta_rule,
    "fused_recurrent_kda": delta_rules.fused_recurrent_gated_delta_rule,
    "mamba_chunk_scan_combined": state_spaces.mamba_chunk_scan_combined,
    "selective_scan_fn": state_spaces.selective_scan_fn,
    "selective_state_update": state_spaces.selective_state_update,
}
"""Einsmith's functions by their names in the table of transformers. They take the arguments of its own functions, in
their order, and may be called with whatever those take."""

DETECTORS = (
    "deformable_detr", "grounding_dino", "lw_detr", "mm_grounding_dino", "omdet_turbo", "pp_doclayout_v2",
    "pp_doclayout_v3", "pp_doclayout_v4", "rf_detr", "rt_detr",
)  # fmt: skip
"""Models with an attention over several scales."""
METHODS: dict[str, Callable[[Callable], Callable]] = {
    **{f"{m}.MultiScaleDeformableAttention.forward": deformable.deformable_attention for m in DETECTORS},
    "recurrent_gemma.RecurrentGemmaRglru._rnn_scan": loops.gated_linear_unit,
    "rwkv.rwkv_linear_attention_cpu": loops.rwkv_linear_attention,
    "xlstm.xLSTMBackend.forward": loops.matrix_lstm,
}
"""Loops over steps and scales that no table names: model.attribute -> function from the own one to what replaces it."""
