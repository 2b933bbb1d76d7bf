"""Pool the memory of large results: reuse it once its tensor is gone, since the system must clear fresh pages first."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import torch

from einsmith.base import locks
from einsmith.base.system.memory import total_bytes
from einsmith.frontends.torch_nodes import TYPES
from einsmith.runtime import buffers

FROM = 1 << 18
"""Smallest result whose memory is pooled (bytes)."""
_TYPES = {t: d.numpy for t, d in TYPES.items()} | {torch.bfloat16: np.dtype(np.int16)}


LIMIT = total_bytes() // 8
"""Most unused memory to keep (bytes)."""
_free: OrderedDict[int, list[np.ndarray]] = OrderedDict()
_held = 0
_guard = locks.lock()


class _Lent(np.ndarray):
    """An array that holds a tensor's elements and returns its memory block to the pool when it is deleted."""

    block: np.ndarray | None = None

    def __del__(self) -> None:
        block = self.block
        if block is not None:
            _give_back(block)


def _give_back(block: np.ndarray) -> None:
    global _held
    with _guard:
        size = block.nbytes
        if size > LIMIT:
            return
        _free.setdefault(size, []).append(block)
        _free.move_to_end(size)
        _held += size
        while _held > LIMIT:
            oldest = next(iter(_free))
            _held -= oldest
            _free[oldest].pop()
            if not _free[oldest]:
                del _free[oldest]


def _block(size: int) -> np.ndarray:
    """Return an unused block of at least `size` bytes, from the pool if it has one of the rounded size."""
    global _held
    step = 1 << max(0, size.bit_length() - 4)
    rounded = -(-size // step) * step
    with _guard:
        same = _free.get(rounded)
        if same:
            block = same.pop()
            _held -= rounded
            if not same:
                del _free[rounded]
            return block
    return buffers.empty((rounded,), np.uint8, 1)


def free_bytes() -> int:
    """Return the bytes of unused memory in the pool."""
    return _held


def clear() -> None:
    """Free the unused memory in the pool."""
    global _held
    with _guard:
        _free.clear()
        _held = 0


def empty(shape: tuple[int, ...], steps: tuple[int, ...], dtype: torch.dtype, nbytes: int) -> torch.Tensor:
    """Return an uninitialized tensor as torch.empty_strided does; from `FROM` bytes on it is pooled and starts on a
    cache line. steps: strides (elements)."""
    if nbytes < FROM:
        return torch.empty_strided(shape, steps, dtype=dtype)
    block = _block(nbytes + buffers.ALIGNMENT)
    kind: Any = _TYPES[dtype]
    size = kind.itemsize
    array = _Lent(shape, kind, block, -buffers.address(block) % buffers.ALIGNMENT, [s * size for s in steps])
    array.block = block
    tensor = torch.from_numpy(array)
    return tensor.view(dtype) if dtype is torch.bfloat16 else tensor
