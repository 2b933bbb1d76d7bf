"""What expressions read: where, and with which axes."""

from __future__ import annotations

from functools import lru_cache

from einsmith.expr.analysis.linear import Linear, linear
from einsmith.expr.nodes import Axis, Expr, Read, outermost

Uses = tuple[tuple[Linear, ...], frozenset[int]]
"""The index of every read, and the axes that are used otherwise than as a term of such an index."""


@lru_cache(maxsize=4096)
def uses(exprs: tuple[Expr, ...]) -> Uses:
    indices: list[Linear] = []
    others: set[int] = set()
    seen: set[Expr] = set()
    todo = list(exprs)
    while todo:
        e = todo.pop()
        if e in seen:
            continue
        seen.add(e)
        if isinstance(e, Axis):
            others.add(e.position)
        elif isinstance(e, Read):
            for i in e.index:
                indices.append(linear(i))
                todo += indices[-1].atoms
        else:
            todo += e.args
    return tuple(indices), frozenset(others)


@lru_cache(maxsize=4096)
def outer_reads(exprs: tuple[Expr, ...]) -> tuple[Read, ...]:
    """The reads that stand in no other read's index."""
    return tuple(outermost(exprs, Read))
