"""Define multi-head attention, under torch.nn's name, arguments, initial distributions and state names."""

from __future__ import annotations

from typing import Any

from einsmith.base.arguments import Count, Share, Size
from einsmith.base.errors import ArgumentError
from einsmith.nn import init
from einsmith.nn.linear import Linear, empty
from einsmith.nn.module import Module
from einsmith.ops.multihead import Multihead
from einsmith.ops.random import layer_drop
from einsmith.tracing import builder
from einsmith.tracing.builder import Value


class MultiheadAttention(Module):
    """Attention with num_heads parallel heads, each over embed_dim/num_heads features. Source: arXiv 1706.03762.

    in_proj_weight [3*embed_dim, embed_dim] holds the rows of query, key and value; where kdim or vdim differ from
    embed_dim, q_proj_weight [embed_dim, embed_dim], k_proj_weight [embed_dim, kdim], v_proj_weight [embed_dim, vdim]
    do. in_proj_bias [3*embed_dim], out_proj.weight [embed_dim, embed_dim], out_proj.bias; add_bias_kv: bias_k and
    bias_v [1, 1, embed_dim], one more key and value; add_zero_attn: one more of zeros.
    """

    def __init__(
        self,
        embed_dim: Count,
        num_heads: Count,
        dropout: Share = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: Size | None = None,
        vdim: Size | None = None,
        batch_first: bool = False,
        *,
        dtype: Any = "float32",
    ):
        if embed_dim % num_heads:
            raise ArgumentError(
                f"MultiheadAttention: embed_dim={embed_dim} must be a positive multiple of num_heads={num_heads}"
            )
        self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, embed_dim // num_heads
        self.kdim, self.vdim = embed_dim if kdim is None else kdim, embed_dim if vdim is None else vdim
        self.dropout, self.add_zero_attn, self.batch_first = dropout, add_zero_attn, batch_first
        packed = self.kdim == embed_dim and self.vdim == embed_dim
        self.register_parameter("in_proj_weight", empty((3 * embed_dim, embed_dim), dtype) if packed else None)
        for name, width in (("q", embed_dim), ("k", self.kdim), ("v", self.vdim)):
            self.register_parameter(f"{name}_proj_weight", None if packed else empty((embed_dim, width), dtype))
        self.register_parameter("in_proj_bias", empty((3 * embed_dim,), dtype) if bias else None)
        self.out_proj = Linear(embed_dim, embed_dim, bias, dtype=dtype)
        for name in ("bias_k", "bias_v"):
            self.register_parameter(name, empty((1, 1, embed_dim), dtype) if add_bias_kv else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new initial values: Glorot's for the projections, zeros for their biases."""
        self.out_proj.reset_parameters()
        for p in (self.in_proj_weight, self.q_proj_weight, self.k_proj_weight, self.v_proj_weight):
            if p is not None:
                init.xavier_uniform_(p)
        if self.in_proj_bias is not None:
            init.zeros_(self.in_proj_bias)
            init.zeros_(self.out_proj.bias)
        for p in (self.bias_k, self.bias_v):
            if p is not None:
                init.xavier_normal_(p)

    def forward(
        self,
        query: Value,
        key: Value,
        value: Value,
        key_padding_mask: Any = None,
        need_weights: bool = True,
        attn_mask: Any = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Value, Value | None]:
        """Return (output [L, B, E], weights [B, L, S]) for query [L, B, E], key [S, B, kdim], value [S, B, vdim].

        batch_first: [B, L, E] and so on, the output too; without a batch [L, E], [S, kdim], [S, vdim], and [L, S].
        Masks are bools, true where a key takes no part, or floats that are added to the scores: key_padding_mask
        [B, S] or [S], attn_mask [L, S] or [B*num_heads, L, S]. is_causal without attn_mask: keys up to the query's
        own position. average_attn_weights=False: weights of each head, [B, num_heads, L, S]; need_weights=False: None.
        A query whose keys are all masked gives weights 0.
        """
        packed = self.in_proj_weight is not None
        weights = [self.in_proj_weight] if packed else [self.q_proj_weight, self.k_proj_weight, self.v_proj_weight]
        attention = Multihead(
            "MultiheadAttention",
            self.embed_dim,
            self.num_heads,
            [builder.as_value(w) for w in weights],
            None if self.in_proj_bias is None else builder.as_value(self.in_proj_bias),
            (self.bias_k, self.bias_v),
            self.add_zero_attn,
            self.out_proj,
            lambda w: layer_drop(w, self.dropout, self) if self.training and self.dropout else w,
        )
        return attention(
            query,
            key,
            value,
            key_padding_mask,
            need_weights,
            attn_mask,
            average_attn_weights,
            is_causal,
            self.batch_first,
        )
