"""K divided among tasks: partial sums in the workspace, added in a fixed tree and finished by another launch."""

from __future__ import annotations

from collections.abc import Sequence

from einsmith.kernels.contraction.emission.frame import workspace
from einsmith.kernels.contraction.epilogue import Epilogue
from einsmith.kernels.contraction.geometry import PartialSums
from einsmith.kernels.contraction.problem import Problem
from einsmith.kernels.emit.cursor import LaneCursor
from einsmith.loops.nest import Builder, Value, elem_of
from einsmith.loops.shuffle import tree
from einsmith.loops.walk import digits, part_range, strips
from einsmith.plan.kernel import Kernel


def add(
    kernel: Kernel, p: Problem, sums: PartialSums, m_axes: Sequence[int], n_axes: Sequence[int], row: int, base: int,
    b: Builder, tasks: int, task: Value,
) -> None:
    """One of so many tasks adds the partial sums of a range of rows, points of `m_axes`, and finishes them; row: of the
    innermost of `n_axes` in whole vectors, 0 where vectors cross it; base: bytes of the workspace before this piece's
    part."""
    n, elem = sums.lanes, elem_of(p.dtype)
    sources = workspace(b, base, p.dtype.itemsize, elem)
    epilogue = Epilogue(b, kernel, p, n_axes, n, row)
    s = epilogue.sampler
    with b.loop(*part_range(b, task, tasks, sums.batch * sums.rows)) as rows:
        batch, m = digits(b, rows.var, (sums.batch, sums.rows))
        part, fixed = s.part_of(m_axes, m), s.part_of(p.batch, batch)
        first = b.add(b.mul(rows.var, sums.row), sums.base)

        def vector(at: Value, count: int, _: Sequence[Value]) -> None:
            x = _tree(b, sums, sources, elem, b.add(first, at))
            limit = sums.columns if count < n else None
            epilogue.row([LaneCursor(s, at, limit, n).bind(fixed)], part, [x])

        strips(b, 0, sums.columns, n, vector)


def _tree(b: Builder, sums: PartialSums, workspace: Value, elem: str, at: Value) -> Value:
    """The sum of all parts at an offset: eight interleaved running sums, then a tree of those."""
    n, step, count = sums.lanes, sums.part, sums.parts

    def load(i: Value | int) -> Value:
        return b.load(workspace, b.add(at, b.mul(i, step)), elem, n)

    width = min(8, count)
    start = [load(i) for i in range(width)]
    full = count // width * width
    running: Sequence[Value] = start
    if full > width:
        with b.loop(width, full, step=width, init=start) as loop:
            loop.next = [b.add(x, load(b.add(loop.var, i))) for i, x in enumerate(loop.carried)]
        running = loop.results
    out = list(running)
    for i in range(full, count):
        out[i - full] = b.add(out[i - full], load(i))
    return tree(out, b.add)
