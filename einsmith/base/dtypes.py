"""Define the element types of tensors and of scalar expressions.

float16, bfloat16 and uint8 are storage formats only: elements that are read are converted to the type's `arithmetic`
(float32, int32), computed with in that type, and converted back where a tensor of the format is written.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from einsmith.base import locks
from einsmith.base.errors import DtypeError
from einsmith.base.locks import cached_property


@dataclass(frozen=True, eq=False)
class DType:
    """An element type: `kind` is 'f' (float), 'i' (integer) or 'b' (bool)."""

    name: str
    kind: str
    bits: int
    signed: bool = True

    @cached_property
    def numpy(self) -> np.dtype:
        """Return the NumPy type of arrays. NumPy has no bfloat16; a record of its bits takes its place."""
        if self is bf16:
            return BFLOAT16
        kinds = {"f": "float", "i": "int" if self.signed else "uint"}
        return np.dtype("bool" if self.kind == "b" else kinds[self.kind] + str(self.bits))

    @property
    def dtype(self) -> np.dtype:
        """Return the NumPy type, by the name under which NumPy looks for it: `np.zeros(3, x.dtype)`.

        Raises DtypeError for bfloat16 where ml_dtypes, which adds it to NumPy, is not installed.
        """
        if self is not bf16:
            return self.numpy
        try:
            with locks.IMPORTING:
                import ml_dtypes
        except ImportError:
            raise DtypeError(
                "NumPy has no bfloat16: install ml_dtypes, or convert a float32 array in the traced function, as in "
                "es.tensor(array).astype(x.dtype)"
            ) from None
        return np.dtype(ml_dtypes.bfloat16)

    def __eq__(self, other: object) -> bool:
        """Return whether `other` is this type: itself, or the type by a name, of NumPy, Python or PyTorch."""
        if isinstance(other, DType):
            return self is other
        if not isinstance(other, (str, type, np.dtype)) and not str(other).startswith("torch."):
            return NotImplemented
        try:
            return dtype_of(other) is self
        except DtypeError:
            return False

    __hash__ = object.__hash__

    @cached_property
    def arithmetic(self) -> DType:
        """Return the type in which elements are computed with: this type, except for storage formats."""
        return {"f16": f32, "bf16": f32, "u8": i32}.get(self.name, self)

    @cached_property
    def in_memory_only(self) -> bool:
        """Return whether the type only stores elements: arithmetic converts them to another type first."""
        return self.arithmetic is not self

    @cached_property
    def range(self) -> tuple[int, int]:
        """Return the least and the greatest value of an integer type."""
        half = 1 << (self.bits - 1)
        return (-half, half - 1) if self.signed else (0, 2 * half - 1)

    @cached_property
    def digits(self) -> int:
        """Return the binary digits of a float's significand, or of an integer without its sign."""
        return {"f64": 53, "f32": 24, "f16": 11, "bf16": 8}.get(self.name, self.bits - self.signed)

    @cached_property
    def eps(self) -> float:
        """Return the distance from 1 to the next float."""
        return 2.0 ** (1 - self.digits)

    @cached_property
    def tiny(self) -> float:
        """Return the least positive float that is not denormal."""
        return 2.0**-14 if self is f16 else float(np.finfo(self.arithmetic.numpy).tiny)

    @cached_property
    def max(self) -> float:
        """Return the greatest finite float."""
        exponents = {"f16": 16, "f64": 1024}.get(self.name, 128)
        return (2 - self.eps) * 2.0 ** (exponents - 1)

    def narrow(self, values: np.ndarray) -> np.ndarray:
        """Convert numbers to an array of this type.

        To float16 and bfloat16 by way of float32, each rounded to the nearest, ties to even; NaN stays NaN.
        """
        with np.errstate(all="ignore"):
            if not (self.is_float and self.in_memory_only):
                return np.asarray(values).astype(self.numpy)
            single = np.asarray(values, np.float32)
            if self is f16:
                return single.astype(np.float16)
            bits = single.view(np.uint32)
            rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
            return np.where(np.isnan(single), bits >> 16 | 0x40, rounded).astype(np.uint16).view(BFLOAT16)

    def wide(self, values: np.ndarray) -> np.ndarray:
        """Convert an array of this type to float64, int64 or bool."""
        if self is bf16 and values.dtype == BFLOAT16:
            bits = np.ascontiguousarray(values).view(np.uint16).astype(np.uint32) << 16
            return bits.view(np.float32).astype(np.float64).reshape(values.shape)
        return values.astype({"f": np.float64, "i": np.int64, "b": np.bool_}[self.kind], copy=False)

    def rounded(self, values: np.ndarray) -> np.ndarray:
        """Round numbers to this type's values, as float64, int64 or bool."""
        return self.wide(self.narrow(values))

    @cached_property
    def itemsize(self) -> int:
        """Return the bytes of an element in memory (one for a bool)."""
        return max(1, self.bits // 8)

    @cached_property
    def is_float(self) -> bool:
        """Return whether the type is a float."""
        return self.kind == "f"

    @cached_property
    def is_int(self) -> bool:
        """Return whether the type is an integer."""
        return self.kind == "i"

    @cached_property
    def is_bool(self) -> bool:
        """Return whether the type is bool."""
        return self.kind == "b"

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self):
        return dtype_of, (self.name,)


