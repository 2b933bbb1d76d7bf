"""Combine the terms of an adjoint under construction, each of which is under guards."""

from __future__ import annotations

from collections.abc import Callable

from einsmith.base import dtypes as dt
from einsmith.ir.adjoint_rules import add_terms, both, choose, constant
from einsmith.ir.nodes import Apply, Const, Expr, apply, reads

Guards = tuple[Expr, ...]
Terms = dict[Guards, Expr]
"""An adjoint: the sum of the values, each counted where its guards hold."""


def accumulate(terms: Terms, guards: Guards, g: Expr) -> None:
    """Add the term g to `terms` in place, summed with the term under the same guards if there is one."""
    terms[guards] = add_terms(terms[guards], g) if guards in terms else g


def conjuncts(g: Expr) -> list[Expr]:
    """Return the conditions whose conjunction a guard is, in order."""
    if isinstance(g, Apply) and g.fn == "and":
        return [c for a in g.args for c in conjuncts(a)]
    return [g]


def guard(guards: Guards, value: Expr, otherwise: Expr | None = None) -> Expr:
    """Return `where(guards, value, 0)`. A guard that reads tensors is inside of the earlier guards and of all guards
    that do not read, because these keep its reads in bounds."""
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


def add_guarded_terms(terms: Terms) -> Expr:
    """Return the sum of the terms, each zero where its guards do not hold; `terms` must not be empty."""
    out: Expr | None = None
    for guards, g in terms.items():
        x = nest_guards(guards, g)
        out = x if out is None else add_terms(out, x)
    assert out is not None
    return out


def nest_guards(guards: Guards, value: Expr) -> Expr:
    """Return a value under guards in their order: each may rely on the ones before it."""
    for g in reversed(guards):
        value = choose(g, value, 0.0)
    return value


def split_common_guards(terms: Terms) -> tuple[Guards, Expr]:
    """Return (the guards that all terms share, the sum under them). A guard that reads may rely on those before it, so
    it is taken out only along with them."""
    shared: list[Expr] = []
    for g in next(iter(terms)):
        if all(g in guards for guards in terms) and (
            not reads(g) or all(h in shared for guards in terms for h in guards[: guards.index(g)])
        ):
            shared.append(g)
    return tuple(shared), add_guarded_terms(
        {tuple(g for g in guards if g not in shared): v for guards, v in terms.items()}
    )


def merge_terms(terms: Terms, relying: bool, opaque: bool) -> Terms:
    """Return the terms merged into one.

    Args:
        terms: the terms.
        relying: whether the adjoints computed from the term rely on the guards. The shared guards then stay, together
            with the condition that the guards of some term hold.
        opaque: whether guards that read are kept as well: they keep indices that read in bounds. Guards that do not
            read keep the other indices in bounds.
    """
    if not relying:
        return {(): add_guarded_terms(terms)}
    shared, value = split_common_guards(terms)
    rests = [tuple(g for g in guards if g not in shared and (opaque or not reads(g))) for guards in terms]
    weakest = [a for a in dict.fromkeys(rests) if not any(set(b) < set(a) for b in rests)]
    if all(weakest):
        either: Expr | None = None
        for rest in weakest:
            holds = rest[-1]
            for g in reversed(rest[:-1]):
                holds = choose(g, holds, Const(False, dt.bool_)) if opaque else both(g, holds)
            either = holds if either is None else apply("or", either, holds)
        assert either is not None
        shared = (*shared, either)
    return {shared: value}


def apply_within_guards(factor: Expr, f: Callable[[Expr], Expr]) -> Expr:
    """Return f(factor), given that f(1) is 1. A factor that a guard excludes stays excluded, so that reverse sweeps do
    not visit it."""
    guards: list[Expr] = []
    x = factor
    while isinstance(x, Apply) and x.fn == "where" and isinstance(x.args[2], Const) and x.args[2].value == 1:
        guards.append(x.args[0])
        x = x.args[1]
    out = f(x)
    for g in reversed(guards):
        out = choose(g, out, constant(1.0, out))
    return out


def exchange_factor(value: Expr, factor: Expr, by: Expr) -> Expr | None:
    """Return a product or quotient with one factor, the first from the left, replaced by `by`; None if it has no such
    factor."""
    searched: set[Expr] = set()
    path: list[tuple[Apply, int]] = []  # enclosing products, and the operand taken in each
    e = value
    while e is not factor:
        if e not in searched and isinstance(e, Apply) and e.fn in ("neg", "mul", "div"):
            path.append((e, 0))
        else:
            searched.add(e)
            while path and path[-1][1] == (1 if path[-1][0].fn == "mul" else 0):
                searched.add(path.pop()[0])
            if not path:
                return None
            path[-1] = path[-1][0], 1
        e = path[-1][0].args[path[-1][1]]
    for product, n in reversed(path):
        by = apply(product.fn, *product.args[:n], by, *product.args[n + 1 :])
    return by
