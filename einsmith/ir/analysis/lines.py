"""Convert conditions, and the definitions of atoms such as `e // k`, to lines: linear forms that are >= 0."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from einsmith.ir.analysis import intervals
from einsmith.ir.analysis.linear import LinearForm, linear
from einsmith.ir.nodes import Apply, Expr, apply

COMPARISONS = ("lt", "le", "eq", "ne")


def lines_of(c: Apply, truth: bool) -> tuple[list[LinearForm], list[LinearForm]]:
    """Return an integer comparison that holds (or does not) as forms that are >= 0, and forms that are not 0."""
    a, b = c.args if truth or c.fn in ("eq", "ne") else c.args[::-1]
    fn = c.fn if truth else {"lt": "le", "le": "lt", "eq": "ne", "ne": "eq"}[c.fn]
    d = linear(b) - linear(a)
    if fn in ("lt", "le"):
        return [d - int(fn == "lt")], []
    return ([d, d * -1], []) if fn == "eq" else ([], [d])


@lru_cache(maxsize=1 << 15)
def definition_lines(atom: Expr) -> Sequence[LinearForm]:
    """Return forms >= 0 that an atom's definition implies."""
    if not isinstance(atom, Apply) or atom.fn not in ("floordiv", "mod", "min", "max", "abs"):
        return []
    this = LinearForm(0, {atom: 1})
    a = linear(atom.args[0])
    if atom.fn == "abs":
        return [this - a, this + a]
    b = linear(atom.args[1])
    if atom.fn == "min":
        return [a - this, b - this]
    if atom.fn == "max":
        return [this - a, this - b]
    k = b.const
    if b.terms or k == 0:
        return []
    if atom.fn == "floordiv":  # 0 <= a - k*q < k, or k < a - k*q <= 0
        sign = intervals.sign(k)
        return [(a - this * k) * sign, (this * k - a) * sign + (abs(k) - 1)]
    quotient = linear(apply("floordiv", *atom.args))
    difference = a - quotient * k - this
    return [difference, difference * -1]
