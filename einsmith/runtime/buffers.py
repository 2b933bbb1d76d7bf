"""Memory for tensors: NumPy arrays that begin on a cache line."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

ALIGNMENT = 64
"""Bytes; a vector register and a cache line. Generated streaming stores need it."""


_HEAD = object.__basicsize__
"""Where an array's object holds the address of its elements: that field comes right after what all objects begin with
(NumPy's C interface, PyArrayObject_fields)."""


def _asked(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def _field(array: np.ndarray) -> int:
    return ctypes.c_size_t.from_address(id(array) + _HEAD).value


def _quickest() -> Callable[[np.ndarray], int]:
    """Asking takes ten times as long as reading the field, so it is read wherever it is known to be there."""
    samples = np.zeros(3), np.zeros((4, 5), np.uint8)[1:, 2:]
    known = sys.implementation.name == "cpython" and all(_field(x) == _asked(x) for x in samples)
    return _field if known else _asked


address = _quickest()
"""Where an array's first element lies."""


def empty(shape: tuple[int, ...], dtype: Any, alignment: int = ALIGNMENT) -> np.ndarray:
    """An uninitialised C-contiguous array whose first element lies at a multiple of `alignment` bytes.

    Its pages are untouched, so that each is placed near the thread that first writes to it.
    """
    dtype = np.dtype(dtype)
    raw = np.empty(prod(shape) * dtype.itemsize + alignment, np.uint8)
    return np.ndarray(shape, dtype, raw, -address(raw) % alignment)


RECYCLED_FROM = 1 << 20
"""Bytes from which memory is kept for the next result: what the system gives anew it must first clear."""
KEPT = 256 << 20
"""Bytes that are kept at most."""
_free: dict[int, np.ndarray] = {}


class _Lease:
    """Memory lent to an array and its views; when the last of them is gone it may be lent again."""

    def __init__(self, memory: np.ndarray, nbytes: int):
        self._memory = memory
        where = address(memory)
        where += -where % ALIGNMENT
        self.__array_interface__ = {"data": (where, False), "shape": (nbytes,), "typestr": "|u1", "version": 3}

    def __del__(self) -> None:
        # May run in any thread at any time: each of these steps is one operation of a dict.
        _free[id(self._memory)] = self._memory
        while sum(x.nbytes for x in list(_free.values())) > KEPT:
            _free.pop(next(iter(list(_free)), 0), None)


def recycled(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """`empty`, in memory that an earlier result no longer needs, where there is some of about that size."""
    dtype = np.dtype(dtype)
    size = prod(shape) * dtype.itemsize
    if size < RECYCLED_FROM:
        return empty(shape, dtype)
    memory: np.ndarray | None = None
    for key, kept in list(_free.items()):
        if size + ALIGNMENT <= kept.nbytes <= size + size // 8 + ALIGNMENT:
            memory = _free.pop(key, None)
            if memory is not None:
                break
    if memory is None:
        memory = np.empty(size + ALIGNMENT, np.uint8)
    return np.asarray(_Lease(memory, size)).view(dtype).reshape(shape)


def zeros(shape: tuple[int, ...], dtype: Any, alignment: int = ALIGNMENT) -> np.ndarray:
    """`empty`, filled with zeros."""
    out = empty(shape, dtype, alignment)
    out.fill(0)
    return out


def aligned_copy(array: np.ndarray, alignment: int = ALIGNMENT) -> np.ndarray:
    """A C-contiguous copy of an array, aligned."""
    out = empty(array.shape, array.dtype, alignment)
    out[...] = array
    return out


def is_aligned(array: np.ndarray, alignment: int = ALIGNMENT) -> bool:
    """Whether an array's first element lies at a multiple of `alignment` bytes (an empty array has none)."""
    return array.size == 0 or array.ctypes.data % alignment == 0
