"""Define transformers: BERT's encoder, a vision transformer, and a GPT. Source of attention: arXiv 1706.03762."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import sqrt
from typing import Any

from einsmith import ops as F
from einsmith.base.arguments import Count, Magnitude, Share, Size
from einsmith.base.errors import ArgumentError, ShapeError
from einsmith.models.cache_shape import Attend, CacheShape
from einsmith.nn import (
    GELU,
    Conv2d,
    Dropout,
    Embedding,
    LayerNorm,
    Linear,
    Module,
    ModuleList,
    MultiheadAttention,
    Sequential,
    Tanh,
    init,
)
from einsmith.nn.linear import empty
from einsmith.nn.module import LoadResult
from einsmith.tracing import builder
from einsmith.tracing.builder import Value


def rename_published(state: Mapping[str, Any], prefix: str, aside: str) -> dict[str, Any]:
    """Rename the entries of a published state to this network's names.

    Where names begin with `prefix`, the prefix is removed, and entries without it, heads for other tasks, are dropped.
    Entries that match `aside`, constants that old versions stored, are dropped too. gamma and beta are older names of
    weight and bias.
    """
    if any(n.startswith(prefix) for n in state):
        state = {n[len(prefix) :]: v for n, v in state.items() if n.startswith(prefix)}
    older = {"gamma": "weight", "beta": "bias"}
    out = {}
    for name, value in state.items():
        if not re.fullmatch(aside, name):
            path, dot, last = name.rpartition(".")
            out[path + dot + older.get(last, last)] = value
    return out


def _heads_divide(name: str, width: int, heads: int) -> None:
    if heads < 1 or width < 1 or width % heads:
        raise ArgumentError(f"{name}: width={width} must be a positive multiple of heads={heads}")


def _attention(
    layer: Any, q: Value, k: Value, v: Value, mask: Any = None, causal: bool = False, attend: Attend | None = None
) -> Value:
    """Compute attention with `layer.heads` heads for q, k, v [B, T, width]; return [B, T, width].

    The attention weights have dropout with probability `layer.dropout_p` in training. attend: function of q, k, v
    [B, heads, T, features] that computes it in another way."""
    batch, steps, width = q.shape
    q, k, v = (x.reshape((batch, steps, layer.heads, -1)).permute((0, 2, 1, 3)) for x in (q, k, v))
    if attend is not None:
        y = attend(q, k, v)
    else:
        y = F.scaled_dot_product_attention(q, k, v, mask, layer.dropout_p if layer.training else 0.0, causal)
    return y.permute((0, 2, 1, 3)).reshape((batch, steps, width))


def _steps_fit(name: str, ids: Value, most: int) -> None:
    if ids.ndim != 2 or not 1 <= ids.shape[1] <= most:
        raise ShapeError(f"{name}: tokens have shape {ids.shape}, need [B, T] with T from 1 to {most}")


# ---------------------------------------------------------------------------------------------------------------- BERT


class _BertEmbeddings(Module):
    def __init__(self, vocabulary: int, width: int, positions: int, types: int, dropout: float, eps: float):
        self.word_embeddings = Embedding(vocabulary, width)
        self.position_embeddings = Embedding(positions, width)
        self.token_type_embeddings = Embedding(types, width)
        self.LayerNorm = LayerNorm(width, eps)
        self.dropout = Dropout(dropout)

    def forward(self, ids: Value, types: Any) -> Value:
        _steps_fit("Bert", ids, self.position_embeddings.num_embeddings)
        if types is None:
            kind = builder.as_value(self.token_type_embeddings.weight)[0]
        elif builder.as_value(types).shape != ids.shape:
            raise ShapeError(f"Bert: 'token_type_ids' has shape {types.shape}, needs {ids.shape}")
        else:
            kind = self.token_type_embeddings(types)
        place = builder.as_value(self.position_embeddings.weight)[: ids.shape[1]]
        return self.dropout(self.LayerNorm(self.word_embeddings(ids) + kind + place))


class _BertSelfAttention(Module):
    def __init__(self, width: int, heads: int, dropout: float):
        self.query, self.key, self.value = Linear(width, width), Linear(width, width), Linear(width, width)
        self.heads, self.dropout_p = heads, dropout

    def forward(self, x: Value, mask: Any) -> Value:
        return _attention(self, self.query(x), self.key(x), self.value(x), mask)


class _BertOutput(Module):
    """A linear layer, added to what came before, and normalized."""

    def __init__(self, inner: int, width: int, dropout: float, eps: float):
        self.dense = Linear(inner, width)
        self.LayerNorm = LayerNorm(width, eps)
        self.dropout = Dropout(dropout)

    def forward(self, x: Value, before: Value) -> Value:
        return self.LayerNorm(self.dropout(self.dense(x)) + before)


class _BertAttention(Module):
    def __init__(self, width: int, heads: int, dropout: float, eps: float):
        self.self = _BertSelfAttention(width, heads, dropout)
        self.output = _BertOutput(width, width, dropout, eps)

    def forward(self, x: Value, mask: Any) -> Value:
        return self.output(self.self(x, mask), x)


class _Dense(Module):
    """A linear layer under the name `dense`, and an activation."""

    def __init__(self, width: int, out: int, act: Module):
        self.dense, self.act = Linear(width, out), act

    def forward(self, x: Value) -> Value:
        return self.act(self.dense(x))


class _BertLayer(Module):
    def __init__(self, width: int, heads: int, inner: int, dropout: float, eps: float):
        self.attention = _BertAttention(width, heads, dropout, eps)
        self.intermediate = _Dense(width, inner, GELU())
        self.output = _BertOutput(inner, width, dropout, eps)

    def forward(self, x: Value, mask: Any) -> Value:
        x = self.attention(x, mask)
        return self.output(self.intermediate(x), x)


class BertEncoder(Module):
    """Layers of attention and two linear layers, each added to its input and normalized; input and output have shape
    [B, T, width].

    mask: bools that broadcast to [B, heads, T, T], true where a step may be attended to.
    """

    def __init__(self, width: Count, layers: Size, heads: Count, inner: Count, dropout: Share, eps: Magnitude):
        self.layer = ModuleList(_BertLayer(width, heads, inner, dropout, eps) for _ in range(layers))

    def forward(self, x: Value, mask: Any = None) -> Value:
        for layer in self.layer:
            x = layer(x, mask)
        return x


class Bert(Module):
    """Tokens [B, T] -> (hidden states [B, T, width], of the first token [B, width]); without `pooler` only the former.

    forward(input_ids, attention_mask=None, token_type_ids=None): the mask [B, T] is zero where there is no token. The
    pooler is a linear layer with tanh of the first token's state. The defaults are BERT-base, uncased. `encoder` takes
    embedded tokens [B, T, width]. State names are those of Hugging Face's BertModel: its published safetensors files
    load, those of BERT with heads for pre-training too, whose heads are left out. Source: Devlin et al. 2018,
    arXiv 1810.04805.
    """

    def __init__(
        self,
        vocabulary: Count = 30522,
        width: Count = 768,
        layers: Size = 12,
        heads: Count = 12,
        inner: Count | None = None,
        positions: Count = 512,
        types: Size = 2,
        dropout: Share = 0.1,
        eps: Magnitude = 1e-12,
        pooler: bool = True,
        *,
        dtype: Any = "float32",
    ):
        _heads_divide("Bert", width, heads)
        inner = 4 * width if inner is None else inner
        self.embeddings = _BertEmbeddings(vocabulary, width, positions, types, dropout, eps)
        self.encoder = BertEncoder(width, layers, heads, inner, dropout, eps)
        self.add_module("pooler", _Dense(width, width, Tanh()) if pooler else None)
        for m in self.modules():
            if isinstance(m, (Linear, Embedding)):
                init.normal_(m.weight, 0.0, 0.02)
                if isinstance(m, Linear):
                    init.zeros_(m.bias)
        self.to(dtype)

    def forward(self, input_ids: Value, attention_mask: Any = None, token_type_ids: Any = None) -> Any:
        ids, mask = builder.as_value(input_ids), None
        x = self.embeddings(ids, token_type_ids)
        if attention_mask is not None:
            flags = builder.as_value(attention_mask)
            if flags.shape != ids.shape:
                raise ShapeError(f"Bert: 'attention_mask' has shape {flags.shape}, needs {ids.shape}")
            mask = (flags if flags.dtype.is_bool else flags != 0).reshape((ids.shape[0], 1, 1, ids.shape[1]))
        x = self.encoder(x, mask)
        return x if self.pooler is None else (x, self.pooler(x[:, 0]))

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> LoadResult:
        """Load a state as Module.load_state_dict does. Names may begin with "bert."; position ids are ignored."""
        return super().load_state_dict(rename_published(state_dict, "bert.", r"embeddings\.position_ids"), strict)


# ----------------------------------------------------------------------------------------------------------------- ViT


class _ViTLayer(Module):
    def __init__(self, width: int, heads: int, inner: int, dropout: float, attention_dropout: float):
        self.ln_1 = LayerNorm(width, 1e-6)
        self.self_attention = MultiheadAttention(width, heads, attention_dropout, batch_first=True)
        self.dropout = Dropout(dropout)
        self.ln_2 = LayerNorm(width, 1e-6)
        self.mlp = Sequential(Linear(width, inner), GELU(), Dropout(dropout), Linear(inner, width), Dropout(dropout))
        for n in (0, 3):
            init.xavier_uniform_(self.mlp[n].weight)
            init.normal_(self.mlp[n].bias, 0.0, 1e-6)

    def forward(self, input: Value) -> Value:
        x = self.ln_1(input)
        x = input + self.dropout(self.self_attention(x, x, x, need_weights=False)[0])
        return x + self.mlp(self.ln_2(x))


class _ViTEncoder(Module):
    def __init__(self, steps: int, width: int, layers: int, heads: int, inner: int, dropout: float, attention: float):
        self.pos_embedding = empty((1, steps, width), "float32")
        init.normal_(self.pos_embedding, 0.0, 0.02)
        self.dropout = Dropout(dropout)
        named = {f"encoder_layer_{n}": _ViTLayer(width, heads, inner, dropout, attention) for n in range(layers)}
        self.layers = Sequential(named)
        self.ln = LayerNorm(width, 1e-6)

    def forward(self, x: Value) -> Value:
        return self.ln(self.layers(self.dropout(x + builder.as_value(self.pos_embedding)[0])))


class ViT(Module):
    """Images [B, channels, size, size] -> logits [B, classes]: a transformer of patches; torchvision's state names.

    Patches of patch x patch pixels become features by a linear map, a learned one is put in front, positions are added;
    after the layers a linear layer reads the first. The defaults are ViT-S/16; torchvision's vit_b_16 is width=768,
    heads=12. inner: 4*width where not given. Sources: Dosovitskiy et al. 2020, arXiv 2010.11929; the small one:
    Touvron et al. 2020, arXiv 2012.12877, table 1. Initial values as torchvision.
    """

    def __init__(
        self,
        classes: Count = 1000,
        width: Count = 384,
        layers: Size = 12,
        heads: Count = 6,
        inner: Count | None = None,
        size: Count = 224,
        patch: Count = 16,
        channels: Count = 3,
        dropout: Share = 0.0,
        attention_dropout: Share = 0.0,
        *,
        dtype: Any = "float32",
    ):
        _heads_divide("ViT", width, heads)
        if patch < 1 or size < patch or size % patch:
            raise ArgumentError(f"ViT: size={size} must be a positive multiple of patch={patch}")
        self.size, self.width = size, width
        self.class_token = empty((1, 1, width), "float32")
        self.conv_proj = Conv2d(channels, width, patch, patch)
        init.normal_(self.conv_proj.weight, 0.0, 1 / sqrt(channels * patch * patch))
        init.zeros_(self.conv_proj.bias)
        steps, inner = (size // patch) ** 2 + 1, 4 * width if inner is None else inner
        self.encoder = _ViTEncoder(steps, width, layers, heads, inner, dropout, attention_dropout)
        self.heads = Sequential({"head": Linear(width, classes)})
        for p in self.heads.parameters():
            init.zeros_(p)
        self.to(dtype)

    def forward(self, input: Value) -> Value:
        x = builder.as_value(input)
        if x.ndim != 4 or x.shape[2:] != (self.size, self.size):
            raise ShapeError(f"ViT: 'input' has shape {x.shape}; this network reads images of {self.size}x{self.size}")
        x = self.conv_proj(x)
        x = x.reshape((x.shape[0], self.width, -1)).permute((0, 2, 1))
        token = F.expand(self.class_token, x.shape[0], 1, self.width)
        return self.heads(self.encoder(F.cat([token, x], 1))[:, 0])


# ----------------------------------------------------------------------------------------------------------------- GPT


class _Conv1D(Module):
    """x W + b, the weight [inputs, outputs] standing as GPT-2's files have it."""

    def __init__(self, inputs: int, out: int, std: float = 0.02):
        self.weight, self.bias = empty((inputs, out), "float32"), empty((out,), "float32")
        init.normal_(self.weight, 0.0, std)

    def forward(self, input: Value) -> Value:
        return F.matmul(input, self.weight) + self.bias


