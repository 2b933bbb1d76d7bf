"""Bound sweeps by the masks of their tiles: a block of the swept side that a mask excludes whole is left out.

before: for each block of j < 1024:  s = where(j <= i, ..., -inf)     for the rows 64 <= i < 128
after:  for each block of j < 128: the same

The condition without which nothing is added is found as for the CPU (`schedule.activity`), along with its limits of
what an infinity or a NaN in a block that is left out would do. Comparisons that are linear in the swept axis bound it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from einsmith.base import dtypes as dt
from einsmith.codegen.ssa import SSAValue
from einsmith.gpu.tiles.chains import Chain
from einsmith.gpu.tiles.ir import TileBuilder
from einsmith.ir.analysis.constant_unless import either
from einsmith.ir.analysis.linear import LinearForm, linear
from einsmith.ir.nodes import Apply, Axis, Const, Expr, axes_of
from einsmith.ir.rebuild import substitute
from einsmith.schedule.activity import TileValues


class Ends(NamedTuple):
    """The first value of a class of axes at some points, and the last one."""

    first: SSAValue
    last: SSAValue


class _Bounds(NamedTuple):
    """The first point of the swept side at which a condition may hold, and the one after the last; None: no bound."""

    lo: SSAValue | None
    hi: SSAValue | None


def find_condition(chain: Chain, sinks: Sequence[int]) -> Expr | None:
    """Return the condition on the points of a sweep without which its sums gain nothing, as an expression of classes of
    axes; None where there is none."""
    values = TileValues(lambda t: None)
    condition: Expr | None = None
    for n in sorted({k for s in sinks for k in chain.closure(s)}):
        if n not in sinks:
            values.add(chain.swept(n))
            continue
        unless = values.gains_unless(chain.swept(n))
        if unless is None:
            return None
        classes: dict[int, Expr] = {
            a: Axis(chain.classes[n, a]) if (n, a) in chain.classes else Const(0, dt.i32) for a in axes_of(unless)
        }
        unless = substitute(unless, classes)
        condition = unless if condition is None else either(condition, unless)
    return condition


def bound_sweep(
    b: TileBuilder, condition: Expr, swept: int, ends: dict[int, Ends], count: int, step: int
) -> tuple[SSAValue, SSAValue]:
    """Return the bounds of a loop over the points of a class `swept` at which a condition may hold, which begins at a
    multiple of `step`. ends: of the other classes. count: the number of points. The loop has a turn even where the
    condition holds nowhere (`schedule.kernel.Activity`)."""
    lo, hi = _bounds(b, condition, swept, ends)
    elem = next(iter(ends.values())).first.elem
    first, last = b.const(0, elem), b.const(count, elem)
    if lo is not None:
        first = b.op("mul", b.op("quot", b.op("min", b.op("max", lo, 0), count - 1), step), step)
    return first, last if hi is None else b.op("max", b.op("min", hi, count), b.op("add", first, 1))


def _bounds(b: TileBuilder, e: Expr, swept: int, ends: dict[int, Ends]) -> _Bounds:
    """Return the bounds of a condition."""
    if not isinstance(e, Apply):
        return _Bounds(None, None)
    if e.fn in ("and", "or"):
        (lo, hi), (low, high) = (_bounds(b, x, swept, ends) for x in e.args)
        if e.fn == "or":
            return _Bounds(_merge(b, "min", lo, low, False), _merge(b, "max", hi, high, False))
        return _Bounds(_merge(b, "max", lo, low, True), _merge(b, "min", hi, high, True))
    if e.fn == "not" and isinstance(e.args[0], Apply) and e.args[0].fn in ("lt", "le"):
        x, y = e.args[0].args
        return _bounds(b, Apply("le" if e.args[0].fn == "lt" else "lt", (y, x), e.dtype), swept, ends)
    if e.fn not in ("lt", "le", "eq") or not e.args[0].dtype.is_int:
        return _Bounds(None, None)
    difference = linear(e.args[1]) - linear(e.args[0]) + (-1 if e.fn == "lt" else 0)  # it is at least 0
    bounds = _bounds_of_form(b, difference, swept, ends)
    if e.fn == "eq":
        more = _bounds_of_form(b, difference * -1, swept, ends)
        return _Bounds(more.lo if bounds.lo is None else bounds.lo, more.hi if bounds.hi is None else bounds.hi)
    return bounds


def _merge(b: TileBuilder, fn: str, x: SSAValue | None, y: SSAValue | None, either_binds: bool) -> SSAValue | None:
    """Return the bound of two conditions; one without a bound is left out if the other one binds alone."""
    if x is None or y is None:
        return (y if x is None else x) if either_binds else None
    return b.op(fn, x, y)


def _bounds_of_form(b: TileBuilder, form: LinearForm, swept: int, ends: dict[int, Ends]) -> _Bounds:
    """Return the bounds of `form` >= 0, in which the swept axis occurs once."""
    step = form.coef.get(swept, 0)
    others = {a: c for a, c in form.coef.items() if a != swept}
    if step not in (1, -1) or form.atoms or not others.keys() <= ends.keys():
        return _Bounds(None, None)
    most = b.const(form.const, next(iter(ends.values())).first.elem)
    for a, c in others.items():
        most = b.op("add", most, b.op("mul", ends[a].last if c > 0 else ends[a].first, c))
    # j >= -most, or j <= most
    return _Bounds(b.op("neg", most), None) if step > 0 else _Bounds(None, b.op("add", most, 1))
