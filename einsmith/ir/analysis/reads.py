"""Collect the reads of expressions: indices, axes, and bytes of an element."""

from __future__ import annotations

from functools import lru_cache

from einsmith.ir.analysis.linear import LinearForm, linear
from einsmith.ir.nodes import Axis, Expr, Read, Template, has_read, outermost, reads

Uses = tuple[tuple[LinearForm, ...], frozenset[int]]
"""The index of every read, and the axes that are used other than as a term of a read's index."""


@lru_cache(maxsize=4096)
def uses(exprs: tuple[Expr, ...]) -> Uses:
    """Return the indices of all reads in expressions, as linear forms, and the axes that are used otherwise."""
    indices, others = _walk(exprs)
    return tuple([index for index, _ in indices]), frozenset(others)


@lru_cache(maxsize=4096)
def item_sizes(exprs: tuple[Expr, ...]) -> tuple[int, ...]:
    """Return the bytes of an element at each of the indices of `uses`."""
    return tuple([size for _, size in _walk(exprs)[0]])


def has_data_index(t: Template) -> bool:
    """Return whether a template reads at positions that are read from tensors."""
    return any(has_read(i) for p in t.parts for b in p.bodies for r in reads(b) for i in r.index)


def _walk(exprs: tuple[Expr, ...]) -> tuple[list[tuple[LinearForm, int]], set[int]]:
    """Return the index of every read with the bytes of an element, and the axes that are used otherwise."""
    indices: list[tuple[LinearForm, int]] = []
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
                indices.append((linear(i), e.dtype.itemsize))
                todo += indices[-1][0].atoms
        else:
            todo += e.args
    return indices, others


@lru_cache(maxsize=4096)
def outer_reads(exprs: tuple[Expr, ...]) -> tuple[Read, ...]:
    """Return the reads that are not nested in another read's index."""
    return tuple(outermost(exprs, Read))
