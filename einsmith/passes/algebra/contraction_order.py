"""Multiply the factors of sums of products in the order of the least work (see ir.rewrite.contraction_order).

before: Y[i, l] = sum[j, k](A[i, j]*B[j, k]*C[k, l])
after:  T[j, l] = sum[k](B[j, k]*C[k, l]);  Y[i, l] = sum[j](A[i, j]*T[j, l])
"""

from __future__ import annotations

from einsmith.ir.nodes import Graph
from einsmith.ir.rebuild import replace
from einsmith.ir.rewrite.contraction_order import order_contraction


def contraction_order(graph: Graph) -> Graph:
    """Return the graph with every sum of products computed in steps of the least work."""
    return replace(graph, order_contraction)
