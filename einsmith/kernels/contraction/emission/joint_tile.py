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
from einsmith.kernels.contraction.emission.frame import Strip, Task, Tile
from einsmith.kernels.contraction.emission.tile_epilogue import TileSums
from einsmith.kernels.contraction.geometry import Geometry
from einsmith.kernels.contraction.problem import Problem
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
        self.sums = TileSums(self.f, 1)
        self.columns: Value | None = None
        if self.after.transposed:
            self.columns = b.alloc(self.f.elem, self.g.nr * self.after.column_pad)

    def begin(self, task: Value) -> Task:
        t = super().begin(task)
        t.companion = self.companion.begin(task)
        return t

    def open_panel(self, t: Task, panel: Strip) -> Strip:
        assert t.companion is not None
        companion = self.companion.open_panel(t.companion, panel)
        return super().open_panel(t, panel)._replace(companion=companion)

    def tile(self, t: Task, x: Tile) -> None:
        b, g, after, f, own = self.b, self.g, self.after, self.companion.f, t.companion
        assert own is not None
        after.ask(t, x)
        left = pack.packed(f, own, f.g.a, x.rows, 0, f.g.K)
        right = pack.packed(f, own, f.g.b, x.panel, 0, f.g.K)
        other = x._replace(panel=x.panel.companion, lo=0, hi=f.g.K, left=left, right=right)
        self.sums.store(self.companion.tile_sums.sums(own, other), x.number)
        rows = self.tile_sums.sums(t, x)
        if after.transposed:
            assert after.columns is not None and self.columns is not None
            after.transpose(rows, after.columns, x.panel.size)
            after.transpose(self.sums.rows(x.number, x.rows.size, x.panel.size), self.columns, x.panel.size)
            after.finish_columns(t, x, [after.columns, self.columns])
            return
        m0, s = b.mul(x.rows.number, b.const(g.mr)), after.epilogue.sampler
        for i, row in enumerate(rows):
            part = s.part_of(g.m_side.axes, b.add(m0, b.const(i)))
            after.epilogue.row(x.panel.results, part, row, self.sums.load(x.number, b.const(i), x.panel.size))
