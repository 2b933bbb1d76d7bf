"""Between which points of an axis a guard leaves anything to do: they alone are walked.

`where(row[r] <= n and n < row[r+1], ..., 0)` leaves a row of a sparse matrix of all that are stored.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import prod
from typing import NamedTuple

from einsmith.expr.analysis.ends import end_of, guards_around
from einsmith.expr.analysis.linear import linear
from einsmith.expr.nodes import Expr, axes_of, has_read, reads
from einsmith.kernels.emit import boxes as bx
from einsmith.kernels.emit.vector import VectorEmitter
from einsmith.loops.nest import Value


class Bounds(NamedTuple):
    """Points of an axis outside of which a body does nothing: at least each of `low`, and below each of `high`, which
    are expressions of other axes and of data."""

    low: tuple[Expr, ...] = ()
    high: tuple[Expr, ...] = ()

    def without(self, axes: Collection[int | None]) -> Bounds:
        """Those that depend on none of these axes."""
        low, high = ([x for x in every if axes_of(x).isdisjoint(axes)] for every in self)
        return Bounds(tuple(low), tuple(high))

    def part(self, axis: int, extents: Sequence[int]) -> float:
        """About what part of the axis is between them: of two ends that have one distance all over, as much as that;
        between two ends that come from data as much as if these were those of neighbours, else half where there is an
        end."""
        ends = [x for x in (*self.low, *self.high) if axes_of(x) or has_read(x)]
        spans = (linear(y) - linear(x) for x in self.low for y in self.high)
        between = min((x.const for x in spans if not x.terms), default=None)
        if between is not None:
            return min(1.0, max(1, between) / max(1, extents[axis]))
        if any(map(has_read, self.low)) and any(map(has_read, self.high)):
            return 1 / max(2, prod(extents[a] for a in frozenset().union(*map(axes_of, ends))))
        return 0.5 if ends else 1.0

    def walked(self, em: VectorEmitter, first: Value | int, end: Value | int) -> tuple[Value, Value]:
        """From where to where points from `first` to `end` are between them, at what the other axes are bound to."""
        b = em.b
        em.mask = None
        lo, hi = b.index(first), b.index(end)
        for x in self.low:
            lo = b.op("max", lo, b.cast(em.emit(x), "i64"))
        for x in self.high:
            hi = b.op("min", hi, b.cast(em.emit(x), "i64"))
        return lo, hi


def bounds_of(body: Expr, otherwise: float, axis: int, extents: Sequence[int], sizes: Sequence[int]) -> Bounds:
    """What the guards around a body say of an axis, which does nothing where it is `otherwise`.

    extents: of all axes; sizes: of the buffers that reads, which are flat, are of.
    """
    found = [end_of(c, axis) for c, alone in guards_around(body, otherwise) if alone or _stays(c, extents, sizes)]
    ends = [x for x in found if x is not None]
    return Bounds(tuple(x.at for x in ends if x.low), tuple(x.at for x in ends if not x.low))


def _stays(c: Expr, extents: Sequence[int], sizes: Sequence[int]) -> bool:
    """Whether all that a condition reads is there wherever the axes stand."""
    return all(bx.leaves(linear(x.index[0]), extents, sizes[x.slot]) is False for x in reads(c) if x.index)
