"""Merge disjoint tensors: a sum of tensors that are zero outside of boxes becomes one tensor in pieces, and scatters at
literal positions of an axis become one scatter along it.

before: A[i] = sum[b](X[b, i]), A[8+k] = 0;  B[i] = 0, B[8+k] = sum[b](Y[b, k]);  C[j] = W[j] - (A[j] + B[j])
after:  D[i] = sum[b](X[b, i]), D[8+k] = sum[b](Y[b, k]);  C[j] = W[j] - D[j]

before: S[p[e], 0, u] += a[e]*x[e, u];  T[n, k, u] = S[n, k, u];  T[p[e], 1, u] += b[e]*x[e, u]
after:  D[e, 0, u] = a[e]*x[e, u], D[e, 1, u] = b[e]*x[e, u];  T[p[e], k, u] += D[e, k, u]

The gradients of a tensor that statements read in slices or at literal positions are such sums; examples are a weight
that stacks the columns for a cell's input and for its state, stacked gates, and channels with numbers. Where boxes
overlap, their elements are added in the piece that they share. What only one piece reads is computed there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from einsmith.ir.analysis.pointwise import is_identity, pointwise_body
from einsmith.ir.nodes import (
    Apply,
    Compute,
    Expr,
    Graph,
    Read,
    Scatter,
    Template,
    Tensor,
    apply,
    outermost_where,
    postorder,
    read_whole,
    template,
)
from einsmith.ir.rebuild import exchanged, map_bodies, operands, prune_args, readers_of, rebuild, with_args
from einsmith.ir.rewrite.simplify import simplified, simplify_template
from einsmith.passes.algebra.merge_scatters import find_start
from einsmith.passes.algebra.piece_sums import PieceSum, absorb_producers, turn_operand
from einsmith.passes.algebra.split_index_set import split_template
from einsmith.passes.algebra.stacked_scatters import stack_scatters
from einsmith.passes.context import PassContext


def merge_disjoint(graph: Graph, context: PassContext) -> Graph:
    """Return the graph with sums of tensors in boxes, and chains of scatters, merged, if nothing else reads the
    terms."""
    nodes = list(postorder(graph.roots))
    users = Counter(a for node in nodes for a in set(node.args))
    users.update(graph.roots)
    readers = readers_of(nodes)
    new: dict = {}
    private: set[Tensor] = set()
    for node in nodes:
        new_node = with_args(node, tuple(new[a] for a in node.args)) if node.args else node
        is_term = users[node] == 1 and any(_is_sum(r) and node in _terms_of(r) for r in readers[node])
        if isinstance(new_node, Compute) and not (is_term and _is_sum(node)):
            new_node = _merge(new_node, private, context)
        new[node] = new_node
        if users[node] == 1:
            private.add(new_node)
    return exchanged(graph, new)


def _merge(node: Compute, private: set[Tensor], context: PassContext) -> Tensor:
    """Return the node with the sums in it merged: itself if none of them can be."""
    if _find_start(node) is not None:
        return _add_up(node, [node], private, context) or node
    body = pointwise_body(node.template)
    if body is None or not node.args:
        return node
    new: dict[Expr, Expr] = {}
    args = list(node.args)
    for e in outermost_where([body], _is_float_sum):
        terms = operands(e, "add")
        summed = [x for x in terms if isinstance(x, Read) and is_identity(x, node.shape, args[x.slot].shape)]
        tensors = [args[x.slot] for x in summed]
        if len(set(tensors)) < len(tensors) or not any(t in private for t in tensors):
            continue
        total = _add_up(node, tensors, private, context)
        if total is not None:
            if len(summed) == len(terms) and e is body:
                return total
            merged: Expr = Read(len(args), summed[0].index, total.dtype)
            args.append(total)
            for x in terms:
                merged = merged if x in summed else apply("add", merged, x)
            new[e] = merged
    if not new:
        return node
    params = tuple((a.dtype, a.shape) for a in args)
    return simplified(map_bodies(node.template, lambda b: rebuild([b], new.get)[0], params), args)


def _add_up(node: Compute, terms: Sequence[Tensor], private: set[Tensor], context: PassContext) -> Tensor | None:
    """Return the sum of tensors of one shape as one tensor with fewer terms; None if none of them merge."""
    scatters: list[Compute] = []
    others: list[Tensor] = []
    stack = [*reversed(terms)]
    while stack:
        t = stack.pop()
        start = _find_start(t) if isinstance(t, Compute) and (t in private or t is node) else None
        if not isinstance(t, Compute) or (t not in private and t is not node):
            others.append(t)
        elif start is not None:
            scatters.append(prune_args(Template(t.shape, t.template.params, t.template.parts[-1:]), t.args))
            stack += start
        elif _is_sum(t):
            stack += reversed(_terms_of(t))
        else:
            others.append(t)
    added = _add_pieces(others, private)
    stacked = stack_scatters(scatters, private, context)
    if len(added) == len(others) and stacked is scatters:
        return None
    return _assemble(added, stacked)


def _assemble(tensors: Sequence[Tensor], scatters: Sequence[Compute]) -> Tensor:
    """Return the sum of tensors of one shape and of scatters, each of which starts from what precedes it."""
    total: Tensor | None = tensors[0] if tensors else None
    if len(tensors) > 1:
        shape, dtype = tensors[0].shape, tensors[0].dtype
        body: Expr = read_whole(0, shape, dtype)
        for slot in range(1, len(tensors)):
            body = apply("add", body, read_whole(slot, shape, dtype))
        whole = template(shape, [(t.dtype, t.shape) for t in tensors], body)
        total = prune_args(simplify_template(whole), tuple(tensors))
    for s in scatters:
        if total is None:
            total = s
            continue
        params = (*s.template.params, (total.dtype, total.shape))
        start = template(s.shape, (), read_whole(len(s.args), s.shape, s.dtype)).parts
        t = Template(s.shape, params, (*start, *s.template.parts))
        total = prune_args(simplify_template(t), (*s.args, total))
    assert total is not None
    return total


def _add_pieces(tensors: Sequence[Tensor], private: set[Tensor]) -> list[Tensor]:
    """Return fewer tensors with the same sum, those in boxes merged where they may be."""
    sums: list[PieceSum] = []
    rest: list[Tensor] = []
    in_pieces = {t: _as_pieces(t, private) for t in tensors if isinstance(t, Compute) and t in private}
    if turn_operand(filter(None, in_pieces.values())):
        return list(tensors)
    for t in tensors:
        pieces = in_pieces.get(t)  # type: ignore[arg-type]
        if pieces is None:
            rest.append(t)
        elif not any(s.add(pieces) for s in sums):
            sums.append(PieceSum(pieces))
    if len(sums) + len(rest) == len(tensors):
        return list(tensors)
    whole = [s for s in sums if s.is_pointwise and s.count > 1]
    kept = [t for t in rest if not any(s.add(_as_piece(t, private)) for s in whole)]
    return [*(s.tensor() for s in sums), *kept]


def _as_pieces(t: Compute, private: set[Tensor]) -> Compute | None:
    """Return a tensor in pieces, with what they alone read; None if it has one piece."""
    if t.template.is_scatter or len(t.template.dtypes) > 1 or not t.dtype.is_float:
        return None
    split = split_template(t.template)
    return absorb_producers(prune_args(split, t.args), private) if len(split.parts) > 1 else None


def _as_piece(t: Tensor, private: set[Tensor]) -> Compute:
    """Return a tensor in one piece: itself if nothing else needs it to be stored, or a copy."""
    if isinstance(t, Compute) and t in private and pointwise_body(t.template) is not None:
        return t
    return Compute(template(t.shape, [(t.dtype, t.shape)], read_whole(0, t.shape, t.dtype)), (t,))


def _find_start(node: Compute) -> list[Tensor] | None:
    """Return what a scatter that adds starts from, as one tensor or none; None if this is not another tensor as it
    is."""
    added = node.template.parts[-1]
    if not isinstance(added, Scatter) or added.combiner != "sum" or not node.dtype.is_float:
        return None
    slot = find_start(node)
    return [] if len(node.template.parts) == 1 else None if slot is None else [node.args[slot]]


def _is_float_sum(e: Expr) -> bool:
    return isinstance(e, Apply) and e.fn == "add" and e.dtype.is_float


def _is_sum(node: Tensor) -> bool:
    """Return whether a tensor is a sum of tensors of its shape, or a scatter that starts from one."""
    return bool(_terms_of(node))


def _terms_of(node: Tensor) -> list[Tensor]:
    """Return the tensors of its own shape whose sum a tensor is, or which a scatter starts from; an empty list for
    others."""
    if not isinstance(node, Compute):
        return []
    if node.template.is_scatter:
        return _find_start(node) or []
    slots: list[int] = node.template.memo("summed slots", _find_summed_slots)
    return [node.args[s] for s in slots]


def _find_summed_slots(t: Template) -> list[int]:
    body = pointwise_body(t)
    if body is None or not _is_float_sum(body):
        return []
    terms: Iterable[Expr] = operands(body, "add")
    slots = [x.slot for x in terms if isinstance(x, Read) and is_identity(x, t.shape, t.params[x.slot][1])]
    return slots if len(slots) == len(list(terms)) == len({*slots}) else []
