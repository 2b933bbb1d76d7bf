"""Define language models with rotary positions: Llama, Mistral, Qwen2 and Qwen3. Source: arXiv 2302.13971."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np

from einsmith import ops as F
from einsmith.base.errors import ShapeError
from einsmith.lang.op import op
from einsmith.models.cache_shape import Attend, CacheShape
from einsmith.models.llama_config import LlamaConfig, rotary_rates
from einsmith.nn import Embedding, Linear, Module, ModuleList, RMSNorm, init
from einsmith.ops.common import tensor
from einsmith.tracing import builder
from einsmith.tracing.builder import Value

rotate = op(
    "y[b,h,t,size(n)*p+n] = x[b,h,t,size(n)*p+n]*c[b,t,n] + where(p < 1, -x[b,h,t,size(n)+n], x[b,h,t,n])*s[b,t,n]",
    extents={"p": 2, "n": "c.shape[2]"},
)
"""Rotary positions: turn the pairs of features n and width/2 + n of each head by angles of cosine c and sine s."""


class LlamaAttention(Module):
    """Attention with rotary positions; heads of queries share heads of keys and values."""

    def __init__(self, config: LlamaConfig):
        heads, shared, width = config.num_attention_heads, config.shared_heads, config.head_width
        bias, output_bias = config.biases
        self.heads, self.shared, self.width = heads, shared, width
        self.q_proj = Linear(config.hidden_size, heads * width, bias)
        self.k_proj = Linear(config.hidden_size, shared * width, bias)
        self.v_proj = Linear(config.hidden_size, shared * width, bias)
        self.o_proj = Linear(heads * width, config.hidden_size, output_bias)
        self.q_norm = RMSNorm(width, config.rms_norm_eps) if config.has_head_norms else None
        self.k_norm = RMSNorm(width, config.rms_norm_eps) if config.has_head_norms else None

    def forward(self, x: Value, turns: tuple[Value, Value], attend: Attend) -> Value:
        batch, steps, _ = x.shape
        q = self.q_proj(x).reshape((batch, steps, self.heads, self.width))
        k = self.k_proj(x).reshape((batch, steps, self.shared, self.width))
        v = self.v_proj(x).reshape((batch, steps, self.shared, self.width))
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = (y.permute((0, 2, 1, 3)) for y in (q, k, v))
        y = attend(rotate(q, *turns), rotate(k, *turns), v)
        return self.o_proj(y.permute((0, 2, 1, 3)).reshape((batch, steps, self.heads * self.width)))


class LlamaMLP(Module):
    """The feed-forward part: down(silu(gate x) * up x). Source: Shazeer 2020, arXiv 2002.05202."""

    def __init__(self, config: LlamaConfig):
        width, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.gate_proj, self.up_proj = Linear(width, inner, bias), Linear(width, inner, bias)
        self.down_proj = Linear(inner, width, bias)

    def forward(self, x: Value) -> Value:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class LlamaLayer(Module):
    """A layer: attention and the feed-forward part, each of the normalized input and added to it."""

    def __init__(self, config: LlamaConfig):
        self.self_attn, self.mlp = LlamaAttention(config), LlamaMLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Value, turns: tuple[Value, Value], attend: Attend) -> Value:
        x = x + self.self_attn(self.input_layernorm(x), turns, attend)
        return x + self.mlp(self.post_attention_layernorm(x))


class LlamaBody(Module):
    """The table of tokens, the layers and the last norm."""

    def __init__(self, config: LlamaConfig):
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size)
        self.layers = ModuleList(LlamaLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, tokens: Value, turns: tuple[Value, Value], attends: list[Attend]) -> Value:
        x = self.embed_tokens(tokens)
        for layer, attend in zip(self.layers, attends, strict=True):
            x = layer(x, turns, attend)
        return self.norm(x)


class Llama(Module):
    """Tokens [B, T] -> logits of the next token [B, T, vocabulary], each from the tokens up to its own.

    forward(tokens, positions=None, segments=None): positions [B, T] are integers, by default 0 to T - 1. Where
    segments [B, T], integers, are passed, tokens of different segments do not see each other (packed documents). State
    names are those of transformers' LlamaForCausalLM, whose published safetensors files load
    (`einsmith.models.from_folder`).

    Args:
        config: a `LlamaConfig`, or the content of a config.json; by default the sizes of SmolLM-135M.
        dtype: float32 or float64.
    """

    def __init__(self, config: Any = None, *, dtype: Any = "float32"):
        if not isinstance(config, LlamaConfig):
            config = LlamaConfig() if config is None else LlamaConfig.from_json(config, "config")
        self.config: LlamaConfig = config
        rates, self.rotary_scale, self.most_steps = rotary_rates(config)
        self.register_buffer("rates", rates.astype(np.dtype(dtype)), persistent=False)
        self.model = LlamaBody(config)
        self.add_module(
            "lm_head", None if config.tie_word_embeddings else Linear(config.hidden_size, config.vocab_size, False)
        )
        for m in self.modules():
            if isinstance(m, (Linear, Embedding)):
                init.normal_(m.weight, 0.0, 0.02)
                if isinstance(m, Linear) and m.bias is not None:
                    init.zeros_(m.bias)
        self.to(dtype)

    def forward(self, tokens: Value, positions: Any = None, segments: Any = None) -> Value:
        return self.head(self.hidden(tokens, positions, segments))

    def hidden(self, tokens: Any, positions: Any = None, segments: Any = None) -> Value:
        """Return the states [B, T, hidden_size] of which the last layer makes logits; arguments as of `forward`."""
        ids = tensor(tokens, "Llama", "tokens", kind="int")
        if ids.ndim != 2 or not 1 <= ids.shape[1] <= self.most_steps:
            most = "" if self.most_steps == inf else f" to {self.most_steps}"
            raise ShapeError(f"Llama: 'tokens' has shape {ids.shape}, needs [B, T] with T from 1{most}")
        places = None if positions is None else integers_like(ids, positions, "positions")
        parts = None if segments is None else integers_like(ids, segments, "segments")
        attends = [causal(window, parts) for window in self.config.windows]
        return self.states(ids, places, attends)

    def states(self, ids: Value, places: Value | None, attends: list[Attend]) -> Value:
        """Return the states before the last layer, with one function of attention for each layer.

        places: positions [B, T]; None: 0 to T - 1."""
        turns = turn(builder.as_value(self.rates), self.rotary_scale, ids, places)
        return self.model(ids, turns, attends)

    def head(self, states: Value) -> Value:
        """Return the logits of states [..., hidden_size]."""
        return F.linear(states, self.model.embed_tokens.weight) if self.lm_head is None else self.lm_head(states)

    @property
    def cached(self) -> CacheShape:
        """The shape of what generation keeps of each token."""
        config = self.config
        return CacheShape(config.shared_heads, config.head_width, config.windows, self.most_steps)


def turn(rates: Value, scale: float, ids: Value, places: Value | None) -> tuple[Value, Value]:
    """Return cosines and sines [B, T, pairs], times `scale`, of the angles of tokens [B, T].

    rates: angle by which each pair of features turns in a step. places: positions [B, T]; None: 0 to T - 1."""

    def angle(b: Any, t: Any, n: Any) -> Any:
        return builder.cast(t if places is None else places[b, t], rates.dtype) * rates[n]

    shape = (*ids.shape, rates.shape[0])
    return (
        builder.compute(shape, lambda *i: builder.cos(angle(*i)) * scale),
        builder.compute(shape, lambda *i: builder.sin(angle(*i)) * scale),
    )


def integers_like(ids: Value, value: Any, name: str) -> Value:
    """Return an argument as integers of the shape of the tokens. Raises ShapeError, DtypeError."""
    x = tensor(value, "Llama", name, kind="int")
    if x.shape != ids.shape:
        raise ShapeError(f"Llama: {name!r} has shape {x.shape}, needs {ids.shape}, as the tokens have")
    return x


def causal(window: int, segments: Value | None) -> Attend:
    """Return causal attention over at most `window` keys (0: all) of the query's own segment (`segments` [B, T])."""

    def mask(b: Any, h: Any, i: Any, j: Any) -> Any:
        sees = j <= i
        if window:
            sees = sees & (i - j < window)
        return sees if segments is None else sees & (segments[b, i] == segments[b, j])

    def attend(q: Value, k: Value, v: Value) -> Value:
        if not window and segments is None:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return F.flex_attention(q, k, v, mask_mod=mask, enable_gqa=True)

    return attend
