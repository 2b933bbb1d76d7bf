"""The bytes of a kernel's buffers that it touches: of a long tensor of which one slice is read, that slice."""

from __future__ import annotations

from collections import defaultdict
from functools import lru_cache
from math import prod

from einsmith.expr.kernel import Kernel
from einsmith.expr.nodes import Expr, Piece, Read, postorder, reads
from einsmith.passes.guards import axes_of


@lru_cache(maxsize=4096)
def touched(kernel: Kernel) -> tuple[int, ...]:
    """Bytes of each buffer that are read or written, as whole slices: an index that is the same at every point takes
    one place of its dimension, any other one all of them; a result's only piece is written as large as it is."""
    shapes = [b.shape for b in kernel.buffers]
    places: list[list[set[Expr] | None]] = [[set() for _ in s] for s in shapes]  # of each dimension; None: all
    stored: dict[int, int] = defaultdict(int)
    for stage in kernel.stages:
        for n in stage.outputs:
            if n is not None:
                first = stage.template.parts[0]
                alone = len(stage.template.parts) == 1 and isinstance(first, Piece) and set(first.step) <= {1}
                stored[n] += prod(first.extents if alone else shapes[n])
        for e in postorder([b for p in stage.template.parts for b in p.bodies]):
            if isinstance(e, Read) and stage.args[e.slot][0] == "buffer":
                _add(places[stage.args[e.slot][1]], e)
    out = []
    for n, b in enumerate(kernel.buffers):
        taken = (size if found is None else len(found) for size, found in zip(b.shape, places[n], strict=True))
        out.append(min(prod(b.shape), max(prod(taken), stored[n])) * b.dtype.itemsize)
    return tuple(out)


def _add(places: list[set[Expr] | None], e: Read) -> None:
    """Notes what a read takes of each dimension."""
    for d, i in enumerate(e.index):
        found = places[d]
        if axes_of(i) or reads(i):
            places[d] = None
        elif found is not None:
            found.add(i)
