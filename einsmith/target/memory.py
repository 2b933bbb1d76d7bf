"""What follows from memory coming in lines and pages, and caches being made of sets that addresses share."""

from __future__ import annotations

from typing import Any

import numpy as np

from einsmith.target.facts import LINE

PAGE = 4096
"""Cache sets are told apart by at most the bits of an address within a page: what lies above is assigned at random."""


def held(level: int, stride: int) -> int:
    """Lines of a column at `stride` bytes that a cache of `level` bytes keeps: those at powers of two share sets."""
    return level // max(LINE, min(PAGE, stride & -stride))


def waited_part(rows: np.ndarray | float, streams: int) -> Any:
    """The part of lines of so many rows of results that is waited for (`Overheads.strips`); none of a few."""
    return np.clip((rows - streams) / (1.5 * streams), 0.0, 1.0)


def fetched(row: int) -> bool:
    """Whether rows of so many bytes, a page or more, begin within lines: none is written past the caches then."""
    return row >= PAGE and row % LINE != 0


def scattered(stride: int, size: int, l2: int) -> float:
    """Cycles of the store of one lane of a vector whose lanes lie `stride` bytes apart, into `size` bytes: lines at
    powers of two push each other out before their neighbours are stored, and lines beyond the second level are waited
    for one after the other."""
    far = 12.0 if size > l2 else 0.0
    return 1.5 + (far if held(l2, stride) > l2 // 1024 else max(far, min(30.0, 60.0 * size / l2)))
