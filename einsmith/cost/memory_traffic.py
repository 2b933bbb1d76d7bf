"""Model the effects of cache lines, pages and cache sets on memory accesses."""

from __future__ import annotations

from typing import Any

import numpy as np

from einsmith.cost.facts import LINE

PAGE = 4096
"""Bytes of a page. Cache sets depend predictably only on an address's bits within a page; page frames are random."""


def lines_kept(level: int, stride: int) -> int:
    """Return how many lines, `stride` bytes apart, a cache of `level` bytes keeps; at powers of two they share sets."""
    return level // max(LINE, min(PAGE, stride & -stride))


def waited_part(rows: np.ndarray | float, streams: int) -> Any:
    """Return the fraction of result lines whose fetch stalls (`Overheads.strips`) when `rows` rows are written at once.

    It is 0 up to `streams` rows, and 1 from 2.5 times as many on."""
    return np.clip((rows - streams) / (1.5 * streams), 0.0, 1.0)


def fetches_result_lines(row: int) -> bool:
    """Return whether result lines are fetched before they are written: rows of `row` bytes, a page or more, begin
    within cache lines, so that no store is non-temporal."""
    return row >= PAGE and row % LINE != 0


def scatter_cycles(stride: int, size: int, l2: int) -> float:
    """Return the cycles to store one lane of a vector whose lanes lie `stride` bytes apart, into `size` bytes.

    Lines at powers of two evict each other before their neighbouring elements are stored. Lines beyond L2 stall one
    after the other."""
    far = 12.0 if size > l2 else 0.0
    return 1.5 + (far if lines_kept(l2, stride) > l2 // 1024 else max(far, min(30.0, 60.0 * size / l2)))
