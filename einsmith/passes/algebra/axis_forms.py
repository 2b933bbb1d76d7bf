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
    is_zero,
    postorder,
    reads,
)
from einsmith.ir.rebuild import map_reads, prune_args, substitute, types_of, with_args
from einsmith.ir.rewrite.factors import is_long


class AxisSpan(NamedTuple):
    """Where the reads of a slot run over an axis: the dimension, the first position, and whether all reads of the slot
    begin there."""

    dim: int
    first: int
    is_single: bool


class _PieceForm(NamedTuple):
    """A piece without its extent along one axis: pieces that differ in that extent alone have equal forms.

    domain: extents of the output's and the reduction's axes, 0 for that axis; combiner: None without a reduction.
    """

    offset: tuple[int, ...]
    step: tuple[int, ...]
    domain: tuple[int, ...]
    combiner: str | None
    bodies: tuple[Expr, ...]

    @staticmethod
    def of(p: Piece, axis: int, bodies: tuple[Expr, ...]) -> _PieceForm:
        """Return the form of a piece with other bodies."""
        domain = tuple(0 if d == axis else n for d, n in enumerate(p.domain))
        return _PieceForm(p.offset, p.step, domain, p.body.combiner if isinstance(p.body, Reduce) else None, bodies)

    def piece(self, axis: int, extent: int, offset: int, by: Mapping[Read, tuple[int, int]]) -> Piece:
        """Return the piece with an extent of the axis, at an offset along it, with some reads shifted."""
        rank = len(self.offset)
        domain = tuple(extent if d == axis else n for d, n in enumerate(self.domain))
        at = tuple(n + offset if d == axis else n for d, n in enumerate(self.offset))
        bodies = tuple(shift(b, by) for b in self.bodies)
        body = bodies[0] if self.combiner is None else Reduce(self.combiner, domain[rank:], bodies)
        return Piece(at, self.step, domain[:rank], body)


class AxisForm(NamedTuple):
    """A template along an axis.

    Attributes:
        axis: the axis; from the rank of the output on it is one of the reductions'.
        extent: its extent.
        key: what equal forms have in common; the pieces, which begin at 0 and have extent 0, come first.
        spans: the slots whose reads run over the axis; tensors of equal forms share those of the other slots.
    """

    axis: int
    extent: int
    key: tuple[Any, ...]
    spans: Mapping[int, AxisSpan]


Concatenate = Callable[[Sequence[Tensor], int, Sequence[int], Sequence[int]], Tensor | None]
"""Returns slices one after the other, given tensors, a dimension, and the slices' first positions and extents."""


def forms_of(t: Template) -> Mapping[int, AxisForm]:
    """Return the forms of a template, by the axis, along axes that occur in no other way than as an index."""
    return t.memo("forms along axes", _find_forms)


def _find_forms(t: Template) -> dict[int, AxisForm]:
    pieces = [p for p in t.parts if isinstance(p, Piece)]
    if t.is_scatter or len(t.dtypes) > 1:
        return {}
    fixed: set[int] = set()
    positions: dict[int, dict[Read, tuple[int, int]]] = defaultdict(dict)
    every: list[Read] = []
    stack, seen = [b for p in reversed(pieces) for b in reversed(p.bodies)], set[Expr]()
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
    out: dict[int, AxisForm] = {}
    for d, at in positions.items():
        spans: dict[int, AxisSpan] = {}
        for e, (dim, first) in at.items():
            span = spans.setdefault(e.slot, AxisSpan(dim, first, True))
            spans[e.slot] = span._replace(is_single=span.is_single and span.first == first)
        extent = _common_extent(t.rank, pieces, d)
        if d in fixed or not extent or any(e.slot in spans and at.get(e, (-1,))[0] != spans[e.slot].dim for e in every):
            continue
        by = {e: (dim, -spans[e.slot].first) for e, (dim, _) in at.items()}
        parts = tuple(_PieceForm.of(p, d, tuple(shift(b, by) for b in p.bodies)) for p in pieces)
        out[d] = AxisForm(d, extent, (parts, tuple((s, x.dim) for s, x in spans.items())), spans)
    return out


