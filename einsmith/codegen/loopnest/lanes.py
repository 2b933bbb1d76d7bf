"""Pick, place, mask, transpose and merge the lanes of vectors, for the emitters of kernels and the code generator."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, TypeVar

from einsmith.codegen.loopnest.hoist import Hoisting
from einsmith.codegen.loopnest.nest import Builder
from einsmith.codegen.ssa import BYTES, SSAValue

T = TypeVar("T")


def transpose_blocks(b: Builder | Hoisting, vectors: list[SSAValue], n: int, width: int) -> list[SSAValue]:
    """Transpose the blocks of `width` lanes of n / width vectors: result L concatenates block L of every vector.

    n: lanes of a vector."""
    if len(vectors) == 1:
        return vectors
    sides = []
    for odd in (0, 1):
        lanes = [at + i for at in range(odd * width, n, 2 * width) for i in range(width)]
        lanes += [n + x for x in lanes]
        pairs = zip(vectors[::2], vectors[1::2], strict=True)
        sides.append(transpose_blocks(b, [b.shuffle(x, y, lanes) for x, y in pairs], n, width))
    return [x for pair in zip(*sides, strict=True) for x in pair]


def transpose(b: Builder | Hoisting, rows: Sequence[SSAValue], size: int = 1) -> list[SSAValue]:
    """Transpose n / size vectors of n lanes as a matrix of elements of `size` lanes, at most 128 bits each.

    Elements are interleaved within 128-bit blocks first, then the blocks are transposed."""
    n = len(rows) * size
    width = min(n, 16 // BYTES[rows[0].type.elem])

    def interleave(x: SSAValue, y: SSAValue, unit: int, high: bool) -> SSAValue:
        lanes: list[int] = []
        for block in range(0, n, width):
            for at in range(block + high * width // 2, block + (high + 1) * width // 2, unit):
                lanes += [*range(at, at + unit), *range(n + at, n + at + unit)]
        return b.shuffle(x, y, lanes)

    def collect_columns(group: Sequence[SSAValue], unit: int) -> list[SSAValue]:
        """Return vectors whose vector c holds, in block L, element c of block L of every vector of the group."""
        if len(group) == 1:
            return list(group)
        pairs = list(zip(group[::2], group[1::2], strict=True))
        halves = [[interleave(x, y, unit, high) for x, y in pairs] for high in (False, True)]
        return [c for half in halves for c in collect_columns(half, 2 * unit)]

    each = width // size
    groups = [collect_columns(rows[g : g + each], size) for g in range(0, n // size, each)]
    columns_by_number = [transpose_blocks(b, [g[c] for g in groups], n, width) for c in range(each)]
    return [columns_by_number[k % each][k // each] for k in range(n // size)]


def covering(pattern: Sequence[int], n: int, first: int | None = None) -> list[int]:
    """Return where vectors of n elements begin that cover all positions from `first` (None: the least) to the largest
    of a pattern, side by side; where there are several, the last one ends at the largest: they touch nothing else."""
    low, high = min(pattern) if first is None else first, max(pattern)
    starts = list(range(low, high + 1, n))
    return [*starts[:-1], high - n + 1] if len(starts) > 1 else starts


def pick_lanes(
    b: Builder | Hoisting, vectors: Sequence[SSAValue], starts: Sequence[int], pattern: Sequence[int]
) -> SSAValue:
    """Return the elements at the positions of a pattern, a lane each, of vectors (at most four) that begin at `starts`;
    lanes without a position have any value."""
    n = vectors[0].type.lanes
    places = {p: w * n + p - start for w, start in reversed([*enumerate(starts)]) for p in range(start, start + n)}
    picks = [*(places[p] for p in pattern), *([-1] * (n - len(pattern)))]
    pairs = []
    for w in range(0, len(vectors), 2):
        inside = [p - w * n if w * n <= p < (w + 2) * n else -1 for p in picks]
        pairs.append(b.shuffle(vectors[w], vectors[min(w + 1, len(vectors) - 1)], inside))
    if len(pairs) == 1:
        return pairs[0]
    return b.shuffle(pairs[0], pairs[1], [-1 if p < 0 else i + n * (p >= 2 * n) for i, p in enumerate(picks)])


def place_lanes(
    b: Builder | Hoisting, x: SSAValue, others: SSAValue | None, first: int, pattern: Sequence[int]
) -> SSAValue:
    """Return the elements first, first + 1, ... (one vector) of memory in which lane i of x is element pattern[i], in
    ascending order; the elements after it are those lanes of `others` (None: any values)."""
    n, picks = x.type.lanes, []
    for e in range(first, first + n):
        lane = bisect_right(pattern, e) - 1
        picks.append(lane if pattern[lane] == e else -1 if others is None else n + lane)
    return b.shuffle(x, x if others is None else others, picks)


def place_mask(b: Builder | Hoisting, mask: SSAValue | None, n: int, first: int, pattern: Sequence[int]) -> SSAValue:
    """Return the mask of the elements first, first + 1, ... (n of them) that are at the positions of a pattern.

    mask: the positions that count, by lane; None: all."""
    if mask is None:
        return b.literal([e in pattern for e in range(first, first + n)], "i1")
    return place_lanes(b, mask, b.const(False, "i1", n), first, pattern)


def merge_in_tree(values: Sequence[T], merge: Callable[[T, T], T]) -> T:
    """Merge all values in a tree, neighbours first."""
    while len(values) > 1:
        values = [merge(*values[i : i + 2]) if i + 1 < len(values) else values[i] for i in range(0, len(values), 2)]
    return values[0]


def whole_powers(mask: Sequence[Any]) -> Iterator[tuple[int, int]]:
    """Yield (first lane, number of lanes) of pieces of the lanes that a mask allows; numbers are powers of two."""
    first = 0
    for allowed, lanes in groupby(mask, bool):
        left = len(list(lanes))
        while left:
            count = 1 << left.bit_length() - 1 if allowed else left
            if allowed:
                yield first, count
            first, left = first + count, left - count


def take_lanes(b: Builder | Hoisting, x: SSAValue, first: int, count: int) -> SSAValue:
    """Return `count` lanes of a vector from lane `first` on; one lane is a scalar."""
    return b.shuffle(x, x, range(first, first + count)) if count > 1 else b.extract(x, first)


def merge_lanes(
    b: Builder | Hoisting, vectors: list[SSAValue], merge: Callable[[list[SSAValue], list[SSAValue]], list[SSAValue]]
) -> list[SSAValue]:
    """Merge all lanes of some vectors into a scalar each, in a fixed tree: halves, then quarters, down to one lane.

    merge: merges the lower and the upper lanes of all vectors."""
    n = vectors[0].type.lanes
    assert n & (n - 1) == 0
    while n > 1:
        n //= 2
        low, high = ([take_lanes(b, x, first, n) for x in vectors] for first in (0, n))
        vectors = merge(low, high)
    return vectors


def combine_lanes(b: Builder, fn: str, x: SSAValue) -> SSAValue:
    """Combine all lanes of a vector by a function of two arguments, in the order of `merge_lanes`."""
    return merge_lanes(b, [x], lambda low, high: [b.op(fn, *low, *high)])[0]


def conjoin(b: Builder | Hoisting, x: SSAValue | None, y: SSAValue | None) -> SSAValue | None:
    """Emit the conjunction of two conditions; None means true."""
    return x if y is None else y if x is None else b.op("and", x, y)


def between(
    b: Builder | Hoisting, low: SSAValue | int | None, x: SSAValue, high: SSAValue | int | None
) -> SSAValue | None:
    """Emit the mask of the lanes in which low <= x < high; None means unbounded, and all lanes where both ends are.

    x: a vector of i32. low, high: integers that fit i32."""

    def end(value: SSAValue | int) -> SSAValue:
        return b.const(value, "i32") if isinstance(value, int) else b.cast(value, "i32")

    mask = None if low is None else b.op("le", end(low), x)
    return mask if high is None else conjoin(b, mask, b.op("lt", x, end(high)))
