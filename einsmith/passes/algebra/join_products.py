"""Join products of one form into one product: those that are added, and those of slices of one tensor.

The gradient of a parameter that is used several times is a sum of products. It becomes one product with more terms:
before: S[i, j] = sum[b](G[b, i]*X[b, j]) + sum[b](H[b, i]*Y[b, j])
after:  U[0, b, i] = G[b, i], U[1, b, i] = H[b, i];  V[0, b, j] = X[b, j], V[1, b, j] = Y[b, j]
        S[i, j] = sum[t, b](U[t, b, i]*V[t, b, j])

Products of one tensor with slices of another, as a network has that is written step by step, become a product with more
results:
before: A[b, i] = sum[j](X[b, 0, j]*W[i, j]);  B[b, i] = sum[j](X[b, 1, j]*W[i, j])
after:  C[t, b, i] = sum[j](X[b, t, j]*W[i, j]), read at t = 0 and t = 1

Partial sums are not stored, an operand is packed once, and there are fewer launches; stacked operands are copied.
Products that are added stay where the copies take more memory than the partial sums. The order of additions changes.
The predicted kernel times decide.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial, reduce
from itertools import pairwise

from einsmith.ir.analysis.linear import LinearForm
from einsmith.ir.analysis.pointwise import pointwise_body
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
    Template,
    Tensor,
    apply,
    nbytes,
    postorder,
    read_whole,
    reads,
    template,
)
from einsmith.ir.rebuild import (
    exchanged,
    map_bodies,
    operands,
    prune_args,
    readers_of,
    rebuild,
    substitute,
    whole_sum,
    with_args,
)
from einsmith.ir.rewrite.products import is_long
from einsmith.ir.views import is_view
from einsmith.passes.context import PassContext

_MAX_MEMBERS = 64
"""Most products that become one; each may become a piece of a stacked operand, which is compiled by itself."""
_MIN_GAIN = 0.03
"""Least predicted gain, as a fraction of the seconds of the separate kernels; a smaller one is within the model's
error."""


def join_products(graph: Graph, context: PassContext) -> Graph:
    """Return the graph with products joined where the predicted time is lower."""
    if not context.can_price:
        return graph
    return _join_addends(_join_slices(graph, context), context)


def _is_cheaper(joined: Iterable[Compute], separate: Iterable[Compute], context: PassContext) -> bool:
    after, before = (sum(map(context.price, nodes)) for nodes in (joined, separate))
    return after < (1 - _MIN_GAIN) * before


# ------------------------------------------------------------------------------------------------------ one product


def _find_form(t: Template) -> Template | None:
    """Return the template of a sum of products with 0 for each number in the index of a read; None for others."""

    def rule(e: Expr) -> Expr | None:
        if not isinstance(e, Read) or not any(isinstance(i, Const) for i in e.index):
            return None
        return Read(e.slot, tuple(Const(0, i.dtype) if isinstance(i, Const) else i for i in e.index), e.dtype)

    piece = whole_sum(t)
    if piece is None or not t.shape or is_long(body := piece.bodies[0]):
        return None
    if len(reads(body)) < 2 or not any(isinstance(e, Apply) and e.fn == "mul" for e in postorder([body])):
        return None
    return map_bodies(t, lambda b: rebuild([b], rule)[0])


def _read_numbers(t: Template) -> tuple[int, ...]:
    """Return the numbers in the indices of a template's reads."""
    return tuple(int(i.value) for b in t.parts[0].bodies for e in reads(b) for i in e.index if isinstance(i, Const))


def _join(members: Sequence[Compute], axis: int) -> Compute | None:
    """Return the product with all members' terms or results, by a new axis; None where there is none.

    Args:
        members: products of one form.
        axis: position of the new axis, the first of the output's or the first of the sum's.
    """
    shape = members[0].shape
    piece = whole_sum(members[0].template)
    assert piece is not None and isinstance(piece.body, Reduce)
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
            tensors[0] = _stack(tensors)
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

    body = join([m.template.parts[0].bodies[0] for m in members])
    if body is None:
        return None
    is_result, extents = axis == 0, piece.body.extents
    return prune_args(
        template(
            (len(members), *shape) if is_result else shape,
            [(a.dtype, a.shape) for a in args],
            Reduce("sum", extents if is_result else (len(members), *extents), (body,)),
        ),
        tuple(args),
    )


def _stack(tensors: Sequence[Tensor]) -> Compute:
    """Return tensors of one shape as the positions of a new first axis."""
    shape = tensors[0].shape
    index = tuple(Axis(d + 1) for d in range(len(shape)))
    slots = {a: s for s, a in enumerate(dict.fromkeys(tensors))}
    parts = tuple(
        Piece((n, *(0,) * len(shape)), (1,) * (1 + len(shape)), (1, *shape), Read(slots[a], index, a.dtype))
        for n, a in enumerate(tensors)
    )
    return Compute(Template((len(tensors), *shape), tuple((a.dtype, a.shape) for a in slots), parts), tuple(slots))


# -------------------------------------------------------------------------------------------------------- over slices


