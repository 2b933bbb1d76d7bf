"""Two pieces of a contraction whose results lie between each other, made tile by tile and stored in whole stretches.

The gradient of a strided convolution leaves every other element of a row to another piece. Each alone would fetch and
write every line of the results, in parts; a tile of both has all of its lines' elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from einsmith.kernels.contraction.blocked import Lowering
from einsmith.kernels.contraction.config import Config
from einsmith.kernels.contraction.problem import Problem
from einsmith.loops.nest import Builder, Value
from einsmith.plan.kernel import Kernel

Joint = tuple[tuple[int, int], ...]
"""Numbers of pieces: of a mate, and of the piece whose tiles make its sums too and store both."""


class _Companion(Lowering):
    """A piece whose sums another one's tasks make, from their windows where these have what it reads."""

    def __init__(self, kernel: Kernel, config: Config, target: Any, b: Builder, problem: Problem, host: Lowering):
        self.lent = host.windows
        super().__init__(kernel, config, target, b, problem)


class Joined(Lowering):
    """Emission of a kernel function that makes two pieces. configs: the mate's, the problem's; problem: has a mate,
    which by itself is `other`; `mate` is the lowering of that, which is not run itself."""

    def __init__(
        self, kernel: Kernel, configs: Sequence[Config], target: Any, b: Builder, problem: Problem, other: Problem
    ):
        super().__init__(kernel, configs[1], target, b, problem)
        self.mate = _Companion(kernel, configs[0], target, b, other, self)
        self.room = b.alloc(self.elem, self.tile_size)
        self.turn_room = b.alloc(self.elem, self.nr * self.turn_row) if self.turned else None

    def _begin(self, task: Value) -> None:
        super()._begin(task)
        self.mate._begin(task)

    def _n_states(self, jn: Value, nv: int) -> None:
        super()._n_states(jn, nv)
        self.mate.limit = self.limit
        self.mate._n_states(jn, nv)

    def _tile(self, jm: Value, mr: int, jn: Value, nv: int, lo, hi, last, slab, panel, number: Value) -> None:
        b, n, mate = self.b, self.lanes, self.mate
        m0 = b.mul(jm, b.const(self.mr))
        self._ask_results(m0, mr, jn, nv)
        a, right = mate._a_panel(jm, mr, 0, mate.K), mate._b_panel(jn, nv, 0, mate.K)
        places = [[b.const((i * nv + v) * n) for v in range(nv)] for i in range(mr)]
        for row, at in zip(mate._sums(jm, mr, jn, nv, 0, mate.K, a, right, number), places, strict=True):
            for x, place in zip(row, at, strict=True):
                b.store(x, self.room, place)
        rows = self._sums(jm, mr, jn, nv, lo, hi, slab, panel, number)
        if self.turned:
            assert self.turn_scratch is not None and self.turn_room is not None
            self._turned(rows, self.turn_scratch, nv)
            self._turned([self._again(x) for x in places], self.turn_room, nv)
            self._columns([self.turn_scratch, self.turn_room], mr, m0, jn, nv)
            return
        s = self.epi.sampler
        for i, (row, at) in enumerate(zip(rows, places, strict=True)):
            part = s.part_of(self.m_side.axes, b.add(m0, b.const(i)))
            self.epi.row(self.e_states, part, row, self._again(at))

    def _again(self, places: Sequence[Value]) -> list[Value]:
        """Sums of the mate."""
        return [self.b.load(self.room, x, self.elem, self.lanes) for x in places]
