"""Packing operands into the workspace, from where all tasks read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from einsmith.kernels.contraction.emission import pack
from einsmith.kernels.contraction.emission.frame import Frame, tiles_of
from einsmith.kernels.contraction.geometry import Geometry, OperandTiles
from einsmith.kernels.contraction.traffic import address_steps
from einsmith.loops.nest import Builder, Value
from einsmith.loops.walk import ceil_div, digits, part_range, task_range
from einsmith.target.facts import LINE

TOGETHER = 32
"""Points of K that a task packs of one tile after the other: so few that lines which two tiles share stay close even
where they are whole pages apart, and so many that what is written is no short stretch."""
STRETCH = 1 << 14
"""Bytes of a row that a task packs about."""
PART = 1 << 15
"""Bytes that a task packs about, where there are enough of them for all cores."""


class _Packing(NamedTuple):
    """How an operand is packed into the workspace: of one of its points of the batch and of `blocks` of K a task has
    one of `parts` of the block, `depth` points of K (0: all), and one of `groups` of the tiles."""

    of: OperandTiles
    blocks: int
    parts: int
    groups: int
    depth: int

    @property
    def tasks(self) -> int:
        return self.of.batches * self.blocks * self.parts * self.groups


def tasks(g: Geometry, chosen: Sequence[OperandTiles]) -> int:
    """Tasks that pack the chosen ones of the operands into the workspace."""
    return sum(x.tasks for x in _packings(g, chosen))


def _packings(g: Geometry, chosen: Sequence[OperandTiles]) -> list[_Packing]:
    out = []
    for x in (x for x in chosen if x.how == "buffer"):
        item, groups, depth = g.item, x.tiles, 0
        found = address_steps(g, x.side)
        if not x.along and found.even and found.side == item and found.k >= LINE and x.points * item % LINE:
            groups = min(x.tiles, ceil_div(x.tiles * x.points * item, STRETCH))
            few = ceil_div(x.tiles, groups) * x.points * item * TOGETHER  # bytes
            least = ceil_div(4 * g.target.cores, groups * g.k_blocks * x.batches)
            depth = max(1, min(PART // few, g.kc // TOGETHER // least)) * TOGETHER
        out.append(_Packing(x, g.k_blocks, ceil_div(g.kc, depth) if depth else 1, groups, depth))
    return out


def run(g: Geometry, base: int, chosen: Sequence[OperandTiles], b: Builder, _: int, task: Value) -> None:
    """One task packs one tile's panel of one block of K into the workspace; where tiles share lines, some points of K
    of many tiles."""
    f, first = Frame(b, g, base), 0
    for x in _packings(g, chosen):
        with task_range(b, task, first, x.tasks) as t:
            _run(f, x, t)
        first += x.tasks


def _run(f: Frame, x: _Packing, t: Value) -> None:
    b, g, to = f.b, f.g, x.of
    batch, block, part, group = digits(b, t, (to.batches, x.blocks, x.parts, x.groups))
    lo = b.mul(block, g.kc)
    hi = b.op("min", b.add(lo, g.kc), g.K)
    at = b.mul(b.add(b.mul(batch, x.blocks), block), to.tiles)
    operand = (f.a if to is g.a else f.b_in).part_of(g.p.batch, batch)
    span = part_range(b, group, x.groups, to.tiles)

    def packed(lo: Value, hi: Value, start: Value | None) -> None:
        tiles_of(f, to, span, lambda tile: pack.pack(
            f, to, operand, f.slot(to, b.add(at, tile.number)), tile, lo, hi, start
        ))  # fmt: skip

    if not x.depth:
        packed(lo, hi, None)
        return
    here = b.add(lo, b.mul(part, x.depth))
    stop = b.op("min", b.add(here, x.depth), hi)
    with b.loop(here, stop, step=TOGETHER) as loop:
        packed(loop.var, b.op("min", b.add(loop.var, TOGETHER), stop), lo)
