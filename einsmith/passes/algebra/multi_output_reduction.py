"""Merge reductions over the same values into one node with several results (multi-output reduction).

before: M[i] = max[k](X[i, k]);  V, K = argmax[k](X[i, k]), V being read by nothing
after:  M, K = argmax[k](X[i, k])

The forward pass of a pooling needs the greatest value, the backward pass its position: X is read once for both.
`lang.sweeps` defines which reductions can be merged.
"""

from __future__ import annotations

from einsmith.ir.nodes import Graph, postorder
from einsmith.ir.rebuild import exchanged
from einsmith.lang.sweeps import in_one_sweep


def multi_output_reduction(graph: Graph) -> Graph:
    """Return the graph with each group of mergeable reductions as one node."""
    nodes = list(postorder(graph.roots))
    return exchanged(graph, dict(zip(nodes, in_one_sweep(nodes), strict=True)))
