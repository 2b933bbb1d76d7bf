"""Selection of elements by integer tensors. Negative indices count from the end; an index out of range is an IndexError
at the call."""

from __future__ import annotations

from math import prod
from typing import Any

from einsmith import ops as F
from einsmith.base import dtypes as dt
from einsmith.base.errors import ArgumentError, ShapeError
from einsmith.base.symbolic import to_whole
from einsmith.frontends.aten import TABLE
from einsmith.frontends.onnx.binding import Axis, Number, resolve_axis
from einsmith.frontends.onnx.evaluate import MOST_DIMENSIONS, MOST_EXTENT, NodeCall
from einsmith.frontends.onnx.operators.casts import to_element
from einsmith.frontends.onnx.table import enter, onnx
from einsmith.ops.common import read
from einsmith.tracing import builder
from einsmith.tracing.builder import Value


def wrap_index(k: Value, extent: int) -> Value:
    """Return integers, negative from the end, counted from the front."""
    k = k.astype(dt.i64)
    return builder.where(k < 0, k + extent, k)


def check_lengths(n: NodeCall, lengths: Value, steps: int, what: str) -> Value:
    """Return lengths of sequences, which are from 0 to `steps`: an ArgumentError if one that is known is not, and else
    an IndexError at the call."""
    known = n.known(lengths)
    if known is None:
        return F.index_select(F.arange(steps + 1), 0, lengths.astype(dt.i64)).astype(lengths.dtype)
    if not ((known >= 0) & (known <= steps)).all():
        raise ArgumentError(f"{what} has {known[(known < 0) | (known > steps)][0]}; sequences have {steps} steps")
    return lengths


@onnx("Gather")
def gather(n: NodeCall, x: Value, index: Value, *, axis: Axis = 0) -> Value:
    """x[.., index[i], ..] along an axis"""
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    known = n.known(index) if prod(index.shape) == 1 else None
    if known is not None:
        place = to_whole(known.reshape(-1)[0])
        if not -x.shape[axis] <= place < x.shape[axis]:
            raise ShapeError(f"Gather: {place} is out of range along axis {axis} of shape {x.shape}")
        if x.dtype.is_int and x.ndim == 1 and x.shape[0] <= MOST_DIMENSIONS and (values := n.known(x)) is not None:
            return builder.full(index.shape, values[place], x.dtype)  # an extent, say
        return x[(*(slice(None),) * axis, place % x.shape[axis])].reshape((*before, *index.shape, *after))
    k = wrap_index(index, x.shape[axis])

    def body(*i: Any) -> Any:
        place = i[axis : axis + k.ndim]
        return x[(*i[:axis], k[place] if place else k, *i[axis + k.ndim :])]

    return _compute((*before, *k.shape, *after), body)


def _compute(shape: tuple[int, ...], body: Any) -> Value:
    """Compute a tensor that may have no dimensions."""
    return builder.compute(shape, body) if shape else builder.compute((1,), lambda _: body()).reshape(())


@onnx("GatherElements")
def gather_elements(x: Value, index: Value, *, axis: Axis = 0) -> Value:
    """x[.., index[i], ..] for each i of the index"""
    return F.gather(x, axis, wrap_index(index, x.shape[axis]))


@onnx("GatherND")
def gather_nd(x: Value, index: Value, *, batch_dims: int = 0) -> Value:
    """x[b, index[b, i, :], ..]; the last dimension of index holds coordinates, b are batch_dims shared dimensions"""
    b, depth = batch_dims, index.shape[-1] if index.ndim else 0
    lead = index.shape[:-1]
    if not 1 <= depth <= x.ndim - b or not b < index.ndim or x.shape[:b] != index.shape[:b]:
        raise ShapeError(
            f"GatherND: indices of shape {index.shape} with batch_dims={b} do not fit a tensor of shape {x.shape}"
        )
    columns = [wrap_index(index[..., m], x.shape[b + m]) for m in range(depth)]

    def body(*i: Any) -> Any:
        at = i[: len(lead)]
        return x[(*at[:b], *(read(k, at) for k in columns), *i[len(lead) :])]

    return _compute((*lead, *x.shape[b + depth :]), body)


