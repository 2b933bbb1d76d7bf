"""Pack several points of K of each point of N into the lanes of a vector.

24 points of N fill three quarters of two vectors of 16 lanes. Three vectors hold them at two points of K: [n0 at k0, n0
at k1, n1 at k0, ...]. A tile multiplies these by equally many neighbours along K of a row of M, repeated along a vector
as by a broadcast of 64 or 128 bits, and lanes of one point of N are added at the end of K.
"""

from __future__ import annotations

from collections.abc import Sequence

from einsmith.codegen.loopnest.lanes import pick_lanes
from einsmith.codegen.loopnest.nest import Builder
from einsmith.codegen.ssa import SSAValue


def repeat_elements(b: Builder, pointer: SSAValue, offset: SSAValue, elem: str, depth: int, lanes: int) -> SSAValue:
    """Return a vector that repeats `depth` elements from memory."""
    if depth == 1:
        return b.splat(b.load(pointer, offset, elem), lanes)
    few = b.load(pointer, offset, elem, depth)
    return b.shuffle(few, few, [*range(depth)] * (lanes // depth))


def add_lanes(b: Builder, row: Sequence[SSAValue], depth: int) -> list[SSAValue]:
    """Return vectors with one lane for each point of N, the sum of its `depth` lanes, padded with zeros."""
    out = list(row)
    while depth > 1:
        n = out[0].type.lanes
        if len(out) % 2:
            out.append(b.const(0.0, out[0].type.elem, n))
        pairs, depth = zip(out[::2], out[1::2], strict=True), depth // 2
        out = [b.add(*(pick_lanes(b, x, (0, n), range(odd, 2 * n, 2)) for odd in (0, 1))) for x in pairs]
    return out
