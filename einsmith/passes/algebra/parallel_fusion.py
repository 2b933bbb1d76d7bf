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
pointwise function of a whole tensor is computed in the kernel that computes the tensor.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from einsmith.base import dtypes as dt
from einsmith.cost.facts import Target
from einsmith.ir.analysis.linear import linear
from einsmith.ir.analysis.pointwise import is_identity, pointwise_body
from einsmith.ir.nodes import (
    Apply,
    Axis,
    Compute,
    Const,
    Expr,
    Graph,
    Piece,
    Read,
    Reduce,
    Role,
    Template,
    Tensor,
    axes_of,
    nbytes,
    postorder,
    read_whole,
    reads,
    size,
    template,
)
from einsmith.ir.rebuild import (
    exchanged,
    map_bodies,
    prune_args,
    readers_of,
    substitute,
    whole_sum,
    with_args,
)
from einsmith.ir.rewrite.simplify import simplify_template
from einsmith.ir.views import is_view
from einsmith.passes.context import PassContext

_MAX_SIBLINGS = 16
"""Most tensors that are fused into one; each may become a piece, which is compiled by itself."""
_MAX_LEVELS = 6
"""Most functions through which a concatenation moves towards the inputs."""
_SMALL_RATIO = 16
"""A concatenation of arguments, such as biases, is stored if it is smaller than the result by this factor."""
_MAX_SLICE_ROUNDS = 4
"""Most times that siblings over slices are fused; the next time finds the readers of those fused before."""
_MAX_VISITED = 1000
"""Most nodes that are searched for a dependence of siblings on each other; beyond, they are not fused."""
MAX_CYCLES = 4
"""Most cycles of several fusions that are resolved by giving up one of them; beyond, none is done."""


def parallel_fusion(graph: Graph, context: PassContext) -> Graph:
    """Return the graph with siblings below large concatenations and over slices of large tensors fused."""
    fused = _apply(graph, _find_concatenations(_Siblings(graph, context.target)))
    for _ in range(_MAX_SLICE_ROUNDS):
        before, fused = fused, _apply(fused, _find_slices(_Siblings(fused, context.target)))
        if fused is before:
            break
    return fused


@dataclass(frozen=True)
class _FusedPlace:
    """The part of a fused tensor that equals a tensor of the graph: it begins at `offset` of `axis`."""

    whole: Compute
    axis: int
    offset: int


@dataclass
class _Fusion:
    """Fused tensors that are computed all or none of them.

    Attributes:
        places: where the tensors that they replace are.
    """

    places: dict[Tensor, _FusedPlace] = field(default_factory=dict)

    def add(self, members: Sequence[Compute], axis: int, whole: Compute) -> None:
        """Add a fused tensor: its members lie in it one after the other."""
        for m, offset in zip(members, _offsets(members, axis), strict=True):
            self.places[m] = _FusedPlace(whole, axis, offset)


class _Siblings:
    """Facts of a graph by which siblings are found.

    Attributes:
        nodes: the nodes, arguments ahead of users.
        target: the machine; a copy of a tensor that fits its L2 reads and writes caches, so that fusion saves nothing.
    """

    def __init__(self, graph: Graph, target: Target):
        self.nodes: list[Tensor] = list(postorder(graph.roots))
        self.target = target
        self.role: Mapping[Tensor, Role] = graph.role
        self._readers = readers_of(self.nodes)
        self._roots = set(graph.roots)
        self._depth: dict[Tensor, int] = {}
        for node in self.nodes:
            self._depth[node] = 1 + max((self._depth[a] for a in node.args), default=0)

    def can_move(self, t: Tensor) -> bool:
        """Return whether a tensor may become a part of another: no root, and readers whose indices can be shifted."""
        return (
            isinstance(t, Compute)
            and len(t.template.dtypes) == 1
            and t not in self._roots
            and all(isinstance(r, Compute) and not is_view(r.template) for r in self._readers[t])
        )

    def has_pointwise_reader(self, t: Tensor) -> bool:
        """Return whether a reader may be computed in the kernel of a tensor."""
        return any(pointwise_body(r.template) is not None for r in self._readers[t] if isinstance(r, Compute))

    def are_independent(self, members: Sequence[Compute]) -> bool:
        """Return whether no member depends on another."""
        least = min(self._depth[m] for m in members)
        stack = [a for m in members for a in m.args if self._depth[a] >= least]
        seen: set[Tensor] = set(stack)
        while stack:
            t = stack.pop()
            if t in members or len(seen) > _MAX_VISITED:
                return False
            stack += (new := [a for a in t.args if self._depth[a] >= least and a not in seen])
            seen.update(new)
        return True


