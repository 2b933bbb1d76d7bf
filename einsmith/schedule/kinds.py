"""Split a kernel by its pieces: reductions from pointwise pieces, or the common interior from the edges."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

from einsmith.ir.nodes import Piece, Reduce, Scatter, Template
from einsmith.ir.rewrite.simplify import restricted
from einsmith.schedule.kernel import Kernel, Stage


@lru_cache(maxsize=1024)
def kinds(kernel: Kernel) -> list[Kernel]:
    """Return a kernel of the pieces with a reduction and one of the others; the kernel itself if there is one kind."""
    root = kernel.root
    if root.is_scatter or len(root.parts) == 1:
        return [kernel]
    parts = [[p for p in root.parts if isinstance(p.body, Reduce) is kind] for kind in (True, False)]
    return [_of_pieces(kernel, p) for p in parts] if all(parts) else [kernel]


@lru_cache(maxsize=1024)
def inner(kernel: Kernel) -> list[Kernel] | None:
    """Return a kernel of the points that all pieces have, then the remaining points as kernels by `kinds`.

    None where the pieces have no points in common, or no others."""
    pieces = [p for p in kernel.root.parts if isinstance(p, Piece)]
    least = tuple(map(min, zip(*(p.extents for p in pieces), strict=True)))
    if not all(least) or len({p.step for p in pieces}) > 1 or all(p.extents == least for p in pieces):
        return None
    first = _of_pieces(kernel, [restricted(p, (0,) * len(least), least) for p in pieces])
    edges = [edge for p in pieces for edge in _edges(p, least)]
    return [first, *kinds(_of_pieces(kernel, edges))]


def _edges(piece: Piece, least: Sequence[int]) -> Iterator[Piece]:
    """Yield the points of a piece outside of its first `least` points along every axis, as disjoint pieces."""
    extents = piece.extents
    for d, (few, n) in enumerate(zip(least, extents, strict=True)):
        if n > few:
            first = (*(0 for _ in least[:d]), few, *(0 for _ in least[d + 1 :]))
            yield restricted(piece, first, (*least[:d], n - few, *extents[d + 1 :]))


def _of_pieces(kernel: Kernel, parts: Sequence[Piece | Scatter]) -> Kernel:
    """Return the kernel with only these pieces of its root."""
    first = kernel.stages[0]
    stage = Stage(Template(kernel.root.shape, kernel.root.params, tuple(parts)), first.args, first.outputs)
    return Kernel((stage, *kernel.stages[1:]), kernel.buffers, kernel.loop_invariant)
