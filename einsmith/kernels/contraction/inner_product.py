"""The form for few results and a long K: vectors lie along K, and every result has a vector of partial sums.

The weight gradient of a first convolution, dW[o,r,s] = sum[b,p,q](dY[b,o,p,q] * X[b,p+r,q+s]), has 150 results and a K
of 200,000 whose last axes are contiguous in both operands. Each task takes a range of the first axis of K and, for each
of its points walks the tiles of mr x nv results with the other axes of K in vectors. The lanes are added at the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import prod

from einsmith.kernels.contraction.blocked import Lowering
from einsmith.kernels.contraction.config import Config, HaloProblem, Halos, sampler, sides
from einsmith.kernels.contraction.halo import fill
from einsmith.kernels.contraction.nan_repair import NanRepair, needed
from einsmith.kernels.contraction.problem import Problem
from einsmith.kernels.emit.access import FusedAxes, OperandAccess, PartialAddress, Pointer
from einsmith.kernels.emit.cursor import LaneCursor
from einsmith.kernels.emit.walk import digits_of
from einsmith.loops.nest import Value

MAX_RESULTS = 4096
"""Results of a point of the batch: their vectors of sums lie in a private second-level cache."""
MIN_K = 4096


def row_length(p: Problem, pointers: Mapping[int, Pointer], lanes: int) -> int | None:
    """0 where the axes of K but the first are one group in both operands; else their innermost extent in whole vectors;
    None where that would waste too many lanes."""
    inner = p.k[1:]
    merged = all(len(sampler(None, p, s, dict(pointers), (), 0).groups(inner)) <= 1 for s in sides(p, False))
    if merged:
        return 0
    last = p.extents[inner[-1]]
    row = -(-last // lanes) * lanes
    return row if last / row >= 0.6 else None


def fits(p: Problem, pointers: Mapping[int, Pointer], lanes: int) -> bool:
    """Whether this form is worth a configuration."""
    _, left, right, k = p.sizes
    if len(p.k) < 2 or left * right > MAX_RESULTS or k < MIN_K or p.extents[p.k[0]] < 2:
        return False
    if prod(p.extents[a] for a in p.k[1:]) < 2 * lanes:
        return False
    return row_length(p, pointers, lanes) is not None


def vectors(p: Problem, pointers: Mapping[int, Pointer], lanes: int) -> int:
    """Vectors of K for one point of its first axis."""
    row = row_length(p, pointers, lanes)
    count = prod(p.extents[a] for a in p.k[1:])
    if row:
        count = count // p.extents[p.k[-1]] * row
    return -(-count // lanes)


class InnerProductLowering(Lowering):
    """Emission of this form; partial sums and their addition are those of every split contraction."""

    def run(self, task: Value) -> None:
        b, p, n = self.b, self.p, self.lanes
        row = row_length(p, self.slots, n) or 0
        self.row_points = row
        self.sa = sampler(b, p, self.m_side, self.slots, p.k[1:], n, row)
        self.sb = sampler(b, p, self.n_side, self.slots, p.k[1:], n, row)
        self.batch, self.split = b.op("floordiv", task, b.const(self.c.split)), b.op("mod", task, b.const(self.c.split))
        columns = -(-self.N // self.c.nv)
        size = self.mr * self.c.nv * n
        sums = b.alloc(self.elem, self.mt * columns * size)
        with b.loop(0, self.mt * columns * size, step=n) as clear:
            b.store(self.zero, sums, clear.var)
        extent = p.extents[p.k[0]]
        chunk = -(-extent // self.c.split)
        lo = b.mul(self.split, b.const(chunk))
        hi = b.op("min", b.add(lo, b.const(chunk)), b.const(extent))

        def tiles(body) -> None:
            def m_tile(jm: Value, mr: int, _: bool) -> None:
                self._level((0, columns), columns, self.N, 1, self.c.nv, lambda jn, nc, __: body(jm, mr, jn, nc))

            self._level((0, self.mt), self.mt, self.M, 1, self.mr, m_tile)

        def place(jm: Value, jn: Value) -> Value:
            return b.mul(b.add(b.mul(jm, b.const(columns)), jn), b.const(size))

        def multiply(lo: Value | int, hi: Value | int) -> None:
            def tile(jm: Value, mr: int, jn: Value, nc: int) -> None:
                m0, n0 = b.mul(jm, b.const(self.mr)), b.mul(jn, b.const(self.c.nv))
                self._dot_tile(sums, place(jm, jn), m0, mr, n0, nc, lo, hi)

            tiles(tile)

        with b.loop(lo, hi) as first:
            point = digits_of(b, self.batch, [FusedAxes((), p.extents[a]) for a in p.batch])
            self.fixed = {**dict(zip(p.batch, point, strict=True)), p.k[0]: first.var}
            for w, to in self.windows:
                fill(b, w, self.slots, to, n, self.fixed)
            self.heads = [(s.part_of(p.batch, self.batch), s.part_of(p.k[:1], first.var)) for s in (self.sa, self.sb)]
            count = prod(p.extents[a] for a in p.k[1:])
            if row:
                count = count // p.extents[p.k[-1]] * row
            whole = count // n * n
            unit = row or n
            points = -(-self.c.kc // unit) * unit
            if not 0 < points < whole:
                multiply(0, count)
            else:
                with b.loop(0, whole, step=points) as block:
                    multiply(block.var, b.op("min", b.add(block.var, b.const(points)), b.const(whole)))
                if whole < count:
                    multiply(whole, count)

        def finish(jm: Value, mr: int, jn: Value, nc: int) -> None:
            at = place(jm, jn)
            for i in range(mr):
                m = b.add(b.mul(jm, b.const(self.mr)), b.const(i))
                out = b.add(b.mul(b.add(b.mul(self.split, b.const(self.B)), self.batch), b.const(self.M)), m)
                out = b.add(b.mul(out, b.const(self.partial_row)), b.mul(jn, b.const(self.c.nv)))
                out = b.add(out, b.const(self.partial_base()))
                for j in range(nc):
                    x = b.load(sums, b.add(at, b.const((i * self.c.nv + j) * n)), self.elem, n)
                    b.store(b.horizontal("add", x), self.workspace, b.add(out, b.const(j)))

        tiles(finish)

    def _rows_of(self, s: OperandAccess, axes: tuple[int, ...], start: Value, count: int) -> list[PartialAddress]:
        groups = s.groups(axes)
        out = []
        for i in range(count):
            values = digits_of(self.b, self.b.add(start, self.b.const(i)), groups)
            part = s.part(list(zip(groups, values, strict=True)))
            part.axes |= frozenset(axes)
            out.append(part)
        return out

    def _dot_tile(
        self, sums: Value, at: Value, m0: Value, mr: int, n0: Value, nc: int, lo: Value | int, hi: Value | int
    ) -> None:
        """The points lo .. hi of the inner K; what is not known here are whole vectors (and rows, where K has them)."""
        b, p, n = self.b, self.p, self.lanes
        a_rows = self._rows_of(self.sa, self.m_side.axes, m0, mr)
        b_rows = self._rows_of(self.sb, self.n_side.axes, n0, nc)
        places = [b.add(at, b.const((i * self.c.nv + j) * n)) for i in range(mr) for j in range(nc)]
        init = [b.load(sums, x, self.elem, n) for x in places]

        def step(k: Value, limit: int | None, column: int | None, carried) -> list[Value]:
            left = LaneCursor(self.sa, k, limit, n, column=column).bind(*self.heads[0])
            right = LaneCursor(self.sb, k, limit, n, column=column).bind(*self.heads[1])
            xs = [left.bind(r).product() for r in a_rows]
            out = list(carried)
            for j, r in enumerate(b_rows):
                y = right.bind(r).product()
                for i, x in enumerate(xs):
                    out[i * nc + j] = b.fma(x, y, out[i * nc + j])
            return out

        result = init
        if self.row_points:
            row = self.row_points
            start, end = (x // row if isinstance(x, int) else b.op("floordiv", x, b.const(row)) for x in (lo, hi))
            with b.loop(start, end, init=init, runs=True) as loop:
                out = list(loop.carried)
                here = b.mul(loop.var, b.const(row))
                for column in range(0, row, n):
                    out = step(b.add(here, b.const(column)), None, column, out)
                loop.next = out
            result = list(loop.results)
        else:
            whole = hi // n * n if isinstance(hi, int) else hi
            if isinstance(lo, Value) or lo != whole:
                with b.loop(lo, whole, step=n, init=init, runs=True) as loop:
                    loop.next = step(loop.var, None, None, loop.carried)
                result = list(loop.results)
            if isinstance(hi, int) and isinstance(whole, int) and whole < hi:
                result = step(b.const(whole), hi, None, result)
        if self.exact is not None:
            first, end = self._in_points(lo, hi)
            place = partial(self._exactly_here, m0, n0, nc)
            result = self.exact.sums(result, init, p.k[1:], first, end, place)
        for x, value in zip(places, result, strict=True):
            b.store(value, sums, x)

    def _in_points(self, lo: Value | int, hi: Value | int) -> tuple[Value | int, Value | int]:
        """Bounds of the inner K without what fills rows up to whole vectors."""
        row, last = self.row_points, self.p.extents[self.p.k[-1]]
        if not row:
            return lo, hi
        b = self.b

        def points(x: Value | int) -> Value | int:
            return x // row * last if isinstance(x, int) else b.mul(b.op("floordiv", x, b.const(row)), b.const(last))

        return points(lo), points(hi)

    def _exact(self, original: Problem, pointers: dict[int, Pointer]) -> NanRepair | None:
        if not needed(original):
            return None
        return NanRepair(self.b, original, pointers, (), 0, self.mr * self.c.nv * self.lanes)

    def _exactly_here(self, m0: Value, n0: Value, nc: int, number: Value) -> LaneCursor:
        """The place of a result of a tile, for `exact`."""
        b, p = self.b, self.p
        assert self.exact is not None
        s = self.exact.sampler
        row, column = digits_of(b, number, [FusedAxes((), self.mr), FusedAxes((), nc)])
        return LaneCursor(s, 0, None).bind(
            s.part_of(p.batch, self.batch), s.part_of(p.k[:1], self.fixed[p.k[0]]),
            s.part_of(self.m_side.axes, b.add(m0, row)), s.part_of(self.n_side.axes, b.add(n0, column)),
        )


def configs(
    changed: HaloProblem, windows: Halos, pointers: Mapping[int, Pointer], lanes: int, registers: int, cores: int
) -> list[Config]:
    """Tiles of this form for a problem that it fits."""
    p = changed.problem
    if not fits(p, pointers, lanes) or any(fixes != "k" for _, fixes in windows):
        return []
    batch, left, right, _ = p.sizes
    want = max(2, -(-4 * cores // batch))
    want += next(i for i in range(cores) if batch * (want + i) % cores == 0)
    split = min(p.extents[p.k[0]], want)
    out = []
    for swap, (m, n) in ((False, (left, right)), (True, (right, left))):
        for mr in sorted({min(m, 6), min(m, 4)}):
            nc = min(n, (registers - 2 - mr) // mr)
            if nc >= 1:
                nc = -(-n // -(-n // nc))
                out.append(Config(swap, mr, nc, "inline", "inline", split=split, windows=windows, dot=True))
    return out
