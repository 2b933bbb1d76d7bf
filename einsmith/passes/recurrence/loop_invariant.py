"""What stays the same in all steps of a loop is made before it; products with it that share a factor become one.

before: in a step, P[b, k] = sum[j](h[b, j]*U[k, j]);  Q[b, k] = sum[j](h[b, j]*V[k, j])
after:  before the loop, W[j, 0, k] = U[k, j], W[j, 1, k] = V[k, j];
        in a step, M[b, q, k] = sum[j](h[b, j]*W[j, q, k]), and P[b, k] is M[b, 0, k], Q[b, k] is M[b, 1, k]

The operand that is made outside has the axes of the sum before its own output axes, as the inner loop of a product
reads it. It is made even for a single product where it has to be computed; one that is only read in another order stays
as it is, for kernels pack what is the same in all steps once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from einsmith import dtypes as dt
from einsmith.expr.nodes import (
    Axis,
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
    apply,
    axes_of,
    is_free,
    postorder,
    reads,
    size,
    template,
)
from einsmith.expr.rewrite.rebuild import operands, prune_args, rebuild, replace, substitute, with_args
from einsmith.expr.rewrite.simplify import simplify_template


@dataclass(frozen=True, eq=False)
class _Product:
    """A sum of products: `operand`, of steady tensors alone, times `others`, expressions of the node's slots. Axes of
    the operand: `batch` (output axes that the others have too), `inner` (of the sum), `outer` (its own output axes)."""

    node: Compute
    operand: Expr
    others: tuple[Expr, ...]
    batch: tuple[int, ...]
    inner: tuple[int, ...]
    outer: tuple[int, ...]

    @property
    def axes(self) -> tuple[int, ...]:
        return (*self.batch, *self.inner, *self.outer)

    @property
    def domain(self) -> tuple[int, ...]:
        return self.node.template.parts[0].domain

    @property
    def is_read(self) -> bool:
        """Whether the operand is read from memory as it lies there, at places that do not depend on data."""
        return isinstance(self.operand, Read) and not any(reads(i) for i in self.operand.index)

    def key(self) -> tuple:
        """Equal for products that may become one."""
        named = tuple(map(self._by_argument, self.others))
        return self.node.shape, self.domain, self.axes, self.operand.dtype, named

    def _by_argument(self, e: Expr) -> tuple[Expr, tuple[Tensor, ...]]:
        """The expression with its slots renumbered by first appearance, and the arguments that they are."""
        order = tuple(dict.fromkeys(r.slot for r in reads(e)))
        return substitute(e, {}, {s: n for n, s in enumerate(order)}), tuple(self.node.args[s] for s in order)


def settle(graph: Graph, steady: Callable[[Tensor], bool], outside: Callable[[Compute], Leaf]) -> Graph:
    """The graph of a step, rewritten as above. `steady` tells which inputs are the same in all steps; `outside` gives
    the input that a tensor of steady inputs becomes when it is made before the loop."""

    def leave(node):
        alone = isinstance(node, Compute) and len(node.template.dtypes) == 1 and node.args
        return outside(node) if alone and all(map(steady, node.args)) else None

    graph = replace(graph, leave)
    groups: dict[tuple, list[_Product]] = {}
    for node in postorder(graph.roots):
        product = _product(node, steady) if isinstance(node, Compute) and any(map(steady, node.args)) else None
        if product is not None:
            groups.setdefault(product.key(), []).append(product)
    place = {p.node: (group, n) for group in groups.values() for n, p in enumerate(group)}
    made: dict[tuple, Compute] = {}
    memo: dict = {}
    for node in postorder(graph.roots):
        new = with_args(node, tuple(memo[a] for a in node.args)) if node.args else node
        if node in place:
            group, n = place[node]
            key = group[0].key()
            if len(group) == 1:
                new = new if group[0].is_read else _single(group[0], new.args, outside)
            elif group[0].outer:
                if key not in made:
                    made[key] = _merged(group, new.args, outside)
                new = _part(made[key], group[0].outer[0], n)
        memo[node] = new
    return replace(graph, lambda n: None, memo)


def _product(node: Compute, steady: Callable[[Tensor], bool]) -> _Product | None:
    """The node as a product with a steady operand; None where it is none, or where the operand would grow much."""
    part = node.template.parts[0]
    body = part.body
    if len(node.template.parts) != 1 or not isinstance(body, Reduce) or body.combiner != "sum" or len(body.bodies) != 1:
        return None
    assert isinstance(part, Piece)
    rank = len(part.extents)
    same = {s for s, a in enumerate(node.args) if steady(a)}
    found: list[Expr] = []
    others: list[Expr] = []
    for e in operands(body.bodies[0], "mul"):
        slots = {r.slot for r in reads(e)}
        own = slots and slots <= same and not is_free(e, rank)
        (found if own else others).append(e)
    if not found or not others:
        return None
    mine, theirs = axes_of(*found), axes_of(*others)
    batch = tuple(sorted(a for a in mine if a < rank and a in theirs))
    outer = tuple(sorted(a for a in mine if a < rank and a not in theirs))
    inner = tuple(sorted(a for a in mine if a >= rank))
    if size(part.domain[a] for a in mine) > 2 * max(size(node.template.params[s][1]) for s in same):
        return None
    return _Product(node, _times(found), tuple(others), batch, inner, outer)


def _times(factors: list[Expr]) -> Expr:
    out = factors[0]
    for e in factors[1:]:
        out = apply("mul", out, e)
    return out


def _single(p: _Product, args: tuple[Tensor, ...], outside: Callable[[Compute], Leaf]) -> Compute:
    body = substitute(p.operand, {a: Axis(n) for n, a in enumerate(p.axes)})
    x = outside(prune_args(template((p.domain[a] for a in p.axes), p.node.template.params, body), p.node.args))
    return _sum(p, args, x, p.node.shape, {})


def _merged(group: list[_Product], args: tuple[Tensor, ...], outside: Callable[[Compute], Leaf]) -> Compute:
    """One product for all; its output has the group's axis before the first axis of the operand alone."""
    first = group[0]
    front = (*first.batch, *first.inner)
    pieces: list[Piece] = []
    tensors: list[Tensor] = []
    for n, p in enumerate(group):
        axes: dict[int, Expr] = {a: Axis(k) for k, a in enumerate(front)}
        axes |= {a: Axis(len(front) + 1 + k) for k, a in enumerate(first.outer)}
        slots = {s: len(tensors) + s for s in range(len(p.node.args))}
        offset = [0] * len(front) + [n] + [0] * len(first.outer)
        extents = [*(first.domain[a] for a in front), 1, *(first.domain[a] for a in first.outer)]
        pieces.append(Piece(tuple(offset), (1,) * len(offset), tuple(extents), substitute(p.operand, axes, slots)))
        tensors += p.node.args
    extents[len(front)] = len(group)
    stacked = Template(tuple(extents), tuple((a.dtype, a.shape) for a in tensors), tuple(pieces))
    x = outside(prune_args(stacked, tuple(tensors)))
    at = first.outer[0]
    shape = (*first.node.shape[:at], len(group), *first.node.shape[at:])
    return _sum(first, args, x, shape, {a: Axis(a + 1) for a in range(at, len(first.domain))})


