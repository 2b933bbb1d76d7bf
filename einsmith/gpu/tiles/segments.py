"""Lower scatters by sorting their terms, so that each output element visits the terms that fall on it, and no others.

before: out[ids[t], d] += x[t, d]                                             t < 20, d < 8
after:  key[t] = ids[t]
        place[t] = number of terms s with key[s] < key[t], or key[s] = key[t] and s < t;  order[place[t]] = t
        first[v], count[v] = where the terms of v begin in the order, and how many there are
        out[v, d] = start[v, d] + sum[i](x[order[first[v] + i], d])           i < count[v]

The terms of an element are combined in their own order, so that results are equal in every run, without atomics. Terms
are numbered by the axes that are not indices by themselves. The places take a comparison of each pair of terms, of
integers; `scatter` takes one of each term with each element, and all of their values.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple
from typing import cast as typed

from einsmith.base import dtypes as dt
from einsmith.codegen.ssa import SSAValue
from einsmith.gpu.tiles.ir import TileBuilder
from einsmith.gpu.tiles.pieces import (
    Functions,
    Tiling,
    blocks,
    bound_masks,
    emit_epilogue,
    least_power,
    memory_order,
    stage_arguments,
)
from einsmith.gpu.tiles.points import MOST_I32_POINTS, Points, TileMemory, expand, number_lanes, unravel
from einsmith.gpu.tiles.reduction import TileCombine
from einsmith.gpu.tiles.scatter import scatter_to_reductions
from einsmith.ir.nodes import Axis, Piece, Reduce, Scatter, axes_of
from einsmith.schedule.kernel import Kernel, KernelBuffer

FEWEST_TERMS = 64
"""Fewest terms that are sorted: the four launches take longer than a few comparisons do."""
MOST_TERMS = 1 << 17
"""Most terms that are sorted: the comparisons of their pairs take 0.4 ms at 50 TFLOP/s."""


class SortedScatter(NamedTuple):
    """A scatter whose terms can be sorted.

    scatter: the scatter; kernel: the kernel with a reduction instead of it (`scatter_to_reductions`); aligned: by
    dimension of the output, the axis of the scatter that is its index by itself; rows: the other dimensions; terms: the
    other axes
    """

    scatter: Scatter
    kernel: Kernel
    aligned: dict[int, int]
    rows: tuple[int, ...]
    terms: tuple[int, ...]

    def count_terms(self) -> int:
        """Return how many terms are sorted."""
        return prod(self.scatter.extents[a] for a in self.terms)


def sorted_scatter(kernel: Kernel) -> SortedScatter | None:
    """Return the scatter of a kernel whose terms are to be sorted; None where they are not: they are few or too many,
    the initial value has several pieces, or an index depends on an axis that is an index by itself."""
    parts = scatter_to_reductions(kernel)
    s = typed(Scatter, kernel.root.parts[-1])
    aligned: dict[int, int] = {}
    for d, e in enumerate(s.index):
        if isinstance(e, Axis) and e.position not in aligned.values():
            aligned[d] = e.position
    rows = tuple(d for d in range(len(s.index)) if d not in aligned)
    terms = tuple(a for a in range(len(s.extents)) if a not in aligned.values())
    scatter = SortedScatter(s, parts[0], aligned, rows, terms)
    whole = len(parts) == 1 and typed(Piece, parts[0].root.parts[0]).step == (1,) * kernel.root.rank
    keyed = {a for d in rows for a in axes_of(s.index[d])}
    fits = whole and rows and keyed <= set(terms) and FEWEST_TERMS <= scatter.count_terms() <= MOST_TERMS
    return scatter if fits and 0 not in kernel.root.shape else None


def lower_sorted(
    functions: Functions, kernel: Kernel, s: SortedScatter, places: Sequence[TileMemory], tiling: Tiling
) -> None:
    """Lower a scatter whose terms are sorted: functions that number, count and sort the terms, and one that combines
    those of `m` elements."""
    rows = prod(kernel.root.shape[d] for d in s.rows)
    keys, order = (functions.reserve(KernelBuffer(dt.i32, (s.count_terms(),))) for _ in range(2))
    first, count = (functions.reserve(KernelBuffer(dt.i32, (rows,))) for _ in range(2))
    _emit_keys(functions, kernel, s, places, keys, tiling)
    _emit_zeros(functions, count, tiling)
    _emit_order(functions, rows, keys, order, first, count)
    _emit_combination(functions, kernel, s, places, tiling, order, first, count)


def _lanes(b: TileBuilder, block: int, extents: Sequence[int]) -> tuple[SSAValue, tuple[SSAValue, ...], list[SSAValue]]:
    """Return the numbers of a program's points, of `block` in a box of axes, their axes, and the conditions that hold
    at points."""
    count = prod(extents)
    number = number_lanes(b, b.arange(block), b.op("mul", b.program(), block), count)
    return number, unravel(b, number, extents), bound_masks(b, number, count, block)


def _emit_keys(
    functions: Functions,
    kernel: Kernel,
    s: SortedScatter,
    places: Sequence[TileMemory],
    keys: TileMemory,
    tiling: Tiling,
) -> None:
    """Emit the function that stores the row on which each term falls; behind all rows for a term that falls on none."""
    scatter, shape, extents = s.scatter, kernel.root.shape, [s.scatter.extents[a] for a in s.terms]
    block = min(max(tiling.m, 128), least_power(s.count_terms()))
    b = functions.begin("keys")
    number, axes, live = _lanes(b, block, extents)
    at = dict(zip(s.terms, axes, strict=True))
    points = Points(b, scatter.extents, at, live, stage_arguments(kernel.stages[0], places))
    key, inside = b.const(0), list(live)
    for d, value in zip(s.rows, points.values([scatter.index[d] for d in s.rows]), strict=True):
        inside += [b.op("le", b.const(0, value.elem), value), b.op("lt", value, shape[d])]
        key = b.op("add", b.op("mul", key, shape[d]), b.cast(value, "i32"))
    everywhere = b.conjoin(inside)
    none = b.const(prod(shape[d] for d in s.rows))
    keys.store(b, [number], key if everywhere is None else b.select(everywhere, key, none), live)
    functions.add(b, blocks(s.count_terms(), block))


def _emit_zeros(functions: Functions, memory: TileMemory, tiling: Tiling) -> None:
    """Emit the function that stores zeros."""
    size = memory.layout.size
    block = min(max(tiling.m, 128), least_power(size))
    b = functions.begin("zeros")
    number, _, live = _lanes(b, block, (size,))
    memory.store(b, [number], b.full((block,), 0, "i32"), live)
    functions.add(b, blocks(size, block))


ORDERED, COMPARED = 32, 128
"""Terms whose places a program finds, and terms with which it compares them at once."""


def _emit_order(
    functions: Functions, rows: int, keys: TileMemory, order: TileMemory, first: TileMemory, count: TileMemory
) -> None:
    """Emit the function that finds each term's place, and where the terms of a row begin."""
    terms = keys.layout.size
    m, k = min(ORDERED, least_power(terms)), min(COMPARED, least_power(terms))
    b = functions.begin("order")
    mine, _, live = _lanes(b, m, (terms,))
    own = keys.load(b, [mine], live)
    number, key = b.expand(mine, 1), b.expand(own, 1)
    zeros = [b.full((m, k), 0, "i32")] * 3
    with b.loop(0, terms, k, zeros) as loop:
        other = b.op("add", loop.var, b.arange(k))
        inside = bound_masks(b, other, terms, k)
        there, at = b.expand(keys.load(b, [other], inside), 0), b.expand(other, 0)
        known = expand(b, inside, 0)
        same = b.conjoin([b.op("eq", there, key), *known])
        earlier = b.conjoin([b.op("eq", there, key), b.op("lt", at, number), *known])
        less = b.conjoin([b.op("lt", there, key), *known])
        loop.next = [
            b.op("add", total, b.select(typed(SSAValue, c), b.const(1), b.const(0)))
            for total, c in zip(loop.carried, (less, same, earlier), strict=True)
        ]
    less_count, same_count, earlier_count = (b.reduce("sum", 1, x)[0] for x in loop.results)
    place = b.op("add", less_count, earlier_count)
    order.store(b, [place], mine, live)
    begins = [*live, b.op("eq", earlier_count, 0), b.op("lt", own, rows)]
    first.store(b, [own], place, begins)
    count.store(b, [own], same_count, begins)
    functions.add(b, blocks(terms, m))


