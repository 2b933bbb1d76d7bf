"""Make a failing case smaller: choices are left out, set to 0 and lowered, as long as it fails in the same way."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence


def shrink(choices: Sequence[int], fails: Callable[[list[int]], list[int] | None], seconds: float = 60.0) -> list[int]:
    """Return the smallest choices found; fewer are smaller, then those that come earlier in order.

    Args:
        choices: whole numbers from which a failing case is made; missing ones are 0
        fails: function that returns the choices that have been taken, where the case made of them fails in the same
            way, else None
        seconds: how long to search
    """
    end = time.monotonic() + seconds
    best = list(choices)
    tried: set[tuple[int, ...]] = set()

    def better(candidate: list[int]) -> bool:
        nonlocal best
        while candidate and candidate[-1] == 0:
            candidate = candidate[:-1]  # what is missing is 0
        if tuple(candidate) in tried or (len(candidate), candidate) >= (len(best), best) or time.monotonic() > end:
            return False
        tried.add(tuple(candidate))
        taken = fails(candidate)
        if taken is None:
            return False
        while taken and taken[-1] == 0:
            taken = taken[:-1]
        best = min(candidate, taken, key=lambda x: (len(x), x))
        return True

    changed = True
    while changed and time.monotonic() < end:
        changed = False
        size = max(1, len(best) // 2)
        while size:  # leave out blocks, and set them to 0
            at = len(best) - size
            while at >= 0 and time.monotonic() < end:
                is_better = better(best[:at] + best[at + size :])
                if not is_better and any(best[at : at + size]):
                    is_better = better(best[:at] + [0] * len(best[at : at + size]) + best[at + size :])
                changed |= is_better
                at -= 1 if size < 4 else max(1, size // 2)
                at = min(at, len(best) - size)
            size //= 2
        for at in range(len(best)):  # lower single ones
            step = best[at] if at < len(best) else 0
            while step and time.monotonic() < end:
                if at < len(best) and best[at] >= step and better([*best[:at], best[at] - step, *best[at + 1 :]]):
                    changed = True
                else:
                    step //= 2
    return best
