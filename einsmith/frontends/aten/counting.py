"""Counting operators: search in sorted rows, histograms, modes, reductions of segments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from einsmith import ops as F
from einsmith.api.transforms import vjp
from einsmith.base import dtypes as dt
from einsmith.base.errors import ArgumentError
from einsmith.frontends.aten.promotion import promote, tensor
from einsmith.frontends.aten.table import aten
from einsmith.ops.common import at, dimension
from einsmith.ops.counting import count_before
from einsmith.tracing import builder
from einsmith.tracing.builder import Value

# ------------------------------------------------------------------------------------------------------- sorted rows


def _search(rows: Value, x: Any, right: bool, narrow: bool) -> Value:
    (keys, values), _ = promote(rows, tensor(x))
    whole = values.reshape((1,)) if not values.ndim else values
    places = count_before(keys, whole, right).reshape(values.shape)
    return places.astype(dt.i32 if narrow else dt.i64)


@aten("searchsorted.Tensor searchsorted.Scalar")
def searchsorted(
    rows: Value,
    x: Any,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Value | None = None,
) -> Value:
    """number of elements of a sorted row that are < x, or <= x if right"""
    ordered = rows if sorter is None else F.gather(rows, rows.ndim - 1, sorter)
    return _search(ordered, x, right or side == "right", out_int32)


@aten("bucketize.Tensor bucketize.Scalar")
def bucketize(x: Any, boundaries: Value, out_int32: bool = False, right: bool = False) -> Value:
    """number of boundaries that are < x, or <= x if right"""
    return _search(boundaries, x, right, out_int32)


# -------------------------------------------------------------------------------------------------------- histograms


def _range(x: Value, low: float, high: float) -> tuple[Value, Value]:
    """Return the bounds of the counted range: `low` and `high`, or the least and greatest x if these are equal."""
    if low == high and x.size:
        first, last = F.amin(x), F.amax(x)
    else:
        first, last = tensor(float(low), x.dtype), tensor(float(high), x.dtype)
    return first, last


def _count(place: Value, inside: Value, weight: Value | None, bins: int, dtype: Any) -> Value:
    """Return the sum of weights (1 without `weight`) of the elements `inside` at each place 0, 1, .. bins - 1."""
    if not place.size:
        return builder.full((bins,), 0, dtype)
    own = builder.full(place.shape, 1, dt.i64) if weight is None else weight
    index = builder.minimum(builder.maximum(place, 0), bins - 1)
    zeros = builder.full((bins,), 0, own.dtype)
    return F.index_add(zeros, 0, index, builder.where(inside, own, 0)).astype(dtype)


@aten("histc.default")
def histc(x: Value, bins: int = 100, min: float = 0, max: float = 0) -> Value:
    """number of elements in each of `bins` equal bins of [min, max], or of the elements' range"""
    flat = builder.stop_gradient(x).reshape((-1,))
    low, high = _range(flat, min, max)
    same = low == high
    low, high = builder.where(same, low - 1, low).astype(x.dtype), builder.where(same, high + 1, high).astype(x.dtype)
    inside = (flat >= low) & (flat <= high)
    share = builder.where(inside, (flat - low) * float(bins) / (high - low), 0.0)
    place = builder.minimum(builder.floor(share).astype(dt.i64), bins - 1)
    return _count(place, inside, None, bins, x.dtype)


def _edges(x: Value, bins: int, bounds: Sequence[float]) -> Value:
    """Return the bins + 1 edges of `bins` equal parts of the range `bounds`, (low, high), or of the range of x [n]."""
    low, high = _range(x, *(bounds or ((0.0, 0.0) if x.size else (0.0, 1.0))))
    if not bounds:
        same = low == high
        low, high = builder.where(same, low - 0.5, low), builder.where(same, high + 0.5, high)
    step = (high - low) / float(bins)
    half = (bins + 1) // 2
    return builder.compute(
        (bins + 1,), lambda i: builder.where(i < half, low + step * i, high - step * (bins - i))
    ).astype(x.dtype)


