"""Which lines tiles and packing ask for before they need them, and those that results are stored to.

Results whose neighbours along an axis are a few elements apart (a strided convolution's gradient leaves what lies
between them to other pieces) are stored to parts of lines. A store to a line that no near cache holds waits for it, and
only so many stores can wait at once: a tile whose results lie beyond the second level would stand still at its end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from einsmith.kernels.contraction import epilogue as finish
from einsmith.kernels.contraction.config import Side
from einsmith.kernels.contraction.geometry import Geometry
from einsmith.kernels.contraction.problem import Problem
from einsmith.kernels.contraction.traffic import APART, address_steps, far_rows, lines_ahead
from einsmith.kernels.emit.access import OperandAccess, PartialAddress
from einsmith.kernels.emit.address import Affine, Memory
from einsmith.kernels.emit.cursor import LaneCursor
from einsmith.loops.nest import Builder, Value
from einsmith.loops.walk import ceil_div
from einsmith.plan.kernel import Kernel
from einsmith.target.facts import LINE

MOST = 128
"""Lines of a tile's results beyond which none is asked for: they would not wait in the first level side by side."""


class ResultPrefetch:
    """The lines that tiles with sides `m` and `n` store to in parts, of results of more than `level` bytes."""

    def __init__(
        self, b: Builder, kernel: Kernel, p: Problem, memories: Mapping[int, Memory], m: Sequence[int],
        n: Sequence[int], level: int,
    ):
        self.b, self.m, self.n = b, tuple(m), tuple(n)
        stored, found = finish.results(kernel, p), list[tuple[int, Affine]]()
        for out, at in zip(stored.outputs, stored.places, strict=True):
            buffer = kernel.buffers[out]
            line = LINE / buffer.dtype.itemsize
            # Of results that lie between each other the first one's lines are everyone's.
            same = any(x == out and f.coef == at.coef and abs(f.const - at.const) < line for x, f in found)
            if buffer.nbytes > level and not same:
                found.append((out, at))
        self.buffers = [out for out, _ in found]
        self.sampler = OperandAccess(b, (), (), p.extents, memories, (), 0, [at for _, at in found])

    def _step(self, form: int, axes: Sequence[int]) -> int:
        """Elements from one of the flattened points to the next; 0 for none."""
        groups = self.sampler.groups(axes)
        return abs(self.sampler.forms[form].coef.get(groups[-1].inner, 0)) if groups else 0

    def _touching(self, form: int, axes: Sequence[int], line: int, count: int) -> Sequence[int]:
        """Of `count` flattened points some that together touch the lines of all, wherever the first one lies. They may
        follow each other for a few elements only and go on elsewhere."""
        groups, coef, step = self.sampler.groups(axes), self.sampler.forms[form].coef, self._step(form, axes)
        out: list[int] = []
        first = at = 0
        for n in range(count):
            at, rest = 0, n
            for g in reversed(groups):
                at += abs(coef.get(g.inner, 0)) * (rest % g.extent)
                rest //= g.extent
            if n == 0 or not 0 <= at - first <= line - step:
                out.append(n)
                first = at
        # The last ones may lie over the border of a line.
        return [*out, count - 1] if at - first >= line // 2 else out

    def _lines(self, form: int, line: int, rows: int, columns: int) -> tuple[Sequence[int], Sequence[int]]:
        """The rows and the columns of a tile that together touch all lines of `line` elements."""
        if not any(1 < self._step(form, axes) < line for axes in (self.m, self.n)):
            return (), ()
        some, others = (self._touching(form, a, line, n) for a, n in ((self.m, rows), (self.n, columns)))
        return (some, others) if len(some) * len(others) <= MOST else ((), ())

    def ask(self, batch: PartialAddress, m0: Value, rows: int, n0: Value, columns: int) -> None:
        """Starts the loads of a tile's lines; what lies past the last column is nobody's."""
        b, s = self.b, self.sampler
        last = b.const(prod(g.extent for g in s.groups(self.n)) - 1)
        for form, out in zip(s.extra, self.buffers, strict=True):
            to = s.memories[out]
            some, others = self._lines(form, LINE // to.dtype.itemsize, rows, columns)
            base = LaneCursor(s, 0, None).bind(batch)
            for j in others:
                column = base.bind(s.part_of(self.n, b.op("min", b.add(n0, j), last)))
                for i in some:
                    at = column.bind(s.part_of(self.m, b.add(m0, i))).offset(form)
                    b.prefetch(to.pointer, at, to.elem)


class Prefetches(NamedTuple):
    """What the tiles and the packing of a configuration ask for before they need it. lines: of the next panel of N, by
    each tile at every point of K, far_lines of which a row has; source_rows: rows along K, of which the next panel of N
    is packed, by each tile instead, 0 for none; along: packing along K asks further along it; rows, gathered: tiles ask
    for the rows of M of the next one, which lie along K or in several axes of it."""

    lines: int
    far_lines: int
    source_rows: int
    along: bool
    rows: bool
    gathered: bool


def prefetches(g: Geometry) -> Prefetches:
    """Those of a configuration."""
    c = g.c
    lines, far_lines = _lines_ahead(g)
    far = g.b.along and _streams(g, g.n_side, g.N)
    source_rows = _source_rows(g) if far else 0
    along = far and not source_rows
    if along:
        s = g.access(g.n_side, g.p.k, g.lanes)
        along = all(s.kind(f, g.k_unit) == "unit" for f in s.reads.values())
    rows = c.a == "inline" and c.order == "n" and g.mt > 1 and g.mr * c.nv >= 16 and _streams(g, g.m_side, g.M)
    return Prefetches(lines, far_lines, source_rows, along, rows, not rows and _gathers_rows(g))


def _lines_ahead(g: Geometry) -> tuple[int, int]:
    """Lines of the next panel of N that each tile asks for at every point of K, and how many a row of it has."""
    c = g.c
    if c.order == "m" or c.b == "buffer" or c.windows or c.rows or c.kc:
        return 0, 0
    if 2 * g.kc * g.nr * g.item >= g.target.l2 * g.target.overheads.held:
        return 0, 0
    far = far_rows(address_steps(g, g.n_side), g.N * g.K, g.item, g.target.l2)
    asks, m, n, mr, nv, tm = np.array([far, g.M, g.N, g.mr, c.nv, c.tm])
    return int(lines_ahead(asks, m, n, mr, nv, g.lanes, tm)), far


def _source_rows(g: Geometry) -> int:
    """Rows of the next panel's source that each tile of a block of K asks for: memory is then busy while tiles
    multiply, and packing need not wait for it. Blocks lie within rows, but for a few."""
    c, s = g.c, g.access(g.n_side)
    if not (g.blocked and c.order == "n" and g.mr * c.nv >= 16 and len(s.groups(g.n_side.axes)) == 1):
        return 0
    if s.groups(g.p.k)[-1].extent < 2 * g.kc:
        return 0
    return ceil_div(min(g.nr, g.N), max(1, g.mt // c.tm))


def _streams(g: Geometry, side: Side, points: int) -> bool:
    """Whether the rows of a side are streams along K, far apart and beyond the second level."""
    if g.c.windows or not side.operand.plain:
        return False
    found = address_steps(g, side)
    return found.k == g.item and found.side >= APART and points * g.K * g.item > g.target.l2


def _gathers_rows(g: Geometry) -> bool:
    """Whether rows of M are read in place, beyond the second levels, along several axes of K: what follows is near
    nothing that hardware has seen."""
    c = g.c
    if c.a != "inline" or c.windows or not g.m_side.operand.plain or g.mr * c.nv < 16:
        return False
    s = g.access(g.m_side)
    (read,) = s.reads
    far = s.memories[read.slot].buffer.nbytes > g.target.l2 * g.target.cores
    return far and g.mt > c.tm and len(s.groups(g.p.k)) > 1
