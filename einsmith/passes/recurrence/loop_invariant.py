"""Move loop-invariant computations in front of the loop, and merge products of a step that share their moving factor.

before: in a step, P[b, k] = sum[j](h[b, j]*U[k, j]);  Q[b, k] = sum[j](h[b, j]*V[k, j])
after:  before the loop, W[j, 0, k] = U[k, j], W[j, 1, k] = V[k, j];
        in a step, M[b, q, k] = sum[j](h[b, j]*W[j, q, k]), and P[b, k] is M[b, 0, k], Q[b, k] is M[b, 1, k]

The operand that is computed in front of the loop has the axes of the sum before its own output axes, the order in which
the inner loop of a product reads it. For a single product the operand is moved only if it has to be computed. An
operand that is only read in another order stays in place, because kernels pack loop-invariant operands once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from einsmith.base import dtypes as dt
from einsmith.ir.nodes import (
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
    has_no_reduction_axis,
    postorder,
    reads,
    size,
    template,
)
from einsmith.ir.rebuild import operands, prune_args, rebuild, replace, substitute, types_of, with_args
from einsmith.ir.rewrite.simplify import simplified


@dataclass(frozen=True, eq=False)
class _Product:
    """A sum of products: `operand`, which depends on loop-invariant tensors alone, times `others`, expressions over the
    node's slots. Axes of the operand: `batch` (output axes that the others have too), `inner` (of the sum), `outer`
    (its own output axes)."""

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
        """Return whether the operand is a plain read of memory, at positions that do not depend on data."""
        return isinstance(self.operand, Read) and not any(reads(i) for i in self.operand.index)

    def key(self) -> tuple:
        """Return a key that is equal for products that can be merged."""
        normalized = tuple(map(self._normalize_slots, self.others))
        return self.node.shape, self.domain, self.axes, self.operand.dtype, normalized

    def _normalize_slots(self, e: Expr) -> tuple[Expr, tuple[Tensor, ...]]:
        """Return (the expression with its slots renumbered by first appearance, the arguments in these slots)."""
        order = tuple(dict.fromkeys(r.slot for r in reads(e)))
        return substitute(e, {}, {s: n for n, s in enumerate(order)}), tuple(self.node.args[s] for s in order)


def hoist_invariants(
    graph: Graph, is_invariant: Callable[[Tensor], bool], move_out: Callable[[Compute], Leaf]
) -> Graph:
    """Return the graph of a step with loop-invariant computations moved out and products merged.

    Args:
        graph: the graph of a step.
        is_invariant: returns whether an input is loop-invariant.
        move_out: moves a tensor in front of the loop and returns the step's input that replaces it.
    """

    def hoist(node):
        has_one_result = isinstance(node, Compute) and len(node.template.dtypes) == 1 and node.args
        return move_out(node) if has_one_result and all(map(is_invariant, node.args)) else None

    graph = replace(graph, hoist)
    groups: dict[tuple, list[_Product]] = {}
    for node in postorder(graph.roots):
        product = (
            _match_product(node, is_invariant)
            if isinstance(node, Compute) and any(map(is_invariant, node.args))
            else None
        )
        if product is not None:
            groups.setdefault(product.key(), []).append(product)
    position = {p.node: (group, n) for group in groups.values() for n, p in enumerate(group)}
    merged: dict[tuple, Compute] = {}
    memo: dict = {}
    for node in postorder(graph.roots):
        new = with_args(node, tuple(memo[a] for a in node.args)) if node.args else node
        if node in position:
            group, n = position[node]
            key = group[0].key()
            if len(group) == 1:
                new = new if group[0].is_read else _hoist_operand(group[0], new.args, move_out)
            elif group[0].outer:
                if key not in merged:
                    merged[key] = _merge_products(group, new.args, move_out)
                new = _slice_product(merged[key], group[0].outer[0], n)
        memo[node] = new
    return replace(graph, lambda n: None, memo)


def _match_product(node: Compute, is_invariant: Callable[[Tensor], bool]) -> _Product | None:
    """Return the node as a product with a loop-invariant operand; None if it is none, or if the operand would be more
    than twice as large as its largest argument."""
    part = node.template.parts[0]
    body = part.body
    if len(node.template.parts) != 1 or not isinstance(body, Reduce) or body.combiner != "sum" or len(body.bodies) != 1:
        return None
    assert isinstance(part, Piece)
    rank = len(part.extents)
    invariant_slots = {s for s, a in enumerate(node.args) if is_invariant(a)}
    invariant_factors: list[Expr] = []
    other_factors: list[Expr] = []
    for e in operands(body.bodies[0], "mul"):
        slots = {r.slot for r in reads(e)}
        is_hoisted = slots and slots <= invariant_slots and not has_no_reduction_axis(e, rank)
        (invariant_factors if is_hoisted else other_factors).append(e)
    if not invariant_factors or not other_factors:
        return None
    own_axes, other_axes = axes_of(*invariant_factors), axes_of(*other_factors)
    batch = tuple(sorted(a for a in own_axes if a < rank and a in other_axes))
    outer = tuple(sorted(a for a in own_axes if a < rank and a not in other_axes))
    inner = tuple(sorted(a for a in own_axes if a >= rank))
    if size(part.domain[a] for a in own_axes) > 2 * max(size(node.template.params[s][1]) for s in invariant_slots):
        return None
    return _Product(node, _multiply(invariant_factors), tuple(other_factors), batch, inner, outer)


def _multiply(factors: list[Expr]) -> Expr:
    out = factors[0]
    for e in factors[1:]:
        out = apply("mul", out, e)
    return out


def _hoist_operand(p: _Product, args: tuple[Tensor, ...], move_out: Callable[[Compute], Leaf]) -> Compute:
    body = substitute(p.operand, {a: Axis(n) for n, a in enumerate(p.axes)})
    x = move_out(prune_args(template((p.domain[a] for a in p.axes), p.node.template.params, body), p.node.args))
    return _build_product(p, args, x, p.node.shape, {})


def _merge_products(group: list[_Product], args: tuple[Tensor, ...], move_out: Callable[[Compute], Leaf]) -> Compute:
    """Return one product for all of a group; its output has the group's axis before the first axis that the operand
    alone has."""
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
    stacked = Template(tuple(extents), types_of(tensors), tuple(pieces))
    x = move_out(prune_args(stacked, tuple(tensors)))
    at = first.outer[0]
    shape = (*first.node.shape[:at], len(group), *first.node.shape[at:])
    return _build_product(first, args, x, shape, {a: Axis(a + 1) for a in range(at, len(first.domain))})


def _build_product(
    p: _Product, args: tuple[Tensor, ...], x: Leaf, shape: tuple[int, ...], renumbered: dict[int, Expr]
) -> Compute:
    """Return the product with its operand read from x; `renumbered` has the
    new axes if x has the group's axis before its
    own."""
    index: list[Expr] = [renumbered.get(a, Axis(a)) for a in p.axes]
    if renumbered:
        index.insert(len(p.batch) + len(p.inner), Axis(p.outer[0]))
    read = Read(len(args), tuple(index), x.dtype)
    body = _multiply(
        [
            *(rebuild([e], lambda e: renumbered.get(e.position) if isinstance(e, Axis) else None)[0] for e in p.others),
            read,
        ]
    )
    reduce = p.node.template.parts[0].body
    assert isinstance(reduce, Reduce)
    params = (*((a.dtype, a.shape) for a in args), (x.dtype, x.shape))
    return simplified(template(shape, params, Reduce("sum", reduce.extents, (body,))), (*args, x))


def _slice_product(merged: Compute, at: int, n: int) -> Compute:
    """Return the slice of a merged product that replaces product n of the group."""
    shape = (*merged.shape[:at], *merged.shape[at + 1 :])
    index: list[Expr] = [Axis(a) for a in range(len(shape))]
    index.insert(at, Const(n, dt.i32))
    return Compute(template(shape, [(merged.dtype, merged.shape)], Read(0, tuple(index), merged.dtype)), (merged,))
