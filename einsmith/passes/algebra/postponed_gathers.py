"""Postpone gathers until after the sums of what they gather (see ir.rewrite.postponed_gathers).

before: Y[e, k] = sum[d](x[src[e], d]*W[d, k])
after:  T[n, k] = sum[d](x[n, d]*W[d, k]);  Y[e, k] = T[src[e], k]

Sums that are differentiated are rewritten before their gradient is derived (`autodiff.reverse`).
"""

from __future__ import annotations

from einsmith.ir.nodes import Graph
from einsmith.ir.rebuild import exchange_nodes, exchanged
from einsmith.ir.rewrite.postponed_gathers import postponed


def postponed_gathers(graph: Graph) -> Graph:
    """Return the graph with sums that are computed once per row of what they gather."""
    roots = [*graph.roots, *graph.gradients]
    replaced = postponed(roots)
    return exchanged(graph, exchange_nodes(roots, replaced)) if replaced else graph
