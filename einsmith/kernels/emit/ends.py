"""Between which points of an axis a guard leaves anything to do: they alone are walked.

`where(row[r] <= n and n < row[r+1], ..., 0)` leaves a row of a sparse matrix of all that are stored.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from math import prod
from typing import NamedTuple

from einsmith import dtypes as dt
from einsmith.expr.analysis.linear import Linear, linear
from einsmith.expr.nodes import Apply, Axis, Const, Expr, axes_of, has_read, reads
from einsmith.expr.rewrite.rebuild import operands
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

    def part(self, extents: Sequence[int]) -> float:
        """About what part of the axis is between them: between two ends that come from data as much as if these were
        those of neighbours, else half where there is an end."""
        ends = [x for x in (*self.low, *self.high) if axes_of(x) or has_read(x)]
        if any(map(has_read, self.low)) and any(map(has_read, self.high)):
            return 1 / max(2, prod(extents[a] for a in frozenset().union(*map(axes_of, ends))))
        return 0.5 if ends else 1.0

    def walked(self, em: VectorEmitter, first: Value | int, end: Value | int) -> tuple[Value, Value]:
        """From where to where points from `first` to `end` are between them, at what the other axes are bound to."""
        b = em.b
        em.mask = None
        lo, hi = (b.const(x) if isinstance(x, int) else x for x in (first, end))
        for x in self.low:
            lo = b.op("max", lo, b.cast(em.emit(x), "i64"))
        for x in self.high:
            hi = b.op("min", hi, b.cast(em.emit(x), "i64"))
        return lo, hi


def bounds_of(body: Expr, otherwise: float, axis: int, extents: Sequence[int], sizes: Sequence[int]) -> Bounds:
    """What the guards around a body say of an axis: `where`s, one inside the other, whose other side is a constant.

    extents: of all axes; sizes: of the buffers that reads, which are flat, are of.
    """
    low: list[Expr] = []
    high: list[Expr] = []
    for c in _conditions(body, otherwise, extents, sizes):
        for end, is_low in _ends(c, axis):
            (low if is_low else high).append(end)
    return Bounds(tuple(low), tuple(high))


def _conditions(body: Expr, otherwise: float, extents: Sequence[int], sizes: Sequence[int]) -> Iterator[Expr]:
    """Those of the guards that can be evaluated wherever the axes stand. Of a guard inside another one what it reads
    may be known to be there only where the other one holds."""
    outer = True
    while isinstance(body, Apply) and body.fn == "where":
        condition, inner, rest = body.args
        if not (isinstance(rest, Const) and rest.value == otherwise):
            return
        for c in operands(condition, "and"):
            if outer or all(_stays(x.index[0], extents, sizes[x.slot]) for x in reads(c) if x.index):
                yield c
        body, outer = inner, False


def _stays(at: Expr, extents: Sequence[int], size: int) -> bool:
    return bx.leaves(linear(at), extents, size) is False


def _ends(c: Expr, axis: int) -> Iterator[tuple[Expr, bool]]:
    """(end, whether it is a low one) that a comparison of integers is for an axis; none of other conditions."""
    if not isinstance(c, Apply) or c.fn not in ("lt", "le") or not c.args[0].dtype.is_int:
        return
    form = _form(c.args[1], axis) - _form(c.args[0], axis) - int(c.fn == "lt")
    rest = form.without(Axis(axis))
    if axis in bx.mentioned(rest):
        return
    # Elements of tensors may be anything, and differ from a place by more than their type holds.
    dtype = dt.i64 if any(map(has_read, rest.terms)) else dt.i32
    if form.coefficient(Axis(axis)) == 1:
        yield (rest * -1).expr(dtype), True
    elif form.coefficient(Axis(axis)) == -1:
        yield (rest + 1).expr(dtype), False


def _form(side: Expr, axis: int) -> Linear:
    """A side of a comparison; one of elements alone as a whole: their sums wrap in their type."""
    if has_read(side) and axis not in axes_of(side):
        return Linear(0, {side: 1})
    return linear(side)
