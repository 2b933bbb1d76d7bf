"""Define BERT, a vision transformer and a GPT in PyTorch: published state names, PyTorch's fused attention."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


def _attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, heads: int, mask: torch.Tensor | None = None, p: float = 0.0,
    causal: bool = False,
) -> torch.Tensor:  # fmt: skip
    def split(x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (heads, -1)).transpose(1, 2)

    y = F.scaled_dot_product_attention(split(q), split(k), split(v), mask, p, causal)
    return y.transpose(1, 2).flatten(2)


class _Named(nn.Module):
    """Parts under the names given."""

    def __init__(self, /, **parts: nn.Module):
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)


class _BertLayer(nn.Module):
    def __init__(self, width: int, heads: int, inner: int, p: float):
        super().__init__()
        lin = nn.Linear
        self.attention = _Named(
            self=_Named(query=lin(width, width), key=lin(width, width), value=lin(width, width)),
            output=_Named(dense=lin(width, width), LayerNorm=nn.LayerNorm(width, eps=1e-12)),
        )
        self.intermediate = _Named(dense=lin(width, inner))
        self.output = _Named(dense=lin(inner, width), LayerNorm=nn.LayerNorm(width, eps=1e-12))
        self.heads, self.p, self.drop = heads, p, nn.Dropout(p)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        own, out = self.attention.get_submodule("self"), self.attention.output
        y = _attention(own.query(x), own.key(x), own.value(x), self.heads, mask, self.p if self.training else 0.0)
        x = out.LayerNorm(x + self.drop(out.dense(y)))
        y = self.output.dense(F.gelu(self.intermediate.dense(x)))
        return self.output.LayerNorm(x + self.drop(y))


class _BertEncoder(_Named):
    """The layers alone, of embedded tokens [B, T, width]."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        for layer in self.layer:
            x = layer(x, mask)
        return x


class TorchBert(nn.Module):
    """BERT."""

    def __init__(
        self, vocabulary: int = 30522, width: int = 768, layers: int = 12, heads: int = 12, inner: int = 3072,
        positions: int = 512, dropout: float = 0.1, pooler: bool = True,
    ):  # fmt: skip
        super().__init__()
        self.drop = nn.Dropout(dropout)
        self.embeddings = _Named(
            word_embeddings=nn.Embedding(vocabulary, width), position_embeddings=nn.Embedding(positions, width),
            token_type_embeddings=nn.Embedding(2, width), LayerNorm=nn.LayerNorm(width, eps=1e-12),
        )  # fmt: skip
        stack = nn.ModuleList(_BertLayer(width, heads, inner, dropout) for _ in range(layers))
        self.encoder = _BertEncoder(layer=stack)
        if pooler:
            self.pooler = _Named(dense=nn.Linear(width, width))
        self.pools = pooler

    def forward(self, ids, mask=None, types=None):
        e = self.embeddings
        places = torch.arange(ids.shape[1])
        types = torch.zeros_like(ids) if types is None else types
        x = e.word_embeddings(ids) + e.position_embeddings(places) + e.token_type_embeddings(types)
        x = self.drop(e.LayerNorm(x))
        x = self.encoder(x, None if mask is None else mask.bool()[:, None, None, :])
        return (x, torch.tanh(self.pooler.dense(x[:, 0]))) if self.pools else x


class _ViTLayer(nn.Module):
    def __init__(self, width: int, heads: int, inner: int, p: float):
        super().__init__()
        self.ln_1 = nn.LayerNorm(width, eps=1e-6)
        self.self_attention = nn.MultiheadAttention(width, heads, p, batch_first=True)
        self.ln_2 = nn.LayerNorm(width, eps=1e-6)
        parts = nn.Linear(width, inner), nn.GELU(), nn.Dropout(p), nn.Linear(inner, width), nn.Dropout(p)
        self.mlp, self.drop = nn.Sequential(*parts), nn.Dropout(p)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.ln_1(x)
        x = x + self.drop(self.self_attention(y, y, y, need_weights=False)[0])
        return x + self.mlp(self.ln_2(x))


class TorchViT(nn.Module):
    """A vision transformer."""

    def __init__(
        self, classes: int = 1000, width: int = 384, layers: int = 12, heads: int = 6, inner: int = 1536,
        size: int = 224, patch: int = 16, dropout: float = 0.0,
    ):  # fmt: skip
        super().__init__()
        self.drop = nn.Dropout(dropout)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.conv_proj = nn.Conv2d(3, width, patch, patch)
        self.encoder = nn.Module()
        self.encoder.pos_embedding = nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, width))
        named = {f"encoder_layer_{n}": _ViTLayer(width, heads, inner, dropout) for n in range(layers)}
        self.encoder.layers = _Named(**named)
        self.encoder.ln = nn.LayerNorm(width, eps=1e-6)
        self.heads = _Named(head=nn.Linear(width, classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv_proj(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(x.shape[0], -1, -1), x], 1) + self.encoder.pos_embedding
        x = self.drop(x)
        for layer in self.encoder.layers.children():
            x = layer(x)
        return self.heads.head(self.encoder.ln(x)[:, 0])


class _Conv1D(nn.Module):
    def __init__(self, a: int, b: int):
        super().__init__()
        self.weight, self.bias = nn.Parameter(0.3 * torch.randn(a, b)), nn.Parameter(torch.zeros(b))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.addmm(self.bias, x.reshape(-1, x.shape[-1]), self.weight)
        return y.view(*x.shape[:-1], -1)


class TorchGPT(nn.Module):
    """A GPT, whose decoder shares the table of embeddings."""

    def __init__(
        self, vocabulary: int = 50257, width: int = 768, layers: int = 12, heads: int = 12, positions: int = 1024,
        inner: int | None = None, dropout: float = 0.1,
    ):  # fmt: skip
        super().__init__()
        inner = 4 * width if inner is None else inner
        self.p, self.drop = dropout, nn.Dropout(dropout)
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(positions, width)

        def layer() -> _Named:
            return _Named(
                ln_1=nn.LayerNorm(width), attn=_Named(c_attn=_Conv1D(width, 3 * width), c_proj=_Conv1D(width, width)),
                ln_2=nn.LayerNorm(width), mlp=_Named(c_fc=_Conv1D(width, inner), c_proj=_Conv1D(inner, width)),
            )  # fmt: skip

        self.h = nn.ModuleList(layer() for _ in range(layers))
        self.ln_f, self.heads = nn.LayerNorm(width), heads

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.drop(self.wte(ids) + self.wpe.weight[: ids.shape[1]])
        p = self.p if self.training else 0.0
        for layer in self.h:
            q, k, v = layer.attn.c_attn(layer.ln_1(x)).chunk(3, -1)
            x = x + self.drop(layer.attn.c_proj(_attention(q, k, v, self.heads, None, p, causal=True)))
            y = F.gelu(layer.mlp.c_fc(layer.ln_2(x)), approximate="tanh")
            x = x + self.drop(layer.mlp.c_proj(y))
        return F.linear(self.ln_f(x), self.wte.weight)