# ------------------------------------------------------------------------------------------- below a concatenation


def _find_concatenations(siblings: _Siblings) -> list[_Fusion]:
    """Return the fusions that make large concatenations vanish."""
    out: list[_Fusion] = []
    taken: set[Tensor] = set()
    for node in siblings.nodes:
        if not isinstance(node, Compute) or len(node.template.parts) < 2:
            continue
        axis = node.template.memo("concatenation axis", _concatenation_axis)
        if axis is None or siblings.target.fits_l2(nbytes(node)):
            continue
        slots = [p.body.slot for p in sorted(node.template.parts, key=lambda p: p.offset[axis])]  # type: ignore
        fusion = _Fusion()
        whole = _fuse([node.args[s] for s in slots], axis, siblings, fusion, _MAX_LEVELS)
        if whole is not None and taken.isdisjoint(fusion.places):
            taken.update(fusion.places)
            fusion.places[node] = _FusedPlace(whole, axis, 0)
            out.append(fusion)
    return out


def _concatenation_axis(t: Template) -> int | None:
    """Return the axis along which a template concatenates its arguments; None for another template."""
    axes = set[int]()
    for p in t.parts:
        if not isinstance(p, Piece) or not isinstance(p.body, Read) or any(s != 1 for s in p.step):
            return None
        if t.params[p.body.slot][1] != p.extents or not is_identity(p.body, p.extents):
            return None
        axes.update(d for d, n in enumerate(t.shape) if p.extents[d] != n)
    slots = {p.body.slot for p in t.parts if isinstance(p.body, Read)}
    return axes.pop() if len(axes) == 1 and len(slots) == len(t.parts) <= _MAX_SIBLINGS else None


def _offsets(members: Sequence[Tensor], axis: int) -> list[int]:
    return list(accumulate((m.shape[axis] for m in members[:-1]), initial=0))


def _fuse(members: Sequence[Tensor], axis: int, siblings: _Siblings, fusion: _Fusion, levels: int) -> Compute | None:
    """Return the concatenation of tensors without a copy of them, and add it to a fusion; None if there is none."""
    computed = [m for m in members if isinstance(m, Compute)]
    if (
        len({*computed}) < len(members)
        or not levels
        or any(m in fusion.places or not siblings.can_move(m) for m in members)
        or not siblings.are_independent(computed)
    ):
        return None
    whole = _join_reductions(computed, axis) or _fuse_pointwise(computed, axis, siblings, fusion, levels)
    if whole is not None:
        fusion.add(computed, axis, whole)
    return whole


def _join_reductions(members: Sequence[Compute], axis: int) -> Compute | None:
    """Return one tensor whose pieces are sums of products; None if a member is not such a sum."""
    parts: list[Piece] = []
    args: list[Tensor] = []
    for m, offset in zip(members, _offsets(members, axis), strict=True):
        piece = whole_sum(m.template)
        if piece is None or not m.template.memo("sum of products", _is_product):
            return None
        slots = {s: len(args) + s for s in range(len(m.args))}
        at = tuple(offset if d == axis else 0 for d in range(len(m.shape)))
        assert isinstance(piece.body, Reduce)
        body = Reduce("sum", piece.body.extents, (substitute(piece.bodies[0], {}, slots),))
        parts.append(Piece(at, piece.step, piece.extents, body))
        args += m.args
    if len({m.dtype for m in members}) > 1:
        return None
    params = tuple((a.dtype, a.shape) for a in args)
    return prune_args(Template(_joined_shape(members, axis), params, tuple(parts)), tuple(args))