@aten("histogram.bins_tensor")
def histogram(x: Value, edges: Value, weight: Value | None = None, density: bool = False) -> tuple[Value, Value]:
    """(number or weight of the elements in each bin, edges)"""
    x = builder.stop_gradient(x).reshape((-1,))
    bins = edges.shape[0] - 1
    place = builder.where(x == edges[bins], bins - 1, count_before(edges, x, True) - 1)
    inside = (x >= edges[0]) & (x <= edges[bins])
    counts = _count(place, inside, None if weight is None else weight.reshape((-1,)), bins, x.dtype)
    if density:
        counts = counts / F.sum(counts) / (edges[1:] - edges[:-1])
    return counts, edges


@aten("histogram.bin_ct")
def histogram_of_equal_parts(
    x: Value,
    bins: int = 100,
    range: Sequence[float] | None = None,
    weight: Value | None = None,
    density: bool = False,
) -> tuple[Value, Value]:
    """histogram.bins_tensor with `bins` equal bins"""
    return histogram(x, _edges(x.reshape((-1,)), bins, range or ()), weight, density)


# ----------------------------------------------------------------------------------------------------- one of a row


def _one(x: Value, place: Value, dim: int, keepdim: bool) -> Value:
    """Return the element of each row along `dim` at `place` [.., 1, ..]."""
    element = F.gather(x, dim, place)
    return element if keepdim else element.reshape(tuple(n for d, n in enumerate(element.shape) if d != dim))


