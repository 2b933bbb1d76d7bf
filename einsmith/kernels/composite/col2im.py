"""The col2im pattern: all products of two operands first, then the sums of those that meet in a result.

`dX[c,h,w] = sum[k,r,s](where(guards, W[k,c,r,s] * dY[k,h-2*r,w-2*s], 0))` becomes a product of matrices, written out,
`T[c,r,s,p,q] = sum[k](W[k,c,r,s] * dY[k,p,q])`, and `dX[c,h,w] = sum[r,s](where(guards, T[c,r,s,h-2*r,w-2*s], 0))`.
Every product is made once and no other one is, whatever strides, dilation and borders leave of the window at a result,
and the pieces of a strided backward pass are one product with as many rows as all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from math import prod
from typing import NamedTuple

from einsmith.expr.nodes import Axis, Expr, Piece, Read, Reduce, Template, apply, axes_of, template
from einsmith.expr.rewrite.rebuild import guarded, substitute
from einsmith.kernels.composite.parts import Composite, CompositeConfig
from einsmith.kernels.contraction.problem import Problem, finished, problems
from einsmith.plan.footprint import touched
from einsmith.plan.kernel import Buffer, Kernel, Stage
from einsmith.target.facts import Target

WORTH = 0.75
"""The part of another pattern's cost below which the floor must be: it is rarely met, and where the most that the
products could spare is less, looking for their configuration costs more than is won."""


class Col2im(Composite):
    """A contraction of two plain tensors that both have an axis of K as it is, and meet at other axes of K too. The
    products are at most as large as what the third level holds, or all buffers together."""

    name = "col2im"

    def match(self, kernel: Kernel) -> bool:
        return _parts(kernel) is not None

    def bound(self, kernel: Kernel, target: Target) -> float:
        """The products at the peak, then written and read again; infinite where they are too large."""
        ((first, _),) = self.ways(kernel, target)
        products, (piece,) = first.buffers[-1], first.root.parts
        room, size = sum(touched(kernel)), products.nbytes
        if size > max(target.l3, room):
            return float("inf")
        peak = target.fma_per_second * 4 / products.dtype.itemsize * target.cores
        moved = target.seconds_for_bytes(size, size + room, target.cores)
        return max(prod(piece.domain) / peak, moved) + moved

    def best(self, kernel: Kernel, target: Target, limit: float = float("inf")) -> CompositeConfig | None:
        return super().best(kernel, target, limit) if self.bound(kernel, target) < WORTH * limit else None

    def configs(self, kernel: Kernel, target: Target) -> list[CompositeConfig]:
        return super().configs(kernel, target) if self.bound(kernel, target) < float("inf") else []

    def ways(self, kernel: Kernel, target: Target) -> Sequence[Sequence[Kernel]]:
        parts = _parts(kernel)
        assert parts is not None
        return [parts]


class _Factored(NamedTuple):
    """A piece that multiplies two tensors, in the order of their arguments. together: of (dimension of the one, of the
    other) that are the same axis and run all along it, that axis; none of K that anything else depends on: a guard,
    which holds for some of the products of a sum, or another index."""

    problem: Problem
    factors: tuple[Read, Read]
    together: dict[tuple[int, int], int]


def _factored(kernel: Kernel, p: Problem) -> _Factored | None:
    """None where an operand is no tensor, or is zero by a guard of its own, beside which the other may be infinite."""
    found = []
    for o in p.operands:
        if not isinstance(o.expr, Read) or not set(o.guards) <= set(p.exact):
            return None
        found.append(o.expr)
    first, second = sorted(found, key=lambda r: r.slot)
    if first.slot == second.slot:
        return None
    elsewhere = [*p.exact, *(i for r in (first, second) for i in r.index if not isinstance(i, Axis))]
    needed = frozenset(p.k) & frozenset().union(*map(axes_of, elsewhere))
    sides = (list(zip(r.index, kernel.root.params[r.slot][1], strict=True)) for r in (first, second))
    together = {
        (d, e): i.position
        for (d, (i, n)), (e, (j, m)) in product(*map(enumerate, sides))
        if isinstance(i, Axis) and i is j and n == m == p.extents[i.position] and i.position not in needed
    }
    return _Factored(p, (first, second), together)


class _Axes(NamedTuple):
    """What becomes of the dimensions of two factors: `summed` and `batch` are (dimension of the one, of the other) that
    run along the same axis in every piece, of K and of the results; `free`: (factor, dimension) of all others."""

    summed: list[tuple[int, int]]
    batch: list[tuple[int, int]]
    free: list[tuple[int, int]]


def _axes(pieces: Sequence[_Factored], ranks: Sequence[int]) -> _Axes | None:
    """None where nothing is summed in the products, or nothing is left for the sums."""
    same = [d for d in pieces[0].together if all(d in p.together for p in pieces)]
    if any(len({d[f] for d in same}) < len(same) for f in (0, 1)):  # a diagonal
        return None
    inside = [{p.together[d] in p.problem.k for p in pieces} for d in same]
    summed, batch = ([d for d, x in zip(same, inside, strict=True) if x == {is_k}] for is_k in (True, False))
    if not summed or all({p.together[d] for d in summed} == set(p.problem.k) for p in pieces):
        return None
    # The factor that changes with the last axis of the results has the last dimensions of the products.
    first = pieces[0]
    last = max((a for a, n in enumerate(first.problem.piece.extents) if n > 1), default=0)
    order = (1, 0) if last in axes_of(first.factors[0]) else (0, 1)
    taken = [{d[f] for d in (*summed, *batch)} for f in (0, 1)]
    return _Axes(summed, batch, [(f, d) for f in order for d in range(ranks[f]) if d not in taken[f]])


@lru_cache(maxsize=1024)
def _parts(kernel: Kernel) -> tuple[Kernel, Kernel] | None:
    """The kernel that writes the products into one more buffer, and the one that adds them up from there; None where
    the kernel is not taken apart so."""
    root = kernel.stages[0]
    found = problems(kernel.root) if all(ref[0] == "buffer" for ref in root.args) else None
    pieces = [x for p in found or () if (x := _factored(kernel, p)) is not None]
    slots = {tuple(r.slot for r in p.factors) for p in pieces}
    if found is None or len(pieces) < len(found) or len(slots) > 1:
        return None
    (slot,) = slots
    shapes = [kernel.root.params[s][1] for s in slot]
    axes = _axes(pieces, [len(s) for s in shapes])
    if axes is None:
        return None
    outer = [*axes.batch, *((d, None) if f == 0 else (None, d) for f, d in axes.free)]
    place = [{pair[f]: n for n, pair in enumerate([*outer, *axes.summed])} for f in (0, 1)]
    shape = tuple(shapes[0][d] if d is not None else shapes[1][e] for d, e in outer)  # type: ignore[index]
    dtype, last = pieces[0].problem.dtype, len(kernel.buffers)
    both = [Read(s, tuple(Axis(place[f][d]) for d in range(len(shapes[f]))), dtype) for f, s in enumerate(slot)]
    terms = Reduce("sum", tuple(shapes[0][d] for d, _ in axes.summed), (apply("mul", *both),))
    buffers = (*kernel.buffers, Buffer(dtype, shape))
    made = template(shape, kernel.root.params, terms)
    products = Kernel((Stage(made, root.args, (last,)),), buffers, kernel.fixed)

    parts: list[Piece] = []
    for p in pieces:
        index = [p.factors[0].index[d] if d is not None else p.factors[1].index[e] for d, e in outer]  # type: ignore
        gone = {p.together[d] for d in axes.summed}
        parts += [_summed(p.problem, Read(len(root.args), tuple(index), dtype), gone), *p.problem.beside]
    added = Template(kernel.root.shape, (*kernel.root.params, (dtype, shape)), tuple(parts))
    stage = Stage(added, (*root.args, ("buffer", last)), root.outputs)
    return products, Kernel((stage, *kernel.stages[1:]), buffers, kernel.fixed)


def _summed(p: Problem, products: Expr, gone: set[int]) -> Piece:
    """The piece's sum over what is left of K, `products` being the terms."""
    left = [a for a in p.k if a not in gone]
    rank = len(p.piece.extents)
    body = finished(p.finish, guarded(p.exact, products))
    body = substitute(body, {a: Axis(rank + n) for n, a in enumerate(left)})
    reduced = Reduce("sum", tuple(p.extents[a] for a in left) or (1,), (body,))
    return Piece(p.piece.offset, p.piece.step, p.piece.extents, reduced)
