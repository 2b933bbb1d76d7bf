"""Enumerate the orders of a tensor's dimensions in memory, and compute the strides of kernel buffers for them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from einsmith.schedule.kernel import KernelBuffer, row_major

Order = tuple[int, ...]
"""The dimensions of a tensor as they are in memory, the outermost first."""
MAX_CANDIDATES = 4
"""Most orders of a tensor that are considered, row-major order included."""


def row_major_order(shape: Sequence[int]) -> Order:
    """Return the row-major order of a shape's dimensions."""
    return tuple(range(len(shape)))


def innermost(shape: Sequence[int], d: int) -> Order:
    """Return the order with dimension d innermost. For images, d = 1 is channels last, and d = 0 is batch last."""
    return (*(x for x in range(len(shape)) if x != d), d)


def candidates(shape: Sequence[int]) -> list[Order]:
    """Return the orders that a tensor may have: row-major first, then each dimension of extent above 1 moved innermost.
    The second and the first dimension (channels, batch) come before the others. Tensors whose extents differ only in
    dimensions of extent 1 have equal candidates."""
    several = [d for d, n in enumerate(shape) if n > 1]
    inner = [*several[1:2], *several[:1], *several[2:]]
    return [row_major_order(shape), *(innermost(shape, d) for d in inner if d != several[-1])][:MAX_CANDIDATES]


def strides(shape: Sequence[int], order: Order) -> tuple[int, ...]:
    """Return the stride (elements) of each dimension of a dense tensor in an order; 0 for extent 1."""
    out, at = [0] * len(shape), 1
    for d in reversed(order):
        if shape[d] > 1:
            out[d], at = at, at * shape[d]
    return tuple(out)


def name_of(shape: Sequence[int], order: Order) -> str:
    """Return a readable name of an order: the innermost dimension, or all of them."""
    if order == row_major_order(shape):
        return "as is"
    if order == innermost(shape, order[-1]):
        return f"dimension {order[-1]} innermost"
    return f"dimensions in the order {', '.join(map(str, order))}"


def reorder(buffer: KernelBuffer, first: int, shape: Sequence[int], order: Order) -> tuple[KernelBuffer, int] | None:
    """Return (the buffer, the element where it begins) for the same elements of a tensor after its dimensions are
    reordered.

    `buffer` begins at element `first` of the tensor in row-major order. Return None if no strides describe the
    elements: a buffer dimension that merges channels and rows has no single stride with channels last.

    before: of t[n, c, y, x] a buffer [n, c*y, x] with strides c*y*x, x, 1, or [n, c, y*x] with strides c*y*x, y*x, 1
    after:  the former has no strides with channels last, the latter c*y*x, 1, c
    """
    if order == row_major_order(shape) or not buffer.size:
        return buffer, first
    runs = _runs(shape, order)
    new_strides, begin, used = [0] * len(buffer.shape), 0, []
    for extent, old, new in runs:
        at = first // old % extent
        begin += at * new
        used.append(at)
    for d, (n, s) in enumerate(zip(buffer.shape, buffer.strides, strict=True)):
        if n == 1:
            continue
        k = next((k for k, (extent, old, _) in enumerate(runs) if s % old == 0 and s < old * extent), None)
        if k is None:
            return None
        _, old, new = runs[k]
        new_strides[d] = s // old * new
        used[k] += (n - 1) * (s // old)
    if any(u >= extent for u, (extent, _, _) in zip(used, runs, strict=True)):
        return None
    return KernelBuffer(buffer.dtype, buffer.shape, buffer.non_temporal, tuple(new_strides)), begin


def _runs(shape: Sequence[int], order: Order) -> list[tuple[int, int, int]]:
    """Return (extent, row-major stride, stride in the order) of the dimensions, innermost last; dimensions that are
    adjacent in both orders are merged."""
    out: list[tuple[int, int, int]] = []
    for n, old, new in zip(shape, row_major(tuple(shape)), strides(shape, order), strict=True):
        if n == 1:
            continue
        if out and out[-1][1:] == (old * n, new * n):
            out[-1] = (out[-1][0] * n, old, new)
        else:
            out.append((n, old, new))
    assert prod(n for n, _, _ in out) == prod(shape)
    return out
