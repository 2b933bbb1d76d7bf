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
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial, reduce
from typing import Any, NamedTuple

from einsmith.ir.analysis.pointwise import is_identity, pointwise_body
from einsmith.ir.nodes import Apply, Compute, Expr, Graph, Leaf, Read, Tensor, apply, nbytes, postorder, reads
from einsmith.ir.rebuild import exchanged, map_bodies, operands, prune_args, rebuild, with_args
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
from einsmith.passes.algebra.siblings import Fusion, Siblings, places_of, replace_siblings, rewire
from einsmith.passes.context import PassContext

_MAX_MEMBERS = 64
"""Most products that become one; each may become a piece of a joined operand, which is compiled by itself."""
_MAX_PIECES = 16
"""Most pieces of products that become one in pieces; each is compiled by itself."""
_MIN_GAIN = 0.03
"""Least predicted gain, as a fraction of the seconds of the separate kernels; a smaller one is within the model's
error."""


class RefusedJoin(NamedTuple):
    """Products that are not joined, and the predicted seconds of both ways with pointwise readers and copies."""

    members: tuple[Compute, ...]
    joined: float
    apart: float


class _Decisions:
    """The choice between products as one and apart by predicted seconds.

    context: predicts; copied: operands that products joined already read; refused: the least refused join of each set
    of products.
    """

    def __init__(self, context: PassContext):
        self.price = context.price
        self.copied: set[Tensor] = set()
        self.refused: dict[frozenset[Compute], RefusedJoin] = {}

    def price_copies(self, copies: Iterable[Compute]) -> float:
        """Return the predicted seconds of copies that are not there yet."""
        return sum(self.price(a) for a in copies if a not in self.copied)

    def pays(self, members: Sequence[Compute], joined: float, apart: float, copies: Iterable[Tensor]) -> bool:
        """Return whether products are joined, with these copies."""
        if joined < (1 - _MIN_GAIN) * apart:
            self.copied.update(copies)
            return True
        refused = self.refused.setdefault(key := frozenset(members), RefusedJoin(tuple(members), joined, apart))
        if joined < refused.joined:
            self.refused[key] = RefusedJoin(tuple(members), joined, apart)
        return False


def join_products(graph: Graph, context: PassContext) -> Graph:
    """Return the graph with products joined where the predicted time is lower."""
    if not context.can_price:
        return graph
    decisions = _Decisions(context)
    return _join_siblings(_join_addends(graph, decisions), decisions)


def refused_joins(graph: Graph, context: PassContext) -> list[RefusedJoin]:
    """Return the products of a graph after the passes that might be joined, but are predicted to take longer as one."""
    decisions = _Decisions(context)
    _join_addends(graph, decisions)
    _join_siblings(graph, decisions)
    return list(decisions.refused.values())


def _split(members: Sequence[Compute]) -> Iterator[Sequence[Compute]]:
    for start in range(0, len(members), _MAX_MEMBERS):
        if len(part := members[start : start + _MAX_MEMBERS]) > 1:
            yield part


# -------------------------------------------------------------------------------------------------- shared operands


class _Joined(NamedTuple):
    """Products as one, and the predicted seconds. copies: of operands, which others may share."""

    seconds: float
    fusion: Fusion
    copies: Collection[Compute]


def _join_siblings(graph: Graph, decisions: _Decisions) -> Graph:
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
    taken: set[Tensor] = set()
    for (axis, *_), group in sorted(groups.items(), key=lambda item: -len(item[1])):
        free = [m for m in group if m not in taken]
        for independent in siblings.split_independent(free) if len(free) > 1 else ():
            for members in _split(in_order(independent, axis)):
                best = min(_joins(members, axis, siblings, decisions), default=None, key=lambda x: x.seconds)
                if best is None:
                    continue
                apart = _price_apart(members, siblings, decisions)
                if decisions.pays(members, best.seconds, apart, best.copies):
                    fusions.append(best.fusion)
                    taken.update(best.fusion)
    return replace_siblings(graph, fusions)


def _joins(
    members: Sequence[Compute], axis: int | None, siblings: Siblings, decisions: _Decisions
) -> Iterator[_Joined]:
    """Yield the ways in which products may be one, by a new axis if `axis` is None."""
    wholes = [whole for whole in (join(members, axis, 0),) if whole is not None]
    if axis is not None and sum(len(m.template.parts) for m in members) <= _MAX_PIECES:
        wholes += [whole for whole in (join_as_pieces(members, axis),) if whole is not None]
    for whole in wholes:
        yield _with_readers(members, places_of(members, axis or 0, whole, axis is None), siblings, decisions)


