"""The arena's places are the lowest that are free, as a plain search finds them."""

from __future__ import annotations

import numpy as np
import pytest

from einsmith.passes.schedule.arena import _Placed


def _searched(items: list[tuple[int, int, int]]) -> list[int]:
    """The offsets of (bytes, first, last), one after the other, by looking at all that is there."""
    placed: list[tuple[int, int, int, int]] = []
    for n, first, last in items:
        at = 0
        for start, stop, a, b in sorted(placed):
            if b < first or last < a:
                continue
            if start - at >= n:
                break
            at = max(at, stop)
        placed.append((at, at + n, first, last))
    return [p[0] for p in placed]


@pytest.mark.parametrize("seed", range(60))
def test_places_are_the_lowest_that_are_free(seed: int):
    rng = np.random.default_rng(seed)
    times = int(rng.integers(1, 41))
    items = []
    for _ in range(int(rng.integers(1, 61))):
        first, last = sorted(rng.integers(0, times, 2).tolist())
        if rng.integers(2):
            last = min(times - 1, first + int(rng.integers(0, 3)))
        items.append((64 * int(rng.integers(0, 7 if seed % 2 else 3)), first, last))
    if seed % 3:
        items.sort(key=lambda item: -item[0])
    placed = _Placed(times)
    assert [placed.place(*item) for item in items] == _searched(items)
