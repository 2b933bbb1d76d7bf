"""Integers of axes: quotients, remainders, multiples and extremes inside each other, with the interval of their values.

Divisors and factors are of both signs, literals or parameters. Python's own integers say how far they go.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tests.fuzz.writer import Writer

DIVISORS = (2, -2, 3, -3, 5, -1, -4, 16, -7, -16)
FACTORS = (1, -1, 2, -2, 3, -3)
WIDE = 1 << 20
"""Values beyond it are not made larger: sums of a few such integers still fit int32."""


class Place(NamedTuple):
    """The text of an integer, its least and its greatest value, or what lies below and above."""

    text: str
    low: int
    high: int

    @property
    def span(self) -> int:
        return self.high - self.low + 1

    def moved(self, by: int) -> Place:
        if not by:
            return self
        return Place(f"{self.text} {'+' if by > 0 else '-'} {abs(by)}", self.low + by, self.high + by)


def place(w: Writer, scope: Sequence[str], most: int = 3) -> Place:
    """An integer of some of these axes, of at most so many operations around a sum of two."""
    out = _term(w, scope)
    if w.choose(2):
        out = _sum(out, _term(w, scope), w.pick("+-"))
    for _ in range(w.choose(most + 1)):
        out = _around(w, out, scope)
    return out


def window(w: Writer, at: str, tap: str, stride: int, dilation: int, padding: int) -> str:
    """Where a window reads: `stride*at + dilation*tap - padding`, or the same places in the other order of the axis or
    of its taps."""
    first, move = -padding, [(stride, at), (dilation, tap)]
    for n, once in enumerate((10, 8)):
        if w.chance(once):
            factor, axis = move[n]
            first, move[n] = first + factor * (w.axes[axis] - 1), (-factor, axis)
    text = " + ".join(axis if factor == 1 else f"{factor}*{axis}" for factor, axis in move)
    return Place(text, 0, 0).moved(first).text


def _term(w: Writer, scope: Sequence[str]) -> Place:
    if not scope:
        n = w.choose(7)
        return Place(str(n), n, n)
    a = w.pick(scope)
    return _scaled(Place(a, 0, w.axes[a] - 1), w.pick((1, 1, *FACTORS)))


def _scaled(x: Place, by: int) -> Place:
    ends = (x.low * by, x.high * by)
    return x if by == 1 else Place(f"{by}*{_inner(x)}", min(ends), max(ends))


def _sum(x: Place, y: Place, sign: str) -> Place:
    low, high = (y.low, y.high) if sign == "+" else (-y.high, -y.low)
    return Place(f"{x.text} {sign} {_inner(y)}", x.low + low, x.high + high)


def _inner(x: Place) -> str:
    return x.text if x.text.isalnum() else f"({x.text})"


def _around(w: Writer, x: Place, scope: Sequence[str]) -> Place:
    form = w.pick(("//", "//", "%", "%", "scale", "shift", "sum", "min", "max", "abs"))
    if form in ("scale", "sum") and max(abs(x.low), abs(x.high)) > WIDE:
        form = "%"
    if form in ("//", "%"):
        by = w.pick(DIVISORS)
        text = f"{_inner(x)} {form} {_number(w, by)}"
        if form == "//":
            ends = (x.low // by, x.high // by)
        elif x.low // by == x.high // by:
            ends = (x.low % by, x.high % by)
        else:
            ends = (0, by - (1 if by > 0 else -1))
        return Place(text, min(ends), max(ends))
    if form == "scale":
        return _scaled(x, w.pick(FACTORS[1:]))
    if form == "shift":
        return x.moved(w.choose(9) - 4)
    if form == "sum":
        return _sum(x, _term(w, scope), w.pick("+-"))
    if form == "abs":
        ends = (abs(x.low), abs(x.high))
        return Place(f"abs({x.text})", 0 if x.low <= 0 <= x.high else min(ends), max(ends))
    k = w.choose(9) - 3
    pick = min if form == "min" else max
    return Place(f"{form}({x.text}, {k})", pick(x.low, k), pick(x.high, k))


def _number(w: Writer, n: int) -> str:
    """A literal, or a parameter of this value."""
    if not w.chance(6):
        return str(n)
    name = f"s{len(w.parameters)}"
    w.parameters[name] = n
    return name