def _common_extent(rank: int, pieces: Sequence[Piece], axis: int) -> int:
    """Return the extent of an axis that all pieces have, or whose sums all pieces are that are not zero; else 0."""
    extents = {p.domain[axis] if axis < len(p.domain) else 0 for p in pieces if axis < rank or not is_zero(p.body)}
    is_whole = axis >= rank or all((p.offset[axis], p.step[axis]) == (0, 1) for p in pieces)
    is_sum = axis < rank or all(is_zero(p.body) or isinstance(p.body, Reduce) for p in pieces)
    return extents.pop() if len(extents) == 1 and is_whole and is_sum else 0


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
    return Compute(Template(joined, types_of(args), tuple(parts)), args)


def no_copies(tensors: Sequence[Tensor], dim: int, firsts: Sequence[int], extents: Sequence[int]) -> None:
    """Return None: a `Concatenate` for joins that only read neighbouring slices."""


def _without(shape: tuple[int, ...], dim: int) -> tuple[int, ...]:
    return (*shape[:dim], *shape[dim + 1 :])


def join_along(
    members: Sequence[Compute], forms: Sequence[AxisForm], concatenate: Concatenate = concatenate
) -> Compute | None:
    """Return one tensor that computes all members, or adds them if the axis is one of their sums; None if an operand
    cannot be joined.

    Args:
        members: tensors of one form that share the operands that do not run over the axis.
        forms: their forms.
        concatenate: joins operands that are no neighbouring slices of one tensor.
    """
    widest = max(range(len(members)), key=lambda n: forms[n].extent)
    node, (axis, _, (parts, *_), spans) = members[widest], forms[widest]
    extents = [f.extent for f in forms]
    args = list(node.args)
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
    moved = {e: by[e.slot] for p in parts for b in p.bodies for e in reads(b) if e.slot in by}
    new = [p.piece(axis, sum(extents), 0, moved) for p in parts]
    shape = tuple(sum(extents) if d == axis else n for d, n in enumerate(node.shape))
    return prune_args(Template(shape, types_of(args), tuple(new)), tuple(args))


def join_as_pieces(members: Sequence[Compute], axis: int) -> Compute | None:
    """Return one tensor whose pieces are the members' reductions, one after the other along an output axis; None if
    they differ in type or in another dimension."""
    parts: list[Piece] = []
    args: list[Tensor] = []
    shape = members[0].shape
    if any(m.dtype != members[0].dtype or _without(m.shape, axis) != _without(shape, axis) for m in members):
        return None
    for m, offset in zip(members, accumulate((m.shape[axis] for m in members[:-1]), initial=0), strict=True):
        slots = {s: len(args) + s for s in range(len(m.args))}
        for p in m.template.parts:
            assert isinstance(p, Piece)
            form = _PieceForm.of(p, axis, tuple(substitute(b, {}, slots) for b in p.bodies))
            parts.append(form.piece(axis, p.extents[axis], offset, {}))
        args += m.args
    joined = (*shape[:axis], sum(m.shape[axis] for m in members), *shape[axis + 1 :])
    return prune_args(Template(joined, types_of(args), tuple(parts)), tuple(args))


def is_product(t: Template) -> bool:
    """Return whether all pieces of a template that are not zero are sums that multiply, as matrix products,
    convolutions and their gradients do."""

    def check(t: Template) -> bool:
        sums = [p for p in t.parts if not isinstance(p, Piece) or not is_zero(p.body)]
        return bool(t.shape and sums) and all(isinstance(p, Piece) and _multiplies(p) for p in sums)

    return t.memo("is product", check)


def _multiplies(p: Piece) -> bool:
    if not isinstance(p.body, Reduce) or p.body.combiner != "sum" or len(p.bodies) > 1 or is_long(p.bodies[0]):
        return False
    return len(reads(p.bodies[0])) > 1 and any(isinstance(e, Apply) and e.fn == "mul" for e in postorder(p.bodies))


