"""The reads of an expression with the conditions under which each is evaluated."""

from __future__ import annotations

from collections.abc import Iterator

from einsmith import dtypes as dt
from einsmith.expr.nodes import Apply, Axis, Const, Expr, Read, apply, postorder


def guarded_reads(body: Expr) -> Iterator[tuple[Read, tuple[Expr, ...]]]:
    """(read, enclosing conditions) for every path to a Read: the chosen side of a `where` lies under its condition,
    the other under its negation. The same read under other conditions comes again."""
    seen: set[tuple[Expr, tuple[Expr, ...]]] = set()
    stack: list[tuple[Expr, tuple[Expr, ...]]] = [(body, ())]
    while stack:
        e, guards = stack.pop()
        if (e, guards) in seen:
            continue
        seen.add((e, guards))
        if isinstance(e, Read):
            yield e, guards
        if isinstance(e, Apply) and e.fn == "where":
            c, a, b = e.args
            stack += [(c, guards), (a, (*guards, c)), (b, (*guards, apply("not", c)))]
        else:
            stack += [(a, guards) for a in e.args]


def conjunction(conditions: tuple[Expr, ...]) -> Expr:
    """All conditions at once; true where there are none."""
    out: Expr | None = None
    for c in conditions:
        out = c if out is None else apply("and", out, c)
    return Const(True, dt.bool_) if out is None else out


def has_read(e: Expr) -> bool:
    return any(isinstance(x, Read) for x in postorder([e]))


def axes_of(*exprs: Expr) -> set[int]:
    """Positions of the axes that occur in the expressions."""
    return {x.position for x in postorder(exprs) if isinstance(x, Axis)}
