"""The conditions in an expression: those around each read, and where along an axis they change."""

from __future__ import annotations

from collections.abc import Iterator

from einsmith.expr.linear import linear
from einsmith.expr.nodes import Apply, Axis, Expr, Read, apply, postorder


def guarded_reads(body: Expr) -> Iterator[tuple[Read, tuple[Expr, ...]]]:
    """(read, enclosing conditions) for every path to a Read: the chosen side of a `where` lies under its condition,
    the other under its negation. The same read under other conditions comes again. In the order of evaluation: the
    reads in an index before the read itself, those in a condition before those under it."""
    seen: set[tuple[Expr, tuple[Expr, ...]]] = set()
    stack: list[tuple[Expr, tuple[Expr, ...], bool]] = [(body, (), False)]
    while stack:
        e, guards, done = stack.pop()
        if done:
            assert isinstance(e, Read)
            yield e, guards
            continue
        if (e, guards) in seen:
            continue
        seen.add((e, guards))
        if isinstance(e, Read):
            stack.append((e, guards, True))
        if isinstance(e, Apply) and e.fn == "where":
            c, a, b = e.args
            stack += [(b, (*guards, apply("not", c)), False), (a, (*guards, c), False), (c, guards, False)]
        else:
            stack += [(a, guards, False) for a in reversed(e.args)]


def has_read(e: Expr) -> bool:
    return any(isinstance(x, Read) for x in postorder([e]))


def axes_of(*exprs: Expr) -> set[int]:
    """Positions of the axes that occur in the expressions."""
    return {x.position for x in postorder(exprs) if isinstance(x, Axis)}


def cuts_of(e: Expr, axis: Axis, extent: int) -> Iterator[int]:
    """The positions within `extent` from which on a comparison of this axis with a constant has another value."""
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
