"""Lower sums of products to `dot`: matrix products, convolutions with their windows, and whatever
`schedule.contraction_problem` recognises.

A program computes a tile of M by N results of one point of the batch. An operand's tile is evaluated at its points
like any expression, so that padding, windows and activations are part of it; elements outside its guards are zero.
Where K is divided among programs, a later function adds their sums, in a fixed order, before the steps that follow.
Axes are numbered as the memory that they run along lies, so that neighbouring lanes access neighbouring elements.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import NamedTuple

from einsmith.base import dtypes as dt
from einsmith.codegen.ssa import SSAValue
from einsmith.gpu.tiles.ir import TileBuilder
from einsmith.gpu.tiles.operations import LEAST_K
from einsmith.gpu.tiles.pieces import (
    Functions,
    Tiling,
    blocks,
    bound_masks,
    emit_epilogue,
    least_power,
    stage_arguments,
)
from einsmith.gpu.tiles.points import MOST_I32_POINTS, Points, TileMemory, number_lanes, unravel
from einsmith.ir.analysis.linear import linear
from einsmith.ir.nodes import Expr, Piece, Read, Reduce, Scatter, Template, axes_of, reads
from einsmith.kernels.contraction.words import narrow
from einsmith.schedule.contraction_problem import Operand, Problem, needs_exact_guards, problems
from einsmith.schedule.kernel import Kernel, KernelBuffer
from einsmith.schedule.split_axes import split_kernels

LEAST_DOT_EXTENT = 16
"""Fewest rows and columns of a dot."""


class PieceProducts(NamedTuple):
    """The pieces of a kernel that are sums of products: the kernel, whose axes may be split (`split_axes`), and for
    each piece of its root the product that it is, or None."""

    kernel: Kernel
    pieces: tuple[Problem | None, ...]

    @property
    def points(self) -> int:
        """The points of the products that fill the rows and columns of a dot."""
        return sum(prod(p.extents) for p in self.pieces if p is not None and is_full(p))


@lru_cache(maxsize=4096)
def find_products(kernel: Kernel) -> PieceProducts | None:
    """Return the products of a kernel, in the splitting of its axes that makes the most of them; None where there are
    none. The groups of a grouped convolution's gradient become an axis of the batch."""
    best: PieceProducts | None = None
    for k in (kernel, *split_kernels(kernel)):
        if k.root.is_scatter or len(k.buffers) != len(kernel.buffers):
            continue
        products = PieceProducts(k, tuple(_product(k.root, piece) for piece in k.root.parts))
        if any(products.pieces) and (best is None or products.points > best.points):
            best = products
    return best


def _product(t: Template, piece: Piece | Scatter) -> Problem | None:
    """Return a piece as a product; None where it is none."""
    if not isinstance(piece, Piece) or not isinstance(piece.body, Reduce):
        return None
    products = problems(Template(t.shape, t.params, (piece,)))
    return products[0] if products and products[0].dtype.is_float else None


def is_full(p: Problem) -> bool:
    """Return whether a product fills half of a dot's rows and columns at least; else its terms one by one take less
    time."""
    return min(p.count(p.left), p.count(p.right)) >= LEAST_DOT_EXTENT // 2


@dataclass
class _Side:
    """Some axes of the output along a dimension of the tile: their numbers at its points, and the conditions that hold
    at points."""

    number: SSAValue
    axes: dict[int, SSAValue]
    live: list[SSAValue]


@dataclass
class _ProgramTile:
    """A program's results: the axes of the batch, which are scalars, and the axes of M and N."""

    batch: dict[int, SSAValue]
    left: _Side
    right: _Side

    @property
    def axes(self) -> dict[int, SSAValue]:
        return {**self.batch, **self.left.axes, **self.right.axes}

    @property
    def live(self) -> list[SSAValue]:
        return [*self.left.live, *self.right.live]


