"""Fuse siblings along an axis: tensors that are concatenated, or that read neighbouring slices, become one tensor.

Below a concatenation, the concatenation moves to the arguments, until it vanishes in the pieces of a reduction:
before: S[c] = sum[r](W[c, r]*X[r]);  T[c] = sum[r](V[c, r]*Z[r])
        C[c] = relu(S[c] + a[c]), C[8+c] = relu(T[c] + b[c])
after:  U[c] = sum[r](W[c, r]*X[r]), U[8+c] = sum[r](V[c, r]*Z[r]);  d[c] = a[c], d[8+c] = b[c]
        C[c] = relu(U[c] + d[c])

Over slices, which the gradient of a concatenation is read in:
before: A[i] = where(C[i] <= 0, 0, G[i]);  B[i] = where(C[8+i] <= 0, 0, G[8+i])
after:  D[i] = where(C[i] <= 0, 0, G[i])

Other readers of a sibling read the fused tensor at the sibling's offset. A copy less is written and read, and a
pointwise function of a whole tensor is computed in the kernel that computes the tensor. The predicted kernel times
decide.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from einsmith.base import dtypes as dt
from einsmith.ir.analysis.pointwise import is_identity, pointwise_body
from einsmith.ir.nodes import Compute, Const, Graph, Piece, Read, Template, Tensor, nbytes
from einsmith.ir.rebuild import substitute
from einsmith.passes.algebra.axis_forms import (
    AxisForm,
    concatenate,
    forms_of,
    is_product,
    join_along,
    join_as_pieces,
    no_copies,
)
from einsmith.passes.algebra.join_prices import JoinDecisions
from einsmith.passes.algebra.siblings import Fusion, Place, Siblings, places_of, replace_siblings
from einsmith.passes.context import PassContext

_MAX_SIBLINGS = 16
"""Most tensors that are fused into one; each may become a piece, which is compiled by itself."""
_MAX_LEVELS = 6
"""Most functions through which a concatenation moves towards the inputs."""
_SMALL_RATIO = 16
"""A concatenation of arguments, such as biases, is stored if it is smaller than the result by this factor."""
_MAX_SLICE_ROUNDS = 4
"""Most times that siblings over slices are fused; the next time finds the readers of those fused before."""


def parallel_fusion(graph: Graph, context: PassContext) -> Graph:
    """Return the graph with siblings below concatenations and over slices fused where the predicted time is lower."""
    if not context.can_price:
        return graph
    decisions = JoinDecisions(context)
    fused = replace_siblings(graph, _find_concatenations(Siblings(graph), decisions))
    for _ in range(_MAX_SLICE_ROUNDS):
        before, fused = fused, replace_siblings(fused, _find_slices(Siblings(fused), decisions))
        if fused is before:
            break
    return fused


# ------------------------------------------------------------------------------------------- below a concatenation


def _find_concatenations(siblings: Siblings, decisions: JoinDecisions) -> list[Fusion]:
    """Return the fusions that make concatenations vanish, and pay."""
    out: list[Fusion] = []
    taken: set[Tensor] = set()
    for node in siblings.nodes:
        if not isinstance(node, Compute) or len(node.template.parts) < 2:
            continue
        axis = node.template.memo("concatenation axis", _concatenation_axis)
        if axis is None:
            continue
        slots = [p.body.slot for p in sorted(node.template.parts, key=lambda p: p.offset[axis])]  # type: ignore
        fusion: Fusion = {}
        whole = _fuse([node.args[s] for s in slots], axis, siblings, fusion, _MAX_LEVELS)
        if whole is None or not taken.isdisjoint(fusion):
            continue
        fusion[node] = Place(whole, axis, 0)
        if decisions.pays([node], decisions.price(fusion, siblings)):
            taken.update(fusion)
            out.append(fusion)
    return out


def _concatenation_axis(t: Template) -> int | None:
    """Return the axis along which a template concatenates its arguments; None for another template."""
    axes = set[int]()
    for p in t.parts:
        if not isinstance(p, Piece) or not isinstance(p.body, Read) or any(s != 1 for s in p.step):
            return None
        if not is_identity(p.body, p.extents, t.params[p.body.slot][1]):
            return None
        axes.update(d for d, n in enumerate(t.shape) if p.extents[d] != n)
    slots = {p.body.slot for p in t.parts if isinstance(p.body, Read)}
    return axes.pop() if len(axes) == 1 and len(slots) == len(t.parts) <= _MAX_SIBLINGS else None


def _fuse(members: Sequence[Tensor], axis: int, siblings: Siblings, fusion: Fusion, levels: int) -> Compute | None:
    """Return the concatenation of tensors without a copy of them, and add it to a fusion; None if there is none."""
    computed = [m for m in members if isinstance(m, Compute)]
    if (
        len({*computed}) < len(members)
        or not levels
        or any(m in fusion or not siblings.can_move(m) for m in members)
        or not siblings.are_independent(computed)
    ):
        return None
    if all(is_product(m.template) for m in computed):
        whole = join_as_pieces(computed, axis)
    else:
        whole = _fuse_pointwise(computed, axis, siblings, fusion, levels)
    if whole is not None:
        fusion |= places_of(computed, axis, whole)
    return whole


def _fuse_pointwise(
    members: Sequence[Compute], axis: int, siblings: Siblings, fusion: Fusion, levels: int
) -> Compute | None:
    """Return the members' common function of concatenated arguments; None if the functions differ, or if a large
    concatenation of arguments would be a copy."""
    widest = max(members, key=lambda m: m.shape[axis])
    body, form = pointwise_body(widest.template), forms_of(widest.template).get(axis)
    if body is None or form is None:
        return None
    at_zero = substitute(body, {axis: Const(0, dt.i32)})  # as the simplifier writes an axis of extent 1
    for m in members:
        own = pointwise_body(m.template)
        if own is not body and (own is not at_zero or m.shape[axis] > 1 or len(m.args) != len(widest.args)):
            return None
        if any(m.args[s] is not a for s, a in enumerate(widest.args) if s not in form.spans):
            return None
    total = sum(map(nbytes, members))

    def join(values: Sequence[Tensor], dim: int, firsts: Sequence[int], extents: Sequence[int]) -> Compute | None:
        if any(firsts) or any(a.shape[dim] != n for a, n in zip(values, extents, strict=True)):
            return None
        if sum(map(nbytes, values)) * _SMALL_RATIO <= total:
            return concatenate(values, dim, firsts, extents)
        return _fuse(values, dim, siblings, fusion, levels - 1)

    return join_along(members, [form._replace(extent=m.shape[axis]) for m in members], join)


# ---------------------------------------------------------------------------------------------------- over slices


def _find_slices(siblings: Siblings, decisions: JoinDecisions) -> list[Fusion]:
    """Return the fusions of tensors that apply one function to neighbouring slices of the same tensors, and pay."""
    groups: dict[tuple, list[tuple[int, Compute]]] = defaultdict(list)
    for node in siblings.nodes:
        slices = node.template.memo("slices of arguments", _slices_of) if isinstance(node, Compute) else ()
        if not isinstance(node, Compute) or not slices or not siblings.can_move(node):
            continue
        for form in slices:
            first = next(iter(form.spans.values())).first
            distances = tuple(span.first - first for span in form.spans.values())
            groups[form.axis, form.key, distances, node.args, siblings.role[node]].append((first, node))
    out: list[Fusion] = []
    taken: set[Tensor] = set()
    for (axis, *_), members in groups.items():
        for run in _contiguous(members, axis):
            whole = join_along(run, [forms_of(m.template)[axis] for m in run], no_copies)
            if whole is None or not taken.isdisjoint(run):
                continue
            fusion = places_of(run, axis, whole)
            if decisions.pays(run, decisions.price(fusion, siblings)):
                taken.update(run)
                out.append(fusion)
    return out


def _slices_of(t: Template) -> list[AxisForm]:
    """Return the forms of a template along output axes that run over a slice of an argument."""
    return [
        form
        for d, form in (forms_of(t).items() if len(t.parts) == 1 else ())
        if d < t.rank and any(t.params[s][1][span.dim] > t.shape[d] for s, span in form.spans.items())
    ]


def _contiguous(members: list[tuple[int, Compute]], axis: int) -> Iterator[list[Compute]]:
    """Yield each run of at least two slices without gaps and overlaps."""
    stop, run = None, list[Compute]()
    for at, node in sorted(members, key=lambda x: x[0]):
        if at != stop or len(run) == _MAX_SIBLINGS:
            if len(run) > 1:
                yield run
            run = []
        run.append(node)
        stop = at + node.shape[axis]
    if len(run) > 1:
        yield run
