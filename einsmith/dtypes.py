"""Element types of tensors and of scalar expressions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from einsmith.errors import DtypeError
from einsmith.locks import cached_property


@dataclass(frozen=True, eq=False)
class DType:
    """An element type: `kind` is 'f' (float), 'i' (signed integer) or 'b' (bool)."""

    name: str
    kind: str
    bits: int

    @property
    def numpy(self) -> np.dtype:
        return np.dtype("bool" if self.kind == "b" else {"f": "float", "i": "int"}[self.kind] + str(self.bits))

    @cached_property
    def itemsize(self) -> int:
        """Bytes an element takes in memory (a bool takes one)."""
        return max(1, self.bits // 8)

    @cached_property
    def is_float(self) -> bool:
        return self.kind == "f"

    @cached_property
    def is_int(self) -> bool:
        return self.kind == "i"

    @cached_property
    def is_bool(self) -> bool:
        return self.kind == "b"

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self):
        return dtype_of, (self.name,)


f32 = DType("f32", "f", 32)
f64 = DType("f64", "f", 64)
i8 = DType("i8", "i", 8)
i32 = DType("i32", "i", 32)
i64 = DType("i64", "i", 64)
bool_ = DType("bool", "b", 1)

ALL = (f32, f64, i8, i32, i64, bool_)
_BY_NUMPY = {d.numpy: d for d in ALL}
_BY_NAME = {d.name: d for d in ALL} | {str(d.numpy): d for d in ALL}


def dtype_of(value) -> DType:
    """The DType named by a string, a NumPy dtype, or carried by an array. Raises DtypeError for others."""
    if isinstance(value, DType):
        return value
    if isinstance(value, np.ndarray) and value.dtype in _BY_NUMPY:
        return _BY_NUMPY[value.dtype]
    name = value if isinstance(value, str) else str(getattr(value, "dtype", value)).replace("torch.", "")
    if name not in _BY_NAME:
        try:
            name = str(np.dtype(value))
        except TypeError:
            pass
    if name not in _BY_NAME:
        known = ", ".join(str(d.numpy) for d in ALL)
        raise DtypeError(f"element type {name!r} is not supported; convert the array to one of {known}")
    return _BY_NAME[name]


def promote(a: DType, b: DType) -> DType:
    """The common type of two operands: bool < integers < floats, integers never widen floats."""
    if a is b:
        return a
    order = {"b": 0, "i": 1, "f": 2}
    if a.kind != b.kind:
        return a if order[a.kind] > order[b.kind] else b
    return a if a.bits >= b.bits else b
