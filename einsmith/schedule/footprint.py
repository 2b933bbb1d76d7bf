"""Compute the bytes that a kernel touches of its buffers: of a tensor of which one slice is read, only that slice."""

from __future__ import annotations

from collections import defaultdict
from functools import lru_cache
from math import prod
from typing import NamedTuple

from einsmith.cost.facts import LINE
from einsmith.ir.nodes import Axis, Expr, Piece, Read, cached_postorder, has_read, postorder, size
from einsmith.schedule.kernel import Kernel


class _Gather(NamedTuple):
    """An index that is read from a tensor, and the axes that it depends on."""

    read: Expr
    axes: tuple[int, ...]


@lru_cache(maxsize=4096)
def bytes_by_buffer(kernel: Kernel) -> tuple[int, ...]:
    """Return the bytes of each buffer that are read or written, counted in whole slices.

    Along a dimension, an index that is the same at every point touches one position, an axis as many as it has points,
    an index that is read from a tensor a position, or a cache line, for each point of the axes that it depends on, any
    other index all positions. A result of a single piece is written in that piece's extents."""
    places: list[list[dict[Expr | None, int]]] = [[{} for _ in b.shape] for b in kernel.buffers]
    # by dimension; key None: from 0 on
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
                    b = kernel.buffers[where[0]]
                    for i, extent, stride, positions in zip(index, b.shape, b.strides, places[where[0]], strict=True):
                        if isinstance(i, int):
                            positions[None] = max(positions.get(None, 0), extent if i < 0 else domain[i])
                        elif isinstance(i, _Gather):
                            each = LINE // b.dtype.itemsize if stride == 1 else 1
                            positions[i.read] = max(positions.get(i.read, 0), each * prod(domain[a] for a in i.axes))
                        else:
                            positions[i] = 1
    out = []
    for n, b in enumerate(kernel.buffers):
        touched = [min(extent, sum(positions.values())) for extent, positions in zip(b.shape, places[n], strict=True)]
        out.append(min(prod(b.shape), max(prod(touched), written[n])) * b.dtype.itemsize)
    return tuple(out)


@lru_cache(maxsize=1024)
def gathered_buffers(kernel: Kernel) -> frozenset[int]:
    """Return the buffers that a kernel reads at an index that is read from a tensor."""
    return frozenset(
        ref[1]
        for stage in kernel.stages
        for part in stage.template.parts
        for slot, index in _indices(part.bodies)
        if (ref := stage.args[slot])[0] == "buffer" and any(isinstance(i, _Gather) for i in index)
    )


@lru_cache(maxsize=4096)
def _indices(bodies: tuple[Expr, ...]) -> tuple[tuple[int, tuple[int | _Gather | Expr, ...]], ...]:
    """Return (slot, indices) of every read; an index is an axis's number, an expression that is the same at every
    point, one that is read from a tensor, or -1 if it varies otherwise."""

    def kind(i: Expr) -> int | _Gather | Expr:
        if isinstance(i, Axis):
            return i.position
        axes = tuple(dict.fromkeys(x.position for x in postorder([i]) if isinstance(x, Axis)))
        if has_read(i):
            return _Gather(i, axes)
        return -1 if axes else i

    reads = ((e.slot, tuple(map(kind, e.index))) for e in cached_postorder(bodies) if isinstance(e, Read))
    return tuple(dict.fromkeys(reads))


@lru_cache(maxsize=1024)
def touched_bytes(kernel: Kernel, line: int) -> tuple[float, float]:
    """Return (bytes moved, footprint in bytes), if the touched part of each buffer is read or written once.

    Interleaved pieces store to parts of cache lines of `line` bytes, which are fetched and written once per piece."""
    written = {*kernel.outputs}
    read = {where[0] for s in kernel.stages for kind, *where in s.args if kind == "buffer"}
    total = moved = 0.0
    for n, touched in enumerate(bytes_by_buffer(kernel)):
        total += touched
        moved += touched * (n in read) + (_stored_bytes(kernel, n, touched, line) if n in written else 0.0)
    return moved, total


def _stored_bytes(kernel: Kernel, buffer: int, touched: int, line: int) -> float:
    """Return the bytes moved by storing a result, of whose buffer `touched` bytes are touched."""
    to, out = kernel.buffers[buffer], 0.0
    for p in kernel.root.parts:
        if isinstance(p, Piece):
            step = min([s * t for s, t, n in zip(p.step, to.strides, p.extents, strict=True) if n > 1], default=1)
            each = to.dtype.itemsize if step == 1 else 2 * min(step * to.dtype.itemsize, line)  # fetched and written
            out += size(p.extents) * each
    return max(float(touched), out)
