"""Selection of elements by integer tensors or masks. Negative indices count from the end where PyTorch allows them; an
index out of range is an IndexError at the call."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from einsmith import ops as F
from einsmith.base import dtypes as dt
from einsmith.base.errors import ArgumentError
from einsmith.frontends.aten.promotion import convert
from einsmith.frontends.aten.table import aten
from einsmith.ops.common import at, dimension
from einsmith.ops.indexing import multiply_at, scattering, select_by_tensors, wrap
from einsmith.tracing import builder, views
from einsmith.tracing.builder import Value


@aten("embedding.default")
def embedding(
    weight: Value, indices: Value, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> Value:
    """weight[indices[..], k]; the row padding_idx has no derivative"""
    return F.embedding(indices, weight, padding_idx if padding_idx >= 0 else None, None, 2.0, scale_grad_by_freq)


@aten("_embedding_bag.default _embedding_bag_forward_only.default")
def embedding_bag(
    weight: Value,
    indices: Value,
    offsets: Value,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Value | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Value]:
    """sum, mean or max of the rows of each bag, without the tensors that PyTorch saves"""
    settings: dict[str, Any] = {"scale_grad_by_freq": scale_grad_by_freq, "include_last_offset": include_last_offset}
    settings |= {"mode": ("sum", "mean", "max")[mode], "padding_idx": padding_idx if padding_idx >= 0 else None}
    return (F.embedding_bag(indices, weight, offsets, per_sample_weights=per_sample_weights, **settings),)


@aten("gather.default")
def gather(x: Value, dim: int, index: Value, sparse_grad: bool = False) -> Value:
    """x[.., index[i], ..] for each i of the index"""
    if not index.size:
        return builder.full(index.shape, 0, x.dtype)
    if not index.ndim:
        index = index.reshape((1,) * x.ndim) if x.ndim else index
        return F.gather(x, dim, index).reshape(())
    return F.gather(x, dim, index) if x.ndim else F.gather(x.reshape((1,)), 0, index)


def _scatter(x: Value, dim: int, index: Value, src: Value) -> Value:
    """Scatter like `functional.scatter`, with PyTorch's derivative: every element put at a place gets it."""
    value = F.scatter(x, dim, index, src)
    if not index.size or not x.dtype.is_float:
        return value
    written = F.scatter_add(F.zeros_like(x), dim, index, F.ones_like(src))
    kept = builder.where(written > 0, 0.0, x).astype(x.dtype)
    return builder.differentiate_as(value, F.scatter_add(kept, dim, index, src))


@aten("scatter.src")
def scatter(x: Value, dim: int, index: Value, src: Value) -> Value:
    """x with src[i] at [.., index[i], ..]; of repeated indices the last is stored, all have the derivative"""
    return _scatter(x, dim, index, src)


@aten("scatter.value")
def scatter_value(x: Value, dim: int, index: Value, value: Any) -> Value:
    """x with a number at [.., index[i], ..]"""
    return _scatter(x, dim, index, builder.full(index.shape, convert(value, x.dtype), x.dtype))


@aten("scatter.reduce scatter.value_reduce")
def scatter_multiply(x: Value, dim: int, index: Value, src: Any, reduce: str) -> Value:
    """x with src[i] added to, or multiplied with, the element at [.., index[i], ..]"""
    values = src if isinstance(src, Value) else builder.full(index.shape, convert(src, x.dtype), x.dtype)
    return F.scatter(x, dim, index, values, reduce=reduce)


