"""Define transformers with names, arguments, initial distributions and states of torch.nn. Source: arXiv 1706.03762."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Annotated, Any

import numpy as np

from einsmith import ops as F
from einsmith.base.arguments import MAX_LAYERS, Count, Magnitude, Share, Size
from einsmith.base.errors import ArgumentError, ShapeError
from einsmith.nn import init
from einsmith.nn.attention import MultiheadAttention
from einsmith.nn.containers import ModuleList
from einsmith.nn.dropout import Dropout
from einsmith.nn.linear import Linear
from einsmith.nn.module import Module
from einsmith.nn.norm import LayerNorm
from einsmith.ops.activation import relu
from einsmith.ops.common import tensor
from einsmith.runtime import buffers
from einsmith.tracing.builder import Value

Depth = Annotated[int, 0, MAX_LAYERS]


def _activation(name: str, activation: Any) -> Callable[[Value], Value]:
    known: dict[str, Callable] = {"relu": F.relu, "gelu": F.gelu}
    if isinstance(activation, str) and activation in known:
        return known[activation]
    if not callable(activation):
        raise ArgumentError(f"{name}: activation={activation!r} must be 'relu', 'gelu' or a function of a tensor")
    return activation


class _Layer(Module):
    """Common base of encoder and decoder layers: their attentions, the feed-forward block, and pre- or
    post-normalization."""

    attentions: tuple[str, ...]

    def __init__(
        self,
        d_model: Count,
        nhead: Count,
        dim_feedforward: Size = 2048,
        dropout: Share = 0.1,
        activation: str | Callable[[Value], Value] = relu,
        layer_norm_eps: Magnitude = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        *,
        dtype: Any = "float32",
    ):
        for name in self.attentions:
            options: dict[str, Any] = {"dropout": dropout, "bias": bias, "batch_first": batch_first, "dtype": dtype}
            self.add_module(name, MultiheadAttention(d_model, nhead, **options))
        self.linear1 = Linear(d_model, dim_feedforward, bias, dtype=dtype)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias, dtype=dtype)
        self.norm_first = norm_first
        blocks = range(1, len(self.attentions) + 2)
        for n in blocks:
            self.add_module(f"norm{n}", LayerNorm(d_model, layer_norm_eps, bias=bias, dtype=dtype))
        for n in blocks:
            self.add_module(f"dropout{n}", Dropout(dropout))
        self.activation = _activation(type(self).__name__, activation)

    def _forward_block(self, x: Value) -> Value:
        return self.linear2(self.dropout(self.activation(self.linear1(x))))

    def _add_residual(self, x: Value, n: int, block: Callable[[Value], Value]) -> Value:
        """Return x plus `block` of x, with normalization `n` before the block (`norm_first`) or after the sum."""
        norm, drop = getattr(self, f"norm{n}"), getattr(self, f"dropout{n}")
        return x + drop(block(norm(x))) if self.norm_first else norm(x + drop(block(x)))


class TransformerEncoderLayer(_Layer):
    """Self-attention and two linear layers, each added to its input and normalized: [S, B, d_model] -> its own shape.

    batch_first: [B, S, d_model]; without a batch [S, d_model]. norm_first: normalized before each block instead of
    after (arXiv 2002.04745). activation: "relu", "gelu" or a function.
    """

    attentions = ("self_attn",)

    def forward(
        self, src: Value, src_mask: Any = None, src_key_padding_mask: Any = None, is_causal: bool = False
    ) -> Value:
        """Apply the layer. Masks are those of `MultiheadAttention`.

        is_causal without src_mask: each step attends to steps up to its own."""

        def attended(x: Value) -> Value:
            return self.self_attn(x, x, x, src_key_padding_mask, False, src_mask, is_causal=is_causal)[0]

        return self._add_residual(self._add_residual(src, 1, attended), 2, self._forward_block)


class TransformerDecoderLayer(_Layer):
    """Self-attention, attention to the memory and two linear layers, each added to its input and normalized.

    Arguments and shapes are those of `TransformerEncoderLayer`.
    """

    attentions = "self_attn", "multihead_attn"

    def forward(
        self,
        tgt: Value,
        memory: Value,
        tgt_mask: Any = None,
        memory_mask: Any = None,
        tgt_key_padding_mask: Any = None,
        memory_key_padding_mask: Any = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Value:
        """Apply the layer. Masks are those of `MultiheadAttention`.

        tgt_is_causal without tgt_mask: each step attends to steps up to its own."""

        def attended(x: Value) -> Value:
            return self.self_attn(x, x, x, tgt_key_padding_mask, False, tgt_mask, is_causal=tgt_is_causal)[0]

        def recalled(x: Value) -> Value:
            return self.multihead_attn(
                x, memory, memory, memory_key_padding_mask, False, memory_mask, is_causal=memory_is_causal
            )[0]

        return self._add_residual(
            self._add_residual(self._add_residual(tgt, 1, attended), 2, recalled), 3, self._forward_block
        )


class _Copies(Module):
    """num_layers copies of a layer, and a norm."""

    def _repeat(self, layer: Module, num_layers: int, norm: Module | None) -> None:
        self.layers = ModuleList(copy.deepcopy(layer) for _ in range(num_layers))
        self.num_layers = num_layers
        self.add_module("norm", norm)

    def _run(self, x: Value, *args: Any) -> Value:
        for layer in self.layers:
            x = layer(x, *args)
        return x if self.norm is None else self.norm(x)


class TransformerEncoder(_Copies):
    """num_layers copies of a layer, one after another, and a norm. All copies start with the weights of the layer.

    `enable_nested_tensor` and `mask_check`, which change nothing but torch's speed, are accepted.
    """

    def __init__(
        self,
        encoder_layer: Module,
        num_layers: Depth,
        norm: Module | None = None,
        enable_nested_tensor: bool = True,
        mask_check: bool = True,
    ):
        self._repeat(encoder_layer, num_layers, norm)

    def forward(
        self, src: Value, mask: Any = None, src_key_padding_mask: Any = None, is_causal: bool | None = None
    ) -> Value:
        """Apply the module. Masks are those of `MultiheadAttention`."""
        return self._run(src, mask, src_key_padding_mask, bool(is_causal))


class TransformerDecoder(_Copies):
    """num_layers copies of a layer, one after another, and a norm. All copies start with the weights of the layer."""

    def __init__(self, decoder_layer: Module, num_layers: Depth, norm: Module | None = None):
        self._repeat(decoder_layer, num_layers, norm)

    def forward(
        self,
        tgt: Value,
        memory: Value,
        tgt_mask: Any = None,
        memory_mask: Any = None,
        tgt_key_padding_mask: Any = None,
        memory_key_padding_mask: Any = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Value:
        """Apply the module. Masks are those of `MultiheadAttention`."""
        masks = (tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask)
        return self._run(tgt, memory, *masks, bool(tgt_is_causal), memory_is_causal)


class Transformer(Module):
    """An encoder of the source and a decoder of the target: [S, B, d_model], [T, B, d_model] -> [T, B, d_model].

    batch_first, norm_first and activation are those of `TransformerEncoderLayer`. Matrices have Glorot's initial
    distribution.
    """

    def __init__(
        self,
        d_model: Count = 512,
        nhead: Count = 8,
        num_encoder_layers: Depth = 6,
        num_decoder_layers: Depth = 6,
        dim_feedforward: Size = 2048,
        dropout: Share = 0.1,
        activation: str | Callable[[Value], Value] = relu,
        custom_encoder: Module | None = None,
        custom_decoder: Module | None = None,
        layer_norm_eps: Magnitude = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        *,
        dtype: Any = "float32",
    ):
        options = (d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first, norm_first, bias)

        def norm() -> LayerNorm:
            return LayerNorm(d_model, layer_norm_eps, bias=bias, dtype=dtype)

        self.encoder = custom_encoder or TransformerEncoder(
            TransformerEncoderLayer(*options, dtype=dtype), num_encoder_layers, norm()
        )
        self.decoder = custom_decoder or TransformerDecoder(
            TransformerDecoderLayer(*options, dtype=dtype), num_decoder_layers, norm()
        )
        self.d_model, self.nhead, self.batch_first = d_model, nhead, batch_first
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new initial values of all parameters of two dimensions or more."""
        for p in self.parameters():
            if p.ndim > 1:
                init.xavier_uniform_(p)

    def forward(
        self,
        src: Value,
        tgt: Value,
        src_mask: Any = None,
        tgt_mask: Any = None,
        memory_mask: Any = None,
        src_key_padding_mask: Any = None,
        tgt_key_padding_mask: Any = None,
        memory_key_padding_mask: Any = None,
        src_is_causal: bool | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Value:
        """Apply the module. Masks are those of `MultiheadAttention`."""
        batch = 0 if self.batch_first else 1
        src, tgt = tensor(src, "Transformer", "src"), tensor(tgt, "Transformer", "tgt")
        if src.ndim != tgt.ndim or (src.ndim == 3 and src.shape[batch] != tgt.shape[batch]):
            raise ShapeError(f"Transformer: 'src' {src.shape} and 'tgt' {tgt.shape} differ in their batch")
        memory = self.encoder(src, src_mask, src_key_padding_mask, src_is_causal)
        masks = (tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask)
        return self.decoder(tgt, memory, *masks, tgt_is_causal, memory_is_causal)

    @staticmethod
    def generate_square_subsequent_mask(sz: Size) -> np.ndarray:
        """Return the float mask [sz, sz] that is minus infinity where a key comes after the query, and 0 elsewhere."""
        mask = buffers.empty((sz, sz), np.float32)
        mask[...] = -np.inf
        return np.triu(mask, 1)
