"""Decide whether a condition may hold somewhere in a box, from the ends of its parts, now or in generated code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from einsmith.base import dtypes as dt
from einsmith.codegen.loopnest.nest import Builder
from einsmith.ir.analysis.linear import linear
from einsmith.ir.nodes import Apply, Axis, Const, Expr, Read


class _UnknownError(Exception):
    """A condition that is not decided from the ends of its parts."""


Ends = tuple[Any, Any]
"""The least and the greatest value of an integer expression in a box."""


class BoxCondition:
    """Decides whether an activity may hold somewhere in a box, from the ends of its axes.

    Args:
        ends: the ends of each axis, as ints or as values of a program.
        read: the ends of a read in the box; raises KeyError where they are unknown.
        builder: the program that decides; None: the ends are ints.
    """

    def __init__(self, ends: Sequence[Ends], read: Callable[[Read, BoxCondition], Ends], builder: Builder | None):
        self.axis_ends, self.read, self.builder = ends, read, builder

    def _apply(self, fn: str, a: Any, b: Any) -> Any:
        if self.builder is not None:
            return self.builder.op(fn, a, b)
        return _INTEGER[fn](a, b)

    def ends(self, e: Expr) -> Ends:
        """Return the ends of an integer expression. Raises _UnknownError."""
        form = linear(e)
        low, high = (form.const, form.const) if self.builder is None else (self.builder.const(form.const),) * 2
        for atom, c in form.terms.items():
            a, b = self._atom(atom)
            a, b = (a, b) if c > 0 else (b, a)
            low, high = (self._apply("add", x, self._apply("mul", y, c)) for x, y in ((low, a), (high, b)))
        return low, high

    def _atom(self, e: Expr) -> Ends:
        if isinstance(e, Axis):
            return self.axis_ends[e.position]
        if isinstance(e, Read):
            try:
                return self.read(e, self)
            except KeyError:
                raise _UnknownError from None
        if isinstance(e, Apply) and e.fn in ("min", "max"):
            a, b = map(self.ends, e.args)
            return self._apply(e.fn, a[0], b[0]), self._apply(e.fn, a[1], b[1])
        if not isinstance(e, Apply) or e.fn not in ("floordiv", "mod"):
            raise _UnknownError
        divisor = e.args[1]
        if not isinstance(divisor, Const) or divisor.value <= 0:
            raise _UnknownError
        k = int(divisor.value)
        a, b = self.ends(e.args[0])
        first, last = self._apply("floordiv", a, k), self._apply("floordiv", b, k)
        if e.fn == "floordiv":
            return first, last
        return self._select(first, last, self._apply("mod", a, k), 0), self._select(
            first, last, self._apply("mod", b, k), k - 1
        )

    def _select(self, a: Any, b: Any, same: Any, other: int) -> Any:
        """Return `same` if a equals b, else `other`."""
        if self.builder is None:
            return same if a == b else other
        return self.builder.select(self.builder.op("eq", a, b), same, self.builder.const(other))

    def may_hold(self, c: Expr, truth: bool = True) -> Any:
        """Return whether a condition (if not `truth`, its negation) may hold somewhere in the box: a bool, or a value
        of the program."""
        try:
            return self._may_hold(c, truth)
        except _UnknownError:
            return self._bool(True)

    def _bool(self, x: bool) -> Any:
        return x if self.builder is None else self.builder.const(x, "i1")

    def _may_hold(self, c: Expr, truth: bool) -> Any:
        if isinstance(c, Const):
            return self._bool(bool(c.value) == truth)
        if not isinstance(c, Apply):
            raise _UnknownError
        if c.fn == "not":
            return self._may_hold(c.args[0], not truth)
        if c.fn in ("and", "or"):
            parts = [self.may_hold(a, truth) for a in c.args]
            return self._apply("and" if (c.fn == "and") == truth else "or", *parts)
        if c.fn not in ("lt", "le", "eq", "ne") or not c.args[0].dtype.is_int:
            raise _UnknownError
        a, b = c.args
        if c.fn in ("eq", "ne"):
            if (c.fn == "eq") != truth:
                raise _UnknownError
            (low_a, high_a), (low_b, high_b) = self.ends(a), self.ends(b)
            return self._apply("and", self._apply("le", low_a, high_b), self._apply("le", low_b, high_a))
        fn = c.fn if truth else {"lt": "le", "le": "lt"}[c.fn]
        a, b = (a, b) if truth else (b, a)
        form = linear(b) - linear(a)
        most = self.ends(form.expr(dt.i64))[1]
        return self._apply("le", int(fn == "lt"), most)


_INTEGER: dict[str, Callable[[int, int], Any]] = {
    "add": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
    "min": min,
    "max": max,
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "le": lambda a, b: a <= b,
    "and": lambda a, b: a and b,
    "or": lambda a, b: a or b,
}
