"""Reduce windows of two neighbours along the lanes: combine whole vectors first, then adjacent pairs of lanes.

before: y[i] = max[u,v](f(x[2*i + v + n*u]))        reads at 2*i and at 2*i + 1, each with every second lane left out
after:  t[z] = max[u](f(x[z + n*u]));  y[i] = max(t[2*i], t[2*i + 1])         z = 2*i + v runs along the lanes
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from einsmith.codegen.loopnest.lanes import pick_lanes
from einsmith.ir.analysis.linear import linear
from einsmith.ir.analysis.reads import uses
from einsmith.ir.nodes import Axis, Expr, Read
from einsmith.ir.rebuild import rebuild
from einsmith.kernels.emit import loops
from einsmith.kernels.emit.boxes import Box
from einsmith.kernels.emit.combine import Accumulators, Combine
from einsmith.kernels.emit.loops import Ramps
from einsmith.kernels.emit.vector import VectorEmitter


@lru_cache(maxsize=1024)
def pair_box(box: Box, axis: int) -> Box | None:
    """Return the box with the variable z = 2 * axis + last as its last reduction axis; None where that is impossible.

    The last reduction axis must have two points, and the bodies must use `axis` (the output axis of the lanes) and
    `last` only as z, so that the new bodies do not depend on `axis`."""
    if box.combiner is None or box.combiner.startswith("arg") or box.reduce[-1:] != (2,):
        return None
    x, last = Axis(axis), Axis(box.rank + len(box.reduce) - 1)
    flats, others = uses(box.bodies)
    if others & {x.position, last.position}:
        return None
    if all(f.coefficient(last) == 0 for f in flats) or any(f.coefficient(x) != 2 * f.coefficient(last) for f in flats):
        return None

    def rule(e: Expr) -> Expr | None:
        if not isinstance(e, Read) or not e.index:
            return None
        return Read(e.slot, (linear(e.index[0]).without(x).expr(e.index[0].dtype),), e.dtype)

    return replace(box, bodies=tuple(rebuild(box.bodies, rule)), reduce=(*box.reduce[:-1], 2 * box.extents[axis]))


def list_pair_vectors(em: VectorEmitter, ramps: Ramps) -> list[Ramps]:
    """Return the one or two vectors of z that hold the pairs of each vector of outputs."""
    n, out = em.lanes, []
    for at, active in ramps:
        base = 2 * at.base if isinstance(at.base, int) else em.op("mul", at.base, em.const(2))
        points, first = 2 * (n if active is None else active), 2 * at.pattern[0]
        out.append(loops.make_ramps(base, points, n, 2 * at.multiple, first))
    return out


def merge_pairs(combine: Combine, states: Sequence[Accumulators]) -> Accumulators:
    """Merge lanes 2l and 2l + 1 of one or two vectors into lane l; lanes without a pair hold any value."""
    em = combine.em
    starts = [i * em.lanes for i in range(len(states))]
    end = em.lanes * len(states)
    even, odd = ([pick_lanes(em, x, starts, range(r, end, 2)) for x in zip(*states, strict=True)] for r in (0, 1))
    return combine.merge(even, odd)
