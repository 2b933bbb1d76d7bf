"""The bytes of a kernel's buffers that it touches: of a long tensor of which one slice is read, that slice."""

from __future__ import annotations

from collections import defaultdict
from functools import lru_cache
from math import prod

from einsmith.expr.nodes import Axis, Expr, Piece, Read, below, postorder, size
from einsmith.plan.kernel import Kernel


@lru_cache(maxsize=4096)
def touched(kernel: Kernel) -> tuple[int, ...]:
    """Bytes of each buffer that are read or written, as whole slices: of a dimension, an index that is the same at
    every point takes one place, an axis as many as it has points, any other index all of them; a result's only piece
    is written as large as it is."""
    shapes = [b.shape for b in kernel.buffers]
    places: list[list[dict[Expr | None, int]]] = [[{} for _ in s] for s in shapes]  # of each dimension: None: from 0 on
    written: dict[int, int] = defaultdict(int)
    for stage in kernel.stages:
        parts = stage.template.parts
        for n in stage.outputs:
            if n is not None:
                first = parts[0]
                alone = len(parts) == 1 and isinstance(first, Piece) and set(first.step) <= {1}
                written[n] += prod(first.extents if alone else stage.template.shape)
        for part in parts:
            domain = part.domain
            for slot, index in _indices(part.bodies):
                kind, *where = stage.args[slot]
                if kind == "buffer":
                    for i, extent, found in zip(index, shapes[where[0]], places[where[0]], strict=True):
                        if not isinstance(i, int):
                            found[i] = 1
                        else:
                            found[None] = max(found.get(None, 0), extent if i < 0 else domain[i])
    out = []
    for n, b in enumerate(kernel.buffers):
        taken = [min(extent, sum(found.values())) for extent, found in zip(b.shape, places[n], strict=True)]
        out.append(min(prod(b.shape), max(prod(taken), written[n])) * b.dtype.itemsize)
    return tuple(out)


@lru_cache(maxsize=4096)
def _indices(bodies: tuple[Expr, ...]) -> tuple[tuple[int, tuple[int | Expr, ...]], ...]:
    """The slot of every read, and its indices: of an axis its number, -1 for what varies otherwise."""

    def kind(i: Expr) -> int | Expr:
        if isinstance(i, Axis):
            return i.position
        return -1 if any(isinstance(x, (Axis, Read)) for x in postorder([i])) else i

    found = ((e.slot, tuple(map(kind, e.index))) for e in below(bodies) if isinstance(e, Read))
    return tuple(dict.fromkeys(found))


@lru_cache(maxsize=1024)
def touched_bytes(kernel: Kernel, line: int) -> tuple[float, float]:
    """(bytes moved, footprint) when what is touched of each buffer is read or written once; pieces that lie between
    each other store to parts of lines, of `line` bytes, which come and go once for each of them."""
    written = {n for s in kernel.stages for n in s.outputs if n is not None}
    read = {where[0] for s in kernel.stages for kind, *where in s.args if kind == "buffer"}
    total = moved = 0.0
    for n, taken in enumerate(touched(kernel)):
        total += taken
        moved += taken * (n in read) + (_stored(kernel, n, taken, line) if n in written else 0.0)
    return moved, total


def _stored(kernel: Kernel, buffer: int, taken: int, line: int) -> float:
    """Bytes that come and go where a result is stored of whose buffer so many are touched."""
    to, out = kernel.buffers[buffer], 0.0
    for p in kernel.root.parts:
        if isinstance(p, Piece):
            step = min([s * t for s, t, n in zip(p.step, to.strides, p.extents, strict=True) if n > 1], default=1)
            each = to.dtype.itemsize if step == 1 else 2 * min(step * to.dtype.itemsize, line)  # fetched and written
            out += size(p.extents) * each
    return max(float(taken), out)
