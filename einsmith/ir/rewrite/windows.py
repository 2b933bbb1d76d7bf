"""Find the windows of a reduction: the points of an axis outside of which a condition excludes all terms.

A window on axis k is start(q) <= k < start(q) + width, with a constant width. An axis that a condition takes by `//`
and `%` of constants that divide each other is seen as several axes, its digits: 8*y + x has the digits y and x, and
abs(q//8 - k//8) <= 1 bounds the digit y of k by that of q.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from math import prod
from typing import NamedTuple

from einsmith.base import dtypes as dt
from einsmith.base.symbolic import is_symbolic
from einsmith.ir.analysis.bounds import Facts
from einsmith.ir.analysis.linear import LinearForm, linear
from einsmith.ir.analysis.lines import COMPARISONS, lines_of
from einsmith.ir.analysis.ranges import leaves
from einsmith.ir.analysis.widths import Reaches
from einsmith.ir.nodes import Apply, Axis, Const, Expr, apply, axes_of, cast, postorder
from einsmith.ir.rebuild import operands, substitute, with_args
from einsmith.ir.rewrite.simplify import simplify

POINT_COST = 5
"""Time of a point of a window, in points of the blocks that a mask leaves of a product; a window is no operand of a
matrix product. Measured with gradients, 32 features, one thread of an x86-64 with AVX-512: 2.0 ns a point of blocks; of
windows 7.3 (33 of 1024 positions, 1.6 times as fast as blocks), 9.5 (9 x 9 of 32 x 32, as fast), 11.7 (15 x 15 of
64 x 64, 0.8 times as fast)."""
ROWS, COLUMNS = 32, 128
"""Positions of the blocks that a kernel leaves out of the products of a mask (`schedule.activity`)."""
MAX_CHOICES = 16
"""Most forms that one condition is expanded into, by the arguments of its minima, maxima and absolute values."""


class DigitWindow(NamedTuple):
    """The points start, ..., start + width - 1 of a digit. start: an expression of the template's axes, such that all
    points lie within the digit's extent."""

    start: Expr
    width: int


class Bounded(NamedTuple):
    """The windows of a reduction.

    Attributes:
        digits: extents of the digits of each axis that has several, outermost first
        windows: windows by (axis, number of the digit)
    """

    digits: Mapping[int, tuple[int, ...]]
    windows: Mapping[tuple[int, int], DigitWindow]


def find_windows(condition: Expr, domain: Sequence[int], rank: int) -> Bounded | None:
    """Return the windows of the reduction axes `rank, ...` of a box; None where no condition bounds one, or where the
    blocks that it leaves are computed in less time.

    condition: holds at all points whose terms count; reads no tensor."""
    if any(is_symbolic(n) for n in domain):
        return None
    strides: dict[int, set[int]] = {}
    bounding: list[Expr] = []
    for c in operands(condition, "and"):
        own = {a: _strides_of(c, a, domain[a]) | strides.get(a, {1}) for a in axes_of(c)}
        if any(a >= rank for a in own) and all(_is_chain(x, domain[a]) for a, x in own.items()):
            strides |= own
            bounding.append(c)
    digits = {a: _digits_of(x, domain[a]) for a, x in sorted(strides.items())}
    windows = _Split(digits, domain).find(bounding, rank)
    if not windows or not _pays(windows, {a: d for a, d in digits.items() if a >= rank}):
        return None
    return Bounded({a: d for a, d in digits.items() if len(d) > 1}, windows)


def in_int32(e: Expr, extents: Sequence[int]) -> Expr:
    """Return an expression of the same type, in which integers over a box are computed as int32 where this holds their
    values."""
    reaches = Reaches(extents)
    list(reaches.add([e]))
    new: dict[Expr, Expr] = {}
    for x in postorder([e]):
        args = [new[a] for a in x.args]
        reach = reaches.known[x]
        is_short = x.dtype.is_int and reach is not None and not leaves(reach, dt.i32)
        if isinstance(x, Const) and is_short:
            new[x] = Const(x.value, dt.i32)
        elif isinstance(x, Apply) and all(a.dtype is dt.i32 for a in args) and (is_short or x.fn in COMPARISONS):
            new[x] = args[0] if x.fn == "cast" else apply(x.fn, *args)
        else:
            new[x] = with_args(x, tuple(cast(a, old.dtype) for a, old in zip(args, x.args, strict=True)))
    return cast(new[e], e.dtype)


def value_of_digits(digits: Sequence[Expr], extents: Sequence[int]) -> Expr:
    """Return the value of an axis by its digits, outermost first."""
    out = LinearForm()
    for x, n in zip(digits, extents, strict=True):
        out = out * n + LinearForm(0, {x: 1})
    return out.expr()


def digit_of(axis: Expr, extents: Sequence[int], number: int) -> Expr:
    """Return a digit of an axis."""
    stride = prod(extents[number + 1 :])
    x = axis if stride == 1 else apply("floordiv", axis, Const(stride, axis.dtype))
    return x if number == 0 else apply("mod", x, Const(extents[number], axis.dtype))


