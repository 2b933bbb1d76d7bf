"""The reads of a part of a template with what is known of its axes where each is evaluated."""

from __future__ import annotations

from collections.abc import Iterator

from einsmith.expr.bounds import Facts
from einsmith.expr.nodes import Apply, Expr, Piece, Read, Scatter, postorder


def reads_under(part: Piece | Scatter) -> Iterator[tuple[Read, Facts]]:
    """(read, facts of the `where`s around it) for every read of the part's bodies; a read that stands under different
    facts comes once for each. Sides of a `where` that are never chosen are left out."""
    facts = Facts(part.domain)
    if not facts.feasible:
        return
    with_reads: set[Expr] = set()
    for e in postorder(part.bodies):
        if isinstance(e, Read) or not with_reads.isdisjoint(e.args):
            with_reads.add(e)
    seen: set[tuple[Expr, int]] = set()
    stack: list[tuple[Expr, Facts]] = [(b, facts) for b in reversed(part.bodies)]
    while stack:
        e, known = stack.pop()
        if e not in with_reads or (e, id(known)) in seen:
            continue
        seen.add((e, id(known)))
        if isinstance(e, Read):
            yield e, known
        if isinstance(e, Apply) and e.fn == "where":
            stack.append((e.args[0], known))
            for truth, side in ((True, e.args[1]), (False, e.args[2])):
                # Only guards that speak of axes can help; a side that is never chosen needs no proof.
                under = known.assume(e.args[0], truth) if side in with_reads else known
                if under.feasible:
                    stack.append((side, under))
        else:
            stack += [(a, known) for a in e.args]
