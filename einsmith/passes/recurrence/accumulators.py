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


def count_positions_read(graph: Graph) -> dict[Recurrence, list[int]]:
    """Return, for each member of each recurrence, of how many last steps the values are read outside of the recurrence;
    of all of them if it is read at positions that are not constant."""
    nodes = list(postorder(graph.roots))
    counts = {n: [0] * len(n.members) for n in nodes if isinstance(n, Recurrence)}
    for t in graph.roots:
        if isinstance(t, Item) and t.node in counts:
            counts[t.node][t.member] = t.shape[0]
    for n in nodes:
        for slot, a in enumerate(n.args):
            if isinstance(a, Item) and a.node in counts:
                count = _count_positions(n, slot, a) if isinstance(n, Compute) else a.shape[0]
                counts[a.node][a.member] = max(counts[a.node][a.member], count)
    return counts


def _count_positions(n: Compute, slot: int, a: Item) -> int:
    """Return of how many last steps a reader of a member reads the values."""
    node, most = a.node, 0
    last = node.origins[a.member] + (0 if node.reverse else node.steps - 1)
    for e in (e for p in n.template.parts for b in p.bodies for e in reads(b) if e.slot == slot):
        back = (e.index[0].value - last) * (1 if node.reverse else -1) if isinstance(e.index[0], Const) else -1
        most = max(most, back + 1 if 0 <= back < node.steps else a.shape[0])
    return most


def is_total(node: Recurrence, j: int) -> bool:
    """Return whether member j can be stored in one slot if it is read outside after the last step at most: within its
    recurrence, only the next step of the member reads it, at the same element."""
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


def initial_slots(node: Recurrence, j: int, slots: int) -> Template:
    """Return a member before the first step, in its `slots` slots: at position p modulo them each of its last slots-1
    positions (at least one) before the first step."""
    t = node.members[j]
    n = max(slots - 1, 1)
    first = node.origins[j] + node.steps if node.reverse else max(node.origins[j] - n, 0)
    stop = min(first + n, t.shape[0]) if node.reverse else node.origins[j]
    steps = step_parts(node, j)
    parts = [
        shifted(q, at % slots - at)
        for at in range(first, stop)
        for p in t.parts
        if isinstance(p, Piece) and p not in steps
        for q in clipped(p, at, at + 1)
    ]
    return Template((slots, *t.shape[1:]), t.params, tuple(parts))


def read_slots(node: Compute, members: Mapping[Recurrence, Mapping[int, int]], memo: dict) -> Compute | None:
    """Return a reader of members that are stored in a few slots changed to read these; None for other tensors.
    `members`: the number of slots of each such member; `memo` maps the reader's arguments to their replacements."""
    slots = {
        s: members[a.node][a.member]
        for s, a in enumerate(node.args)
        if isinstance(a, Item) and isinstance(a.node, Recurrence) and a.member in members[a.node]
    }
    if not slots:
        return None

    def rule(e):
        if isinstance(e, Read) and e.slot in slots:
            at = e.index[0]
            assert isinstance(at, Const)
            return Read(e.slot, (Const(at.value % slots[e.slot], at.dtype), *e.index[1:]), e.dtype)
        return None

    args = tuple(rebuild(node.args, lambda n: None, memo))
    return Compute(map_bodies(node.template, lambda b: rebuild([b], rule)[0], [(a.dtype, a.shape) for a in args]), args)
