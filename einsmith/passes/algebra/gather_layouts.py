"""Choose transposed layouts for tensors that are gathered from, or scattered to, at data-dependent indices.

before: y[n, c, h, w] = x[n, c, i[n, h, w], j[n, h, w]]*f[n, h, w]
after:  t[n, i, j, c] = x[n, c, i, j];  z[n, h, w, c] = t[n, i[n, h, w], j[n, h, w], c]*f[n, h, w]
        y[n, c, h, w] = z[n, h, w, c]

The axis that moves last (here c) is one on which the data-dependent indices do not depend. The indices are then
computed once for all channels, and the channels are contiguous: the kernel loads vectors of them, and the gradient adds
vectors, where it would otherwise access each element by itself. Other operands that are read along that axis are
transposed as well. A transposed copy is shared by all its readers. A sum, such as a convolution whose windows are
sampled, may produce or read the transposed layout directly. The predicted kernel times decide whether a layout changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any, NamedTuple

from einsmith.ir.nodes import (
    Axis,
    Compute,
    Expr,
    Graph,
    Piece,
    Read,
    Reduce,
    Scatter,
    Template,
    Tensor,
    axes_of,
    has_read,
    postorder,
    reads,
    template,
)
from einsmith.ir.rebuild import exchanged, prune_args, types_of, with_args
from einsmith.passes.context import PassContext


class _TransposedTemplate(NamedTuple):
    """A template whose result and operands may have one dimension moved to the end. operands: for each slot, (slot in
    the original template, dimension that was moved, or None if the layout is unchanged); out: the dimension of the
    result that was moved, or None."""

    template: Template
    operands: tuple[tuple[int, int | None], ...]
    out: int | None


def gather_layouts(graph: Graph, context: PassContext) -> Graph:
    """Return the graph with tensors around data-dependent accesses transposed where the predicted time is lower."""
    if not context.can_price:
        return graph
    nodes = list(postorder(graph.roots))
    forms = {
        n: t
        for n in nodes
        if isinstance(n, Compute) and (t := n.template.memo("transposed", _transpose_template)) is not None
    }
    if not forms:
        return graph
    readers: dict[Tensor, list[Any]] = {t: [None] for t in graph.roots}  # by tensor; None: the graph's caller
    for n in nodes:
        for a in n.args:
            readers.setdefault(a, []).append(n)
    forms |= _transpose_sums(forms, readers)
    selected = {n for group in _group_nodes(forms) for n in _select(group, forms, readers, context)}
    new: dict = {}
    for n in nodes:
        if n in selected:
            new[n] = _move_from_end(_transpose_node(n, forms[n], new), forms[n].out)
        else:
            new[n] = with_args(n, tuple(new[a] for a in n.args)) if n.args else n
    return exchanged(graph, new) if selected else graph


def _transpose_node(node: Compute, form: _TransposedTemplate, new: Mapping[Tensor, Tensor]) -> Compute:
    """Return the transposed form of a node; `new` maps its arguments to their replacements."""
    args = [new.get(a, a) for a in node.args]
    return prune_args(form.template, tuple(_move_to_end(args[s], d) for s, d in form.operands))


def _move_to_end(t: Tensor, d: int | None) -> Tensor:
    """Return a tensor with dimension d moved to the end; the tensor itself if d is None."""
    if d is None:
        return t
    args = t.args if isinstance(t, Compute) else ()
    if [len(a.shape) for a in args] == [len(t.shape)] and t is _move_from_end(args[0], d):
        return args[0]
    end = len(t.shape) - 1
    index = tuple(Axis(end if k == d else k - (k > d)) for k in range(end + 1))
    return Compute(template(_reorder_last(t.shape, d), types_of((t,)), Read(0, index, t.dtype)), (t,))


def _move_from_end(t: Tensor, d: int | None) -> Tensor:
    """Return a tensor with its last dimension moved to position d; the tensor itself if d is None."""
    if d is None:
        return t
    shape = (*t.shape[:d], t.shape[-1], *t.shape[d:-1])
    index = _reorder_last([Axis(k) for k in range(len(shape))], d)
    return Compute(template(shape, types_of((t,)), Read(0, index, t.dtype)), (t,))


def _reorder_last(x: Sequence, d: int) -> tuple:
    return (*x[:d], *x[d + 1 :], x[d])


# ------------------------------------------------------------------------------------------------- one template


def _transpose_template(t: Template) -> _TransposedTemplate | None:
    """Return the template transposed along the longest axis that its data-dependent indices permit; None if there is no
    such axis or no tensor whose layout changes."""
    part = t.parts[-1]
    parts = t.parts[-1:] if isinstance(part, Scatter) else t.parts
    indices = [r.index for p in parts for b in p.bodies for r in reads(b)]
    indices += [part.index] if isinstance(part, Scatter) else []
    gathered = [i for i in indices if any(map(has_read, i))]
    free = (
        set().union(*map(_find_free_axes, gathered)).difference(*(axes_of(*i) - _find_free_axes(i) for i in gathered))
    )
    extents = {a: max(p.domain[a] for p in parts if a < len(p.domain)) for a in free}
    axis = max(free, key=lambda a: (extents[a], -a), default=None)
    return None if axis is None or extents[axis] == 1 else _transpose_along(t, axis)


def _transpose_along(t: Template, axis: int) -> _TransposedTemplate | None:
    """Return the template transposed along an axis of its scatter, or of all its pieces; None if no tensor's layout
    changes."""
    part = t.parts[-1]
    parts = t.parts[-1:] if isinstance(part, Scatter) else t.parts
    if len({p.domain[axis] for p in parts if axis < len(p.domain)}) > 1:
        return None
    out = _find_dimension(part.index, axis, t.shape) if isinstance(part, Scatter) else None
    if not isinstance(part, Scatter) and axis < t.rank:
        out = _find_dimension([Axis(d) for d in range(t.rank)], axis, t.shape)
    if out is not None and len(t.dtypes) > 1:
        return None

    def dimension_along(r: Read, part_axis: int | None) -> int | None:
        return None if part_axis is None else _find_dimension(r.index, part_axis, t.params[r.slot][1])

    form = _move_dimensions(t, out, lambda p, r: dimension_along(r, axis if p in parts else out), axis)
    return form if out is not None or any(d is not None for _, d in form.operands) else None


def _move_dimensions(
    t: Template, out: int | None, dimension_of: Callable[[Piece | Scatter, Read], int | None], axis: int = -1
) -> _TransposedTemplate:
    """Return the template with one dimension of its result, and of its operands, moved to the end.

    Args:
        t: a template
        out: the result's dimension to move; None for none
        dimension_of: returns the operand's dimension to move, for a part and a read in it; None for none
        axis: a reduction's axis that becomes its innermost, unless the order of its terms matters; -1 for none
    """
    slots: dict[tuple[int, int | None], int] = {}
    parts = tuple(_move_in_part(p, out, t.rank, partial(dimension_of, p), slots, axis) for p in t.parts)
    params = tuple(
        (dtype, _reorder_last(s, d) if d is not None else s) for (n, d) in slots for dtype, s in [t.params[n]]
    )
    return _TransposedTemplate(
        Template(t.shape if out is None else _reorder_last(t.shape, out), params, parts), tuple(slots), out
    )


def _find_free_axes(index: Sequence[Expr]) -> set[int]:
    """Return the axes that form one index by themselves and occur in no other index."""
    return {
        e.position
        for k, e in enumerate(index)
        if isinstance(e, Axis) and e.position not in axes_of(*index[:k], *index[k + 1 :])
    }


def _find_dimension(index: Sequence[Expr], axis: int, shape: Sequence[int]) -> int | None:
    """Return the dimension whose index is exactly `axis`; None if the axis occurs in another index or if the dimension
    is already contiguous."""
    if axis not in _find_free_axes(index):
        return None
    d = next(k for k, e in enumerate(index) if isinstance(e, Axis) and e.position == axis)
    return d if prod(shape[d + 1 :]) > 1 else None


def _move_in_part(
    p: Piece | Scatter, out: int | None, rank: int, dimension_of: Callable[[Read], int | None], slots: dict, axis: int
) -> Piece | Scatter:
    """Return a part with dimensions moved in its result and operands, and with one axis of its reduction moved
    innermost. Each operand is entered in `slots` as (original slot, dimension moved)."""
    order: dict[int, Expr] = {}  # new positions of a piece's axes
    if out is not None and isinstance(p, Piece):
        order = {a: Axis(d) for d, a in enumerate(_reorder_last(range(rank), out))}
    inner = p.body.extents if isinstance(p.body, Reduce) else ()
    if isinstance(p.body, Reduce) and axis >= rank and not p.body.combiner.startswith("arg"):
        order = {a: Axis(rank + d) for d, a in enumerate(_reorder_last(range(rank, rank + len(inner)), axis - rank))}
        inner = _reorder_last(inner, axis - rank)
    memo: dict[Expr, Expr] = {}
    for e in postorder(p.bodies):
        args = tuple(memo[a] for a in e.args)
        if isinstance(e, Read):
            d = dimension_of(e)
            slot = slots.setdefault((e.slot, d), len(slots))
            memo[e] = Read(slot, args if d is None else _reorder_last(args, d), e.dtype)
        elif isinstance(e, Axis):
            memo[e] = order.get(e.position, e)
        else:
            memo[e] = with_args(e, args)
    bodies = [memo[e] for e in p.bodies]
    if isinstance(p, Scatter):
        index = tuple(bodies[:-1])
        return Scatter(p.combiner, p.extents, index if out is None else _reorder_last(index, out), bodies[-1])
    body = Reduce(p.body.combiner, inner, tuple(bodies)) if isinstance(p.body, Reduce) else bodies[0]
    place = [p.offset, p.step, p.extents]
    return Piece(*(x if out is None else _reorder_last(x, out) for x in place), body)


# ---------------------------------------------------------------------------------------------- what to transpose


def _transpose_sums(
    forms: Mapping[Compute, _TransposedTemplate], readers: Mapping[Tensor, Sequence[Any]]
) -> dict[Compute, _TransposedTemplate]:
    """Return transposed forms of sums that can produce an operand of a transposed node in its layout, or read the
    node's result in its layout."""
    out: dict[Compute, _TransposedTemplate] = {}
    for n, form in forms.items():
        for s, d in form.operands:
            a = n.args[s]
            if d is not None and isinstance(a, Compute) and a not in forms and _is_sum(a.template):
                out[a] = _move_dimensions(a.template, d, lambda part, x: None)
            elif d is not None and isinstance(a, Compute) and a not in forms and len(a.template.parts) > 1:
                along = None if a.template.is_scatter else _transpose_along(a.template, d)
                out |= {} if along is None else {a: along}
        for r in readers.get(n, ()) if form.out is not None else ():
            if isinstance(r, Compute) and r not in forms and r not in out and _is_sum(r.template):
                out[r] = _move_dimensions(r.template, None, partial(_at_slot, r.args.index(n), form.out))
    return out


