"""Allocate memory for tensors: NumPy arrays that begin on a cache line."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.ctypeslib import as_array

from einsmith.base import locks
from einsmith.base.dtypes import DType
from einsmith.base.errors import OutOfMemoryError

ALIGNMENT = 64
"""Bytes of a cache line and of the widest vector register, at a multiple of which arrays begin. Generated non-temporal
stores need it."""


_HEAD = object.__basicsize__
"""Offset in an array object of the field with the address of its elements, which comes right after the header that all
objects have (NumPy's C interface, PyArrayObject_fields)."""


def ask_address(array: np.ndarray) -> int:
    """Return an array's address as NumPy tells it."""
    return array.__array_interface__["data"][0]


def read_address(array: np.ndarray) -> int:
    """Return an array's address from the object's field."""
    return ctypes.c_size_t.from_address(id(array) + _HEAD).value


def choose_address() -> Callable[[np.ndarray], int]:
    """Return the quickest function that finds an array's address. Asking NumPy takes ten times as long as reading the
    object's field, so the field is read wherever it is known to be there."""
    samples = np.zeros(3), np.zeros((4, 5), np.uint8)[1:, 2:]
    known = sys.implementation.name == "cpython" and all(read_address(x) == ask_address(x) for x in samples)
    return read_address if known else ask_address


address = choose_address()
"""Return the address of an array's first element."""


def addresses(arrays: Sequence[np.ndarray]) -> list[int]:
    """Return the addresses of arrays, as `address` does."""
    if address is not read_address:
        return [address(x) for x in arrays]
    from_address = ctypes.c_size_t.from_address
    return [from_address(id(x) + _HEAD).value for x in arrays]


def _allocate_bytes(n: int) -> np.ndarray:
    """Allocate `n` bytes. Raises OutOfMemoryError."""
    try:
        return np.empty(n, np.uint8)
    except (MemoryError, ValueError):
        raise OutOfMemoryError(f"{n / 2**30:.3g} GiB are requested at once, more than is available") from None


def empty(shape: tuple[int, ...], dtype: Any, alignment: int = ALIGNMENT) -> np.ndarray:
    """Allocate an uninitialised C-contiguous array whose first element lies at a multiple of `alignment` bytes.

    Its pages are untouched, so that each is placed near the thread that first writes to it.
    """
    dtype = np.dtype(dtype)
    raw = _allocate_bytes(prod(shape) * dtype.itemsize + alignment)
    return np.ndarray(shape, dtype, raw, -address(raw) % alignment)


RECYCLED_FROM = 1 << 20
"""Bytes from which on a result's memory is kept for the next one: the system must first clear memory that it newly
provides."""
MAX_KEPT_BYTES = 512 << 20
"""Most bytes that are kept, lent or free."""
MAX_BLOCKS_PER_SIZE = 8
"""Most blocks of about one size that are kept."""
_blocks: dict[int, list[np.ndarray]] = {}
"""Kept blocks by size (bytes), the least recently requested size first."""
_lock = locks.lock()


def _unused_block(blocks: list[np.ndarray]) -> np.ndarray | None:
    """Return a block in which no array lies; None where there is none."""
    for block in blocks:
        if sys.getrefcount(block) <= _UNUSED_REFERENCES:
            return block
    return None


def _references(blocks: list[np.ndarray]) -> int:
    """Return the reference count that `_unused_block` sees for a block that only the list refers to."""
    for block in blocks:
        return sys.getrefcount(block)
    return 0


_UNUSED_REFERENCES = _references([np.empty(1, np.uint8)])
"""Reference count of a block in which no array lies, as `_unused_block` sees it."""


def _take_block(size: int) -> np.ndarray:
    """Return a block of at least `size` bytes in which no array lies."""
    step = 1 << max(0, size.bit_length() - 4)
    rounded = -(-size // step) * step
    with _lock:
        blocks = _blocks[rounded] = _blocks.pop(rounded, [])  # the sizes in use come last
        block = _unused_block(blocks)
        if block is None:
            block = _allocate_bytes(rounded)
            if rounded <= MAX_KEPT_BYTES:
                blocks.append(block)
                del blocks[:-MAX_BLOCKS_PER_SIZE]
                _free_least_recent()
        return block


def _free_least_recent() -> None:
    """Free the blocks of the least recently requested sizes until at most MAX_KEPT_BYTES are held."""
    held_bytes = sum(n * len(blocks) for n, blocks in _blocks.items())
    for n in list(_blocks):
        while held_bytes > MAX_KEPT_BYTES and _blocks[n]:
            del _blocks[n][0]
            held_bytes -= n
        if not _blocks[n]:
            del _blocks[n]


def recycle(shape: tuple[int, ...], dtype: np.dtype, nbytes: int) -> tuple[np.ndarray, int]:
    """Allocate an array as `empty` does, in memory that an earlier result no longer needs, where there is some of
    about that size. A block is free again when neither an array nor a view of one lies in it. Return the array and the
    address of its first element; `nbytes`: bytes of its elements."""
    size = nbytes + ALIGNMENT
    block = _allocate_bytes(size) if size <= RECYCLED_FROM else _take_block(size)
    at = address(block)
    offset = -at % ALIGNMENT
    return np.ndarray(shape, dtype, block, offset), at + offset


SMALL_RESULT = 16 << 10
"""Bytes up to which a program keeps memory of its own for a result. Allocating it and reading its address takes 0.6
microseconds, of calls of 5; a program that computes more takes ten times as long."""
SMALL_BLOCKS = 2
"""Blocks that a program keeps for a small result: a caller that replaces a result by the next one has both."""


class ResultMemory:
    """The memory of one result of a program, run after run; two threads never take it at one time.

    Args:
        shape: shape of the result
        dtype: its element type
        nbytes: bytes of its elements
    """

    __slots__ = ("kind", "_blocks")

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype, nbytes: int):
        self.kind = shape, dtype, nbytes
        self._blocks: list[tuple[np.ndarray, np.ndarray, int]] = []
        """Blocks, each with an array of the result's shape in it, of which callers get views, and its address."""

    def take(self) -> tuple[np.ndarray, int]:
        """Return an array of the result's shape and the address of its first element, as `recycle` does."""
        for block, array, at in self._blocks:
            if sys.getrefcount(block) <= _UNUSED_SMALL_REFERENCES:
                return array.view(), at
        if self.kind[2] > SMALL_RESULT:
            return recycle(*self.kind)
        array, at = recycle(*self.kind)
        self._blocks = [*self._blocks[1 - SMALL_BLOCKS :], (array.base, array, at)]  # type: ignore[list-item]
        return array.view(), at

    def references(self) -> int:
        """Return the reference count that `take` sees for a block that only this object refers to."""
        for block, _array, _at in self._blocks:
            return sys.getrefcount(block)
        return 0


def _small_references() -> int:
    memory = ResultMemory((), np.dtype(np.uint8), 1)
    memory.take()
    return memory.references()


_UNUSED_SMALL_REFERENCES = 0
_UNUSED_SMALL_REFERENCES = _small_references()
"""Reference count of a block of a `ResultMemory` in which no caller's array lies."""


def recycle_together(kinds: Sequence[tuple[tuple[int, ...], np.dtype, int]]) -> list[tuple[np.ndarray, int]]:
    """Allocate arrays, given as the arguments of `recycle`, as it does, all in one block of memory: many small ones are
    recycled, too."""
    offsets, end = [], 0
    for *_, count in kinds:
        offsets.append(end)
        end += -(-count // ALIGNMENT) * ALIGNMENT
    block, at = recycle((end,), np.dtype(np.uint8), end)
    places = zip(kinds, offsets, strict=True)
    return [(np.ndarray(shape, dtype, block, n), at + n) for (shape, dtype, _), n in places]


def zeros(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Allocate an array as `empty` does, filled with zeros."""
    out = empty(shape, dtype)
    out.fill(0)
    return out


def is_aligned(array: np.ndarray, alignment: int = ALIGNMENT) -> bool:
    """Return whether an array's first element lies at a multiple of `alignment` bytes (an empty array has none)."""
    return array.size == 0 or array.ctypes.data % alignment == 0


def array_at(address: int, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    """Return values in the caller's memory at an address as a C-contiguous array."""
    return array_of(address, shape, np.dtype(dtype.numpy))


def array_of(address: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return `array_at` for a type of NumPy's."""
    count = prod(shape) * dtype.itemsize
    memory = (ctypes.c_char * count).from_address(address) if count else None
    return np.ndarray(shape, dtype, memory)  # type: ignore[arg-type]


def bytes_at(address: int, nbytes: int) -> np.ndarray:
    """Return the `nbytes` bytes at an address as an array; the caller keeps their memory alive."""
    if nbytes == 0:
        return np.zeros(0, np.uint8)
    return as_array((ctypes.c_uint8 * nbytes).from_address(address))
