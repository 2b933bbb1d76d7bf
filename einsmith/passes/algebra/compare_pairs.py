"""Rewrite selections by rank as comparisons of all pairs, where rows are short or the back end cannot sort.

before: P[b, k] = argkmin[j](X[b, j], k)
after:  R[b, j] = sum[i](where(X[b, i] < X[b, j] or (X[b, i] == X[b, j] and i < j), 1, 0))
        P[b, k] = sum[j](where(R[b, j] == k, j, 0))

NaN is compared as infinity, and comes after it by its position: i + n instead of i in a row of n.
"""

from __future__ import annotations

from math import inf

from einsmith.base import dtypes as dt
from einsmith.cost.facts import CPU
from einsmith.ir.analysis.linear import row_major_number
from einsmith.ir.functions import SELECTIONS
from einsmith.ir.nodes import (
    Apply,
    Axis,
    Compute,
    Const,
    Expr,
    Graph,
    Piece,
    Read,
    Reduce,
    apply,
    axes_of,
    cast,
    size,
    template,
)
from einsmith.ir.rebuild import replace, substitute
from einsmith.ir.rewrite.simplify import canonical
from einsmith.passes.context import PassContext

SHORT = 96
"""Most elements of a row whose pairs are compared. 4,096 rows of 64 and 100 float32 took 3.0 and 4.3 ms so, and 5.5 and
6.3 to 7.6 ms sorted; of 128 4.1 ms sorted (one core of an Intel Xeon with AVX-512)."""


def compare_pairs(graph: Graph, context: PassContext) -> Graph:
    """Return the graph with the selections of short rows as comparisons; on other back ends than the CPU's, of all."""
    longest = SHORT if context.target.backend == CPU else None

    def rewrite(node: Compute) -> Compute | None:
        return _compare_pairs(node, longest) if isinstance(node, Compute) else None

    return replace(graph, rewrite)


def _compare_pairs(node: Compute, longest: int | None) -> Compute | None:
    t = node.template
    part = t.parts[0]
    if len(t.parts) > 1 or not isinstance(part, Piece) or not isinstance(part.body, Reduce):
        return None
    reduction = part.body
    if reduction.combiner not in SELECTIONS or (longest is not None and size(reduction.extents) > longest):
        return None
    key, of_rank = reduction.bodies
    rows = sorted(a for a in axes_of(key) if a < t.rank)
    shape = (*(t.shape[a] for a in rows), *reduction.extents)
    box = {a: Axis(n) for n, a in enumerate(rows)}
    box |= {t.rank + n: Axis(len(rows) + n) for n in range(len(reduction.extents))}
    keys = canonical(template(shape, t.params, substitute(key, box)), node.args)
    ranks = _count_before(keys, len(rows), reduction.combiner == "argkmax")
    index = (*(Axis(a) for a in rows), *(Axis(t.rank + n) for n in range(len(reduction.extents))))
    read = Read(len(t.params), index, ranks.dtype)
    position = row_major_number(index[len(rows) :], reduction.extents)
    chosen = apply("where", apply("eq", read, cast(of_rank, ranks.dtype)), position, Const(0, position.dtype))
    params = (*t.params, (ranks.dtype, shape))
    return canonical(template(t.shape, params, Reduce("sum", reduction.extents, (chosen,))), (*node.args, ranks))


def _count_before(keys: Compute, rows: int, descending: bool) -> Compute:
    """Return the number of elements of its row that come before each element. rows: the dimensions that number rows."""
    shape, dtype = keys.shape, keys.dtype
    rank, extents = len(shape), shape[rows:]
    own = tuple(map(Axis, range(rank)))
    other = (*own[:rows], *(Axis(rank + n) for n in range(len(extents))))

    def compared(index: tuple[Axis, ...]) -> tuple[Expr, Expr]:
        """Return the pair by which elements are ordered: the key (NaN as infinity), and a number that breaks ties."""
        key: Expr = Read(0, index, dtype)
        number = row_major_number(index[rows:], extents)
        if not dtype.is_float:
            return key, number
        is_number, later = apply("eq", key, key), apply("add", number, Const(size(extents), dt.i32))
        numbers = (later, number) if descending else (number, later)
        return apply("where", is_number, key, Const(inf, dtype)), apply("where", is_number, *numbers)

    (a, m), (b, n) = compared(other), compared(own)
    is_before: Apply = apply("lt", *((b, a) if descending else (a, b)))
    tied = apply("and", apply("eq", a, b), apply("lt", m, n))
    count = apply("where", apply("or", is_before, tied), Const(1, dt.i32), Const(0, dt.i32))
    return canonical(template(shape, [(dtype, shape)], Reduce("sum", extents, (count,))), (keys,))
