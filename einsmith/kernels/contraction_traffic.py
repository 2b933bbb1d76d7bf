"""What reading operands costs beyond the loads: cache sets that rows share, blocks read again, narrow strips."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil
from typing import Any

from einsmith.expr.kernel import Kernel
from einsmith.kernels import contraction_plan as plan
from einsmith.kernels.contraction_plan import Config
from einsmith.kernels.contraction_problem import Problem
from einsmith.kernels.contraction_sample import Pointer

LINE = 64
PAGE = 4096
"""Cache sets are told apart by at most the bits of an address within a page: what lies above is assigned at random."""
BLOCK = 256
"""Points of K in a block: a column of so many pages stays in a usual second-level cache."""
STRIP = 450
"""Bytes: a strip of so many, read row by row across pages, takes twice the time of the same bytes in one stretch."""
HELD = 0.75
"""The part of the second level that a side which is walked again and again may fill."""
SWEEP = 16
"""Points of K up to which the blocks of an operand with few rows are read as so many streams."""


@dataclass(frozen=True)
class Steps:
    """Bytes from one point to the next, along a side's innermost axes and along K; 0 where there is none."""

    side: int
    k: int


def held(level: int, stride: int) -> int:
    """Lines of a column at `stride` bytes that a cache of `level` bytes keeps: those at powers of two share sets."""
    return level // max(LINE, min(PAGE, stride & -stride))


@lru_cache(maxsize=4096)
def steps(kernel: Kernel, p: Problem, swap: bool, which: int) -> Steps:
    """Of the M side (which = 0) or the N side, read in place."""
    side = plan.sides(p, swap)[which]
    pointers = {s: Pointer(None, b.shape, b.dtype) for s, b in _buffers(kernel)}
    s = plan.sampler(None, p, side, pointers, (), 0)
    if not s.reads:
        return Steps(0, 0)
    coef = s.forms[next(iter(s.reads.values()))].coef

    def step(axes) -> int:
        groups = s.groups(axes)
        return abs(coef.get(groups[-1].inner, 0)) * p.dtype.itemsize if groups else 0

    return Steps(step(side.axes), step(p.k))


def _buffers(kernel: Kernel):
    return ((slot, kernel.buffers[ref[1]]) for slot, ref in enumerate(kernel.stages[0].args))


def row_conflicts(c: Config, a: Steps, item: int, l1: int) -> float:
    """Cycles a row and point of K, where rows of M read in place push each other out of the first level."""
    if c.a != "inline" or a.k != item or a.side < LINE:
        return 0.0
    fit = rows_that_fit(a, l1)
    return 1.2 * min(1.0, ((c.mr - fit) / (2 * fit)) ** 2) if c.mr > fit else 0.0


def rows_that_fit(a: Steps, l1: int) -> int:
    """Rows of M read in place of which a line each stays in the first level, beside what else is read."""
    return max(1, held(l1, a.side) * 2 // 3)


def again(
    c: Config, a: Steps, b: Steps, sizes: tuple[int, int, int, int], kc: int, nr: int, item: int, l2: int
) -> float:
    """Bytes that come from beyond the second level more than once: blocks of K too long for it. sizes: (M, N, K, batch)
    in points."""
    m, n, k, batch = sizes
    mt, nt = -(-m // c.mr), -(-n // nr)
    out = 0.0
    if c.a == "inline" and a.k > item and kc > held(l2, a.k) and m * k * item > l2:
        lines = -(-c.mr * item // LINE) if a.side == item else c.mr
        out += batch * mt * nt * k * lines * LINE
    if mt > 1:
        apart = c.b == "inline" and kc > held(l2, b.k) and n * k * item > l2
        out += batch * (mt - 1) * n * k * item if apart or kc * nr * item > l2 * 0.4 else 0.0
    return out


def inner_bytes(p: Problem, c: Config) -> float:
    """Bytes of a task's range of the side that the inner loop walks, at one point of the batch."""
    side, parts = plan.sides(p, c.swap)[c.order == "m"], c.tn if c.order == "m" else c.tm
    return p.count(side.axes) * p.count(p.k) * p.dtype.itemsize / (parts * c.split)


def in_cache(p: Problem, c: Config, target: Any) -> Config:
    """The configuration with more tasks along the side of the inner loop, so that a task's range of it stays in the
    second level while the outer side is walked; the same where it does already."""
    parts = ceil(inner_bytes(p, replace(c, tm=1, tn=1)) / (target.l2 * HELD))
    outer = max(1, ceil(4 * target.cores / (p.count(p.batch) * c.split * parts)))
    m, n = (p.count(s.axes) for s in plan.sides(p, c.swap))
    if c.order == "m":
        tiles = ceil(n / (c.nv * target.lanes(p.dtype.itemsize)))
        return replace(c, tm=min(c.tm, outer), tn=max(c.tn, min(tiles, parts)))
    return replace(c, tm=max(c.tm, min(ceil(m / c.mr), parts)), tn=min(c.tn, outer))


def scattered(stride: int, size: int, l2: int) -> float:
    """Cycles of the store of one lane of a vector whose lanes lie `stride` bytes apart, into `size` bytes: lines at
    powers of two push each other out before their neighbours are stored."""
    return 1.5 if held(l2, stride) > l2 // 1024 else 1.5 + min(30.0, 60.0 * size / l2)


def strips(c: Config, s: Steps, points: int, k: int, width: int, item: int, l2: int) -> float:
    """How many times longer than in one stretch a side of `points` takes to arrive, less 1, when read in place or
    packed in strips of `width`."""
    if s.side != item or s.k < PAGE or points * k * item <= l2 or (c.order == "m" and 0 < c.kc <= SWEEP):
        return 0.0
    return STRIP / max(LINE, min(width, points) * item)


def blocks_of_k(k: int, unit: int = 1) -> int:
    """Points of K in each of the fewest even blocks of at most BLOCK, which are multiples of `unit`."""
    whole = k // unit
    return -(-whole // -(-whole // (BLOCK // unit))) * unit


def sweeps(m: int, n: int, k: int, batch: int, b: Steps, nv: int, item: int, target: Any) -> list[Config]:
    """For few rows and an N side of many bytes, contiguous along N: a few points of K at a time over the whole of N, in
    parts of K that are added later."""
    if m > 4 or b.side != item or b.k < PAGE or n * k * item <= target.l2 or k < 8 * target.cores:
        return []
    split = 1 if target.cores == 1 else max(1, -(-4 * target.cores // batch))
    return [Config(False, m, nv, "inline", "inline", "m", 8, split)]
