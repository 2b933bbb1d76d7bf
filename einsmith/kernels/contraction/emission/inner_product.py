"""The form for few results and a long K: vectors lie along K, and every result has a vector of partial sums.

The weight gradient of a first convolution, dW[o,r,s] = sum[b,p,q](dY[b,o,p,q] * X[b,p+r,q+s]), has 150 results and a K
of 200,000 whose last axes are contiguous in both operands. Each task takes a range of the first axis of K and, for each
of its points walks the tiles of mr x nv results with the other axes of K in vectors. The lanes are added at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import Any

from einsmith.kernels.contraction.config import InnerProducts, sampler
from einsmith.kernels.contraction.emission.frame import Operands, TileSums, workspace
from einsmith.kernels.contraction.emission.nan_repair import NanRepair
from einsmith.kernels.contraction.geometry import PartialSums
from einsmith.kernels.contraction.problem import Problem
from einsmith.kernels.contraction.setting import Setting
from einsmith.kernels.emit.access import OperandAccess
from einsmith.kernels.emit.cursor import LaneCursor
from einsmith.loops.nest import Builder, Value
from einsmith.loops.walk import ceil_div, digits, part_bounds, strips, tiles
from einsmith.plan.kernel import Kernel

MAX_RESULTS = 4096
"""Results of a point of the batch: their vectors of sums lie in a private second-level cache."""
MIN_K = 4096
MAX_UNROLLED = 32
"""Vectors of a row of K up to which they are unrolled, so that masks at known columns are constants; the code of more
of them leaves the first level of the instruction cache."""


def row_length(s: Setting) -> int | None:
    """0 where the axes of K but the first are one group in both operands; else their innermost extent in whole vectors;
    None where that would waste too many lanes."""
    inner = s.p.k[1:]
    if all(len(s.access(side).groups(inner)) <= 1 for side in (s.m_side, s.n_side)):
        return 0
    last = s.p.extents[inner[-1]]
    row = -(-last // s.lanes) * s.lanes
    return row if last / row >= 0.6 else None


def fits(s: Setting) -> bool:
    """Whether this form is worth a configuration."""
    p = s.p
    if len(p.k) < 2 or s.M * s.N > MAX_RESULTS or s.K < MIN_K or p.extents[p.k[0]] < 2:
        return False
    return p.count(p.k[1:]) >= 2 * s.lanes and row_length(s) is not None


def points(p: Problem, row: int) -> int:
    """Those of K for one point of its first axis, rows of it filled up to `row`."""
    count = p.count(p.k[1:])
    return count // p.extents[p.k[-1]] * row if row else count


class Shape(Setting):
    """What follows from a configuration before anything is emitted. k_row: points of a row of the inner K in whole
    vectors, 0 where it is one group; points: of the inner K."""

    def __init__(self, kernel: Kernel, config: InnerProducts, target: Any, problem: Problem):
        super().__init__(kernel, problem, config.windows, config.swap, False, target)
        self.c = config
        self.mt, self.nt = ceil_div(self.M, config.mr), ceil_div(self.N, config.columns)
        self.k_row = row_length(self) or 0
        self.points = points(self.p, self.k_row)
        self.tasks = self.B * config.split
        self.partials = PartialSums(self.B, self.M, self.N, self.lanes, config.split, 0)


class InnerProduct(Operands):
    """Emission of this form; partial sums and their addition are those of every split contraction."""

    def __init__(self, b: Builder, g: Shape, base: int = 0):
        p, n, axes = g.p, g.lanes, g.p.k[1:]
        super().__init__(b, g.kernel, p.dtype, n, g.halos)
        self.g = g
        self.workspace = workspace(b, base, p.dtype.itemsize, self.elem)
        self.repair = NanRepair(b, g.original, self.arguments, (), 0, g.c.mr * g.c.columns * n)
        self.operands = [sampler(b, p, side, self.slots, axes, n, g.k_row) for side in (g.m_side, g.n_side)]

    def run(self, task: Value) -> None:
        """Emits a task."""
        b, g, p, n, c = self.b, self.g, self.g.p, self.g.lanes, self.g.c
        batch, split = digits(b, task, (g.B, c.split))
        sums = TileSums(b, self.elem, g.mt * g.nt, c.mr, c.columns * n, n)
        sums.clear(sums.tiles)
        with b.loop(*part_bounds(b, p.extents[p.k[0]], split, c.split)) as first:
            point = digits(b, batch, [p.extents[a] for a in p.batch])
            self.fill({**dict(zip(p.batch, point, strict=True)), p.k[0]: first.var})
            self._tiles(partial(self._multiply, sums, ((p.batch, batch), (p.k[:1], first.var))))

        def finish(tile: Value, m0: Value, mr: int, n0: Value, nc: int) -> None:
            for i in range(mr):
                out = g.partials.place(b, split, batch, b.add(m0, i), n0)
                for j, x in enumerate(sums.load(tile, i, nc)):
                    b.store(b.horizontal("add", x), self.workspace, b.add(out, j))

        self._tiles(finish)

    def _tiles(self, body: Callable[[Value, Value, int, Value, int], None]) -> None:
        """body(number, first row, rows, first column, columns) for every tile."""
        b, g, mr, columns = self.b, self.g, self.g.c.mr, self.g.c.columns

        def tile(jm: Value, rows: int, jn: Value, nc: int) -> None:
            body(b.add(b.mul(jm, g.nt), jn), b.mul(jm, mr), rows, b.mul(jn, columns), nc)

        def row(jm: Value, rows: int, _: bool) -> None:
            tiles(b, (0, g.nt), g.nt, g.N, 1, columns, lambda jn, nc, __: tile(jm, rows, jn, nc))

        tiles(b, (0, g.mt), g.mt, g.M, 1, mr, row)

    def _multiply(
        self, sums: TileSums, heads: Sequence[tuple[Sequence[int], Value]], tile: Value, m0: Value, mr: int, n0: Value,
        nc: int,
    ) -> None:
        """Adds what the inner K gives to the sums of a tile; heads: (axes, their point) of what is outside of it."""
        b, g, n = self.b, self.g, self.g.lanes
        own = (g.m_side.axes, m0, mr), (g.n_side.axes, n0, nc)
        rows = [
            [s.part_of(axes, b.add(at, i)) for i in range(count)]
            for s, (axes, at, count) in zip(self.operands, own, strict=True)
        ]
        outside = [[s.part_of(*x) for x in heads] for s in self.operands]

        def step(k: Value, limit: int | None, column: int | Value | None, carried: Sequence[Value]) -> list[Value]:
            left, right = (
                LaneCursor(s, k, limit, n, column=column).bind(*x)
                for s, x in zip(self.operands, outside, strict=True)
            )
            xs, out = [left.bind(x).product() for x in rows[0]], list(carried)
            for j, part in enumerate(rows[1]):
                y = right.bind(part).product()
                for i, x in enumerate(xs):
                    out[i * nc + j] = b.fma(x, y, out[i * nc + j])
            return out

        def row(number: Value, _: int, carried: list[Value]) -> list[Value]:
            """Masks at known columns are constants."""
            at, looped = b.mul(number, g.k_row), 0
            if g.k_row > MAX_UNROLLED * n:
                looped = g.p.extents[g.p.k[-1]] // n * n
            out = strips(b, 0, looped, n, lambda x, _, carried: step(b.add(at, x), None, x, carried), carried)
            for column in range(looped, g.k_row, n):
                out = step(b.add(at, column), None, column, out)
            return out

        def vector(at: Value, count: int, carried: list[Value]) -> list[Value]:
            return step(at, None if count == n else g.points, None, carried)

        init = list(chain(*sums.rows(tile, mr, nc)))
        result = strips(b, 0, g.points // g.k_row, 1, row, init) if g.k_row else strips(b, 0, g.points, n, vector, init)
        place = partial(self._place, heads, m0, n0, nc)
        result = self.repair.sums(result, init, g.p.k[1:], 0, g.p.count(g.p.k[1:]), place)
        sums.store([result[i * nc : (i + 1) * nc] for i in range(mr)], tile)

    def _place(
        self, heads: Sequence[tuple[Sequence[int], Value]], m0: Value, n0: Value, nc: int, s: OperandAccess,
        number: Value,
    ) -> LaneCursor:
        """The place of a result of a tile, for `repair`."""
        b, g = self.b, self.g
        row, column = digits(b, number, (g.c.mr, nc))
        points = (*heads, (g.m_side.axes, b.add(m0, row)), (g.n_side.axes, b.add(n0, column)))
        return LaneCursor(s, 0, None).bind(*(s.part_of(*x) for x in points))


def configs(s: Setting) -> list[InnerProducts]:
    """Tiles of this form for a problem that it fits."""
    if not fits(s) or any(fixes != "k" for _, fixes in s.windows):
        return []
    p, cores, registers = s.p, s.target.cores, s.target.vector_registers
    batch, left, right, _ = p.sizes
    want = max(2, -(-4 * cores // batch))
    want += next(i for i in range(cores) if batch * (want + i) % cores == 0)
    split = min(p.extents[p.k[0]], want)
    out = []
    # What is read under masks is in registers before it is multiplied, of two vectors at once.
    masked = bool(row_length(s))
    for swap, (m, n) in ((False, (left, right)), (True, (right, left))):
        for mr in sorted({min(m, most) for most in ((2, 3) if masked else (4, 6))}):
            nc = min(n, (registers - 2 - mr * (1 + masked)) // mr)
            if nc >= 1:
                nc = -(-n // -(-n // nc))
                out.append(InnerProducts(swap, mr, nc, split=split, windows=s.windows))
    return out