def lower_contraction(
    functions: Functions, kernel: Kernel, p: Problem, places: Sequence[TileMemory], tiling: Tiling
) -> None:
    """Lower a piece whose terms are products: tiles of `m` by `n` results, `k` terms at once, divided among `split`
    programs."""
    p = in_memory_order(kernel, p)
    batch, m, n, k = p.sizes
    t = fit_dot(tiling, p)
    share = blocks(blocks(k, t.k), t.split) * t.k
    b = functions.begin("contraction")
    program = b.program()
    part, program = b.op("rem", program, t.split), b.op("quot", program, t.split)
    column, program = b.op("rem", program, blocks(n, t.n)), b.op("quot", program, blocks(n, t.n))
    row, number = b.op("rem", program, blocks(m, t.m)), b.op("quot", program, blocks(m, t.m))
    tile = _ProgramTile(
        dict(zip(p.batch, unravel(b, number, [p.extents[a] for a in p.batch]), strict=True)),
        _side(b, p, p.left, row, t.m, 1),
        _side(b, p, p.right, column, t.n, 0),
    )
    lo = b.op("mul", b.cast(part, "i64") if k > MOST_I32_POINTS else part, share)
    hi = b.op("min", b.op("add", lo, share), k)
    total = _sum(b, kernel, p, tile, places, t, lo, hi)
    if t.split == 1:
        _emit_piece_epilogue(b, kernel, p, tile.axes, tile.live, total, places)
        functions.add(b, batch * blocks(m, t.m) * blocks(n, t.n))
        return
    partial_sums = functions.reserve(KernelBuffer(p.dtype, (t.split, batch, m, n)))
    partial_sums.store(b, [part, number, tile.left.number, tile.right.number], total, tile.live)
    functions.add(b, batch * blocks(m, t.m) * blocks(n, t.n) * t.split)
    _emit_sums(functions, kernel, p, places, t, partial_sums)


def in_memory_order(kernel: Kernel, p: Problem) -> Problem:
    """Return the problem with the axes of M, N and K in an order of memory, the one of neighbouring elements last.

    Those of K follow the larger operand. Those of M and N follow their operand where neighbouring elements of it are
    theirs, as every tile loads it and results are stored once; else the results."""
    layouts = [kernel.buffers[n] for n in kernel.outputs]
    results = {a: min((b.strides[a] for b in layouts), default=0) for a in (*p.left, *p.right)}
    operand_strides = [_strides_of(kernel, o) for o in p.operands]
    by_size = [strides for _, strides in sorted(sum(operand_strides, []), key=lambda x: -x[0])]

    def order(axes: Sequence[int], strides: Sequence[Mapping[int, int]]) -> tuple[int, ...]:
        return tuple(sorted(axes, key=lambda a: [-x.get(a, MOST_I32_POINTS) for x in strides]))

    def side(axes: Sequence[int], operand: Sequence[tuple[int, Mapping[int, int]]]) -> tuple[int, ...]:
        contiguous = [x for _, x in operand if any(x.get(a) == 1 and p.extents[a] > 1 for a in axes)]
        return order(axes, [*contiguous[:1], results])

    left, right = operand_strides
    return replace(p, left=side(p.left, left), right=side(p.right, right), k=order(p.k, by_size))


def _strides_of(kernel: Kernel, o: Operand) -> list[tuple[int, dict[int, int]]]:
    """Return (bytes, elements from one point of an axis to the next) of each read of an operand, the largest buffer
    first."""
    out = []
    for r in reads(o.expr):
        kind, n, *_ = kernel.stages[0].args[r.slot]
        strides: dict[int, int] = {}
        for index, stride in zip(r.index, kernel.buffers[n].strides, strict=True) if kind == "buffer" else ():
            for atom, step in linear(index).terms.items():
                for a in axes_of(atom):
                    strides[a] = min(strides.get(a, MOST_I32_POINTS), abs(step) * stride)
        if strides:
            out.append((kernel.buffers[n].nbytes, strides))
    return sorted(out, key=lambda x: -x[0])


