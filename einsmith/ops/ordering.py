"""Compute running totals along a dimension, and sort, under torch's names and argument orders. Positions are int32.

A running total is a recurrence along its dimension, or a reduction over all elements up to each. Sorting selects the
positions of all ranks (`kernels.selection`); `topk` of few elements makes a pass over the row for each.
"""

from __future__ import annotations

from functools import lru_cache
from math import inf
from typing import Any

from einsmith.base import dtypes as dt
from einsmith.base.errors import ShapeError
from einsmith.lang.op import Operator, op
from einsmith.ops.common import at, dimension, tensor, without
from einsmith.ops.operator import operator
from einsmith.ops.selection import select_positions, take_positions
from einsmith.ops.tensor import cat
from einsmith.tracing import builder
from einsmith.tracing.builder import Value

_TOTALS = {
    "cumsum": "c[@] = sum[k](where(k <= {t}, x[@k], 0))",
    "cumprod": "c[@] = where({t} > 0, c[@-], 1) * x[@]",
    "products": "c[@] = prod[k](where(k <= {t}, x[@k], 1))",
    "logcumsumexp": "c[@] = where({t} > 0, where(((c[@-] == inf) and (x[@] == x[@])) or (x[@] == -inf), c[@-], "
    "logaddexp(c[@-], x[@])), x[@])",
}
"""Formulas of running totals: [@] is all axes, [@-] the previous step along the axis {t}, [@k] has k on that axis."""


@lru_cache(maxsize=128)
def _operator(name: str, rank: int, d: int) -> Operator:
    axes = [f"i{n}" for n in range(rank)]
    text = _TOTALS[name].replace("{t}", axes[d])
    for what, place in (("[@]", axes[d]), ("[@-]", f"{axes[d]}-1"), ("[@k]", "k")):
        text = text.replace(what, "[" + ",".join(at(axes, d, place)) + "]")
    return op(text, extents={axes[d]: f"x.shape[{d}]"})


def _running(name: str, input: Any, dim: int, dtype: Any, wide: bool) -> Value:
    """Return the running totals along `dim`. wide: carry 64 bits; integers give int64."""
    x = tensor(input, name, "input")
    d = dimension(dim, max(1, x.ndim), name)
    result_type = dt.dtype_of(dtype) if dtype is not None else x.dtype if x.dtype.is_float or not wide else dt.i64
    if wide:
        x = x.astype(dt.f64 if result_type.is_float else dt.i64)
    if not x.ndim:
        return _operator(name, 1, 0)(x.reshape((1,))).reshape(()).astype(result_type)
    if not x.size:
        return x.astype(result_type)
    totals = _operator(name, x.ndim, d)(x)
    if name == "cumprod" and x.dtype.is_float:  # a scan has the values, steps have derivatives that are exact at zeros
        totals = builder.differentiate_as(_operator("products", x.ndim, d)(builder.stop_gradient(x)), totals)
    return totals.astype(result_type)


def _extremes(name: str, input: Any, dim: int, is_max: bool) -> tuple[Value, Value]:
    """Return (running maxima or minima along `dim`, positions of their last occurrences), two scans.

    An element is a new extreme where it equals the running one; the last such position so far is a running maximum.
    """
    x = tensor(input, name, "input")
    if not x.ndim:
        values, positions = _extremes(name, x.reshape((1,)), dim, is_max)
        return values.reshape(()), positions.reshape(())
    d = dimension(dim, x.ndim, name)
    if not x.size:
        return x, x.astype(dt.i32)
    compute_type = dt.i32 if x.dtype.is_bool else x.dtype.arithmetic
    e = builder.stop_gradient(x).astype(compute_type)
    low, high = (-inf, inf) if compute_type.is_float else compute_type.range
    (k,) = builder.axes(x.shape[d])

    def value(*i: Any) -> Any:
        if is_max:
            return builder.max(builder.where(k <= i[d], e[at(i, d, k)], low), over=k)
        return builder.min(builder.where(k <= i[d], e[at(i, d, k)], high), over=k)

    running = builder.compute(x.shape, value)

    def position(*i: Any) -> Any:
        here = at(i, d, k)
        is_new = (e[here] == running[here]) | (e[here] != e[here])
        return builder.max(builder.where((k <= i[d]) & is_new, k, dt.i32.range[0]), over=k)

    positions = builder.compute(x.shape, position).astype(dt.i32)
    values = running.astype(x.dtype)
    return builder.differentiate_as(values, take_positions(x, d, positions)) if x.dtype.is_float else values, positions


