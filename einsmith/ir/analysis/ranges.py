"""Compare intervals of integer arithmetic with the types that it is computed in."""

from __future__ import annotations

from collections.abc import Sequence

from einsmith.base.dtypes import DType
from einsmith.base.symbolic import to_whole
from einsmith.ir.analysis import intervals
from einsmith.ir.analysis.intervals import Interval
from einsmith.ir.nodes import Apply, Const, Expr, Read, postorder

Range = tuple[int, int]
"""A bounded interval, ends inclusive."""


def leaves(reach: Range, dtype: DType) -> bool:
    """Return whether an interval contains a value that an integer type cannot represent."""
    low, high = dtype.range
    return reach[0] < low or high < reach[1]


def wrapped(value: int, bits: int) -> int:
    """Return the signed integer of `bits` bits that equals `value` modulo 2^bits."""
    half = 1 << (bits - 1)
    return (value + half) % (2 * half) - half


def reach_of(fn: str, args: Sequence[Range]) -> Range:
    """Return the interval of an integer function of integers in these intervals.

    For an argument that is a condition, any interval will do.
    """
    a, b = args[0], args[-1]
    if fn == "where":
        return _assert_bounded(intervals.hull(args[1:]))
    if fn == "add":
        return a[0] + b[0], a[1] + b[1]
    if fn == "sub":
        return a[0] - b[1], a[1] - b[0]
    if fn == "neg":
        return -a[1], -a[0]
    if fn == "mul":
        return _assert_bounded(intervals.mul(a, b))
    if fn == "sign":
        return intervals.sign(a[0]), intervals.sign(a[1])
    if fn in ("min", "max"):
        pick = min if fn == "min" else max
        return pick(a[0], b[0]), pick(a[1], b[1])
    if fn in ("floordiv", "mod"):
        interval = (intervals.floordiv if fn == "floordiv" else intervals.mod)(a, b)
        most = max(map(abs, a if fn == "floordiv" else b))  # whatever the divisor's sign is
        return (-most if interval[0] is None else interval[0]), (most if interval[1] is None else interval[1])
    if fn == "abs":
        ends = [abs(a[0]), abs(a[1])]
        return (0 if a[0] <= 0 <= a[1] else min(ends)), max(ends)
    return a  # stop_gradient, floor


def _assert_bounded(x: Interval) -> Range:
    lo, hi = x
    assert lo is not None and hi is not None
    return lo, hi


_ARITHMETIC = ("add", "sub", "neg", "mul", "min", "max", "abs", "where", "stop_gradient", "cast")


def range_by_types(x: Expr) -> Range | None:
    """Return an interval of an integer expression that follows from the types of the elements that it reads.

    None where it depends on axes or floats, or where a part of it may leave its type.
    """
    known: dict[Expr, Range | None] = {}
    for e in postorder([x]):
        known[e] = reach = _range_by_type(e, known)
        if reach is not None and leaves(reach, e.dtype):
            known[e] = None
    return known[x]


def _range_by_type(e: Expr, known: dict[Expr, Range | None]) -> Range | None:
    if not e.dtype.is_int:
        return None
    if isinstance(e, Const):
        return to_whole(e.value), to_whole(e.value)
    if isinstance(e, Read):
        return e.dtype.range
    if not isinstance(e, Apply) or e.fn not in _ARITHMETIC:
        return None
    if e.fn == "cast":
        return (0, 1) if e.args[0].dtype.is_bool else known[e.args[0]]
    args = [(0, 1) if e.fn == "where" and n == 0 else known[a] for n, a in enumerate(e.args)]
    return None if None in args else reach_of(e.fn, args)  # type: ignore[arg-type]
