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
from einsmith.kernels.contraction.geometry import Geometry
from einsmith.kernels.contraction.problem import Problem
from einsmith.loops.nest import Builder, Value
from einsmith.plan.kernel import Kernel

Joint = tuple[tuple[int, int], ...]
"""Numbers of pieces: of a companion, and of the piece whose tiles make its sums too and store both."""


class JointTiles(Blocked):
    """Emission of a kernel function that makes two pieces. configs: the companion's, the problem's; problem: has a
    companion, which by itself is `other`. bases: bytes of the workspace before each one's part."""

    def __init__(
        self, kernel: Kernel, configs: Sequence[Tiled], target: Any, b: Builder, problem: Problem, other: Problem,
        bases: Sequence[int] = (0, 0),
    ):
        super().__init__(b, Geometry(kernel, configs[1], target, problem), bases[1])
        self.companion = Blocked(b, Geometry(kernel, configs[0], target, other), bases[0])

    def begin(self, task: Value) -> Task:
        t = super().begin(task)
        t.companion = self.companion.begin(task)
        return t

    def open_panel(self, t: Task, panel: Strip) -> Strip:
        assert t.companion is not None
        companion = self.companion.open_panel(t.companion, panel)
        return super().open_panel(t, panel)._replace(companion=companion)

    def tile(self, t: Task, x: Tile) -> None:
        f, own, mate = self.companion.f, t.companion, self.after.mate
        assert own is not None and mate is not None
        left = pack.packed(f, own, f.g.a, x.rows, 0, f.g.K)
        right = pack.packed(f, own, f.g.b, x.panel, 0, f.g.K)
        other = x._replace(panel=x.panel.companion, lo=0, hi=f.g.K, left=left, right=right)
        mate.store(self.companion.tile_sums.sums(own, other), x.number)
        self.after.finish(t, x, self.tile_sums.sums(t, x))