@operator(aten="cumsum.default", converts=False)
def cumsum(input: Any, dim: int, *, dtype: Any = None) -> Value:
    """Return the running sums along `dim`, carried in float64 or int64; integers give int64."""
    return _running("cumsum", input, dim, dtype, True)


@operator(aten="cumprod.default", converts=False)
def cumprod(input: Any, dim: int, *, dtype: Any = None) -> Value:
    """Return the running products along `dim`, carried in float64 or int64, with exact derivatives at zeros."""
    return _running("cumprod", input, dim, dtype, True)


@operator(aten="cummax.default")
def cummax(input: Any, dim: int) -> tuple[Value, Value]:
    """Return (running maxima along `dim`, positions of their last occurrences); NaN stays once it occurs."""
    return _extremes("cummax", input, dim, True)


@operator(aten="cummin.default")
def cummin(input: Any, dim: int) -> tuple[Value, Value]:
    """Return (running minima along `dim`, positions of their last occurrences); NaN stays once it occurs."""
    return _extremes("cummin", input, dim, False)


@operator(aten="logcumsumexp.default")
def logcumsumexp(input: Any, dim: int) -> Value:
    """Return the logarithms of the running sums of exp(x) along `dim`, without overflow, carried in float64."""
    x = tensor(input, "logcumsumexp", "input", kind="float")
    return _running("logcumsumexp", x, dim, None, True)


# ------------------------------------------------------------------------------------------------------------ sorting


class _Order:
    """An order of the elements of rows: keys without NaN, and codes that break ties. NaN is the largest."""

    def __init__(self, x: Value, d: int, descending: bool):
        self.x, self.d, self.descending = x, d, descending
        self.n = x.shape[d]
        x = builder.stop_gradient(x)
        self.floats = x.dtype.is_float
        self.keys = builder.where(x == x, x, inf) if self.floats else x.astype(dt.i32) if x.dtype.is_bool else x

    def code(self, i: tuple) -> Any:
        place = i[self.d]
        if not self.floats:
            return place
        number = self.x[i] == self.x[i]
        return (
            builder.where(number, place + self.n, place)
            if self.descending
            else builder.where(number, place, place + self.n)
        )

    def before(self, i: tuple, j: tuple) -> Any:
        """Return whether element i comes before element j in the order."""
        a, b = self.keys[i], self.keys[j]
        return ((b < a) if self.descending else (a < b)) | ((a == b) & (self.code(i) < self.code(j)))


def _first(order: _Order, count: int) -> Value:
    """Return the positions of the first `count` elements in order, for small counts: each takes a pass over the row."""
    x, d, n = order.x, order.d, order.n
    (j,) = builder.axes(n)
    row = at(x.shape, d, 1)
    positions: list[Value] = []
    for _ in range(count):
        last = positions[-1] if positions else None

        def left(i: tuple, last: Value | None = last) -> Any:
            """Return whether element j of row i comes after the last element found."""
            if last is None:
                return True
            return order.before(at(i, d, builder.minimum(builder.maximum(last[i], 0), n - 1)), at(i, d, j))

        def best(*i: Any, left: Any = left) -> Any:
            low, high = (-inf, inf) if order.floats else order.keys.dtype.range
            key = order.keys[at(i, d, j)]
            if order.descending:
                return builder.max(builder.where(left(i), key, low), over=j)
            return builder.min(builder.where(left(i), key, high), over=j)

        top = builder.compute(row, best)

        def code(*i: Any, left: Any = left, top: Value = top) -> Any:
            here = at(i, d, j)
            return builder.min(builder.where((order.keys[here] == top[i]) & left(i), order.code(here), 2 * n), over=j)

        positions.append((builder.compute(row, code) % n).astype(dt.i32))
    return cat(positions, d)


