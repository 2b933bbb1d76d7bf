"""Reuse available expressions: a product of which a stored tensor is a part reads that tensor.

before: S[i] = sum[j](exp(X[i,j] - m[i]));  P[i,j] = exp(X[i,j] - m[i])/S[i]      (P is read by a contraction)
        D[i] = sum[j](-(G[i,j]*P[i,j]/S[i]))
        Y[i,j] = D[i]*exp(X[i,j] - m[i]) + G[i,j]/S[i]*exp(X[i,j] - m[i])
after:  E[i] = sum[j](-(G[i,j]*P[i,j]));  Y[i,j] = E[i]*P[i,j] + G[i,j]*P[i,j]

This is the backward pass of a softmax, which then does not keep X in addition to P. Likewise tanh(X[i]) in a gradient
is read from the tensor that stores it. Factors of a product are reassociated, and a factor that is free of a sum's axes
is moved out of the sum; the scope of conditions does not change.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from einsmith.ir.analysis.pointwise import is_identity, pointwise_body
from einsmith.ir.nodes import (
    Apply,
    Axis,
    Compute,
    Const,
    Expr,
    Graph,
    Read,
    Reduce,
    Template,
    Tensor,
    has_no_reduction_axis,
    postorder,
    size,
    template,
)
from einsmith.ir.rebuild import exchanged, map_bodies, prune_args, types_of, whole_sum, with_args
from einsmith.ir.rewrite.factors import Factor, Product, is_long, key_of, multiply, product_of

CHEAP_FUNCTIONS = {"add", "sub", "mul", "neg", "cast", "where", "min", "max", "abs"}
"""Functions that are cheap enough to be recomputed whenever they are read."""


class _Stored(NamedTuple):
    """A tensor that is stored in any case, and its factors. `seed`: the factor that reads an argument at the tensor's
    own position."""

    tensor: Compute
    factors: tuple[Factor, ...]
    seed: int


def available_expressions(graph: Graph) -> Graph:
    """Return the graph with products that contain a stored tensor replaced by reads of it, if an operand is then not
    read any more."""
    nodes = list(postorder(graph.roots))
    stored = {a for n in nodes if not isinstance(n, Compute) or pointwise_body(n.template) is None for a in n.args}
    stored.update(graph.roots)
    known: dict[Tensor, list[_Stored]] = defaultdict(list)
    memo: dict[Any, Any] = {}
    for node in nodes:
        new = with_args(node, tuple(memo[a] for a in node.args)) if node.args else node
        if isinstance(new, Compute):
            for a in dict.fromkeys(new.args):
                for p in known.get(a, ()):
                    new = _read_stored(new, a, p) or new
            if node in stored:
                _record(new, known)
        memo[node] = new
    return exchanged(graph, memo)


def _record(node: Compute, known: dict[Tensor, list[_Stored]]) -> None:
    """Record a stored tensor, if it is costly to compute, under each argument that it reads at its own position."""
    product = node.template.memo("product", _product_of)
    if product is None or product.minus or not any(d or _is_costly(f) for f, d in product.factors):
        return
    for n, (f, _) in enumerate(product.factors):
        for e in postorder([f]):
            if isinstance(e, Read) and is_identity(e, node.shape, node.args[e.slot].shape):
                known[node.args[e.slot]].append(_Stored(node, product.factors, n))


def _product_of(t: Template) -> Product | None:
    """Return the product that a tensor is; None if it is not pointwise or too long."""
    body = pointwise_body(t)
    return None if body is None or is_long(body) else product_of(body)


def _is_costly(f: Expr) -> bool:
    return any(isinstance(e, Apply) and e.dtype.is_float and e.fn not in CHEAP_FUNCTIONS for e in postorder([f]))


class _Scope(NamedTuple):
    """The tensors that an expression's slots read, and the positions of its axes (None: the axes themselves)."""

    args: Sequence[Tensor]
    places: Mapping[int, Any] | None = None


def _matches(e: Expr, own: _Scope, x: Expr, other: _Scope, places: dict[int, Any]) -> bool:
    """Return whether x equals e with its axes at `places`; axes that are not in `places` yet are entered."""
    if isinstance(e, Axis):
        key = key_of(x, other.args, other.places)
        return places.setdefault(e.position, key) == key
    if isinstance(e, Const) or type(e) is not type(x) or len(e.args) != len(x.args):
        return e is x
    if isinstance(e, Read) and own.args[e.slot] is not other.args[x.slot]:  # type: ignore[union-attr]
        return False
    if isinstance(e, Apply) and (e.fn, e.dtype) != (x.fn, x.dtype):  # type: ignore[union-attr]
        return False
    return all(_matches(a, own, b, other, places) for a, b in zip(e.args, x.args, strict=True))


