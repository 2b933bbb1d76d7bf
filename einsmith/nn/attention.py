"""Multi-head attention, under torch.nn's name, arguments, initial distributions and state names."""

from __future__ import annotations

from math import inf, sqrt
from typing import Any

from einsmith import functional as F
from einsmith.errors import ArgumentError, DtypeError, ShapeError
from einsmith.functional.attention import attend
from einsmith.functional.common import tensor
from einsmith.functional.random import layer_drop
from einsmith.lang import builder as fb
from einsmith.lang.builder import Value
from einsmith.nn import init
from einsmith.nn.linear import Linear, empty
from einsmith.nn.module import Module


class MultiheadAttention(Module):
    """num_heads attentions side by side, each over embed_dim/num_heads features. Source: arXiv 1706.03762.

    in_proj_weight [3*embed_dim, embed_dim] holds the rows of query, key and value; where kdim or vdim differ from
    embed_dim, q_proj_weight [embed_dim, embed_dim], k_proj_weight [embed_dim, kdim], v_proj_weight [embed_dim, vdim]
    do. in_proj_bias [3*embed_dim], out_proj.weight [embed_dim, embed_dim], out_proj.bias; add_bias_kv: bias_k and
    bias_v [1, 1, embed_dim], one more key and value; add_zero_attn: one more of zeros.
    """

    def __init__(
        self, embed_dim: int, num_heads: int, dropout: float = 0.0, bias: bool = True, add_bias_kv: bool = False,
        add_zero_attn: bool = False, kdim: int | None = None, vdim: int | None = None, batch_first: bool = False,
        *, dtype: Any = "float32",
    ):  # fmt: skip
        if embed_dim <= 0 or num_heads <= 0 or embed_dim % num_heads:
            raise ArgumentError(
                f"MultiheadAttention: embed_dim={embed_dim} must be a positive multiple of num_heads={num_heads}"
            )
        if not 0 <= dropout <= 1:
            raise ArgumentError(f"MultiheadAttention: dropout={dropout!r} must lie in [0, 1]")
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
        """Draws new initial values: Glorot's for the projections, zeros for their biases."""
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
        self, query: Value, key: Value, value: Value, key_padding_mask: Any = None, need_weights: bool = True,
        attn_mask: Any = None, average_attn_weights: bool = True, is_causal: bool = False,
    ) -> tuple[Value, Value | None]:  # fmt: skip
        """(output, weights), for query [L, B, E], key [S, B, kdim], value [S, B, vdim]: [L, B, E], and [B, L, S].

        batch_first: [B, L, E] and so on, the output too; without a batch [L, E], [S, kdim], [S, vdim], and [L, S].
        Masks are bools, true where a key takes no part, or floats that are added to the scores: key_padding_mask
        [B, S] or [S], attn_mask [L, S] or [B*num_heads, L, S]. is_causal without attn_mask: keys up to the query's
        own position. average_attn_weights=False: weights of each head, [B, num_heads, L, S]; need_weights=False: None.
        A query whose keys are all masked gives weights 0.
        """
        same = query is key and key is value
        q, k, v, single = self._inputs(query, key, value)
        if same:
            k = v = q
        (length, batch), steps = q.shape[:2], k.shape[0]
        mask = self._mask(key_padding_mask, attn_mask, batch, length, steps, single)
        q, k, v = self._projected(q, k, v, same)
        extra = 0
        if self.bias_k is not None:
            k, v = (
                F.cat([x, F.expand(b, 1, batch, self.embed_dim)], 0) for x, b in ((k, self.bias_k), (v, self.bias_v))
            )
            extra += 1
        if self.add_zero_attn:
            zeros = fb.full((1, batch, self.embed_dim), 0.0, k.dtype)
            k, v, extra = F.cat([k, zeros], 0), F.cat([v, zeros], 0), extra + 1
        if extra and mask is not None:
            mask = F.pad(mask, (0, extra), value=True if mask.dtype.is_bool else 0.0)
        causal = is_causal and attn_mask is None
        if causal and extra:
            raise ArgumentError("MultiheadAttention: is_causal does not go with add_bias_kv and add_zero_attn")
        out, weights = attend(
            self._heads(q), self._heads(k), self._heads(v), mask, causal, 1 / sqrt(self.head_dim),
            lambda w: layer_drop(w, self.dropout, self) if self.training and self.dropout else w,
        )  # fmt: skip
        y = self.out_proj(out.transpose(2, 0, 1, 3).reshape((length, batch, self.embed_dim)))
        if single:
            y = y.reshape((length, self.embed_dim))
        elif self.batch_first:
            y = y.transpose(1, 0, 2)
        if not need_weights:
            return y, None
        weights = weights.mean(axis=1) if average_attn_weights else weights
        return y, weights.reshape(weights.shape[1:]) if single else weights

    def _inputs(self, query: Any, key: Any, value: Any) -> tuple[Value, Value, Value, bool]:
        """The inputs as [L, B, E], and whether they came without a batch. Raises ShapeError."""
        name = "MultiheadAttention"
        named = ((query, "query"), (key, "key"), (value, "value"))
        given = [tensor(x, name, n, rank=(2, 3), kind="float") for x, n in named]
        single = given[0].ndim == 2
        shown = f"{name}: 'query' {given[0].shape}, 'key' {given[1].shape} and 'value' {given[2].shape}"
        if any(x.ndim != given[0].ndim for x in given):
            raise ShapeError(f"{shown} differ in rank")
        if single:
            given = [x.reshape((x.shape[0], 1, x.shape[1])) for x in given]
        elif self.batch_first:
            given = [x.transpose(1, 0, 2) for x in given]
        q, k, v = given
        widths = (self.embed_dim, self.kdim, self.vdim)
        if (q.shape[2], k.shape[2], v.shape[2]) != widths or k.shape[:2] != v.shape[:2] or q.shape[1] != k.shape[1]:
            raise ShapeError(f"{shown} do not fit: features {widths}, one batch, and as many keys as values")
        if not k.shape[0]:
            raise ShapeError(f"{shown}: there are no keys")
        return q, k, v, single

    def _projected(self, q: Value, k: Value, v: Value, same: bool) -> tuple[Value, Value, Value]:
        e, bias = self.embed_dim, self.in_proj_bias
        if same and self.in_proj_weight is not None:
            y = F.linear(q, self.in_proj_weight, bias)
            return y[:, :, :e], y[:, :, e : 2 * e], y[:, :, 2 * e :]
        weights = self.q_proj_weight, self.k_proj_weight, self.v_proj_weight
        if self.in_proj_weight is not None:
            weights = tuple(self.in_proj_weight[n * e : (n + 1) * e] for n in range(3))
        biases = [None if bias is None else bias[n * e : (n + 1) * e] for n in range(3)]
        a, b, c = (F.linear(x, w, d) for x, w, d in zip((q, k, v), weights, biases, strict=True))
        return a, b, c

    def _heads(self, x: Value) -> Value:
        """[L, B, E] as [B, num_heads, L, head_dim]."""
        return x.reshape((*x.shape[:2], self.num_heads, self.head_dim)).transpose(1, 2, 0, 3)

    def _mask(self, padding: Any, given: Any, batch: int, length: int, steps: int, single: bool) -> Value | None:
        """The masks as one of [B or 1, heads or 1, L or 1, S]: bools, true where a key takes part, or floats."""
        masks = []
        if padding is not None:
            m = _checked(padding, "key_padding_mask", [(steps,)] if single else [(batch, steps)])
            masks.append(m.reshape((batch, 1, 1, steps)))
        if given is not None:
            m = _checked(given, "attn_mask", [(length, steps), (batch * self.num_heads, length, steps)])
            lead = (1, 1) if m.ndim == 2 else (batch, self.num_heads)
            masks.append(m.reshape((*lead, length, steps)))
        if not masks:
            return None
        if all(m.dtype.is_bool for m in masks):
            closed = masks[0] if len(masks) == 1 else masks[0] | masks[1]
            return ~closed
        added = [fb.where(m, -inf, 0.0) if m.dtype.is_bool else m for m in masks]
        return added[0] if len(added) == 1 else added[0] + added[1]


def _checked(mask: Any, name: str, shapes: list[tuple[int, ...]]) -> Value:
    m = tensor(mask, "MultiheadAttention", name)
    if not (m.dtype.is_bool or m.dtype.is_float):
        raise DtypeError(f"MultiheadAttention: {name!r} holds bools or floats, not {m.dtype.name}")
    if m.shape not in shapes:
        raise ShapeError(f"MultiheadAttention: {name!r} has shape {m.shape}, needs {' or '.join(map(str, shapes))}")
    return m