@operator()
def argsort(input: Any, dim: int = -1, descending: bool = False, *, stable: bool = True) -> Value:
    """Return the positions of the elements along `dim` in increasing order; equal ones keep theirs. NaN counts as
    largest."""
    x = tensor(input, "argsort", "input")
    if not x.ndim:
        return builder.full((), 0, dt.i32)
    d = dimension(dim, x.ndim, "argsort")
    return select_positions(x, d, 0, x.shape[d], descending)


@operator(aten="sort.default sort.stable")
def sort(input: Any, dim: int = -1, descending: bool = False, *, stable: bool = True) -> tuple[Value, Value]:
    """Return (elements along `dim` in increasing order, their positions); equal ones keep theirs. NaN counts as
    largest."""
    x = tensor(input, "sort", "input")
    if not x.ndim:
        return x, builder.full((), 0, dt.i32)
    if x.dtype.is_bool:
        values, positions = sort(x.astype(dt.i32), dim, descending)
        return values.astype(x.dtype), positions
    d = dimension(dim, x.ndim, "sort")
    positions = select_positions(x, d, 0, x.shape[d], descending)
    return take_positions(x, d, positions), positions


FEW = 8
"""Largest k for which topk makes one pass over a row for each element."""


@operator(aten="topk.default")
def topk(input: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Value, Value]:
    """Return (the k largest, or smallest, elements along `dim` in order, their positions). NaN counts as largest.

    Of equal elements the first ones. Up to k = 8 each takes a sweep over the row; more compare all pairs.
    """
    x = tensor(input, "topk", "input")
    if not x.ndim:
        x = x.reshape((1,))
        values, positions = topk(x, k, 0, largest)
        return (values.reshape(()), positions.reshape(())) if k == 1 else (values, positions)
    d = dimension(dim, x.ndim, "topk")
    if not 0 <= k <= x.shape[d]:
        raise ShapeError(f"topk: k={k} must be from 0 to {x.shape[d]}, the extent along dim={dim}")
    positions = builder.full(at(x.shape, d, 0), 0, dt.i32)
    if k:
        positions = _first(_Order(x, d, largest), k) if k <= FEW else select_positions(x, d, 0, k, largest)
    return take_positions(x, d, positions), positions


@operator(aten="median.default median.dim")
def median(input: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """Return (the middle element along `dim`, the lower one of two, its position); without `dim`, that of all elements.

    In rows with NaN, it is their first NaN.
    """
    x = tensor(input, "median", "input")
    if dim is None:
        return median(x.reshape((-1,)), 0)[0]
    if not x.ndim:
        return tuple(v.reshape(()) for v in median(x.reshape((1,)), dim))
    d = dimension(dim, x.ndim, "median")
    n = x.shape[d]
    if not n:
        raise ShapeError(f"median: 'input' {x.shape} has no elements along dim={dim}")
    (j,) = builder.axes(n)

    def first_nan(*i: Any) -> Any:
        e = x[at(i, d, j)]
        return builder.min(builder.where(e == e, n, j), over=j)

    positions = select_positions(x, d, (n - 1) // 2, 1, False)
    if x.dtype.is_float:
        nan = builder.compute(positions.shape, first_nan)
        positions = builder.where(nan < n, nan, positions)
    positions = positions.astype(dt.i32)
    values = take_positions(x, d, positions)
    return tuple(v if keepdim else v.reshape(without(v.shape, (d,))) for v in (values, positions))