def _is_product(t: Template) -> bool:
    """Return whether a reduction multiplies, as a matrix product or a convolution does."""
    bodies = t.parts[0].bodies
    return len(reads(bodies[0])) > 1 and any(isinstance(e, Apply) and e.fn == "mul" for e in postorder(bodies))


def _joined_shape(members: Sequence[Tensor], axis: int) -> tuple[int, ...]:
    shape = members[0].shape
    return (*shape[:axis], sum(m.shape[axis] for m in members), *shape[axis + 1 :])


def _fuse_pointwise(
    members: Sequence[Compute], axis: int, siblings: _Siblings, fusion: _Fusion, levels: int
) -> Compute | None:
    """Return the members' common function of concatenated arguments; None if the functions differ, or if a large
    concatenation of arguments would be a copy."""
    widest = max(members, key=lambda m: m.shape[axis])
    body = pointwise_body(widest.template)
    places = widest.template.memo(("axis of reads", axis), lambda t: _axis_of_reads(t, axis))
    if body is None or places is None:
        return None
    at_zero = substitute(body, {axis: Const(0, dt.i32)})  # as the simplifier writes an axis of extent 1
    for m in members:
        own = pointwise_body(m.template)
        if own is not body and (own is not at_zero or m.shape[axis] > 1 or len(m.args) != len(places)):
            return None
    args: list[Tensor] = []
    for slot, place in enumerate(places):
        values = [m.args[slot] for m in members]
        if len({a.dtype for a in values}) > 1:
            return None
        if place is None:
            if any(a is not values[0] for a in values):
                return None
            args.append(values[0])
            continue
        shape = values[0].shape
        if any(
            a.shape != (*shape[:place], m.shape[axis], *shape[place + 1 :])
            for a, m in zip(values, members, strict=True)
        ):
            return None
        joined = (
            _concatenate(values, place)
            if sum(map(nbytes, values)) * _SMALL_RATIO <= sum(map(nbytes, members))
            else _fuse(values, place, siblings, fusion, levels - 1)
        )
        if joined is None:
            return None
        args.append(joined)
    return prune_args(template(_joined_shape(members, axis), [(a.dtype, a.shape) for a in args], body), tuple(args))


def _axis_of_reads(t: Template, axis: int) -> list[int | None] | None:
    """Return, for each slot of a pointwise template, the dimension that an output axis indexes, or None if the axis
    does not occur. Return None if the axis occurs in any other way."""
    places: list[set[int | None]] = [set() for _ in t.params]
    for e in postorder(t.parts[0].bodies):
        at = [d for d, a in enumerate(e.args) if isinstance(a, Axis) and a.position == axis]
        if isinstance(e, Read) and len(at) < 2:
            places[e.slot].add(at[0] if at else None)
        elif at or (isinstance(e, Axis) and e in t.parts[0].bodies):
            return None
    if any(len(p) != 1 for p in places):
        return None
    return [p.pop() for p in places]


def _concatenate(members: Sequence[Tensor], axis: int) -> Compute:
    """Return the copy of tensors one after the other along an axis."""
    parts: list[Piece] = []
    args = tuple(dict.fromkeys(members))
    for m, offset in zip(members, _offsets(members, axis), strict=True):
        at = tuple(offset if d == axis else 0 for d in range(len(m.shape)))
        body = read_whole(args.index(m), m.shape, m.dtype)
        parts.append(Piece(at, (1,) * len(m.shape), m.shape, body))
    return Compute(Template(_joined_shape(members, axis), tuple((a.dtype, a.shape) for a in args), tuple(parts)), args)


# ---------------------------------------------------------------------------------------------------- over slices


