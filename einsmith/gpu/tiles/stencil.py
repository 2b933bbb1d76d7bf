"""Lower pieces with a Reduce of few terms that neighbouring results share: depthwise convolutions, pooling,
differences.

before: sum[r](x[i + r] * w[r])   r < 3, a tile of m by 4 lanes, of whose columns one is not a term
after:  x[i]*w[0] + x[i + 1]*w[1] + x[i + 2]*w[2], tiles of m lanes

A program computes `m` results with their terms unrolled. Values that depend on the term alone become literals, a guard
that holds everywhere for a term is dropped, no lane is lost to extents that are not powers of two, and nothing is
combined across lanes. Neighbouring lanes read neighbouring elements, and most elements of the next term are the ones
already in cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod

from einsmith.base import dtypes as dt
from einsmith.gpu.tiles.pieces import (
    Functions,
    Tiling,
    blocks,
    emit_epilogue,
    least_power,
    number_points,
    stage_arguments,
)
from einsmith.gpu.tiles.points import MOST_I32_POINTS, Points, TileMemory
from einsmith.gpu.tiles.reduction import TileCombine
from einsmith.ir.nodes import Apply, Const, Expr, Piece, Reduce, axes_of, reads
from einsmith.ir.rebuild import substitute
from einsmith.ir.rewrite.simplify import simplify
from einsmith.schedule.kernel import Kernel

MOST_TERMS = 64
"""Most terms that are unrolled: the text grows with each, as does the time to compile it."""


def has_few_terms(kernel: Kernel) -> bool:
    """Return whether every Reduce of the root has at most MOST_TERMS terms."""
    return all(prod(p.body.extents) <= MOST_TERMS for p in kernel.root.parts if isinstance(p.body, Reduce))


def is_contiguous_along_results(kernel: Kernel) -> bool:
    """Return whether neighbouring results read neighbouring elements: the contiguous dimension of the largest operands
    follows an axis of the output."""
    return any(_follows(kernel, p) for p in kernel.root.parts if isinstance(p, Piece) and isinstance(p.body, Reduce))


def _follows(kernel: Kernel, piece: Piece) -> bool:
    rank = len(piece.extents)
    operands: list[tuple[int, bool]] = []  # of each operand: its elements, and whether it follows the output
    for read in (r for body in piece.bodies for r in reads(body)):
        kind, n, *_ = kernel.stages[0].args[read.slot]
        strides = kernel.buffers[n].strides if kind == "buffer" else ()
        if strides:
            axes = axes_of(read.index[strides.index(min(strides))])
            operands.append((prod(kernel.buffers[n].shape), any(a < rank for a in axes)))
    most = max((count for count, _ in operands), default=0)
    return any(follows for count, follows in operands if count == most)


def _factors(combiner: str, bodies: Sequence[Expr]) -> tuple[Expr, ...]:
    """Return the two factors of a term that a sum can add by a fused multiply-add; an empty tuple for other terms."""
    term, *more = bodies
    product_of_floats = isinstance(term, Apply) and term.fn == "mul" and term.dtype in (dt.f32, dt.f64)
    return term.args if combiner == "sum" and not more and product_of_floats else ()


def lower_stencil(
    functions: Functions, kernel: Kernel, piece: Piece, places: Sequence[TileMemory], tiling: Tiling
) -> None:
    """Lower a piece with a Reduce of few terms: a program computes `m` of its results."""
    body = piece.body
    assert isinstance(body, Reduce)
    count, rank = prod(piece.extents), len(piece.extents)
    block = min(tiling.m, least_power(count))
    b = functions.begin("stencil")
    first = b.op("mul", b.cast(b.program(), "i64") if count > MOST_I32_POINTS else b.program(), block)
    axes, live = number_points(b, first, block, kernel, piece)
    combine = TileCombine(b, body)
    state = combine.identity_state((block,))
    points = Points(b, piece.extents, dict(enumerate(axes)), live, stage_arguments(kernel.stages[0], places))
    for number, term in enumerate(product(*map(range, body.extents))):
        values_of_term = {rank + d: Const(x, dt.i32) for d, x in enumerate(term)}
        bodies = [simplify(substitute(x, values_of_term), piece.extents) for x in body.bodies]
        factors = _factors(body.combiner, bodies)
        if factors:
            state = [b.fma(*points.values(factors), *state)]
        else:
            state = combine.merge(state, combine.term_states(points.values(bodies), b.const(number), [], (block,)))
    emit_epilogue(b, kernel, piece, axes, live, combine.results(state), places)
    functions.add(b, blocks(count, block))
