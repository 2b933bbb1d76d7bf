"""Rebuild expressions and graphs with one function; on it are based substitution in expressions and replacement in
graphs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from einsmith.base.dtypes import DType
from einsmith.base.errors import VerifyError
from einsmith.ir import labels
from einsmith.ir.interned import Node
from einsmith.ir.loop import LoweredLoop
from einsmith.ir.nodes import (
    Apply,
    Axis,
    Compute,
    Const,
    Expr,
    Graph,
    GroupSum,
    Item,
    Leaf,
    Piece,
    Read,
    Recurrence,
    Reduce,
    Scatter,
    Template,
    Tensor,
    apply,
    cast,
    postorder,
)


def readers_of(nodes: Iterable[Tensor]) -> defaultdict[Tensor, list[Tensor]]:
    """Return the nodes that read each tensor, in order, each once."""
    out: defaultdict[Tensor, list[Tensor]] = defaultdict(list)
    for node in nodes:
        for a in dict.fromkeys(node.args):
            out[a].append(node)
    return out


def types_of(tensors: Iterable[Any]) -> tuple[tuple[DType, tuple[int, ...]], ...]:
    """Return the element type and the shape of each tensor, as `Template.params` has them."""
    return tuple([(t.dtype, t.shape) for t in tensors])


def with_args(node: Any, args: tuple) -> Any:
    """Return `node` with other arguments (`node` itself if they are equal)."""
    if args == node.args:
        return node
    if isinstance(node, Apply):
        return Apply(node.fn, args, node.dtype)
    if isinstance(node, Read):
        return Read(node.slot, args, node.dtype)
    if isinstance(node, Compute):
        return Compute(node.template, args)
    if isinstance(node, Item):
        return Item(args[0], node.member)
    if isinstance(node, (Recurrence, LoweredLoop)):
        return node.replaced(args=args)
    if isinstance(node, GroupSum):
        return GroupSum(args[0], node.is_cotangent)
    raise VerifyError(f"{type(node).__name__} has no arguments")


def rebuild(roots: Iterable[Node], rule: Callable[[Any], Any], memo: dict | None = None) -> list:
    """Rewrite each root bottom-up: children first, then `rule(node)`, which returns a node, or None to keep the node.

    Works on expressions and on tensors. `memo` carries results from call to call.
    """
    memo = {} if memo is None else memo
    roots = list(roots)
    for node in postorder(roots, memo):
        new = with_args(node, tuple([memo[a] for a in node.args])) if node.args else node
        out = rule(new)
        memo[node] = new if out is None else out
    return [memo[r] for r in roots]


def substitute(x: Expr, axes: Mapping[int, Expr], slots: Mapping[int, int | Expr] | None = None) -> Expr:
    """Return `x` with axes replaced by expressions, and slots renumbered or their reads replaced, all at once."""

    def rule(e):
        if isinstance(e, Axis):
            return axes.get(e.position, e)
        if isinstance(e, Read) and slots is not None:
            to = slots[e.slot]
            return Read(to, e.index, e.dtype) if isinstance(to, int) else to
        return None

    return rebuild([x], rule)[0]


def operands(x: Expr, fn: str) -> list[Expr]:
    """Return the operands of nested applications of `fn`, from left to right: [a, b, c] of (a + b) + c; [x] of others.

    An application that occurs several times is expanded once, and is itself an operand elsewhere: a*a, squared
    repeatedly, has few expressions and many factors.
    """
    out: list[Expr] = []
    stack = [x]
    seen: set[Expr] = set()
    while stack:
        e = stack.pop()
        if isinstance(e, Apply) and e.fn == fn and e not in seen:
            seen.add(e)
            stack += reversed(e.args)
        elif e not in seen or fn not in ("and", "or"):
            out.append(e)
    return out


def retyped(x: Expr, dtype: DType) -> Expr:
    """Return an integer expression computed in another integer type: the value modulo 2 to the bits of that type.

    Parts of sums and products may wrap, and need not have the value of the same parts of `x`.
    """
    if isinstance(x, Const):
        low, high = dtype.range
        return Const((int(x.value) - low) % (high - low + 1) + low, dtype)
    if isinstance(x, Apply) and x.fn == "cast":
        of = x.args[0].dtype
        low, high = x.dtype.range
        is_widening = of.is_int and low <= of.range[0] and of.range[1] <= high
        if is_widening or (of.is_int and x.dtype.bits >= dtype.bits):
            return retyped(x.args[0], dtype)
    keeps_low_bits = dtype.bits <= x.dtype.bits and not dtype.in_memory_only
    if isinstance(x, Apply) and x.fn in ("add", "sub", "mul", "neg") and keeps_low_bits:
        return apply(x.fn, *(retyped(a, dtype) for a in x.args))
    return cast(x, dtype)


def guarded(guards: Sequence[Expr], x: Expr) -> Expr:
    """Return x where every guard holds, else zero. Guards are nested: each is evaluated where the preceding ones
    hold."""
    for g in reversed(guards):
        x = apply("where", g, x, Const(0, x.dtype))
    return x


def clamp_index(index: Expr, extent: int) -> Expr:
    """Return an index that is moved to the nearest position of a dimension where it lies outside."""
    if isinstance(index, (Axis, Const)):
        return index
    return apply("min", apply("max", index, Const(0, index.dtype)), Const(extent - 1, index.dtype))


def whole_piece(t: Template) -> Piece | None:
    """Return the piece of a template that is one piece all over its output; None for other templates."""
    part = t.parts[0]
    return part if len(t.parts) == 1 and isinstance(part, Piece) and part.extents == t.shape else None


def whole_sum(t: Template) -> Piece | None:
    """Return the piece of a template that is one sum of one body all over its output; None for other templates."""
    part = whole_piece(t)
    is_sum = part is not None and isinstance(part.body, Reduce) and part.body.combiner == "sum"
    return part if is_sum and len(t.dtypes) == 1 else None


def map_parts(t: Template, rule: Callable[[Any], tuple[Expr, ...]], params=None) -> Template:
    """Return the template with the bodies of each part (of a Scatter, the indices, then the body) replaced by
    `rule(part)`."""
    parts: list = []
    for part in t.parts:
        bodies = rule(part)
        if isinstance(part, Scatter):
            parts.append(Scatter(part.combiner, part.extents, bodies[:-1], bodies[-1]))
        elif isinstance(part.body, Reduce):
            body = Reduce(part.body.combiner, part.body.extents, bodies)
            parts.append(Piece(part.offset, part.step, part.extents, body))
        else:
            parts.append(Piece(part.offset, part.step, part.extents, bodies[0]))
    return Template(t.shape, t.params if params is None else tuple(params), tuple(parts))


def map_bodies(t: Template, rule: Callable[[Expr], Expr], params=None) -> Template:
    """Return the template with every body expression (indices of a Scatter too) passed through `rule`."""
    return map_parts(t, lambda part: tuple(rule(b) for b in part.bodies), params)


def map_reads(t: Template, rule: Callable[[Read], Expr | None], params=None) -> Template:
    """Return the template with its reads rewritten by `rule` (see `rebuild`)."""

    def of(e: Any) -> Expr | None:
        return rule(e) if isinstance(e, Read) else None

    return map_bodies(t, lambda b: rebuild([b], of)[0], params)


def map_templates(node: Any, rule: Callable[[Template], Template]) -> Compute | Recurrence | None:
    """Return a Compute or Recurrence with other templates, unread arguments dropped; None for other nodes."""
    if isinstance(node, Compute):
        return prune_args(rule(node.template), node.args)
    if isinstance(node, Recurrence):
        return prune_recurrence(node.replaced(members=tuple(map(rule, node.members))))
    return None


def without_twins(t: Template) -> Template:
    """Return the template without expressions that only derivatives need."""

    def rule(e: Any) -> Any:
        return e.args[0] if isinstance(e, Apply) and e.fn in ("stop_gradient", "differentiate_as") else None

    return t.memo("without_twins", lambda t: map_bodies(t, lambda b: rebuild([b], rule)[0]))


def slots_read(t: Template) -> tuple[int, ...]:
    """Return the slots that the template reads, each once, in order of first appearance. Computed once per template."""

    def collect(t: Template) -> tuple[int, ...]:
        bodies = (b for part in t.parts for b in part.bodies)
        return tuple(dict.fromkeys(e.slot for b in bodies for e in postorder([b]) if isinstance(e, Read)))

    return t.memo("slots_read", collect)


def renumber(t: Template, slots: tuple[tuple[int, int], ...], params: tuple) -> Template:
    """Return the template with slots renumbered by (old, new) pairs. Computed once per template and pairs."""
    new = dict(slots)
    return t.memo(("renumbered", slots), lambda t: map_bodies(t, lambda b: substitute(b, {}, new), params))


def template_over(args: Iterable[Tensor], shape: tuple[int, ...], parts: Iterable[Piece | Scatter]) -> Template:
    """Return the template of these parts, whose slots are those of `args`."""
    return Template(shape, types_of(args), tuple(parts))


def prune_args(t: Template, args: tuple[Tensor, ...]) -> Compute:
    """Return the Compute with equal arguments merged and unread ones dropped, slots numbered by first appearance."""
    read = slots_read(t)
    order = {a: n for n, a in enumerate(dict.fromkeys(args[s] for s in read))}
    if len(order) == len(args) and read == tuple(range(len(args))):
        return Compute(t, args)
    slots = tuple((s, order[args[s]]) for s in read)
    return Compute(renumber(t, slots, types_of(order)), tuple(order))


def prune_recurrence(node: Recurrence) -> Recurrence:
    """Return the recurrence with equal arguments merged and unread ones dropped, in the order of their first
    appearance."""
    read = {e.slot for t in node.members for p in t.parts for e in postorder(p.bodies) if isinstance(e, Read)}
    args = tuple(dict.fromkeys(a for s, a in enumerate(node.args) if s in read))
    if args == node.args:
        return node
    slots = {s: args.index(a) for s, a in enumerate(node.args) if s in read}
    slots |= {len(node.args) + i: len(args) + i for i in range(len(node.members))}
    params = types_of(args) + node.results
    members = tuple(map_bodies(t, lambda b: substitute(b, {}, slots), params) for t in node.members)
    return node.replaced(members=members, args=args)


def replace(graph: Graph, rule: Callable[[Any], Any], memo: dict | None = None) -> Graph:
    """Return the graph with every tensor rewritten by `rule`, with `memo` (see `rebuild`); updates keep their
    leaves."""
    memo = {} if memo is None else memo
    rebuild(graph.roots, rule, memo)
    return exchanged(graph, memo)


def exchange(roots: list[Tensor], replaced: Mapping[Tensor, Tensor]) -> list[Tensor]:
    """Return the roots with every tensor of `replaced` replaced, also inside the replacements."""
    if not replaced:
        return roots
    new = exchange_nodes(roots, replaced)
    return [new[r] for r in roots]


def exchange_nodes(roots: Sequence[Tensor], replaced: Mapping[Tensor, Tensor]) -> dict[Any, Any]:
    """Return what each node below the roots becomes where every tensor of `replaced` is replaced, also inside the
    replacements."""
    new_nodes: dict = {}
    for node in postorder([*reversed(list(replaced.values())), *roots]):
        args = tuple(new_nodes[a] for a in node.args)
        new_nodes[node] = with_args(node, args) if args else node
        new = replaced.get(node)
        if new in new_nodes:
            new_nodes[node] = new_nodes[new]
        elif isinstance(new, Item):
            # The new tensor has the old one's arguments, all of which precede it.
            new_nodes[node] = Item(with_args(new.node, tuple(new_nodes[a] for a in new.node.args)), new.member)
    labels.carry(new_nodes)
    return new_nodes


def exchanged(graph: Graph, new: Mapping[Tensor, Tensor]) -> Graph:
    """Return the graph with its roots replaced; updates keep their leaves.

    `new` maps every root, and those nodes below that have a replacement, to their replacements. A replacement takes
    over the role of the node it replaces.
    """
    roots = (
        graph.inputs,
        tuple(new[t] for t in graph.outputs),
        tuple((p, new[t]) for p, t in graph.updates),
        tuple((new[t], m) for t, m in graph.checks),
    )
    plain = Graph(*roots)
    if plain.roots == graph.roots:
        return graph
    labels.carry(new)
    return Graph(*roots, _gradients(graph, plain, new)) if graph.gradients else plain


def _gradients(old: Graph, plain: Graph, new: Mapping[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """Return the gradients of a rewritten graph: the backward nodes that its updates read. `plain` is that graph
    without gradients.

    Backward is every node needed for a replacement of a backward node, even if it is no longer read because its reader
    was merged into it. Of the other nodes, update are the replacements of update nodes and their readers. A node that
    neither replaces nor reads one, such as the union of two gradients, was made for an update to read: it is backward
    too.
    """
    images: dict[str, list[Tensor]] = {"backward": [], "update": []}
    for node, role in old.role.items():
        image = node if isinstance(node, Leaf) else new.get(node)
        if role != "forward" and image is not None:
            images[role].append(image)
    forward = {n for n, role in plain.role.items() if role == "forward"}
    backward = set(postorder(images["backward"], forward))
    later: set[Tensor] = set()
    gradients: dict[Tensor, None] = {}
    replaced = set(images["update"])
    for node in plain.role:
        if node in forward or node in backward:
            continue
        if node in replaced or any(a in later for a in node.args):
            later.add(node)
            gradients |= dict.fromkeys(a for a in node.args if a in backward and not isinstance(a, Leaf))
        else:
            backward.add(node)
    gradients |= dict.fromkeys(t for _, t in plain.updates if t in backward)
    return tuple(gradients)
