"""Determine the types of a formula's integers.

Integers are exact: an expression of axes and literals alone gets a type that holds every value over the box of its
axes, int32, or int64 where its interval exceeds int32; an interval that exceeds int64 is refused. Elements of tensors
have types of their own. Arithmetic on them is of that type and wraps in it, as in NumPy and PyTorch; in an index it is
computed in int64 where it might wrap.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from einsmith.base import dtypes as dt
from einsmith.base.dtypes import DType
from einsmith.base.errors import FormulaError, ShapeError
from einsmith.ir.analysis import ranges
from einsmith.ir.analysis.ranges import Range

if TYPE_CHECKING:
    from einsmith.tracing.formula import FormulaFold, FormulaOp, Ty

MAX_ELEMENTS = 2**60
"""Most elements of a tensor, and most positions of an axis: a signed 64-bit address reaches elements of 8 bytes."""
_MAX_RANK = 64 if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else 32
"""Most dimensions of NumPy's arrays, which results are."""


def check_extents(shape: Sequence[int], domains: Sequence[Sequence[int]] = ()) -> None:
    """Raise ShapeError for a shape that no array can have, and for an axis of the domains with too many positions."""
    if len(shape) > _MAX_RANK:
        raise ShapeError(f"a tensor would have {len(shape)} dimensions; an array has at most {_MAX_RANK}")
    if prod(n or 1 for n in shape) > MAX_ELEMENTS:
        raise ShapeError(f"a tensor would have shape {tuple(shape)}; no array can have that many elements")
    for n in (n for domain in domains for n in domain):
        if n > MAX_ELEMENTS:
            raise ShapeError(f"an axis would have the extent {n}; no array can have that many elements")


def function_interval(e: FormulaOp) -> tuple[Ty, bool, Range]:
    """Return (type, whether its arithmetic may wrap, interval) of a function of integers; the type is `e.ty` if that is
    wide enough.

    Raises FormulaError where no type holds the values, or a literal does not fit the type of the other operands.
    """
    interval = ranges.reach_of(e.fn, [a.reach for a in e.args])
    dtype = e.ty if isinstance(e.ty, DType) else dt.i64
    if dtype is not e.ty:  # literals alone take the type of the other operands, perhaps a float
        return e.ty, False, dtype.range if ranges.leaves(interval, dtype) else interval
    wide = [a for a in e.args if not isinstance(a.ty, DType) and ranges.leaves(a.reach, dtype)]
    if any(a.loads or a.folds for a in wide):  # arithmetic on run-time numbers and reductions, which are int64
        dtype = dt.i64
    literals = [a for a in wide if not a.loads and not a.folds]
    narrow = bool(literals) or ranges.leaves(interval, dtype)
    if narrow and not e.loads and not (e.folds and ranges.leaves(interval, dt.i64)):
        if ranges.leaves(interval, dt.i64):
            axes = {a.name: a.extent for a in e.free}
            box = ", ".join(f"{name} < {axes[name]}" for name in sorted(axes))
            raise FormulaError(
                f"{e.fn} of these integers has the range {interval[0]} to {interval[1]}, which exceeds int64; {box}",
                hint="compute in floats, as in f64(i)*k, or take remainders of the factors first, as in (i % n)*k",
            )
        return dt.i64, False, interval
    if literals:
        low, high = literals[0].reach
        value = low if ranges.leaves((low, low), dtype) else high
        raise FormulaError(
            f"the literal {value} does not fit {dtype.numpy}, the type of the other operand",
            hint=f"convert the other operand, as in i64(x), or write {value}.0 for a float",
        )
    wraps = ranges.leaves(interval, dtype)
    return dtype, wraps, dtype.range if wraps else interval


def reduction_interval(e: FormulaFold, own: Range) -> Range:
    """Return the interval of a reduction of integers; `own` is that of its type."""
    if e.combiner in ("max", "min"):
        return e.args[0].reach
    points = prod(a.extent for a in e.axes)
    if e.combiner.startswith("arg"):
        return 0, max(0, points - 1)
    low, high = e.args[0].reach
    interval = min(0, low * points), max(0, high * points)
    return own if e.combiner != "sum" or ranges.leaves(interval, dt.i64) else interval
