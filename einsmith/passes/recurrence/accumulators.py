"""Store a total that a loop accumulates in a single slot instead of one slot per step.

before: recurrence over t = 0 .. 9 of S[t+1, i] = S[t, i] + f(t, i), S[0, i] = 0;  R[i] = S[10, i]
after:  S[0, i] = 0;  in each step S[0, i] = S[0, i] + f(t, i);  R[i] = S[0, i]

The gradient of a tensor that every step reads is such a total, if it is computed within the steps.
"""

from __future__ import annotations

from collections.abc import Mapping

from einsmith.ir.nodes import (
    Axis,
    Compute,
    Const,
    Graph,
    Item,
    Piece,
    Read,
    Recurrence,
    Template,
    postorder,
    reads,
)
from einsmith.ir.rebuild import map_bodies, rebuild
from einsmith.ir.recurrence.define import distances, step_parts
from einsmith.ir.recurrence.drafts import clipped, shifted


def find_totals(graph: Graph) -> dict[Recurrence, frozenset[int]]:
    """Return the members of each recurrence that can be stored in one slot: within the recurrence only the next step of
    the member reads them, at the same element; outside of it they are read only after the last step."""
    nodes = list(postorder(graph.roots))
    read_whole = {t for t in graph.roots if isinstance(t, Item)}  # members that are read as a whole
    for n in nodes:
        for slot, a in enumerate(n.args):
            if isinstance(a, Item) and isinstance(a.node, Recurrence):
                at = _last_position(a.node, a.member)
                if not isinstance(n, Compute) or any(
                    not isinstance(e.index[0], Const) or e.index[0].value != at
                    for p in n.template.parts
                    for b in p.bodies
                    for e in reads(b)
                    if e.slot == slot
                ):
                    read_whole.add(a)
    return {
        n: frozenset(j for j in range(len(n.members)) if Item(n, j) not in read_whole and _is_total(n, j))
        for n in nodes
        if isinstance(n, Recurrence)
    }


def _last_position(node: Recurrence, j: int) -> int:
    """Return the position of the last step."""
    return node.origins[j] if node.reverse else node.origins[j] + node.steps - 1


def _is_total(node: Recurrence, j: int) -> bool:
    """Return whether, within its recurrence, only the next step of member j reads the member, at the same element."""
    slot = len(node.args) + j
    if node.results[j][1][0] != node.steps + 1 or node.origins[j] != (0 if node.reverse else 1):
        return False
    is_read = False
    for i, m in enumerate(node.members):
        for p in m.parts:
            assert isinstance(p, Piece)
            for e in {e for b in p.bodies for e in reads(b) if e.slot == slot}:
                if i != j or p.step != (1,) * len(p.step) or distances(node, j).get(e, ())[1:] != (1, 1):
                    return False
                for d, (x, n) in enumerate(zip(e.index[1:], p.extents[1:], strict=True), start=1):
                    if (n > 1 and x is not Axis(d)) or p.offset[d]:
                        return False
                is_read = True
    return is_read and all(p.extents[1:] == m.shape[1:] for m in (node.members[j],) for p in step_parts(node, j))


def start_of_total(node: Recurrence, j: int) -> Template:
    """Return a total before the first step, in its single slot."""
    t = node.members[j]
    first = node.steps if node.reverse else 0
    parts = [shifted(q, -first) for p in t.parts if isinstance(p, Piece) for q in clipped(p, first, first + 1)]
    return Template((1, *t.shape[1:]), t.params, tuple(parts))


def read_totals(node: Compute, totals: Mapping[Recurrence, frozenset[int]], memo: dict) -> Compute | None:
    """Return a reader of totals changed to read their single slot; None for other tensors. `memo` maps its arguments to
    their replacements."""
    slots = {
        s
        for s, a in enumerate(node.args)
        if isinstance(a, Item) and isinstance(a.node, Recurrence) and a.member in totals[a.node]
    }
    if not slots:
        return None

    def rule(e):
        if isinstance(e, Read) and e.slot in slots:
            return Read(e.slot, (Const(0, e.index[0].dtype), *e.index[1:]), e.dtype)
        return None

    args = tuple(rebuild(node.args, lambda n: None, memo))
    return Compute(map_bodies(node.template, lambda b: rebuild([b], rule)[0], [(a.dtype, a.shape) for a in args]), args)
