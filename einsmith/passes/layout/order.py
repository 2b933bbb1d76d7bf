"""Orders of a tensor's dimensions in memory, and what they make of the buffers that kernels see of it."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from einsmith.plan.kernel import KernelBuffer, row_major

Order = tuple[int, ...]
"""The dimensions of a tensor as they lie in memory, the outer ones first."""
CANDIDATES = 4
"""Orders of a tensor that are looked at, the one as it is among them."""


def as_is(shape: Sequence[int]) -> Order:
    return tuple(range(len(shape)))


def innermost(shape: Sequence[int], d: int) -> Order:
    """Dimension d inside of all others: of images, 1 is channels last, and 0 is batch last."""
    return (*(x for x in range(len(shape)) if x != d), d)


def candidates(shape: Sequence[int]) -> list[Order]:
    """The orders that a tensor may have: as it is, or one dimension of several points inside of the others, the second
    and the first before the rest, as batch and channels stand before rows and columns. Tensors of the same extents but
    for dimensions of one point have the same ones."""
    several = [d for d, n in enumerate(shape) if n > 1]
    inner = [*several[1:2], *several[:1], *several[2:]]
    return [as_is(shape), *(innermost(shape, d) for d in inner if d != several[-1])][:CANDIDATES]


def strides(shape: Sequence[int], order: Order) -> tuple[int, ...]:
    """The elements from one position to the next in each dimension of a dense tensor; 0 where it has one point."""
    found, at = [0] * len(shape), 1
    for d in reversed(order):
        if shape[d] > 1:
            found[d], at = at, at * shape[d]
    return tuple(found)


def name_of(shape: Sequence[int], order: Order) -> str:
    """What people call an order: the dimension inside, or all of them."""
    if order == as_is(shape):
        return "as is"
    if order == innermost(shape, order[-1]):
        return f"dimension {order[-1]} innermost"
    return f"dimensions in the order {', '.join(map(str, order))}"


def moved(buffer: KernelBuffer, first: int, shape: Sequence[int], order: Order) -> tuple[KernelBuffer, int] | None:
    """(the buffer, the element where it begins) that hold the same elements of a tensor when its dimensions lie in an
    order, as a buffer that begins at element `first` holds of it where they lie as they are. None where no strides
    say that: rows of channels and columns, as one dimension, do not lie evenly with channels last.

    before: of t[n, c, y, x] a buffer [n, c*y, x] with strides c*y*x, x, 1, or [n, c, y*x] with strides c*y*x, y*x, 1
    after:  the former has no strides with channels last, the latter c*y*x, 1, c
    """
    if order == as_is(shape) or not buffer.size:
        return buffer, first
    runs = _runs(shape, order)
    found, begin, used = [0] * len(buffer.shape), 0, []
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
        found[d] = s // old * new
        used[k] += (n - 1) * (s // old)
    if any(u >= extent for u, (extent, _, _) in zip(used, runs, strict=True)):
        return None
    return KernelBuffer(buffer.dtype, buffer.shape, buffer.far, tuple(found)), begin


def _runs(shape: Sequence[int], order: Order) -> list[tuple[int, int, int]]:
    """(extent, stride as it is, stride in the order) of the dimensions, inner ones last, those as one that are next to
    each other in both."""
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
