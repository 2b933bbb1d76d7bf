"""What reading operands costs beyond the loads: cache sets that rows share, blocks read again, narrow strips.

Functions that take arrays are about many configurations at once, an element each.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from math import prod
from typing import NamedTuple

import numpy as np

from einsmith.kernels.contraction.config import Side, WindowSetting, depends_on_batch
from einsmith.target.facts import LINE
from einsmith.target.memory import PAGE, fetched, held

BLOCK = 256
"""Points of K in a block: a column of so many pages stays in a usual second-level cache."""
FAR_ROWS = 1024
"""Bytes between the rows of an operand beyond which each begins with a wait that no prefetch hides."""
APART = 512
"""Bytes between the rows of a panel from which the next one is asked for."""
SWEEP = 8
"""Points of K in a block of which each row is read as a stream of its own: as many as a core follows."""

Array = np.ndarray
"""Numbers or flags, one for each configuration."""


class Steps(NamedTuple):
    """Bytes from one point to the next of what a side is read from, along its innermost axes and along K; 0 where there
    is none. Axes of K whose points all lie within a line, `near` of them, do not count: the next ones tell how far
    apart the lines are. even: the step along K is the same everywhere; streams: how many tensors are read in these
    steps, 0 where they differ."""

    side: int
    k: int
    even: bool = False
    near: int = 1
    streams: int = 1

    def spread(self, item: int) -> float:
        """Bytes of the lines that hold a side read in place, for each of its bytes that is read."""
        return max(1.0, min(LINE, self.side) / (item * self.near)) if self.k >= FAR_ROWS else 1.0


def address_steps(g: WindowSetting, side: Side) -> Steps:
    """Of a side read in place."""
    s = g.access(side)
    if not s.reads:
        return Steps(0, 0)
    coef, *others = [s.forms[form].coef for _, form in s.widest]

    def step(axes: Sequence[int], least: int = 0) -> tuple[int, int]:
        out, near = 0, 1
        for x in reversed(s.groups(axes)):
            out = abs(coef.get(x.inner, 0)) * g.item
            if out * x.extent >= least:
                break
            near *= x.extent
        return out, near

    apart, near = step(g.p.k, LINE)
    streams = 1 + len(others) if all(x == coef for x in others) else 0
    return Steps(step(side.axes)[0], apart, streams > 0 and len(s.groups(g.p.k)) == 1, near, streams)


def rows_that_fit(a: Steps, l1: int) -> int:
    """Rows of M read in place of which a line each stays in the first level, beside what else is read."""
    return max(1, held(l1, a.side) * 2 // 3)


def row_conflicts(mr: Array, fit: Array) -> Array:
    """The part of rows of M read in place that push each other out of the first level, which keeps a line each of
    `fit`; 0: of all."""
    room = np.maximum(fit, 1)
    return np.minimum(1.0, ((mr - room) / (2 * room)) ** 2) * ((fit > 0) & (mr > fit))


def in_strips(s: Steps, elements: int, item: int, l2: int) -> bool:
    """Whether a side, which lies beyond the second level, is contiguous along its own axes and far apart along K."""
    return s.side == item and s.k >= PAGE and elements * item > l2


def strips(width: Array, points: Array, item: int, double: float) -> Array:
    """How many times longer than in one stretch a side of `points` takes to arrive, less 1, when read in place or
    packed in strips of `width`; double: bytes of strips that take twice the time (`Overheads.strip`)."""
    return double / np.maximum(LINE, np.minimum(width, points) * item)


def far_rows(s: Steps, g: WindowSetting, side: Side, points: int) -> int:
    """Lines of each tensor that a vector of so many points of a side is read from, if they lie, at all points of the
    batch together, beyond the second level and so far apart along K that they are streams which no hardware follows, of
    which every element or every other one is read; else 0."""
    read = points * g.K * g.item * (g.B if depends_on_batch(g.p, side) else 1)
    far = s.even and s.side in (g.item, 2 * g.item) and s.k >= APART and read > g.target.l2
    return s.side // g.item if far else 0


def lines_ahead(far: Array, m: Array, n: Array, mr: Array, nv: Array, lanes: int, tm: Array) -> Array:
    """Lines of each tensor of the next panel of N that every tile of M asks for at every point of K; 0: it does not.
    far: as `far_rows`. A tile that is alone asks too where all of a line is read: on a Zen 4, products of few rows with
    operands beyond the caches took 0.72 to 0.77 of the time, one whose operands the third level holds 1.19; where every
    other element is read, 1.24."""
    tiles = -(-m // mr) // tm
    asked = (far > 0) & ((tiles >= 2) | ((tiles == 1) & (far == 1))) & (n > nv * lanes)
    return -(-(far * nv + 1) // np.maximum(tiles, 1)) * asked


def far_results(g: WindowSetting) -> int:
    """Bytes of results that are `fetched`; below 0 where it is M whose axes lie along their rows, not N."""
    kernel, shape = g.kernel, g.kernel.root.shape
    side = next((x for x in (g.n_side, g.m_side) if x.axes and x.axes[-1] == len(shape) - 1), None)
    if side is None:
        return 0
    row = prod(shape[d] for d in takewhile(side.axes.__contains__, reversed(range(len(shape)))))
    stored = [kernel.buffers[n] for n in {n for stage in kernel.stages for n in stage.outputs if n is not None}]
    count = sum(x.shape == shape and x.row_major for x in stored)
    return g.B * g.M * g.N * g.item * count * fetched(row * g.item) * (1 if side is g.n_side else -1)


def blocks_of_k(k: int, unit: int = 1) -> int:
    """Points of K in each of the fewest even blocks of at most BLOCK, which are multiples of `unit`."""
    whole = -(-k // unit)
    return -(-whole // -(-whole // (BLOCK // unit))) * unit
