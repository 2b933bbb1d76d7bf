"""Analyse the conditions in an expression: those around each read, and the positions on an axis where they change."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from einsmith.base import dtypes as dt
from einsmith.ir.analysis.guarded import collect_by_path, containing_selected
from einsmith.ir.analysis.linear import linear
from einsmith.ir.analysis.lines import COMPARISONS
from einsmith.ir.nodes import Apply, Axis, Const, Expr, Read, apply, cached_postorder, postorder

_MAX_VISITS = 256
"""Most expressions visited along separate paths."""


def guarded_reads(body: Expr, is_selected: Callable[[Read], bool]) -> Iterator[tuple[Read, tuple[Expr, ...]]]:
    """Yield (read, enclosing conditions) for every path to a selected Read.

    The chosen side of a `where` is under its condition, the other under its negation. A read under several conditions
    is repeated; if there are too many paths, it is yielded once, under one condition that says whether any path is
    taken. The order is that of evaluation: reads in an index before the read itself, those in a condition before those
    under it.
    """

    def is_read(e: Expr) -> bool:
        return isinstance(e, Read) and is_selected(e)

    def assume(guards: tuple[Expr, ...], condition: Expr, truth: bool) -> tuple[Expr, ...]:
        return (*guards, condition if truth else apply("not", condition))

    containing = containing_selected([body], is_read)
    outside: tuple[Expr, ...] = ()
    by_path = collect_by_path([body], outside, is_read, containing, assume, _MAX_VISITS)
    yield from _collect_by_expression(body, is_read, containing) if by_path is None else by_path  # type: ignore[misc]


def _collect_by_expression(
    body: Expr, is_selected: Callable[[Expr], bool], containing: set[Expr]
) -> Iterator[tuple[Expr, tuple[Expr, ...]]]:
    no, yes = Const(False, dt.bool_), Const(True, dt.bool_)
    order = [e for e in postorder([body]) if e in containing]
    reached: dict[Expr, Expr] = dict.fromkeys(order, no)
    reached[body] = yes
    for e in reversed(order):  # users of an expression come before it
        here = reached[e]
        for n, a in enumerate(e.args):
            if a not in containing or reached[a] is yes:
                continue
            under = here
            if n and isinstance(e, Apply) and e.fn == "where":
                c = e.args[0] if n == 1 else apply("not", e.args[0])
                under = c if here is yes else apply("where", here, c, no)  # c may read only where it is reached
            reached[a] = under if yes is under or reached[a] is no else apply("or", reached[a], under)
    for e in order:
        if is_selected(e):
            yield e, () if reached[e] is yes else (reached[e],)


def cuts_of(e: Expr, axis: Axis, extent: int) -> Iterator[int]:
    """Yield the positions within `extent` at which a comparison of this axis with a constant changes its value."""
    if not isinstance(e, Apply) or e.fn not in ("lt", "le", "eq", "ne") or not e.args[0].dtype.is_int:
        return
    form = linear(e.args[0]) - linear(e.args[1])
    c = form.coefficient(axis)
    if not c or len(form.terms) != 1:
        return
    k = form.const if e.fn != "le" else form.const - 1  # a < b: c*t + k < 0
    if e.fn in ("eq", "ne"):
        if k % c == 0:
            yield from (t for t in (-k // c, -k // c + 1) if 0 < t < extent)
        return
    cut = -(k // c) if c > 0 else k // -c + 1  # the first t with c*t + k >= 0, or < 0 where c is negative
    if 0 < cut < extent:
        yield cut


def compares_integers(exprs: tuple[Expr, ...]) -> bool:
    """Return whether an expression compares integers, as conditions on axes do."""
    return any(isinstance(e, Apply) and e.fn in COMPARISONS and e.args[0].dtype.is_int for e in cached_postorder(exprs))


def negate(c: Expr) -> Expr:
    """Return `not c`."""
    return c.args[0] if isinstance(c, Apply) and c.fn == "not" else apply("not", c)
