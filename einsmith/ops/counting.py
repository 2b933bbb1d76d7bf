"""Count and search: histograms of integers, places in sorted rows, differences of neighbours, under torch's names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from einsmith.base import dtypes as dt
from einsmith.base.arguments import Size
from einsmith.base.errors import ArgumentError, ShapeError
from einsmith.base.symbolic import is_symbolic
from einsmith.ops.common import dimension, tensor
from einsmith.ops.indexing import gather, index_add
from einsmith.ops.operator import operator
from einsmith.ops.tensor import cat
from einsmith.tracing import builder
from einsmith.tracing.builder import Value

FEW = 32
"""Most elements of a sorted row that are all compared; in longer ones places are searched by halves."""


def count_before(rows: Value, x: Value, right: bool) -> Value:
    """Count, for each x [.., m], the elements of sorted rows [.., n] or [n] below it, or not above it if `right`.

    NaN stands at the end of a row. An x that comes after all numbers of its row comes after its NaN, too, as NaN does.
    """
    n, one = rows.shape[-1], rows.ndim == 1
    if not n or not x.size:
        return builder.full(x.shape, 0, dt.i64)

    def comes_before(i: tuple, j: Any) -> Any:
        """Return whether element j of its row comes before x[i]. NaN comes after numbers."""
        key, own = rows[j] if one else rows[(*i[:-1], j)], x[i]
        return (own != own) | ((key <= own) if right else (key < own))

    if is_symbolic(n) or n <= FEW:
        (j,) = builder.axes(n)
        before = builder.compute(x.shape, lambda *i: builder.sum(builder.where(comes_before(i, j), 1, 0), over=j))
    else:
        before = _search_by_halves(x.shape, n, comes_before)
    before = before.astype(dt.i64)
    if not rows.dtype.is_float:
        return before

    def count_numbers(*i: Any) -> Any:
        key = rows[(*i, j)]
        return builder.sum(builder.where(key == key, 1, 0), over=j)

    (j,) = builder.axes(n)
    numbers = builder.compute(rows.shape[:-1], count_numbers).astype(dt.i64)
    return builder.where(before == (numbers if one else numbers.reshape((*numbers.shape, 1))), n, before).astype(dt.i64)


def _search_by_halves(shape: tuple[int, ...], n: int, comes_before: Callable[[tuple, Any], Any]) -> Value:
    """Return how many elements of a row of n come before each point: whether those of the first half of the elements
    that are left do, until one is left."""

    def body(*i: Any) -> Any:
        count: Any = 0
        left = n
        while left > 1:
            half = left // 2
            count = count + builder.where(comes_before(i, builder.minimum(count + (half - 1), n - 1)), half, 0)
            left -= half
        return count + builder.where(comes_before(i, builder.minimum(count, n - 1)), 1, 0)

    return builder.compute(shape, body)


def _search(rows: Value, x: Value, right: bool, narrow: bool) -> Value:
    whole = x.reshape((1,)) if not x.ndim else x
    return count_before(rows, whole, right).reshape(x.shape).astype(dt.i32 if narrow else dt.i64)


@operator()
def searchsorted(
    sorted_sequence: Any,
    input: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Any = None,
) -> Value:
    """Return for each element the number of elements of a sorted row that are smaller; with `right`, not larger.

    sorted_sequence: one row [n], or rows [.., n] for an input [.., m]. side: "left" or "right", another way to say
    `right`. sorter: the positions that sort the rows, if they are not sorted.
    """
    name = "searchsorted"
    rows, x = tensor(sorted_sequence, name, "sorted_sequence"), tensor(input, name, "input")
    if side not in (None, "left", "right") or side == "left" and right:
        raise ArgumentError(f"{name}: side={side!r} must be None, 'left' or 'right', and agree with right={right}")
    if not rows.ndim or rows.ndim > 1 and rows.shape[:-1] != x.shape[:-1]:
        raise ShapeError(
            f"{name}: 'sorted_sequence' {rows.shape} must be one row, or have the first extents of 'input' {x.shape}"
        )
    if sorter is not None:
        order = tensor(sorter, name, "sorter", kind="int")
        if order.shape != rows.shape:
            raise ShapeError(f"{name}: 'sorter' has shape {order.shape}, needs {rows.shape}")
        rows = gather(rows, rows.ndim - 1, order)
    return _search(rows, x, right or side == "right", out_int32)


@operator()
def bucketize(input: Any, boundaries: Any, *, out_int32: bool = False, right: bool = False) -> Value:
    """Return for each element the number of sorted boundaries [n] that are smaller; with `right`, not larger."""
    rows = tensor(boundaries, "bucketize", "boundaries", rank=1)
    return _search(rows, tensor(input, "bucketize", "input"), right, out_int32)


@operator()
def bincount(input: Any, weights: Any = None, minlength: Size = 0) -> Value:
    """Return how often each of the integers 0 .. minlength - 1 occurs in a vector, or the sums of their `weights`.

    Other integers are an IndexError at the call: `minlength` is the number of bins, as shapes cannot depend on values.
    """
    x = tensor(input, "bincount", "input", rank=1, kind="int")
    if not minlength:
        raise ShapeError("bincount: minlength must be the number of bins, as shapes cannot depend on values")
    if weights is None:
        return index_add(builder.full((minlength,), 0, dt.i64), 0, x, builder.full(x.shape, 1, dt.i64))
    w = tensor(weights, "bincount", "weights", rank=1)
    if w.shape != x.shape:
        raise ShapeError(f"bincount: 'weights' has shape {w.shape}, needs that of 'input', {x.shape}")
    w = w if w.dtype.is_float else w.astype(dt.f64)
    return index_add(builder.full((minlength,), 0, w.dtype), 0, x, w)


@operator()
def diff(input: Any, n: Size = 1, dim: int = -1, prepend: Any = None, append: Any = None) -> Value:
    """Return the n-th differences of neighbours along `dim`, of the input with `prepend` and `append` at its ends."""
    x = tensor(input, "diff", "input")
    if not x.ndim:
        raise ShapeError("diff: 'input' needs a dimension")
    d = dimension(dim, x.ndim, "diff")
    ends = [None if e is None else tensor(e, "diff", name) for name, e in (("prepend", prepend), ("append", append))]
    x = cat([v for v in (ends[0], x, ends[1]) if v is not None], d)
    lead = (slice(None),) * d
    for _ in range(min(n, x.shape[d])):
        after, before = x[(*lead, slice(1, None))], x[(*lead, slice(None, max(0, x.shape[d] - 1)))]
        x = after != before if x.dtype.is_bool else after - before
    return x
