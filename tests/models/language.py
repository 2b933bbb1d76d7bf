"""Small random language models of transformers, and their states, as references."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import transformers

SIZES: dict[str, Any] = {
    "vocab_size": 97, "hidden_size": 24, "intermediate_size": 37, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16, "rope_theta": 100.0,
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": 100.0}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "smollm": ("LlamaConfig", {"tie_word_embeddings": True, "num_attention_heads": 3, "num_key_value_heads": 1}),
    "llama, biases": ("LlamaConfig", {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 4}),
    "llama, one head": ("LlamaConfig", {"num_attention_heads": 1, "num_key_value_heads": 1}),
    "llama, linear": ("LlamaConfig", {"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 50.0}}),
    "llama, dynamic": ("LlamaConfig", {"rope_parameters": {"rope_type": "dynamic", "factor": 3.0, "rope_theta": 50.0}}),
    "llama, llama3": ("LlamaConfig", {"rope_parameters": LLAMA3}),
    "llama, yarn": ("LlamaConfig", {"rope_parameters": YARN, "max_position_embeddings": 128}),
    "llama, yarn, scales": (
        "LlamaConfig",
        {"rope_parameters": YARN | {"mscale": 0.7, "mscale_all_dim": 1.1, "truncate": False, "beta_fast": 8}},
    ),
    "mistral": ("MistralConfig", {"sliding_window": 5}),
    "mistral, no window": ("MistralConfig", {"sliding_window": None, "head_dim": 8}),
    "qwen2": ("Qwen2Config", {"tie_word_embeddings": True}),
    "qwen2, windows": ("Qwen2Config", {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}),
    "qwen3": ("Qwen3Config", {"head_dim": 10, "tie_word_embeddings": True}),
    "qwen3, layers": (
        "Qwen3Config",
        {
            "head_dim": 8, "use_sliding_window": True, "sliding_window": 3, "attention_bias": True,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
}  # fmt: skip
"""Class and arguments of transformers' configuration of each family, besides SIZES."""
GPTS: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "gpt2, own sizes": {"n_inner": 29, "layer_norm_epsilon": 1e-3, "activation_function": "gelu"},
}
GPT_SIZES: dict[str, Any] = {"vocab_size": 83, "n_positions": 80, "n_embd": 18, "n_layer": 2, "n_head": 3}


def random_model(name: str, seed: int = 0, scale: float = 0.2) -> Any:
    """A model of transformers with random weights, norms and biases, in evaluation mode."""
    if name in GPTS:
        config = transformers.GPT2Config(**GPT_SIZES | GPTS[name])
    else:
        kind, more = FAMILIES[name]
        config = getattr(transformers, kind)(**SIZES | more)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for path, p in model.named_parameters():
            center = 1.0 if p.ndim < 2 and "norm" in path or "ln_" in path and path.endswith("weight") else 0.0
            p.copy_(center + scale * torch.randn(p.shape, generator=generator))
    return model


def state_of(model: Any) -> dict[str, np.ndarray]:
    """The state of a model as arrays, without the copy of a tied table."""
    state = {n: v.detach().numpy() for n, v in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        del state["lm_head.weight"]
    return state


def logits_of(model: Any, ids: np.ndarray, **more: Any) -> np.ndarray:
    """The logits of a model of transformers."""
    with torch.no_grad():
        return model(torch.tensor(ids), **more).logits.numpy()