class _GPTAttention(Module):
    def __init__(self, width: int, heads: int, std: float, dropout: float):
        self.c_attn, self.c_proj = _Conv1D(width, 3 * width), _Conv1D(width, width, std)
        self.heads, self.dropout_p = heads, dropout
        self.resid_dropout = Dropout(dropout)

    def forward(self, x: Value, attend: Attend | None = None) -> Value:
        q, k, v = F.chunk(self.c_attn(x), 3, -1)
        return self.resid_dropout(self.c_proj(_attention(self, q, k, v, None, True, attend)))


class _GPTMLP(Module):
    def __init__(self, width: int, inner: int, std: float, dropout: float, approximate: str):
        self.c_fc, self.c_proj = _Conv1D(width, inner), _Conv1D(inner, width, std)
        self.dropout, self.approximate = Dropout(dropout), approximate

    def forward(self, x: Value) -> Value:
        return self.dropout(self.c_proj(F.gelu(self.c_fc(x), self.approximate)))


class _GPTLayer(Module):
    def __init__(self, width: int, heads: int, inner: int, std: float, dropout: float, eps: float, approximate: str):
        self.ln_1, self.attn = LayerNorm(width, eps), _GPTAttention(width, heads, std, dropout)
        self.ln_2, self.mlp = LayerNorm(width, eps), _GPTMLP(width, inner, std, dropout, approximate)

    def forward(self, x: Value, attend: Attend | None = None) -> Value:
        x = x + self.attn(self.ln_1(x), attend)
        return x + self.mlp(self.ln_2(x))


