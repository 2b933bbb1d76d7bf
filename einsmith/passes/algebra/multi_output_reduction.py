"""Reductions that are results of one sweep become one node.

before: M[i] = max[k](X[i, k]);  V, K = argmax[k](X[i, k]), V being read by nothing
after:  M, K = argmax[k](X[i, k])

The forward pass of a pooling needs the greatest value, the backward pass its position: X is read once for both.
`lang.sweeps` says which reductions these are.
"""

from __future__ import annotations

from einsmith.expr.nodes import Graph, postorder
from einsmith.expr.rewrite.rebuild import exchanged
from einsmith.lang.sweeps import in_one_sweep


def multi_output_reduction(graph: Graph) -> Graph:
    """The graph with each such group of reductions as one."""
    nodes = list(postorder(graph.roots))
    return exchanged(graph, dict(zip(nodes, in_one_sweep(nodes), strict=True)))
