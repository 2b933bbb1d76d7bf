"""Recognise templates with a time axis: every read is at the axis plus a constant, or does not depend on the axis.

P[t, b, n] = sum[i](x[t, b, i]*W[n, i]) has the time axis t, and so has D[n, i] = sum[t, b](g[t, b, n]*x[t, b, i]), a
total.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from einsmith.base import dtypes as dt
from einsmith.base.dtypes import DType
from einsmith.base.locks import cached_property
from einsmith.ir.analysis.linear import LinearForm, linear
from einsmith.ir.nodes import Axis, Const, Expr, Piece, Read, Reduce, Template, axes_of, postorder, size
from einsmith.ir.rebuild import with_args


@dataclass(frozen=True)
class Along:
    """How a template uses an axis: as the first axis of its output, or (`total`) as an axis of its sums.

    Attributes:
        total: whether the axis is summed.
        axes: the axis, per part.
        reads: per part, the distance d of each read at axis + d in dimension 0; other reads take the tensor as a whole.
        uses_position: per part, whether the position is used as a value.
    """

    total: bool
    axes: tuple[int, ...]
    reads: tuple[dict[Read, int], ...]
    uses_position: tuple[bool, ...]

    @cached_property
    def slots(self) -> dict[int, set[int]]:
        """Return the distances at which each slot is read along the axis; a slot that is read along it is never read as
        a whole."""
        distances: dict[int, set[int]] = {}
        for e, d in (x for reads in self.reads for x in reads.items()):
            distances.setdefault(e.slot, set()).add(d)
        return distances


def find_along(t: Template, extent: int) -> Along | None:
    """Return how a template uses a time axis of `extent` positions; None if it has none."""
    return t.memo(("along", extent), lambda t: _find_along(t, extent))


def _find_along(t: Template, extent: int) -> Along | None:
    if t.is_scatter or len(t.dtypes) != 1 or not extent:
        return None
    for total in (False, True):
        matches = [next(_match_piece(t, p, extent, total), None) for p in t.parts if isinstance(p, Piece)]
        parts = [x for x in matches if x is not None]
        if len(parts) < len(matches):
            continue
        axes, reads, uses_position = zip(*parts, strict=True)
        out = Along(total, axes, reads, uses_position)
        whole = {
            e.slot
            for p, (_, reads, _) in zip(t.parts, parts, strict=True)
            for e in postorder(p.bodies)
            if isinstance(e, Read) and e not in reads
        }
        if out.slots and not whole & set(out.slots):
            return out
    return None


def _match_piece(t: Template, p: Piece, extent: int, total: bool) -> Iterator[tuple[int, dict[Read, int], bool]]:
    """Yield (axis, reads along it, whether it is used as a value) for each axis that the piece may go along."""
    axes: Iterable[int] = ()
    if not total:
        if t.shape and (p.offset[0], p.step[0], p.extents[0]) == (0, 1, extent) and t.shape[0] == extent:
            axes = (0,)
    elif isinstance(p.body, Reduce) and p.body.combiner == "sum" and p.body.bodies[0].dtype.bits >= 32:
        axes = (len(p.extents) + k for k, n in enumerate(p.body.extents) if n == extent)
    for axis in axes:
        along_axis = _find_reads(p.bodies, axis, extent, t.params)
        if along_axis is not None and (along_axis[0] or not total):
            yield axis, *along_axis


def _find_reads(
    bodies: Iterable[Expr], axis: int, extent: int, params: tuple[tuple[DType, tuple[int, ...]], ...]
) -> tuple[dict[Read, int], bool] | None:
    """Return (distance d of each read at axis + d in dimension 0, whether the axis is used as a value); None if the
    axis occurs in other reads."""
    distances: dict[Read, int] = {}
    memo: dict[Expr, Expr] = {}  # expressions without the axis in dimension 0 of reads
    bodies = tuple(bodies)
    for e in postorder(bodies):
        new = with_args(e, tuple(memo[a] for a in e.args)) if e.args else e
        if isinstance(e, Read) and e.index:
            distance = linear(e.index[0]) - LinearForm(0, {Axis(axis): 1})
            d, inside = distance.const, axes_of(*new.args[1:])
            if not distance.terms and axis not in inside and 0 <= d <= params[e.slot][1][0] - extent:
                distances[e] = d
                new = Read(e.slot, (Const(d, dt.i32), *new.args[1:]), e.dtype)
        memo[e] = new
    remaining = [memo[b] for b in bodies]
    if any(axis in axes_of(*e.index) for e in postorder(remaining) if isinstance(e, Read)):
        return None
    return distances, axis in axes_of(*remaining)


def count_points(t: Template) -> int:
    """Return how many times the bodies of a template are evaluated."""
    return sum(size(p.domain) for p in t.parts)


def count_rows(t: Template, at: Along) -> int:
    """Return the number of rows of the largest part at one position of the axis: points of a total, otherwise output
    points without the column axes. Columns are the last axis; for a product, all output axes that its reads along the
    axis lack."""
    p, axis, reads = max(zip(t.parts, at.axes, at.reads, strict=True), key=lambda x: size(x[0].domain))
    assert isinstance(p, Piece)
    if at.total:
        assert isinstance(p.body, Reduce)
        return size(p.body.extents) // p.domain[axis]
    if not isinstance(p.body, Reduce):
        return size(p.extents[1:-1])
    moving = axes_of(*reads)
    return size(n for a, n in enumerate(p.extents) if a and a in moving)
