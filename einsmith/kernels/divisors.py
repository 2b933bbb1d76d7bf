"""Divisors of an extent, into which blocks cut it evenly."""

from __future__ import annotations

from functools import lru_cache
from math import isqrt


@lru_cache(maxsize=1024)
def divisors(n: int) -> tuple[int, ...]:
    """Those of `n`, ascending, in as many steps as its root: 46,341 for the longest axis of 32 bits."""
    low = [d for d in range(1, isqrt(n) + 1) if n % d == 0]
    return (*low, *(n // d for d in reversed(low) if d * d != n))
