"""Memory for tensors: NumPy arrays that begin on a cache line."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

ALIGNMENT = 64
"""Bytes; a vector register and a cache line. Generated streaming stores need it."""


def empty(shape: tuple[int, ...], dtype: Any, alignment: int = ALIGNMENT) -> np.ndarray:
    """An uninitialised C-contiguous array whose first element lies at a multiple of `alignment` bytes.

    Its pages are untouched, so that each is placed near the thread that first writes to it.
    """
    dtype = np.dtype(dtype)
    size = prod(shape) * dtype.itemsize
    raw = np.empty(size + alignment, np.uint8)
    start = -raw.ctypes.data % alignment
    return raw[start : start + size].view(dtype).reshape(shape)


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
