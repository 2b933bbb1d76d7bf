"""Allocate memory that detects accesses outside its blocks: forbidden pages lie around each block, red zones fill its
last page."""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from einsmith.base.errors import CheckError
from einsmith.checking.trap import fault_signals
from einsmith.runtime.buffers import ALIGNMENT

PAGE = mmap.PAGESIZE
GUARD_BYTES = 16 * PAGE
"""Bytes on either side of a block that cannot be accessed."""
WILD_BYTES = 1 << 34, 1 << 40
"""Bytes before the first block and behind the last one that cannot be accessed either, if the system has enough
addresses: a garbage index, such as 2**31 - 1, leads there."""
RED_BYTE = 0xA5
"""Byte that fills the rest of a block's pages, so that a write there is noticed."""


_NO_RESERVE = 0x4000 if sys.platform == "linux" else 0
"""MAP_NORESERVE (mman.h): more addresses than memory."""
_READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE


def _reserve(nbytes: int) -> mmap.mmap:
    """Return addresses, for which there is memory when they are first used."""
    return mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)


class GuardedBlock(NamedTuple):
    """The request for a block: a name for messages, bytes, and whether it begins on a cache line."""

    name: str
    nbytes: int
    is_line_aligned: bool = False


class Guarded:
    """Blocks with forbidden pages on both sides. Each block ends where the forbidden pages behind it begin or, if
    `before`, begins where the forbidden pages before it end. `bytes[i]` is block i; `addresses[i]` is its first
    address; `pages[i]` are the bytes of its pages."""

    def __init__(self, blocks: Sequence[GuardedBlock], before: bool):
        fault_signals()  # refuses a system without
        self.blocks, self.before = tuple(blocks), before
        inner = [max(1, -(-b.nbytes // PAGE)) * PAGE for b in blocks]
        total = sum(inner) + GUARD_BYTES * (len(inner) + 1)
        before_first, behind_last = WILD_BYTES
        try:
            self._memory = _reserve(before_first + total + behind_last)
        except (OSError, ValueError):
            before_first = behind_last = 0
            self._memory = _reserve(total)
        total += before_first + behind_last
        self._raw = np.frombuffer(self._memory, np.uint8)
        self.low = self._raw.ctypes.data
        self.high = self.low + total
        protect = ctypes.CDLL(None, use_errno=True).mprotect
        protect.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
        self.bytes: list[np.ndarray] = []
        self.pages: list[np.ndarray] = []
        self.addresses: list[int] = []
        self._zones: list[tuple[np.ndarray, np.ndarray]] = []
        self._pages: list[tuple[int, int]] = []
        protect(self.low, total, 0)
        at = before_first
        for b, n in zip(blocks, inner, strict=True):
            at += GUARD_BYTES
            if protect(self.low + at, n, _READ_WRITE):
                raise CheckError(f"the system divides memory into no more parts (error {ctypes.get_errno()})")
            own = self._raw[at : at + n]
            self.pages.append(own)
            first = 0 if before else n - (-(-b.nbytes // ALIGNMENT) * ALIGNMENT if b.is_line_aligned else b.nbytes)
            self.bytes.append(own[first : first + b.nbytes])
            self.addresses.append(self.low + at + first)
            zones = own[max(0, first - PAGE) : first], own[first + b.nbytes :]
            for zone in zones:
                zone[:] = RED_BYTE
            self._zones.append(zones)
            self._pages.append((self.low + at, self.low + at + n))
            at += n

    def find_red_zone_write(self) -> tuple[int, int] | None:
        """Return (block, byte from its beginning) of the first overwritten byte in a red zone; None where there is
        none."""
        for i, (front, back) in enumerate(self._zones):
            for zone, first in ((front, -front.size), (back, self.bytes[i].size)):
                wrong = zone != RED_BYTE
                if wrong.any():
                    return i, first + int(np.argmax(wrong))
        return None

    def find_nearest(self, address: int) -> tuple[int, int]:
        """Return (block, byte from its beginning) of the block nearest to an address in a forbidden page."""
        distances = [0 if a <= address < b else min(abs(address - a), abs(address - b)) for a, b in self._pages]
        i = int(np.argmin(distances))
        return i, address - self.addresses[i]
