"""Derive where expressions are zero from where their operands are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite
from typing import Generic, NamedTuple, TypeVar

from einsmith.ir.functions import FUNCTIONS
from einsmith.ir.nodes import Apply, Const, Expr, Read, postorder
from einsmith.ir.rebuild import operands

Region = TypeVar("Region")


class ZeroRegions(NamedTuple, Generic[Region]):
    """Regions of points where values are zero, as an analysis represents them.

    Attributes:
        everywhere: the region of all points.
        nowhere: the region without points.
        read: returns the region where a read is zero.
        fails: returns the region where a condition, one of those that `and` connects, does not hold.
        both: returns the points of all of some regions.
        either: returns points of any of some regions, as many as the analysis can represent.
        takes_finite: whether a zero times any number is zero, as it is not for infinities and NaN.
    """

    everywhere: Region
    nowhere: Region
    read: Callable[[Read], Region]
    fails: Callable[[Expr], Region]
    both: Callable[[Sequence[Region]], Region]
    either: Callable[[Sequence[Region]], Region]
    takes_finite: bool

    def of(self, body: Expr) -> Region:
        """Return the region where a body is zero."""
        known: dict[Expr, Region] = {}
        for e in postorder([body]):
            known[e] = self._derive(e, [known[a] for a in e.args])
        return known[body]

    def _derive(self, e: Expr, zero: Sequence[Region]) -> Region:
        if isinstance(e, Const):
            return self.everywhere if e.value == 0 else self.nowhere
        if isinstance(e, Read):
            return self.read(e)
        if not isinstance(e, Apply):
            return self.nowhere
        if e.fn == "where":
            left_out = [self.fails(c) for c in operands(e.args[0], "and")]
            return self.both([self.either([zero[1], *left_out]), zero[2]])
        if e.fn == "mul":
            is_finite = e.dtype.is_int or any(isinstance(x, Const) and isfinite(x.value) for x in e.args)
            return self.either(zero) if is_finite or self.takes_finite else self.both(zero)
        if e.fn in ("add", "sub", "min", "max"):
            return self.both(zero)
        if e.fn == "div" and isinstance(e.args[1], Const):
            return zero[0] if e.args[1].value else self.nowhere
        return zero[0] if FUNCTIONS[e.fn].keeps_zero else self.nowhere
