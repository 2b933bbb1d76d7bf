"""Store activations and their cotangents in 16 bits, and round the operands of products to 16 bits.

Everything is computed in float32; sums of products are of products of 16-bit numbers (`PassContext.products`). What is
stored in 16 bits is decided tensor by tensor:

16 bits: results of products; tensors computed element by element from these; largest and least of such elements.
float32: what is updated, returned or read by an update (weights, gradients, the optimizer's state, losses); other
    sums, and what is computed from them alone (statistics of norms and softmax); results of far fewer elements than
    are read (a loss's choice of logits); states of recurrences; scattered results; products, forward and backward,
    of weights in `full_precision`, and their results.

Sources: Micikevicius et al., "Mixed precision training" (2018); Kalamkar et al., "A study of bfloat16 for deep learning
training" (2019).
"""

from __future__ import annotations

from einsmith.base.dtypes import DType, f32
from einsmith.ir.nodes import (
    Apply,
    Compute,
    Const,
    Expr,
    Graph,
    Leaf,
    Piece,
    Read,
    Reduce,
    Template,
    Tensor,
    cast,
    postorder,
    read_whole,
    size,
    template,
)
from einsmith.ir.rebuild import exchanged, map_bodies, map_reads, rebuild, types_of, with_args
from einsmith.ir.views import is_view
from einsmith.passes.context import PassContext

MIN_SHARE = 8
"""A result with fewer than a MIN_SHARE-th of the elements of its largest argument is a choice from it, not an
activation. Halves of gates and thirds of projections are above it, logits that a loss picks below."""


def precision(graph: Graph, context: PassContext) -> Graph:
    """Return the graph with activations in 16 bits, where the context asks for it."""
    dtype = context.stored
    if dtype is None:
        return graph
    nodes = list(postorder(graph.roots))
    kept = _find_kept(graph, nodes)
    exact = _find_exact(nodes)
    activations: set[Tensor] = set()
    memo: dict[Tensor, Tensor] = {}
    for node in nodes:
        if not isinstance(node, Compute):
            memo[node] = with_args(node, tuple([memo[a] for a in node.args])) if node.args else node
            continue
        is_activation = _is_activation(node, activations, context)
        if is_activation:
            activations.add(node)
        new = _read_narrow(node, tuple([memo[a] for a in node.args]))
        if node in exact:
            memo[node] = Compute(map_bodies(new.template, _strip), new.args)
            continue
        new = Compute(context.products.round_operands(new.template, dtype), new.args)
        memo[node] = _store_narrow(new, dtype) if is_activation and node not in kept else new
    return exchanged(graph, memo)


def _find_kept(graph: Graph, nodes: list[Tensor]) -> set[Tensor]:
    """Return the tensors that must stay in float32: those that roots, updates and nodes without a template read, and
    those with a view that stays in float32."""
    role = graph.role
    kept: set[Tensor] = {*graph.roots, *graph.gradients}
    for node in reversed(nodes):
        is_whole = not isinstance(node, (Compute, Leaf)) or role[node] == "update"
        if is_whole or node in kept and isinstance(node, Compute) and is_view(node.template):
            kept.update(node.args)
    return kept


def _is_activation(node: Compute, activations: set[Tensor], context: PassContext) -> bool:
    t = node.template
    if t.is_scatter or len(t.dtypes) != 1 or t.dtypes[0] is not f32:
        return False
    read = [a for a in node.args if a in activations]
    if is_view(t):
        return bool(read)
    if any(isinstance(part.body, Reduce) for part in t.parts):
        return context.products.is_product(t) or bool(read) and all(_selects(part, t) for part in t.parts)
    if any(a.dtype.is_int for a in node.args):  # elements that integers choose, as of an embedding
        read = [*read, *(a for a in node.args if a.dtype.is_int)]
    return any(a in read for a in node.args) and size(t.shape) * MIN_SHARE >= max(size(a.shape) for a in read)


def _selects(part, t: Template) -> bool:
    """Return whether a piece is a maximum or minimum of unmodified elements."""
    if not isinstance(part, Piece) or not isinstance(part.body, Reduce):
        return True
    return part.body.combiner in ("max", "min") and all(_is_choice(x) for x in part.body.bodies)


def _is_choice(x: Expr) -> bool:
    if isinstance(x, Apply) and x.fn == "where":
        return all(map(_is_choice, x.args[1:]))
    return isinstance(x, (Read, Const))


def _find_exact(nodes: list[Tensor]) -> set[Tensor]:
    """Return the nodes that read weights in `full_precision`, and those that are read in it: gradients of such
    weights."""
    exact: set[Tensor] = set()
    for node in nodes:
        bodies = [b for part in node.template.parts for b in part.bodies] if isinstance(node, Compute) else []
        marked = [e for e in postorder(bodies) if isinstance(e, Apply) and e.fn == "full_precision"]
        if marked:
            exact |= {node, *(node.args[e.slot] for e in postorder(marked) if isinstance(e, Read))}
    return exact


def _strip(x: Expr) -> Expr:
    """Return an expression without `full_precision`."""
    return rebuild([x], lambda e: e.args[0] if isinstance(e, Apply) and e.fn == "full_precision" else None)[0]


def _read_narrow(node: Compute, args: tuple[Tensor, ...]) -> Compute:
    """Return the node with these arguments, converted where they are read."""
    t = node.template

    if args != node.args:
        t = map_reads(t, lambda e: cast(Read(e.slot, e.index, args[e.slot].dtype), e.dtype), types_of(args))
    return Compute(t, args)


def _store_narrow(node: Compute, dtype: DType) -> Compute:
    """Return the node's result rounded to `dtype`."""
    t = node.template
    if any(isinstance(part.body, Reduce) for part in t.parts):
        whole = cast(read_whole(0, t.shape, f32), dtype)
        return Compute(template(t.shape, [(f32, t.shape)], whole), (node,))
    return Compute(map_bodies(t, lambda b: _narrow(b, dtype)), node.args)


def _narrow(x: Expr, dtype: DType) -> Expr:
    """Return x converted to `dtype`, without conversions that cancel."""
    if isinstance(x, Apply) and x.fn == "cast" and x.args[0].dtype is dtype:
        return x.args[0]
    return cast(x, dtype)
