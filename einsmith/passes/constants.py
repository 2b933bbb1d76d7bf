"""Split the computations that depend on constants alone off a graph, so that they run once instead of at each run.

before: scale[c] = weight[c]/sqrt(variance[c] + eps);  y[b,c,p] = x[b,c,p]*scale[c]
after:  at first, s[c] = weight[c]/sqrt(variance[c] + eps);  at each run, y[b,c,p] = x[b,c,p]*s[c]

These computations stay in the graph:

- results larger than the constants they depend on, which may take longer to read than to compute;
- slices of a constant and copies in another dimension order, because kernels read constants in place and pack them;
  those that a recurrence reads are split off, as its steps are programs that would pack them at each step;
- checks of indices, which each run performs;
- copies of a constant in another type where memory is to be spared (while other parameters are trained): weights that
  `es.nn.freeze` keeps in 16 bits are then not held in 32 bits as well.
"""

from __future__ import annotations

from collections.abc import Collection

from einsmith.ir.analysis.pointwise import pointwise_body
from einsmith.ir.nodes import (
    Apply,
    Compute,
    Graph,
    Leaf,
    Read,
    Recurrence,
    Tensor,
    leaf,
    nbytes,
    outermost_where,
    postorder,
)
from einsmith.ir.rebuild import replace
from einsmith.ir.views import is_view, storage

MOST_BYTES = 4096
"""Bytes of a result up to which it may be larger than its constants: a page, which costs next to nothing."""


def split_constants(graph: Graph, constants: Collection[Leaf], is_sparing: bool = False) -> tuple[Graph | None, Graph]:
    """Return (a graph that stores results that depend on constants alone into new leaves, or None; the graph that reads
    them).

    constants: leaves of the graph whose values stay from run to run; is_sparing: whether copies in another type stay.
    The new leaves are the first graph's updates, and inputs of both graphs.
    """
    read: dict[Tensor, frozenset[Leaf]] = {}  # of each tensor that depends on constants alone, the constants
    for t in postorder(graph.roots):
        if isinstance(t, Leaf):
            if t in constants:
                read[t] = frozenset((t,))
        elif all(a in read for a in t.args):
            read[t] = frozenset().union(*(read[a] for a in t.args))

    stepped = {a for t in postorder(graph.roots) if isinstance(t, Recurrence) for a in t.args}

    checks = {t for t, _ in graph.checks}

    def is_copy(t: Tensor) -> bool:
        """Return whether a tensor has the elements of a leaf; where memory is spared, also if in another type."""
        body = pointwise_body(t.template) if isinstance(t, Compute) else None
        while is_sparing and isinstance(body, Apply) and body.fn == "cast":
            body = body.args[0]
        if not isinstance(t, Compute) or not isinstance(body, Read):
            return False
        return isinstance(storage(t.args[0]), Leaf) or (is_sparing and is_copy(storage(t.args[0])))

    def pays(t: Tensor) -> bool:
        if t in checks or not isinstance(t, Compute):
            return False
        if len(t.template.dtypes) > 1 or not read[t] or is_view(t.template):
            return False
        if is_copy(t) and t not in stepped:
            return False
        return nbytes(t) <= max(MOST_BYTES, sum(map(nbytes, read[t])))

    stored = {t: leaf(t.shape, t.dtype) for t in outermost_where(graph.roots, lambda t: t in read and pays(t))}
    if not stored:
        return None, graph
    first = Graph(tuple(constants) + tuple(stored.values()), (), tuple((x, t) for t, x in stored.items()), ())
    then = replace(graph, lambda t: None, dict(stored))
    return first, Graph((*then.inputs, *stored.values()), then.outputs, then.updates, then.checks, then.gradients)
