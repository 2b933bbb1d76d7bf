"""Compute all products of two operands first, then the sums of products that meet in a result (col2im).

`dX[c,h,w] = sum[k,r,s](where(guards, W[k,c,r,s] * dY[k,h-2*r,w-2*s], 0))` becomes a matrix product, written out,
`T[c,r,s,p,q] = sum[k](W[k,c,r,s] * dY[k,p,q])`, and `dX[c,h,w] = sum[r,s](where(guards, T[c,r,s,h-2*r,w-2*s], 0))`.
Every product is computed exactly once, whatever strides, dilation and borders leave of the window at a result, and the
pieces of a strided backward pass are one product with as many rows as all of them. Indices that both factors have, such
as the places of a locally connected layer, are the products' batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from math import prod
from typing import NamedTuple

from einsmith.cost.facts import Target
from einsmith.ir.nodes import Axis, Expr, Piece, Read, Reduce, Template, apply, axes_of, template
from einsmith.ir.rebuild import guarded, substitute
from einsmith.kernels.composite.parts import Composite, CompositeConfig
from einsmith.schedule.contraction_problem import Problem, apply_epilogue, problems
from einsmith.schedule.footprint import bytes_by_buffer
from einsmith.schedule.kernel import Kernel, KernelBuffer, Stage

MAX_BOUND_FRACTION = 0.75
"""Largest lower bound of col2im's seconds, as a fraction of the best cost so far, at which a configuration is searched
for. The bound is rarely reached; above this fraction, the search costs more than the products could save."""


class Col2im(Composite):
    """Pattern of products of two plain tensors that share an axis of K as an index, and meet at other axes of K too.

    The products must not be larger than L3, or than all buffers together.
    """

    name = "col2im"

    def match(self, kernel: Kernel) -> bool:
        return _find_products(kernel) is not None

    def bound(self, kernel: Kernel, target: Target) -> float:
        """Return the seconds of the products at the peak, written and read once; infinity where they are too large."""
        products = _find_products(kernel)
        assert products is not None
        item, count = products.pieces[0].problem.dtype.itemsize, prod(products.shape)
        room, size = sum(bytes_by_buffer(kernel)), count * item
        if size > max(target.last_level, room):
            return float("inf")
        peak = target.fma_per_second * 4 / item * target.cores
        moved = target.seconds_for_bytes(size, size + room, target.cores)
        return max(count * prod(products.depth) / peak, moved) + moved

    def best(self, kernel: Kernel, target: Target, limit: float = float("inf")) -> CompositeConfig | None:
        return super().best(kernel, target, limit) if self.bound(kernel, target) < MAX_BOUND_FRACTION * limit else None

    def configs(self, kernel: Kernel, target: Target) -> list[CompositeConfig]:
        return super().configs(kernel, target) if self.bound(kernel, target) < float("inf") else []

    def ways(self, kernel: Kernel, target: Target) -> Sequence[Sequence[Kernel]]:
        return [_split_kernel(kernel)]


class _FactoredPiece(NamedTuple):
    """A piece that multiplies two tensors, in the order of their arguments.

    together: {(dimension of the first, dimension of the second): axis} for dimensions with a common index, and the axis
        of K that runs all along them. It is None for other indices, and if a guard, which holds for some products of a
        sum only, or another index depends on the axis, as on a diagonal.
    """

    problem: Problem
    factors: tuple[Read, Read]
    together: dict[tuple[int, int], int | None]


def _factor(kernel: Kernel, p: Problem) -> _FactoredPiece | None:
    """Return the factors of a piece, or None if they do not qualify: an operand is not a plain read, or has a guard of
    its own that zeroes it, while the other operand may be infinite there."""
    factors = []
    for o in p.operands:
        if not isinstance(o.expr, Read) or not set(o.guards) <= set(p.exact):
            return None
        factors.append(o.expr)
    first, second = sorted(factors, key=lambda r: r.slot)
    if first.slot == second.slot:
        return None
    indices = [i for r in (first, second) for i in r.index if not isinstance(i, Axis) or r.index.count(i) > 1]
    other_indices = [*p.exact, *indices]
    summed = frozenset(p.k) - frozenset().union(*map(axes_of, other_indices))
    sides = (list(zip(r.index, kernel.root.params[r.slot][1], strict=True)) for r in (first, second))
    together = {
        (d, e): i.position if isinstance(i, Axis) and i.position in summed and n == p.extents[i.position] else None
        for (d, (i, n)), (e, (j, m)) in product(*map(enumerate, sides))
        if i is j and n == m and axes_of(i)
    }
    return _FactoredPiece(p, (first, second), together)


_Pair = tuple[int | None, int | None]
"""A dimension of the first factor, of the second, or one of each that have a common index in every piece."""


class _Products(NamedTuple):
    """The matrix product whose elements all `pieces` sum.

    summed_dims: (dimension of the first factor, of the second) that the product sums over, of extents `depth`
    kept_dims: the same for each dimension of the product, of extents `shape`
    """

    pieces: Sequence[_FactoredPiece]
    summed_dims: Sequence[_Pair]
    kept_dims: Sequence[_Pair]
    depth: tuple[int, ...]
    shape: tuple[int, ...]


@lru_cache(maxsize=1024)
def _find_products(kernel: Kernel) -> _Products | None:
    """Return the products; None where none are summed over an axis of K, or no axis of K is left for the sums."""
    all_problems = problems(kernel.root)
    if all_problems is None or all(len(p.k) < 2 for p in all_problems):
        return None
    pieces = [x for p in all_problems if (x := _factor(kernel, p)) is not None]
    if len(pieces) < len(all_problems) or len({tuple(r.slot for r in p.factors) for p in pieces}) > 1:
        return None
    first, shapes = pieces[0], [kernel.root.params[r.slot][1] for r in pieces[0].factors]
    common = [d for d in first.together if all(d in p.together for p in pieces)]
    if any(len({d[f] for d in common}) < len(common) for f in (0, 1)):  # a diagonal
        return None
    are_summed = [{p.together[d] is not None for p in pieces} for d in common]
    summed_dims, batch_dims = (
        [d for d, x in zip(common, are_summed, strict=True) if x == {is_summed}] for is_summed in (True, False)
    )
    if not summed_dims or all({p.together[d] for d in summed_dims} == set(p.problem.k) for p in pieces):
        return None
    # The factor that changes with the last axis of the results has the last dimensions of the products.
    last = max((a for a, n in enumerate(first.problem.piece.extents) if n > 1), default=0)
    order = (1, 0) if last in axes_of(first.factors[0]) else (0, 1)
    used_dims = [{d[f] for d in (*summed_dims, *batch_dims)} for f in (0, 1)]
    free_dims = [(f, d) for f in order for d in range(len(shapes[f])) if d not in used_dims[f]]
    kept_dims: list[_Pair] = [*batch_dims, *((d, None) if f == 0 else (None, d) for f, d in free_dims)]
    shape = tuple(shapes[0][d] if d is not None else shapes[1][e] for d, e in kept_dims)  # type: ignore[index]
    return _Products(pieces, summed_dims, kept_dims, tuple(shapes[0][d] for d, _ in summed_dims), shape)


@lru_cache(maxsize=1024)
def _split_kernel(kernel: Kernel) -> tuple[Kernel, Kernel]:
    """Return the kernel that writes the products into one more buffer, and the kernel that sums them from there."""
    products, root, last = _find_products(kernel), kernel.stages[0], len(kernel.buffers)
    assert products is not None
    pieces, summed, stays, depth, shape = products
    dtype = pieces[0].problem.dtype
    axis_of_dim = [{pair[f]: n for n, pair in enumerate([*stays, *summed])} for f in (0, 1)]
    factors = [
        Read(r.slot, tuple(Axis(axis_of_dim[f][d]) for d in range(len(r.index))), dtype)
        for f, r in enumerate(pieces[0].factors)
    ]
    buffers = (*kernel.buffers, KernelBuffer(dtype, shape))
    product_template = template(shape, kernel.root.params, Reduce("sum", depth, (apply("mul", *factors),)))
    first = Kernel((Stage(product_template, root.args, (last,)),), buffers, kernel.loop_invariant)

    parts: list[Piece] = []
    for p in pieces:
        index = [p.factors[0].index[d] if d is not None else p.factors[1].index[e] for d, e in stays]  # type: ignore
        gone = {p.together[d] for d in summed}  # type: ignore[index]
        parts += [_sum_products(p.problem, Read(len(root.args), tuple(index), dtype), gone), *p.problem.constant_pieces]
    added = Template(kernel.root.shape, (*kernel.root.params, (dtype, shape)), tuple(parts))
    stage = Stage(added, (*root.args, ("buffer", last)), root.outputs)
    return first, Kernel((stage, *kernel.stages[1:]), buffers, kernel.loop_invariant)


def _sum_products(p: Problem, products: Expr, gone: set[int | None]) -> Piece:
    """Return the piece as a sum over the axes of K not in `gone`, with the terms `products`."""
    left = [a for a in p.k if a not in gone]
    rank = len(p.piece.extents)
    body = apply_epilogue(p.epilogue, guarded(p.exact, products))
    body = substitute(body, {a: Axis(rank + n) for n, a in enumerate(left)})
    reduced = Reduce("sum", tuple(p.extents[a] for a in left) or (1,), (body,))
    return Piece(p.piece.offset, p.piece.step, p.piece.extents, reduced)
