"""Tables of Einsmith's functions for layers of transformers."""

from __future__ import annotations

from collections.abc import Callable

from einsmith.frontends.transformers import delta_rules, layers, loops, state_spaces

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

DEFORMABLE = """
deformable_detr grounding_dino lw_detr mm_grounding_dino omdet_turbo pp_doclayout_v2 pp_doclayout_v3 pp_doclayout_v4
rf_detr rt_detr"""
"""Models that have a class MultiScaleDeformableAttention."""
_GATED = """
bailing_hybrid.BailingHybrid bamba.Bamba falcon_h1.FalconH1 glm5_next.Glm5NextText granitemoehybrid.GraniteMoeHybrid
kimi_linear.KimiLinear lara_mini.LaraMini mamba2.Mamba nemotron_h.NemotronH olmo_hybrid.OlmoHybrid qwen3_5.Qwen3_5
qwen3_5_moe.Qwen3_5Moe qwen3_next.Qwen3Next qwen4_exp.Qwen4ExpText zamba2.Zamba2"""
"""model.beginning of the name of a class ...RMSNormGated."""
METHODS: dict[str, Callable[[Callable], Callable]] = {
    "loss_utils.fixed_cross_entropy": layers.cross_entropy,
    "mask2former.multi_scale_deformable_attention": layers.deformable_attention_function,
    "oneformer.multi_scale_deformable_attention": layers.deformable_attention_function,
    "recurrent_gemma.RecurrentGemmaRglru._rnn_scan": loops.gated_linear_unit,
    "rwkv.rwkv_linear_attention_cpu": loops.rwkv_linear_attention,
    "xlstm.xLSTMBackend.forward": loops.matrix_lstm,
    **{f"{model}.MultiScaleDeformableAttention.forward": layers.deformable_attention for model in DEFORMABLE.split()},
    **{f"{layer}RMSNormGated.forward": layers.gated_rms_norm for layer in _GATED.split()},
}
"""What no table names: model.attribute -> function from the model's own to what replaces it. In the place of a model
loss_utils stands for the module of losses."""
