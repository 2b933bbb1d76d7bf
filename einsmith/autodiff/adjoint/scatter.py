"""Scatters in the reverse sweep. Contributions that are added at computed positions: what they cost, and those of a
max, which come from one point. What keeps the largest or smallest at computed positions: the points that attain it.

    C[i,j] = max[k](A[i,k] + B[k,j])  with the position  K[i,j] = argmax[k](A[i,k] + B[k,j])
    gathered   dA[i,k] = sum[j](where(K[i,j] == k, dC[i,j], 0))           (a point for every i, j, k)
    scattered  dA[i, K[i,j]] += dC[i,j]                                    (a point for every i, j)
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from einsmith import dtypes as dt
from einsmith import knobs
from einsmith.autodiff.adjoint.rules import choose, constant
from einsmith.autodiff.plan import AdjointPlan
from einsmith.expr.analysis.linear import LinearForm
from einsmith.expr.interned import Node
from einsmith.expr.nodes import Apply, Axis, Const, Expr, Piece, Read, Scatter, Template, apply, axes_of, postorder
from einsmith.expr.rewrite.rebuild import substitute

SCATTER_COST = 4
"""What a point of a Scatter costs, in points of a sum: its destination is looked up, sorted and added to in memory."""
CHOSEN_COST = 16
"""What one costs that a max chose, in points of the windows that it chose from: lanes run along those, while it is
added alone."""


def is_opaque(index: Sequence[Expr]) -> bool:
    """Whether an index reads a tensor or multiplies axes."""
    return any(isinstance(e, Read) or _is_product(e) for i in index for e in postorder([i]))


def _is_product(e: Node) -> bool:
    return isinstance(e, Apply) and e.fn not in ("add", "sub", "neg", "cast") and not _is_scaled(e)


def _is_scaled(e: Apply) -> bool:
    """A product with, or a division by, a constant."""
    return e.fn in ("mul", "floordiv", "mod") and any(isinstance(a, Const) for a in e.args)


def is_coupled(index: Sequence[Expr]) -> bool:
    """Whether an axis stands in two places of an index, as in X[i,i]: most of the tensor is then not read."""
    uses = Counter(a for i in index for a in axes_of(i))
    return any(n > 1 for n in uses.values())


def position(part: Piece | Scatter) -> tuple[Expr, ...]:
    """The output position of a point of a part."""
    if isinstance(part, Scatter):
        return part.index
    return tuple(
        LinearForm(o, {Axis(d): s} if n > 1 else {}).expr()
        for d, (o, s, n) in enumerate(zip(part.offset, part.step, part.extents, strict=True))
    )


class Attained(NamedTuple):
    """Whether a point of a part has the value that its position ends with, and how many points there do."""

    here: Expr
    points: Expr


def attained(t: Template, out: AdjointPlan, result: int, part: Piece | Scatter) -> Attained | None:
    """What the derivative of a scatter that keeps the largest or smallest value goes by: the points that attain it
    share it evenly, what the scatter starts from being one of them; where that is NaN, those that are. None of sums.
    `result`: the number of the scatter's result in the plan, which gets the count."""
    scatter = t.parts[-1]
    if not isinstance(scatter, Scatter) or scatter.combiner == "sum":
        return None

    def here(p: Piece | Scatter) -> Expr:  # a NaN is what it ends with, too
        value = p.bodies[-1]
        return apply("or", apply("eq", value, out.read(result, position(p))), apply("ne", value, value))

    def counted(p: Piece | Scatter) -> Expr:
        return choose(here(p), constant(1.0, p.bodies[-1]), 0.0)

    parts: list[Piece | Scatter] = [
        Scatter("sum", p.extents, p.index, counted(p)) if isinstance(p, Scatter)
        else Piece(p.offset, p.step, p.extents, counted(p)) for p in t.parts
    ]  # fmt: skip
    return Attained(here(part), out.read(out.add(t.shape, parts), position(part)))


def digits(part: Piece, position: Read) -> dict[int, Expr]:
    """The reduction axes of a piece where the row-major position in its box is `position`. Each is a remainder, which
    shows that it is within its extent."""
    out: dict[int, Expr] = {}
    rank, stride = len(part.extents), 1
    for k, n in reversed(list(enumerate(part.domain[rank:], rank))):
        high = position if stride == 1 else apply("floordiv", position, Const(stride, dt.i32))
        out[k] = apply("mod", high, Const(n, dt.i32)) if n > 1 else Const(0, dt.i32)
        stride *= n
    return out


def at_position(
    part: Piece, position: Read, index: Sequence[Expr], guards: Sequence[Expr], value: Expr
) -> tuple[tuple[Expr, ...], tuple[Expr, ...], Expr]:
    """Index, guards and value of a contribution with the reduction axes at the chosen point."""
    move = digits(part, position)
    moved = tuple(tuple(substitute(e, move) for e in es) for es in (index, guards))
    return moved[0], moved[1], substitute(value, move)


def report(what: str, gather: int, scatter: int, scattered: bool) -> None:
    """Prints a choice at EINSMITH_DEBUG=3."""
    if knobs.debug() >= 3:
        print(
            f"adjoint of {what}: gathered {gather} points, scattered {scatter}: "
            f"{'scattered' if scattered else 'gathered'}",
            file=sys.stderr,
        )