class GPT(Module):
    """Tokens [B, T] -> logits of the next token [B, T, vocabulary], each from the tokens up to its own.

    Layers of causal attention and of two linear layers with GELU, each of the normalized input and added to it; the
    table of tokens is the last layer's weight too. approximate: "tanh" or "none", as of `functional.gelu`. The defaults
    are the small GPT-2. State names are those of Hugging Face's GPT2Model, whose published safetensors files load.
    Source: Radford et al. 2019, "Language models are unsupervised multitask learners".
    """

    published_prefix = "transformer."
    """Beginning of the paths of these layers in Hugging Face's network with the last layer."""

    def __init__(
        self,
        vocabulary: Count = 50257,
        width: Count = 768,
        layers: Size = 12,
        heads: Count = 12,
        positions: Count = 1024,
        inner: Count | None = None,
        dropout: Share = 0.1,
        eps: Magnitude = 1e-5,
        approximate: str = "tanh",
        *,
        dtype: Any = "float32",
    ):
        _heads_divide("GPT", width, heads)
        self.wte, self.wpe = Embedding(vocabulary, width), Embedding(positions, width)
        for table in (self.wte, self.wpe):
            init.normal_(table.weight, 0.0, 0.02)
        self.drop = Dropout(dropout)
        inner, std = 4 * width if inner is None else inner, 0.02 / sqrt(2 * max(1, layers))
        self.h = ModuleList(_GPTLayer(width, heads, inner, std, dropout, eps, approximate) for _ in range(layers))
        self.ln_f = LayerNorm(width, eps)
        self.to(dtype)

    def forward(self, tokens: Value) -> Value:
        ids = builder.as_value(tokens)
        _steps_fit("GPT", ids, self.wpe.num_embeddings)
        return self.head(self.states(ids, None, [None for _ in self.h]))

    def states(self, ids: Value, places: Value | None, attends: list[Attend | None]) -> Value:
        """Return the states before the last layer, with one function of attention for each layer; None: causal.

        places: positions [B, T]; None: 0 to T - 1."""
        place = builder.as_value(self.wpe.weight)[: ids.shape[1]] if places is None else self.wpe(places)
        x = self.drop(self.wte(ids) + place)
        for layer, attend in zip(self.h, attends, strict=True):
            x = layer(x, attend)
        return self.ln_f(x)

    def head(self, states: Value) -> Value:
        """Return the logits of states [..., width]."""
        return F.linear(states, self.wte.weight)

    @property
    def cached(self) -> CacheShape:
        """The shape of what generation keeps of each token."""
        heads, width = self.h[0].attn.heads if len(self.h) else 1, self.wte.embedding_dim
        return CacheShape(heads, width // heads, (0,) * len(self.h), self.wpe.num_embeddings)

    ASIDE = r"h\.\d+\.attn\.(masked_)?bias|lm_head\.weight"
    """Names that `load_state_dict` ignores."""

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> LoadResult:
        """Load a state as Module.load_state_dict does. Names may begin with "transformer."; the masks and the copy of
        the embedding (`lm_head.weight`) that old files store are ignored."""
        return super().load_state_dict(rename_published(state_dict, "transformer.", self.ASIDE), strict)
