"""Separate exponentials of sums inside of sums (see ir.rewrite.separate_exponentials).

before: Y[i, c] = sum[j](exp(a[i, j] + b[j, c])*v[j, c])
after:  A[i, j] = exp(a[i, j]);  B[j, c] = exp(b[j, c])*v[j, c];  Y[i, c] = sum[j](A[i, j]*B[j, c])

Sums that are differentiated are separated before their gradient is derived (`autodiff.reverse`).
"""

from __future__ import annotations

from einsmith.ir.nodes import Graph
from einsmith.ir.rebuild import replace
from einsmith.ir.rewrite.separate_exponentials import separate


def separate_exponentials(graph: Graph) -> Graph:
    """Return the graph with the exponentials of sums separated where that pays, and is safe or permitted."""
    return replace(graph, separate)
