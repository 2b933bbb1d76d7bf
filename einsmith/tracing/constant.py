"""Define constants: arrays whose values are compiled into the programs that read them."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from einsmith.base.arguments import check_arguments
from einsmith.base.arrays import to_array
from einsmith.base.captured import FrozenArray
from einsmith.base.dtypes import dtype_of
from einsmith.base.errors import TraceError
from einsmith.tracing import trace
from einsmith.tracing.builder import Value


class ConstantArray:
    """An array whose values are compiled into programs: where it is zero, sums over its axes have no terms.

    It is passed to operators and functions as arrays are, or read in a traced function. Equal constants, by shape, type
    and values, are equal keys: they share programs. Make one with `constant`.
    """

    __slots__ = ("array", "digest", "__weakref__")

    def __init__(self, array: np.ndarray):
        self.array = np.array(array, order="C").view(FrozenArray)
        self.array.flags.writeable = False
        content = f"{self.array.dtype.str}{self.array.shape}".encode() + self.array.tobytes()
        self.digest = hashlib.blake2b(content, digest_size=16).digest()

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents of the array."""
        return self.array.shape

    @property
    def ndim(self) -> int:
        """The number of dimensions of the array."""
        return self.array.ndim

    @property
    def dtype(self) -> np.dtype:
        """The element type of the array, as NumPy's."""
        return self.array.dtype

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False and dtype is not None and np.dtype(dtype) != self.dtype:
            raise ValueError("a constant of another type is a copy")
        x = self.array.view(np.ndarray)
        return x if dtype is None and not copy else np.array(x, dtype)

    def __einsmith_value__(self) -> Value:
        current = trace.current_trace()
        if current is None:
            raise TraceError("a constant is combined with a traced tensor outside the traced function")
        return Value(current.capture(self.array, self.shape, dtype_of(self.array)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ConstantArray) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        zeros = self.array.size - int(np.count_nonzero(self.array))
        return f"constant({self.dtype.name}{list(self.shape)}, {zeros} zeros)"

    def __reduce__(self) -> tuple:
        return ConstantArray, (self.array.view(np.ndarray),)


@check_arguments
def constant(array: Any) -> ConstantArray:
    """Return an array as a constant: programs that read it are compiled for its values.

    Sums over its axes, in gradients too, have terms only where it is not zero, if that is predicted to be faster; an
    index that it holds is a number of the program. A zero of a constant makes its term absent, even if another factor
    is infinite or NaN. Indices that leave their tensor raise IndexOutOfRange when a program is compiled.

    Args:
        array: the array, of NumPy or another library, or a list; its values are copied.

    Raises:
        DtypeError, ShapeError: `array` cannot be converted to an array.
    """
    return array if isinstance(array, ConstantArray) else ConstantArray(to_array(array, "the constant"))