BFLOAT16 = np.dtype([("bfloat16", np.uint16)])
f16 = DType("f16", "f", 16)
bf16 = DType("bf16", "f", 16)
f32 = DType("f32", "f", 32)
f64 = DType("f64", "f", 64)
u8 = DType("u8", "i", 8, False)
i8 = DType("i8", "i", 8)
i16 = DType("i16", "i", 16)
i32 = DType("i32", "i", 32)
i64 = DType("i64", "i", 64)
bool_ = DType("bool", "b", 1)

ALL = (f16, bf16, f32, f64, u8, i8, i16, i32, i64, bool_)
_BY_NUMPY = {d.numpy: d for d in ALL}
_BY_NAME = {d.name: d for d in ALL} | {str(d.numpy): d for d in ALL} | {"bfloat16": bf16}


def dtype_of(value) -> DType:
    """Return the DType named by a string or a NumPy dtype, or carried by an array. Raises DtypeError for others."""
    if isinstance(value, DType):
        return value
    if value is None:  # NumPy takes None for float64
        raise DtypeError("None is not an element type; give one, such as 'float32'")
    if isinstance(value, np.ndarray) and value.dtype in _BY_NUMPY:
        return _BY_NUMPY[value.dtype]
    name = value if isinstance(value, str) else str(getattr(value, "dtype", value)).replace("torch.", "")
    if name not in _BY_NAME:
        try:
            name = str(np.dtype(value))
        except TypeError:
            pass
    if name not in _BY_NAME:
        known = ", ".join(str(d.numpy) for d in ALL if d is not bf16)
        remedy = "convert the array to" if hasattr(value, "dtype") or isinstance(value, np.dtype) else "give"
        raise DtypeError(f"element type {name!r} is not supported; {remedy} one of {known}")
    return _BY_NAME[name]


def promote(a: DType, b: DType) -> DType:
    """Return the common type of two operands: bool < integers < floats; integers never widen floats.

    Two storage formats of equal size give the least type that holds both: float32 for float16 and bfloat16, int16 for
    uint8 and int8.
    """
    if a is b:
        return a
    order = {"b": 0, "i": 1, "f": 2}
    if a.kind != b.kind:
        return a if order[a.kind] > order[b.kind] else b
    if a.bits == b.bits:
        return f32 if a.is_float else i16
    return a if a.bits > b.bits else b


def is_whole(x: object) -> bool:
    """Return whether a value is an integer: an int or a 0-d value with `__index__` (NumPy's too), but no bool, class or
    array with dimensions."""
    return hasattr(x, "__index__") and not isinstance(x, (bool, type)) and not getattr(x, "ndim", None)
