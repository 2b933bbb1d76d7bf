"""Compute with intervals of integers, the ends inclusive; None: unbounded."""

from __future__ import annotations

from collections.abc import Sequence

from einsmith.base.symbolic import to_whole

Interval = tuple[int | None, int | None]


def meet(x: Interval, y: Interval) -> Interval:
    """Return the intersection of two intervals."""
    lo = x[0] if y[0] is None or (x[0] is not None and x[0] >= y[0]) else y[0]
    hi = x[1] if y[1] is None or (x[1] is not None and x[1] <= y[1]) else y[1]
    return lo, hi


def hull(parts: Sequence[Interval]) -> Interval:
    """Return the least interval that contains all parts; empty parts (lo > hi) are ignored if some part is not
    empty."""
    full = [p for p in parts if p[0] is None or p[1] is None or p[0] <= p[1]] or list(parts)
    lows, highs = [p[0] for p in full], [p[1] for p in full]
    lo = None if None in lows else min(x for x in lows if x is not None)
    return lo, None if None in highs else max(x for x in highs if x is not None)


def scale(x: Interval, k: int) -> Interval:
    """Return the interval of k*x for k != 0."""
    ends = tuple(None if v is None else v * k for v in x)
    return (ends[0], ends[1]) if k > 0 else (ends[1], ends[0])


def sign(x: int) -> int:
    """Return the sign of an integer: -1, 0 or 1."""
    return (x > 0) - (x < 0)


def mul(x: Interval, y: Interval) -> Interval:
    """Return the interval of the products of members of two intervals."""
    infinite = (float("-inf"), float("inf"))
    xs, ys = ([n if v is None else v for v, n in zip(z, infinite, strict=True)] for z in (x, y))
    corners = [0 if 0 in (a, b) else a * b for a in xs for b in ys]
    lo, hi = min(corners), max(corners)
    return (None if lo in infinite else to_whole(lo)), (None if hi in infinite else to_whole(hi))


def floordiv(x: Interval, y: Interval) -> Interval:
    """Return an interval of the quotients x // y; unbounded unless the sign of y is known and nonzero."""
    if y[1] is not None and y[1] < 0:
        x, y = scale(x, -1), scale(y, -1)
    if y[0] is None or y[0] <= 0 or (y[1] is not None and y[1] < y[0]):  # empty where guards contradict each other
        return None, None

    def quotients(a: int) -> tuple[int, int]:
        return a // y[0], (a // y[1] if y[1] is not None else -1 if a < 0 else 0)  # type: ignore[operator]

    return (None if x[0] is None else min(quotients(x[0]))), (None if x[1] is None else max(quotients(x[1])))


def mod(x: Interval, y: Interval) -> Interval:
    """Return an interval of the remainders x % y; unbounded unless the sign of y is known and nonzero."""
    if y[1] is not None and y[1] < 0:
        return scale(mod(scale(x, -1), scale(y, -1)), -1)
    if y[0] is None or y[0] <= 0:
        return None, None
    if x[0] is not None and x[1] is not None:
        if 0 <= x[0] and x[1] < y[0]:
            return x
        if y[0] == y[1] and x[0] // y[0] == x[1] // y[0]:
            return x[0] % y[0], x[1] % y[0]
    high = None if y[1] is None else y[1] - 1
    if x[0] is not None and x[0] >= 0 and x[1] is not None:
        high = x[1] if high is None else min(high, x[1])
    return 0, high


def of_function(fn: str, a: Interval, b: Interval | None = None) -> Interval | None:
    """Return the interval of a function of integers from those of its arguments; None where it is not known."""
    if fn == "stop_gradient":
        return a
    if fn == "abs":
        return hull([meet(a, (0, None)), meet(scale(a, -1), (0, None))])
    if fn == "sign":
        return (-1 if a[0] is None else sign(a[0])), (1 if a[1] is None else sign(a[1]))
    if b is None:
        return None
    if fn in ("min", "max"):  # the least end of min is either's, its greatest end is bounded by both
        both, one = hull([a, b]), meet(a, b)
        return (both[0], one[1]) if fn == "min" else (one[0], both[1])
    known = {"floordiv": floordiv, "mod": mod, "mul": mul}.get(fn)
    return None if known is None else known(a, b)
