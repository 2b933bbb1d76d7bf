"""Store a tensor that is read only through one clamp (an activation such as relu) in its clamped form.

before: T[i] = X[i]*s[i] + b[i];  Y[i] = sum[r](W[r]*where(T[i+r] <= 0, 0, T[i+r]));  dT[i] = where(T[i] <= 0, 0, G[i])
after:  C[i] = where(X[i]*s[i] + b[i] <= 0, 0, ...);  Y[i] = sum[r](W[r]*C[i+r]);  dT[i] = where(C[i] <= 0, 0, G[i])

A selection is cheap compared with the computation of its operand, but it is evaluated at every read. A convolution
reads each element many times, and kernels have specialised forms for plain reads. Comparisons whose result the clamp
does not change, such as those of the clamp's own derivative, read the clamped tensor too, so that the unclamped values
are not stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from einsmith.ir.analysis.pointwise import pointwise_body
from einsmith.ir.functions import FUNCTIONS
from einsmith.ir.nodes import (
    Apply,
    Compute,
    Const,
    Expr,
    Graph,
    Read,
    Template,
    Tensor,
    postorder,
    read_whole,
    template,
)
from einsmith.ir.rebuild import exchanged, map_bodies, prune_args, readers_of, rebuild, types_of, with_args
from einsmith.ir.views import is_view

CLAMP_FUNCTIONS = {"where", "min", "max", "lt", "le", "eq", "ne", "and", "or", "not"}
"""Functions that a clamp is made of: between two neighbouring constants, such a function of one number returns the
number itself or a constant."""


def store_post_activation(graph: Graph) -> Graph:
    """Return the graph in which tensors that are read only through one clamp are stored clamped."""
    nodes = list(postorder(graph.roots))
    kept = set(graph.roots)
    readers = readers_of(nodes)
    clamps = {n: f for n in nodes if n not in kept and (f := _find_clamp(n, readers[n])) is not None}
    if not clamps:
        return graph
    memo: dict[Tensor, Tensor] = {}
    for node in nodes:
        new = with_args(node, tuple([memo[a] for a in node.args])) if node.args else node
        if isinstance(node, Compute):
            slot_clamps = {s: clamps[a] for s, a in enumerate(node.args) if a in clamps}
            if slot_clamps:
                new = prune_args(map_bodies(new.template, partial(_remove_clamps, clamps=slot_clamps)), new.args)
            if node in clamps:
                new = _clamp(new, clamps[node])
        memo[node] = new
    return exchanged(graph, memo)


def _find_clamp(t: Tensor, readers: Sequence[Tensor]) -> Expr | None:
    """Return the clamp through which all readers read a tensor, as a function of `_placeholder`. Return None if a
    reader uses the tensor in another way, or if all readers are pointwise: they are fused with the tensor, which is
    then not stored."""
    if not isinstance(t, Compute) or is_view(t.template) or len(t.template.dtypes) > 1 or not t.dtype.is_float:
        return None
    all_uses: set[Expr] = set()
    for node in readers:
        if not isinstance(node, Compute) or is_view(node.template):
            return None
        uses = node.template.memo("uses of reads", _find_uses)
        all_uses.update(*(uses[s] for s, a in enumerate(node.args) if a is t))
    values = [f for f in all_uses if f.dtype.is_float]
    if len(values) != 1 or isinstance(values[0], Read) or all(_is_pointwise(r) for r in readers):
        return None
    if values[0].dtype is not t.dtype:  # a selection by the tensor among numbers of another type
        return None
    return values[0] if _keeps_conditions(values[0], [f for f in all_uses if f is not values[0]]) else None


def _is_pointwise(t: Tensor) -> bool:
    return isinstance(t, Compute) and pointwise_body(t.template) is not None


def _placeholder(x: Expr) -> Read:
    """Return the placeholder that replaces the read in an expression of one read."""
    return Read(0, (), x.dtype)


def _find_single_reads(body: Expr) -> dict[Expr, Read | None]:
    """Map each expression of a body to the only read that it selects from (its other operands being constants); None if
    there is no single read."""
    out: dict[Expr, Read | None] = {}
    for e in postorder([body]):
        out[e] = e if isinstance(e, Read) else None
        if isinstance(e, Apply) and e.fn in CLAMP_FUNCTIONS:
            reads_of_args = {out[a] for a in e.args if not isinstance(a, Const)}
            out[e] = reads_of_args.pop() if len(reads_of_args) == 1 else None
    return out


def _find_uses(t: Template) -> list[set[Expr]]:
    """Return, for each slot, the maximal subexpressions of the bodies that are functions of a single read of that
    slot."""
    out: list[set[Expr]] = [set() for _ in t.params]
    for part in t.parts:
        for body in part.bodies:
            single_reads = _find_single_reads(body)
            largest = {body: single_reads[body]}
            for e in single_reads:
                if single_reads[e] is None or isinstance(e, Read):
                    largest |= {a: single_reads[a] for a in e.args}
            for e, r in largest.items():
                if r is not None:
                    out[r.slot].add(_replace_read(e))
    return out


def _replace_read(e: Expr) -> Expr:
    return rebuild([e], lambda x: _placeholder(x) if isinstance(x, Read) else None)[0]


def _keeps_conditions(clamp: Expr, conditions: Sequence[Expr]) -> bool:
    """Return whether every condition has the same value for a number as for the clamped number. A comparison is
    constant between two neighbouring constants of the expressions, so one sample of each interval decides."""
    constants = {float(e.value) for e in postorder([clamp, *conditions]) if isinstance(e, Const)}
    if any(np.isnan(c) for c in constants):
        return False
    ends = sorted({-np.inf, np.inf, 0.0, *constants})
    between = [np.clip(np.mean(np.clip(pair, -1e30, 1e30)), *pair) for pair in zip(ends, ends[1:], strict=False)]
    x = np.array([*ends, -0.0, *between, np.nan], clamp.dtype.numpy)
    y = _evaluate(clamp, x)
    return all(np.array_equal(_evaluate(c, x), _evaluate(c, y)) for c in conditions)


def _evaluate(e: Expr, x: np.ndarray) -> np.ndarray:
    if isinstance(e, Read):
        return x
    if isinstance(e, Const):
        return np.full(x.shape, e.value, e.dtype.numpy)
    assert isinstance(e, Apply)
    return FUNCTIONS[e.fn].numpy(*(_evaluate(a, x) for a in e.args))


def _remove_clamps(body: Expr, clamps: Mapping[int, Expr]) -> Expr:
    """Return a body in which each clamp of a read is replaced by the read."""
    single_reads = _find_single_reads(body)
    memo: dict[Expr, Expr] = {}
    for e in postorder([body]):
        r = single_reads[e]
        if r is not None and r.slot in clamps and e is not r and _replace_read(e) is clamps[r.slot]:
            memo[e] = r
        else:
            memo[e] = with_args(e, tuple([memo[a] for a in e.args])) if e.args else e
    return memo[body]


def _clamp(node: Compute, clamp: Expr) -> Compute:
    """Return the tensor with each element clamped. A pointwise tensor is clamped in its own body, any other tensor by a
    separate pointwise tensor."""
    body = pointwise_body(node.template)
    if body is None:
        read = read_whole(0, node.shape, node.dtype)
        return Compute(template(node.shape, types_of((node,)), _apply_clamp(clamp, read)), (node,))
    return Compute(map_bodies(node.template, lambda b: _apply_clamp(clamp, b)), node.args)


def _apply_clamp(clamp: Expr, x: Expr) -> Expr:
    return rebuild([clamp], lambda e: x if isinstance(e, Read) else None)[0]