def _at_slot(slot: int, d: int | None, part: Piece | Scatter, read: Read) -> int | None:
    return d if read.slot == slot else None


def _is_sum(t: Template) -> bool:
    part = t.parts[0]
    return len(t.parts) == len(t.dtypes) == 1 and isinstance(part.body, Reduce) and part.domain[: t.rank] == t.shape


def _group_nodes(forms: Mapping[Compute, _TransposedTemplate]) -> Iterable[list[Compute]]:
    """Group the nodes that share transposed tensors; nodes and groups stay in order."""
    group_of: dict[Any, list[Compute]] = {}
    for n, form in forms.items():
        own_group = [n]
        for t in {n, *(n.args[s] for s, d in form.operands if d is not None)}:
            other_group = group_of.get(t, own_group)
            if other_group is not own_group:
                other_group += own_group
                group_of.update((k, other_group) for k, v in group_of.items() if v is own_group)
                own_group = other_group
            group_of[t] = own_group
    return list({id(g): g for g in group_of.values()}.values())


def _select(
    group: Sequence[Compute],
    forms: Mapping[Compute, _TransposedTemplate],
    readers: Mapping[Tensor, Sequence[Any]],
    context: PassContext,
) -> set[Compute]:
    """Select the nodes of a group to transpose. Begin with all of them, greedily drop each node whose removal lowers
    the total time, and return the empty set if that is cheaper still."""

    def price(n: Tensor) -> float:
        assert isinstance(n, Compute)
        return context.price(n)

    def total_seconds(selected: set[Compute]) -> float:
        results = {(n, forms[n].out) for n in selected}
        operands = {(n.args[s], d) for n in selected for s, d in forms[n].operands}
        transposes = {_move_to_end(t, d) for t, d in operands - results if d is not None}
        transposes |= {
            _move_from_end(n, d)
            for n, d in results
            if d is not None and ((n, None) in operands or any(r not in selected for r in readers[n]))
        }
        return sum(after[n] if n in selected else before[n] for n in group) + sum(map(price, transposes))

    before = {n: context.price(n) for n in group}
    after = {n: context.price(_transpose_node(n, forms[n], {})) for n in group}
    out = set(group)
    for n in group:
        out = min(out, out - {n}, key=total_seconds)
    return min(set(), out, key=total_seconds)
