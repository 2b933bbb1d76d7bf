"""Find the products of a traced network that integers can compute, and the tensors that they read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from einsmith.base import dtypes as dt
from einsmith.ir.nodes import Compute, Expr, Piece, Read, Reduce, Tensor, postorder, size
from einsmith.ir.rebuild import readers_of, substitute
from einsmith.ir.rewrite.simplify import simplify
from einsmith.schedule.contraction_problem import Problem, problems

MAX_TERM = 255 * 127
"""Greatest magnitude of a product of an integer minus its zero point and a signed integer."""


class ProductFactor(NamedTuple):
    """An operand of a product: a tensor, and the index (place) at which the product reads it."""

    tensor: Tensor
    place: tuple[Expr, ...]


def is_separable(p: Problem) -> bool:
    """Return whether each operand of a product has an axis of its own."""
    _, left, right, _ = p.sizes
    return min(left, right) > 1


def may_leave_int32(p: Problem, term: int) -> bool:
    """Return whether sums of terms of at most this magnitude may leave int32."""
    return p.count(p.k) * term >= 2**31


@dataclass(frozen=True)
class Site:
    """A product that integers may compute.

    node: the product; problem: its sum; factors: its operands, left and right; name: its name in messages; weight:
    which factor is a weight, None if none is
    """

    node: Compute
    problem: Problem
    factors: tuple[ProductFactor, ProductFactor]
    name: str
    weight: int | None

    @property
    def is_separable(self) -> bool:
        """True if each operand has an axis of its own. Other products are computed in float32, from 8 bits."""
        return is_separable(self.problem)

    @property
    def why_not(self) -> str:
        """Why int32 sums cannot compute the product; empty if they can."""
        if may_leave_int32(self.problem, MAX_TERM):
            return f"sums of {self.problem.count(self.problem.k)} products of 8-bit integers may leave int32"
        if self.factors[0].tensor is self.factors[1].tensor:
            return "both factors are one tensor"
        return ""


def find_sites(roots: Iterable[Tensor], weights: Mapping[Tensor, str], order: Mapping[Tensor, int]) -> list[Site]:
    """Return the products in the graph of `roots`, in the order in which they are traced.

    weights: the names of the tensors that are weights; order: numbers of traced tensors (`trace.recording_order`), by
    which products without a weight, and their factors, are named whatever the extents are.
    """
    out: list[Site] = []
    others = 0
    nodes = list(postorder(roots))
    readers = readers_of(nodes)
    matched = [(n, match) for n in nodes if isinstance(n, Compute) and (match := match_product(n)) is not None]
    for node, (p, factors) in sorted(matched, key=lambda x: _place(x[0], readers, order)):
        owned = [i for i, f in enumerate(factors) if f.tensor in weights]
        if len(owned) == 2:
            continue
        if owned:
            name = weights[factors[owned[0]].tensor]
        else:
            others += 1
            name = f"product {others}"
            if _place(factors[1].tensor, readers, order) < _place(factors[0].tensor, readers, order):
                p = replace(p, operands=p.operands[::-1], left=p.right, right=p.left)
                factors = factors[::-1]
        out.append(Site(node, p, factors, name, owned[0] if owned else None))
    return out


def _place(t: Tensor, readers: Mapping[Tensor, Sequence[Tensor]], order: Mapping[Tensor, int]) -> int:
    """Return the number of a tensor, or, where it is a part of a function's formula, of the first result that needs
    it."""
    level, seen = [t], {t}
    while level:
        known = [order[x] for x in level if x in order]
        if known:
            return min(known)
        level = [r for r in dict.fromkeys(r for x in level for r in readers.get(x, ())) if r not in seen]
        seen.update(level)
    return len(order)


def match_product(node: Compute) -> tuple[Problem, tuple[ProductFactor, ProductFactor]] | None:
    """Return a tensor as a sum of products of two tensors' elements, with the tensors; None for others."""
    t = node.template
    part = t.parts[0]
    if len(t.parts) != 1 or not isinstance(part, Piece) or not isinstance(part.body, Reduce) or t.is_scatter:
        return None
    matched = problems(t)
    if matched is None or len(matched) != 1 or matched[0].dtype is not dt.f32 or part.extents != t.shape:
        return None
    (p,) = matched
    if p.count((*p.left, *p.right)) == 1 or p.count(p.k) == 1:
        return None
    factors = []
    for o in p.operands:
        if not isinstance(o.expr, Read):
            return None
        factors.append(resolve(ProductFactor(node.args[o.expr.slot], o.expr.index), p.extents))
    return p, (factors[0], factors[1])


def movement_of(t: Tensor) -> Read | None:
    """Return the read of a tensor that has the elements of another one in another order; None for others.

    A part of a tensor is a tensor of its own: queries, keys and values may be parts of one.
    """
    if not isinstance(t, Compute) or len(t.template.parts) != 1 or len(t.args) != 1:
        return None
    part = t.template.parts[0]
    is_whole = isinstance(part, Piece) and part.extents == t.shape and size(t.shape) == size(t.args[0].shape)
    return part.body if is_whole and isinstance(part.body, Read) else None


def resolve(f: ProductFactor, extents: Sequence[int]) -> ProductFactor:
    """Return a factor as a read of the tensor whose elements it moves; extents: those of the axes."""
    while (body := movement_of(f.tensor)) is not None:
        index = tuple(simplify(substitute(i, dict(enumerate(f.place))), extents) for i in body.index)
        f = ProductFactor(f.tensor.args[body.slot], index)
    return f


def pooled_of(t: Tensor) -> Tensor | None:
    """Return the tensor of whose elements a tensor holds the largest in windows (max pooling); None for others."""
    if not isinstance(t, Compute) or len(t.args) != 1 or len(t.template.dtypes) != 1:
        return None
    bodies = [part.body for part in t.template.parts]
    is_pooling = all(isinstance(b, Reduce) and b.combiner == "max" for b in bodies)
    return t.args[0] if is_pooling and size(t.shape) < size(t.args[0].shape) else None
