"""Model the cost of reading operands beyond the load instructions: conflicts of rows in cache sets, blocks read again,
narrow strips.

Functions that take arrays treat many configurations at once, an element each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile
from math import prod
from typing import NamedTuple

import numpy as np

from einsmith.cost.facts import LINE
from einsmith.cost.memory_traffic import PAGE, fetches_result_lines, lines_kept
from einsmith.kernels.contraction.config import HaloSetting, Side, depends_on_batch

MAX_BLOCK_POINTS = 256
"""Most points of K in a block (`choose_block_points`); a column of as many pages stays in a usual L2."""
MIN_FAR_ROW_BYTES = 1024
"""Fewest bytes between the rows of an operand for which each row begins with a wait that no prefetch hides."""
MIN_STREAM_STRIDE = 512
"""Fewest bytes between the rows of a panel for which the next panel is prefetched."""
SWEEP_POINTS = 8
"""Points of K in a block whose rows are each read as a stream: as many streams as a core's prefetcher follows."""

Array = np.ndarray
"""Numbers or flags, one for each configuration."""


class Strides(NamedTuple):
    """Strides (bytes) at which a side is read.

    side: from one point to the next along the innermost axis of the side; 0 for none
    k: from one point to the next along K; axes of K whose points all lie within a line are skipped, which
        leaves the distance of lines
    even: the step along K is constant over all of K
    near: points of K that lie within a line
    streams: tensors that are read at these steps, 0 if their steps differ
    """

    side: int
    k: int
    even: bool = False
    near: int = 1
    streams: int = 1

    def overfetch(self, item: int) -> float:
        """Return the bytes of lines fetched for each byte read of a side that is read in place."""
        return max(1.0, min(LINE, self.side) / (item * self.near)) if self.k >= MIN_FAR_ROW_BYTES else 1.0


def address_steps(g: HaloSetting, side: Side) -> Strides:
    """Return the strides of a side read in place."""
    s = g.access(side)
    if not s.reads:
        return Strides(0, 0)
    coef, *other_coefs = [s.forms[form].coef for _, form in s.widest]

    def step(axes: Sequence[int], least: int = 0) -> tuple[int, int]:
        out, near = 0, 1
        for x in reversed(s.groups(axes)):
            out = abs(coef.get(x.inner, 0)) * g.item
            if out * x.extent >= least:
                break
            near *= x.extent
        return out, near

    k_stride, near = step(g.p.k, LINE)
    streams = 1 + len(other_coefs) if all(x == coef for x in other_coefs) else 0
    return Strides(step(side.axes)[0], k_stride, streams > 0 and len(s.groups(g.p.k)) == 1, near, streams)


def sum_over_tiles(m: int, n: int, mr: int, nv: int, step: Callable[[int, int], float]) -> float:
    """Return the sum of step(rows, columns) over the tiles, mr x nv or smaller at the ends, that cover m x n points."""
    (i, last_mr), (j, last_nv) = divmod(m, mr), divmod(n, nv)
    return i * j * step(mr, nv) + i * step(mr, last_nv) + j * step(last_mr, nv) + step(last_mr, last_nv)


def rows_in_l1(a: Strides, l1: int) -> int:
    """Return the rows of M, read in place, of which L1 keeps a line each while the other operand is read too."""
    return max(1, lines_kept(l1, a.side) * 2 // 3)


def row_conflicts(mr: Array, l1_rows: Array) -> Array:
    """Return the fraction of rows of M, read in place, that evict each other from L1.

    L1 keeps a line of `l1_rows` rows, or of all rows where `l1_rows` is 0.
    """
    kept_rows = np.maximum(l1_rows, 1)
    return np.minimum(1.0, ((mr - kept_rows) / (2 * kept_rows)) ** 2) * ((l1_rows > 0) & (mr > l1_rows))


def reads_in_strips(s: Strides, elements: int, item: int, l2: int) -> bool:
    """Return whether a side beyond L2 is contiguous along its own axes and has points of K pages apart."""
    return s.side == item and s.k >= PAGE and elements * item > l2


def strip_overhead(width: Array, points: Array, item: int, double_bytes: float) -> Array:
    """Return the extra time of reading or packing a side in strips, relative to reading it in one stretch.

    Args:
        width: points of a strip
        points: points of the side
        item: bytes of an element
        double_bytes: bytes of a strip that takes twice the time (`Overheads.strip`)
    """
    return double_bytes / np.maximum(LINE, np.minimum(width, points) * item)


def count_stream_lines(s: Strides, g: HaloSetting, side: Side, points: int) -> int:
    """Return the lines of each tensor that a vector of a side is read from, if its rows are streams too far apart to
    follow.

    The rows must lie beyond L2, over all points of the batch, and so far apart along K that no hardware prefetcher
    follows them, with every element or every other one read. Returns 0 otherwise. `points` is the points of the side.
    """
    nbytes = points * g.K * g.item * (g.B if depends_on_batch(g.p, side) else 1)
    is_streamed = s.even and s.side in (g.item, 2 * g.item) and s.k >= MIN_STREAM_STRIDE and nbytes > g.target.l2
    return s.side // g.item if is_streamed else 0


def count_prefetched_lines(
    stream_lines: Array, m: Array, n: Array, mr: Array, nv: Array, lanes: int, tm: Array
) -> Array:
    """Return the lines of each tensor of the next panel of N that every tile of M prefetches at every point of K; 0 for
    none.

    `stream_lines` is the result of `count_stream_lines`. A single tile of M prefetches too where whole lines are read:
    on a Zen 4, products of few rows with operands beyond the caches took 0.72 to 0.77 of the time, and one whose
    operands L3 holds took 1.19; with every other element read, prefetching took 1.24 of the time.
    """
    tiles = -(-m // mr) // tm
    is_prefetched = (stream_lines > 0) & ((tiles >= 2) | ((tiles == 1) & (stream_lines == 1))) & (n > nv * lanes)
    return -(-(stream_lines * nv + 1) // np.maximum(tiles, 1)) * is_prefetched


def non_temporal_bytes(g: HaloSetting) -> int:
    """Return the bytes of results whose lines are fetched before they are written (`fetches_result_lines`); negative
    where M's axes, not N's, lie along their rows."""
    kernel, shape = g.kernel, g.kernel.root.shape
    side = next((x for x in (g.n_side, g.m_side) if x.axes and x.axes[-1] == len(shape) - 1), None)
    if side is None:
        return 0
    row = prod(shape[d] for d in takewhile(side.axes.__contains__, reversed(range(len(shape)))))
    buffers = [kernel.buffers[n] for n in {*kernel.outputs}]
    count = sum(x.shape == shape and x.row_major for x in buffers)
    return g.B * g.M * g.N * g.item * count * fetches_result_lines(row * g.item) * (1 if side is g.n_side else -1)


def choose_block_points(k: int, unit: int = 1) -> int:
    """Return the points of K in each of the fewest even blocks of at most MAX_BLOCK_POINTS points, multiples of
    `unit`."""
    units = -(-k // unit)
    return -(-units // -(-units // (MAX_BLOCK_POINTS // unit))) * unit
