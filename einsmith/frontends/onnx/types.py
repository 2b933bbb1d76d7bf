"""Map ONNX's element types to dtypes of formulas: a type that formulas lack is held in a wider one, without loss.

`wrap` brings a result back into the range of its type after every operator: uint16 is int32 modulo 2**16.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from einsmith.base import dtypes as dt
from einsmith.base import locks
from einsmith.base.dtypes import DType
from einsmith.ops.common import pointwise
from einsmith.tracing import builder
from einsmith.tracing.builder import Value


@dataclass(frozen=True)
class ElementType:
    """An element type of ONNX.

    name: ONNX's, in lower case; dtype: the dtype that holds it; array: the name of its NumPy type, in NumPy or
    ml_dtypes; wrap: brings results into its range, None if formulas have the type; convert(x, saturate): converts from
    another type where `wrap` does not, and saturates values out of range if asked to.
    """

    name: str
    dtype: DType
    array: str
    wrap: Callable[[Value], Value] | None = None
    convert: Callable[[Value, bool], Value] | None = None

    @property
    def is_float(self) -> bool:
        """Return whether the dtype that holds it is a float."""
        return self.dtype.is_float

    def hold(self, array: np.ndarray) -> np.ndarray:
        """Convert an array of this element type to the dtype that holds it."""
        if self.dtype is dt.bf16:
            return np.ascontiguousarray(array).view(dt.BFLOAT16).reshape(array.shape)
        return np.array(array, self.dtype.numpy, order="C")

    def release(self, array: np.ndarray) -> np.ndarray:
        """Convert an array of the dtype that holds this element type back to it."""
        if self.dtype is dt.bf16:
            return np.ascontiguousarray(array).view(self.numpy).reshape(array.shape)
        return array.astype(self.numpy) if self.foreign else array

    @property
    def foreign(self) -> bool:
        """Return whether formulas lack the type, so that a wider dtype holds it."""
        return self.wrap is not None or self.convert is not None

    @property
    def numpy(self) -> np.dtype:
        """The NumPy type of its arrays; types that NumPy lacks come from ml_dtypes."""
        if hasattr(np, self.array):
            return np.dtype(self.array)
        with locks.IMPORTING:
            import ml_dtypes  # comes with onnx

        return np.dtype(getattr(ml_dtypes, self.array))


def _modulo(bits: int, signed: bool) -> Callable[[Value], Value]:
    size = 1 << bits
    half = size // 2 if signed else 0

    def wrap(x: Value) -> Value:
        return pointwise(x, lambda e: (e + half) % size - half).astype(x.dtype)

    return wrap


def round_float(x: Value, digits: int, least: int, greatest: float) -> Value:
    """Round each element to the nearest float with a significand of `digits` bits, ties to even.

    least: exponent of the smallest positive number; greatest: beyond it the result is infinite, except for NaN.
    Computed in float64, where scaling is exact.
    """

    def formula(e: Any) -> Any:
        a = builder.abs(builder.cast(e, dt.f64))
        # Find the power of two at or below a by halving and doubling, since logarithms of floats round.
        scaled, unit = a, builder.cast(a * 0.0 + 1.0, dt.f64)
        for k in (64, 32, 16, 8, 4, 2, 1):
            up, down = 2.0**k, 2.0**-k
            large, small = scaled >= up, scaled < 2.0 * down
            unit = builder.where(large, unit * up, builder.where(small, unit * down, unit))
            scaled = builder.where(large, scaled * down, builder.where(small, scaled * up, scaled))
        step = builder.maximum(unit * 2.0 ** (1 - digits), 2.0**least)
        quotient = a / step
        whole = builder.floor(quotient)
        rest = quotient - whole
        up_ = (rest > 0.5) | ((rest == 0.5) & (whole % 2.0 == 1.0))
        value = builder.where(up_, whole + 1.0, whole) * step
        value = builder.where(value > greatest, float("inf"), value)
        value = builder.where(a - a == 0, value, a)
        return builder.where((e < 0) | ((e == 0) & (1.0 / e < 0)), -value, value)

    return pointwise(builder.stop_gradient(x), formula).astype(x.dtype)


def _nearest(
    digits: int, least: int, greatest: float, *, infinite: bool, nan: bool = True, signed: bool = True
) -> Callable[[Value, bool], Value]:
    """Return the conversion to a float of eight bits or fewer.

    infinite: whether it has infinities; nan: whether it has NaN, which else becomes 0; signed: whether it has a
    negative zero.
    """

    def convert(x: Value, saturate: bool) -> Value:
        beyond = greatest if saturate or not nan else float("inf") if infinite else float("nan")
        y = round_float(x.astype(dt.f32), digits, least, greatest)

        def formula(e: Any) -> Any:
            e = builder.where(e > greatest, beyond, builder.where(e < -greatest, -beyond, e))
            if not nan:
                e = builder.where(e == e, e, 0.0)
            return e if signed else builder.where(e == 0, 0.0, e)

        return pointwise(y, formula).astype(dt.f32)

    return convert


_SMALL_FLOATS = {
    "float8e4m3fn": ("float8_e4m3fn", _nearest(4, -9, 448.0, infinite=False)),
    "float8e4m3fnuz": ("float8_e4m3fnuz", _nearest(4, -10, 240.0, infinite=False, signed=False)),
    "float8e5m2": ("float8_e5m2", _nearest(3, -16, 57344.0, infinite=True)),
    "float8e5m2fnuz": ("float8_e5m2fnuz", _nearest(3, -17, 57344.0, infinite=False, signed=False)),
    "float4e2m1": ("float4_e2m1fn", _nearest(2, -1, 6.0, infinite=False, nan=False)),
}

_PLAIN = {
    "float": (dt.f32, "float32"),
    "double": (dt.f64, "float64"),
    "float16": (dt.f16, "float16"),
    "bfloat16": (dt.bf16, "bfloat16"),
    "uint8": (dt.u8, "uint8"),
    "int8": (dt.i8, "int8"),
    "int16": (dt.i16, "int16"),
    "int32": (dt.i32, "int32"),
    "int64": (dt.i64, "int64"),
    "bool": (dt.bool_, "bool"),
}

ELEMENTS = (
    {name: ElementType(name, dtype, array) for name, (dtype, array) in _PLAIN.items()}
    | {
        name: ElementType(name, dt.i32 if bits < 32 else dt.i64, name, _modulo(bits, name.startswith("int")))
        for name, bits in (("uint16", 16), ("uint32", 32), ("uint4", 4), ("int4", 4), ("uint2", 2), ("int2", 2))
    }
    | {name: ElementType(name, dt.f32, array, None, convert) for name, (array, convert) in _SMALL_FLOATS.items()}
)


REFUSED_TYPES = {
    "string": "strings are not supported",
    "complex64": "complex numbers are not supported",
    "complex128": "complex numbers are not supported",
    "uint64": "formulas have no type for integers from 2**63",
}
