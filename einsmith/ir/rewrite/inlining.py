"""Merge elementwise tensors into a tensor that reads them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from einsmith.ir.analysis.pointwise import pointwise_body
from einsmith.ir.analysis.widths import placed
from einsmith.ir.nodes import Compute, Expr, Read, Template, Tensor
from einsmith.ir.rebuild import map_bodies, rebuild, substitute
from einsmith.ir.rewrite.simplify import simplified


def inline_arguments(node: Compute, inlined: Collection[Tensor]) -> Compute:
    """Return the tensor with the bodies of the pointwise arguments `inlined` in place of their reads."""
    producers = tuple(a.template if a in inlined and isinstance(a, Compute) else None for a in node.args)
    args = (*node.args, *(x for a, t in zip(node.args, producers, strict=True) if t is not None for x in a.args))
    t = node.template.memo(("inlined", producers), lambda t: _inline(t, producers))
    return simplified(t, args)


def _inline(t: Template, producers: Sequence[Template | None]) -> Template:
    """Return the template with the reads of some slots replaced by the pointwise bodies of their producers. The
    producers' arguments follow the template's own, in order of the slots."""
    params = list(t.params)
    bodies: dict[int, Expr] = {}
    for slot, producer in enumerate(producers):
        if producer is not None:
            body = pointwise_body(producer)
            assert body is not None
            bodies[slot] = substitute(body, {}, {i: len(params) + i for i in range(len(producer.params))})
            params += producer.params

    def rule(e):
        if isinstance(e, Read) and e.slot in bodies:
            return placed(bodies[e.slot], dict(enumerate(e.index)))
        return None

    return map_bodies(t, lambda b: rebuild([b], rule)[0], params)
