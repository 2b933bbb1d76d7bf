"""Join tensors of one form: templates that are equal but for where, along one axis, they read, and of what tensors.

Along an axis that the tensors have, operands are neighbouring slices of one tensor, or are concatenated:
before: A[i, j] = sum[k](X[i, k]*W[k, j]);  B[i, j] = sum[k](X[i, k]*V[k, j])
after:  U[k, j] = W[k, j], U[k, 8+j] = V[k, j];  C[i, j] = sum[k](X[i, k]*U[k, j])

By a new axis, operands are slices of one tensor by number, or are stacked:
before: A[i, j] = sum[k](X[i, 0, k]*W[k, j]);  B[i, j] = sum[k](X[i, 1, k]*W[k, j])
after:  C[t, i, j] = sum[k](X[i, t, k]*W[k, j])
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from einsmith.ir.analysis.linear import LinearForm, linear
from einsmith.ir.nodes import (
    Apply,
    Axis,
    Compute,
    Const,
    Expr,
    Piece,
    Read,
    Reduce,
    Template,
    Tensor,
    axes_of,
    postorder,
    reads,
    template,
)
from einsmith.ir.rebuild import map_bodies, prune_args, rebuild, substitute, whole_sum, with_args
from einsmith.ir.rewrite.products import is_long


class Span(NamedTuple):
    """Where the reads of a slot run over an axis: the dimension, the first position, and whether all reads of the slot
    begin there."""

    dim: int
    first: int
    is_single: bool


class Form(NamedTuple):
    """A template along an axis.

    Attributes:
        axis: the axis; from the rank of the output on it is one of the reduction's.
        key: what equal forms have in common; the bodies, which begin at 0, come first.
        spans: the slots whose reads run over the axis; tensors of equal forms share those of the other slots.
    """

    axis: int
    key: tuple[Any, ...]
    spans: Mapping[int, Span]


Concatenate = Callable[[Sequence[Tensor], int, Sequence[int], Sequence[int]], Tensor | None]
"""Returns slices one after the other, given tensors, a dimension, and the slices' first positions and extents."""


def forms_of(t: Template) -> Mapping[int, Form]:
    """Return the forms of a template, by the axis, along axes that occur in no other way than as an index."""
    return t.memo("forms along axes", _find_forms)


def _find_forms(t: Template) -> dict[int, Form]:
    part = t.parts[0]
    if len(t.parts) > 1 or not isinstance(part, Piece) or part.extents != t.shape or len(t.dtypes) > 1:
        return {}
    fixed: set[int] = set()
    positions: dict[int, dict[Read, tuple[int, int]]] = defaultdict(dict)
    every: list[Read] = []
    stack, seen = [*part.bodies][::-1], set[Expr]()
    while stack:
        e = stack.pop()
        if e in seen:
            continue
        seen.add(e)
        if isinstance(e, Axis):
            fixed.add(e.position)
        elif not isinstance(e, Read):
            stack += e.args[::-1]
            continue
        else:
            every.append(e)
        for dim, index in enumerate(e.args):
            form = linear(index)
            axis = next(iter(form.terms), None)
            if isinstance(axis, Axis) and form.terms == {axis: 1} and e not in positions[axis.position]:
                positions[axis.position][e] = dim, form.const  # type: ignore[index]
            else:
                fixed |= axes_of(index)
    out: dict[int, Form] = {}
    combiner = part.body.combiner if isinstance(part.body, Reduce) else None
    for d, at in positions.items():
        spans: dict[int, Span] = {}
        for e, (dim, first) in at.items():
            span = spans.setdefault(e.slot, Span(dim, first, True))
            spans[e.slot] = span._replace(is_single=span.is_single and span.first == first)
        if d in fixed or any(e.slot in spans and at.get(e, (-1,))[0] != spans[e.slot].dim for e in every):
            continue
        by = {e: (dim, -spans[e.slot].first) for e, (dim, _) in at.items()}
        bodies = tuple(shift(b, by) for b in part.bodies)
        others = tuple((s, x.dim) for s, x in spans.items())
        out[d] = Form(d, (bodies, d, (*part.domain[:d], 0, *part.domain[d + 1 :]), combiner, others), spans)
    return out


def shift(body: Expr, by: Mapping[Read, tuple[int, int]]) -> Expr:
    """Return a body in which some reads are shifted by (dimension, distance)."""
    memo: dict[Expr, Expr] = {}
    for e in postorder([body]):
        new = with_args(e, tuple([memo[a] for a in e.args])) if e.args else e
        if isinstance(e, Read) and isinstance(new, Read) and (dim_distance := by.get(e)) and dim_distance[1]:
            dim, distance = dim_distance
            index = (linear(new.index[dim]) + distance).expr(new.index[dim].dtype)
            new = Read(new.slot, (*new.index[:dim], index, *new.index[dim + 1 :]), new.dtype)
        memo[e] = new
    return memo[body]


