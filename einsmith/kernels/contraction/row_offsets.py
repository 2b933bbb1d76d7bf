"""Find how the rows of a tile lie in memory that is read in place: at offsets that all tiles share, or not."""

from __future__ import annotations

from functools import lru_cache
from math import prod

GroupStrides = tuple[tuple[int, int], ...]
"""Extent and stride (elements) of each group of axes along which a read moves evenly, outer first."""


@lru_cache(maxsize=4096)
def row_offsets(groups: GroupStrides, mr: int) -> list[int] | None:
    """Return the offset (elements) of each row of a tile of `mr` rows from its first row.

    Tiles begin at multiples of `mr`. Returns None if the offsets differ between tiles.
    """
    if not _has_repeating_offsets(_merge_groups(groups), mr):
        return None
    offsets = [0] * mr
    inner = 1
    for n, (extent, stride) in enumerate(reversed(groups), start=1):
        # Past the last row the outermost group continues.
        offsets = [
            at + stride * (i // inner if n == len(groups) else i // inner % extent) for i, at in enumerate(offsets)
        ]
        inner *= extent
    return offsets


def _merge_groups(groups: GroupStrides) -> GroupStrides:
    """Merge neighbouring groups that rows traverse at an even stride.

    Between the groups that are left the stride changes: a row that begins a new point of the outer group lies at
    another distance from the row before it than other rows do.
    """
    out: list[tuple[int, int]] = []
    for extent, stride in groups:
        if out and out[-1][1] == extent * stride:
            out[-1] = out[-1][0] * extent, stride
        elif extent > 1:
            out.append((extent, stride))
    return tuple(out)


def _has_repeating_offsets(groups: GroupStrides, mr: int) -> bool:
    """Return whether all tiles of `mr` rows have the row offsets of the first tile, up to the last row. Groups are
    merged.

    With an innermost group of n rows, tiles repeat if mr divides n; or if mr is a multiple of n and tiles of mr / n
    rows of the outer groups repeat; or if there are only two tiles, the second of which lies in the last group.
    """
    rows = prod(extent for extent, _ in groups)
    for extent, _ in reversed(groups):
        if mr >= rows or extent % mr == 0:
            return True
        if mr % extent:
            return mr > rows - extent
        mr, rows = mr // extent, rows // extent
    return True


@lru_cache(maxsize=4096)
def regular_rows(groups: GroupStrides, limit: int) -> int:
    """Return the most rows, at most `limit`, of a tile that is read in place; 0 if there are none or only one group."""
    best, width = 0, 1
    if len(groups) <= 1:
        return 0
    for extent, _ in reversed(groups):
        for t in range(1, min(extent, limit // width) + 1):
            # Whole groups may be taken together even where the last tile has fewer.
            if extent % t == 0 or (width > 1 and row_offsets(groups, width * t) is not None):
                best = max(best, width * t)
        width *= extent
        if width > limit:
            break
    return best if best and row_offsets(groups, best) is not None else 0