def _sum(p: _Product, args: tuple[Tensor, ...], x: Leaf, shape: tuple[int, ...], moved: dict[int, Expr]) -> Compute:
    """The product with its operand read from x; `moved` renumbers the axes where x has the group's before its own."""
    index: list[Expr] = [moved.get(a, Axis(a)) for a in p.axes]
    if moved:
        index.insert(len(p.batch) + len(p.inner), Axis(p.outer[0]))
    read = Read(len(args), tuple(index), x.dtype)
    body = _times([*(rebuild([e], lambda e: moved.get(e.position) if isinstance(e, Axis) else None)[0]
                     for e in p.others), read])  # fmt: skip
    reduce = p.node.template.parts[0].body
    assert isinstance(reduce, Reduce)
    params = (*((a.dtype, a.shape) for a in args), (x.dtype, x.shape))
    out = prune_args(template(shape, params, Reduce("sum", reduce.extents, (body,))), (*args, x))
    return prune_args(simplify_template(out.template), out.args)


def _part(merged: Compute, at: int, n: int) -> Compute:
    """What a product of the group was."""
    shape = (*merged.shape[:at], *merged.shape[at + 1 :])
    index: list[Expr] = [Axis(a) for a in range(len(shape))]
    index.insert(at, Const(n, dt.i32))
    return Compute(template(shape, [(merged.dtype, merged.shape)], Read(0, tuple(index), merged.dtype)), (merged,))
