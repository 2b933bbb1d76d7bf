"""Lower pieces with a Reduce: a program computes some results and walks over their terms, tile by tile.

Where results are few, several programs share the terms of each, and a later function combines their states in a fixed
order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

from einsmith.base import dtypes as dt
from einsmith.base.errors import CompileError
from einsmith.codegen.ssa import INTEGERS, SSAValue, elem_of
from einsmith.gpu.tiles.ir import TileBuilder, memory_elem
from einsmith.gpu.tiles.operations import FLOATS
from einsmith.gpu.tiles.pieces import (
    Functions,
    Tiling,
    blocks,
    bound_masks,
    emit_epilogue,
    find_axes,
    least_power,
    memory_order,
    stage_arguments,
)
from einsmith.gpu.tiles.points import MOST_I32_POINTS, Points, TileMemory, expand, number_lanes, unravel
from einsmith.ir.functions import COMBINING, identity
from einsmith.ir.nodes import Piece, Reduce
from einsmith.schedule.kernel import Kernel, KernelBuffer


class TileCombine:
    """The state of a Reduce, and the combination of two states. Conditions are carried as 0 and 1.

    The state of sum, prod, max and min is a tile for each body; the state of argmax and argmin is the values, and
    their places in the flattened reduction.
    """

    def __init__(self, b: TileBuilder, reduce: Reduce):
        self.b, self.combiner = b, reduce.combiner
        self.arg = reduce.combiner.startswith("arg")
        self.flags = [d.is_bool for d in reduce.dtypes]
        self.elems = [memory_elem(elem_of(d)) for d in reduce.dtypes]
        self.identities: list[Any] = [identity(reduce.combiner, x.dtype) for x in reduce.bodies]
        self.identities += [dt.i32.range[1]] * self.arg
        unfit = [e for e in self.elems if e not in (*FLOATS, *INTEGERS)]
        if unfit:
            raise CompileError(f"a {reduce.combiner} of {unfit[0]}, a storage type, is not lowered to tiles")

    def identity_state(self, shape: tuple[int, ...]) -> list[SSAValue]:
        """Return the state of no terms, the identity of the combination."""
        return [self.b.full(shape, v, e) for v, e in zip(self.identities, self.elems, strict=True)]

    def term_states(
        self, values: Sequence[SSAValue], position: SSAValue, live: Sequence[SSAValue], shape: tuple[int, ...]
    ) -> list[SSAValue]:
        """Return the state of one term in each lane; lanes beyond the box get the state of an empty reduction."""
        b = self.b
        state = [b.select(v, b.const(1, "i8"), b.const(0, "i8")) if v.elem == "i1" else v for v in values]
        state += [b.cast(position, "i32")] * self.arg
        mask = b.conjoin(live)
        if mask is not None:
            state = [
                b.select(mask, v, b.const(x, e)) for v, x, e in zip(state, self.identities, self.elems, strict=True)
            ]
        return [b.broadcast(v, shape) for v in state]

    def merge(self, x: Sequence[SSAValue], y: Sequence[SSAValue]) -> list[SSAValue]:
        """Combine two states."""
        b = self.b
        if not self.arg:
            return [b.op(COMBINING[self.combiner], v, w) for v, w in zip(x, y, strict=True)]
        (v, i), (w, j) = x, y
        greater, less = (w, v) if self.combiner == "argmax" else (v, w)
        better, same = b.op("lt", less, greater), b.op("eq", v, w)
        if v.elem in FLOATS:  # a NaN goes before every number
            second_is_nan, first_is_nan = b.op("ne", w, w), b.op("ne", v, v)
            better = b.op("or", better, b.op("and", second_is_nan, b.op("not", first_is_nan)))
            same = b.op("or", same, b.op("and", second_is_nan, first_is_nan))
        takes_second = b.op("or", better, b.op("and", same, b.op("lt", j, i)))
        return [b.select(takes_second, w, v), b.select(takes_second, j, i)]

    def merge_lanes(self, state: Sequence[SSAValue], axis: int) -> list[SSAValue]:
        """Combine the lanes along a dimension."""
        if self.arg:
            return list(self.b.reduce(self.combiner, axis, *state))
        return [self.b.reduce(self.combiner, axis, v)[0] for v in state]

    def results(self, state: Sequence[SSAValue]) -> list[SSAValue]:
        """Return the results of the Reduce from its final state."""
        return [self.b.op("ne", v, self.b.const(0, "i8")) if f else v for v, f in zip(state, self.flags, strict=True)]

    def layouts(self, shape: tuple[int, ...]) -> list[KernelBuffer]:
        """Return the buffers that hold states of the given shape."""
        return [KernelBuffer(dt.dtype_of(e), shape) for e in self.elems]


def lower_reduction(
    functions: Functions, kernel: Kernel, piece: Piece, places: Sequence[TileMemory], tiling: Tiling
) -> None:
    """Lower a piece with a Reduce: a program computes one of `split` parts of `m` results, `k` terms at once."""
    body = piece.body
    assert isinstance(body, Reduce)
    results, terms = prod(piece.extents), prod(body.extents)
    t = fit(tiling, results, terms)
    b = functions.begin("reduction")
    share = blocks(blocks(terms, t.k), t.split) * t.k
    program = b.program()
    part, block = b.op("rem", program, t.split), b.op("quot", program, t.split)
    first = b.op("mul", b.cast(block, "i64") if results > MOST_I32_POINTS else block, t.m)
    number = number_lanes(b, b.arange(t.m), first, results)
    live = bound_masks(b, number, results, t.m)
    lo = b.op("mul", b.cast(part, "i64") if terms > MOST_I32_POINTS else part, share)
    hi = b.op("min", b.op("add", lo, share), terms)
    axes = find_axes(b, number, piece.extents, memory_order(kernel, piece))
    combine, state = combine_terms(b, kernel, piece, axes, live, places, t, lo, hi)
    if t.split == 1:
        emit_epilogue(b, kernel, piece, axes, live, combine.results(state), places)
        functions.add(b, blocks(results, t.m))
        return
    partial_states = [functions.reserve(layout) for layout in combine.layouts((t.split, results))]
    for memory, v in zip(partial_states, state, strict=True):
        memory.store(b, [part, number], v, live)
    functions.add(b, blocks(results, t.m) * t.split)
    _emit_combination(functions, kernel, piece, places, t, partial_states)


def fit(t: Tiling, results: int, terms: int) -> Tiling:
    """Return the tiling with tiles no larger than the piece, and no more parts than there are blocks of terms."""
    k = min(t.k, least_power(terms))
    split = max(1, min(t.split, blocks(terms, k)))
    while split > 1 and blocks(blocks(terms, k), split) * (split - 1) * k >= terms:  # a part without terms
        split -= 1
    return replace(t, m=min(t.m, least_power(results)), k=k, split=split)


def combine_terms(
    b: TileBuilder,
    kernel: Kernel,
    piece: Piece,
    axes: Sequence[SSAValue],
    live: Sequence[SSAValue],
    places: Sequence[TileMemory],
    t: Tiling,
    lo: SSAValue | int,
    hi: SSAValue | int,
) -> tuple[TileCombine, list[SSAValue]]:
    """Combine the terms lo .. hi-1 of results at points (a tile of one dimension); return the combiner and the
    state."""
    body = piece.body
    assert isinstance(body, Reduce)
    combine, terms = TileCombine(b, body), prod(body.extents)
    shape = (t.m, t.k)
    outer = dict(enumerate(expand(b, axes, 1)))
    rows = expand(b, live, 1)
    with b.loop(lo, hi, t.k, combine.identity_state(shape)) as loop:
        number = number_lanes(b, b.arange(t.k), loop.var, terms)
        inner = expand(b, unravel(b, number, body.extents), 0)
        columns = expand(b, bound_masks(b, number, terms, t.k), 0)
        at = {**outer, **{len(outer) + d: x for d, x in enumerate(inner)}}
        points = Points(b, piece.domain, at, [*rows, *columns], stage_arguments(kernel.stages[0], places))
        new_states = combine.term_states(points.values(body.bodies), b.expand(number, 0), columns, shape)
        loop.next = combine.merge(loop.carried, new_states)
    return combine, combine.merge_lanes(loop.results, 1)


def _emit_combination(
    functions: Functions,
    kernel: Kernel,
    piece: Piece,
    places: Sequence[TileMemory],
    t: Tiling,
    partial_states: Sequence[TileMemory],
) -> None:
    """Emit the function that combines the parts of each result, then the steps that follow."""
    assert isinstance(piece.body, Reduce)
    results, parts = prod(piece.extents), least_power(t.split)
    b = functions.begin("combine")
    combine = TileCombine(b, piece.body)
    first = b.op("mul", b.cast(b.program(), "i64") if results > MOST_I32_POINTS else b.program(), t.m)
    number = number_lanes(b, b.arange(t.m), first, results)
    live = bound_masks(b, number, results, t.m)
    part = b.expand(b.arange(parts), 0)
    in_parts = [b.op("lt", part, t.split)] if parts > t.split else []
    state = []
    for memory, initial in zip(partial_states, combine.identities, strict=True):
        at = memory.offsets(b, [part, b.expand(number, 1)])
        x = b.load(memory.parameter(b), at, b.conjoin([*expand(b, live, 1), *in_parts]))
        state.append(b.select(in_parts[0], x, b.const(initial, x.elem)) if in_parts else x)
    axes = find_axes(b, number, piece.extents, memory_order(kernel, piece))
    emit_epilogue(b, kernel, piece, axes, live, combine.results(combine.merge_lanes(state, 1)), places)
    functions.add(b, blocks(results, t.m))
