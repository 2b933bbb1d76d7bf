"""Provide NumPy's protocols and attributes on traced tensors."""

from __future__ import annotations

from collections.abc import Iterator
from operator import matmul
from typing import Any

import numpy as np

from einsmith.base.errors import ShapeError, TraceError
from einsmith.tracing.operators import SWAPPED, UFUNCS, Operators
from einsmith.tracing.protocol import make_trace_error

FUNCTIONS = ("abs", "cos", "exp", "expm1", "floor", "log", "log1p", "sign", "sin", "sqrt", "tanh")
"""NumPy's universal functions of one operand that `es` offers under the NumPy name."""


class ArrayMethods(Operators):
    """The attributes of NumPy's arrays that a traced tensor offers apart from operators; `astype`, `transpose` and
    `__getitem__` are defined by the tensor itself."""

    __slots__ = ()

    shape: Any

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        fn = UFUNCS.get(ufunc.__name__)
        if method == "__call__" and fn is not None and not kwargs and len(inputs) == 2:
            return self._apply(fn, inputs[1], inputs[0]) if ufunc.__name__ in SWAPPED else self._apply(fn, *inputs)
        if ufunc is np.matmul and method == "__call__" and not kwargs:
            left, right = inputs
            return matmul(left, right) if isinstance(left, ArrayMethods) else right.__rmatmul__(left)
        name = ufunc.__name__
        raise make_trace_error(f"np.{name}", f"use es.{name}" if name in FUNCTIONS else "use einsmith's own function")

    def __setitem__(self, key: Any, value: Any) -> None:
        raise TraceError("a traced tensor is not changed in place; make a new one, with es.where or es.compute")

    def __len__(self) -> int:
        if not self.shape:
            raise ShapeError("a 0-d tensor has no length")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        return iter([self[i] for i in range(len(self))])

    def __getitem__(self, key: Any) -> Any:
        raise NotImplementedError

    def transpose(self, *order: Any) -> Any:
        """Return the tensor with its dimensions in the given order (none: reversed)."""
        raise NotImplementedError

    @property
    def T(self) -> Any:
        """The tensor with its dimensions reversed."""
        return self.transpose()
