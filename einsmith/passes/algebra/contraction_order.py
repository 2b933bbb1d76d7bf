"""Multiply the factors of sums of products in the order of the least time (see ir.rewrite.contraction_order).

before: Y[i, k] = sum[j, v](A[i, j, v]*W[v, k]*f[i, j, k]);  Z[j, k] = sum[i, v](A[i, j, v]*W[v, k]*f[i, j, k])
after:  T[i, j, k] = sum[v](A[i, j, v]*W[v, k]);  Y[i, k] = sum[j](T[i, j, k]*f[i, j, k])
        Z[j, k] = sum[i](T[i, j, k]*f[i, j, k])

These are the gradients by two terms of f's argument. A step that the graph has already, or that several sums have, is
made once, and each sum bears its part of the time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import inf
from typing import Any

from einsmith.ir.nodes import Compute, Graph, Tensor, postorder
from einsmith.ir.rebuild import exchanged, with_args
from einsmith.ir.rewrite.contraction_order import order_contraction, possible_steps


def contraction_order(graph: Graph) -> Graph:
    """Return the graph with every sum of products computed in steps of the least time."""
    nodes = dict.fromkeys(postorder(graph.roots))
    sums = [node for node in nodes if isinstance(node, Compute)]
    possible = Counter[Tensor](step for node in sums for step in {step for _, step in possible_steps(node)})
    present: dict[Tensor, float] = dict.fromkeys(nodes.keys() & possible, inf)
    ordered = _order(sums, {**possible, **present})
    if possible:  # not every sum takes the steps that it could have
        taken = Counter[Tensor](s for new in ordered.values() for s in postorder([new], nodes) if s in possible)
        ordered = _order(sums, {**taken, **present})
    if not ordered:
        return graph
    memo: dict[Any, Any] = {}
    for node in nodes:
        for n in postorder([ordered.get(node, node)], memo):
            memo[n] = with_args(n, tuple(memo[a] for a in n.args)) if n.args else n
        memo[node] = memo[ordered.get(node, node)]
    return exchanged(graph, memo)


def _order(sums: list[Compute], readers: Mapping[Tensor, float]) -> dict[Tensor, Tensor]:
    """Return the sums that are computed in steps, with the last step of each."""
    return {node: new for node in sums if (new := order_contraction(node, readers)) is not None}
