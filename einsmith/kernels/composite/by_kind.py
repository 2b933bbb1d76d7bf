"""A kernel some of whose pieces are reduced and some are not, as a kernel of each kind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

from einsmith.expr.nodes import Piece, Reduce, Scatter, Template
from einsmith.expr.rewrite.simplify import restricted
from einsmith.kernels.composite.parts import Composite
from einsmith.kernels.contraction.pattern import PATTERN as CONTRACTION
from einsmith.plan.footprint import touched
from einsmith.plan.kernel import Kernel, Stage
from einsmith.target.facts import Target


class ByKind(Composite):
    """A root some of whose pieces have a reduction and some not (the border of a strided backward pass, where nothing
    arrives): each kind is a kernel of its own, with its own pattern, into the same output. Or what all pieces have,
    where a contraction stores the others along with its sums, which goes through the output once, and after it each
    kind of what some of them have more of, along the edges. Not where it does so with all of them."""

    name = "by kind"

    def match(self, kernel: Kernel) -> bool:
        return len(_kinds(kernel)) > 1 and not CONTRACTION.match(kernel)

    def bound(self, kernel: Kernel, target: Target) -> float:
        """What no configurations' rank is below: every kind goes through its buffers."""
        (kernels,) = self.ways(kernel, target)
        return sum(target.seconds_for_bytes(n, n, target.cores) for n in (sum(touched(k)) for k in kernels))

    def ways(self, kernel: Kernel, target: Target) -> Sequence[Sequence[Kernel]]:
        return [_inner(kernel) or _kinds(kernel)]


@lru_cache(maxsize=1024)
def _kinds(kernel: Kernel) -> list[Kernel]:
    """The kernel's pieces with a reduction, and those without, as kernels."""
    root = kernel.root
    if root.is_scatter:
        return [kernel]
    parts = [[p for p in root.parts if isinstance(p.body, Reduce) is kind] for kind in (True, False)]
    return [_of_pieces(kernel, p) for p in parts] if all(parts) else [kernel]


@lru_cache(maxsize=1024)
def _inner(kernel: Kernel) -> list[Kernel] | None:
    """The points that all pieces have, as one kernel which a contraction takes; then the others, by kind. None where
    pieces have no such points, or no contraction takes them."""
    pieces = [p for p in kernel.root.parts if isinstance(p, Piece)]
    least = tuple(map(min, zip(*(p.extents for p in pieces), strict=True)))
    if not all(least) or len({p.step for p in pieces}) > 1 or all(p.extents == least for p in pieces):
        return None
    inner = _of_pieces(kernel, [restricted(p, (0,) * len(least), least) for p in pieces])
    edges = [edge for p in pieces for edge in _edges(p, least)]
    return [inner, *_kinds(_of_pieces(kernel, edges))] if CONTRACTION.match(inner) else None


def _edges(piece: Piece, inner: Sequence[int]) -> Iterator[Piece]:
    """The points of a piece beside its first `inner` ones along every axis."""
    extents = piece.extents
    for d, (least, n) in enumerate(zip(inner, extents, strict=True)):
        if n > least:
            first = (*(0 for _ in inner[:d]), least, *(0 for _ in inner[d + 1 :]))
            yield restricted(piece, first, (*inner[:d], n - least, *extents[d + 1 :]))


def _of_pieces(kernel: Kernel, parts: Sequence[Piece | Scatter]) -> Kernel:
    """The kernel with these pieces of its root."""
    first = kernel.stages[0]
    stage = Stage(Template(kernel.root.shape, kernel.root.params, tuple(parts)), first.args, first.outputs)
    return Kernel((stage, *kernel.stages[1:]), kernel.buffers, kernel.fixed)
