"""Look up rows of a table by integers, and sum them."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

from einsmith.base.errors import ArgumentError, ShapeError
from einsmith.lang.op import op
from einsmith.ops.common import tensor
from einsmith.ops.operator import operator
from einsmith.tracing import builder
from einsmith.tracing.builder import Value

MODES = ("sum", "mean", "max")
_COUNTS = op("c[n] = 0.0\nc[ids[i]] += 1.0\nreturn c", extents={"n": "rows"})


def _unbuilt(name: str, max_norm: float | None) -> None:
    if max_norm is not None:
        raise ArgumentError(
            f"{name}: max_norm={max_norm!r} is not supported, as it changes rows while they are read; scale the weight "
            "instead"
        )


def _padding(name: str, padding_idx: int | None, rows: int) -> int | None:
    if padding_idx is not None and (not isinstance(padding_idx, int) or not -rows <= padding_idx < rows):
        raise ArgumentError(f"{name}: padding_idx={padding_idx!r} must be one of the {rows} rows")
    return None if padding_idx is None else padding_idx % rows


def _rows(i: Value, w: Value, padding: int | None, by_frequency: bool) -> Callable[..., Any]:
    """Return element (*place, k) of the rows that the integers choose."""
    counts = _COUNTS(ids=i.reshape((-1,)), rows=w.shape[0]).astype(w.dtype) if by_frequency and i.size else None

    def row(*at: Any) -> Any:
        n = i[at[:-1]] if i.ndim else i
        element = w[(n, at[-1])]
        if counts is not None:  # the gradient of a row that is read c times is divided by c
            element = builder.differentiate_as(element, element / counts[n])
        return element if padding is None else builder.where(n == padding, builder.stop_gradient(element), element)

    return row


@operator()
def embedding(
    input: Any,
    weight: Any,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Value:
    """Look up row input[i] of weight [V, K] for each place i: integers [...] -> [..., K].

    padding_idx: a row (negative ones count from the end) that is read as any other, but gets no gradient. An integer
    outside [0, V) is an IndexError at the call. scale_grad_by_freq: a row's gradient is divided by how often it is
    read. `sparse` is accepted: gradients are what they are. max_norm is an error.
    """
    i, w = tensor(input, "embedding", "input", kind="int"), tensor(weight, "embedding", "weight", rank=2, kind="float")
    _unbuilt("embedding", max_norm)
    padding = _padding("embedding", padding_idx, w.shape[0])
    return builder.compute((*i.shape, w.shape[1]), _rows(i, w, padding, scale_grad_by_freq))


@operator()
def embedding_bag(
    input: Any,
    weight: Any,
    offsets: Any = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Any = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Value:
    """Return rows of weight [V, K] summed, averaged, or their largest elements, bag by bag: [B, K]; 0 for an empty bag.

    input: integers [B, N], a bag a row; or [N] with offsets [B] of the bags' first places, in increasing order from 0
    (include_last_offset: [B + 1], the end of the last one too). per_sample_weights, of input's shape, scale the rows of
    a sum. padding_idx: a row that counts for nothing. Integers out of range are an IndexError at the call.
    """
    name = "embedding_bag"
    i = tensor(input, name, "input", rank=(1, 2), kind="int")
    w = tensor(weight, name, "weight", rank=2, kind="float")
    _unbuilt(name, max_norm)
    if mode not in MODES:
        raise ArgumentError(f"{name}: mode={mode!r} must be one of {', '.join(MODES)}")
    if scale_grad_by_freq and mode == "max":
        raise ArgumentError(f"{name}: scale_grad_by_freq does not go with mode='max'")
    s = None if per_sample_weights is None else tensor(per_sample_weights, name, "per_sample_weights", kind="float")
    if s is not None and (mode != "sum" or s.shape != i.shape):
        raise ArgumentError(
            f"{name}: 'per_sample_weights' needs mode='sum' and the shape of 'input', {i.shape}; has {s.shape}"
        )
    if (offsets is None) != (i.ndim == 2):
        raise ArgumentError(
            f"{name}: an 'input' of one dimension needs 'offsets', and one of two dimensions, bags [B, N], none"
        )
    padding = _padding(name, padding_idx, w.shape[0])
    row = _rows(i, w, None, scale_grad_by_freq)

    def scaled(*at: Any) -> Any:
        return row(*at) if s is None else row(*at) * s[at[:-1]]

    def kept(at: tuple) -> Any:
        return True if padding is None else i[at] != padding

    bags = _rows_of_bags if i.ndim == 2 else _bags_by_offset
    return bags(name, i, w, offsets, include_last_offset, mode, scaled, kept)


def _mean(total: Value, count: Value) -> Value:
    return builder.compute(total.shape, lambda b, k: builder.where(count[b] == 0, 0.0, total[b, k] / count[b]))


def _rows_of_bags(
    name: str, i: Value, w: Value, offsets: Any, last: bool, mode: str, row: Callable, kept: Callable
) -> Value:
    (batch, length), width = i.shape, w.shape[1]
    if not length:
        return builder.full((batch, width), 0.0, w.dtype)
    (n,) = builder.axes(length)
    count = builder.compute((batch,), lambda b: builder.sum(builder.where(kept((b, n)), 1.0, 0.0), over=n)).astype(
        w.dtype
    )
    if mode == "max":
        top = builder.compute(
            (batch, width), lambda b, k: builder.max(builder.where(kept((b, n)), row(b, n, k), -inf), over=n)
        )
        return builder.compute(top.shape, lambda b, k: builder.where(count[b] == 0, 0.0, top[b, k]))
    total = builder.compute(
        (batch, width), lambda b, k: builder.sum(builder.where(kept((b, n)), row(b, n, k), 0.0), over=n)
    )
    return total if mode == "sum" else _mean(total, count)


def _bags_by_offset(
    name: str, i: Value, w: Value, offsets: Any, last: bool, mode: str, row: Callable, kept: Callable
) -> Value:
    start = tensor(offsets, name, "offsets", rank=1, kind="int")
    bags, width, length = start.shape[0] - (1 if last else 0), w.shape[1], i.shape[0]
    if bags < (0 if last else 1):
        raise ShapeError(f"{name}: 'offsets' has shape {start.shape}; it needs a place for each bag")
    if not length or not bags:
        return builder.full((bags, width), 0.0, w.dtype)
    (n,) = builder.axes(length)
    # Elements before the first bag belong to none: their place is out of range.
    none = builder.full((1,), 0, start.dtype)
    first = builder.compute((bags,), lambda b: start[b] + none[-start[0]])
    ends = start.shape[0] - 1
    stop = builder.compute((bags,), lambda b: builder.where(b < ends, start[b + 1], length))

    def inside(b: Any) -> Any:
        return (first[b] <= n) & (n < stop[b]) & kept((n,))

    count = builder.compute((bags,), lambda b: builder.sum(builder.where(inside(b), 1.0, 0.0), over=n)).astype(w.dtype)
    if mode == "max":
        top = builder.compute(
            (bags, width), lambda b, k: builder.max(builder.where(inside(b), row(n, k), -inf), over=n)
        )
        return builder.compute(top.shape, lambda b, k: builder.where(count[b] == 0, 0.0, top[b, k]))
    total = builder.compute((bags, width), lambda b, k: builder.sum(builder.where(inside(b), row(n, k), 0.0), over=n))
    return total if mode == "sum" else _mean(total, count)
