"""Adjoints under construction: sums of terms, each under guards."""

from __future__ import annotations

from collections.abc import Callable

from einsmith import dtypes as dt
from einsmith.autodiff.adjoint.rules import add_terms, both, choose, constant
from einsmith.expr.nodes import Apply, Const, Expr, apply, reads

Guards = tuple[Expr, ...]
Terms = dict[Guards, Expr]
"""An adjoint: the sum of the values, each where its guards hold."""


def accumulate(terms: Terms, guards: Guards, g: Expr) -> None:
    terms[guards] = add_terms(terms[guards], g) if guards in terms else g


def conjuncts(g: Expr) -> list[Expr]:
    """The conditions of which a guard is the conjunction, in order."""
    if isinstance(g, Apply) and g.fn == "and":
        return [c for a in g.args for c in conjuncts(a)]
    return [g]


def guarded(guards: Guards, value: Expr, otherwise: Expr | None = None) -> Expr:
    """`where(guards, value, 0)`. A guard that reads stands inside those before it and those that do not read, whose
    truth keeps it in bounds."""
    otherwise = constant(0.0, value) if otherwise is None else otherwise
    for g in reversed([g for g in guards if reads(g)]):
        value = choose(g, value, otherwise)
    plain = [g for g in guards if not reads(g)]
    if plain:
        condition = plain[0]
        for g in plain[1:]:
            condition = both(condition, g)
        value = choose(condition, value, otherwise)
    return value


def sum_of(terms: Terms) -> Expr:
    out: Expr | None = None
    for guards, g in terms.items():
        x = nested(guards, g)
        out = x if out is None else add_terms(out, x)
    assert out is not None
    return out


def nested(guards: Guards, value: Expr) -> Expr:
    """Guards from a body, in their order: each may rely on the ones before it."""
    for g in reversed(guards):
        value = choose(g, value, 0.0)
    return value


def common(terms: Terms) -> tuple[Guards, Expr]:
    """The guards that all terms share, and the sum under them. A guard that reads may rely on those before it, so that
    it is taken out only along with them."""
    shared: list[Expr] = []
    for g in next(iter(terms)):
        if all(g in guards for guards in terms) and (
            not reads(g) or all(h in shared for guards in terms for h in guards[: guards.index(g)])
        ):
            shared.append(g)
    return tuple(shared), sum_of({tuple(g for g in guards if g not in shared): v for guards, v in terms.items()})


def merged(terms: Terms, relying: bool, opaque: bool) -> Terms:
    """The terms as one. `relying`: what is computed from it relies on their guards, so that these stay around it; where
    the terms do not share them, what stays is that those of some term hold. Positions over axes are kept in bounds by
    guards that do not read; `opaque`, those that are read by others, too."""
    if not relying:
        return {(): sum_of(terms)}
    shared, value = common(terms)
    rests = [tuple(g for g in guards if g not in shared and (opaque or not reads(g))) for guards in terms]
    least = [a for a in dict.fromkeys(rests) if not any(set(b) < set(a) for b in rests)]
    if all(least):
        either: Expr | None = None
        for rest in least:
            holds = rest[-1]
            for g in reversed(rest[:-1]):
                holds = choose(g, holds, Const(False, dt.bool_)) if opaque else both(g, holds)
            either = holds if either is None else apply("or", either, holds)
        assert either is not None
        shared = (*shared, either)
    return {shared: value}


def within_guards(factor: Expr, f: Callable[[Expr], Expr]) -> Expr:
    """f(factor), f(1) being 1: a factor that a guard leaves out stays left out, so that sweeps need not meet it."""
    guards: list[Expr] = []
    x = factor
    while isinstance(x, Apply) and x.fn == "where" and isinstance(x.args[2], Const) and x.args[2].value == 1:
        guards.append(x.args[0])
        x = x.args[1]
    out = f(x)
    for g in reversed(guards):
        out = choose(g, out, constant(1.0, out))
    return out


def exchanged_factor(value: Expr, factor: Expr, by: Expr) -> Expr | None:
    """A product or quotient with one factor, the first from the left, exchanged for another; None where it has no such
    factor."""
    without: set[Expr] = set()
    path: list[tuple[Apply, int]] = []  # the products around the expression, and which of their operands it is in
    e = value
    while e is not factor:
        if e not in without and isinstance(e, Apply) and e.fn in ("neg", "mul", "div"):
            path.append((e, 0))
        else:
            without.add(e)
            while path and path[-1][1] == (1 if path[-1][0].fn == "mul" else 0):
                without.add(path.pop()[0])
            if not path:
                return None
            path[-1] = path[-1][0], 1
        e = path[-1][0].args[path[-1][1]]
    for around, n in reversed(path):
        by = apply(around.fn, *around.args[:n], by, *around.args[n + 1 :])
    return by
