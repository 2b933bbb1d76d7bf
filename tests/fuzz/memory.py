"""Memory for arrays beside pages that cannot be touched, with known bytes around them."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np

_protect = ctypes.CDLL(None, use_errno=True).mprotect
_protect.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
_FILL = 0xFF
"""NaN in every float type, true in no bool, -1 in integers."""
_free: dict[int, list[Guarded]] = {}


class Guarded:
    """Some pages between two that cannot be touched. `place` puts an array into them, at their end or start."""

    def __init__(self, size: int):
        page = mmap.PAGESIZE
        self.pages = _pages(size)
        inner = self.pages * page
        self.memory = mmap.mmap(-1, inner + 2 * page)
        raw = np.frombuffer(self.memory, np.uint8)
        for at in (0, inner + page):
            if _protect(raw.ctypes.data + at, page, 0):  # nothing is allowed
                raise OSError(ctypes.get_errno(), "mprotect")
        self.raw = raw[page : inner + page]

    def place(self, size: int, alignment: int, before: bool) -> np.ndarray:
        """`size` bytes, all set, as near to the page after them (or before them) as the alignment allows."""
        self.raw[:] = _FILL
        at = 0 if before else (self.raw.size - size) // alignment * alignment
        self.bytes = self.raw[at : at + size]
        self.sides = self.raw[:at], self.raw[at + size :]
        return self.bytes

    def intact(self) -> bool:
        return all((side == _FILL).all() for side in self.sides)


def _pages(size: int) -> int:
    return max(1, -(-size // mmap.PAGESIZE))


def lent(size: int) -> Guarded:
    """Guarded pages for so many bytes; `give_back` when done."""
    known = _free.get(_pages(size))
    return known.pop() if known else Guarded(size)


def give_back(memory: Guarded) -> None:
    known = _free.setdefault(memory.pages, [])
    if len(known) < 16 and memory.pages <= 1024:
        known.append(memory)
