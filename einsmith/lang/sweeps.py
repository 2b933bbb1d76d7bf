"""Merge reductions among the statements of a program into one multi-output reduction.

    before   M[b] = max[k](X[b,k])    P[b] = argmax[k](X[b,k])
    after    M, P = argmax[k](X[b,k])

Merged too are a product, the product of its non-zero factors, and two to the power of the number of its zero factors,
which appear in the derivative of a product: the text of a gradient gives the gradient's own templates again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from einsmith.ir.nodes import Apply, Compute, Const, Expr, Item, Piece, Reduce, Template, Tensor, postorder
from einsmith.ir.rebuild import exchange
from einsmith.ir.rewrite.simplify import canonical


def in_one_sweep(tensors: list[Tensor]) -> list[Tensor]:
    """Return the tensors with their mergeable reductions replaced by results of multi-output reductions."""
    nodes = {n: _find_common_combiner(n.template) for n in postorder(tensors) if isinstance(n, Compute)}
    replaced: dict[Tensor, Item] = {}
    for node, combiner in nodes.items():
        if combiner.startswith("arg"):
            value = _replace_bodies(node, combiner[3:], lambda body: (body,))
            if value in nodes:
                replaced[value] = Item(node, 0)
        elif combiner == "prod" and all(_find_zero_factor(p.bodies) is not None for p in node.template.parts):
            single = [_replace_bodies(node, "prod", partial(_build_factors, of=(n,))) for n in range(3)]
            present = [n for n, s in enumerate(single) if s in nodes]
            if present[-2:] == [1, 2]:
                whole = _replace_bodies(node, "prod", partial(_build_factors, of=present))
                replaced |= {single[n]: Item(whole, n - present[0]) for n in present}
    return exchange(tensors, replaced)


def _find_common_combiner(t: Template) -> str:
    """Return the combiner of a template all of whose pieces reduce one body with it, else ""."""
    combiners = {
        p.body.combiner if isinstance(p, Piece) and isinstance(p.body, Reduce) and len(p.bodies) == 1 else ""
        for p in t.parts
    }
    return combiners.pop() if len(combiners) == 1 else ""


def _replace_bodies(node: Compute, combiner: str, bodies: Callable[[Expr], Sequence[Expr]]) -> Compute:
    """Return the node with its reductions' bodies replaced by `bodies(body)`, under `combiner`."""
    parts = []
    for p in node.template.parts:
        assert isinstance(p, Piece) and isinstance(p.body, Reduce)
        body = Reduce(combiner, p.body.extents, tuple(bodies(p.bodies[0])))
        parts.append(Piece(p.offset, p.step, p.extents, body))
    return canonical(Template(node.shape, node.template.params, tuple(parts)), node.args)


def _split_guards(body: Expr) -> tuple[list[Expr], Expr]:
    """Return the conditions of the guards around a factor, which is 1 elsewhere, and the factor inside them."""
    guards: list[Expr] = []
    while (
        isinstance(body, Apply)
        and body.fn == "where"
        and not isinstance(body.args[1], Const)
        and isinstance(body.args[2], Const)
        and body.args[2].value == 1
    ):
        guards.append(body.args[0])
        body = body.args[1]
    return guards, body


def _find_zero_factor(bodies: Sequence[Expr]) -> Expr | None:
    """Return b if the body, inside its guards, is `where(b == 0, 2, 1)`, else None."""
    match _split_guards(bodies[0])[1]:
        case Apply(fn="where", args=(Apply(fn="eq", args=(b, Const(value=0.0))), Const(value=2.0), Const(value=1.0))):
            return b
    return None


def _build_factors(body: Expr, of: Sequence[int]) -> list[Expr]:
    """Return the values `of` (by number) that a product without its zeros needs for a factor b, each under the guards
    of `body`.

    Number 0 is b; 1 is b where it is not zero, else 1; 2 is 2 where b is zero, else 1, which is `body` itself.
    """
    guards, inner = _split_guards(body)
    assert isinstance(inner, Apply)
    condition, _, one = inner.args
    factor = condition.args[0]
    every = [factor, Apply("where", (condition, one, factor), factor.dtype), inner]
    for g in reversed(guards):
        every = [Apply("where", (g, x, one), factor.dtype) for x in every]
    return [every[n] for n in of]
