"""Attention, under torch.nn.functional's name. Source: Vaswani et al. 2017, arXiv 1706.03762."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, sqrt
from typing import Any

from einsmith.base.arguments import Share
from einsmith.base.errors import ArgumentError, DtypeError, ShapeError
from einsmith.lang import builder, views
from einsmith.lang.builder import Value
from einsmith.ops.call import accept_arrays
from einsmith.ops.common import tensor
from einsmith.ops.random import drop
from einsmith.ops.softmax import _softmax


def attend(
    q: Value, k: Value, v: Value, mask: Value | None, causal: bool, scale: float, dropped: Callable[[Value], Value]
) -> tuple[Value, Value]:
    """Return (averages of the values, weights before dropout), for q [..., L, E], k [..., S, E], v [..., S, F].

    mask: broadcasts to [..., L, S]; bools, true where a key takes part, or floats that are added to the scores.
    causal: step i attends to the steps up to i. A row in which no key takes part has weights 0. Leading extents
    broadcast; where q's are a multiple of k's and v's, a group of q's heads shares a head of k and v (grouped-query
    attention). dropped: function applied to the weights.
    """
    lead = _leading(q, k, v, mask)
    (e,) = builder.axes(q.shape[-1])
    shape = (*lead, q.shape[-2], k.shape[-2])

    def at(x: Value, i: Sequence[Any], *inner: Any) -> Any:
        index: list[Any] = []
        for n, whole, place in zip(
            x.shape[:-2], lead[len(lead) - x.ndim + 2 :], i[len(lead) - x.ndim + 2 :], strict=True
        ):
            index.append(0 if n == 1 else place if n == whole else place // (whole // n))
        return x[(*index, *inner)]

    scores = builder.compute(
        shape, lambda *i: builder.sum(at(q, i[:-2], i[-2], e) * at(k, i[:-2], i[-1], e), over=e) * scale
    )
    if mask is not None or causal:
        scores = _mask_scores(scores, mask, causal)
        weights = softmax_of_some(scores)
    else:
        weights = _softmax(scores, scores.ndim - 1)
    used = dropped(weights)
    (j,) = builder.axes(k.shape[-2])
    out = builder.compute(
        (*lead, q.shape[-2], v.shape[-1]),
        lambda *i: builder.sum(used[(*i[:-1], j)] * at(v, i[:-2], j, i[-1]), over=j),
    )
    return out, weights


def _leading(q: Value, k: Value, v: Value, mask: Value | None) -> tuple[int, ...]:
    heads = q.shape[-3:-2]

    def read_as(x: Value) -> tuple[int, ...]:
        own = x.shape[:-2]
        return (*own[:-1], *heads) if own and heads and own[-1] and heads[0] % own[-1] == 0 else own

    shapes = [q.shape[:-2], read_as(k), read_as(v)]
    return views.broadcast(shapes if mask is None else [*shapes, mask.shape[:-2]])


def _mask_scores(scores: Value, mask: Value | None, causal: bool) -> Value:
    def body(*i: Any) -> Any:
        s = scores[i]
        if mask is not None:
            at = tuple(0 if n == 1 else p for n, p in zip(mask.shape, i[len(i) - mask.ndim :], strict=True))
            m = mask[at] if at else mask
            s = builder.where(m, s, -inf) if mask.dtype.is_bool else s + m
        return builder.where(i[-1] <= i[-2], s, -inf) if causal else s

    return builder.compute(scores.shape, body)


def softmax_of_some(s: Value) -> Value:
    """Return the softmax along the last dimension, 0 in rows in which all is minus infinity."""
    (j,) = builder.axes(s.shape[-1])
    rest = s.shape[:-1]
    top = builder.compute(rest, lambda *i: builder.max(builder.stop_gradient(s[(*i, j)]), over=j))
    top = builder.where(top == -inf, 0.0, top)
    total = builder.compute(rest, lambda *i: builder.sum(builder.exp(s[(*i, j)] - top[i]), over=j))
    # Added instead of selected, so that the total's gradient is not under a condition.
    total = total + builder.where(total == 0, 1.0, 0.0)
    return builder.compute(s.shape, lambda *i: builder.exp(s[i] - top[i[:-1]]) / total[i[:-1]])


def checked_mask(name: str, mask: Any, argument: str, shape: tuple[int, ...]) -> Value:
    """Return a mask of bools or floats that broadcasts to `shape`. Raises DtypeError, ShapeError."""
    m = tensor(mask, name, argument)
    if not (m.dtype.is_bool or m.dtype.is_float):
        raise DtypeError(f"{name}: {argument!r} holds bools or floats, not {m.dtype.name}")
    lead = len(shape) - m.ndim
    if lead < 0 or any(n not in (1, e) for n, e in zip(m.shape, shape[lead:], strict=True)):
        raise ShapeError(f"{name}: {argument!r} has shape {m.shape}, which does not broadcast to {shape}")
    return m


@accept_arrays
def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: Share = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Value:
    """Return softmax(query key^T * scale + mask) value: [..., L, E], [..., S, E], [..., S, F] -> [..., L, F].

    attn_mask broadcasts to [..., L, S]: bools, true where a key takes part, or floats that are added. is_causal: keys
    up to the query's own position. A query without any key gives 0. dropout_p drops weights, always. scale is
    1/sqrt(E) where not given. enable_gqa: [..., Hq, L, E] with [..., H, S, E], Hq being a multiple of H.
    """
    name = "scaled_dot_product_attention"
    q, k, v = (tensor(x, name, n, kind="float") for x, n in ((query, "query"), (key, "key"), (value, "value")))
    if min(q.ndim, k.ndim, v.ndim) < 2 or q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        raise ShapeError(
            f"{name}: 'query' {q.shape}, 'key' {k.shape} and 'value' {v.shape} need [..., L, E], [..., S, E] "
            "and [..., S, F]"
        )
    if not k.shape[-2]:
        raise ShapeError(f"{name}: 'key' {k.shape} has no steps to attend to")
    if attn_mask is not None and is_causal:
        raise ArgumentError(f"{name}: give 'attn_mask' or is_causal, not both")
    if enable_gqa and (min(q.ndim, k.ndim, v.ndim) < 3 or q.shape[-3] % k.shape[-3] or q.shape[-3] % v.shape[-3]):
        raise ShapeError(f"{name}: the heads of 'query' {q.shape} are no multiple of those of {k.shape} and {v.shape}")
    if not enable_gqa:
        try:
            views.broadcast([x.shape[:-2] for x in (q, k, v)])
        except ShapeError:
            raise ShapeError(
                f"{name}: the first extents of {q.shape}, {k.shape} and {v.shape} do not broadcast; enable_gqa=True "
                "lets a group of heads share one"
            ) from None
    lead = _leading(q, k, v, None)
    mask = None if attn_mask is None else checked_mask(name, attn_mask, "attn_mask", (*lead, q.shape[-2], k.shape[-2]))
    width = 1 / sqrt(q.shape[-1]) if scale is None else scale
    return attend(q, k, v, mask, is_causal, width, lambda w: drop(w, dropout_p))[0]