_HOW = {"none": None, "add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def _scatter(x: Value, d: int, k: Value, updates: Value, reduction: str) -> Value:
    """Return x with the elements at places k along d replaced by the updates, or by their sum, product, max or min."""
    if reduction not in _HOW:
        raise ArgumentError(f"reduction {reduction!r} is none of {', '.join(_HOW)}")
    if reduction == "none":
        return TABLE["scatter.src"].run(x, d, k, updates)
    return TABLE["scatter_reduce.two"].run(x, d, k, updates, _HOW[reduction])


@onnx("ScatterElements")
def scatter_elements(x: Value, index: Value, updates: Value, *, axis: Axis = 0, reduction: str = "none") -> Value:
    """x with the element at [.., index[i], ..] replaced by updates[i], or by their sum, product, max or min"""
    return _scatter(x, axis, wrap_index(index, x.shape[axis]), updates.astype(x.dtype), reduction)


enter("Scatter", "x with updates[i] at [.., index[i], ..]", scatter_elements)


@onnx("ScatterND")
def scatter_nd(x: Value, index: Value, updates: Value, *, reduction: str = "none") -> Value:
    """x with the element at index[i, :] replaced by updates[i], or by their sum, product, max or min"""
    depth = index.shape[-1] if index.ndim else 0
    count, rest = prod(index.shape[:-1]), x.shape[depth:]
    if not 1 <= depth <= x.ndim or updates.shape != (*index.shape[:-1], *rest):
        raise ShapeError(
            f"ScatterND: indices of shape {index.shape} and updates of shape {updates.shape} do not fit a tensor of "
            f"shape {x.shape}"
        )
    k = index.reshape((count, depth))
    if not count:
        return x
    flat: Any = 0
    for m, extent in enumerate(x.shape[:depth]):
        inside = F.index_select(F.arange(extent), 0, wrap_index(k[:, m], extent))  # an IndexError for others
        flat = flat * extent + inside.astype(dt.i64)
    table = x.reshape((prod(x.shape[:depth]), prod(rest)))
    rows = updates.astype(x.dtype).reshape((count, prod(rest)))
    places = builder.broadcast_to(flat.reshape((count, 1)), rows.shape)
    return _scatter(table, 0, places, rows, reduction).reshape(x.shape)


@onnx("TensorScatter")
def tensor_scatter(
    past: Value, update: Value, starts: Value | None = None, *, axis: Axis = -2, mode: str = "linear"
) -> Value:
    """past[b, .., s, ..], replaced by update[b, .., s - starts[b], ..] where that exists; optionally circular"""
    extent, length = past.shape[axis], update.shape[axis]

    def body(*i: Any) -> Any:
        offset = i[axis] - (0 if starts is None else starts[i[0]])
        if mode == "circular":
            offset = offset % extent
        inside = (offset >= 0) & (offset < length)
        place = builder.minimum(builder.maximum(offset, 0), length - 1)
        return builder.where(inside, update[(*i[:axis], place, *i[axis + 1 :])], past[i])

    return builder.compute(past.shape, body)


@onnx("OneHot")
def one_hot(n: NodeCall, index: Value, depth: Number, values: Value, *, axis: int = -1) -> Value:
    """where(index[i] == k, on, off), with k along a new axis"""
    count = int(depth)
    if not 1 <= count <= MOST_EXTENT:
        raise ArgumentError(f"the depth of OneHot is {count}; it must be from 1 to {MOST_EXTENT}")
    d = resolve_axis(axis, index.ndim + 1)
    k = index.astype(dt.i64)

    def body(*i: Any) -> Any:
        e = read(k, (*i[:d], *i[d + 1 :]))
        return builder.where(builder.where(e < 0, e + count, e) == i[d], values[1], values[0])

    return to_element(builder.compute((*index.shape[:d], count, *index.shape[d:]), body), n.result())
