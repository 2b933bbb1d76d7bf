"""Steps beyond all lengths of a batch: conditions on t and a number from memory that are decided from some step on.

before: h[t, b] = where(t < lengths[b], f(h[t-1, b]), h[t-1, b])
after:  n = max[b](lengths[b]);  for t < n as before;  for t >= n: h[t, b] = h[t-1, b]
"""

from __future__ import annotations

from einsmith import dtypes as dt
from einsmith.expr.linear import Linear, linear
from einsmith.expr.nodes import (
    Apply,
    Axis,
    Compute,
    Const,
    Expr,
    Piece,
    Read,
    Recurrence,
    Reduce,
    postorder,
    reads,
    template,
)
from einsmith.expr.recurrence import step_parts
from einsmith.expr.rewrite import substitute
from einsmith.expr.simplify import canonical
from einsmith.passes.guards import axes_of

_TIME = Axis(0)


def limits(node: Recurrence, args: int) -> tuple[dict[Expr, Const], Compute] | None:
    """(conditions with the value that they have, the 0-d i64 step from which on they have it) of the comparisons of t
    with one and the same tensor among the first `args` slots; None where there are none."""
    found: dict[Expr, Const] = {}
    shared: frozenset | None = None
    best: tuple[Linear, Piece] | None = None
    for j in range(len(node.members)):
        for piece in step_parts(node, j):
            for e in postorder(piece.bodies):
                at = _limit(e, piece, node, args)
                if at is None:
                    continue
                terms = frozenset((a, c) for a, c in at.terms.items())
                if shared is None:
                    shared = terms
                if terms != shared:
                    continue
                falls = linear(e.args[0]).coefficient(_TIME) - linear(e.args[1]).coefficient(_TIME) > 0
                found[e] = Const(not falls, dt.bool_)
                if best is None or at.const > best[0].const:
                    best = at, piece
    if best is None:
        return None
    form, piece = best
    body = form.expr(dt.i64)
    used = sorted(axes_of(body))
    body = substitute(body, {a: Axis(n) for n, a in enumerate(used)})
    whole: Expr | Reduce = Reduce("max", tuple(piece.domain[a] for a in used), (body,)) if used else body
    return found, canonical(template((), node.members[0].params[:args], whole), node.args)


def _limit(e: Expr, piece: Piece, node: Recurrence, args: int) -> Linear | None:
    """The step from which on a comparison with t keeps one value, at each point; None for other expressions."""
    if not isinstance(e, Apply) or e.fn not in ("lt", "le") or not e.args[0].dtype.is_int:
        return None
    form = linear(e.args[0]) - linear(e.args[1])
    c, rest = form.coefficient(_TIME), form.without(_TIME)
    if abs(c) != 1 or len(rest.terms) != 1 or 0 in piece.domain:
        return None
    (atom,) = rest.terms
    inside = reads(atom)
    if not inside or 0 in axes_of(atom) or any(not _plain(r, piece, node, args) for r in inside):
        return None
    if c > 0:  # t + rest < 0, or <= 0
        return rest * -1 + (0 if e.fn == "lt" else 1)
    return rest + (1 if e.fn == "lt" else 0)  # rest < t, or <= t


def _plain(r: Read, piece: Piece, node: Recurrence, args: int) -> bool:
    """Whether a read of an argument is in bounds whatever condition it stands under."""
    if r.slot >= args:
        return False
    shape = node.members[0].params[r.slot][1]
    return all(isinstance(i, Axis) and piece.domain[i.position] <= n for i, n in zip(r.index, shape, strict=True))
