"""Find the reads of a template's part, with the facts about its axes that hold where each is evaluated."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import TypeVar

from einsmith.ir.analysis.bounds import Facts
from einsmith.ir.nodes import Apply, Const, Expr, Piece, Read, Scatter, apply, postorder, rank

_MAX_VISITS = 1024
"""Most expressions visited when each is visited along every path to it. (Compilation of soft-DTW with nested logaddexp,
seconds of the processor: 2.7 with 4096, 1.3 with 1024, 1.0 with 256.)"""
_MAX_CONTEXTS = 8
"""Most facts per expression if it is reachable on more paths; beyond that, their common facts are used."""
MAX_GUARDS = 4
"""Most conditions around an expression that becomes a tensor; each is evaluated again where the tensor is computed."""

Context = tuple[tuple[Expr, bool], ...]
"""Conditions and the truth value of each where an expression is evaluated, outermost first."""


def reads_under(part: Piece | Scatter) -> Iterator[tuple[Read, Facts]]:
    """Yield (read, facts of the `where`s around it) for every read of the part's bodies.

    A read under several different facts is yielded once for each. Sides of a `where` that are never chosen are left
    out.
    """
    for e, known in collect_under(part, lambda e: isinstance(e, Read)):
        assert isinstance(e, Read)
        yield e, known


def collect_under(part: Piece | Scatter, is_selected: Callable[[Expr], bool]) -> list[tuple[Expr, Facts]]:
    """Return (expression, facts of the `where`s around it) for every selected expression of the part's bodies.

    Paths to a shared expression may be exponentially many in its depth. Where they are too many, conditions that say
    nothing of integers are ignored, and so are those that hold on some paths alone once these are many.
    """
    facts = Facts(part.domain)
    if not facts.feasible:
        return []
    containing = containing_selected(part.bodies, is_selected)

    def assume(known: Facts, condition: Expr, truth: bool) -> Facts | None:
        # Only guards about axes can help; a side that is never chosen needs no proof.
        under = known.assume(condition, truth)
        return under if under.feasible else None

    by_path = collect_by_path(part.bodies, facts, is_selected, containing, assume, _MAX_VISITS)
    return _collect_by_expression(part.bodies, facts, is_selected, containing) if by_path is None else by_path


def containing_selected(bodies: Sequence[Expr], is_selected: Callable[[Expr], bool]) -> set[Expr]:
    """Return the selected expressions of the bodies and those that contain one."""
    containing: set[Expr] = set()
    for e in postorder(bodies):
        if is_selected(e) or not containing.isdisjoint(e.args):
            containing.add(e)
    return containing


Conditions = TypeVar("Conditions", bound=Hashable)


def collect_by_path(
    bodies: Sequence[Expr],
    conditions: Conditions,
    is_selected: Callable[[Expr], bool],
    containing: set[Expr],
    assume: Callable[[Conditions, Expr, bool], Conditions | None],
    most_visits: int,
) -> list[tuple[Expr, Conditions]] | None:
    """Return (selected expression, conditions under which it is evaluated) for every path to it from the bodies, in
    the order of evaluation; None where paths are many more than `most_visits`.

    conditions: those around the bodies. assume: returns conditions extended by one that holds or fails; None where no
    point is left. containing: what `containing_selected` returns."""
    out: list[tuple[Expr, Conditions]] = []
    seen: set[tuple[Expr, Conditions]] = set()
    stack: list[tuple[Expr, Conditions, bool]] = [(b, conditions, False) for b in reversed(bodies)]
    while stack:
        e, known, is_done = stack.pop()
        if is_done:
            out.append((e, known))
            continue
        if e not in containing or (e, known) in seen:
            continue
        seen.add((e, known))
        if len(seen) > max(most_visits, 4 * len(containing)):
            return None
        if is_selected(e):
            stack.append((e, known, True))
        is_where = isinstance(e, Apply) and e.fn == "where"
        for n, a in reversed(list(enumerate(e.args))):
            if a in containing:
                under = assume(known, e.args[0], n == 1) if is_where and n else known
                if under is not None:
                    stack.append((a, under, False))
    return out


def _collect_by_expression(
    bodies: Sequence[Expr], facts: Facts, is_selected: Callable[[Expr], bool], containing: set[Expr]
) -> list[tuple[Expr, Facts]]:
    out: list[tuple[Expr, Facts]] = []
    contexts: dict[Expr, dict[Facts, None]] = {e: {} for e in containing}
    for b in bodies:
        contexts.get(b, {})[facts] = None
    for e in reversed(list(postorder(bodies))):  # users come before the expressions that they use
        if e not in containing:
            continue
        here = list(contexts.pop(e))
        if len(here) > _MAX_CONTEXTS:
            here = [_intersect_facts(here, facts)]
        if is_selected(e):
            out += [(e, known) for known in here]
        is_where = isinstance(e, Apply) and e.fn == "where"
        for n, a in enumerate(e.args):
            if a in containing:
                for known in here:
                    under = _assume(known, e.args[0], n == 1) if is_where and n else known
                    if under.feasible:
                        contexts[a][under] = None
    return out


def _assume(known: Facts, condition: Expr, truth: bool) -> Facts:
    """Return the facts extended by a condition, if it adds information about integers."""
    if not has_integer_comparison(condition) or known.prove(condition, truth):
        return known
    return known.assume(condition, truth)


def _intersect_facts(contexts: Sequence[Facts], facts: Facts) -> Facts:
    """Return facts extended by all conditions that are proven in every context."""
    candidates = sorted({c for known in contexts for c in known.known}, key=lambda c: (rank(c[0]), c[1]))
    return facts.assume_all(
        c if truth else apply("not", c) for c, truth in candidates if all(known.prove(c, truth) for known in contexts)
    )


def unconditional(roots: Iterable[Expr], is_selected: Callable[[Expr], bool] = lambda e: True) -> dict[Expr, None]:
    """Return the expressions that `roots` evaluate under no condition of their own. is_selected: whether an expression
    is one of them, as nothing is that only others hold."""
    out: dict[Expr, None] = {}
    stack = [*roots]
    while stack:
        x = stack.pop()
        if x not in out and is_selected(x):
            out[x] = None
            only_first = isinstance(x, Apply) and x.fn in ("where", "differentiate_as")
            stack += x.args[:1] if only_first else x.args
    return out


def atomic_conditions(condition: Expr) -> list[Expr]:
    """Return the conditions that `and`, `or` and `not` connect in a condition, constants excluded."""
    out: list[Expr] = []
    stack = [condition]
    while stack:
        e = stack.pop()
        if isinstance(e, Apply) and e.fn in ("and", "or", "not"):
            stack += e.args
        elif not isinstance(e, Const):
            out.append(e)
    return out


def has_integer_comparison(condition: Expr) -> bool:
    """Return whether some comparison in a condition is of integers."""
    return any(isinstance(x, Apply) and x.args[0].dtype.is_int for x in atomic_conditions(condition))


def contexts(bodies: Sequence[Expr]) -> dict[Expr, Context | None]:
    """Return the conditions under which each node is evaluated, outermost first; None for a node evaluated under
    conditions that differ, or more than MAX_GUARDS."""
    ways: dict[Expr, list[Context] | None] = {b: [()] for b in bodies}
    for e in reversed(list(postorder(bodies))):
        is_where = isinstance(e, Apply) and e.fn == "where"
        here = ways[e]
        for n, a in enumerate(e.args):
            there = [(*c, (e.args[0], n == 1))[: MAX_GUARDS + 1] for c in here] if here and is_where and n else here
            ways[a] = _join_ways(ways.get(a, []), there)
    return {e: w[0] if w is not None and len(w) == 1 and len(w[0]) <= MAX_GUARDS else None for e, w in ways.items()}


def _join_ways(one: list[Context] | None, two: list[Context] | None) -> list[Context] | None:
    """Return the contexts that enclose those of both; None where more than _MAX_CONTEXTS may do so."""
    every = dict.fromkeys((*(one or ()), *(two or ())))
    if () in every:
        return [()]
    outer = [c for c in every if not any(c[:n] in every for n in range(len(c)))]
    return None if one is None or two is None or len(outer) > _MAX_CONTEXTS else outer
