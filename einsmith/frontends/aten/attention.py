"""Scaled dot-product attention, with masks and biases as tensors or as functions of the position."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, log
from typing import Any

from einsmith import ops as F
from einsmith.api.transforms import vjp
from einsmith.frontends.aten.table import aten
from einsmith.ops.attention import Places, flex
from einsmith.tracing import builder
from einsmith.tracing.builder import Value


@aten("scaled_dot_product_attention.default")
def attention(
    q: Value,
    k: Value,
    v: Value,
    mask: Value | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Value:
    """sum[j](softmax[j](sum[e](q[i, e]*k[j, e])*scale + mask[i, j])*v[j, f]); 0 if the mask excludes all j"""
    if mask is not None and mask.dtype.is_float:
        mask = mask.astype(q.dtype)
    return F.scaled_dot_product_attention(q, k, v, mask, dropout_p, is_causal, scale, enable_gqa)


@aten("flex_attention")
def flex_attention(
    q: Value,
    k: Value,
    v: Value,
    score_mod: Callable[..., Any],
    block_mask: Sequence[Any],
    scale: float,
    kernel_options: Any,
    score_buffers: Sequence[Any] = (),
    mask_buffers: Sequence[Any] = (),
) -> list[Value]:
    """(averages of v by softmax[j] of score_mod(scores) where the block mask's function holds, the scores' logsumexp
    and maximum in base 2)"""
    changed: list[Value] = []

    def change(scores: Value, places: Places) -> Value:
        at = [_positions(scores.shape, places, n) for n in range(4)]
        mask = block_mask[-1](*at, *mask_buffers)
        new = builder.as_value(score_mod(scores, *at, *score_buffers)).astype(scores.dtype)
        changed.append(builder.broadcast_to(builder.where(mask, new, -inf), scores.shape))
        return changed[0]

    out = flex("flex_attention", q, k, v, change, scale, True)
    scores = changed[0].reshape((*q.shape[:3], k.shape[2]))
    # PyTorch declares both as float32 for all types.
    return [out, *((x / log(2)).astype("float32") for x in (F.logsumexp(scores, -1), F.amax(scores, -1)))]


@aten("flex_attention_backward")
def flex_attention_backward(
    q: Value,
    k: Value,
    v: Value,
    out: Value,
    logsumexp: Value,
    grad_out: Value | None,
    grad_logsumexp: Value | None,
    score_mod: Callable[..., Any],
    joint: Any,
    block_mask: Sequence[Any],
    scale: float,
    kernel_options: Any,
    score_buffers: Sequence[Any] = (),
    mask_buffers: Sequence[Any] = (),
) -> list[Any]:
    """the pullback of flex_attention: (of q, of k, of v, (of each tensor that score_mod captures))"""
    trained = [n for n, x in enumerate(score_buffers) if isinstance(x, Value) and x.dtype.is_float]

    def forward(q: Value, k: Value, v: Value, *captured: Value) -> tuple[Value, Value]:
        buffers = list(score_buffers)
        for n, x in zip(trained, captured, strict=True):
            buffers[n] = x
        y, total, _ = flex_attention(q, k, v, score_mod, block_mask, scale, None, buffers, mask_buffers)
        return y, total

    grads = [
        builder.full(x.shape, 0.0, x.dtype) if g is None else g
        for g, x in ((grad_out, out), (grad_logsumexp, logsumexp))
    ]
    if grad_logsumexp is None:
        gradients = vjp(lambda *x: forward(*x)[0], q, k, v, *(score_buffers[n] for n in trained))[1](grads[0])
    else:
        gradients = vjp(forward, q, k, v, *(score_buffers[n] for n in trained))[1](tuple(grads))
    captured = dict(zip(trained, gradients[3:], strict=True))
    return [*gradients[:3], [captured.get(n) for n in range(len(score_buffers))]]


def _positions(shape: Sequence[int], places: Places, n: int) -> Value:
    """Return the batch entries, heads, query or key steps (n = 0 to 3) of scores, a tensor that broadcasts to them."""
    groups = len(shape) - 4
    own = {0: range(1), 1: range(1, 2 + groups)}.get(n, range(n + groups, n + groups + 1))
    extents = [size if d in own else 1 for d, size in enumerate(shape)]
    return builder.compute(extents, lambda *i: builder.cast(places(i)[n], "int32"))
