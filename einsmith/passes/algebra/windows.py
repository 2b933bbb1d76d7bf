"""Narrow reductions to the windows outside of which a condition excludes all terms (`ir.rewrite.narrow`).

before: s[q, k] = where(abs(q//8 - k//8) <= 1, t[q, k], -inf);  m[q] = max[k](s[q, k])
after:  s[y, x, a, b] = where(..., t[8*y + x, 8*(u + a) + b], -inf);  M[y, x] = max[a, b](s[y, x, a, b]);
        m[q] = M[q//8, q%8]                             u = min(max(y - 1, 0), ...), a < 3

Reductions that are differentiated are narrowed before their gradient is derived (`autodiff.reverse`).
"""

from __future__ import annotations

from einsmith.ir.nodes import Graph
from einsmith.ir.rebuild import exchange_nodes, exchanged
from einsmith.ir.rewrite.narrow import narrowed


def windows(graph: Graph) -> Graph:
    """Return the graph with reductions over windows."""
    roots = [*graph.roots, *graph.gradients]
    replaced = narrowed(roots)
    return exchanged(graph, exchange_nodes(roots, replaced)) if replaced else graph
