"""Propagate copies: a read of a member that only copies another member of its recurrence reads the original.

before: recurrence of p[t, b] = h[t, b];  h[t+1, b] = f(p[t, b]), h[0, b] = h0[b];  outside y[b] = sum[t](p[t, b])
after:  the same recurrence, outside y[b] = sum[t](h[t, b]); so that p is not stored

Formulas name the state before a step, as in p[t,b] = where(t > 0, h[t-1,b], h0[b]), to use it more than once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from einsmith.ir.analysis.linear import LinearForm, linear
from einsmith.ir.nodes import Axis, Compute, Const, Graph, Item, Piece, Read, Recurrence, Template, Tensor
from einsmith.ir.rebuild import map_reads, replace
from einsmith.ir.recurrence.define import step_parts
from einsmith.ir.recurrence.pieces import moved_read
from einsmith.ir.rewrite.simplify import canonical, simplify_template


def propagate_copies(graph: Graph) -> Graph:
    """Return the graph in which no read goes through a member that only copies another."""
    return replace(graph, forward_copies)


def forward_copies(n: Any) -> Compute | Recurrence | None:
    """Return a node that reads copies changed to read the members that they copy; None for other nodes."""
    """Return a node of equal value that reads no copies of members of other recurrences; None if it reads none now."""
    if not isinstance(n, (Compute, Recurrence)):
        return None
    originals = {s: x for s, a in enumerate(n.args) if isinstance(a, Item) and (x := _find_original(a)) is not None}
    if not originals:
        return None
    args = tuple(originals[s][0] if s in originals else a for s, a in enumerate(n.args))
    if isinstance(n, Compute):
        return canonical(_forward_reads(n.template, args, originals), args)
    members = tuple(simplify_template(_forward_reads(m, args, originals)) for m in n.members)
    return n.replaced(members=members, args=args)


def _forward_reads(t: Template, args: Sequence[Tensor], originals: dict[int, tuple[Item, int]]) -> Template:
    params = (*((a.dtype, a.shape) for a in args), *t.params[len(args) :])
    by = {s: offset for s, (_, offset) in originals.items()}
    return map_reads(t, lambda e: moved_read(e, by[e.slot]) if e.slot in by else None, params)


def _find_original(a: Item) -> tuple[Item, int] | None:
    """Return (the member that a member copies, the offset from the copy's positions to its); None if the member is not
    a copy."""
    node, j, by = a.node, a.member, 0
    while isinstance(node, Recurrence) and (step := _match_copy(node, j)) is not None:
        j, by = step[0], by + step[1]
    return (Item(node, j), by) if j != a.member else None


def _match_copy(node: Recurrence, j: int) -> tuple[int, int] | None:
    """Return (i, d) if member j copies member i from d positions further on at every element; else None."""
    m = node.members[j]
    parts = step_parts(node, j)
    if len(m.parts) != 1 or len(parts) != 1 or not isinstance(parts[0].body, Read):
        return None
    part, e = parts[0], parts[0].body
    assert isinstance(part, Piece) and isinstance(e, Read)
    i = e.slot - len(node.args)
    if i < 0 or i == j or part.extents != m.shape or node.results[i][1][1:] != m.shape[1:]:
        return None
    distance = linear(e.index[0]) - LinearForm(0, {Axis(0): 1})
    same_element = all(x is Axis(d) or (m.shape[d] == 1 and isinstance(x, Const)) for d, x in enumerate(e.index) if d)
    return (i, distance.const) if same_element and not distance.terms else None
