"""Attention, under torch.nn.functional's name. Source: Vaswani et al. 2017, arXiv 1706.03762."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, sqrt
from typing import Any

from einsmith.base.arguments import Share, bound
from einsmith.base.errors import ArgumentError, BoundsError, DtypeError, ShapeError
from einsmith.ops.call import recorded
from einsmith.ops.common import tensor
from einsmith.ops.operator import operator
from einsmith.ops.random import drop
from einsmith.ops.softmaxes import softmax_parts
from einsmith.tracing import builder, formula, views
from einsmith.tracing.builder import Value

Places = Callable[[Sequence[Any]], tuple[Any, ...]]
"""Function from an index of the scores to (..., batch, head, query step, key step)."""
Change = Callable[[Value, Places], Value]
"""Function from the scores to changed scores of the same shape, in which minus infinity excludes a key."""


def attend(
    q: Value,
    k: Value,
    v: Value,
    change: Change | None,
    scale: float,
    dropped: Callable[[Value], Value],
    some_key: bool = False,
) -> tuple[Value, Value]:
    """Return (averages of the values, weights before dropout), for q [..., L, E], k [..., S, E], v [..., S, F].

    A row in which no key takes part has weights 0. Leading extents broadcast; where q's heads are a multiple of k's and
    v's, a group of q's heads shares a head of k and v (grouped-query attention). Each head of q then has a copy of its
    keys and values, which take little beside the scores, so that heads are attended to one by one, and scores need not
    be stored. For a single step of q, the scores are [..., heads of k, group, L, S] instead: keys are read once.

    change: function applied to the scaled scores, None if all keys take part. scale: factor of the scores. dropped:
    function applied to the weights. some_key: whether `change` leaves each row a key.
    """
    lead = _leading(q, k, v)
    whole = lead[-1] if lead else 1
    if q.shape[-2] != 1:
        k, v = _copy_heads(k, whole), _copy_heads(v, whole)
    shared = next((n for n in (*k.shape[-3:-2], *v.shape[-3:-2]) if 1 < n < whole), None)
    group = whole // shared if shared else 1
    split = lead if shared is None else (*lead[:-1], shared, group)

    def places(i: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(i) if shared is None else (*i[:-4], i[-4] * group + i[-3], *i[-2:])

    def at(x: Value, i: Sequence[Any], *inner: Any) -> Any:
        index: list[Any] = []
        outer = places((*i, 0, 0))[:-2]
        skipped = len(lead) - x.ndim + 2
        for d, (n, size, place) in enumerate(zip(x.shape[:-2], lead[skipped:], outer[skipped:], strict=True), skipped):
            if n in (1, size):
                index.append(0 if n == 1 else place)
            else:
                assert d == len(lead) - 1 and shared is not None
                index.append(i[-2] if n == shared else place // (size // n))
        return x[(*index, *inner)]

    (e,) = builder.axes(q.shape[-1])
    scores = builder.compute(
        (*split, q.shape[-2], k.shape[-2]),
        lambda *i: builder.sum(at(q, i[:-2], i[-2], e) * at(k, i[:-2], i[-1], e), over=e) * scale,
    )
    out, weights = averages(
        scores if change is None else change(scores, places),
        change is not None,
        change is None or some_key,
        dropped,
        v.shape[-1],
        lambda i, j: at(v, i[:-2], j, i[-1]),
    )
    if shared is None:
        return out, weights
    return out.reshape((*lead, *out.shape[-2:])), weights.reshape((*lead, *weights.shape[-2:]))


@recorded
def averages(
    scores: Value,
    masked: bool,
    some_key: bool,
    dropped: Callable[[Value], Value],
    width: int,
    read: Callable[..., Any],
) -> tuple[Value, Value]:
    """Return (averages [..., L, width] of values by the softmax of scores [..., L, S], the weights before dropout).

    Args:
        scores: the scores, minus infinity where a key takes no part
        masked: whether keys may take no part; a row without any key has weights 0
        some_key: whether a key takes part in each row
        dropped: function applied to the weights
        width: features of a value
        read: function of (index of the result, step of the key) to an element of the values
    """
    top, total = parts_of_some(scores) if masked else softmax_parts(scores, scores.ndim - 1)
    exponentials = builder.compute(scores.shape, lambda *i: builder.exp(scores[i] - top[i[:-1]]))
    used = dropped(exponentials)
    # Divided after the sum, so that the gradient of the total is a sum over the width, and not over the keys.
    out = average(used, width, read, total)
    return out, builder.compute(scores.shape, lambda *i: exponentials[i] / total[i[:-1]])


def average(weights: Value, width: int, read: Callable[..., Any], total: Value | None = None) -> Value:
    """Return the sums of values with weights [..., L, S], divided by `total` [..., L]; see `averages`."""
    (j,) = builder.axes(weights.shape[-1])

    def body(*i: Any) -> Any:
        summed = builder.sum(weights[(*i[:-1], j)] * read(i, j), over=j)
        return summed if total is None else summed / total[i[:-1]]

    return builder.compute((*weights.shape[:-1], width), body)


def _leading(q: Value, k: Value, v: Value) -> tuple[int, ...]:
    heads = q.shape[-3:-2]

    def read_as(x: Value) -> tuple[int, ...]:
        own = x.shape[:-2]
        return (*own[:-1], *heads) if own and heads and own[-1] and heads[0] % own[-1] == 0 else own

    return views.broadcast([q.shape[:-2], read_as(k), read_as(v)])


def _copy_heads(x: Value, heads: int) -> Value:
    """Return keys or values [..., H, S, E] for each of a multiple of H heads."""
    own = x.shape[-3] if x.ndim > 2 else 1
    if not 1 < own < heads:
        return x
    lead, inner = x.shape[:-3], x.shape[-2:]
    return x.reshape((*lead, own, 1, *inner)).expand(*lead, own, heads // own, *inner).reshape((*lead, heads, *inner))


def change_by(function: Callable[..., Any]) -> Change:
    """Return the change of the scores by `function` of (score, ..., batch, head, query step, key step)."""
    return lambda scores, places: builder.compute(scores.shape, lambda *i: function(scores[i], *places(i)))


def masking(mask: Value | None, causal: bool) -> Change | None:
    """Return the change of the scores by a mask that broadcasts to [..., L, S] and a causal mask, None without any.

    mask: bools, true where a key takes part, or floats that are added to the scores. causal: step i attends to the
    steps up to i.
    """

    def body(s: Any, *i: Any) -> Any:
        if mask is not None:
            at = tuple(0 if n == 1 else p for n, p in zip(mask.shape, i[len(i) - mask.ndim :], strict=True))
            m = mask[at] if at else mask
            s = builder.where(m, s, -inf) if mask.dtype.is_bool else s + m
        return builder.where(i[-1] <= i[-2], s, -inf) if causal else s

    return change_by(body) if mask is not None or causal else None


def parts_of_some(s: Value) -> tuple[Value, Value]:
    """Return the maximum m along the last dimension, as a constant, and the sum of exp(s - m); 0 and 1 in rows in which
    all is minus infinity."""
    (j,) = builder.axes(s.shape[-1])
    rest = s.shape[:-1]
    top = builder.compute(rest, lambda *i: builder.max(builder.stop_gradient(s[(*i, j)]), over=j))
    top = builder.where(top == -inf, 0.0, top)
    total = builder.compute(rest, lambda *i: builder.sum(builder.exp(s[(*i, j)] - top[i]), over=j))
    # Added instead of selected, so that the total's gradient is not under a condition.
    return top, total + builder.where(total == 0, 1.0, 0.0)


def softmax_of_some(s: Value) -> Value:
    """Return the softmax along the last dimension, 0 in rows in which all is minus infinity."""
    top, total = parts_of_some(s)
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


@operator()
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
    lead = _leading(q, k, v)
    mask = None if attn_mask is None else checked_mask(name, attn_mask, "attn_mask", (*lead, q.shape[-2], k.shape[-2]))
    if not k.shape[-2]:
        return builder.full((*lead, q.shape[-2], v.shape[-1]), 0.0, q.dtype)
    width = 1 / sqrt(q.shape[-1]) if scale is None else scale
    return attend(q, k, v, masking(mask, is_causal), width, lambda w: drop(w, dropout_p), mask is None)[0]


@operator()
def flex_attention(
    query: Any,
    key: Any,
    value: Any,
    score_mod: Callable[..., Any] | None = None,
    mask_mod: Callable[..., Any] | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Value:
    """Return softmax(score_mod(query key^T * scale)) value over the keys that mask_mod keeps, as in
    torch.nn.attention.flex_attention: [B, Hq, L, E], [B, H, S, E], [B, H, S, F] -> [B, Hq, L, F].

    score_mod and mask_mod are formulas, so no [L, S] mask is made. They may read traced tensors by the indices, as in
    `doc[b, i] == doc[b, j]`, and gradients flow to the tensors that score_mod reads. A query without any key gives 0.

    Args:
        query: floats.
        key: floats of the same type; H is Hq, or divides it with enable_gqa, and B may be 1.
        value: floats of the same type, with the B and H of key.
        score_mod: function of (score, b, h, i, j), the scaled score of query step i and key step j in batch entry b and
            head h of the query, to the score that is used, a number. The score is at least float32.
        mask_mod: function of (b, h, i, j) to whether the key takes part, a bool.
        scale: factor of the scores, 1/sqrt(E) if None.
        enable_gqa: whether a group of the query's heads shares a head of key and value.

    Raises:
        ShapeError, DtypeError: of query, key and value, or of what score_mod or mask_mod returns.
        ArgumentError: score_mod or mask_mod reads an array that is not traced by the indices.
        BoundsError: score_mod or mask_mod reads a tensor that has fewer elements than there are steps.
        KindError: score_mod does not take five arguments, or mask_mod four.
    """
    name = "flex_attention"
    changed = change_by(_modified(name, score_mod, mask_mod)) if score_mod or mask_mod else None
    try:
        return flex(name, query, key, value, changed, scale, enable_gqa)
    except BoundsError as e:
        steps = f"{tensor(query, name, 'query').shape[2]} query steps and {tensor(key, name, 'key').shape[2]} key steps"
        raise BoundsError(
            f"{name}: with {steps}, 'score_mod' or 'mask_mod' reads a tensor beyond its end: {e.message}"
        ) from None


def flex(
    name: str, query: Any, key: Any, value: Any, change: Change | None, scale: float | None, enable_gqa: bool
) -> Value:
    """Return `flex_attention` for a change of the scores; `name`: the function's name in messages."""
    q, k, v = (tensor(x, name, n, rank=4, kind="float") for x, n in ((query, "query"), (key, "key"), (value, "value")))
    if q.dtype is not k.dtype or k.dtype is not v.dtype:
        raise DtypeError(
            f"{name}: 'query', 'key' and 'value' have the types {q.dtype.name}, {k.dtype.name} and {v.dtype.name}; "
            "convert them to one"
        )
    if q.shape[3] != k.shape[3] or k.shape[:3] != v.shape[:3] or k.shape[0] not in (1, q.shape[0]):
        raise ShapeError(
            f"{name}: 'query' {q.shape}, 'key' {k.shape} and 'value' {v.shape} need [B, Hq, L, E], [B, H, S, E] and "
            "[B, H, S, F], or 1 for the B of 'key' and 'value'"
        )
    heads, shared = q.shape[1], k.shape[1]
    if not k.shape[2] or not shared or not q.shape[3]:
        raise ShapeError(f"{name}: 'key' {k.shape} has no steps to attend to, no heads or no width")
    if heads != shared and not enable_gqa:
        raise ShapeError(
            f"{name}: 'query' has {heads} heads, 'key' and 'value' have {shared}; enable_gqa=True lets a group of "
            "heads share one"
        )
    if heads % shared:
        raise ShapeError(f"{name}: the {heads} heads of 'query' are no multiple of the {shared} of 'key' and 'value'")
    wide = q.dtype.arithmetic
    factor = 1 / sqrt(q.shape[3]) if scale is None else scale
    out, _ = attend(q.astype(wide), k.astype(wide), v.astype(wide), change, factor, lambda w: w)
    return out.astype(q.dtype)


