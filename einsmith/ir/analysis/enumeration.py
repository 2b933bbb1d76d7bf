"""Prove conditions by evaluating them at every point of a small box, including ones that the rules of `bounds` cannot
prove."""

from __future__ import annotations

from math import prod

from einsmith.base.symbolic import is_symbolic
from einsmith.ir.analysis.bounds import Facts
from einsmith.ir.nodes import Axis, Const, Expr, Read, apply, postorder, template
from einsmith.ir.rebuild import substitute
from einsmith.ir.template_evaluator import evaluate_template

MAX_POINTS = 1 << 18
"""Most points evaluated in one proof."""


def holds_everywhere(cond: Expr, facts: Facts) -> bool:
    """Return True if `cond` holds at every point of the box where the known conditions do.

    False: it does not, it reads a tensor, sizes are symbolic, or there are more than MAX_POINTS points. Known
    conditions that read tensors are ignored.
    """
    axes = _axes(cond)
    extents = facts.extents

    def count_points(some: frozenset[int]) -> int:
        return prod(extents[p] for p in some)

    if any(is_symbolic(extents[p]) for p in axes) or _is_open(cond) or count_points(axes) > MAX_POINTS:
        return False
    known = [(c if truth else apply("not", c), _axes(c)) for c, truth in facts.known if not _is_open(c)]
    known.sort(key=lambda k: (count_points(k[1] | axes), k[0].digest))
    guards: list[Expr] = []
    while True:  # conditions that share an axis with those before, while the box of all their axes is small
        related = [k for k in known if k[1] & axes and count_points(k[1] | axes) <= MAX_POINTS]
        if not related:
            break
        guards.append(related[0][0])
        axes |= related[0][1]
        known.remove(related[0])
    order = sorted(axes)
    for g in guards:
        cond = apply("or", apply("not", g), cond)
    box = tuple(extents[p] for p in order)
    body = substitute(cond, {p: Axis(n) for n, p in enumerate(order)})
    return bool(evaluate_template(template(box, (), body), ())[0].all())


def _axes(e: Expr) -> frozenset[int]:
    return frozenset(x.position for x in postorder([e]) if isinstance(x, Axis))


def _is_open(e: Expr) -> bool:
    """Return whether an expression has no values of its own: it reads a tensor, or a literal follows from sizes."""
    return any(isinstance(x, Read) or (isinstance(x, Const) and is_symbolic(x.value)) for x in postorder([e]))
