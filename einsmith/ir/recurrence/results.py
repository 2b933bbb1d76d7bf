"""Split a multi-output reduction into one tensor per result, where only one result fits: a recurrence's members.

before   (m[t], i[t]) = argmax[k](s[t, k])
after    m[t] = max[k](s[t, k]);  i[t] = min[k](where(s[t, k] == m[t], k, K-1))
"""

from __future__ import annotations

from collections.abc import Sequence

from einsmith.base import dtypes as dt
from einsmith.ir.analysis.linear import LinearForm
from einsmith.ir.nodes import (
    Axis,
    Compute,
    Const,
    Expr,
    Piece,
    Read,
    Reduce,
    Template,
    Tensor,
    apply,
)
from einsmith.ir.rebuild import template_over
from einsmith.ir.rewrite.simplify import canonical


def split_results(t: Template, args: Sequence[Tensor]) -> list[Compute]:
    """Return one tensor for each result of a multi-output reduction's template."""
    out: list[Compute] = []
    for m in range(len(t.dtypes)):
        parts = []
        for p in t.parts:
            assert isinstance(p, Piece) and isinstance(p.body, Reduce)
            r = p.body
            if not r.combiner.startswith("arg"):
                body = Reduce(r.combiner, r.extents, (r.bodies[m],))
            elif m == 0:
                body = Reduce(r.combiner[3:], r.extents, r.bodies)
            else:
                body = Reduce("min", r.extents, (_position(p, r, len(t.params), t.dtypes[0]),))
            parts.append(Piece(p.offset, p.step, p.extents, body))
        whole = (*args, *out[:1])
        out.append(canonical(template_over(whole, t.shape, parts), whole))
    return out


def _position(p: Piece, r: Reduce, slot: int, dtype: dt.DType) -> Expr:
    """Return the expression for a point's row-major position over the reduction's axes if it holds the chosen value,
    else the last position. If some value is NaN, the chosen value is NaN."""
    flat, stride = LinearForm(), 1
    for d in reversed(range(len(r.extents))):
        if r.extents[d] > 1:
            flat = flat + LinearForm(0, {Axis(len(p.extents) + d): stride})
        stride *= r.extents[d]
    at: list[Expr] = []
    for d, (o, s, n) in enumerate(zip(p.offset, p.step, p.extents, strict=True)):
        at.append(LinearForm(o, {Axis(d): s} if n > 1 else {}).expr())
    chosen, body = Read(slot, tuple(at), dtype), r.bodies[0]
    here = apply("eq", body, chosen)
    if dtype.is_float:
        here = apply("or", here, apply("ne", body, body))
    return apply("where", here, flat.expr(), Const(stride - 1, dt.i32))
