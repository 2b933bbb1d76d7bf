"""Multi-head attention, under torch.nn.functional's name. Source: Vaswani et al. 2017, arXiv 1706.03762."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, sqrt
from typing import Any

from einsmith.base.arguments import Share
from einsmith.base.errors import ArgumentError, DtypeError, ShapeError
from einsmith.ops.arrangement import expand
from einsmith.ops.attention import attend, masking
from einsmith.ops.common import tensor
from einsmith.ops.conv import linear
from einsmith.ops.operator import operator
from einsmith.ops.padding import pad
from einsmith.ops.random import drop
from einsmith.ops.tensor import cat
from einsmith.tracing import builder
from einsmith.tracing.builder import Value


@dataclass(frozen=True)
class Multihead:
    """An attention of `heads` heads over `width` features, with its weights and options.

    weights: one [3*width, width], or those of query, key and value, each [width, features]; biases: [3*width]; extra:
    one more key and value, each [1, 1, width]; zero: one more of zeros; static: key and value in place of the
    projected inputs, each [B*heads, S, width/heads]; out: of the result [L, B, width]; dropped: of the weights. Errors
    begin with `name`.
    """

    name: str
    width: int
    heads: int
    weights: Sequence[Any]
    biases: Any
    extra: Sequence[Any]
    zero: bool
    out: Callable[[Value], Value]
    dropped: Callable[[Value], Value]
    static: Sequence[Any] = (None, None)

    def __call__(
        self,
        query: Any,
        key: Any,
        value: Any,
        key_padding_mask: Any,
        need_weights: bool,
        attn_mask: Any,
        average_attn_weights: bool,
        is_causal: bool,
        batch_first: bool = False,
    ) -> tuple[Value, Value | None]:
        """Return (output, weights); see `multi_head_attention_forward`."""
        q, k, v, single = self._inputs(query, key, value, batch_first)
        (length, batch), same = q.shape[:2], query is key and key is value
        q, k, v = self._project(q, k, v, same)
        more = sum(x is not None for x in self.extra[:1])
        if more:
            k, v = (cat([x, expand(b, 1, batch, self.width)], 0) for x, b in zip((k, v), self.extra, strict=True))
        k, v = (
            self._heads(x) if static is None else self._static(static, name, batch)
            for x, static, name in zip((k, v), self.static, ("static_k", "static_v"), strict=True)
        )
        if k.shape != v.shape:
            raise ShapeError(f"{self.name}: there are {k.shape[2]} keys and {v.shape[2]} values")
        mask = self._mask(key_padding_mask, attn_mask, batch, length, k.shape[2] - more, single)
        if self.zero:
            k, v, more = pad(k, (0, 0, 0, 1)), pad(v, (0, 0, 0, 1)), more + 1
        if more and mask is not None:
            mask = pad(mask, (0, more), value=True if mask.dtype.is_bool else 0.0)
        causal = is_causal and attn_mask is None
        if causal and more:
            raise ArgumentError(f"{self.name}: is_causal does not go with more keys (add_bias_kv, add_zero_attn)")
        scale = 1 / sqrt(self.width // self.heads)
        out, weights = attend(self._heads(q), k, v, masking(mask, causal), scale, self.dropped, mask is None)
        y = self.out(out.transpose(2, 0, 1, 3).reshape((length, batch, self.width)))
        if single:
            y = y.reshape((length, -1))
        elif batch_first:
            y = y.transpose(1, 0, 2)
        if not need_weights:
            return y, None
        weights = weights.mean(axis=1) if average_attn_weights else weights
        return y, weights.reshape(weights.shape[1:]) if single else weights

    def _inputs(self, query: Any, key: Any, value: Any, batch_first: bool) -> tuple[Value, Value, Value, bool]:
        """Return the inputs as [L, B, E], and whether they came without a batch. Raises ShapeError."""
        named = ((query, "query"), (key, "key"), (value, "value"))
        inputs = [tensor(x, self.name, n, rank=(2, 3), kind="float") for x, n in named]
        single = inputs[0].ndim == 2
        shown = f"{self.name}: 'query' {inputs[0].shape}, 'key' {inputs[1].shape} and 'value' {inputs[2].shape}"
        if any(x.ndim != inputs[0].ndim for x in inputs):
            raise ShapeError(f"{shown} differ in rank")
        if single:
            inputs = [x.reshape((x.shape[0], 1, x.shape[1])) for x in inputs]
        elif batch_first:
            inputs = [x.transpose(1, 0, 2) for x in inputs]
        q, k, v = inputs
        widths = tuple(w.shape[1] for w in self.weights) * (3 // len(self.weights))
        if (q.shape[2], k.shape[2], v.shape[2]) != widths or k.shape[:2] != v.shape[:2] or q.shape[1] != k.shape[1]:
            raise ShapeError(f"{shown} do not fit: features {widths}, one batch, and as many keys as values")
        if not k.shape[0]:
            raise ShapeError(f"{shown}: there are no keys")
        return q, k, v, single

    def _project(self, q: Value, k: Value, v: Value, same: bool) -> list[Value]:
        e, bias = self.width, self.biases
        if same and len(self.weights) == 1:
            y = linear(q, self.weights[0], bias)
            return [y[:, :, n * e : (n + 1) * e] for n in range(3)]
        weights = self.weights if len(self.weights) == 3 else [self.weights[0][n * e : (n + 1) * e] for n in range(3)]
        biases = [None if bias is None else bias[n * e : (n + 1) * e] for n in range(3)]
        return [linear(x, w, b) for x, w, b in zip((q, k, v), weights, biases, strict=True)]

    def _heads(self, x: Value) -> Value:
        """Split [L, B, E] into heads [B, heads, L, E/heads]."""
        return x.reshape((*x.shape[:2], self.heads, self.width // self.heads)).transpose(1, 2, 0, 3)

    def _static(self, value: Any, argument: str, batch: int) -> Value:
        x = tensor(value, self.name, argument, rank=3, kind="float")
        each = self.width // self.heads
        if x.shape[0] != batch * self.heads or x.shape[2] != each:
            raise ShapeError(f"{self.name}: {argument!r} has shape {x.shape}, needs [{batch * self.heads}, S, {each}]")
        return x.reshape((batch, self.heads, x.shape[1], each))

    def _mask(self, padding: Any, attn_mask: Any, batch: int, length: int, steps: int, single: bool) -> Value | None:
        """Return the masks as one of [B or 1, heads or 1, L or 1, S]: bools, true where a key takes part, or floats."""
        masks = []
        if padding is not None:
            m = self._check_mask(padding, "key_padding_mask", [(steps,)] if single else [(batch, steps)])
            masks.append(m.reshape((batch, 1, 1, steps)))
        if attn_mask is not None:
            m = self._check_mask(attn_mask, "attn_mask", [(length, steps), (batch * self.heads, length, steps)])
            masks.append(m.reshape((*((1, 1) if m.ndim == 2 else (batch, self.heads)), length, steps)))
        if not masks:
            return None
        if all(m.dtype.is_bool for m in masks):
            closed = masks[0] if len(masks) == 1 else masks[0] | masks[1]
            return ~closed
        added = [builder.where(m, -inf, 0.0) if m.dtype.is_bool else m for m in masks]
        return added[0] if len(added) == 1 else added[0] + added[1]

    def _check_mask(self, mask: Any, argument: str, shapes: list[tuple[int, ...]]) -> Value:
        m = tensor(mask, self.name, argument)
        if not (m.dtype.is_bool or m.dtype.is_float):
            raise DtypeError(f"{self.name}: {argument!r} holds bools or floats, not {m.dtype.name}")
        if m.shape not in shapes:
            raise ShapeError(f"{self.name}: {argument!r} has shape {m.shape}, needs {' or '.join(map(str, shapes))}")
        return m


@operator()
def multi_head_attention_forward(
    query: Any, key: Any, value: Any, embed_dim_to_check: int, num_heads: int, in_proj_weight: Any, in_proj_bias: Any,
    bias_k: Any, bias_v: Any, add_zero_attn: bool, dropout_p: Share, out_proj_weight: Any, out_proj_bias: Any,
    training: bool = True, key_padding_mask: Any = None, need_weights: bool = True, attn_mask: Any = None,
    use_separate_proj_weight: bool = False, q_proj_weight: Any = None, k_proj_weight: Any = None,
    v_proj_weight: Any = None, static_k: Any = None, static_v: Any = None, average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Value, Value | None]:  # fmt: skip
    """Return (output, weights) of an attention whose weights are given; see `nn.MultiheadAttention` for what they mean.

    query [L, B, E], key [S, B, ..], value [S, B, ..] -> [L, B, E] and [B, L, S], or all of them without B. E:
    embed_dim_to_check. in_proj_weight [3*E, E], or, with use_separate_proj_weight, q_, k_ and v_proj_weight [E, ..];
    in_proj_bias [3*E]; bias_k, bias_v [1, 1, E] or [E]; static_k, static_v [B*num_heads, S, E/num_heads]: heads of keys
    and values instead of what key and value give. Masks as of the layer.
    """
    name = "multi_head_attention_forward"
    e = embed_dim_to_check
    if num_heads < 1 or e % num_heads:
        raise ArgumentError(f"{name}: embed_dim_to_check={e} must be a multiple of num_heads={num_heads}")
    separate = {"q_proj_weight": q_proj_weight, "k_proj_weight": k_proj_weight, "v_proj_weight": v_proj_weight}
    projections = separate if use_separate_proj_weight else {"in_proj_weight": in_proj_weight}
    rows = e if use_separate_proj_weight else 3 * e
    weights = []
    for argument, weight in projections.items():
        if weight is None:
            raise ArgumentError(
                f"{name}: {argument!r} is missing, with use_separate_proj_weight={use_separate_proj_weight!r}"
            )
        weights.append(tensor(weight, name, argument, rank=2, kind="float"))
    extra = [None if b is None else builder.as_value(b) for b in (bias_k, bias_v)]
    bias_k, bias_v = (b.reshape((1, 1, -1)) if b is not None and b.ndim == 1 else b for b in extra)
    shapes: dict[str, tuple[Any, tuple[int, ...]]] = {
        **{
            n: (w, (rows, w.shape[1] if use_separate_proj_weight and n != "q_proj_weight" else e))
            for n, w in zip(projections, weights, strict=True)
        },
        "in_proj_bias": (in_proj_bias, (3 * e,)),
        "bias_k": (bias_k, (1, 1, e)),
        "bias_v": (bias_v, (1, 1, e)),
        "out_proj_weight": (out_proj_weight, (e, e)),
        "out_proj_bias": (out_proj_bias, (e,)),
    }
    for argument, (x, shape) in shapes.items():
        if x is not None and tensor(x, name, argument, kind="float").shape != shape:
            raise ShapeError(f"{name}: {argument!r} has shape {builder.as_value(x).shape}, needs {shape}")
    if (bias_k is None) != (bias_v is None):
        raise ArgumentError(f"{name}: give both of 'bias_k' and 'bias_v', or none")
    if bias_k is not None and (static_k is not None or static_v is not None):
        raise ArgumentError(f"{name}: 'bias_k' and 'bias_v' do not go with 'static_k' and 'static_v'")

    def dropped(w: Value) -> Value:
        return drop(w, dropout_p) if training else w

    biases = None if in_proj_bias is None else builder.as_value(in_proj_bias)
    attention = Multihead(
        name,
        e,
        num_heads,
        weights,
        biases,
        (bias_k, bias_v),
        add_zero_attn,
        lambda y: linear(y, out_proj_weight, out_proj_bias),
        dropped,
        (static_k, static_v),
    )
    return attention(query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal)