@aten("scatter_reduce.two")
def scatter_reduce(x: Value, dim: int, index: Value, src: Value, reduce: str, include_self: bool = True) -> Value:
    """sum, product, mean, max or min of x[.., j, ..] and all src[i] with index[i] = j"""
    if not x.ndim:
        x, index, src = (v.reshape((1,)) for v in (x, index, src))
        return scatter_reduce(x, 0, index, src, reduce, include_self).reshape(())
    if not index.size:
        return x
    d = dimension(dim, x.ndim, "dim")
    src = src[tuple(slice(0, n) for n in index.shape)]
    count = F.scatter_add(builder.full(x.shape, 0, dt.i32), d, index, builder.full(index.shape, 1, dt.i32))
    own = include_self
    if reduce in ("sum", "mean"):
        start = x if own else builder.where(count > 0, F.zeros_like(x), x)
        sums = F.scatter_add(start.astype(x.dtype), d, index, src)
        if reduce == "sum":
            return sums
        many = builder.maximum(count + (1 if own else 0), 1)
        whole = many.astype(x.dtype)
        return (sums / whole if x.dtype.is_float else sums // whole).astype(x.dtype)
    if reduce == "prod":
        whole = multiply_at(x.shape, d, index, src)
        return builder.where(count > 0, x * whole if own else whole, x).astype(x.dtype)
    if reduce not in ("amax", "amin"):
        raise ArgumentError(f"scatter_reduce: reduce={reduce!r} is none of sum, prod, mean, amax, amin")
    worst: Any = x.dtype.range[reduce == "amin"] if x.dtype.is_int else float("inf" if reduce == "amin" else "-inf")
    start = x if own else builder.where(count > 0, worst, x).astype(x.dtype)
    return scattering("max=" if reduce == "amax" else "min=", x.ndim, d)(x=start, k=index, s=src).astype(x.dtype)


@aten("index_add.default")
def index_add(x: Value, dim: int, index: Value, source: Value, alpha: Any = 1) -> Value:
    """x[.., index[i], ..] += alpha*source[.., i, ..]"""
    if x.dtype.is_bool:  # the sum of bools is their disjunction
        scaled = source.astype(dt.i32) * int(alpha)
        return index_add(x.astype(dt.i32), dim, index, scaled) != 0
    return F.index_add(x, dim, index, source, alpha=convert(alpha, x.dtype))


@aten("index_copy.default")
def index_copy(x: Value, dim: int, index: Value, source: Value) -> Value:
    """x with source[.., i, ..] at [.., index[i], ..]; of repeated indices the last is stored"""
    if not x.ndim:
        return index_copy(x.reshape((1,)), 0, index.reshape((-1,)), source.reshape((-1,))).reshape(())
    d = dimension(dim, x.ndim, "dim")
    places = index.reshape(at((1,) * x.ndim, d, index.size))
    return _scatter(x, d, F.broadcast_to(places, source.shape), source)


@aten("index_fill.int_Scalar index_fill.int_Tensor")
def index_fill(x: Value, dim: int, index: Value, value: Any) -> Value:
    """x with a number at [.., index[i], ..]"""
    if not x.ndim:
        return index_fill(x.reshape((1,)), 0, index, value).reshape(())
    d = dimension(dim, x.ndim, "dim")
    flat = index.reshape((-1,))
    if not flat.size:
        return x
    hits = F.index_add(builder.full((x.shape[d],), 0, dt.i64), 0, wrap(flat, x.shape[d]), F.ones_like(flat))
    number = value if isinstance(value, Value) else convert(value, x.dtype)
    chosen = (hits > 0).reshape(tuple(n if k == d else 1 for k, n in enumerate(x.shape)))
    return builder.where(chosen, number, x).astype(x.dtype)


# ---------------------------------------------------------------------------------------------------- several at once


def _integers(x: Value, indices: Sequence[Value | None]) -> list[tuple[int, Value]]:
    """Return (dimension, integers) for each given index. Raises ArgumentError for masks: their extent is not static."""
    integers = [(d, i) for d, i in enumerate(indices) if i is not None]
    for _, i in integers:
        if i.dtype.is_bool or i.dtype is dt.u8:
            raise ArgumentError(
                "the shape of a result indexed by a mask depends on values, which are not known when a program is "
                "compiled; use where(mask, ...), or integers"
            )
    return integers


@aten("index.Tensor")
def index(x: Value, indices: Sequence[Value | None]) -> Value:
    """x[index0[i], index1[i], ..]; indices broadcast, and their dimensions come first unless they are adjacent"""
    return select_by_tensors(x, _integers(x, indices))


@aten("index_put.default")
def index_put(x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool = False) -> Value:
    """x with values stored or added at [index0[i], index1[i], ..]; for one mask and a number, where(mask, number, x)"""
    masks = [i for i in indices if i is not None and i.dtype.is_bool]
    if len(masks) == 1 and len(indices) == 1 and values.size == 1:
        mask = masks[0].reshape((*masks[0].shape, *(1,) * (x.ndim - masks[0].ndim)))
        number = values.reshape(()).astype(x.dtype)
        return builder.where(mask, x + number if accumulate else number, x).astype(x.dtype)
    positions = _integers(x, indices)
    if not positions:
        return x + values if accumulate else F.broadcast_to(values, x.shape)
    dims = [d for d, _ in positions]
    others = [d for d in range(x.ndim) if d not in dims]
    shape = views.broadcast([i.shape for _, i in positions])
    neighbours = dims == list(range(dims[0], dims[0] + len(dims)))
    front = sum(d < dims[0] for d in others) if neighbours else 0
    rest = tuple(x.shape[d] for d in others)
    target = F.broadcast_to(values.astype(x.dtype), (*rest[:front], *shape, *rest[front:]))
    order = (*range(front, front + len(shape)), *range(front), *range(front + len(shape), target.ndim))
    rows = F.permute(target, order).reshape((prod(shape), prod(rest))) if target.ndim else target.reshape((1, 1))
    # Move the indexed dimensions to the front and number their places row-major.
    flat: Any = 0
    for d, i in positions:
        place = F.broadcast_to(wrap(i, x.shape[d]), shape).reshape((-1,)).astype(dt.i64)
        flat = flat * x.shape[d] + _check_index(place, x.shape[d])
    table = F.permute(x, (*dims, *others)).reshape((prod(x.shape[d] for d in dims), prod(rest)))
    if accumulate:
        done = F.index_add(table, 0, flat, rows)
    else:
        done = _scatter(table, 0, F.broadcast_to(flat.reshape((-1, 1)), rows.shape), rows)
    back = [(*dims, *others).index(d) for d in range(x.ndim)]
    return F.permute(done.reshape(tuple(x.shape[d] for d in (*dims, *others))), back)


def _check_index(place: Value, n: int) -> Value:
    """Check integers against [0, n) by reading them from a range, so that others are an IndexError."""
    return F.index_select(F.arange(n), 0, place)


@aten("masked_scatter.default")
def masked_scatter(x: Value, mask: Value, source: Value) -> Value:
    """where(mask, source[n], x), where n is the number of true elements before"""
    shape = views.broadcast([mask.shape, x.shape])
    where, x = F.broadcast_to(mask, shape).reshape((-1,)), F.broadcast_to(x, shape)
    count = F.cumsum(where.astype(dt.i64), 0)
    # Where the mask is false nothing is read; place 0 there passes the check of bounds.
    place = builder.where(where, count - 1, 0)
    taken = F.index_select(source.reshape((-1,)), 0, place)
    return builder.where(where, taken, x.reshape((-1,))).reshape(x.shape).astype(x.dtype)


@aten("take.default")
def take(x: Value, index: Value) -> Value:
    """elements of flattened x at the indices"""
    flat = x.reshape((-1,))
    return F.index_select(flat, 0, wrap(index, flat.size).reshape((-1,))).reshape(index.shape)


@aten("index_reduce.default")
def index_reduce(x: Value, dim: int, index: Value, source: Value, reduce: str, include_self: bool = True) -> Value:
    """product, mean, max or min of x[.., index[i], ..] and source[.., i, ..]"""
    if not x.ndim:
        whole = index_reduce(x.reshape((1,)), 0, index.reshape((-1,)), source.reshape((-1,)), reduce, include_self)
        return whole.reshape(())
    d = dimension(dim, x.ndim, "dim")
    places = index.reshape(at((1,) * x.ndim, d, index.size))
    return scatter_reduce(x, d, F.broadcast_to(places, source.shape), source, reduce, include_self)


@aten("masked_scatter_backward.default")
def masked_scatter_backward(grad: Value, mask: Value, sizes: Sequence[int]) -> Value:
    """elements of grad where the mask is true, in order, then 0 for elements that masked_scatter did not read"""
    count = prod(sizes)
    chosen, elements = F.broadcast_to(mask, grad.shape).reshape((-1,)), grad.reshape((-1,))
    if not count or not grad.size:
        return builder.full(tuple(sizes), 0, grad.dtype)
    before = F.cumsum(chosen.astype(dt.i64), 0)
    # Elements beyond the last wanted one, or not chosen, add 0 at the first place.
    wanted = chosen & (before <= count)
    place, added = builder.where(wanted, before - 1, 0), builder.where(wanted, elements, 0).astype(grad.dtype)
    sums = F.index_add(builder.full((count,), 0, grad.dtype), 0, place, added)
    return sums.reshape(tuple(sizes))


@aten("as_strided_scatter.default")
def as_strided_scatter(
    x: Value, src: Value, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Value:
    """contiguous x with the elements of src at storage_offset + sum of stride*i"""
    places = np.full(tuple(size), storage_offset or 0, np.int64)
    for d, (n, step) in enumerate(zip(size, stride, strict=True)):
        places += (np.arange(n) * step).reshape(at((1,) * len(size), d, n))
    if not places.size:
        return x
    done = _scatter(x.reshape((-1,)), 0, builder.as_value(places.reshape(-1)), src.reshape((-1,)).astype(x.dtype))
    return done.reshape(x.shape)
