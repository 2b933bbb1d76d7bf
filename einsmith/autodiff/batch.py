"""Vectorise tensors over a batch of arguments: every operator gets one more axis.

    before   C[i,j] = sum[k](A[i,k] * B[k,j])                     and many A
    after    C[n,i,j] = sum[k](A[n,i,k] * B[k,j])

The new axis comes first; in a recurrence second, after time. Tensors that depend on no batched argument stay unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from einsmith.ir.nodes import (
    Axis,
    Compute,
    Item,
    Leaf,
    Piece,
    Read,
    Recurrence,
    Reduce,
    Scatter,
    Template,
    Tensor,
    postorder,
    template,
)
from einsmith.ir.rebuild import rebuild, types_of


def batch(tensors: Sequence[Tensor], leaves: Mapping[Leaf, Leaf], extent: int) -> list[Tensor]:
    """Return the tensors with `leaves` replaced by leaves with one more axis, the first, of `extent`. Each result has
    that axis too, even if it depends on none of the leaves."""
    new: dict[Any, Any] = dict(leaves)
    batched: dict[Any, bool] = {}
    for node in postorder(tensors):
        batched[node] = node in leaves or any(batched[a] for a in node.args)
        if node in leaves:
            continue
        if not batched[node]:
            new[node] = node
        elif isinstance(node, Compute):
            new[node] = _batch_node(node, new, batched, extent)
        elif isinstance(node, Recurrence):
            new[node] = _batch_recurrence(node, new, batched, extent)
        elif isinstance(node.node, Recurrence):
            new[node] = _swap_axes(Item(new[node.node], node.member))
        else:
            new[node] = Item(new[node.node], node.member)
    return [new[t] if batched[t] else _broadcast(t, extent) for t in tensors]


def _batch_node(node: Compute, new: Mapping, batched: Mapping, extent: int) -> Compute:
    args = tuple(new[a] for a in node.args)
    places = {s: 0 for s, a in enumerate(node.args) if batched[a]}
    return Compute(_batch_template(node.template, 0, places, extent, types_of(args)), args)


def _batch_recurrence(node: Recurrence, new: Mapping, batched: Mapping, extent: int) -> Recurrence:
    """Return a recurrence with the batch axis added; dimension 0 of a member is time, so the new axis is dimension
    1."""
    args = tuple(new[a] for a in node.args)
    places = {s: 0 for s, a in enumerate(node.args) if batched[a]}
    places |= {len(args) + i: 1 for i in range(len(node.members))}
    members = tuple((d, (s[0], extent, *s[1:])) for d, s in node.results)
    params = (*((a.dtype, a.shape) for a in args), *members)
    templates = tuple(_batch_template(m, 1, places, extent, params) for m in node.members)
    return node.replaced(members=templates, args=args)


def _batch_template(t: Template, at: int, places: Mapping[int, int], extent: int, params: tuple) -> Template:
    """Return the template with a new axis at position `at`, at which slot s is read in its dimension `places[s]`."""

    def shift(e: Any) -> Any:
        if isinstance(e, Axis) and e.position >= at:
            return Axis(e.position + 1)
        if isinstance(e, Read) and e.slot in places:
            index, k = e.index, places[e.slot]
            return Read(e.slot, (*index[:k], Axis(at), *index[k:]), e.dtype)
        return None

    def insert(sizes: tuple, x: Any) -> tuple:
        return (*sizes[:at], x, *sizes[at:])

    parts: list[Piece | Scatter] = []
    memo: dict = {}
    for part in t.parts:
        bodies = rebuild(part.bodies, shift, memo)
        if isinstance(part, Scatter):
            index = insert(tuple(bodies[:-1]), Axis(at))
            parts.append(Scatter(part.combiner, insert(part.extents, extent), index, bodies[-1]))
            continue
        r = part.body
        body = Reduce(r.combiner, r.extents, tuple(bodies)) if isinstance(r, Reduce) else bodies[0]
        parts.append(Piece(insert(part.offset, 0), insert(part.step, 1), insert(part.extents, extent), body))
    return Template(insert(t.shape, extent), params, tuple(parts))


def _swap_axes(t: Tensor) -> Compute:
    """Return a tensor with its first two axes exchanged."""
    shape = (t.shape[1], t.shape[0], *t.shape[2:])
    index = (Axis(1), Axis(0), *(Axis(d) for d in range(2, len(shape))))
    return Compute(template(shape, ((t.dtype, t.shape),), Read(0, index, t.dtype)), (t,))


def _broadcast(t: Tensor, extent: int) -> Compute:
    """Return a tensor broadcast along a new first axis."""
    index = tuple(Axis(d + 1) for d in range(len(t.shape)))
    return Compute(template((extent, *t.shape), ((t.dtype, t.shape),), Read(0, index, t.dtype)), (t,))
