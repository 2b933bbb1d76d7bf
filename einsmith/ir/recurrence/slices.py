"""Read members of recurrences through their slices."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from einsmith.ir.nodes import Compute, Piece, Read, has_read
from einsmith.ir.rebuild import map_reads, prune_args, substitute, types_of


def read_through(n: Compute, items: Container[Any]) -> Compute | None:
    """Return a tensor that reads members of a recurrence instead of their slices; None for scatters."""
    if n.template.is_scatter:
        return None
    args, moved = list(n.args), dict[int, Read]()
    for s, a in enumerate(n.args):
        part = a.template.parts[0] if isinstance(a, Compute) else None
        if isinstance(a, Compute) and isinstance(part, Piece) and part.extents == a.shape:
            if isinstance(part.body, Read) and a.args[part.body.slot] in items and not reads_data(part.body):
                args[s], moved[s] = a.args[part.body.slot], part.body

    def rule(e: Read) -> Read | None:
        own = dict(enumerate(e.index))
        return (
            Read(e.slot, tuple(substitute(i, own) for i in moved[e.slot].index), e.dtype) if e.slot in moved else None
        )

    return prune_args(map_reads(n.template, rule, types_of(args)), tuple(args))


def reads_data(e: Read) -> bool:
    """Return whether an index of a read is itself read from a tensor."""
    return any(map(has_read, e.index))
