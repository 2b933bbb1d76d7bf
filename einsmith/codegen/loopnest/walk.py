"""Emit loops over ranges, boxes, and parts, blocks, strips or tiles of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from itertools import accumulate, pairwise
from math import isqrt
from typing import Any

from einsmith.codegen.loopnest.nest import Builder
from einsmith.codegen.ssa import SSAValue

Bound = SSAValue | int
Range = tuple[Bound, Bound]


def ceil_div(a: int, b: int) -> int:
    """Return a/b rounded up to an integer, for b > 0."""
    return -(-a // b)


@lru_cache(maxsize=1024)
def divisors(n: int) -> tuple[int, ...]:
    """Return the divisors of n, ascending, in sqrt(n) steps: 46,341 for the longest axis of 32 bits."""
    low = [d for d in range(1, isqrt(n) + 1) if n % d == 0]
    return (*low, *(n // d for d in reversed(low) if d * d != n))


def digits(b: Builder, flat: SSAValue, extents: Sequence[Bound]) -> list[SSAValue]:
    """Return the mixed-radix digits of a flattened index, outer first; the first is not reduced. [] for no extents."""
    out: list[SSAValue] = []
    for n in reversed(extents[1:]):
        out.append(b.op("mod", flat, n))
        flat = b.op("floordiv", flat, n)
    return [flat, *reversed(out)] if extents else []


def part_range(b: Builder, number: SSAValue | None, parts: int, count: Bound) -> Range:
    """Return the range of part `number` of `count` points, tiles or rows that are divided into nearly equal parts.

    number: None: all of them."""
    if number is None or parts == 1:
        return 0, count
    lo = b.op("floordiv", b.mul(number, count), parts)
    hi = b.op("floordiv", b.mul(b.add(number, 1), count), parts)
    return lo, hi


def tile_size(extent: int, tiles: int, group: int) -> int:
    """Return the points of one of `tiles` parts of an axis, rounded up to a multiple of `group`."""
    return max(1, -(-extent // (tiles * group))) * group


def tile_count(extent: int, tiles: int, group: int) -> int:
    """Return how many parts of `tile_size(extent, tiles, group)` points an axis has."""
    return -(-extent // tile_size(extent, tiles, group))


def part_bounds(
    b: Builder, extent: int, number: SSAValue | None, parts: int, unit: int = 1, rest: bool = False
) -> Range:
    """Return the range of part `number` when an axis is divided into parts of whole units.

    number: None: all of the axis. unit: points of a unit. rest: the last part includes the points beyond whole units;
    else they are left out."""
    end = extent if rest else extent // unit * unit
    if number is None:
        return 0, end
    size = tile_size(extent, parts, unit)
    lo = b.mul(number, size)
    return lo, b.op("min", b.add(lo, size), end)


@contextmanager
def task_range(b: Builder, task: SSAValue, first: int, count: int, alone: bool = False) -> Iterator[SSAValue]:
    """Emit a region that only tasks first .. first+count-1 run; yield the task's number counted from `first`.

    alone: no other tasks exist, so that no test is emitted."""
    if alone:
        yield task
        return
    inside = b.op("and", b.op("le", first, task), b.op("lt", task, first + count))
    with b.if_(inside):
        yield b.sub(task, first) if first else task


def sweep(
    b: Builder,
    extents: Sequence[int],
    lo: Bound,
    hi: Bound,
    init: Sequence[SSAValue],
    outer: Callable[[list[SSAValue]], Any],
    inner: Callable[[Any, SSAValue, SSAValue, Sequence[SSAValue]], Sequence[SSAValue]],
    unrolled: int = 0,
) -> Sequence[SSAValue]:
    """Emit loops over the flattened points lo .. hi of a box that carry values; return the final ones.

    `outer(digits of all but the last extent)` is called where these are known and returns a context. `inner(context,
    last digit, flattened point, carried)` returns the next carried values. A last extent of at most `unrolled` points
    is unrolled where the range holds whole rows of it."""
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


def nest(
    b: Builder,
    extents: Sequence[int],
    bounds: Sequence[Range],
    init: Sequence[SSAValue],
    outer: Callable[[list[SSAValue]], Any],
    inner: Callable[[Any, SSAValue, SSAValue, Sequence[SSAValue]], Sequence[SSAValue]],
    unrolled: int,
) -> Sequence[SSAValue]:
    """Emit one loop per extent, each within its own bounds; other arguments and the result are those of `sweep`."""
    bounds = list(bounds)
    some = None  # whether every loop but the first runs at all; if one does not, neither does the first
    for lo, hi in bounds[1:]:
        if not (isinstance(lo, int) and isinstance(hi, int) and lo < hi):
            inside = b.op("lt", lo, hi)
            some = inside if some is None else b.op("and", some, inside)
    if some is not None:
        lo, hi = bounds[0]
        bounds[0] = (lo, b.select(some, hi, lo))

    def level(d: int, values: list[SSAValue], flat: SSAValue, carried: Sequence[SSAValue]) -> Sequence[SSAValue]:
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


State = list[list[SSAValue]]
"""The values that a loop carries, in groups."""


def emit_carrying_loop(
    b: Builder, bounds: Range, step: int, state: State, body: Callable[[State, SSAValue], State]
) -> State:
    """Emit a loop that carries a state; return the final state."""
    ends = list(accumulate(map(len, state), initial=0))

    def split_groups(flat: Sequence[SSAValue]) -> State:
        return [list(flat[low:high]) for low, high in pairwise(ends)]

    with b.loop(*bounds, step, init=[v for x in state for v in x]) as loop:
        loop.next = [v for x in body(split_groups(loop.carried), loop.var) for v in x]
    return split_groups(loop.results)


def emit_groups(
    b: Builder,
    extent: int,
    group: int,
    state: State,
    body: Callable[[State, Bound, int], State],
    part: SSAValue | None = None,
    parts: int = 1,
    within: Range | None = None,
) -> State:
    """Emit `body(state, base, count) -> state` for whole groups of an axis and the remainder; return the final state.

    Args:
        b: The builder.
        extent: Points of the axis.
        group: Points of a whole group. Groups run in a loop, unless there is a single one.
        state: Values before the first group.
        body: Emits a group: state, first point, number of points -> state.
        part: Number of this part of the axis, of `parts` equal ones; every part but the last has whole groups.
        parts: Number of parts.
        within: Range of points that count; groups outside of it are skipped.
    """
    whole = extent // group * group
    rest = extent - whole
    bounds: Range
    if within is not None:
        lo, hi = within
        begin = b.mul(b.op("floordiv", lo, group), group)
        bounds = begin, b.op("min", hi, whole)
        last = b.op("and", b.op("lt", whole, hi), b.op("lt", lo, hi))
    elif part is not None and parts > 1:
        bounds = part_bounds(b, extent, part, parts, group)
        last = b.op("eq", part, tile_count(extent, parts, group) - 1)
    else:
        if whole == group:
            state = body(state, 0, group)
        elif whole:
            state = emit_carrying_loop(b, (0, whole), group, state, lambda x, base: body(x, base, group))
        return body(state, whole, rest) if rest else state
    if whole:
        state = emit_carrying_loop(b, bounds, group, state, lambda x, base: body(x, base, group))
    if rest:
        state = emit_carrying_loop(b, (0, b.cast(last, "i64")), 1, state, lambda x, _: body(x, whole, rest))
    return state


def blocks(b: Builder, number: SSAValue, extent: int, size: int, emit: Callable[[Bound, int], None]) -> None:
    """Call `emit(base, count)` for block `number` of `size` points, and in another branch for a shorter last block."""
    whole = extent // size
    if extent < size:
        emit(0, extent)
    elif extent % size == 0:
        emit(b.mul(number, size), size)
    else:
        # Bases are computed inside the branches, so that no code that depends on one is hoisted out of its branch.
        with b.if_(b.op("lt", number, whole)):
            emit(b.mul(number, size), size)
        with b.if_(b.op("eq", number, whole)):
            emit(b.mul(number, size), extent - whole * size)


def strips(
    b: Builder,
    lo: int,
    hi: int,
    size: int,
    body: Callable[[SSAValue, int, list[SSAValue]], Any],
    init: Sequence[SSAValue] = (),
) -> list[SSAValue]:
    """Emit `body(first point, points, carried)` for the strips of `size` points in lo .. hi; return the final values.

    `body` returns the values carried next (None: nothing). Whole strips run in a loop, unless there is a single one; a
    shorter strip at the end is emitted after it."""
    whole, out = lo + (hi - lo) // size * size, list(init)
    if whole == lo + size:
        out = body(b.const(lo), size, out) or []
    elif whole > lo:
        with b.loop(lo, whole, step=size, init=out) as loop:
            loop.next = body(loop.var, size, list(loop.carried)) or ()
        out = list(loop.results)
    return body(b.const(whole), hi - whole, out) or [] if whole < hi else out


def tiles(
    b: Builder, span: Range, count: int, size: int, unit: int, full: int, body: Callable[[SSAValue, int, bool], None]
) -> None:
    """Emit `body(tile, units, is_last)` for a range of tiles; `is_last` marks the last, smaller tile.

    Args:
        b: Builder of the function.
        span: Tile numbers (first, end) to emit.
        count: Tiles of the whole axis.
        size: Points of the whole axis.
        unit: Points of a unit, the part of a tile (a vector, or a single point) that `units` counts.
        full: Units of a whole tile.
        body: Emits a tile, given its number, its units, and whether it is the smaller tile at the end.
    """
    lo, hi = span
    tail = size - (count - 1) * full * unit
    whole = count if tail == full * unit else count - 1
    stop: Bound = b.op("min", hi, whole) if whole < count else hi
    if whole and (b.known(lo), b.known(stop)) == (0, 1):
        body(b.const(0), full, False)
    elif whole:
        with b.loop(lo, stop) as loop:
            body(loop.var, full, False)
    if whole < count:
        with nullcontext() if isinstance(hi, int) else b.if_(b.op("lt", whole, hi)):
            body(b.const(whole), ceil_div(tail, unit), True)
