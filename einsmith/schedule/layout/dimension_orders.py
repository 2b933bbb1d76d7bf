"""Enumerate the orders of a tensor's dimensions in memory, and compute the strides of kernel buffers for them.

A dimension may be split into blocks: of n images with c channels, NC/16HW16 has blocks of 16 channels outside of the
pixels, and the channels of a block inside (Megvii's formats for x86 and for products of 8-bit integers).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from einsmith.schedule.kernel import KernelBuffer, row_major
from einsmith.schedule.plan import Order

MAX_PERMUTATIONS = 4
"""Most permutations of a tensor's dimensions that are considered, row-major order included."""
BLOCKS = (4, 8, 16, 32, 64)
"""Points of a block of channels that are considered: 4 bytes fill a word of a dot product, 8 or 16 floats, or 32 or 64
bytes, a vector (MegEngine's NC/4HW4 to NC/64HW64)."""
LINE = 64
"""Bytes of a cache line."""


def row_major_order(shape: Sequence[int]) -> Order:
    """Return the row-major order of a shape's dimensions."""
    return tuple(range(len(shape)))


def innermost(shape: Sequence[int], d: int) -> Order:
    """Return the order with dimension d innermost. For images, d = 1 is channels last, and d = 0 is batch last."""
    return (*(x for x in range(len(shape)) if x != d), d)


def in_blocks(shape: Sequence[int], d: int, points: int) -> Order:
    """Return the row-major order with dimension d in blocks of `points`, of which the points are innermost."""
    return (*range(len(shape)), (d, points))


def batch_before_blocks(shape: Sequence[int], points: int) -> Order:
    """Return the order with the batch inside of the pixels, and blocks of channels innermost (MegEngine's CHWN4)."""
    return (*range(1, len(shape)), 0, (1, points))


def candidates(shape: Sequence[int]) -> list[Order]:
    """Return the orders that a tensor may have: row-major first, then each dimension of extent above 1 moved innermost,
    then channels in blocks. The second and the first dimension (channels, batch) come before the others. Tensors whose
    extents differ only in dimensions of extent 1 have equal permutations."""
    return [*permutations(shape), *_blocked(shape)]


def permutations(shape: Sequence[int]) -> list[Order]:
    """Return the orders without blocks that a tensor may have, row-major first."""
    several = [d for d, n in enumerate(shape) if n > 1]
    inner = [*several[1:2], *several[:1], *several[2:]]
    every = [row_major_order(shape), *(innermost(shape, d) for d in inner if d != several[-1])]
    return every[:MAX_PERMUTATIONS]


def _blocked(shape: Sequence[int]) -> list[Order]:
    """Return the orders of images [batch, channels, ...] with channels in blocks; none for other shapes."""
    if len(shape) < 4 or max(shape[2:]) <= 1:
        return []
    blocks = [n for n in BLOCKS if shape[1] > n and shape[1] % n == 0]
    mixed = [batch_before_blocks(shape, n) for n in blocks[:1] if shape[0] > 1]
    return [*(in_blocks(shape, 1, n) for n in blocks), *mixed]


