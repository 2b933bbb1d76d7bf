"""Compute random bits as a pure function: Threefry-2x32 with 20 rounds (Salmon et al. 2011, "Parallel random numbers").

A word depends on a key and a counter of two words each, and on nothing else: not on the order of evaluation, the layout
or the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
"""Distances (bits) of the rotations in the four rounds of a group, for even and for odd groups."""

PARITY = 0x1BD11BDA
"""Constant of the key schedule: the third word of the extended key is the exclusive or of this and the key's words."""

GROUPS = 5
"""Groups of four rounds each."""

OPERATIONS = 90
"""Approximate instructions per word."""


def threefry(
    words: Sequence[Any],
    *,
    add: Callable[[Any, Any], Any],
    xor: Callable[[Any, Any], Any],
    rotate: Callable[[Any, int], Any],
    const: Callable[[int], Any],
) -> Any:
    """Return the first word of the block, from two words of the key and two of the counter.

    The operations on words of 32 bits are those of a library; `rotate(x, n)` rotates to the left.
    """
    k0, k1, c0, c1 = words
    keys = (k0, k1, xor(xor(k0, k1), const(PARITY)))
    x, y = add(c0, k0), add(c1, k1)
    for group in range(GROUPS):
        for n in ROTATIONS[group % 2]:
            x = add(x, y)
            y = xor(rotate(y, n), x)
        x = add(x, keys[(group + 1) % 3])
        y = add(add(y, keys[(group + 2) % 3]), const(group + 1))
    return x


def numpy_bits(k0: Any, k1: Any, c0: Any, c1: Any) -> Any:
    """Return `threefry` of integers of any type, of which the low 32 bits count, as int32."""
    words = np.broadcast_arrays(*(np.asarray(v).astype(np.int64).astype(np.uint32) for v in (k0, k1, c0, c1)))

    def rotate(x: np.ndarray, n: int) -> np.ndarray:
        return (x << np.uint32(n)) | (x >> np.uint32(32 - n))

    with np.errstate(over="ignore"):
        out = threefry(words, add=np.add, xor=np.bitwise_xor, rotate=rotate, const=np.uint32)
    return out.astype(np.uint32).view(np.int32)