def join(members: Sequence[Compute], axis: int | None, new: int) -> Compute | None:
    """Return one tensor that computes all members, or adds them; None if an operand cannot be joined.

    Args:
        members: tensors of one form along the axis, or of one form by number, `in_order`.
        axis: the axis; None for a new one.
        new: position of the new axis.
    """
    if axis is None:
        return stack(members, new)
    return join_along(members, [forms_of(m.template)[axis] for m in members])


def in_order(members: Sequence[Compute], axis: int | None) -> list[Compute]:
    """Return members in the order of the slices that they read along an axis, or of the numbers if it is None."""
    if axis is None:
        return sorted(members, key=lambda m: numbers_read(m.template))
    return sorted(members, key=lambda m: [x.first for x in forms_of(m.template)[axis].spans.values()])


def form_by_number(t: Template) -> Template:
    """Return a template with 0 for each number in the index of a read; equal ones may be joined by a new axis."""

    def rule(e: Read) -> Read:
        return Read(e.slot, tuple(Const(0, i.dtype) if isinstance(i, Const) else i for i in e.index), e.dtype)

    return t.memo("form by number", lambda t: map_reads(t, rule))


def numbers_read(t: Template) -> tuple[int, ...]:
    """Return the numbers in the indices of a template's reads."""
    bodies = [b for p in t.parts for b in p.bodies]
    return tuple(int(i.value) for b in bodies for e in reads(b) for i in e.index if isinstance(i, Const))


def stack_copies(tensors: Sequence[Tensor]) -> Compute:
    """Return tensors of one shape as the positions of a new first axis."""
    shape = tensors[0].shape
    index = tuple(Axis(d + 1) for d in range(len(shape)))
    slots = {a: s for s, a in enumerate(dict.fromkeys(tensors))}
    parts = tuple(
        Piece((n, *(0,) * len(shape)), (1,) * (1 + len(shape)), (1, *shape), Read(slots[a], index, a.dtype))
        for n, a in enumerate(tensors)
    )
    return Compute(Template((len(tensors), *shape), types_of(slots), parts), tuple(slots))


def stack(
    members: Sequence[Compute], axis: int, stack_operand: Callable[[Sequence[Tensor]], Tensor] = stack_copies
) -> Compute | None:
    """Return one tensor that computes all members, or adds them, by a new axis; None where there is none.

    Args:
        members: tensors of one form by number, whose pieces have one body each.
        axis: position of the new axis, the first of the output's or the first of the sums'.
        stack_operand: returns tensors of one shape as the positions of a first axis.
    """
    shape = members[0].shape
    moved: Mapping[int, Expr] = {d: Axis(d + 1) for p in members[0].template.parts for d in range(axis, _rank_of(p))}
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
            tensors[0] = stack_operand(tensors)
        if None in index:
            return None
        args.append(tensors[0])
        return Read(len(args) - 1, tuple(index), bodies[0].dtype)

    def join(bodies: Sequence[Expr]) -> Expr | None:
        first = bodies[0]
        if isinstance(first, Read):
            return join_read(bodies)  # type: ignore[arg-type]
        if not isinstance(first, Apply):
            return substitute(first, moved)
        children = [join(x) for x in zip(*(e.args for e in bodies), strict=True)]
        return None if None in children else Apply(first.fn, tuple(children), first.dtype)

    parts: list[Piece] = []
    is_result, count = axis == 0, len(members)
    for pieces in zip(*(m.template.parts for m in members), strict=True):
        p = pieces[0]
        body = join([x.bodies[0] for x in pieces])
        if body is None or not isinstance(p, Piece):
            return None
        out: Expr | Reduce = body
        if isinstance(p.body, Reduce):
            out = Reduce(p.body.combiner, p.body.extents if is_result else (count, *p.body.extents), (body,))
        box = (p.offset, p.step, p.extents)
        parts.append(Piece(*((x, *b) if is_result else b for x, b in zip((0, 1, count), box, strict=True)), out))
    new_shape = (count, *shape) if is_result else shape
    return prune_args(Template(new_shape, types_of(args), tuple(parts)), tuple(args))


def _rank_of(p: Any) -> int:
    return len(p.domain) if isinstance(p, Piece) else 0
