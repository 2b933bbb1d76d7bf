"""Scatter contributions at computed positions in the reverse sweep, and count the cost.

The contribution of a max comes from the chosen point alone; that of a scatter that keeps the largest or smallest value,
from the points that attain it.

    C[i,j] = max[k](A[i,k] + B[k,j])  with the position  K[i,j] = argmax[k](A[i,k] + B[k,j])
    gathered   dA[i,k] = sum[j](where(K[i,j] == k, dC[i,j], 0))           (a point for every i, j, k)
    scattered  dA[i, K[i,j]] += dC[i,j]                                    (a point for every i, j)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from einsmith.autodiff.adjoint.terms import guard
from einsmith.autodiff.plan import AdjointPlan
from einsmith.base import dtypes as dt
from einsmith.base import environment, messages
from einsmith.base.errors import GradientError
from einsmith.ir.adjoint_rules import choose, constant
from einsmith.ir.analysis.linear import LinearForm, row_major_number
from einsmith.ir.interned import Node
from einsmith.ir.nodes import (
    Apply,
    Axis,
    Const,
    Expr,
    Piece,
    Read,
    Reduce,
    Scatter,
    Template,
    apply,
    axes_of,
    postorder,
    template,
)
from einsmith.ir.rebuild import substitute

SCATTER_COST = 4
"""Cost of a point of a Scatter, in points of a sum: its destination is looked up, sorted and added to in memory."""
CHOSEN_COST = 16
"""Cost of a point that a max chose, in points of the windows that it chose from: windows are read in vectors, while the
chosen point is added alone."""


def is_opaque(index: Sequence[Expr]) -> bool:
    """Return whether an index reads a tensor or multiplies axes."""
    return any(isinstance(e, Read) or _is_product(e) for i in index for e in postorder([i]))


def _is_product(e: Node) -> bool:
    return isinstance(e, Apply) and e.fn not in ("add", "sub", "neg", "cast") and not _is_scaled(e)


def _is_scaled(e: Apply) -> bool:
    """Return whether an operation multiplies or divides by a constant."""
    return e.fn in ("mul", "floordiv", "mod") and any(isinstance(a, Const) for a in e.args)


def is_coupled(index: Sequence[Expr]) -> bool:
    """Return whether an axis occurs in two dimensions of an index, as in X[i,i]: most of the tensor is then not
    read."""
    uses = Counter(a for i in index for a in axes_of(i))
    return any(n > 1 for n in uses.values())


def position(part: Piece | Scatter) -> tuple[Expr, ...]:
    """Return the output position of a point of a part."""
    if isinstance(part, Scatter):
        return part.index
    return tuple(
        LinearForm(o, {Axis(d): s} if n > 1 else {}).expr()
        for d, (o, s, n) in enumerate(zip(part.offset, part.step, part.extents, strict=True))
    )


def hold_somewhere(out: AdjointPlan, extents: Sequence[int], rank: int, conditions: Sequence[Expr]) -> Expr:
    """Return the condition, on the first `rank` axes of a box, that conditions hold at some points along the others.
    `extents` are those of the box; a tensor that counts the points is added to the plan `out`."""
    axes = sorted(axes_of(*conditions))
    place = [a for a in axes if a < rank]
    move: dict[int, Expr] = {a: Axis(n) for n, a in enumerate(axes)}
    one, zero = Const(1, dt.i32), Const(0, dt.i32)
    term = substitute(guard(tuple(conditions), one, zero), move)
    sums = Reduce("sum", tuple(extents[a] for a in axes if a >= rank), (term,))
    box = tuple(extents[a] for a in place)
    return apply("lt", zero, out.read(out.add(box, template(box, (), sums).parts), [Axis(a) for a in place]))


class AttainedPoints(NamedTuple):
    """The condition that a point of a part attains the final value at its position, and the number of points that
    do."""

    here: Expr
    points: Expr


def select_attaining(t: Template, out: AdjointPlan, result: int, part: Piece | Scatter) -> AttainedPoints | None:
    """Return the points that attain the value of a scatter that keeps the largest or smallest; None for sums. These
    points share the derivative evenly, the initial value being one of them; if the value is NaN, the points that are
    NaN share it. `result` is the number of the scatter's result in the plan `out`, to which the count is added."""
    scatter = t.parts[-1]
    if not isinstance(scatter, Scatter) or scatter.combiner == "sum":
        return None
    if scatter.combiner == "prod":
        raise GradientError(
            "elements that are multiplied at an index, `y[k[i]] *= ..`, have no gradient here; "
            "`es.functional.scatter(.., reduce='multiply')` has one"
        )

    def is_attained(p: Piece | Scatter) -> Expr:  # a NaN attains the final value, too
        value = p.bodies[-1]
        return apply("or", apply("eq", value, out.read(result, position(p))), apply("ne", value, value))

    def count_attained(p: Piece | Scatter) -> Expr:
        return choose(is_attained(p), constant(1.0, p.bodies[-1]), 0.0)

    parts: list[Piece | Scatter] = [
        Scatter("sum", p.extents, p.index, count_attained(p))
        if isinstance(p, Scatter)
        else Piece(p.offset, p.step, p.extents, count_attained(p))
        for p in t.parts
    ]
    return AttainedPoints(is_attained(part), out.read(out.add(t.shape, parts), position(part)))


def row_major_position(part: Piece) -> Expr:
    """Return the row-major position of a point in the reduction box of a piece, an expression of the axes."""
    rank = len(part.extents)
    extents = part.domain[rank:]
    return row_major_number([Axis(rank + k) for k in range(len(extents))], extents)


def split_position(part: Piece, position: Read) -> dict[int, Expr]:
    """Return the reduction axes of a piece at row-major position `position` of its box. Each is a remainder, which
    proves that it is within its extent."""
    out: dict[int, Expr] = {}
    rank, stride = len(part.extents), 1
    for k, n in reversed(list(enumerate(part.domain[rank:], rank))):
        high = position if stride == 1 else apply("floordiv", position, Const(stride, dt.i32))
        out[k] = apply("mod", high, Const(n, dt.i32)) if n > 1 else Const(0, dt.i32)
        stride *= n
    return out


def substitute_position(
    part: Piece, position: Read, index: Sequence[Expr], guards: Sequence[Expr], value: Expr
) -> tuple[tuple[Expr, ...], tuple[Expr, ...], Expr]:
    """Return index, guards and value of a contribution with the reduction axes at the chosen point."""
    move = split_position(part, position)
    substituted = tuple(tuple(substitute(e, move) for e in es) for es in (index, guards))
    return substituted[0], substituted[1], substitute(value, move)


def report_choice(what: str, gather: int, scatter: int, scattered: bool) -> None:
    """Print the choice between gather and scatter at EINSMITH_DEBUG=3."""
    if environment.debug() >= 3:
        messages.say(
            f"adjoint of {what}: gathered {gather} points, scattered {scatter}: "
            f"{'scattered' if scattered else 'gathered'}"
        )
