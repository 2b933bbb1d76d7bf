"""The bytes of a kernel's buffers that it touches: of a long tensor of which one slice is read, that slice."""

from __future__ import annotations

from collections import defaultdict
from functools import lru_cache
from math import prod

from einsmith.expr.kernel import Kernel
from einsmith.expr.nodes import Axis, Expr, Piece, Read, postorder


@lru_cache(maxsize=4096)
def touched(kernel: Kernel) -> tuple[int, ...]:
    """Bytes of each buffer that are read or written, as whole slices: of a dimension, an index that is the same at
    every point takes one place, an axis as many as it has points, any other index all of them; a result's only piece
    is written as large as it is."""
    shapes = [b.shape for b in kernel.buffers]
    places: list[list[dict[Expr | None, int]]] = [[{} for _ in s] for s in shapes]  # of each dimension: None: from 0 on
    stored: dict[int, int] = defaultdict(int)
    for stage in kernel.stages:
        parts = stage.template.parts
        for n in stage.outputs:
            if n is not None:
                first = parts[0]
                alone = len(parts) == 1 and isinstance(first, Piece) and set(first.step) <= {1}
                stored[n] += prod(first.extents if alone else stage.template.shape)
        for part in parts:
            for e in postorder(part.bodies):
                if isinstance(e, Read) and stage.args[e.slot][0] == "buffer":
                    n = stage.args[e.slot][1]
                    for i, size, found in zip(e.index, shapes[n], places[n], strict=True):
                        _add(found, i, size, part.domain)
    out = []
    for n, b in enumerate(kernel.buffers):
        taken = (min(size, sum(found.values())) for size, found in zip(b.shape, places[n], strict=True))
        out.append(min(prod(b.shape), max(prod(taken), stored[n])) * b.dtype.itemsize)
    return tuple(out)


def _add(found: dict[Expr | None, int], index: Expr, size: int, domain: tuple[int, ...]) -> None:
    """Notes what an index takes of a dimension of that size."""
    if isinstance(index, Axis):
        found[None] = max(found.get(None, 0), domain[index.position])
    elif any(isinstance(x, (Axis, Read)) for x in postorder([index])):
        found[None] = size
    else:
        found[index] = 1
