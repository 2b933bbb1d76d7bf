"""Change the reduction variable (loop skewing) where that makes the accesses contiguous along the outputs.

Before: out[m] = sum[j](where(0 <= j-m+255 and j-m+255 < 256, x[j-m+255, j], 0)), whose neighbours in m lie a row apart.
After:  out[m] = sum[i](where(0 <= i+m-255 and i+m-255 < 256, x[i, i+m-255], 0)), i being j-m+255: they are neighbours.
The points and their order do not change, so the results are bitwise equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial, reduce

from einsmith.base import dtypes as dt
from einsmith.ir.analysis.linear import LinearForm, linear, nonnegative
from einsmith.ir.analysis.reads import uses
from einsmith.ir.functions import identity
from einsmith.ir.nodes import Apply, Axis, Const, Expr, Read, apply, has_read
from einsmith.ir.rebuild import operands, rebuild
from einsmith.ir.rewrite.simplify import simplify
from einsmith.kernels.emit import boxes
from einsmith.kernels.emit.boxes import Box

_PRICED_LANES = 8
"""Lanes of the vectors for which the costs of reduction variables are compared."""
_MAX_GROWTH = 2
"""Most points of the new reduction variable, as a multiple of the points of the old one."""


@lru_cache(maxsize=2048)
def skew(box: Box) -> Box:
    """Return the box with the cheapest reduction variable among those that its guard bounds.

    Only a box of one body changes, a `where` whose other side is the combiner's identity. Arg-reductions stay, because
    a new variable would change the positions; so does a box whose cost would not halve."""
    body = box.bodies[0]
    if box.combiner is None or box.combiner.startswith("arg") or len(box.bodies) > 1 or not (box.rank and box.reduce):
        return box
    if not (isinstance(body, Apply) and body.fn == "where" and isinstance(body.args[2], Const)):
        return box
    if body.args[2].value != identity(box.combiner, body.dtype):
        return box
    best, least = box, _estimate_cost(box)
    for axis, shift, extent in _find_variables(box.extents, box.reduce, body.args[0]):
        skewed = _substitute(box, body, axis, shift, extent)
        if _estimate_cost(skewed) < 0.5 * least:
            best, least = skewed, _estimate_cost(skewed)
    return best


def _estimate_cost(box: Box) -> float:
    flats = uses(box.bodies)[0]
    extents = box.extents + box.reduce
    each = min(
        (boxes.access_cost(flats, a, _PRICED_LANES) + 1) / boxes.lane_utilization(n, _PRICED_LANES)
        for a, n in enumerate(extents)
    )
    return each * box.reduced


def _find_variables(extents: Sequence[int], reduce: Sequence[int], guard: Expr) -> list[tuple[int, LinearForm, int]]:
    """Return (reduction axis r, terms s of output axes, extent n) for each bound 0 <= r + s < n of the guard."""
    rank = len(extents)
    bounds = [x for e in operands(guard, "and") if (x := nonnegative(e)) is not None]
    out = []
    for low in bounds:
        for high in bounds:
            total = low + high
            if total.terms or not 0 <= total.const:
                continue
            for r in range(rank, rank + len(reduce)):
                others = low - LinearForm(0, {Axis(r): 1})
                affine = all(isinstance(a, Axis) and a.position < rank for a in others.terms)
                if affine and others.terms and total.const + 1 <= _MAX_GROWTH * reduce[r - rank]:
                    out.append((r, others, total.const + 1))
    return out


def _substitute(box: Box, body: Apply, axis: int, shift: LinearForm, extent: int) -> Box:
    """Return the box with r + shift as its reduction variable, r being its reduction axis `axis`."""
    old = (linear(Axis(axis)) - shift).expr()
    low, high = Const(0, dt.i32), Const(box.reduce[axis - box.rank] - 1, dt.i32)

    def rule(e):
        if isinstance(e, Axis) and e.position == axis:
            return old
        if isinstance(e, Read) and e.index:
            return Read(e.slot, (linear(e.index[0]).expr(e.index[0].dtype),), e.dtype)
        return None

    (new,) = rebuild([body], rule)
    extents = list(box.reduce)
    extents[axis - box.rank] = extent
    # What the guard reads is read where the old variable had a point alone: its other parts are a guard around it.
    conditions: dict[bool, list[Expr]] = {True: [], False: [apply("le", low, old), apply("le", old, high)]}
    for c in operands(new.args[0], "and"):
        conditions[has_read(c)].append(c)
    value: Expr = new.args[1]
    for some in filter(None, conditions.values()):
        value = apply("where", reduce(partial(apply, "and"), some), value, new.args[2])
    return replace(box, reduce=tuple(extents), bodies=(simplify(value, (*box.extents, *extents)),))
