"""Transpose square tiles of vectors by shuffles, merge values in trees, and split masks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, TypeVar

from einsmith.codegen.loopnest.hoist import Hoisting
from einsmith.codegen.loopnest.nest import BYTES, Builder, SSAValue

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
