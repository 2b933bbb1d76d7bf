"""The im2col pattern: an operand of a contraction is written out as a matrix, then multiplied from there.

`sum[c,r,s](X[b,c,p+r,q+s] * W[k,c,r,s])` becomes `M[b,c,r,s,p,q] = X[b,c,p+r,q+s]` in the workspace, and
`sum[c,r,s](M[b,c,r,s,p,q] * W[k,c,r,s])`. It costs the memory that the contraction pattern's packing saves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from math import prod
from typing import NamedTuple

from einsmith import dtypes as dt
from einsmith.expr.nodes import Axis, Const, Expr, Piece, Read, Reduce, Template, apply, reads, template
from einsmith.expr.rewrite.rebuild import substitute
from einsmith.kernels.composite.parts import Composite, PartConfig, part_config
from einsmith.kernels.composite.split_axes import split_kernels
from einsmith.kernels.contraction.emission.nan_repair import needed
from einsmith.kernels.contraction.pattern import PATTERN as CONTRACTION
from einsmith.kernels.contraction.problem import Operand, Problem, affine, axes_of, finished, guarded, problems
from einsmith.kernels.emit.address import address
from einsmith.kernels.emit.boxes import GUARDED, leaves, operations
from einsmith.plan.kernel import Buffer, Kernel, Stage
from einsmith.target.facts import Target

TRIED = 2
"""Configurations of the product that are worth a measurement."""
REACHED = 0.95
"""The part of the peak that products reach at most."""
WORTH = 0.75
"""The part of another pattern's cost below which the floors must be: floors are rarely met, and where the most that a
matrix could spare is less, looking for its configuration costs more than is won."""


class Im2colConfig(NamedTuple):
    """operand: which one is written out (0 left, 1 right); inner: whether the axes of K are the matrix's last ones;
    then the patterns and configurations of the two parts."""

    operand: int
    inner: bool
    write: PartConfig
    multiply: PartConfig

    def __str__(self) -> str:
        order = "rows of K" if self.inner else "columns of K"
        return f"im2col of {'LR'[self.operand]} in {order}; {self.multiply.config}"


class Im2col(Composite):
    """A contraction of one piece with an operand that is more than a plain tensor. Where axes stand under quotients and
    remainders, the operand is written out of the kernel in which these are axes."""

    name = "im2col"

    def match(self, kernel: Kernel) -> bool:
        return bool(_operands(kernel)) and not split_kernels(kernel)

    def bound(self, kernel: Kernel, target: Target) -> float:
        """The matrix written once, then the products at the peak."""
        return min(sum(_floors(kernel, i, target)) for i in _operands(kernel))

    def best(self, kernel: Kernel, target: Target, limit: float = float("inf")) -> Im2colConfig | None:
        """The best configuration whose matrix takes least to write; None where its cost is not below `limit`."""
        ways = []
        for i in _operands(kernel):
            least, products = _floors(kernel, i, target)
            if least + products < WORTH * limit:
                for inner in (False, True):
                    cost = self.chooser.choose(_written(kernel, i, inner)[0], target).cost
                    ways.append((cost.seconds + products, i, inner))
        if not ways or min(ways)[0] >= limit:
            return None
        _, i, inner = min(ways)
        write, multiply = _parts(kernel, i, inner)
        first = self.chooser.choose(write, target)
        if not CONTRACTION.match(multiply):
            return None
        # A rank is more than the seconds by a twentieth at most.
        second = CONTRACTION.best(multiply, target, 1.05 * (limit - first.cost.seconds + first.cost.launch))
        if second is None:
            return None
        found = Im2colConfig(i, inner, part_config(first), PartConfig(CONTRACTION.name, second))
        return found if self.cost(kernel, found, target).rank < limit else None

    def configs(self, kernel: Kernel, target: Target) -> list[Im2colConfig]:
        out = []
        for i in _operands(kernel):
            for inner in (False, True):
                write, multiply = _parts(kernel, i, inner)
                if CONTRACTION.match(multiply):
                    first = part_config(self.chooser.choose(write, target))
                    found = [PartConfig(CONTRACTION.name, c) for c in CONTRACTION.configs(multiply, target)[:TRIED]]
                    out += [Im2colConfig(i, inner, first, second) for second in found]
        return out

    def parts(self, kernel: Kernel, config: Im2colConfig, target: Target) -> Iterable[tuple[Kernel, PartConfig]]:
        return zip(_parts(kernel, config.operand, config.inner), config[2:], strict=True)


def _floors(kernel: Kernel, i: int, target: Target) -> tuple[float, float]:
    """Seconds that no writing of operand i as a matrix is below, and no multiplication from there."""
    (p,) = problems(kernel.root)  # type: ignore[misc]
    o, item = p.operands[i], p.dtype.itemsize
    matrix, others = p.count(o.axes) * item, sum(b.nbytes for b in kernel.buffers)
    # A vector is stored, and what changes with every axis is loaded, under a mask where only guards keep it in bounds;
    # other reads are at least one for all lanes. Guards may go where axes have one point.
    wide = {a for a in o.axes if p.extents[a] > 1}
    found = reads(o.expr)
    each = 1.375 + sum(1.0 if wide <= axes_of(r) else 0.3 for r in found)
    if len(wide) == len(o.axes):
        each += operations((guarded(o.guards, o.expr),), target)[0]
    if len(found) == 1 and wide <= axes_of(found[0]) and _leaves(kernel, found[0], p.extents):
        each += GUARDED
    write = p.count(o.axes) * each / target.fma_per_second / target.cores
    moved = target.seconds_for_bytes(matrix, others + matrix, target.cores)
    again = target.seconds_for_bytes(others + matrix, others + matrix, target.cores)
    # A guard of the other operand may skip products.
    peak = REACHED * target.fma_per_second * 4 / item
    products = 0.0 if p.operands[1 - i].guards else prod(p.extents) / peak / target.cores
    return max(write, moved), max(products, again)


def _leaves(kernel: Kernel, r: Read, extents: Sequence[int]) -> bool:
    """Whether a read would leave its buffer at some points of the box."""
    buffer = kernel.buffers[kernel.stages[0].args[r.slot][1]]
    return bool(leaves(address(r.index, buffer.strides), extents, buffer.size))


def _operands(kernel: Kernel) -> list[int]:
    """The operands that are worth writing out: guarded, computed, or read through a window."""
    root = kernel.stages[0]
    if any(ref[0] != "buffer" for ref in root.args):
        return []
    found = problems(kernel.root)
    if found is None or len(found) > 1 or needed(found[0]):  # written out, a term that is skipped is but a zero factor
        return []
    return [i for i in (0, 1) if found[0].k and not _is_matrix(found[0].operands[i], found[0].extents)]


def _is_matrix(o: Operand, extents: Sequence[int]) -> bool:
    """Whether an operand is a tensor each of whose elements is read at one point: no window that would be unfolded."""
    form = affine(o.expr) if isinstance(o.expr, Read) and not o.guards else None
    if form is None:
        return False
    for _, terms in form:
        reach = 0
        for c, n in sorted((abs(c), extents[a]) for a, c in terms.items() if extents[a] > 1):
            if c <= reach:
                return False
            reach += c * (n - 1)
    return True


@lru_cache(maxsize=1024)
def _written(kernel: Kernel, i: int, inner: bool) -> tuple[Kernel, tuple[int, ...]]:
    """The kernel that writes operand i into one more buffer, and the axes along which that lies."""
    (p,) = problems(kernel.root)  # type: ignore[misc]
    side = [a for a in range(len(p.piece.extents)) if a in p.operands[i].axes and p.extents[a] > 1]
    k = [a for a in p.k if a in p.operands[i].axes]
    axes = [*side, *k] if inner else [*(a for a in side if a in p.batch), *k, *(a for a in side if a not in p.batch)]
    place: dict[int, Expr] = {a: Const(0, dt.i32) for a in range(len(p.extents))}
    place |= {a: Axis(n) for n, a in enumerate(axes)}
    shape = tuple(p.extents[a] for a in axes)
    body = substitute(guarded(p.operands[i].guards, p.operands[i].expr), place)
    buffers = (*kernel.buffers, Buffer(p.dtype, shape))
    stage = Stage(template(shape, kernel.root.params, body), kernel.stages[0].args, (len(kernel.buffers),))
    return Kernel((stage,), buffers), tuple(axes)


@lru_cache(maxsize=1024)
def _parts(kernel: Kernel, i: int, inner: bool) -> tuple[Kernel, Kernel]:
    """The kernel that writes operand i into one more buffer, and the kernel that multiplies from there."""
    (p,) = problems(kernel.root)  # type: ignore[misc]
    write, axes = _written(kernel, i, inner)
    root, last = kernel.stages[0], len(kernel.buffers)
    value = Read(len(root.args), tuple(Axis(a) for a in axes), p.dtype)
    multiplied = _multiplied(p, i, value)
    piece = Piece(p.piece.offset, p.piece.step, p.piece.extents, multiplied)
    matrix = write.buffers[last]
    t = Template(kernel.root.shape, (*kernel.root.params, (matrix.dtype, matrix.shape)), (piece, *p.beside))
    stage = Stage(t, (*root.args, ("buffer", last)), root.outputs)
    return write, Kernel((stage, *kernel.stages[1:]), write.buffers)


def _multiplied(p: Problem, i: int, value: Expr) -> Reduce:
    """The piece's sum with `value` in place of operand i."""
    other = p.operands[1 - i]
    own = tuple(g for g in other.guards if g not in p.exact)
    around = tuple(g for g in other.guards if g in p.exact)
    e = finished(p, guarded(around, apply("mul", value, guarded(own, other.expr))))
    assert isinstance(p.piece.body, Reduce)
    return Reduce("sum", p.piece.body.extents, (e,))