def _modified(name: str, score_mod: Callable[..., Any] | None, mask_mod: Callable[..., Any] | None) -> Any:
    """Return the change of a score that both functions make, as a function of (score, b, h, i, j)."""

    def result(argument: str, function: Callable[..., Any], *args: Any) -> Any:
        bound(function, args, {}, lambda: f"{name}: {argument!r}")
        try:
            x = function(*args)
        except IndexError as e:
            raise ArgumentError(
                f"{name}: {argument!r} reads an array that is not traced by the indices ({e}); pass the array to the "
                "function that es.jit or es.grad traces"
            ) from e
        if isinstance(x, Value) and x.ndim:
            raise ShapeError(f"{name}: {argument!r} returns shape {x.shape}, not one scalar; index it, as in x[h, i]")
        if not isinstance(x, (builder.Ex, Value, *builder.Number)):
            raise DtypeError(f"{name}: {argument!r} returns {type(x).__name__}, not a scalar of the formula")
        is_bool = formula.is_bool(builder.as_form(x).ty)
        if is_bool != (argument == "mask_mod"):
            raise DtypeError(
                f"{name}: {argument!r} returns {formula.type_name(builder.as_form(x).ty)}; it needs "
                + ("a bool, such as j <= i" if argument == "mask_mod" else "a number, the score")
            )
        return x

    def change(score: Any, *i: Any) -> Any:
        to = score.form.ty
        new = score if score_mod is None else builder.cast(_scalar(result("score_mod", score_mod, score, *i)), to)
        return new if mask_mod is None else builder.where(result("mask_mod", mask_mod, *i), new, -inf)

    return change


def _scalar(x: Any) -> builder.Ex:
    return x if isinstance(x, builder.Ex) else builder.Ex(builder.as_form(x))