class _Replacement:
    """Rewriter of a node's bodies that replaces every product containing the stored tensor's factors."""

    def __init__(self, args: Sequence[Tensor], stored: _Stored):
        self.args, self.stored = [*args], stored
        self.own = _Scope(stored.tensor.args)
        self.memo: dict[Expr, Expr] = {}

    def rewrite(self, root: Expr) -> Expr:
        for e in postorder([root], self.memo):
            product = product_of(e)
            new = product and self._replace_factors(product)
            self.memo[e] = new or (with_args(e, tuple(self.memo[a] for a in e.args)) if isinstance(e, Apply) else e)
        return self.memo[root]

    def _add_argument(self, t: Tensor) -> int:
        if t not in self.args:
            self.args.append(t)
        return self.args.index(t)

    def _replace_factors(self, product: Product) -> Expr | None:
        """Return the product with the stored tensor in the place of its factors; None if it does not contain them."""
        stored = self.stored
        seed, divides = stored.factors[stored.seed]
        for n, (f, d) in enumerate(product.factors):
            places: dict[int, Any] = {}
            if d != divides or not _matches(seed, self.own, f, _Scope(self.args), places):
                continue
            rest: list[Factor] | None = [x for k, x in enumerate(product.factors) if k != n]
            for k, g in enumerate(stored.factors):
                if k != stored.seed and rest is not None:
                    rest = self._drop_factor(rest, g, places)
            if rest is not None:
                whole = Read(
                    self._add_argument(stored.tensor), _index_of_stored(seed, f, stored.tensor), stored.tensor.dtype
                )
                kept = [(self.memo.get(x, x), over) for x, over in rest]
                return multiply([(whole, False), *kept], product.minus)
        return None

    def _drop_factor(self, factors: list[Factor], factor: Factor, places: dict[int, Any]) -> list[Factor] | None:
        """Divide a product by a factor that the stored tensor contains; return the remaining factors.

        Either one of the factors equals it, or one reads a sum that contains it, from which it is removed. None if
        neither is so.
        """
        g, divides = factor
        for n, (f, d) in enumerate(factors):
            if d == divides and _matches(g, self.own, f, _Scope(self.args), places):
                return factors[:n] + factors[n + 1 :]
        for n, (f, d) in enumerate(factors):
            total = None if d or not isinstance(f, Read) else self._drop_free_factor(f, factor, places)
            if total is not None:
                return [*factors[:n], (Read(self._add_argument(total), f.args, f.dtype), False), *factors[n + 1 :]]
        return None

    def _drop_free_factor(self, read: Read, factor: Factor, places: dict[int, Any]) -> Compute | None:
        """Return the sum of products that is read, without a factor that is free of the sum's axes; None if it has no
        such factor."""
        t = self.args[read.slot]
        part = whole_sum(t.template) if isinstance(t, Compute) else None
        product = None if part is None else product_of(part.bodies[0])
        if part is None or product is None or not isinstance(t, Compute) or not size(part.domain):
            return None
        scope = _Scope(t.args, {d: key_of(i, self.args, None) for d, i in enumerate(read.index)})
        for n, (f, divides) in enumerate(product.factors):
            rest = [x for k, x in enumerate(product.factors) if k != n]
            if divides != factor[1] or all(over for _, over in rest) or not has_no_reduction_axis(f, t.template.rank):
                continue
            if _matches(factor[0], self.own, f, scope, places):
                body = Reduce("sum", part.body.extents, (multiply(rest, product.minus),))  # type: ignore[union-attr]
                return prune_args(template(t.shape, t.template.params, body), t.args)
        return None


def _index_of_stored(seed: Expr, f: Expr, stored: Compute) -> tuple[Expr, ...]:
    """Return the index at which the stored tensor is read: that at which f reads the argument that `seed` reads at its
    own position."""
    pairs = [(seed, f)]
    while pairs:
        e, x = pairs.pop()
        if isinstance(e, Read) and is_identity(e, stored.shape, stored.args[e.slot].shape):
            return x.args
        if not isinstance(e, Axis):  # for which x may have any expression
            pairs += zip(e.args, x.args, strict=True)
    raise AssertionError("no operand is read where the stored tensor reads it at its own position")


def _read_stored(node: Compute, read: Tensor, stored: _Stored) -> Compute | None:
    """Return the node with the stored tensor read in place of its product; None if it would read as much as before."""
    if node.template.is_scatter:
        return None
    replacement = _Replacement(node.args, stored)
    t = map_bodies(node.template, replacement.rewrite)
    if t.parts == node.template.parts:
        return None
    new = prune_args(Template(t.shape, types_of(replacement.args), t.parts), tuple(replacement.args))
    return None if read in new.args else new
