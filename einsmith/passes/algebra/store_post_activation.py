"""A tensor that is read through one clamp alone is stored clamped.

before: T[i] = X[i]*s[i] + b[i];  Y[i] = sum[r](W[r]*where(T[i+r] <= 0, 0, T[i+r]));  dT[i] = where(T[i] <= 0, 0, G[i])
after:  C[i] = where(X[i]*s[i] + b[i] <= 0, 0, ...);  Y[i] = sum[r](W[r]*C[i+r]);  dT[i] = where(C[i] <= 0, 0, G[i])

Selection costs nothing beside what it selects from, and is evaluated where it is read; a convolution reads each element
many times, and plain reads have forms that others have not. Comparisons that a clamp leaves as they are, as those of
its own derivative, read the clamped tensor too: nothing else is stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from einsmith.expr.functions import FUNCTIONS
from einsmith.expr.nodes import (
    Apply,
    Axis,
    Compute,
    Const,
    Expr,
    Graph,
    Read,
    Template,
    Tensor,
    postorder,
    template,
)
from einsmith.expr.rewrite.rebuild import exchanged, map_bodies, prune_args, readers_of, rebuild, with_args
from einsmith.passes.algebra.inline import pointwise_body
from einsmith.passes.schedule.views import is_view

SELECTING = {"where", "min", "max", "lt", "le", "eq", "ne", "and", "or", "not"}
"""What a clamp is made of: between two of its constants it is the number itself, or one constant."""


def store_post_activation(graph: Graph) -> Graph:
    """The graph with such tensors stored clamped."""
    nodes = list(postorder(graph.roots))
    kept = set(graph.roots)
    readers = readers_of(nodes)
    clamps = {n: f for n in nodes if n not in kept and (f := _clamp(n, readers[n])) is not None}
    if not clamps:
        return graph
    memo: dict[Tensor, Tensor] = {}
    for node in nodes:
        new = with_args(node, tuple([memo[a] for a in node.args])) if node.args else node
        if isinstance(node, Compute):
            through = {s: clamps[a] for s, a in enumerate(node.args) if a in clamps}
            if through:
                new = prune_args(map_bodies(new.template, partial(_unclamped, clamps=through)), new.args)
            if node in clamps:
                new = _clamped(new, clamps[node])
        memo[node] = new
    return exchanged(graph, memo)


def _clamp(t: Tensor, readers: Sequence[Tensor]) -> Expr | None:
    """What a tensor is read through, a function of `_number`; None where it is read otherwise too, or by nothing but
    pointwise tensors, which are computed with it."""
    if not isinstance(t, Compute) or is_view(t.template) or len(t.template.dtypes) > 1 or not t.dtype.is_float:
        return None
    found: set[Expr] = set()
    for node in readers:
        if not isinstance(node, Compute) or is_view(node.template):
            return None
        uses = node.template.memo("uses of reads", _uses)
        found.update(*(uses[s] for s, a in enumerate(node.args) if a is t))
    values = [f for f in found if f.dtype.is_float]
    if len(values) != 1 or isinstance(values[0], Read) or all(_is_pointwise(r) for r in readers):
        return None
    return values[0] if _keeps(values[0], [f for f in found if f is not values[0]]) else None


def _is_pointwise(t: Tensor) -> bool:
    return isinstance(t, Compute) and pointwise_body(t.template) is not None


def _number(x: Expr) -> Read:
    """What stands for a read in a function of it."""
    return Read(0, (), x.dtype)


def _reads_alone(body: Expr) -> dict[Expr, Read | None]:
    """For each expression of a body, the read of which it selects, beside constants; None where there is no such."""
    out: dict[Expr, Read | None] = {}
    for e in postorder([body]):
        out[e] = e if isinstance(e, Read) else None
        if isinstance(e, Apply) and e.fn in SELECTING:
            found = {out[a] for a in e.args if not isinstance(a, Const)}
            out[e] = found.pop() if len(found) == 1 else None
    return out


def _uses(t: Template) -> list[set[Expr]]:
    """By slot, the functions of a single read that bodies are made of, each as large as it is."""
    out: list[set[Expr]] = [set() for _ in t.params]
    for part in t.parts:
        for body in part.bodies:
            alone = _reads_alone(body)
            largest = {body: alone[body]}
            for e in alone:
                if alone[e] is None or isinstance(e, Read):
                    largest |= {a: alone[a] for a in e.args}
            for e, r in largest.items():
                if r is not None:
                    out[r.slot].add(_of_number(e))
    return out


def _of_number(e: Expr) -> Expr:
    return rebuild([e], lambda x: _number(x) if isinstance(x, Read) else None)[0]


def _keeps(clamp: Expr, conditions: Sequence[Expr]) -> bool:
    """Whether conditions of a number are those of the clamped number. Between the constants that stand in them a
    comparison is the same for all numbers, so that one of each interval tells."""
    constants = {float(e.value) for e in postorder([clamp, *conditions]) if isinstance(e, Const)}
    if any(np.isnan(c) for c in constants):
        return False
    ends = sorted({-np.inf, np.inf, 0.0, *constants})
    between = [np.clip(np.mean(np.clip(pair, -1e30, 1e30)), *pair) for pair in zip(ends, ends[1:], strict=False)]
    x = np.array([*ends, -0.0, *between, np.nan], clamp.dtype.numpy)
    y = _value(clamp, x)
    return all(np.array_equal(_value(c, x), _value(c, y)) for c in conditions)


def _value(e: Expr, x: np.ndarray) -> np.ndarray:
    if isinstance(e, Read):
        return x
    if isinstance(e, Const):
        return np.full(x.shape, e.value, e.dtype.numpy)
    assert isinstance(e, Apply)
    return FUNCTIONS[e.fn].numpy(*(_value(a, x) for a in e.args))


def _unclamped(body: Expr, clamps: Mapping[int, Expr]) -> Expr:
    """A body with the reads themselves for the clamps of them."""
    alone = _reads_alone(body)
    memo: dict[Expr, Expr] = {}
    for e in postorder([body]):
        r = alone[e]
        if r is not None and r.slot in clamps and e is not r and _of_number(e) is clamps[r.slot]:
            memo[e] = r
        else:
            memo[e] = with_args(e, tuple([memo[a] for a in e.args])) if e.args else e
    return memo[body]


def _clamped(node: Compute, clamp: Expr) -> Compute:
    """The tensor with each element clamped: a pointwise one in its own body, any other one by a tensor of its own."""
    body = pointwise_body(node.template)
    if body is None:
        read = Read(0, tuple(map(Axis, range(len(node.shape)))), node.dtype)
        return Compute(template(node.shape, ((node.dtype, node.shape),), _at(clamp, read)), (node,))
    return Compute(map_bodies(node.template, lambda b: _at(clamp, b)), node.args)


def _at(clamp: Expr, x: Expr) -> Expr:
    return rebuild([clamp], lambda e: x if isinstance(e, Read) else None)[0]