def concatenate(tensors: Sequence[Tensor], dim: int, firsts: Sequence[int], extents: Sequence[int]) -> Compute | None:
    """Return the copy of slices one after the other; None if the tensors differ in another dimension, or in type."""
    shape = tensors[0].shape
    if any(a.dtype != tensors[0].dtype or _without(a.shape, dim) != _without(shape, dim) for a in tensors):
        return None
    args = tuple(dict.fromkeys(tensors))
    parts = []
    at = [0] * len(shape)
    for a, first, n in zip(tensors, firsts, extents, strict=True):
        whole = (*shape[:dim], n, *shape[dim + 1 :])
        index = tuple((linear(Axis(d)) + first).expr() if d == dim else Axis(d) for d in range(len(shape)))
        parts.append(Piece(tuple(at), (1,) * len(shape), whole, Read(args.index(a), index, a.dtype)))
        at[dim] += n
    joined = (*shape[:dim], at[dim], *shape[dim + 1 :])
    return Compute(Template(joined, tuple((a.dtype, a.shape) for a in args), tuple(parts)), args)


def no_copies(tensors: Sequence[Tensor], dim: int, firsts: Sequence[int], extents: Sequence[int]) -> None:
    """Return None: a `Concatenate` for joins that only read neighbouring slices."""


def _without(shape: tuple[int, ...], dim: int) -> tuple[int, ...]:
    return (*shape[:dim], *shape[dim + 1 :])


def extent_of(t: Template, axis: int) -> int:
    """Return the extent of an axis of a template of one piece."""
    part = t.parts[0]
    assert isinstance(part, Piece)
    return part.domain[axis]


def join_along(
    members: Sequence[Compute], forms: Sequence[Form], concatenate: Concatenate = concatenate
) -> Compute | None:
    """Return one tensor that computes all members, or adds them if the axis is one of their sums; None if an operand
    cannot be joined.

    Args:
        members: tensors of one form that share the operands that do not run over the axis.
        forms: their forms.
        concatenate: joins operands that are no neighbouring slices of one tensor.
    """
    widest = max(members, key=lambda m: extent_of(m.template, forms[0].axis))
    t, (axis, (bodies, *_), spans) = widest.template, forms[members.index(widest)]
    extents = [extent_of(m.template, axis) for m in members]
    args = list(widest.args)
    by: dict[int, tuple[int, int]] = {}
    for slot, span in spans.items():
        values = [m.args[slot] for m in members]
        firsts = [f.spans[slot].first for f in forms]
        if all(a is values[0] for a in values) and all(
            a + n == b for (a, b), n in zip(pairwise(firsts), extents, strict=False)
        ):
            by[slot] = span.dim, firsts[0]
            continue
        joined = concatenate(values, span.dim, firsts, extents) if span.is_single else None
        if joined is None:
            return None
        args[slot] = joined
    part = t.parts[0]
    assert isinstance(part, Piece)
    new = tuple(shift(b, {e: by[e.slot] for e in reads(b) if e.slot in by}) for b in bodies)
    domain = (*part.domain[:axis], sum(extents), *part.domain[axis + 1 :])
    out = Reduce(part.body.combiner, domain[t.rank :], new) if isinstance(part.body, Reduce) else new[0]
    return prune_args(template(domain[: t.rank], [(a.dtype, a.shape) for a in args], out), tuple(args))


def join_as_pieces(members: Sequence[Compute], axis: int) -> Compute | None:
    """Return one tensor whose pieces are the members' reductions, one after the other along an output axis; None if
    they differ in type or in another dimension."""
    parts: list[Piece] = []
    args: list[Tensor] = []
    shape = members[0].shape
    if any(m.dtype != members[0].dtype or _without(m.shape, axis) != _without(shape, axis) for m in members):
        return None
    for m, offset in zip(members, accumulate((m.shape[axis] for m in members[:-1]), initial=0), strict=True):
        piece = m.template.parts[0]
        assert isinstance(piece, Piece) and isinstance(piece.body, Reduce)
        slots = {s: len(args) + s for s in range(len(m.args))}
        at = tuple(offset if d == axis else 0 for d in range(len(shape)))
        body = Reduce(piece.body.combiner, piece.body.extents, (substitute(piece.bodies[0], {}, slots),))
        parts.append(Piece(at, piece.step, piece.extents, body))
        args += m.args
    joined = (*shape[:axis], sum(m.shape[axis] for m in members), *shape[axis + 1 :])
    return prune_args(Template(joined, tuple((a.dtype, a.shape) for a in args), tuple(parts)), tuple(args))


