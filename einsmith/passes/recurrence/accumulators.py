"""Store members of loops in fewer slots than they have positions: totals in one, states in circular buffers.

before: recurrence over t = 0 .. 9 of S[t+1, i] = S[t, i] + f(t, i), S[0, i] = 0;  R[i] = S[10, i]
after:  S[0, i] = 0;  in each step S[0, i] = S[0, i] + f(t, i);  R[i] = S[0, i]

The gradient of a tensor that every step reads is such a total, if it is computed within the steps. A member of which
the next n steps read the values, and readers outside only those of the last steps, has n + 1 slots; its position p is
in slot p modulo n + 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from einsmith.ir.analysis.guarded import reads_under
from einsmith.ir.nodes import (
    Axis,
    Compute,
    Graph,
    Item,
    Piece,
    Recurrence,
    Template,
    postorder,
    reads,
)
from einsmith.ir.rebuild import map_reads, rebuild
from einsmith.ir.recurrence.define import distances, step_parts
from einsmith.ir.recurrence.pieces import moved_read, parts_at, shifted


class Slots(NamedTuple):
    """The slots of a member that is stored in fewer than it has positions: position p is in slot p modulo `number`.
    `first`: the first position that is read after the last step; those that are read do not wrap around."""

    number: int
    first: int

    @property
    def shift(self) -> int:
        """Return the slot of a position that is read after the last step, less the position."""
        return self.first % self.number - self.first


def find_positions_read(graph: Graph) -> dict[Recurrence, list[range]]:
    """Return, for each member of each recurrence, the positions that are read outside of the recurrence."""
    nodes = list(postorder(graph.roots))
    ranges = {n: [range(0)] * len(n.members) for n in nodes if isinstance(n, Recurrence)}
    for t in graph.roots:
        if isinstance(t, Item) and t.node in ranges:
            ranges[t.node][t.member] = range(t.shape[0])
    for n in nodes:
        for slot, a in enumerate(n.args):
            if isinstance(a, Item) and a.node in ranges:
                own, new = ranges[a.node], _find_positions(n, slot, a)
                known = own[a.member]
                if len(new):
                    ends = min(known.start, new.start), max(known.stop, new.stop)
                    own[a.member] = range(*ends) if len(known) else new
    return ranges


def _find_positions(n: Compute | Recurrence, slot: int, a: Item) -> range:
    """Return the positions at which a node may read a member of a recurrence."""
    whole = range(a.shape[0])
    if not isinstance(n, Compute):
        return whole
    ends: list[tuple[int, int]] = []
    for p in n.template.parts:
        if not isinstance(p, Piece):
            return whole
        for e, facts in reads_under(p):
            if e.slot == slot:
                low, high = facts.bounds(e.index[0])
                if low is None or high is None:
                    return whole
                ends.append((low, high))
    return range(min(x for x, _ in ends), max(x for _, x in ends) + 1) if ends else range(0)


def find_slots(node: Recurrence, j: int, reach: int, positions: range) -> Slots | None:
    """Return the slots of a circular buffer for a member of which the next `reach` steps read the values, and readers
    outside these positions; None if it is no shorter than the member, or readers would have to wrap around."""
    last = node.origins[j] + (0 if node.reverse else node.steps - 1)
    back = positions.stop - 1 - last if node.reverse else last - positions.start
    if len(positions) and not (
        back < node.steps and (positions.start >= last if node.reverse else positions.stop - 1 <= last)
    ):
        return None
    least = max(reach + 1, back + 1 if len(positions) else 1)
    fitting = (n for n in range(least, 4 * least) if positions.start % n + len(positions) <= n)
    count = next(fitting, node.results[j][1][0])
    return Slots(count, positions.start) if count < node.results[j][1][0] else None


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
    initial = [p for p in t.parts if p not in steps]
    parts = [shifted(p, at % slots) for at in range(first, stop) for p in parts_at(initial, at, 1)]
    return Template((slots, *t.shape[1:]), t.params, tuple(parts))


def read_slots(node: Compute, members: Mapping[Recurrence, Mapping[int, Slots]], memo: dict) -> Compute | None:
    """Return a reader of members that are stored in a few slots changed to read these; None for other tensors.
    `memo` maps the reader's arguments to their replacements."""
    shifts = {
        s: members[a.node][a.member].shift
        for s, a in enumerate(node.args)
        if isinstance(a, Item) and isinstance(a.node, Recurrence) and a.member in members[a.node]
    }
    if not shifts:
        return None

    args = tuple(rebuild(node.args, lambda n: None, memo))
    params = [(a.dtype, a.shape) for a in args]
    return Compute(
        map_reads(node.template, lambda e: moved_read(e, shifts[e.slot]) if e.slot in shifts else None, params), args
    )
