"""Compute elementwise tensors at the positions that are read, where these are fewer (`ir.rewrite.sampled`).

before: P[t, v] = X[t, v] - L[t];  S[] = sum[t](P[t, y[t]])
after:  S[] = sum[t](X[t, y[t]] - L[t])

Tensors that are differentiated are rewritten before their gradient is derived (`autodiff.reverse`).
"""

from __future__ import annotations

from einsmith.ir.nodes import Graph
from einsmith.ir.rebuild import exchanged
from einsmith.ir.rewrite.sampled import sampled


def samples(graph: Graph) -> Graph:
    """Return the graph with elementwise tensors computed at the positions that are read."""
    return exchanged(graph, sampled([*graph.roots, *graph.gradients]))
