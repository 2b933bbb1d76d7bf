"""Indices computed from integer tensors become checks of the graph (ALGORITHMS D).

before: Y[b] = X[b, ids[b]]
after:  the same, and a check: sum[b](0 where 0 <= ids[b] < X.shape[1], else 1), which must be 0
"""

from __future__ import annotations

from collections.abc import Iterable

from einsmith import dtypes as dt
from einsmith.expr.nodes import (
    Axis,
    Compute,
    Const,
    Expr,
    Reduce,
    Scatter,
    Tensor,
    apply,
    cast,
    postorder,
    template,
)
from einsmith.expr.printer import show
from einsmith.expr.rewrite import prune_args, substitute
from einsmith.expr.simplify import simplify_template
from einsmith.passes.guards import axes_of, guarded_reads, has_read


def index_checks(roots: Iterable[Tensor]) -> tuple[tuple[Tensor, str], ...]:
    """(count of violations, message) for every data-dependent index below `roots`, in evaluation order."""
    found: dict[Tensor, str] = {}
    for node in postorder(roots):
        if isinstance(node, Compute):
            for count, message in _checks_of(node):
                found.setdefault(count, message)
    return tuple(found.items())


def _checks_of(node: Compute) -> list[tuple[Tensor, str]]:
    out = []
    for part in node.template.parts:
        conditions: list[tuple[tuple[Expr, ...], Expr, int]] = []
        for body in part.bodies:
            for read, guards in guarded_reads(body):
                extents = node.template.params[read.slot][1]
                conditions += [(guards, i, n) for i, n in zip(read.index, extents, strict=True) if has_read(i)]
        if isinstance(part, Scatter):
            conditions += [((), i, n) for i, n in zip(part.index, node.shape, strict=True) if has_read(i)]
        for guards, index, extent in conditions:
            out.append(_check(node, part.domain, guards, index, extent))
    return out


def _check(node: Compute, domain, guards, index: Expr, extent: int) -> tuple[Tensor, str]:
    zero, top = Const(0, index.dtype), Const(extent, index.dtype)
    inside = apply("and", apply("le", zero, index), apply("lt", index, top))
    bad: Expr = cast(apply("not", inside), dt.i32)
    for g in reversed(guards):  # one inside the other: a guard may read where only those around it let it
        bad = apply("where", g, bad, Const(0, dt.i32))
    used = sorted(axes_of(bad))
    bad = substitute(bad, {a: Axis(i) for i, a in enumerate(used)})
    body: Expr | Reduce = bad
    if used:
        body = Reduce("sum", tuple(domain[a] for a in used), (body,))
    t = prune_args(template((), node.template.params, body), node.args)
    t = Compute(simplify_template(t.template), t.args)
    return t, f"index {show(index)} leaves its range 0 <= index < {extent}"
