"""Packing operands into the workspace, from where all tasks read them."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from einsmith.kernels.contraction.emission import pack
from einsmith.kernels.contraction.emission.frame import Frame, Panel, m_tiles, n_panels
from einsmith.kernels.contraction.geometry import Geometry
from einsmith.kernels.contraction.traffic import address_steps
from einsmith.kernels.emit.access import FusedAxes, PartialAddress
from einsmith.kernels.emit.walk import Bound, ceil_div, digits_of, part_range
from einsmith.loops.nest import Value
from einsmith.target.facts import LINE

TOGETHER = 32
"""Points of K that a task packs of one tile after the other: so few that lines which two tiles share stay close even
where they are whole pages apart, and so many that what is written is no short stretch."""
STRETCH = 1 << 14
"""Bytes of a row that a task packs about."""
PART = 1 << 15
"""Bytes that a task packs about, where there are enough of them for all cores."""


class _Packing(NamedTuple):
    """How an operand is packed into the workspace: of one of `points` of the batch and of `blocks` of K a task has
    one of `parts` of the block, `depth` points of K (0: all), and one of `groups` of the tiles."""

    name: str
    tiles: int
    points: int
    blocks: int
    parts: int
    groups: int
    depth: int

    @property
    def tasks(self) -> int:
        return self.points * self.blocks * self.parts * self.groups


def tasks(g: Geometry, sides: str) -> int:
    """Tasks that pack the operands "a", "b" or "ab" into the workspace."""
    return sum(x.tasks for x in _packings(g, sides))


def _packings(g: Geometry, sides: str) -> list[_Packing]:
    out = []
    for name, how, side, tiles, across, width in (
        ("a", g.c.a, g.m_side, g.mt, not g.a_along, g.mr),
        ("b", g.c.b, g.n_side, g.nt, not g.b_along, g.nr),
    ):
        if name not in sides or how != "buffer":
            continue
        item, groups, depth = g.item, tiles, 0
        found = address_steps(g.access(side), g.p, side, item)
        if across and found.even and found.side == item and found.k >= LINE and width * item % LINE:
            groups = min(tiles, ceil_div(tiles * width * item, STRETCH))
            few = ceil_div(tiles, groups) * width * item * TOGETHER  # bytes
            least = ceil_div(4 * g.target.cores, groups * g.k_blocks * g.batches(side))
            depth = max(1, min(PART // few, g.kc // TOGETHER // least)) * TOGETHER
        parts = ceil_div(g.kc, depth) if depth else 1
        out.append(_Packing(name, tiles, g.batches(side), g.k_blocks, parts, groups, depth))
    return out


def run(f: Frame, task: Value, sides: str) -> None:
    """One task packs one tile's panel of one block of K into the workspace; where tiles share lines, some points of K
    of many tiles."""
    b, g = f.b, f.g
    first = 0
    for x in _packings(g, sides):
        t = b.sub(task, b.const(first))
        inside = b.op("and", b.op("le", b.const(0), t), b.op("lt", t, b.const(x.tasks)))
        first += x.tasks
        with b.if_(inside):
            _run(f, x, t)


def _run(f: Frame, x: _Packing, t: Value) -> None:
    b, g, p = f.b, f.g, f.g.p
    counts = (x.points, x.blocks, x.parts, x.groups)
    batch, block, part, group = digits_of(b, t, [FusedAxes((), n) for n in counts])
    lo: Bound = 0
    hi: Bound = g.K
    if x.blocks > 1:
        lo = b.mul(block, b.const(g.kc))
        hi = b.op("min", b.add(lo, b.const(g.kc)), b.const(g.K))
    at = b.mul(b.add(b.mul(batch, b.const(x.blocks)), block), b.const(x.tiles))
    if x.name == "a":
        operand = [f.a_pack.part_of(p.batch, batch)]
    else:
        operand = [s.part_of(p.batch, batch) for s in (f.b_in, f.b_along) if s is not None]
    span = part_range(b, group, x.groups, x.tiles)
    packed = partial(_pack_a if x.name == "a" else _pack_b, f, operand, span, at)
    if not x.depth:
        packed(lo, hi, None)
        return
    start, end = (b.index(v) for v in (lo, hi))
    here = b.add(start, b.mul(part, b.const(x.depth)))
    stop = b.op("min", b.add(here, b.const(x.depth)), end)
    with b.loop(here, stop, step=TOGETHER) as loop:
        packed(loop.var, b.op("min", b.add(loop.var, b.const(TOGETHER)), stop), start)


def _pack_a(
    f: Frame, operand: list[PartialAddress], span: tuple[Bound, Bound], at: Value, lo: Bound, hi: Bound,
    start: Value | None,
) -> None:
    def tile(jm: Value, mr: int) -> None:
        to = f.slot(pack.shared_a(f), f.g.a_slab, f.b.add(at, jm))
        pack.pack_a(f, operand[0], to, jm, mr, lo, hi, start)

    m_tiles(f, span, tile)


def _pack_b(
    f: Frame, operand: list[PartialAddress], span: tuple[Bound, Bound], at: Value, lo: Bound, hi: Bound,
    start: Value | None,
) -> None:
    def panel(jn: Value, nv: int, limit: int | None) -> None:
        to = f.slot(pack.shared_b(f), f.g.b_slab, f.b.add(at, jn))
        pack.pack_b(f, operand, to, Panel(jn, nv, limit), lo, hi, start)

    n_panels(f, span, panel)