def narrow_operands(p: Problem) -> tuple[Expr, Expr] | None:
    """Return the operands as expressions of 16 bits where both are conversions from one such type, whose products
    float32 holds exactly; None for other operands."""
    for dtype in (dt.bf16, dt.f16) if p.dtype is dt.f32 else ():
        left, right = (narrow(o.expr, dtype) for o in p.operands)
        if left is not None and right is not None:
            return left, right
    return None


def fit_dot(t: Tiling, p: Problem) -> Tiling:
    """Return the tiling with tiles no larger than the problem, or than a dot requires at least."""
    _, m, n, k = p.sizes
    depth = max(LEAST_K, min(t.k, least_power(k)))
    parts = max(1, min(t.split, blocks(k, depth)))
    share = blocks(blocks(k, depth), parts)
    return replace(
        t,
        m=max(LEAST_DOT_EXTENT, min(t.m, least_power(m))),
        n=max(LEAST_DOT_EXTENT, min(t.n, least_power(n))),
        k=depth,
        split=blocks(blocks(k, depth), share),
        precision=t.precision if p.dtype is dt.f32 else "ieee",
    )


def _side(b: TileBuilder, p: Problem, axes: Sequence[int], block: SSAValue, size: int, expand: int) -> _Side:
    """Return one dimension of the tile, of `size` points; expand: the number of the other dimension."""
    count = p.count(axes)
    first = b.op("mul", b.cast(block, "i64") if count > MOST_I32_POINTS else block, size)
    number = b.expand(number_lanes(b, b.arange(size), first, count), expand)
    values = unravel(b, number, [p.extents[a] for a in axes])
    return _Side(number, dict(zip(axes, values, strict=True)), bound_masks(b, number, count, size))


def _sum(
    b: TileBuilder,
    kernel: Kernel,
    p: Problem,
    tile: _ProgramTile,
    places: Sequence[TileMemory],
    t: Tiling,
    lo: SSAValue,
    hi: SSAValue,
) -> SSAValue:
    """Emit the sums of the terms lo .. hi-1."""
    arguments = stage_arguments(kernel.stages[0], places)
    count = p.count(p.k)
    extents = [p.extents[a] for a in p.k]

    def operand(o: Operand, expr: Expr, side: _Side, first: SSAValue, expand: int, shape: tuple[int, int]) -> SSAValue:
        """Emit the tile of an operand's `expr`, whose K runs along the dimension that is not expanded."""
        number = b.expand(number_lanes(b, b.arange(t.k), first, count), expand)
        at = dict(zip(p.k, unravel(b, number, extents), strict=True))
        live = [*side.live, *bound_masks(b, number, count, t.k)]
        points = Points(b, p.extents, {**tile.batch, **side.axes, **at}, live, arguments)
        value = points.value(expr, o.guards)
        mask = b.conjoin([*live, *points.conditions(o.guards)])
        if mask is not None and not (isinstance(expr, Read) and value.shape == shape):  # a load gives zero by itself
            value = b.select(mask, value, b.const(0.0, value.elem))
        return b.broadcast(value, shape)

    left, right = p.operands
    halves = narrow_operands(p)
    of_left, of_right = halves or (left.expr, right.expr)
    with b.loop(lo, hi, t.k, [b.full((t.m, t.n), 0.0, p.dtype.name)]) as loop:
        x = operand(left, of_left, tile.left, loop.var, 0, (t.m, t.k))
        y = operand(right, of_right, tile.right, loop.var, 1, (t.k, t.n))
        loop.next = [b.dot(x, y, loop.carried[0], "ieee" if halves else t.precision)]
    (total,) = loop.results
    return _repair(b, p, tile, arguments, total, lo, hi) if needs_exact_guards(p) else total


