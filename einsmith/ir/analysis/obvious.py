"""Bound linear forms without a search: from the ends of the axes, or from one given condition.

`bounds` finds these bounds too, by combining lines; most queries of most kernels need no more than these.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from einsmith.ir.analysis.linear import LinearForm, linear
from einsmith.ir.nodes import Apply, Axis, Expr

LowerBounds = Mapping[frozenset[tuple[Expr, int]], int]
"""Lower bounds of linear forms without their constants, by the forms' terms."""


def ends(form: LinearForm, extents: Sequence[int]) -> tuple[int, int] | None:
    """Return the least and the largest value of a linear form of axes over a non-empty box; None where the form
    contains other atoms or axes outside the box."""
    low = high = form.const
    for atom, c in form.terms.items():
        if not isinstance(atom, Axis) or atom.position >= len(extents):
            return None
        if c < 0:
            low += c * (extents[atom.position] - 1)
        else:
            high += c * (extents[atom.position] - 1)
    return low, high


def find_lower_bounds(guards: Iterable[Expr]) -> LowerBounds:
    """Return the lower bounds on linear forms, without their constants, that follow from integer comparisons that all
    hold."""
    out: dict[frozenset[tuple[Expr, int]], int] = {}
    for g in guards:
        if isinstance(g, Apply) and g.fn in ("lt", "le") and g.args[0].dtype.is_int:
            form = linear(g.args[1]) - linear(g.args[0])
            key = frozenset(form.terms.items())
            out[key] = max(out.get(key, -form.const), int(g.fn == "lt") - form.const)
    return out


def at_least(form: LinearForm, bound: int, extents: Sequence[int], known: LowerBounds) -> bool:
    """Return whether a form is proven to be at least `bound` over a non-empty box of axes. False: unknown, or it is
    not."""
    interval = ends(form, extents)
    if interval is not None and interval[0] >= bound:
        return True
    low = known.get(frozenset(form.terms.items()))
    return low is not None and form.const + low >= bound


def holds(cond: Expr, extents: Sequence[int], known: LowerBounds) -> bool:
    """Return whether an integer comparison is proven to hold all over a non-empty box. False: unknown, or it does
    not."""
    if not (isinstance(cond, Apply) and cond.fn in ("lt", "le") and cond.args[0].dtype.is_int):
        return False
    return at_least(linear(cond.args[1]) - linear(cond.args[0]), int(cond.fn == "lt"), extents, known)


def leaves(flat: LinearForm, extents: Sequence[int], size: int) -> bool | None:
    """Return whether an offset leaves a buffer of `size` elements somewhere in the box; None: it is not obvious."""
    reach = ends(flat, extents)
    return None if reach is None else reach[0] < 0 or reach[1] >= size
