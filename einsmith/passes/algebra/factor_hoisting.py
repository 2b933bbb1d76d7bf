"""Hoist factors that are free of the summed axes out of sums of products (distributive law), and reuse equal sums.

before: S[i] = sum[k](x[i,k]);  m[i] = S[i]/n;  B[i] = sum[k](g[i,k])
        L[i] = sum[k](-(a[i]*(x[i,k] - m[i]) + a[i]*(x[i,k] - m[i])));  R[i] = sum[k](-(c[i]*g[i,k]))
after:  L[i] = -(a[i]*(m[i] - m[i]));  R[i] = -c[i]*B[i]

This is the backward pass of a norm. Deviations from the mean sum to zero: they become m - m, which is NaN where m is
infinite or NaN, as L is then. (A variance whose mean had no derivative would avoid this term, and lack a term of its
second derivative.) The term is added once, as twice zero is zero. Sums are reassociated; a sum is replaced only if all
of its terms are known.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple

from einsmith.ir.analysis.pointwise import is_identity, pointwise_body
from einsmith.ir.nodes import (
    Apply,
    Axis,
    Compute,
    Const,
    Expr,
    Graph,
    Read,
    Template,
    Tensor,
    apply,
    has_no_reduction_axis,
    postorder,
    template,
)
from einsmith.ir.rebuild import exchanged, prune_args, types_of, whole_sum, with_args
from einsmith.ir.rewrite.factors import Factor, is_long, key_of, multiply, product_of

MAX_TERMS = 8
"""Most terms of a sum that is considered."""


class _Term(NamedTuple):
    """A term of a sum's body: whether it is subtracted, its factors that are free of the sum's axes, and the other
    factors."""

    minus: bool
    free: tuple[Factor, ...]
    bound: tuple[Factor, ...]


def factor_hoisting(graph: Graph) -> Graph:
    """Return the graph with sums replaced by other sums times hoisted factors."""
    nodes = list(postorder(graph.roots))
    known: dict[Any, Compute] = {}
    for node in nodes:
        if isinstance(node, Compute):
            _record(node, known)
    memo: dict[Any, Any] = {}
    for node in nodes:
        if node not in memo:
            pointwise = _compute_from_sums(node, known) if isinstance(node, Compute) else None
            for n in (node,) if pointwise is None else pointwise.args:  # the sums that it reads may come later
                if n not in memo:
                    memo[n] = with_args(n, tuple(memo[a] for a in n.args)) if n.args else n
            if pointwise is not None:
                memo[node] = with_args(pointwise, tuple(memo[a] for a in pointwise.args))
    return exchanged(graph, memo)


def _split_terms(t: Template) -> tuple[_Term, ...] | None:
    """Return the terms of a template that is a sum of at most MAX_TERMS terms; None for others."""
    part = whole_sum(t)
    if part is None or not prod(part.domain) or not part.bodies[0].dtype.is_float:
        return None
    terms: list[_Term] = []
    stack = [(part.bodies[0], False)]
    while stack:
        e, minus = stack.pop()
        if isinstance(e, Apply) and e.fn in ("add", "sub"):
            stack += [(e.args[1], minus != (e.fn == "sub")), (e.args[0], minus)]
        elif isinstance(e, Apply) and e.fn == "neg":
            stack.append((e.args[0], not minus))
        elif is_long(e) or (product := product_of(e)) is None:
            return None
        else:
            free = tuple(f for f in product.factors if has_no_reduction_axis(f[0], t.rank))
            terms.append(_Term(minus != product.minus, free, tuple(f for f in product.factors if f not in free)))
        if len(terms) + len(stack) > MAX_TERMS:
            return None
    return tuple(terms)


def _box_of(node: Compute) -> tuple:
    part = whole_sum(node.template)
    assert part is not None
    return node.shape, part.domain, node.dtype


def _record(node: Compute, known: dict[Any, Compute]) -> None:
    """Add a node to `known` if it is a sum of one product all of whose factors depend on the reduction axes."""
    terms = node.template.memo("free_factors", _split_terms)
    if terms is not None and len(terms) == 1:
        ((minus, free, bound),) = terms
        if not minus and not free:
            known.setdefault((_box_of(node), _factor_key(node, bound)), node)


def _factor_key(node: Compute, factors: tuple[Factor, ...]) -> frozenset:
    """Return a key of factors that does not depend on their order; equal factors are counted."""
    keys = [(key_of(f, node.args, None), divides) for f, divides in factors]
    return frozenset((k, keys.count(k)) for k in keys)


def _compute_from_sums(node: Compute, known: Mapping[Any, Compute]) -> Compute | None:
    """Return a sum computed pointwise from the known sums; None if a term is not one of them."""
    terms = node.template.memo("free_factors", _split_terms)
    if terms is None:
        return None
    args: list[Tensor] = [*node.args]
    own = tuple(Axis(d) for d in range(len(node.shape)))
    total: Expr | None = None
    seen = set[tuple[Expr, tuple[Factor, ...]]]()
    for minus, free, bound in terms:
        if not bound:
            return None
        mean = _match_mean(node, bound)
        if mean is not None:
            if (mean, free) in seen:
                continue
            seen.add((mean, free))
            value: Expr = apply("sub", mean, mean)
        else:
            other = known.get((_box_of(node), _factor_key(node, bound)))
            if other is None or not free:
                return None
            if other not in args:
                args.append(other)
            value = Read(args.index(other), own, node.dtype)
        term = multiply([(value, False), *free], False)
        if total is None:
            total = apply("neg", term) if minus else term
        else:
            total = apply("sub" if minus else "add", total, term)
    assert total is not None
    return prune_args(template(node.shape, types_of(args), total), tuple(args))


def _match_mean(node: Compute, bound: tuple[Factor, ...]) -> Expr | None:
    """Return m if the factor is x - m and m is the mean of x over the summed axes; else None."""
    if len(bound) != 1 or bound[0][1]:
        return None
    e = bound[0][0]
    if not (isinstance(e, Apply) and e.fn == "sub" and all(isinstance(a, Read) for a in e.args)):
        return None
    x, m = e.args
    mean = node.args[m.slot]  # type: ignore[union-attr]
    if not isinstance(mean, Compute) or not is_identity(m, node.shape, mean.shape):  # type: ignore[arg-type]
        return None
    body = pointwise_body(mean.template)
    part = whole_sum(node.template)
    assert part is not None
    count = prod(part.domain[len(node.shape) :])
    if not (isinstance(body, Apply) and isinstance(body.args[0], Read) and isinstance(n := body.args[-1], Const)):
        return None
    if not (body.fn == "div" and n.value == count or body.fn == "mul" and n.value == 1 / count):
        return None
    total = mean.args[body.args[0].slot]
    inner = whole_sum(total.template) if isinstance(total, Compute) else None
    if inner is None or not is_identity(body.args[0], mean.shape, total.shape) or _box_of(total) != _box_of(node):  # type: ignore[arg-type]
        return None
    read = inner.bodies[0]
    if isinstance(read, Read) and total.args[read.slot] is node.args[x.slot] and read.index == x.index:  # type: ignore
        return m
    return None
