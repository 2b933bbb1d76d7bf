"""In which order a program's lanes read and write one element: what a store may touch that the program has loaded since
the last barrier. Lanes are threads that nothing holds together, so that one may store what another has yet to load."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from einsmith.codegen.ssa import Loop, Op, SSAValue
from einsmith.gpu.tiles.ir import TileFunction

Loads = frozenset[int]
"""Load instructions, by `id`."""


def gathered(f: TileFunction) -> dict[int, Loads]:
    """For each store the loads whose lanes meet, in a `reduce` or a `dot`, in what it stores: these are done before."""
    reached: dict[SSAValue, Loads] = {}
    met: dict[SSAValue, Loads] = {}
    out: dict[int, Loads] = {}

    def of(known: dict[SSAValue, Loads], values: Sequence[SSAValue | None]) -> Loads:
        return frozenset().union(*(known.get(v, frozenset()) for v in values if v is not None))

    def visit(body: Sequence[Op | Loop]) -> None:
        for x in body:
            if isinstance(x, Loop):
                for known in (reached, met):
                    for inside, result, first in zip(x.carried, x.results, x.init, strict=True):
                        known[inside] = known[result] = of(known, [first, x.lo, x.hi])
                for _ in range(len(x.carried) + 1):  # which passes on what one turn hands to the next
                    visit(x.body)
                    for known in (reached, met):
                        for inside, result, after in zip(x.carried, x.results, x.next, strict=True):
                            known[inside] = known[result] = known[inside] | of(known, [after])
                continue
            below = of(reached, x.args)
            together = of(met, x.args) | (below if x.name in ("reduce", "dot") else frozenset())
            for v in x.results:
                reached[v] = below | ({id(x)} if x.name == "load" else frozenset())
                met[v] = together
            if x.name == "store":
                out[id(x)] = together

    visit(f.body)
    return out


def another_lane(read: np.ndarray, reading: np.ndarray, written: np.ndarray, writing: np.ndarray) -> bool | None:
    """Whether a lane writes an element that another lane has read: offsets, and where these are touched. A scalar, or a
    tile with an extent of 1, is read by all lanes along it that write. None: the lanes of the tiles are not comparable,
    and both touch an element."""
    if not read.ndim:
        read, reading = (x.reshape((1,) * written.ndim) for x in (read, reading))
    if not np.isin(written[writing], read[reading]).any():
        return False
    alike = read.ndim == written.ndim and all(n in (1, m) for n, m in zip(read.shape, written.shape, strict=True))
    if not alike:
        return None
    wide = read.shape != written.shape
    on = np.broadcast_to(reading, written.shape) & (writing if wide else True)
    writer = dict(zip(written[writing].tolist(), np.flatnonzero(writing).tolist(), strict=True))
    elements = np.broadcast_to(read, written.shape)[on].tolist()
    return any(writer.get(e, n) != n for e, n in zip(elements, np.flatnonzero(on).tolist(), strict=True))
