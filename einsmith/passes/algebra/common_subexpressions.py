"""Eliminate common subexpressions across pieces: store an expensive function value that several pieces need once.

before: G[b, n] = D[b, n]*S(A[b, n])*(1 - S(A[b, n]))    for n < H, of a function S
                  D[b, n-H]*S(A[b, n-H])*t[b, n]         for the others
after:  V[b, n] = S(A[b, n]), which both pieces of G read

Tensors over the box of a piece share its values too. The cotangents of a recurrent cell's gates are pieces of one
tensor, since the gates' products are one, and each needs several gates. Kernels evaluate one piece at a time, so a
value is otherwise computed for each of them; repetitions within one piece are computed once in any case. The predicted
kernel times decide.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from einsmith.ir.analysis.linear import linear
from einsmith.ir.nodes import (
    Apply,
    Axis,
    Compute,
    Expr,
    Graph,
    Piece,
    Read,
    Reduce,
    Template,
    Tensor,
    postorder,
    reads,
    template,
)
from einsmith.ir.rebuild import exchanged, prune_args, rebuild, substitute, types_of, with_args
from einsmith.passes.context import PassContext


class _Value(NamedTuple):
    """An expression over a box, its slots numbered by first appearance, and the tensors in these slots."""

    extents: tuple[int, ...]
    expr: Expr
    args: tuple[Tensor, ...]


class _SharedPlace(NamedTuple):
    """A piece of a tensor, and the expressions in it that are shared values."""

    node: Compute
    piece: Piece
    exprs: dict[Expr, _Value]


def common_subexpressions(graph: Graph, context: PassContext) -> Graph:
    """Return the graph with shared expensive values stored as tensors where the predicted time is lower."""
    if not context.can_price:
        return graph
    nodes = [n for n in postorder(graph.roots) if isinstance(n, Compute) and _is_pointwise(n.template)]
    boxes = {p.extents for n in nodes if len(n.template.parts) > 1 for p in _pieces(n) if 0 not in p.extents}
    groups: dict[tuple, list[_SharedPlace]] = defaultdict(list)
    for n in nodes if boxes else ():
        for p in _pieces(n):
            if p.extents in boxes:
                # A value shared by forward and backward nodes is not stored: it would be kept in between.
                groups[p.extents, graph.role[n]].append(_SharedPlace(n, p, _find_expensive(n, p, context)))
    shared_by_node: dict[Compute, dict[tuple[Piece, Expr], _Value]] = {}
    readers: dict[Compute, Compute] = {}
    for places in groups.values():
        new_values = _group_by_node(_select_shared(places))
        exprs = {n: shared_by_node.get(n, {}) | more for n, more in new_values.items()}
        changed = {n: _read_values(n, e) for n, e in exprs.items()}
        values = dict.fromkeys(_materialize(v) for more in new_values.values() for v in more.values())
        if changed and _is_cheaper([readers.get(n, n) for n in changed], list(changed.values()), list(values), context):
            shared_by_node |= exprs
            readers |= changed
    if not shared_by_node:
        return graph
    new: dict = {}

    def rebuild_argument(a: Tensor) -> Tensor:
        return new[a] if a in new else with_args(a, tuple(new[x] for x in a.args))

    for node in postorder(graph.roots):
        reader = readers.get(node, node)
        new[node] = with_args(reader, tuple(map(rebuild_argument, reader.args))) if reader.args else reader
    return exchanged(graph, new)


def _is_pointwise(t: Template) -> bool:
    return len(t.dtypes) == 1 and all(isinstance(p, Piece) and not isinstance(p.body, Reduce) for p in t.parts)


def _pieces(node: Compute) -> Iterator[Piece]:
    return (p for p in node.template.parts if isinstance(p, Piece))


def _find_expensive(node: Compute, piece: Piece, context: PassContext) -> dict[Expr, _Value]:
    """Return the values, in a piece, of functions that take more than a single instruction."""
    out: dict[Expr, _Value] = {}
    for e in postorder(piece.bodies):
        if isinstance(e, Apply) and e.dtype.is_float and context.target.special(e.fn):
            value = _make_value(node, piece.extents, e)
            if value is not None:
                out[e] = value
    return out


def _make_value(node: Compute, extents: tuple[int, ...], e: Expr) -> _Value | None:
    """Return an expression as a value; None if it reads at data-dependent indices, or elements that may be out of
    bounds without a guard."""
    all_reads = reads(e)
    for r in all_reads:
        for i, n in zip(r.index, node.template.params[r.slot][1], strict=True):
            at = linear(i)
            if not all(isinstance(a, Axis) for a in at.terms):
                return None
            ends = [c * (extents[a.position] - 1) for a, c in at.terms.items() if isinstance(a, Axis)]
            if at.const + sum(x for x in ends if x < 0) < 0 or at.const + sum(x for x in ends if x > 0) >= n:
                return None
    slots = {s: n for n, s in enumerate(dict.fromkeys(r.slot for r in all_reads))}
    return _Value(extents, substitute(e, {}, slots), tuple(node.args[s] for s in slots)) if slots else None


def _select_shared(places: Sequence[_SharedPlace]) -> list[_SharedPlace]:
    """Return the places with the values that they share with other places, at least one of which is a piece of several.
    Of nested shared values the largest are kept."""
    for _ in range(2):  # a value inside of a shared one counts only if it also occurs outside
        users: dict[_Value, set[int]] = defaultdict(set)
        for n, place in enumerate(places):
            for v in place.exprs.values():
                users[v].add(n)
        shared = {
            v for v, ns in users.items() if len(ns) > 1 and any(len(places[n].node.template.parts) > 1 for n in ns)
        }
        places = [_SharedPlace(p.node, p.piece, _keep_outermost(p, shared)) for p in places]
    return [p for p in places if p.exprs]


def _keep_outermost(place: _SharedPlace, shared: set[_Value]) -> dict[Expr, _Value]:
    known = {e: v for e, v in place.exprs.items() if v in shared}
    seen = set(postorder(place.piece.bodies, known))
    inside = {a for e in (*seen, *place.piece.bodies) for a in (e, *e.args)}
    return {e: v for e, v in known.items() if e in inside}


def _materialize(v: _Value) -> Compute:
    return Compute(template(v.extents, types_of(v.args), v.expr), v.args)


def _read_values(node: Compute, exprs: Mapping[tuple[Piece, Expr], _Value]) -> Compute:
    """Return the node with its shared values read from tensors."""
    t, values = node.template, list(dict.fromkeys(exprs.values()))
    slots = {v: len(t.params) + n for n, v in enumerate(values)}
    parts = []
    for p in _pieces(node):
        own = tuple(Axis(d) for d in range(len(p.extents)))
        memo: dict = {e: Read(slots[v], own, e.dtype) for (q, e), v in exprs.items() if q is p}
        parts.append(Piece(p.offset, p.step, p.extents, rebuild(p.bodies, lambda e: None, memo)[0]))
    params = (*t.params, *((v.expr.dtype, v.extents) for v in values))
    return prune_args(Template(t.shape, params, tuple(parts)), (*node.args, *map(_materialize, values)))


def _is_cheaper(
    before: Sequence[Compute], changed: Sequence[Compute], values: Sequence[Compute], context: PassContext
) -> bool:
    """Return whether the nodes cost less as `changed`, with `values` computed before. A value that a tensor of one
    piece reads is fused into that tensor's kernel (`schedule.fusion`), for which the first such tensor counts;
    other values have kernels of their own."""

    reader = next((n for n in changed if len(n.template.parts) == 1), None)
    fused_values = [v for v in values if reader is not None and v in reader.args]
    after = context.price(*fused_values, reader) if reader is not None else 0.0
    after += sum(context.price(n) for n in (*values, *changed) if n is not reader and n not in fused_values)
    return after < sum(map(context.price, before))


def _group_by_node(places: Sequence[_SharedPlace]) -> dict[Compute, dict[tuple[Piece, Expr], _Value]]:
    out: dict[Compute, dict[tuple[Piece, Expr], _Value]] = defaultdict(dict)
    for p in places:
        out[p.node] |= {(p.piece, e): v for e, v in p.exprs.items()}
    return out
