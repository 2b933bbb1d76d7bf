"""Propagate the conditions outside of which cotangents are zero, so that nothing is computed from the zeros.

    before   d[t, b, k] = where(t < n[b], g[t, b, k], 0);  e[t, b, j] = sum[k](d[t, b, k]*U[j, k])
    after    s[t, b, j] = sum[k](d[t, b, k]*U[j, k]);  e[t, b, j] = where(t < n[b], s[t, b, j], 0)

Elements outside of the condition contribute nothing, whatever they would be multiplied by. The steps of a recurrence
beyond all n then need no products (see `passes.recurrence.live_steps`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from einsmith.ir.nodes import (
    Apply,
    Axis,
    Compute,
    Const,
    Expr,
    Leaf,
    Piece,
    Read,
    Reduce,
    Template,
    Tensor,
    apply,
    is_zero,
    postorder,
    reads,
    template,
)
from einsmith.ir.rebuild import substitute, types_of
from einsmith.ir.rewrite.simplify import canonical, simplify
from einsmith.ir.views import own_index

_TIME = Axis(0)


@dataclass(frozen=True)
class Condition:
    """A condition over a tensor's axes that depends on the first axis; slot n reads `tensors[n]`."""

    holds: Expr
    tensors: tuple[Tensor, ...]


def common_condition(tensors: Iterable[Tensor | None]) -> Condition | None:
    """Return the condition outside of which all of the tensors, of one shape, are zero; None if there is none."""
    shared: Condition | None = None
    for t in tensors:
        parts = t.template.parts if isinstance(t, Compute) else ()
        if not isinstance(t, Compute) or t.template.is_scatter or len(t.template.dtypes) > 1:
            return None
        for p in parts:
            if is_zero(p.body):
                continue
            assert isinstance(p, Piece)
            condition = _condition(p, t)
            if condition is None or (shared is not None and condition != shared):
                return None
            shared = condition
    return shared


def _condition(p: Piece, t: Compute) -> Condition | None:
    body = p.body
    if not isinstance(body, Apply) or body.fn != "where":
        return None
    holds, value, other = body.args
    if is_zero(value):
        holds, other = simplify(apply("not", holds), p.domain), value
    if not is_zero(other) or not reads(holds):
        return None
    used = {e.position for e in postorder([holds]) if isinstance(e, Axis)}
    if 0 not in used or not _is_complete(p, t.shape, used):
        return None
    slots = {s: n for n, s in enumerate(dict.fromkeys(r.slot for r in reads(holds)))}
    return Condition(substitute(holds, {}, slots), tuple(t.args[s] for s in slots))


def _is_complete(p: Piece, shape: tuple[int, ...], axes: Iterable[int]) -> bool:
    """Return whether a piece covers the given dimensions completely."""
    return all((p.offset[d], p.step[d], p.extents[d]) == (0, 1, shape[d]) for d in axes)


def under(tensor: Tensor, cotangent: Leaf, condition: Condition) -> Tensor:
    """Return a tensor that is linear in a cotangent, computed only where the condition lets the cotangent's elements be
    nonzero; the tensor itself if the condition would be inside of a product."""
    if not isinstance(tensor, Compute) or cotangent not in tensor.args or tensor.template.is_scatter:
        return tensor
    slot, parts = tensor.args.index(cotangent), []
    condition_axes = sorted({e.position for e in postorder([condition.holds]) if isinstance(e, Axis)})
    outer: set[Expr] = set()
    for p in tensor.template.parts:
        assert isinstance(p, Piece)
        if is_zero(p.body):
            parts.append(p)
            continue
        read = dict.fromkeys(r.index for b in p.bodies for r in reads(b) if r.slot == slot)
        if len({tuple(index[d] for d in condition_axes) for index in read}) != 1 or len(p.bodies) != 1:
            return tensor
        index = next(iter(read))
        moved = {s: len(tensor.args) + s for s in range(len(condition.tensors))}
        holds = substitute(condition.holds, dict(enumerate(index)), moved)
        if not all(isinstance(i, (Axis, Const)) for r in reads(holds) for i in r.index):
            return tensor
        used = {e.position for e in postorder([holds]) if isinstance(e, Axis)}
        if isinstance(p.body, Reduce) and max(used) >= len(p.extents):
            along = {e.position for i in index for e in postorder([i]) if isinstance(e, Axis)}
            if p.body.combiner != "sum" or len(read) > 1 or not along >= {d for d, n in enumerate(p.extents) if n > 1}:
                return tensor
            inner = _where(holds, p.bodies[0], p.domain, len(tensor.args), condition.tensors)
            parts.append(Piece(p.offset, p.step, p.extents, Reduce("sum", p.body.extents, (inner,))))
        elif not _is_complete(p, tensor.shape, used):
            return tensor
        else:
            outer.add(holds)
            parts.append(p)
    if len(outer) > 1 or (outer and any(a is not b for a, b in zip(parts, tensor.template.parts, strict=True))):
        return tensor
    args = (*tensor.args, *condition.tensors)
    params = types_of(args)
    if not outer:
        return canonical(Template(tensor.shape, params, tuple(parts)), args)
    (holds,) = outer
    value = Read(len(args), own_index(tensor.shape), tensor.dtype)
    body = _where(holds, value, tensor.shape, len(tensor.args), condition.tensors)
    return canonical(template(tensor.shape, (*params, (tensor.dtype, tensor.shape)), body), (*args, tensor))


def _where(holds: Expr, value: Expr, domain: Sequence[int], first: int, tensors: Sequence[Tensor]) -> Expr:
    """Return the value where the condition holds, zero elsewhere. The condition's slots from `first` on are `tensors`,
    which may have fewer positions than the domain: beyond them no element of the cotangent is read."""
    zero = Const(0, value.dtype)
    body = apply("where", holds, value, zero)
    limits: dict[tuple[Expr, int], None] = {}
    for r in reads(holds):
        for i, n in zip(r.index, tensors[r.slot - first].shape, strict=True):
            if isinstance(i, Axis) and domain[i.position] > n:
                limits[i, n] = None
    for i, n in limits:
        body = apply("where", apply("lt", i, Const(n, i.dtype)), body, zero)
    return body
