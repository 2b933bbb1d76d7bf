"""Say of each recurrence of a graph how its steps are taken, and why."""

from __future__ import annotations

from collections.abc import Sequence

from einsmith.ir.nodes import Graph, Recurrence, postorder
from einsmith.ir.recurrence.chunks.choice import choose_length
from einsmith.ir.recurrence.chunks.chunk_form import Output
from einsmith.ir.recurrence.chunks.linear_recurrence import LinearRecurrence
from einsmith.ir.recurrence.chunks.readers import ChunkSearch


def report_recurrences(graph: Graph, is_replaced: bool) -> list[str]:
    """Return a line for each recurrence of a graph before its passes, but those of derivatives.

    is_replaced: whether a pass has replaced recurrences of the graph by their chunk forms; it does not where the number
    of steps is that of a run.
    """
    nodes = [n for n in postorder([*graph.roots, *graph.gradients]) if isinstance(n, Recurrence)]
    if not nodes:
        return []
    lengths: dict[Recurrence, int] = {}

    def noted(linear: LinearRecurrence, outputs: Sequence[Output]) -> int:
        lengths[linear.node] = choose_length(linear, outputs)
        return lengths[linear.node]

    search = ChunkSearch(noted)
    search.replace_all([*graph.roots, *graph.gradients])
    lines = []
    for n in nodes:
        chunk, length = n.options.chunk, lengths.get(n)
        if chunk > 1:
            lines.append(f"recurrence of {n.steps} chunks: {chunk} steps at a time, as products")
            continue
        if chunk == 1:
            continue
        how = "one after the other"
        if n in search.reasons:
            how += f": {search.reasons[n]}"
        elif length == 1:
            how += ", which is predicted to take less than chunks"
        elif length is not None:
            how = f"{length} at a time, as products" if is_replaced else how + ": their number is that of a run"
        lines.append(f"recurrence of {n.steps} steps: {how}")
    return lines
