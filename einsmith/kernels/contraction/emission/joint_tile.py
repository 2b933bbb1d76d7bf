"""Two pieces of a contraction whose results lie between each other, made tile by tile and stored in whole stretches.

The gradient of a strided convolution leaves every other element of a row to another piece. Each alone would fetch and
write every line of the results, in parts; a tile of both has all of its lines' elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from einsmith.kernels.contraction.config import Tiled
from einsmith.kernels.contraction.emission import pack
from einsmith.kernels.contraction.emission.blocked import Blocked
from einsmith.kernels.contraction.emission.frame import Panel, Task
from einsmith.kernels.contraction.geometry import Geometry
from einsmith.kernels.contraction.problem import Problem
from einsmith.kernels.emit.walk import Bound
from einsmith.loops.nest import Builder, Value
from einsmith.plan.kernel import Kernel

Joint = tuple[tuple[int, int], ...]
"""Numbers of pieces: of a companion, and of the piece whose tiles make its sums too and store both."""


class JointTiles(Blocked):
    """Emission of a kernel function that makes two pieces. configs: the companion's, the problem's; problem: has a
    companion, which by itself is `other`; `companion` reads this piece's halo copies where these have what it reads.
    bases: bytes of the workspace before each one's part."""

    def __init__(
        self, kernel: Kernel, configs: Sequence[Tiled], target: Any, b: Builder, problem: Problem, other: Problem,
        bases: Sequence[int] = (0, 0),
    ):
        super().__init__(b, Geometry(kernel, configs[1], target, problem), bases[1])
        lent = self.f.windows
        self.companion = Blocked(b, Geometry(kernel, configs[0], target, other, [w for w, _ in lent]), bases[0], lent)
        self.sums = b.alloc(self.f.elem, self.after.tile_size)
        self.columns: Value | None = None
        if self.after.transposed:
            self.columns = b.alloc(self.f.elem, self.g.nr * self.after.column_pad)

    def begin(self, task: Value) -> Task:
        t = super().begin(task)
        t.companion = self.companion.begin(task)
        return t

    def open_panel(self, t: Task, jn: Value, nv: int, limit: int | None) -> Panel:
        panel = super().open_panel(t, jn, nv, limit)
        assert t.companion is not None
        return panel._replace(companion=self.companion.open_panel(t.companion, jn, nv, limit))

    def tile(
        self, t: Task, jm: Value, mr: int, panel: Panel, lo: Bound, hi: Bound, last: Value | None, left: Value | None,
        right: Value | None, number: Value,
    ) -> None:
        b, f, g, n, nv = self.b, self.f, self.g, self.g.lanes, panel.nv
        other, whole = self.companion, self.companion.g.K
        assert t.companion is not None
        m0 = b.mul(jm, b.const(g.mr))
        self.after.ask(t, m0, mr, panel)
        a = pack.left(other.f, t.companion, jm, mr, 0, whole)
        second = pack.right(other.f, t.companion, panel.companion, 0, whole)
        places = [[b.const((i * nv + v) * n) for v in range(nv)] for i in range(mr)]
        rows = other.tile_sums.sums(t.companion, jm, mr, panel.companion, 0, whole, a, second, number)
        for row, at in zip(rows, places, strict=True):
            for x, place in zip(row, at, strict=True):
                b.store(x, self.sums, place)
        rows = self.tile_sums.sums(t, jm, mr, panel, lo, hi, left, right, number)

        def again(places: Sequence[Value]) -> list[Value]:
            return [b.load(self.sums, x, f.elem, n) for x in places]

        if self.after.transposed:
            assert self.after.columns is not None and self.columns is not None
            self.after.transpose(rows, self.after.columns, nv)
            self.after.transpose([again(x) for x in places], self.columns, nv)
            self.after.finish_columns(t, [self.after.columns, self.columns], mr, m0, panel)
            return
        s = self.after.epilogue.sampler
        for i, (row, at) in enumerate(zip(rows, places, strict=True)):
            part = s.part_of(g.m_side.axes, b.add(m0, b.const(i)))
            self.after.epilogue.row(panel.results, part, row, again(at))