@dataclass(frozen=True)
class _Slice:
    """A template over a slice of its arguments, with the slice abstracted away.

    Attributes:
        axis: the output axis that runs over the slice.
        first: first position of the slice, in the dimension that the first read of the axis indexes.
        bodies: the bodies over a slice that begins at 0.
        domain: extents of the other axes, 0 for `axis`.
    """

    axis: int
    first: int
    bodies: tuple[Expr, ...]
    domain: tuple[int, ...]


def _find_slices(siblings: _Siblings) -> list[_Fusion]:
    """Return the fusions of tensors that apply one function to neighbouring slices of the same large tensors."""
    groups: dict[tuple, list[tuple[int, Compute]]] = defaultdict(list)
    for node in siblings.nodes:
        if not isinstance(node, Compute) or siblings.target.fits_l2(max(map(nbytes, node.args), default=0)):
            continue
        slices = node.template.memo("slices of arguments", lambda t: tuple(_slices_of(t)))
        if not slices or not siblings.can_move(node):
            continue
        for s in slices:
            combiner = body.combiner if isinstance(body := node.template.parts[0].body, Reduce) else None
            key = s.axis, s.bodies, s.domain, combiner, node.args, siblings.role[node]
            groups[key].append((s.first, node))
    out: list[_Fusion] = []
    taken: set[Tensor] = set()
    for (axis, bodies, *_), members in groups.items():
        for first, run in _contiguous(members, axis):
            if not taken.isdisjoint(run):
                continue
            whole = _over_all(run, axis, first, bodies)
            if _pays(run, whole, siblings):
                taken.update(run)
                fusion = _Fusion()
                fusion.add(run, axis, whole)
                out.append(fusion)
    return out


def _slices_of(t: Template) -> Iterator[_Slice]:
    """Yield the axes of a template that run over a slice of an argument and occur in no other way."""
    part = t.parts[0]
    if len(t.parts) > 1 or not isinstance(part, Piece) or part.extents != t.shape or len(t.dtypes) > 1:
        return
    fixed: set[int] = set()
    positions: dict[int, dict[Read, tuple[int, int]]] = defaultdict(dict)
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
        for dim, index in enumerate(e.args):
            form = linear(index)
            axis = next(iter(form.terms), None)
            if isinstance(axis, Axis) and form.terms == {axis: 1} and e not in positions[axis.position]:
                positions[axis.position][e] = dim, form.const  # type: ignore[index]
            else:
                fixed |= axes_of(index)
    for d, reads_at in positions.items():
        if (
            d in fixed
            or d >= t.rank
            or not any(t.params[e.slot][1][dim] > t.shape[d] for e, (dim, _) in reads_at.items())
        ):
            continue
        first = next(iter(reads_at.values()))[1]
        bodies = tuple(_shift(b, {e: (dim, -first) for e, (dim, _) in reads_at.items()}) for b in part.bodies)
        yield _Slice(d, first, bodies, (*part.domain[:d], 0, *part.domain[d + 1 :]))


def _shift(body: Expr, by: Mapping[Read, tuple[int, int]]) -> Expr:
    """Return a body in which some reads are shifted by (dimension, distance)."""
    memo: dict[Expr, Expr] = {}
    for e in postorder([body]):
        new = with_args(e, tuple([memo[a] for a in e.args])) if e.args else e
        if isinstance(e, Read) and e in by and isinstance(new, Read):
            new = _shifted(new, *by[e])
        memo[e] = new
    return memo[body]


def _shifted(e: Read, dim: int, distance: int) -> Read:
    index = (linear(e.index[dim]) + distance).expr(e.index[dim].dtype)
    return Read(e.slot, (*e.index[:dim], index, *e.index[dim + 1 :]), e.dtype)


def _contiguous(members: list[tuple[int, Compute]], axis: int) -> Iterator[tuple[int, list[Compute]]]:
    """Yield (first position, members) for each run of at least two slices without gaps and overlaps."""
    first, stop, run = 0, None, list[Compute]()
    for at, node in sorted(members, key=lambda x: x[0]):
        if at != stop or len(run) == _MAX_SIBLINGS:
            if len(run) > 1:
                yield first, run
            first, run = at, []
        run.append(node)
        stop = at + node.shape[axis]
    if len(run) > 1:
        yield first, run