@aten("nanmedian.dim")
def nanmedian(x: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
    """(the lower median along dim without NaN, its index)"""
    if not x.ndim:
        return x, builder.full((), 0, dt.i64)
    d = dimension(dim, x.ndim, "nanmedian")
    values, places = F.sort(x, d)
    numbers = F.sum(builder.where(x == x, 1, 0), d, True)
    middle = builder.maximum((numbers - 1) // 2, 0).astype(dt.i64)
    return _one(values, middle, d, keepdim), _one(places, middle, d, keepdim).astype(dt.i64)


@aten("nanmedian.default")
def nanmedian_all(x: Value) -> Value:
    """the lower median of all elements without NaN"""
    return nanmedian(x.reshape((-1,)), 0)[0]


@aten("mode.default")
def mode(x: Value, dim: int = -1, keepdim: bool = False) -> tuple[Value, Value]:
    """(the most frequent element along dim, the smallest if there are several, its last index); all NaN are equal"""
    if not x.ndim:
        return x, builder.full((), 0, dt.i64)
    d = dimension(dim, x.ndim, "mode")
    values, places = F.sort(x, d)
    rows = F.movedim(values.astype(dt.i32) if x.dtype.is_bool else values, d, -1)
    numbers = F.sum(builder.where(rows == rows, 1, 0), -1, True).astype(dt.i64)
    after = builder.minimum(count_before(rows, rows, True), numbers)  # the largest number comes before NaN
    counts = builder.where(rows == rows, after - count_before(rows, rows, False), rows.shape[-1] - numbers)
    counts = F.movedim(counts, -1, d)
    first = F.argmax(counts, d, True).astype(dt.i64)
    last = first + builder.maximum(F.gather(counts, d, first) - 1, 0).astype(dt.i64)
    return _one(values, first, d, keepdim), _one(places, last, d, keepdim).astype(dt.i64)


# ----------------------------------------------------------------------------------------------------------- segments


def _segments(reduce: str, x: Value, starts: Value, ends: Value, axis: int, initial: float | None) -> Value:
    """Reduce x [.., n, ..] along `axis` over starts[.., s] <= j < ends[.., s], for each segment s."""
    rest = x.shape[axis + 1 :]
    (j,) = builder.axes(x.shape[axis])
    none = {"sum": 0.0, "mean": 0.0, "prod": 1.0, "max": -float("inf"), "min": float("inf")}[reduce]
    start = none if initial is None else float(initial)
    fold: Callable = getattr(builder, "sum" if reduce == "mean" else reduce)
    join: Callable = {"max": F.maximum, "min": F.minimum, "prod": F.mul}.get(reduce, F.add)
    lead = axis + 1

    def inside(i: tuple) -> Any:
        return (starts[i[:lead]] <= j) & (j < ends[i[:lead]])

    shape = (*starts.shape, *rest)
    value = builder.compute(shape, lambda *i: fold(builder.where(inside(i), x[at(i, axis, j)], none), over=j))
    value = join(value, start) if initial is not None else value
    if reduce == "mean":
        count = (ends - starts).reshape((*starts.shape, *(1,) * len(rest)))
        return builder.where(count == 0, float("nan") if initial is None else start, value / count.astype(x.dtype))
    if reduce not in ("max", "min"):
        return value

    def shared(what: Callable[[Any], Any]) -> Value:
        def body(*i: Any) -> Any:
            own = x[at(i, axis, j)]
            return builder.sum(builder.where(inside(i) & ((own == value[i]) | (own != own)), what(own), 0.0), over=j)

        return builder.compute(shape, body)

    # Equal elements share the derivative.
    total = shared(lambda e: e) / builder.maximum(shared(lambda e: 1.0), 1.0)
    return builder.differentiate_as(value, total)


def _reduce_segments(
    x: Value, reduce: str, lengths: Value | None, offsets: Value | None, axis: int, initial: float | None
) -> Value:
    if lengths is None and offsets is None:
        raise ArgumentError("segment_reduce needs lengths or offsets")
    if not x.size:
        raise ArgumentError("segments of an empty tensor are not supported")
    d = dimension(axis, x.ndim, "axis")
    if lengths is None:
        assert offsets is not None
        n = offsets.shape[d] - 1
        starts, ends = (offsets[(*(slice(None),) * d, slice(k, k + n))] for k in (0, 1))
    else:
        ends = F.cumsum(lengths, d)
        starts = ends - lengths
    return _segments(reduce, x, starts, ends, d, initial).astype(x.dtype)


@aten("segment_reduce.default")
def segment_reduce(
    x: Value,
    reduce: str,
    lengths: Value | None = None,
    indices: Value | None = None,
    offsets: Value | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: float | None = None,
) -> Value:
    """sum, mean, product, max or min of each segment along axis"""
    return _reduce_segments(x, reduce, lengths, offsets, axis, initial)


@aten("_segment_reduce_backward.default")
def segment_reduce_backward(
    grad: Value,
    output: Value,
    x: Value,
    reduce: str,
    lengths: Value | None = None,
    offsets: Value | None = None,
    axis: int = 0,
    initial: float | None = None,
) -> Value:
    """the pullback of segment_reduce"""
    return vjp(lambda v: _reduce_segments(v, reduce, lengths, offsets, axis, initial), x)[1](grad)[0]


@aten("nonzero_static.default")
def nonzero_static(x: Value, size: int, fill_value: int = -1) -> Value:
    """indices of the first nonzero elements, as rows, followed by rows of fill_value"""
    chosen = (x if x.dtype.is_bool else x != 0).reshape((-1,))
    if not size or not x.ndim or not x.size:
        return builder.full((size, x.ndim), fill_value, dt.i64)
    before = F.cumsum(chosen.astype(dt.i64), 0)
    (p,) = builder.axes(x.size)
    place = builder.compute(
        (size,), lambda s: builder.sum(builder.where(chosen[p] & (before[p] == s + 1), p, 0), over=p)
    )
    known = F.arange(size) < before[x.size - 1]
    columns, step = [], int(x.size)
    for n in x.shape:
        step //= n
        columns.append(builder.where(known, place // step % n, fill_value).astype(dt.i64))
    return F.stack(columns, 1)
