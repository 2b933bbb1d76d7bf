"""Run linear recurrences in chunks of steps, as products (`ir.recurrence.chunks`).

before: S[t,k,v] = a[t]*S[t-1,k,v] + p[t,k]*u[t,v];  y[t,v] = sum[k](q[t,k]*S[t,k,v])
after:  P[n,k,v] = A[n-1]*P[n-1,k,v] + sum[i](D[n-1,i]*p[C*n-C+i,k]*u[C*n-C+i,v]);  y from P and products within chunks

Recurrences that are differentiated have their chunk form before their gradient is derived (`autodiff.reverse`).
"""

from __future__ import annotations

from einsmith.ir import labels
from einsmith.ir.nodes import Graph
from einsmith.ir.rebuild import exchange_nodes, exchanged
from einsmith.ir.recurrence.chunks.choice import choose_length
from einsmith.ir.recurrence.chunks.readers import ChunkSearch


def chunk_form(graph: Graph) -> Graph:
    """Return the graph with the chunk forms of linear recurrences that pay."""
    search = ChunkSearch(choose_length)
    while replaced := search.next_replacements([*graph.roots, *graph.gradients]):
        labels.carry(replaced)
        graph = exchanged(graph, exchange_nodes([*graph.roots, *graph.gradients], replaced))
    return graph
