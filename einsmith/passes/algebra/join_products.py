"""Join products of one form into one product: those that share an operand, and those that are added.

Products that share an operand, as queries, keys and values, gates, or the branches of a network do, become a product
with more results; so do products of slices of one tensor, as in a network that is written step by step:
before: A[i, j] = sum[k](X[i, k]*W[k, j]);  B[i, j] = sum[k](X[i, k]*V[k, j])
after:  U[k, j] = W[k, j], U[k, 8+j] = V[k, j];  C[i, j] = sum[k](X[i, k]*U[k, j]), read at j and at 8+j
or after:  C[i, j] = sum[k](X[i, k]*W[k, j]), C[i, 8+j] = sum[k](X[i, k]*V[k, j]), without U

Products that are added, as in the gradient of an input or a parameter that is used several times, become one product
with more terms:
before: S[i, j] = sum[b](G[b, i]*X[b, j]) + sum[b](H[b, i]*Y[b, j])
after:  U[0, b, i] = G[b, i], U[1, b, i] = H[b, i];  V[0, b, j] = X[b, j], V[1, b, j] = Y[b, j]
        S[i, j] = sum[t, b](U[t, b, i]*V[t, b, j])

An operand is packed once, narrow results fill registers, cores share more tasks, there are fewer launches, and partial
sums are not stored; operands are copied, and pointwise functions of the products may need kernels of their own. The
predicted kernel times decide. Products that are added stay where the copies take more memory than the partial sums. The
order of additions changes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial, reduce
from typing import Any

from einsmith.ir.analysis.pointwise import pointwise_body
from einsmith.ir.nodes import Apply, Compute, Expr, Graph, Leaf, Read, Tensor, apply, nbytes, postorder, reads
from einsmith.ir.rebuild import exchanged, map_bodies, operands, prune_args, rebuild, types_of, with_args
from einsmith.passes.algebra.axis_forms import (
    concatenate,
    form_by_number,
    forms_of,
    in_order,
    is_product,
    join,
    join_along,
    join_as_pieces,
    stack,
    stack_copies,
)
from einsmith.passes.algebra.join_prices import MIN_GAIN, JoinDecisions, RefusedJoin, SiblingPrices, is_fusible
from einsmith.passes.algebra.siblings import Fusion, Siblings, places_of, replace_siblings
from einsmith.passes.context import PassContext

_MAX_MEMBERS = 64
"""Most products that become one; each may become a piece of a joined operand, which is compiled by itself."""
_MAX_PIECES = 16
"""Most pieces of products that become one in pieces; each is compiled by itself."""


def join_products(graph: Graph, context: PassContext) -> Graph:
    """Return the graph with products joined where the predicted time is lower."""
    if not context.can_price:
        return graph
    decisions = JoinDecisions(context, MIN_GAIN)
    return _join_siblings(_join_addends(graph, decisions), decisions)


def refused_joins(graph: Graph, context: PassContext) -> list[RefusedJoin]:
    """Return the products of a graph after the passes that might be joined, but are predicted to take longer as one."""
    decisions = JoinDecisions(context, MIN_GAIN)
    _join_addends(graph, decisions)
    _join_siblings(graph, decisions)
    return list(decisions.refused.values())


def _split(members: Sequence[Compute]) -> Iterator[Sequence[Compute]]:
    for start in range(0, len(members), _MAX_MEMBERS):
        if len(part := members[start : start + _MAX_MEMBERS]) > 1:
            yield part


# -------------------------------------------------------------------------------------------------- shared operands


def _join_siblings(graph: Graph, decisions: JoinDecisions) -> Graph:
    """Return the graph with products joined that share an operand, or read slices of one tensor."""
    siblings = Siblings(graph)
    groups: dict[tuple, list[Compute]] = defaultdict(list)
    for node in siblings.nodes:
        if not isinstance(node, Compute) or not is_product(node.template) or not siblings.can_move(node):
            continue
        role = siblings.role[node]
        groups[None, form_by_number(node.template), node.args, role].append(node)
        for axis, form in forms_of(node.template).items():
            shared = tuple(None if s in form.spans else a for s, a in enumerate(node.args))
            if axis < node.template.rank and any(shared):
                groups[axis, form.key, shared, role].append(node)
    fusions: list[Fusion] = []
    places: Fusion = {}  # those of all fusions
    for (axis, *_), group in sorted(groups.items(), key=lambda item: -len(item[1])):
        free = [m for m in group if m not in places]
        for independent in siblings.split_independent(free) if len(free) > 1 else ():
            for members in _split(in_order(independent, axis)):
                ways = [(f, decisions.price(f, siblings)) for f in _joins(members, axis, siblings, places)]
                fusion, prices = min(ways, default=({}, None), key=lambda way: way[1].joined)
                if prices is not None and decisions.pays(members, prices):
                    fusions.append(fusion)
                    places |= fusion
    return replace_siblings(graph, fusions)


def _joins(members: Sequence[Compute], axis: int | None, siblings: Siblings, places: Fusion) -> Iterator[Fusion]:
    """Yield the ways in which products may be one, by a new axis if `axis` is None; with their pointwise readers as
    one, and alone. places: those of other fusions."""
    wholes = [join(members, axis, 0)]
    if axis is not None and sum(len(m.template.parts) for m in members) <= _MAX_PIECES:
        wholes.append(join_as_pieces(members, axis))
    readers = [[r for r in siblings.readers[m] if isinstance(r, Compute) and is_fusible(r, m)] for m in members]
    only = list(dict.fromkeys(rs[0] for rs in readers if len(rs) == 1 and rs[0] not in places))
    for whole in wholes:
        if whole is None:
            continue
        fusion = places_of(members, axis or 0, whole, axis is None)
        if len(only) == len(members) and all(map(siblings.can_move, only)) and siblings.are_independent(only):
            if (joined := _join_readers(only, axis, places | fusion)) is not None:
                yield fusion | places_of(only, axis or 0, joined, axis is None)
        yield fusion


def _join_readers(readers: Sequence[Compute], axis: int | None, places: Fusion) -> Compute | None:
    """Return one tensor that computes the pointwise functions `readers` of products at once, from the joined product;
    None if they are different functions. places: the places of tensors in the joined ones, which are read directly."""

    def find_whole(values: Sequence[Tensor], dim: int, is_new: bool) -> Compute | None:
        first = places.get(values[0])
        if first is None or first.axis != dim or first.is_new != is_new:
            return None
        parts = {t: p for t, p in places.items() if p.whole is first.whole}
        return first.whole if sorted(parts, key=lambda t: parts[t].offset) == list(values) else None

    def put(values: Sequence[Tensor], dim: int, firsts: Sequence[int], extents: Sequence[int]) -> Tensor | None:
        return None if any(firsts) else find_whole(values, dim, False) or concatenate(values, dim, firsts, extents)

    if axis is None:
        is_one = len({form_by_number(r.template) for r in readers}) == 1
        return stack(readers, 0, lambda v: find_whole(v, 0, True) or stack_copies(v)) if is_one else None
    forms = [f for r in readers if (f := forms_of(r.template).get(axis))]
    shared = {tuple(a for s, a in enumerate(r.args) if s not in f.spans) for r, f in zip(readers, forms, strict=False)}
    if len(forms) < len(readers) or len({f.key for f in forms}) > 1 or len(shared) > 1:
        return None
    return join_along(readers, forms, put)


# ----------------------------------------------------------------------------------------------------------- addends


def _join_addends(graph: Graph, decisions: JoinDecisions) -> Graph:
    """Return the graph with products joined that are added element by element."""
    nodes = list(postorder(graph.roots))
    numbers = {node: n for n, node in enumerate(nodes)}
    users: dict[Tensor, int] = defaultdict(int)
    for t in (*graph.roots, *(a for node in nodes for a in set(node.args))):
        users[t] += 1
    new: dict[Tensor, Tensor] = {}
    for node in nodes:
        joined = node
        ways: list[tuple[int, Sequence[Compute], Compute, list[Compute]]] = []
        for axis, group in _find_added(node, users) if isinstance(node, Compute) else ():
            for members in _split(in_order(sorted(group, key=lambda m: [numbers[a] for a in m.args]), axis)):
                if (whole := join(members, axis, members[0].template.rank)) is not None:
                    copies = [a for a in whole.args if isinstance(a, Compute) and a not in numbers]
                    ways.append((sum(map(nbytes, copies)), members, whole, copies))
        for nbytes_copied, members, whole, copies in sorted(ways, key=lambda way: (-len(way[1]), way[0])):
            fewer = _replace_addends(joined, members, whole) if set(members) <= set(joined.args) else None
            if fewer is None:
                continue
            # Operands that nothing else reads wait for the last of them.
            waiting = {a for m in members for a in m.args if users[a] == 1 and not isinstance(a, Leaf)}
            if nbytes_copied + sum(map(nbytes, waiting)) > sum(map(nbytes, members)):
                continue
            after = decisions.price_copies(copies) + sum(map(decisions.context.price, (whole, fewer)))
            before = sum(map(decisions.context.price, (*members, joined)))
            if decisions.pays(members, SiblingPrices(after, before, copies)):
                joined = fewer
        new[node] = _renew(joined, new)
    return exchanged(graph, new)


def _renew(node: Tensor, new: dict[Tensor, Tensor]) -> Tensor:
    """Return a node with new arguments; arguments that are not in `new` are added to it."""
    for a in node.args:
        if a not in new:
            new[a] = _renew(a, new)
    return with_args(node, tuple(new[a] for a in node.args)) if node.args else node


def _find_added(node: Compute, users: Mapping[Tensor, int]) -> list[tuple[int | None, list[Compute]]]:
    """Return (the sums' axis along which products differ, the products) for each group of products of one form that a
    pointwise tensor adds, and that nothing else reads; None for a new axis."""
    body = pointwise_body(node.template)
    groups: dict[tuple[int | None, Any], dict[Compute, None]] = defaultdict(dict)
    sums = [] if body is None else [e for e in postorder([body]) if isinstance(e, Apply) and e.fn == "add"]
    inner = {a for e in sums for a in e.args}
    for e in sums:
        for x in () if e in inner else operands(e, "add"):
            m = node.args[x.slot] if isinstance(x, Read) else None
            if isinstance(x, Read) and isinstance(m, Compute) and users[m] == 1 and is_product(m.template):
                groups[None, (form_by_number(m.template), x.index)][m] = None
                for axis, form in forms_of(m.template).items():
                    if axis >= m.template.rank:
                        shared = tuple(None if s in form.spans else a for s, a in enumerate(m.args))
                        groups[axis, (form.key, shared, x.index)][m] = None
    return [(axis, list(group)) for (axis, _), group in groups.items() if len(group) > 1]


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
    changed = map_bodies(node.template, lambda b: rebuild([b], rule)[0], types_of(args))
    return None if any(is_member(e) for b in changed.parts[0].bodies for e in reads(b)) else prune_args(changed, args)
