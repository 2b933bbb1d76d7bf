"""Compute elementwise tensors at the positions that are read, where these are fewer than the elements.

before: P[t, v] = X[t, v] - L[t];  S[] = sum[t](P[t, y[t]])
after:  S[] = sum[t](X[t, y[t]] - L[t])

before: P[t, v] = X[t, v] - L[t];  a[t] = f(where(t > 0, a[t-1], 0), P[t, y[t]])
after:  G[t] = X[t, y[t]] - L[t];  a[t] = f(where(t > 0, a[t-1], 0), G[t])

The derivatives by X then are those of the elements that are read, and no gradient by P is stored.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Sequence
from math import inf, prod
from typing import Any

from einsmith.base import environment
from einsmith.base.symbolic import hint
from einsmith.ir import labels
from einsmith.ir.analysis.guarded import contexts
from einsmith.ir.analysis.pointwise import float_body, is_movement, reads_by_slot
from einsmith.ir.nodes import (
    Axis,
    Compute,
    Expr,
    Piece,
    Read,
    Recurrence,
    Scatter,
    Template,
    Tensor,
    apply,
    axes_of,
    has_read,
    postorder,
    reads,
    size,
    template,
)
from einsmith.ir.rebuild import guarded, map_parts, rebuild, substitute, with_args
from einsmith.ir.rewrite.inlining import inline_arguments
from einsmith.ir.rewrite.named_operands import name_in_steps
from einsmith.ir.rewrite.simplify import canonical
from einsmith.ir.rewrite.sum_steps import may_leave, reading

SAMPLES = "samples"
"""Name by which this rewrite can be left out."""
FEWER = 2
"""Least quotient of a tensor's elements and those that are read of it. (Measured: 128 words, of which RNN-T losses read
two, 67 -> 9 ms; of two words, of which it reads both, nothing is gained.)"""


def sampled(roots: Sequence[Tensor], kept: Iterable[Tensor] = ()) -> dict[Any, Any]:
    """Return what each node below the roots becomes where elementwise tensors are computed at the positions that are
    read; the roots as they are where EINSMITH_WITHOUT leaves this out. kept: tensors that are needed as they are."""
    if SAMPLES in environment.WITHOUT.get():
        return {t: t for t in (*roots, *kept)}
    new: dict[Any, Any] = {}
    rebuild(roots, lambda node: _name_samples(node) if isinstance(node, Recurrence) else None, new)
    ends = [new[t] for t in (*roots, *kept)]
    inlined = _find_sampled(ends)
    if inlined:
        replaced: dict[Any, Any] = {}
        for node in postorder(ends):
            at = {replaced[a] for a in node.args if a in inlined}
            changed = with_args(node, tuple(replaced[a] for a in node.args)) if node.args else node
            if at:
                changed = inline_arguments(changed, at)
                changed = canonical(changed.template, changed.args)
            replaced[node] = changed
        new = {node: replaced.get(x, x) for node, x in new.items()}
    labels.carry(new)
    return new


def _find_sampled(roots: Sequence[Tensor]) -> Collection[Tensor]:
    """Return the elementwise tensors below the roots of which few elements are read, however often."""
    evaluated: dict[Any, float] = dict.fromkeys(roots, inf)
    order = list(postorder(roots))
    inlined = set[Tensor]()
    for node in reversed(order):
        is_compute = isinstance(node, Compute)
        times = evaluated.get(node, 0)
        if is_compute and _is_elementwise(node) and FEWER * times <= hint(size(node.shape)):
            inlined.add(node)
        for slot, a in enumerate(node.args):
            n = inf
            if is_compute:
                n = times * len(reads_by_slot(node.template)[slot]) if node in inlined else _times(node.template, slot)
            evaluated[a] = evaluated.get(a, 0) + n
    return inlined


def _is_elementwise(node: Compute) -> bool:
    """Return whether a tensor is computed element by element, in the type that it has in memory."""
    return float_body(node.template) is not None and not is_movement(node.template)


def _times(t: Template, slot: int) -> float:
    """Return how often elements of an argument are read."""
    own = [p for p in t.parts for e in postorder(p.bodies) if isinstance(e, Read) and e.slot == slot]
    return hint(sum(size(p.domain) for p in own))


def _name_samples(node: Recurrence) -> Recurrence | None:
    """Return a recurrence that reads few elements of arguments, at positions that depend on data or of elementwise
    tensors, as tensors of their own; None where there are none."""
    slots = frozenset(
        s
        for s, a in enumerate(node.args)
        if a.dtype.is_float
        and FEWER * sum(_elements(t, s) for t in node.members) <= hint(size(a.shape))
        and (any(_is_at_data(t, s) for t in node.members) or (isinstance(a, Compute) and _is_elementwise(a)))
    )
    count = len(node.args)
    return name_in_steps(node, lambda t: _name(t, slots, count)) if slots else None


def _elements(t: Template, slot: int) -> float:
    """Return the number of elements of an argument that are read, each as often as different reads have it."""
    own = [(p, e) for p in t.parts for e in postorder(p.bodies) if isinstance(e, Read) and e.slot == slot]
    return hint(sum(prod(p.domain[a] for a in axes_of(e)) for p, e in own))


def _is_at_data(t: Template, slot: int) -> bool:
    """Return whether an argument is read at a position that depends on elements of a tensor."""
    return any(has_read(i) for e in reads_by_slot(t).get(slot, ()) for i in e.index)


def _name(t: Template, slots: Container[int], count: int) -> tuple[Template, ...] | None:
    """Return the templates of the reads of some slots, then the template that reads them. Reads under conditions that
    depend on more than the first `count` slots stay."""
    steps: list[Template] = []

    def name_reads(part: Piece | Scatter) -> tuple[Expr, ...]:
        named: dict[Expr, Expr] = {}
        for e, context in contexts(part.bodies).items():
            if not isinstance(e, Read) or e.slot not in slots or context is None:
                continue
            body = guarded([c if truth else apply("not", c) for c, truth in context], e)
            axes = sorted(axes_of(body))
            places: dict[int, Expr] = {a: Axis(n) for n, a in enumerate(axes)}
            own = template((part.domain[a] for a in axes), t.params, substitute(body, places))
            if all(r.slot < count for r in reads(body)) and not may_leave(own):
                named[e] = Read(len(t.params) + len(steps), tuple(map(Axis, axes)), e.dtype)
                steps.append(own)
        return tuple(rebuild(part.bodies, named.get))

    named = map_parts(t, name_reads)
    return (*steps, reading(t, steps, named.parts)) if steps else None
