"""Convert vectors of floats to integers of the same width, saturating.

LLVM converts them one lane at a time where a machine's instruction does not saturate by itself, as x86's do not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from einsmith.codegen.llvm.ops import LaneArithmetic

_LLVM_TYPES = {"f32": ("float", "i32"), "f64": ("double", "i64")}


def saturate(v: LaneArithmetic, x: str) -> str:
    """Convert lanes of floats to integers, towards zero; out of range to the nearest integer, and NaN to 0."""
    ops, (of, to) = v.ops, _LLVM_TYPES[v.elem]
    end = 1 << (31 if v.elem == "f32" else 63)  # a power of two, so that it is a float; the last integer may be none
    low, high = v.f(float(-end)), v.f(float(end))
    at_least_low = v.select(v.lt(x, low), low, x)
    in_range = v.select(ops.compare("uge", v.t, x, high), v.f(0.0), at_least_low)  # replaces NaN, too
    whole = ops.text.emit(f"fptosi <{v.t.lanes} x {of}> {in_range} to <{v.t.lanes} x {to}>")
    return v.iselect(ops.compare("oge", v.t, x, high), v.i(end - 1), whole)
