"""Allocate memory that detects accesses outside its blocks: forbidden pages lie around each block, red zones fill its
last page."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from einsmith.base.errors import CheckError
from einsmith.checking.trap import fault_signals
from einsmith.runtime.buffers import ALIGNMENT

PAGE = mmap.PAGESIZE
GUARD_BYTES = 16 * PAGE
"""Bytes on either side of a block that cannot be accessed."""
RED_BYTE = 0xA5
"""Byte that fills the rest of a block's pages, so that a write there is noticed."""


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
        self._memory = mmap.mmap(-1, total, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
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
        at = 0
        for b, n in zip(blocks, inner, strict=True):
            if protect(self.low + at, GUARD_BYTES, 0):
                raise CheckError(f"the system forbids no more pages (error {ctypes.get_errno()})")
            at += GUARD_BYTES
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
        protect(self.low + at, GUARD_BYTES, 0)

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