def _repair(
    b: TileBuilder, p: Problem, tile: _ProgramTile, arguments: Sequence, total: SSAValue, lo: SSAValue, hi: SSAValue
) -> SSAValue:
    """Recompute the sums of a tile in which one is NaN, term by term: a zero of a guard may meet an operand that is
    infinite or NaN outside it. In a tile without NaN the loop has no turn."""
    odd = b.op("ne", total, total)
    count = b.select(odd, b.full(total.shape, 1, "i32"), b.full(total.shape, 0, "i32"))
    some = b.op("ne", b.reduce("max", 0, b.reduce("max", 1, count)[0])[0], 0)
    extents = [p.extents[a] for a in p.k]
    # All sums are computed again: those that are not NaN would take registers in the loop.
    init = b.select(some, b.full(total.shape, 0.0, total.elem), total)
    with b.loop(lo, b.select(some, hi, lo), 1, [init]) as loop:
        at = dict(zip(p.k, unravel(b, loop.var, extents), strict=True))
        points = Points(b, p.extents, {**tile.axes, **at}, tile.live, arguments)
        term = points.value(p.term, p.exact)
        mask = b.conjoin([*tile.live, *points.conditions(p.exact)])
        term = term if mask is None else b.select(mask, term, b.const(0.0, term.elem))
        loop.next = [b.op("add", loop.carried[0], term)]
    return loop.results[0]


def emit_root_steps(b: TileBuilder, p: Problem, points: Points, total: SSAValue) -> SSAValue:
    """Emit the steps that follow a product's sum within the root."""
    for fn, e in p.epilogue:
        operand: Expr | None = e
        if operand is None:
            total = b.op(fn, total)
        elif fn == "where":
            total = b.select(points.value(operand), total, b.const(0.0, total.elem))
        else:
            total = b.op(fn, total, points.value(operand))
    return total


def _emit_piece_epilogue(
    b: TileBuilder,
    kernel: Kernel,
    p: Problem,
    axes: dict[int, SSAValue],
    live: Sequence[SSAValue],
    total: SSAValue,
    places: Sequence[TileMemory],
) -> None:
    """Emit the steps that follow the sum within the root, then the stages and the stores."""
    axis_values = {a: axes.get(a, b.const(0)) for a in range(len(p.piece.extents))}
    points = Points(b, p.extents, axis_values, live, stage_arguments(kernel.stages[0], places))
    total = emit_root_steps(b, p, points, total)
    emit_epilogue(b, kernel, p.piece, [axis_values[a] for a in range(len(p.piece.extents))], live, [total], places)


def _emit_sums(
    functions: Functions, kernel: Kernel, p: Problem, places: Sequence[TileMemory], t: Tiling, partial_sums: TileMemory
) -> None:
    """Emit the function that adds the parts of each result in order, then the steps that follow."""
    order = (*p.batch, *p.left, *p.right)
    extents = [p.extents[a] for a in order]
    count = p.count(order)
    size = min(t.m * t.n, least_power(count))
    b = functions.begin("add")
    first = b.op("mul", b.cast(b.program(), "i64") if count > MOST_I32_POINTS else b.program(), size)
    number = number_lanes(b, b.arange(size), first, count)
    live = bound_masks(b, number, count, size)
    flat = TileMemory(KernelBuffer(partial_sums.layout.dtype, (t.split, count)), None, partial_sums.offset)
    with b.loop(0, t.split, 1, [b.full((size,), 0.0, p.dtype.name)]) as loop:
        x = b.load(flat.parameter(b), flat.offsets(b, [loop.var, number]), b.conjoin(live))
        loop.next = [b.op("add", loop.carried[0], x)]
    axes = dict(zip(order, unravel(b, number, extents), strict=True))
    _emit_piece_epilogue(b, kernel, p, axes, live, loop.results[0], places)
    functions.add(b, blocks(count, size))