def is_product(t: Template) -> bool:
    """Return whether a template is one sum that multiplies, as a matrix product or a convolution does."""

    def check(t: Template) -> bool:
        piece = whole_sum(t)
        if piece is None or not t.shape or is_long(body := piece.bodies[0]) or len(reads(body)) < 2:
            return False
        return any(isinstance(e, Apply) and e.fn == "mul" for e in postorder([body]))

    return t.memo("is product", check)


def form_by_number(t: Template) -> Template:
    """Return a template with 0 for each number in the index of a read; equal ones may be joined by a new axis."""

    def rule(e: Expr) -> Expr | None:
        if not isinstance(e, Read) or not any(isinstance(i, Const) for i in e.index):
            return None
        return Read(e.slot, tuple(Const(0, i.dtype) if isinstance(i, Const) else i for i in e.index), e.dtype)

    return t.memo("form by number", lambda t: map_bodies(t, lambda b: rebuild([b], rule)[0]))


def numbers_read(t: Template) -> tuple[int, ...]:
    """Return the numbers in the indices of a template's reads."""
    return tuple(int(i.value) for b in t.parts[0].bodies for e in reads(b) for i in e.index if isinstance(i, Const))


def stack(members: Sequence[Compute], axis: int) -> Compute | None:
    """Return one tensor that computes all members, or adds them, by a new axis; None where there is none.

    Args:
        members: tensors of one form by number, each one piece of one body.
        axis: position of the new axis, the first of the output's or the first of the sum's.
    """
    shape = members[0].shape
    piece = members[0].template.parts[0]
    assert isinstance(piece, Piece)
    moved: Mapping[int, Expr] = {p: Axis(p + 1) for p in range(axis, len(piece.domain))}
    args: list[Tensor] = []

    def join_index(positions: Sequence[Expr]) -> Expr | None:
        first = positions[0]
        if all(e is first for e in positions):
            return None if reads(first) else substitute(first, moved)
        numbers = [int(e.value) for e in positions if isinstance(e, Const)]
        steps = {b - a for a, b in pairwise(numbers)}
        if len(numbers) < len(positions) or len(steps) > 1:
            return None
        return LinearForm(numbers[0], {Axis(axis): steps.pop()}).expr(first.dtype)

    def join_read(bodies: Sequence[Read]) -> Expr | None:
        tensors = [m.args[e.slot] for m, e in zip(members, bodies, strict=True)]
        index = [join_index(positions) for positions in zip(*(e.index for e in bodies), strict=True)]
        if any(a is not tensors[0] for a in tensors):
            if any(e.index != bodies[0].index for e in bodies):
                return None
            index.insert(0, Axis(axis))
            tensors[0] = _stack_copies(tensors)
        if None in index:
            return None
        args.append(tensors[0])
        return Read(len(args) - 1, tuple(index), bodies[0].dtype)  # type: ignore[arg-type]

    def join(bodies: Sequence[Expr]) -> Expr | None:
        first = bodies[0]
        if isinstance(first, Read):
            return join_read(bodies)  # type: ignore[arg-type]
        if not isinstance(first, Apply):
            return substitute(first, moved)
        children = [join(x) for x in zip(*(e.args for e in bodies), strict=True)]
        return None if None in children else Apply(first.fn, tuple(children), first.dtype)

    body = join([m.template.parts[0].bodies[0] for m in members])
    if body is None:
        return None
    if isinstance(piece.body, Reduce):
        extents = piece.body.extents if axis == 0 else (len(members), *piece.body.extents)
        body = Reduce(piece.body.combiner, extents, (body,))
    new_shape = (len(members), *shape) if axis == 0 else shape
    return prune_args(template(new_shape, [(a.dtype, a.shape) for a in args], body), tuple(args))


def _stack_copies(tensors: Sequence[Tensor]) -> Compute:
    """Return tensors of one shape as the positions of a new first axis."""
    shape = tensors[0].shape
    index = tuple(Axis(d + 1) for d in range(len(shape)))
    slots = {a: s for s, a in enumerate(dict.fromkeys(tensors))}
    parts = tuple(
        Piece((n, *(0,) * len(shape)), (1,) * (1 + len(shape)), (1, *shape), Read(slots[a], index, a.dtype))
        for n, a in enumerate(tensors)
    )
    return Compute(Template((len(tensors), *shape), tuple((a.dtype, a.shape) for a in slots), parts), tuple(slots))