def _join_slices(graph: Graph, context: PassContext) -> Graph:
    """Return the graph with products of slices of one tensor joined.

    The products have the same arguments, so none depends on another, whatever else is joined.
    """
    nodes = list(postorder(graph.roots))
    readers, roots = readers_of(nodes), set(graph.roots)
    groups: dict[tuple, list[Compute]] = defaultdict(list)
    for node in nodes:
        if (
            isinstance(node, Compute)
            and (form := node.template.memo("form of products", _find_form)) is not None
            and node not in roots
            and all(isinstance(r, Compute) and not is_view(r.template) for r in readers[node])
        ):
            groups[form, node.args].append(node)
    places: dict[Tensor, tuple[Compute, int]] = {}
    for group in groups.values():
        for members in _split(sorted(group, key=lambda m: _read_numbers(m.template))):
            whole = _join(members, 0)
            # Functions of a product may be computed in its kernel, but not in that of many.
            if whole is not None and _is_cheaper([whole, _make_copy(whole)], members, context):
                places |= {m: (whole, n) for n, m in enumerate(members)}
    if not places:
        return graph
    new: dict[Tensor, Tensor] = {}
    for node in nodes:
        source = places[node][0] if node in places else node
        args = tuple(new[a] for a in source.args)
        parts = {s: places[a][1] for s, a in enumerate(source.args) if a in places}
        if parts:
            assert isinstance(source, Compute)
            new[node] = _read_parts(source, args, parts)
        else:
            new[node] = with_args(source, args) if args else source
    return exchanged(graph, new)


def _split(members: Sequence[Compute]) -> Iterator[Sequence[Compute]]:
    for start in range(0, len(members), _MAX_MEMBERS):
        if len(part := members[start : start + _MAX_MEMBERS]) > 1:
            yield part


def _make_copy(t: Compute) -> Compute:
    return Compute(template(t.shape, [(t.dtype, t.shape)], read_whole(0, t.shape, t.dtype)), (t,))


def _read_parts(node: Compute, args: tuple[Tensor, ...], parts: Mapping[int, int]) -> Compute:
    """Return a node that reads the joined product in the slots of `parts`, each at a position of its first axis."""

    def rule(e: Expr) -> Expr | None:
        if not isinstance(e, Read) or e.slot not in parts:
            return None
        dtype = e.index[0].dtype
        return Read(e.slot, (Const(parts[e.slot], dtype), *e.index), e.dtype)

    params = tuple((a.dtype, a.shape) for a in args)
    return prune_args(map_bodies(node.template, lambda b: rebuild([b], rule)[0], params), args)


# ----------------------------------------------------------------------------------------------------------- addends


def _join_addends(graph: Graph, context: PassContext) -> Graph:
    """Return the graph with products joined that are added element by element."""
    nodes = list(postorder(graph.roots))
    numbers = {node: n for n, node in enumerate(nodes)}
    users: dict[Tensor, int] = defaultdict(int)
    for t in (*graph.roots, *(a for node in nodes for a in set(node.args))):
        users[t] += 1
    stacked: set[Tensor] = set()  # what products that are joined already read
    new: dict[Tensor, Tensor] = {}
    for node in nodes:
        joined = node
        for group in _find_added(node, users) if isinstance(node, Compute) else ():
            for members in _split(
                sorted(group, key=lambda m: (_read_numbers(m.template), [numbers[a] for a in m.args]))
            ):
                whole = _join(members, len(members[0].shape))
                if whole is None:
                    continue
                copies = [a for a in whole.args if isinstance(a, Compute) and a not in numbers]
                fewer = _replace_addends(joined, members, whole)
                # Operands wait for the last of them, and are there twice.
                if fewer is None or 2 * sum(map(nbytes, copies)) > sum(map(nbytes, members)):
                    continue
                copies = [a for a in copies if a not in stacked]
                if _is_cheaper([*copies, whole, fewer], [*members, joined], context):
                    stacked.update(copies)
                    joined = fewer
        new[node] = _renew(joined, new)
    return exchanged(graph, new)


def _renew(node: Tensor, new: dict[Tensor, Tensor]) -> Tensor:
    """Return a node with new arguments; arguments that are not in `new` are added to it."""
    for a in node.args:
        if a not in new:
            new[a] = _renew(a, new)
    return with_args(node, tuple(new[a] for a in node.args)) if node.args else node


def _find_added(node: Compute, users: Mapping[Tensor, int]) -> Iterable[list[Compute]]:
    """Return groups of products of one form that a pointwise tensor adds, and that nothing else reads."""
    body = pointwise_body(node.template)
    groups: dict[tuple, dict[Compute, None]] = defaultdict(dict)
    sums = [] if body is None else [e for e in postorder([body]) if isinstance(e, Apply) and e.fn == "add"]
    inner = {a for e in sums for a in e.args}
    for e in sums:
        for x in () if e in inner else operands(e, "add"):
            m = node.args[x.slot] if isinstance(x, Read) else None
            if isinstance(x, Read) and isinstance(m, Compute) and users[m] == 1:
                form = m.template.memo("form of products", _find_form)
                if form is not None:
                    groups[form, x.index][m] = None
    return [list(group) for group in groups.values()]


def _replace_addends(node: Compute, members: Sequence[Compute], whole: Compute) -> Compute | None:
    """Return a pointwise tensor that reads `whole` instead of adding the members; None if it reads one elsewhere."""
    slots = [s for s, a in enumerate(node.args) if a in members]

    def is_member(e: Expr) -> bool:
        return isinstance(e, Read) and e.slot in slots

    def rule(e: Expr) -> Expr | None:
        if not isinstance(e, Apply) or e.fn != "add":
            return None
        addends = operands(e, "add")
        replaced = [x for x in addends if isinstance(x, Read) and x.slot in slots]
        if sorted(x.slot for x in replaced) != slots:  # not all of them, or one twice
            return None
        rest = [x for x in addends if not is_member(x)]
        first = replaced[0]
        return reduce(partial(apply, "add"), [*rest, Read(len(node.args), first.index, first.dtype)])

    args = (*node.args, whole)
    changed = map_bodies(node.template, lambda b: rebuild([b], rule)[0], tuple((a.dtype, a.shape) for a in args))
    return None if any(is_member(e) for b in changed.parts[0].bodies for e in reads(b)) else prune_args(changed, args)