def _emit_combination(
    functions: Functions,
    kernel: Kernel,
    s: SortedScatter,
    places: Sequence[TileMemory],
    tiling: Tiling,
    order: TileMemory,
    first: TileMemory,
    count: TileMemory,
) -> None:
    """Emit the function that combines the terms of `m` elements, those of one row side by side, and the epilogue."""
    shape, scatter = kernel.root.shape, s.scatter
    piece = typed(Piece, s.kernel.root.parts[0])
    columns = [d for d in memory_order(s.kernel, piece) if d in s.aligned]
    width = prod(shape[d] for d in columns)
    rows = prod(shape[d] for d in s.rows)
    n = min(max(tiling.m, 32), least_power(width))
    m = max(1, min(tiling.m // n, least_power(rows)))
    b = functions.begin("segments")
    program = b.cast(b.program(), "i64") if rows * width > MOST_I32_POINTS else b.program()
    across = blocks(width, n)
    row = b.op("mul", b.cast(b.op("quot", program, across), "i32"), m)
    column = b.op("mul", b.cast(b.op("rem", program, across), "i32"), n)
    row_number = b.expand(number_lanes(b, b.arange(m), row, rows), 1)
    column_number = b.expand(number_lanes(b, b.arange(n), column, width), 0)
    in_rows, in_columns = bound_masks(b, row_number, rows, m), bound_masks(b, column_number, width, n)
    at = dict(zip(s.rows, unravel(b, row_number, [shape[d] for d in s.rows]), strict=True))
    at |= dict(zip(columns, unravel(b, column_number, [shape[d] for d in columns]), strict=True))
    terms = count.load(b, [row_number], in_rows)
    begin = first.load(b, [row_number], [*in_rows, b.op("lt", b.const(0), terms)])
    combine = TileCombine(b, Reduce(scatter.combiner, (1,), (scatter.body,)))
    aligned = {a: at[d] for d, a in s.aligned.items()}
    beyond = [b.op("lt", at[d], scatter.extents[a]) for d, a in s.aligned.items() if scatter.extents[a] < shape[d]]
    most = b.reduce("max", 0, b.reduce("max", 1, terms)[0])[0]
    with b.loop(b.const(0), most, 1, combine.identity_state((m, n))) as loop:
        here = [*in_rows, b.op("lt", loop.var, terms)]
        term = order.load(b, [b.op("add", begin, loop.var)], here)
        axes = dict(zip(s.terms, unravel(b, term, [scatter.extents[a] for a in s.terms]), strict=True))
        live = [*here, *in_columns, *beyond]
        points = Points(b, scatter.extents, {**aligned, **axes}, live, stage_arguments(kernel.stages[0], places))
        states = combine.term_states(points.values([scatter.body]), b.const(0), live, (m, n))
        loop.next = combine.merge(loop.carried, states)
    axis_values = [at[d] for d in range(len(shape))]
    live = [*in_rows, *in_columns]
    emit_epilogue(b, s.kernel, piece, axis_values, live, combine.results(loop.results), places)
    functions.add(b, blocks(rows, m) * across)