def _strides_of(condition: Expr, axis: int, extent: int) -> set[int]:
    """Return the strides of the digits by which a condition takes an axis."""
    strides: set[int] = set()
    multiples: dict[Expr, tuple[int, int]] = {Axis(axis): (1, extent)}  # an expression's stride and period
    for e in postorder([condition]):
        if not (isinstance(e, Apply) and e.fn in ("floordiv", "mod") and e.args[0] in multiples):
            continue
        (stride, period), by = multiples[e.args[0]], linear(e.args[1])
        if not by.terms and not is_symbolic(by.const) and 0 < stride * by.const < period:
            step = stride * by.const
            multiples[e] = (step, period) if e.fn == "floordiv" else (stride, step)
            strides.add(step)
    return strides


def _is_chain(strides: Collection[int], extent: int) -> bool:
    """Return whether each stride divides the next one, and the last one the extent."""
    return all(b % a == 0 for a, b in pairwise((*sorted(strides), extent)))


def _digits_of(strides: Collection[int], extent: int) -> tuple[int, ...]:
    """Return the extents of the digits of an axis, outermost first."""
    return tuple(b // a for a, b in pairwise((*sorted(strides), extent)))[::-1]


class _Split:
    """A box whose axes are split into digits.

    Attributes:
        axes: (axis, number of the digit) of each axis of the split box
        extents: extents of the split box
    """

    def __init__(self, digits: Mapping[int, tuple[int, ...]], domain: Sequence[int]):
        self.digits = digits
        self.axes = [(a, n) for a in range(len(domain)) for n in range(len(digits.get(a, (1,))))]
        self.extents = tuple(digits[a][n] if a in digits else domain[a] for a, n in self.axes)
        places = {x: Axis(p) for p, x in enumerate(self.axes)}
        self.values: dict[int, Expr] = {
            a: value_of_digits([places[a, n] for n in range(len(d))], d) for a, d in digits.items()
        }
        self.old = {
            p: digit_of(Axis(a), digits[a], n) if a in digits else Axis(a) for p, (a, n) in enumerate(self.axes)
        }

    def find(self, conditions: Sequence[Expr], rank: int) -> dict[tuple[int, int], DigitWindow]:
        """Return the windows of the digits of the axes from `rank` on."""
        split = (simplify(substitute(c, self.values), self.extents) for c in conditions)
        forms = [f for c in split for x in operands(c, "and") for f in _forms(x)]
        out: dict[tuple[int, int], DigitWindow] = {}
        facts = Facts(self.extents)
        for p, (a, n) in enumerate(self.axes):
            if a >= rank and (window := self._window(p, forms, facts, rank)) is not None:
                out[a, n] = window
        return out

    def _window(self, p: int, forms: Sequence[LinearForm], facts: Facts, rank: int) -> DigitWindow | None:
        """Return the narrowest window of axis p of the split box that two of the forms bound."""
        at, extent = Axis(p), self.extents[p]
        low: list[LinearForm] = []
        high: list[LinearForm] = []
        for f in forms:
            c, rest = f.coefficient(at), f.without(at)
            if abs(c) == 1 and all(self.axes[x][0] < rank for x in rest.axes):
                (low if c > 0 else high).append(rest * -c)
        width, start = extent, LinearForm()
        for first in low:
            for last in high:
                most = facts.interval(last - first)[1]
                if most is not None and most < width - 1:
                    width, start = max(most, 0) + 1, first
        if width == extent:
            return None
        first_of = start.expr()
        clamped = apply("min", apply("max", first_of, Const(0, dt.i32)), Const(extent - width, dt.i32))
        return DigitWindow(substitute(clamped, self.old), width)


def _forms(condition: Expr) -> Iterator[LinearForm]:
    """Yield linear forms that are at least 0 where a condition holds, with minima, maxima and absolute values as they
    stand and expanded."""
    if not (isinstance(condition, Apply) and condition.fn in COMPARISONS and condition.args[0].dtype.is_int):
        return
    todo = lines_of(condition, True)[0]
    seen = 0
    while todo and seen < MAX_CHOICES:
        form = todo.pop()
        seen += 1
        if all(x.dtype.bits <= 32 for x in form.atoms):
            yield form
        for x, c in form.terms.items():
            if isinstance(x, Apply) and x.fn in ("min", "max", "abs") and (c > 0) == (x.fn == "min"):
                rest = form.without(x)
                sides = [linear(x.args[0]), linear(x.args[0]) * -1] if x.fn == "abs" else map(linear, x.args)
                todo += [rest + side * c for side in sides]


def _pays(windows: Mapping[tuple[int, int], DigitWindow], digits: Mapping[int, tuple[int, ...]]) -> bool:
    """Return whether the points of windows are fewer, by their cost, than those of the blocks that a mask of the same
    windows leaves. Blocks are left out along one axis."""
    bounded = {a for a, _ in windows}
    own = prod(windows[a, n].width if (a, n) in windows else e for a in bounded for n, e in enumerate(digits[a]))
    if len(bounded) > 1:
        return own * POINT_COST < prod(prod(digits[a]) for a in bounded)
    (axis,) = bounded
    extents = digits[axis]
    widths = [windows[axis, n].width if (axis, n) in windows else e for n, e in enumerate(extents)]
    run, count, stride = min(widths[-1] + ROWS - 1, extents[-1]), 1, extents[-1]
    for width, extent in zip(widths[-2::-1], extents[-2::-1], strict=True):
        if stride - run < COLUMNS and count == 1:
            run += (width - 1) * stride
        else:
            count *= width
        stride *= extent
    return own * POINT_COST < min(count * (run + COLUMNS - 1), prod(extents))