def apart(shape: Sequence[int], order: Order) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shape of a tensor with its blocks as a dimension of their own, and the permutation of these."""
    block = block_of(order)
    if block is None:
        return tuple(shape), tuple(d for d in order if isinstance(d, int))
    d, n = block
    moved = (d + 1 if isinstance(x, tuple) else x + (x > d) for x in order)
    return (*shape[:d], shape[d] // n, n, *shape[d + 1 :]), tuple(moved)


def block_of(order: Order) -> tuple[int, int] | None:
    """Return the dimension that an order has in blocks, and the points of a block; None without blocks."""
    return next((x for x in order if isinstance(x, tuple)), None)


def strides(shape: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """Return the stride (elements) of each dimension of a dense tensor in an order without blocks; 0 for extent 1."""
    out, at = [0] * len(shape), 1
    for d in reversed(order):
        if shape[d] > 1:
            out[d], at = at, at * shape[d]
    return tuple(out)


def name_of(shape: Sequence[int], order: Order) -> str:
    """Return a readable name of an order: the innermost dimension, or all of them."""
    if order == row_major_order(shape):
        return "as is"
    last = order[-1]
    if isinstance(last, tuple):
        return f"dimension {last[0]} in blocks of {last[1]}"
    if order == innermost(shape, last):
        return f"dimension {last} innermost"
    return f"dimensions in the order {', '.join(map(str, order))}"


class StrideRun(NamedTuple):
    """Positions of a tensor at one stride. extent: their number. old: the stride (elements) in row-major order. new:
    the stride where the tensor is stored."""

    extent: int
    old: int
    new: int


class Placement(NamedTuple):
    """Where the elements of a tensor are stored.

    Attributes:
        runs: the mixed-radix digits of an element's row-major number, the outermost first, with the stride of each.
        begin: the element of the memory at which the tensor begins.
        splits: whether kernels may split an axis that passes from one digit to the next.
    """

    runs: tuple[StrideRun, ...]
    begin: int = 0
    splits: bool = False


@lru_cache(maxsize=4096)
def placement_of(shape: tuple[int, ...], order: Order) -> Placement:
    """Return the placement of a dense tensor whose dimensions are in an order."""
    parts, moved = apart(shape, order)
    return Placement(merge_runs(zip(parts, row_major(parts), strides(parts, moved), strict=True)), 0, parts != shape)


def merge_runs(runs: Iterable[tuple[int, int, int]]) -> tuple[StrideRun, ...]:
    """Return runs, the outermost first, with those merged that are adjacent both in row-major order and where they are
    stored; runs of one position are dropped."""
    out: list[StrideRun] = []
    for n, old, new in runs:
        if n == 1:
            continue
        if out and out[-1][1:] == (old * n, new * n):
            out[-1] = StrideRun(out[-1].extent * n, old, new)
        else:
            out.append(StrideRun(n, old, new))
    return tuple(out)


def relocate(buffer: KernelBuffer, first: int, to: Placement) -> tuple[KernelBuffer, int] | None:
    """Return (the buffer, the element where it begins) for the same elements of a tensor that is stored elsewhere.

    `buffer` begins at element `first` of the tensor in row-major order. Return None if no strides describe the
    elements: a buffer dimension that merges channels and rows has no single stride with channels last, and one that
    passes from block to block has none with channels in blocks (`find_crossing`).

    before: of t[n, c, y, x] a buffer [n, c*y, x] with strides c*y*x, x, 1, or [n, c, y*x] with strides c*y*x, y*x, 1
    after:  the former has no strides with channels last, the latter c*y*x, 1, c
    """
    if not buffer.size:
        return buffer, first
    new_strides, begin, used = [0] * len(buffer.shape), to.begin, []
    for extent, old, new in to.runs:
        at = first // old % extent
        begin += at * new
        used.append(at)
    for d, (n, s) in enumerate(zip(buffer.shape, buffer.strides, strict=True)):
        if n == 1:
            continue
        k = _run_at(to, s)
        if k is None:
            return None
        _, old, new = to.runs[k]
        new_strides[d] = s // old * new
        used[k] += (n - 1) * (s // old)
    if any(u >= run.extent for u, run in zip(used, to.runs, strict=True)):
        return None
    # A buffer that is stored past the caches begins on a line of them.
    past_caches = buffer.non_temporal and begin * buffer.dtype.itemsize % LINE == 0
    return KernelBuffer(buffer.dtype, buffer.shape, past_caches, tuple(new_strides)), begin


def find_crossing(buffer: KernelBuffer, first: int, to: Placement) -> tuple[int, int] | None:
    """Return (dimension of a buffer that passes from one run to the next, points of its inner part) to be split; None
    if there is none, or none that can be split there."""
    if not to.splits or not buffer.size:
        return None
    for d, (n, s) in enumerate(zip(buffer.shape, buffer.strides, strict=True)):
        k = None if n == 1 else _run_at(to, s)
        if k is None:
            continue
        extent, old, _ = to.runs[k]
        inner, rest = divmod(extent * old, s)
        if not rest and 1 < inner < n and n % inner == 0 and first // old % extent < s // old:
            return d, inner
    return None


def _run_at(to: Placement, stride: int) -> int | None:
    """Return the number of the run whose positions a stride in row-major order counts; None if there is none."""
    return next((k for k, (n, old, _) in enumerate(to.runs) if stride % old == 0 and stride < old * n), None)
