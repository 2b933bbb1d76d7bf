"""Convert float16 and bfloat16, which are formats of memory, from and to float32.

bfloat16 is the first half of a float32. float16 is converted by instructions where the target has them, else by
integer arithmetic: its numbers below 2**-14 have no leading one, which float arithmetic adds and removes (F. Giesen,
"Float->half variants", 2012). Conversions round to the nearest, ties to even; numbers out of range become infinite,
and NaN stays NaN.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from einsmith.base.dtypes import dtype_of
from einsmith.codegen.ssa import vector

if TYPE_CHECKING:
    from einsmith.codegen.llvm.ops import LaneArithmetic

FORMATS = ("f16", "bf16")
_REBIAS = (127 - 15) << 23
"""Addend that turns a float16's exponent, shifted to the position of a float32's, into a float32's exponent."""


def bits_of(value: float, elem: str) -> int:
    """Return the bits of a number in a 16-bit format."""
    return int(dtype_of(elem).narrow(np.array([value], np.float64)).view(np.uint16)[0])


def _types(lanes: int) -> tuple[str, ...]:
    """Return the LLVM types of lanes of float16, of its bits, and of float32."""
    return tuple(f"<{lanes} x {t}>" if lanes else t for t in ("half", "i16", "float"))


def widen(v: LaneArithmetic, x: str, elem: str) -> str:
    """Convert lanes of a 16-bit format to float32, the type that `v` computes with."""
    lanes, text = v.t.lanes, v.ops.text
    if elem == "bf16":
        return v.unbits(v.shl(v.ops.cast(x, vector("i16", lanes), "i32"), 16))
    if text.halves:
        half, bits, single = _types(lanes)
        return text.emit(f"fpext {half} {text.emit(f'bitcast {bits} {x} to {half}')} to {single}")
    h = v.ops.cast(x, vector("i16", lanes), "i32")
    size = v.iand(h, v.i(0x7FFF))
    shifted = v.shl(size, 13)
    normal = v.iadd(shifted, v.i(_REBIAS))
    not_finite = v.ior(shifted, v.i(0x7F800000))
    subnormal = v.bits(v.mul(v.from_int(size), v.f(2.0**-24)))
    out = v.iselect(
        v.less_unsigned(size, v.i(0x400)), subnormal, v.iselect(v.less_unsigned(v.i(0x7BFF), size), not_finite, normal)
    )
    return v.unbits(v.ior(out, v.shl(v.iand(h, v.i(0x8000)), 16)))


def narrow(v: LaneArithmetic, x: str, elem: str) -> str:
    """Convert lanes of float32, the type that `v` computes with, to a 16-bit format."""
    lanes, text = v.t.lanes, v.ops.text
    if elem == "f16" and text.halves:
        half, bits, single = _types(lanes)
        return text.emit(f"bitcast {half} {text.emit(f'fptrunc {single} {x} to {half}')} to {bits}")
    b = v.bits(x)
    size = v.iand(b, v.i(0x7FFFFFFF))
    is_nan = v.less_unsigned(v.i(0x7F800000), size)
    if elem == "bf16":
        odd = v.iand(v.lshr(b, 16), v.i(1))
        rounded = v.lshr(v.iadd(b, v.iadd(odd, v.i(0x7FFF))), 16)
        return v.ops.cast(v.iselect(is_nan, v.ior(v.lshr(b, 16), v.i(0x40)), rounded), v.int, "i16")
    odd = v.iand(v.lshr(size, 13), v.i(1))
    normal = v.lshr(v.iadd(v.isub(size, v.i(_REBIAS)), v.iadd(odd, v.i(0xFFF))), 13)
    subnormal = v.isub(v.bits(v.add(v.unbits(size), v.f(0.5))), v.i(0x3F000000))  # in units of 2**-24, that of 0.5
    not_finite = v.iselect(is_nan, v.i(0x7E00), v.i(0x7C00))
    out = v.iselect(
        v.less_unsigned(size, v.i(0x38800000)),
        subnormal,
        v.iselect(v.less_unsigned(size, v.i(0x47800000)), normal, not_finite),
    )
    return v.ops.cast(v.ior(out, v.iand(v.lshr(b, 16), v.i(0x8000))), v.int, "i16")
