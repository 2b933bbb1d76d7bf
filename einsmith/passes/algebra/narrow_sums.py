"""Narrow integer sums: add terms in int32 instead of int64 where no sum can leave int32.

before: Y[i, j] = sum[k](i64(i32(A[i, k])*i32(B[k, j])))            with A, B of 8 bits and 100 values of k
after:  S[i, j] = sum[k](i32(A[i, k])*i32(B[k, j]));  Y[i, j] = i64(S[i, j])

The types of the operands bound each term, and the number of terms bounds the sum. A vector holds twice as many sums of
32 bits, and processors have instructions for them (`kernels.contraction.words`).
"""

from __future__ import annotations

from einsmith.base import dtypes as dt
from einsmith.ir.analysis.ranges import leaves, range_by_types
from einsmith.ir.nodes import (
    Apply,
    Compute,
    Expr,
    Graph,
    Piece,
    Reduce,
    Template,
    apply,
    cast,
    is_zero,
    read_whole,
    size,
    template,
)
from einsmith.ir.rebuild import map_bodies, replace, retyped


def narrow_sums(graph: Graph) -> Graph:
    """Return the graph with sums added in int32 where these and their terms fit."""
    return replace(graph, _narrow)


def _narrow(node: Compute) -> Compute | None:
    narrow = node.template.memo("narrow sums", _narrow_template) if isinstance(node, Compute) else None
    if narrow is None:
        return None
    shape = node.shape
    whole = cast(read_whole(0, shape, dt.i32), dt.i64)
    return Compute(template(shape, [(dt.i32, shape)], whole), (Compute(narrow, node.args),))


def _narrow_template(t: Template) -> Template | None:
    """Return a template of int64 sums with terms and sums in int32; None where they may leave it, or are others."""
    if t.is_scatter or t.dtypes != (dt.i64,):
        return None
    for part in t.parts:
        assert isinstance(part, Piece)
        if not isinstance(part.body, Reduce) or part.body.combiner != "sum":
            return None
        reach, count = range_by_types(part.body.bodies[0]), size(part.body.extents)
        if reach is None or leaves((min(0, reach[0]) * count, max(0, reach[1]) * count), dt.i32):
            return None
    return map_bodies(t, _in_int32)


def _in_int32(x: Expr) -> Expr:
    """Return the value of x modulo 2^32 as an int32, within a guard that stands around it."""
    if isinstance(x, Apply) and x.fn == "where" and is_zero(x.args[2]):
        return apply("where", x.args[0], _in_int32(x.args[1]), cast(x.args[2], dt.i32))
    return retyped(x, dt.i32)
