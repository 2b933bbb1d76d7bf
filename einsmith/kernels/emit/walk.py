"""Loops over boxes, and turning a square of vectors: what packing and tiles share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from einsmith.kernels.emit.access import digits
from einsmith.kernels.emit.hoist import Hoisting
from einsmith.loops.nest import BYTES, Builder, Value

T = TypeVar("T")
Bound = Value | int
Range = tuple[Bound, Bound]


def part_range(b: Builder, number: Value, parts: int, count: int) -> Range:
    """What part `number` of so many has of `count` points, tiles or rows."""
    if parts == 1:
        return 0, count
    lo = b.op("floordiv", b.mul(number, count), parts)
    hi = b.op("floordiv", b.mul(b.add(number, 1), count), parts)
    return lo, hi


def sweep(
    b: Builder,
    extents: Sequence[int],
    lo: Value | int,
    hi: Value | int,
    init: Sequence[Value],
    outer: Callable[[list[Value]], Any],
    inner: Callable[[Any, Value, Value, Sequence[Value]], Sequence[Value]],
    unrolled: int = 0,
) -> Sequence[Value]:
    """Loops over flattened points lo .. hi of a box, carrying values.

    outer(digits of all but the last extent) is called where they are known; inner(what outer gave, last digit,
    flattened point, carried) gives the next carried values. A last extent of at most `unrolled` is unrolled where
    all of it is walked."""
    last = extents[-1] if extents else 1
    if len(extents) <= 1:
        context = outer([])
        with b.loop(lo, hi, init=init) as loop:
            loop.next = inner(context, loop.var, loop.var, loop.carried)
        return loop.results
    full = all(x is not None and x % last == 0 for x in map(b.known, (lo, hi)))
    first = b.op("floordiv", lo, last)
    end = b.select(b.op("lt", lo, hi), b.op("floordiv", b.add(hi, last - 1), last), first)
    with b.loop(first, end, init=init) as rows:
        context = outer(digits(b, rows.var, extents[:-1]))
        base = b.mul(rows.var, last)
        begin, stop = (0, last) if full else (b.op("max", b.sub(lo, base), 0), b.op("min", b.sub(hi, base), last))
        unroll = last if full and last <= unrolled else 1
        with b.loop(begin, stop, init=rows.carried, unroll=unroll, runs=True) as loop:
            loop.next = inner(context, loop.var, b.add(base, loop.var), loop.carried)
        rows.next = loop.results
    return rows.results


def blocks(b: Builder | Hoisting, vectors: list[Value], n: int, width: int) -> list[Value]:
    """As many vectors of n lanes as they have blocks of `width`: result L is block L of every vector."""
    if len(vectors) == 1:
        return vectors
    sides = []
    for odd in (0, 1):
        lanes = [at + i for at in range(odd * width, n, 2 * width) for i in range(width)]
        lanes += [n + x for x in lanes]
        pairs = zip(vectors[::2], vectors[1::2], strict=True)
        sides.append(blocks(b, [b.shuffle(x, y, lanes) for x, y in pairs], n, width))
    return [x for pair in zip(*sides, strict=True) for x in pair]


def transpose(b: Builder | Hoisting, rows: Sequence[Value], size: int = 1) -> list[Value]:
    """n / size vectors of n lanes, transposed in elements of `size` lanes, of 128 bits at most: those within 128 bits
    are interleaved first, then blocks of 128 bits."""
    n = len(rows) * size
    width = min(n, 16 // BYTES[rows[0].type.elem])

    def interleave(x: Value, y: Value, unit: int, high: bool) -> Value:
        lanes: list[int] = []
        for block in range(0, n, width):
            for at in range(block + high * width // 2, block + (high + 1) * width // 2, unit):
                lanes += [*range(at, at + unit), *range(n + at, n + at + unit)]
        return b.shuffle(x, y, lanes)

    def columns(group: Sequence[Value], unit: int) -> list[Value]:
        """In block L of vector c, element c of block L of every vector of the group."""
        if len(group) == 1:
            return list(group)
        pairs = list(zip(group[::2], group[1::2], strict=True))
        halves = [[interleave(x, y, unit, high) for x, y in pairs] for high in (False, True)]
        return [c for half in halves for c in columns(half, 2 * unit)]

    each = width // size
    groups = [columns(rows[g : g + each], size) for g in range(0, n // size, each)]
    every = [blocks(b, [g[c] for g in groups], n, width) for c in range(each)]
    return [every[k % each][k // each] for k in range(n // size)]


def tree(values: Sequence[T], merge: Callable[[T, T], T]) -> T:
    """All values merged, neighbours first."""
    while len(values) > 1:
        values = [merge(*values[i : i + 2]) if i + 1 < len(values) else values[i] for i in range(0, len(values), 2)]
    return values[0]


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def nest(
    b: Builder,
    extents: Sequence[int],
    bounds: Sequence[tuple[Value | int, Value | int]],
    init: Sequence[Value],
    outer: Callable[[list[Value]], Any],
    inner: Callable[[Any, Value, Value, Sequence[Value]], Sequence[Value]],
    unrolled: int,
) -> Sequence[Value]:
    """`sweep` as one loop an extent, each within its own bounds."""
    bounds = list(bounds)
    some = None  # whether every loop but the first has a turn; without one, neither has the first
    for lo, hi in bounds[1:]:
        if not (isinstance(lo, int) and isinstance(hi, int) and lo < hi):
            inside = b.op("lt", lo, hi)
            some = inside if some is None else b.op("and", some, inside)
    if some is not None:
        lo, hi = bounds[0]
        bounds[0] = (lo, b.select(some, hi, lo))

    def level(d: int, values: list[Value], flat: Value, carried: Sequence[Value]) -> Sequence[Value]:
        lo, hi = bounds[d]
        last = d == len(extents) - 1
        context = outer(values) if last else None
        whole = isinstance(lo, int) and isinstance(hi, int)
        unroll = extents[d] if last and whole and extents[d] <= unrolled else 1
        with b.loop(lo, hi, init=carried, unroll=unroll, runs=d > 0) as loop:
            here = b.add(b.mul(flat, extents[d]), loop.var)
            if last:
                loop.next = inner(context, loop.var, here, loop.carried)
            else:
                loop.next = level(d + 1, [*values, loop.var], here, loop.carried)
        return loop.results

    return level(0, [], b.const(0), init)
