"""The form for few results and a long K: vectors lie along K, and every result has a vector of partial sums.

The weight gradient of a first convolution, dW[o,r,s] = sum[b,p,q](dY[b,o,p,q] * X[b,p+r,q+s]), has 150 results and a K
of 200,000 whose last axes are contiguous in both operands. Each task takes a range of the first axis of K and, for each
of its points walks the tiles of mr x nv results with the other axes of K in vectors. The lanes are added at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any

from einsmith.kernels.contraction.config import (
    HALO_BYTES,
    HaloProblem,
    Halos,
    InnerProducts,
    halo_memories,
    sampler,
    sides,
    with_halos,
)
from einsmith.kernels.contraction.emission import split_k
from einsmith.kernels.contraction.emission.frame import tiles, workspace
from einsmith.kernels.contraction.emission.nan_repair import NanRepair, needed
from einsmith.kernels.contraction.emission.split_k import PartialSums
from einsmith.kernels.contraction.epilogue import Epilogue
from einsmith.kernels.contraction.geometry import operand_memories
from einsmith.kernels.contraction.halo import SLACK, HaloCopy, fill
from einsmith.kernels.contraction.problem import Problem
from einsmith.kernels.emit.access import FusedAxes
from einsmith.kernels.emit.address import Memory, arguments_of, memories_of
from einsmith.kernels.emit.cursor import LaneCursor
from einsmith.kernels.emit.walk import Bound, ceil_div, digits_of
from einsmith.loops.nest import Builder, Value, elem_of
from einsmith.plan.kernel import Kernel

MAX_RESULTS = 4096
"""Results of a point of the batch: their vectors of sums lie in a private second-level cache."""
MIN_K = 4096
MAX_UNROLLED = 32
"""Vectors of a row of K up to which they are unrolled, so that masks at known columns are constants; the code of more
of them leaves the first level of the instruction cache."""


def row_length(p: Problem, memories: Mapping[int, Memory], lanes: int) -> int | None:
    """0 where the axes of K but the first are one group in both operands; else their innermost extent in whole vectors;
    None where that would waste too many lanes."""
    inner = p.k[1:]
    merged = all(len(sampler(None, p, s, memories, (), 0).groups(inner)) <= 1 for s in sides(p, False))
    if merged:
        return 0
    last = p.extents[inner[-1]]
    row = -(-last // lanes) * lanes
    return row if last / row >= 0.6 else None


def fits(p: Problem, memories: Mapping[int, Memory], lanes: int) -> bool:
    """Whether this form is worth a configuration."""
    _, left, right, k = p.sizes
    if len(p.k) < 2 or left * right > MAX_RESULTS or k < MIN_K or p.extents[p.k[0]] < 2:
        return False
    if prod(p.extents[a] for a in p.k[1:]) < 2 * lanes:
        return False
    return row_length(p, memories, lanes) is not None


def vectors(p: Problem, memories: Mapping[int, Memory], lanes: int) -> int:
    """Vectors of K for one point of its first axis."""
    row = row_length(p, memories, lanes)
    count = prod(p.extents[a] for a in p.k[1:])
    if row:
        count = count // p.extents[p.k[-1]] * row
    return -(-count // lanes)


class Shape:
    """What follows from a configuration before anything is emitted. `p` is the problem that reads the halo copies; row:
    points of a row of the inner K in whole vectors, 0 where it is one group; points: of the inner K, and of a block of
    it (0: all)."""

    def __init__(self, kernel: Kernel, config: InnerProducts, target: Any, problem: Problem):
        self.kernel, self.c, self.original, self.p = kernel, config, problem, problem
        self.lanes = target.lanes(problem.dtype.itemsize)
        self.slots = dict(operand_memories(kernel))
        self.halos: Sequence[tuple[int, HaloCopy]] = ()
        if config.windows:
            changed = with_halos(problem, config.windows, HALO_BYTES)
            assert changed is not None
            self.p, self.halos = changed.problem, changed.windows
            self.slots |= halo_memories(self.halos)
        p = self.p
        self.m_side, self.n_side = sides(p, config.swap)
        self.B, self.M, self.N = (p.count(x) for x in (p.batch, self.m_side.axes, self.n_side.axes))
        self.mt, self.nt = ceil_div(self.M, config.mr), ceil_div(self.N, config.columns)
        self.row = row_length(p, self.slots, self.lanes) or 0
        self.points = prod(p.extents[a] for a in p.k[1:])
        if self.row:
            self.points = self.points // p.extents[p.k[-1]] * self.row
        self.tasks = self.B * config.split

    @property
    def block(self) -> int:
        """Points of a block of the inner K, whole vectors and rows; 0 for one block."""
        unit = self.row or self.lanes
        points = ceil_div(self.c.kc, unit) * unit
        return points if points < self.points // self.lanes * self.lanes else 0

    @property
    def partials(self) -> PartialSums:
        return PartialSums(self.B, self.M, self.N, self.lanes, self.c.split, 0)

    def workspace_elements(self) -> int:
        return self.partials.elements if self.c.split > 1 else 0


class InnerProduct:
    """Emission of this form; partial sums and their addition are those of every split contraction."""

    def __init__(self, b: Builder, g: Shape, base: int = 0):
        self.b, self.g, p, n = b, g, g.p, g.lanes
        self.elem = elem_of(p.dtype)
        memories = memories_of(g.kernel, b.buffers)
        arguments = arguments_of(g.kernel, memories)
        at = [b.alloc(self.elem, w.buffer.size + SLACK * n) for _, w in g.halos]
        self.slots = {**arguments, **halo_memories(g.halos, at)}
        self.windows = [(w, x) for (_, w), x in zip(g.halos, at, strict=True)]
        self.workspace = workspace(b, base, p.dtype.itemsize, self.elem)
        self.epilogue = Epilogue(b, g.kernel, p, memories, g.n_side.axes, n, 0)
        self.repair: NanRepair | None = None
        if needed(g.original):
            self.repair = NanRepair(b, g.original, arguments, (), 0, g.c.mr * g.c.columns * n)
        self.sa = sampler(b, p, g.m_side, self.slots, p.k[1:], n, g.row)
        self.sb = sampler(b, p, g.n_side, self.slots, p.k[1:], n, g.row)

    def run(self, task: Value) -> None:
        """Emits a task."""
        b, g, p, n, c = self.b, self.g, self.g.p, self.g.lanes, self.g.c
        batch, split = b.op("floordiv", task, b.const(c.split)), b.op("mod", task, b.const(c.split))
        self.batch, self.split = batch, split
        size = c.mr * c.columns * n
        sums = b.alloc(self.elem, g.mt * g.nt * size)
        zero = b.const(0.0, self.elem, n)
        with b.loop(0, g.mt * g.nt * size, step=n) as clear:
            b.store(zero, sums, clear.var)
        extent = p.extents[p.k[0]]
        chunk = ceil_div(extent, c.split)
        lo = b.mul(split, b.const(chunk))
        hi = b.op("min", b.add(lo, b.const(chunk)), b.const(extent))

        def each(body: Callable[[Value, int, Value, int], None]) -> None:
            def m_tile(jm: Value, mr: int, _: bool) -> None:
                tiles(b, (0, g.nt), g.nt, g.N, 1, c.columns, lambda jn, nc, __: body(jm, mr, jn, nc))

            tiles(b, (0, g.mt), g.mt, g.M, 1, c.mr, m_tile)

        def place(jm: Value, jn: Value) -> Value:
            return b.mul(b.add(b.mul(jm, b.const(g.nt)), jn), b.const(size))

        def multiply(lo: Bound, hi: Bound) -> None:
            def tile(jm: Value, mr: int, jn: Value, nc: int) -> None:
                m0, n0 = b.mul(jm, b.const(c.mr)), b.mul(jn, b.const(c.columns))
                self._tile(sums, place(jm, jn), m0, mr, n0, nc, lo, hi)

            each(tile)

        with b.loop(lo, hi) as first:
            point = digits_of(b, batch, [FusedAxes((), p.extents[a]) for a in p.batch])
            self.fixed = {**dict(zip(p.batch, point, strict=True)), p.k[0]: first.var}
            for w, to in self.windows:
                fill(b, w, self.slots, to, n, self.fixed)
            self.heads = [(s.part_of(p.batch, batch), s.part_of(p.k[:1], first.var)) for s in (self.sa, self.sb)]
            if not g.block:
                multiply(0, g.points)
            else:
                whole = g.points // n * n
                with b.loop(0, whole, step=g.block) as block:
                    multiply(block.var, b.op("min", b.add(block.var, b.const(g.block)), b.const(whole)))
                if whole < g.points:
                    multiply(whole, g.points)

        def finish(jm: Value, mr: int, jn: Value, nc: int) -> None:
            at = place(jm, jn)
            for i in range(mr):
                m = b.add(b.mul(jm, b.const(c.mr)), b.const(i))
                out = g.partials.place(b, split, batch, m, jn, c.columns)
                for j in range(nc):
                    x = b.load(sums, b.add(at, b.const((i * c.columns + j) * n)), self.elem, n)
                    b.store(b.horizontal("add", x), self.workspace, b.add(out, b.const(j)))

        each(finish)

    def run_add(self, task: Value, tasks: int) -> None:
        """Emits a task that adds and finishes partial sums."""
        g = self.g
        split_k.add(self.b, g.partials, self.workspace, self.epilogue, g.p.batch, g.m_side.axes, self.elem, task, tasks)

    def _tile(self, sums: Value, at: Value, m0: Value, mr: int, n0: Value, nc: int, lo: Bound, hi: Bound) -> None:
        """The points lo .. hi of the inner K; what is not known here are whole vectors (and rows, where K has them)."""
        b, g, n, nv = self.b, self.g, self.g.lanes, self.g.c.columns
        a_rows = [self.sa.part_of(g.m_side.axes, b.add(m0, b.const(i))) for i in range(mr)]
        b_rows = [self.sb.part_of(g.n_side.axes, b.add(n0, b.const(j))) for j in range(nc)]
        places = [b.add(at, b.const((i * nv + j) * n)) for i in range(mr) for j in range(nc)]
        init = [b.load(sums, x, self.elem, n) for x in places]

        def step(k: Value, limit: int | None, column: int | Value | None, carried: Sequence[Value]) -> list[Value]:
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
        if g.row:
            start, end = (x // g.row if isinstance(x, int) else b.op("floordiv", x, b.const(g.row)) for x in (lo, hi))
            with b.loop(start, end, init=init, runs=True) as loop:
                out = list(loop.carried)
                here = b.mul(loop.var, b.const(g.row))
                looped = 0
                if g.row > MAX_UNROLLED * n:
                    looped = g.p.extents[g.p.k[-1]] // n * n
                    with b.loop(0, looped, step=n, init=out, runs=True) as columns:
                        columns.next = step(b.add(here, columns.var), None, columns.var, columns.carried)
                    out = list(columns.results)
                for column in range(looped, g.row, n):
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
        if self.repair is not None:
            first, end = self._in_points(lo, hi)
            result = self.repair.sums(result, init, g.p.k[1:], first, end, partial(self._place, m0, n0, nc))
        for x, value in zip(places, result, strict=True):
            b.store(value, sums, x)

    def _in_points(self, lo: Bound, hi: Bound) -> tuple[Bound, Bound]:
        """Bounds of the inner K without what fills rows up to whole vectors."""
        b, row, last = self.b, self.g.row, self.g.p.extents[self.g.p.k[-1]]
        if not row:
            return lo, hi

        def points(x: Bound) -> Bound:
            return x // row * last if isinstance(x, int) else b.mul(b.op("floordiv", x, b.const(row)), b.const(last))

        return points(lo), points(hi)

    def _place(self, m0: Value, n0: Value, nc: int, number: Value) -> LaneCursor:
        """The place of a result of a tile, for `repair`."""
        b, g, p = self.b, self.g, self.g.p
        assert self.repair is not None
        s = self.repair.sampler
        row, column = digits_of(b, number, [FusedAxes((), g.c.mr), FusedAxes((), nc)])
        return LaneCursor(s, 0, None).bind(
            s.part_of(p.batch, self.batch), s.part_of(p.k[:1], self.fixed[p.k[0]]),
            s.part_of(g.m_side.axes, b.add(m0, row)), s.part_of(g.n_side.axes, b.add(n0, column)),
        )


def configs(
    changed: HaloProblem, windows: Halos, memories: Mapping[int, Memory], lanes: int, registers: int, cores: int
) -> list[InnerProducts]:
    """Tiles of this form for a problem that it fits."""
    p = changed.problem
    if not fits(p, memories, lanes) or any(fixes != "k" for _, fixes in windows):
        return []
    batch, left, right, _ = p.sizes
    want = max(2, -(-4 * cores // batch))
    want += next(i for i in range(cores) if batch * (want + i) % cores == 0)
    split = min(p.extents[p.k[0]], want)
    out = []
    # What is read under masks is in registers before it is multiplied, of two vectors at once.
    masked = bool(row_length(p, memories, lanes))
    for swap, (m, n) in ((False, (left, right)), (True, (right, left))):
        for mr in sorted({min(m, most) for most in ((2, 3) if masked else (4, 6))}):
            nc = min(n, (registers - 2 - mr * (1 + masked)) // mr)
            if nc >= 1:
                nc = -(-n // -(-n // nc))
                out.append(InnerProducts(swap, mr, nc, split=split, windows=windows))
    return out