def _over_all(members: Sequence[Compute], axis: int, first: int, bodies: Sequence[Expr]) -> Compute:
    """Return the function of the members over all of their slices."""
    node = members[0]
    by = {
        e: (dim, first)
        for b in bodies
        for e in reads(b)
        for dim, index in enumerate(e.index)
        if axis in linear(index).axes
    }
    shape = _joined_shape(members, axis)
    body = node.template.parts[0].body
    shifted = tuple(_shift(b, by) for b in bodies)
    out = Reduce(body.combiner, body.extents, shifted) if isinstance(body, Reduce) else shifted[0]
    return Compute(template(shape, node.template.params, out), node.args)


def _pays(members: Sequence[Compute], whole: Compute, siblings: _Siblings) -> bool:
    """Return whether it pays to fuse slices.

    A reduction is fused if it reads its largest argument about once: it then reads a whole tensor in one sweep. A
    pointwise tensor is fused if it is large and no pointwise reader could be computed in the kernel of its slice.
    """
    if pointwise_body(whole.template) is None:
        return size(whole.template.parts[0].domain) <= 2 * max(size(s) for _, s in whole.template.params)
    return not siblings.target.fits_l2(nbytes(whole)) and not any(map(siblings.has_pointwise_reader, members))


# -------------------------------------------------------------------------------------------------------- rewriting


def _apply(graph: Graph, fusions: list[_Fusion]) -> Graph:
    """Return the graph with fused tensors in place of their members; without fusions that depend on each other."""
    for _ in range(MAX_CYCLES):
        if not fusions:
            return graph
        places = {t: p for f in fusions for t, p in f.places.items()}
        order, cyclic = _sort(graph, places)
        if cyclic is None:
            break
        fusions = [f for f in fusions if all(p.whole is not cyclic for p in f.places.values())]
    else:
        return graph
    new: dict[Tensor, Tensor] = {}
    for node in order:
        new[node] = _rewired(node, places, new) if node.args else node
    return exchanged(graph, new | {t: new[p.whole] for t, p in places.items() if p.whole in new})


def _sort(graph: Graph, places: Mapping[Tensor, _FusedPlace]) -> tuple[list[Tensor], Tensor | None]:
    """Return (nodes of the graph with fused tensors, arguments first; a fused tensor on a cycle, None without one)."""

    def target(t: Tensor) -> Tensor:
        return places[t].whole if t in places else t

    wholes = {p.whole for p in places.values()}
    done: dict[Tensor, bool] = {}
    order: list[Tensor] = []
    stack: list[tuple[Tensor, bool]] = [(target(t), False) for t in reversed(graph.roots)]
    while stack:
        node, is_left = stack.pop()
        if is_left:
            done[node] = True
            order.append(node)
        elif node not in done:
            done[node] = False
            stack.append((node, True))
            stack += [(target(a), False) for a in node.args]
        elif not done[node]:
            path = [n for n, left in stack if left]
            return order, next(n for n in path[path.index(node) :] if n in wholes)
    return order, None


def _rewired(node: Tensor, places: Mapping[Tensor, _FusedPlace], new: Mapping[Tensor, Tensor]) -> Tensor:
    """Return a node that reads fused tensors where their members are."""
    args = tuple(new[places[a].whole if a in places else a] for a in node.args)
    moved = {s: places[a] for s, a in enumerate(node.args) if a in places and args[s].shape != a.shape}
    if not moved or not isinstance(node, Compute):
        return with_args(node, args)

    def shift(body: Expr) -> Expr:
        return _shift(body, {e: (p.axis, p.offset) for e in reads(body) if (p := moved.get(e.slot)) and p.offset})

    params = tuple((a.dtype, a.shape) for a in args)
    out = prune_args(map_bodies(node.template, shift, params), args)
    return prune_args(simplify_template(out.template), out.args)
