"""Packing operands into the workspace, from where all tasks read them."""

from __future__ import annotations

from collections.abc import Sequence

from einsmith.kernels.contraction.emission import pack
from einsmith.kernels.contraction.emission.frame import Frame, tiles_of
from einsmith.kernels.contraction.geometry import Geometry, OperandTiles
from einsmith.loops.nest import Builder, Value
from einsmith.loops.walk import digits, task_range


def tasks(g: Geometry, chosen: Sequence[OperandTiles]) -> int:
    """Tasks that pack the chosen ones of the operands into the workspace: each a tile in a block of K."""
    return sum(_tasks(g, x) for x in chosen)


def _tasks(g: Geometry, x: OperandTiles) -> int:
    return x.batches * g.k_blocks * x.tiles if x.how == "buffer" else 0


def run(g: Geometry, base: int, chosen: Sequence[OperandTiles], b: Builder, _: int, task: Value) -> None:
    """One task."""
    f, first = Frame(b, g, base), 0
    for x in (x for x in chosen if x.how == "buffer"):
        with task_range(b, task, first, _tasks(g, x)) as t:
            _run(f, x, t)
        first += _tasks(g, x)


def _run(f: Frame, x: OperandTiles, t: Value) -> None:
    b, g = f.b, f.g
    batch, block, number = digits(b, t, (x.batches, g.k_blocks, x.tiles))
    lo = b.mul(block, g.kc)
    hi = b.op("min", b.add(lo, g.kc), g.K)
    operand = (f.a if x is g.a else f.b_in).part_of(g.p.batch, batch)
    to = f.slot(x, t)
    tiles_of(f, x, (number, b.add(number, 1)), lambda tile: pack.pack(f, x, operand, to, tile, lo, hi))