def _fused_readers(members: Sequence[Compute], siblings: Siblings) -> dict[Compute, list[Compute]]:
    """Return the pointwise readers that the kernel of each member may compute. One that reads several members is
    computed with the last."""
    last: dict[Compute, Compute] = {}
    for m in members:
        for r in siblings.readers[m]:
            if isinstance(r, Compute) and r.shape == m.shape and (body := pointwise_body(r.template)) is not None:
                own = [e for e in reads(body) if r.args[e.slot] is m]
                if all(is_identity(e, m.shape) for e in own):
                    last[r] = m
    out: dict[Compute, list[Compute]] = {m: [] for m in members}
    for r, m in last.items():
        out[m].append(r)
    return out


def _price_apart(members: Sequence[Compute], siblings: Siblings, decisions: _Decisions) -> float:
    """Return the predicted seconds of products and their pointwise readers, a kernel for each product."""
    fused = _fused_readers(members, siblings)
    return sum(decisions.price(m, *rs, stored=_stored(m, rs, siblings)) for m, rs in fused.items())


def _stored(m: Compute, readers: Sequence[Compute], siblings: Siblings) -> list[Tensor]:
    """Return what a kernel of a product and some of its readers stores."""
    return [*readers] if len(readers) == len(siblings.readers[m]) else [m, *readers]


def _with_readers(members: Sequence[Compute], fusion: Fusion, siblings: Siblings, decisions: _Decisions) -> _Joined:
    """Return products as one, with their pointwise readers in its kernel if these can be one too."""
    whole, axis, _, is_new = fusion[members[0]]
    fused = _fused_readers(members, siblings)
    readers = [r for rs in fused.values() for r in rs]
    joined = None
    if all(len(rs) == 1 and siblings.can_move(rs[0]) for rs in fused.values()) and siblings.are_independent(readers):
        joined = _join_readers(readers, members, whole, None if is_new else axis)
    args = dict.fromkeys((*whole.args, *(joined.args if joined else ())))
    copies = [a for a in args if isinstance(a, Compute) and a is not whole and a not in siblings.role]
    seconds = decisions.price_copies(copies)
    if joined is None:
        apart = [x for r in readers if isinstance(x := rewire(r, fusion, {}), Compute)]
        return _Joined(seconds + decisions.price(whole) + sum(map(decisions.price, apart)), fusion, copies)
    needs_whole = any(len(siblings.readers[m]) > 1 for m in members)
    seconds += decisions.price(whole, joined, stored=[whole, joined] if needs_whole else [joined])
    return _Joined(seconds, fusion | places_of(readers, axis, joined, is_new), copies)


def _join_readers(
    readers: Sequence[Compute], members: Sequence[Compute], whole: Compute, axis: int | None
) -> Compute | None:
    """Return the common function of products, one each, that are parts of a whole; None if they differ in it."""

    def put(values: Sequence[Tensor], dim: int, firsts: Sequence[int], extents: Sequence[int]) -> Tensor | None:
        is_whole = list(values) == list(members) and dim == axis and not any(firsts)
        return whole if is_whole else concatenate(values, dim, firsts, extents)

    if axis is None:
        if len({form_by_number(r.template) for r in readers}) > 1:
            return None
        return stack(readers, 0, lambda values: whole if list(values) == list(members) else stack_copies(values))
    forms = [f for r in readers if (f := forms_of(r.template).get(axis))]
    shared = {tuple(a for s, a in enumerate(r.args) if s not in f.spans) for r, f in zip(readers, forms, strict=False)}
    if len(forms) < len(readers) or len({f.key for f in forms}) > 1 or len(shared) > 1:
        return None
    return join_along(readers, forms, put)


# ----------------------------------------------------------------------------------------------------------- addends


def _join_addends(graph: Graph, decisions: _Decisions) -> Graph:
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
            seconds = decisions.price_copies(copies) + decisions.price(whole) + decisions.price(fewer)
            if decisions.pays(members, seconds, sum(map(decisions.price, (*members, joined))), copies):
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
    changed = map_bodies(node.template, lambda b: rebuild([b], rule)[0], tuple((a.dtype, a.shape) for a in args))
    return None if any(is_member(e) for b in changed.parts[0].bodies for e in reads(b)) else prune_args(changed, args)
