"""Memory of large results, used again once the tensor in it is gone: what the system gives anew it must first clear."""

from __future__ import annotations

import os
from collections import OrderedDict
from typing import Any

import numpy as np
import torch

from einsmith import locks
from einsmith.frontends.torch_nodes import TYPES
from einsmith.runtime import buffers

FROM = 1 << 18
"""Bytes from which memory is kept."""
_TYPES = {t: d.numpy for t, d in TYPES.items()} | {torch.bfloat16: np.dtype(np.int16)}


def _limit() -> int:
    """Bytes that are kept for nobody: an eighth of the machine's."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 8
    except (AttributeError, ValueError, OSError):
        return 1 << 30


LIMIT = _limit()
_free: OrderedDict[int, list[np.ndarray]] = OrderedDict()
_held = 0
_guard = locks.lock()


class _Lent(np.ndarray):
    """An array of a tensor's elements. Its end gives the memory back."""

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
    """At least `size` bytes that nobody uses."""
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
    """Kept for nobody now."""
    return _held


def clear() -> None:
    """Lets go of what nobody uses."""
    global _held
    with _guard:
        _free.clear()
        _held = 0


def empty(shape: tuple[int, ...], steps: tuple[int, ...], dtype: torch.dtype, nbytes: int) -> torch.Tensor:
    """torch.empty_strided for `nbytes` bytes, which begin on a cache line."""
    if nbytes < FROM:
        return torch.empty_strided(shape, steps, dtype=dtype)
    block = _block(nbytes + buffers.ALIGNMENT)
    kind: Any = _TYPES[dtype]
    size = kind.itemsize
    array = _Lent(shape, kind, block, -buffers.address(block) % buffers.ALIGNMENT, [s * size for s in steps])
    array.block = block
    made = torch.from_numpy(array)
    return made.view(dtype) if dtype is torch.bfloat16 else made
