"""Put the pieces of a formula's result together."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from einsmith.frontends.onnx.writer.onnx_graph import GraphWriter
from einsmith.ir.nodes import Piece, Template


def assemble(graph: GraphWriter, t: Template, n: int, boxes: Sequence[tuple[Piece, list[str]]]) -> str:
    """Put result n of the pieces together and return its name."""
    parts = [(p, names[n]) for p, names in boxes if prod(p.extents)]
    if not parts:
        value = graph.number(0, t.dtypes[n])
        return graph.node("Expand", value, graph.ints(t.shape, "shape"))
    joined = _concatenate(graph, parts) if all(s == 1 for p, _ in parts for s in p.step) else None
    return joined or _interleave(graph, t, parts)


def _concatenate(graph: GraphWriter, parts: Sequence[tuple[Piece, str]]) -> str | None:
    """Concatenate pieces that slabs of the output divide; None where they do not."""
    if len(parts) == 1:
        return parts[0][1]
    for d in range(len(parts[0][0].extents)):
        slabs: list[list[tuple[Piece, str]]] = []
        end = -1
        for p, name in sorted(parts, key=lambda x: x[0].offset[d]):
            if not slabs or p.offset[d] >= end:
                slabs.append([])
            slabs[-1].append((p, name))
            end = max(end, p.offset[d] + p.extents[d])
        if len(slabs) > 1:
            names = [_concatenate(graph, s) for s in slabs]
            return None if None in names else graph.node("Concat", *map(str, names), axis=d)
    return None


def _interleave(graph: GraphWriter, t: Template, parts: Sequence[tuple[Piece, str]]) -> str:
    """Put pieces together by a table: each element's place in the pieces, one after another."""
    place = np.zeros(t.shape, np.int64)
    start, flat = 0, []
    for p, name in parts:
        box = tuple(slice(o, o + s * (n - 1) + 1, s) for o, s, n in zip(p.offset, p.step, p.extents, strict=True))
        place[box] = start + np.arange(prod(p.extents)).reshape(p.extents)
        start += prod(p.extents)
        flat.append(graph.node("Reshape", name, graph.ints([-1], "shape")))
    whole = graph.node("Concat", *flat, axis=0) if len(flat) > 1 else flat[0]
    return graph.node("Gather", whole, graph.constant(place, "positions"), axis=0)
