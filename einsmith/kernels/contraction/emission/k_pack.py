"""Vectors of N whose lanes hold several points of K of each point of N.

24 points of N fill three quarters of two vectors of 16 lanes. Three vectors hold them at two points of K: [n0 at k0,
n0 at k1, n1 at k0, ...]. A tile multiplies these by as many neighbours along K of a row of M, repeated along a vector
as a broadcast of 64 or 128 bits is, and lanes of the same point of N are added when K is done.
"""

from __future__ import annotations

from collections.abc import Sequence

from einsmith.kernels.contraction.config import WindowSetting
from einsmith.kernels.contraction.emission.nan_repair import needed
from einsmith.loops.nest import Builder, SSAValue

WIDEST = 16
"""Bytes that are repeated along a vector at most: what instructions broadcast, and what packing moves as one."""


def depth_of(n: int, lanes: int, item: int) -> int:
    """The points of K in the lanes of vectors that hold n points of N, of `item` bytes each, with which the fewest
    lanes stay empty."""
    return min((d for d in (1, 2, 4) if d * item <= WIDEST and d <= lanes), key=lambda d: (-(-n * d // lanes) / d, d))


def fits(s: WindowSetting, depth: int, blocks: Sequence[int]) -> bool:
    """Whether so many points of K stand side by side in the rows of M, and none of K's parts and blocks, of so many
    points each, ends between them."""
    rows = s.access(s.m_side)
    groups = rows.groups(s.p.k)
    if not s.m_side.operand.plain or not groups or needed(s.p) or any(x % depth for x in (groups[-1].extent, *blocks)):
        return False
    return all(f.coef.get(groups[-1].inner) == 1 for f in rows.forms)


def repeated(b: Builder, pointer: SSAValue, offset: SSAValue, elem: str, depth: int, lanes: int) -> SSAValue:
    """`depth` neighbours in memory, again and again along a vector."""
    if depth == 1:
        return b.splat(b.load(pointer, offset, elem), lanes)
    few = b.load(pointer, offset, elem, depth)
    return b.shuffle(few, few, [*range(depth)] * (lanes // depth))


def added(b: Builder, row: Sequence[SSAValue], depth: int) -> list[SSAValue]:
    """Vectors with one lane for each point of N: the sums of its `depth` lanes. The rest of the last one is zero."""
    out = list(row)
    while depth > 1:
        n = out[0].type.lanes
        if len(out) % 2:
            out.append(b.const(0.0, out[0].type.elem, n))
        pairs, depth = zip(out[::2], out[1::2], strict=True), depth // 2
        out = [b.add(*(b.shuffle(x, y, range(odd, 2 * n, 2)) for odd in (0, 1))) for x, y in pairs]
    return out
