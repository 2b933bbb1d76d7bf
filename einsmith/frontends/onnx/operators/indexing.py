"""Selection of elements by integer tensors. Negative indices count from the end; an index out of range is an IndexError
at the call."""

from __future__ import annotations

from math import prod
from typing import Any

from einsmith import ops as F
from einsmith.base import dtypes as dt
from einsmith.base.errors import ArgumentError, ShapeError
from einsmith.frontends.aten import TABLE
from einsmith.frontends.onnx.evaluate import MOST_EXTENT, NodeCall
from einsmith.frontends.onnx.operators.axes import axis
from einsmith.frontends.onnx.operators.casts import to_element
from einsmith.frontends.onnx.table import enter, onnx
from einsmith.lang import builder
from einsmith.lang.builder import Value
from einsmith.ops.common import read


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
def gather(n: NodeCall, x: Value, index: Value) -> Value:
    """x[.., index[i], ..] along an axis"""
    d = axis(n.attr("axis", 0), x.ndim)
    known = n.known(index)
    if known is not None and known.size == 1:
        place = int(known.reshape(-1)[0])
        if not -x.shape[d] <= place < x.shape[d]:
            raise ShapeError(f"Gather: {place} is out of range along axis {d} of shape {x.shape}")
        found = x[(*(slice(None),) * d, place % x.shape[d])]
        return found.reshape((*x.shape[:d], *index.shape, *x.shape[d + 1 :]))
    k = wrap_index(index, x.shape[d])
    out = (*x.shape[:d], *k.shape, *x.shape[d + 1 :])

    def body(*i: Any) -> Any:
        place = i[d : d + k.ndim]
        return x[(*i[:d], k[place] if place else k, *i[d + k.ndim :])]

    return builder.compute(out, body) if out else builder.compute((1,), lambda _: x[(k,)]).reshape(())


@onnx("GatherElements")
def gather_elements(n: NodeCall, x: Value, index: Value) -> Value:
    """x[.., index[i], ..] for each i of the index"""
    d = axis(n.attr("axis", 0), x.ndim)
    return F.gather(x, d, wrap_index(index, x.shape[d]))


@onnx("GatherND")
def gather_nd(n: NodeCall, x: Value, index: Value) -> Value:
    """x[b, index[b, i, :], ..]; the last dimension of index holds coordinates, b are batch_dims shared dimensions"""
    b, depth = n.attr("batch_dims", 0), index.shape[-1] if index.ndim else 0
    lead = index.shape[:-1]
    if not 1 <= depth <= x.ndim - b or not b < index.ndim or x.shape[:b] != index.shape[:b]:
        raise ShapeError(
            f"GatherND: indices of shape {index.shape} with batch_dims={b} do not fit a tensor of shape {x.shape}"
        )
    out = (*lead, *x.shape[b + depth :])
    k = index.astype(dt.i64)

    def body(*i: Any) -> Any:
        at = i[: len(lead)]
        places = []
        for m in range(depth):
            p = read(k, (*at, m)) if at else read(k, (m,))
            places.append(builder.where(p < 0, p + x.shape[b + m], p))
        return x[(*at[:b], *places, *i[len(lead) :])]

    if not out:
        return builder.compute((1,), lambda _: body()).reshape(())
    return builder.compute(out, body)


_HOW = {"none": None, "add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


@onnx("ScatterElements")
def scatter_elements(n: NodeCall, x: Value, index: Value, updates: Value) -> Value:
    """x with the element at [.., index[i], ..] replaced by updates[i], or by their sum, product, max or min"""
    d = axis(n.attr("axis", 0), x.ndim)
    how = _reduction(n)
    k = wrap_index(index, x.shape[d])
    if how is None:
        return TABLE["scatter.src"].run(x, d, k, updates.astype(x.dtype)).astype(x.dtype)
    return TABLE["scatter_reduce.two"].run(x, d, k, updates.astype(x.dtype), how).astype(x.dtype)


enter("Scatter", "x with updates[i] at [.., index[i], ..]", scatter_elements)


def _reduction(n: NodeCall) -> str | None:
    name = n.attr("reduction", "none")
    if name not in _HOW:
        raise ArgumentError(f"reduction {name!r} is none of {', '.join(_HOW)}")
    return _HOW[name]


@onnx("ScatterND")
def scatter_nd(n: NodeCall, x: Value, index: Value, updates: Value) -> Value:
    """x with the element at index[i, :] replaced by updates[i], or by their sum, product, max or min"""
    depth, how = index.shape[-1] if index.ndim else 0, _reduction(n)
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
    for m in range(depth):
        flat = flat * x.shape[m] + F.index_select(F.arange(x.shape[m]), 0, wrap_index(k[:, m], x.shape[m])).astype(
            dt.i64
        )
    table = x.reshape((prod(x.shape[:depth]), prod(rest)))
    rows = updates.astype(x.dtype).reshape((count, prod(rest)))
    places = builder.broadcast_to(flat.reshape((count, 1)), rows.shape)
    if how is None:
        done = TABLE["scatter.src"].run(table, 0, places, rows)
    else:
        done = TABLE["scatter_reduce.two"].run(table, 0, places, rows, how)
    return done.astype(x.dtype).reshape(x.shape)


@onnx("TensorScatter")
def tensor_scatter(n: NodeCall, past: Value, update: Value, starts: Value | None = None) -> Value:
    """past[b, .., s, ..], replaced by update[b, .., s - starts[b], ..] where that exists; optionally circular"""
    d = axis(n.attr("axis", -2), past.ndim)
    extent, length = past.shape[d], update.shape[d]
    circular = n.attr("mode", "linear") == "circular"

    def body(*i: Any) -> Any:
        offset = i[d] - (0 if starts is None else starts[i[0]])
        if circular:
            offset = offset % extent
        inside = (offset >= 0) & (offset < length)
        place = builder.minimum(builder.maximum(offset, 0), length - 1)
        return builder.where(inside, update[(*i[:d], place, *i[d + 1 :])], past[i])

    return builder.compute(past.shape, body).astype(past.dtype)


@onnx("OneHot", static=(1,))
def one_hot(n: NodeCall, index: Value, depth: Value, values: Value) -> Value:
    """where(index[i] == k, on, off), with k along a new axis"""
    count = int(n.number(depth, "the depth of OneHot"))
    if not 1 <= count <= MOST_EXTENT:
        raise ArgumentError(f"the depth of OneHot is {count}; it must be from 1 to {MOST_EXTENT}")
    d = axis(n.attr("axis", -1), index.ndim + 1)
    out = (*index.shape[:d], count, *index.shape[d:])
    k = index.astype(dt.i64)

    def body(*i: Any) -> Any:
        e = read(k, (*i[:d], *i[d + 1 :]))
        return builder.where(builder.where(e < 0, e + count, e) == i[d], values[1], values[0])

    return to_element(builder.compute(out, body), n.result())
