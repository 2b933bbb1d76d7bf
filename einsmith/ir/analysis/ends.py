"""Find the ends that conditions put on an axis."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from einsmith.base import dtypes as dt
from einsmith.ir.analysis.linear import LinearForm, linear
from einsmith.ir.nodes import Apply, Axis, Const, Expr, axes_of, has_read
from einsmith.ir.rebuild import operands


class AxisEnd(NamedTuple):
    """A condition that holds from a position of an axis on (`low`), or below it.

    `at`: the position, in terms of other axes and of data.
    """

    low: bool
    at: Expr


def end_of(condition: Expr, axis: int) -> AxisEnd | None:
    """Return the end that an integer comparison puts on an axis; None for other conditions."""
    c = condition
    if not isinstance(c, Apply) or c.fn not in ("lt", "le") or not c.args[0].dtype.is_int:
        return None
    form = _form(c.args[1], axis) - _form(c.args[0], axis) - int(c.fn == "lt")
    rest, sign = form.without(Axis(axis)), form.coefficient(Axis(axis))
    if abs(sign) != 1 or axis in axes_of(*rest.terms):
        return None
    # Positions are exact in i64; elements may differ from them by more than their type holds.
    return AxisEnd(True, (rest * -1).expr(dt.i64)) if sign == 1 else AxisEnd(False, (rest + 1).expr(dt.i64))


def _form(side: Expr, axis: int) -> LinearForm:
    """Return the linear form of a comparison's side; a side of elements alone is one atom, since their sums wrap in
    their type."""
    if has_read(side) and axis not in axes_of(side):
        return LinearForm(0, {side: 1})
    return linear(side)


def guards_around(body: Expr, otherwise: float | int | bool) -> Iterator[tuple[Expr, bool]]:
    """Yield the conditions of nested `where`s around a body whose other side is this constant, from the outermost.

    Each comes with whether it can be evaluated at all positions of the axes, as the outermost can. Reads in inner
    conditions may be in bounds only where the outer conditions hold.
    """
    outermost = True
    while isinstance(body, Apply) and body.fn == "where":
        condition, inner, rest = body.args
        if not (isinstance(rest, Const) and rest.value == otherwise):
            return
        for c in operands(condition, "and"):
            yield c, outermost
        body, outermost = inner, False
