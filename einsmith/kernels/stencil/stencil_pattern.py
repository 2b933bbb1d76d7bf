"""Lower stencils: sums of few products of neighbouring elements, each row of results from a few rows of input.

Depthwise convolutions (forward and both gradients, at every stride), image filters and the gradients of max pooling
with windows that overlap are stencils. A register tile of a matrix product has nothing to share here, because every
channel has its own weights. Rows are read once and kept in registers for all taps (`loads`); the phases of a strided
backward pass are one kernel, stored in whole vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import ceil, prod
from typing import NamedTuple

from einsmith.codegen.loopnest.nest import Builder
from einsmith.cost.facts import Target
from einsmith.cost.roofline import launch_overhead, may_be_one_task
from einsmith.ir.nodes import Template
from einsmith.kernels.contraction.epilogue import finish_cycles, sum_cycles
from einsmith.kernels.emit import boxes
from einsmith.kernels.emit.epilogue_sums import place_sums
from einsmith.kernels.emit.loops import is_limited
from einsmith.kernels.pattern import Cost, Launch, Lowered, Pattern
from einsmith.kernels.stencil.emission import StencilLowering, count_partial_sums, row_segments
from einsmith.kernels.stencil.loads import (
    StencilTiling,
    can_share_row_loads,
    find_short_rows,
    list_streams,
    pair_axis,
    rows_per_tile,
)
from einsmith.kernels.stencil.match import MAX_SUMS, stencils
from einsmith.kernels.stencil.terms import Stencil
from einsmith.schedule.contraction_problem import problems
from einsmith.schedule.footprint import bytes_by_buffer
from einsmith.schedule.kernel import Beyond, Kernel, has_row_limit

MAX_PRODUCTS, MAX_LOADED_PRODUCTS = 400, 110
"""Most multiply-adds emitted for a tile; MAX_LOADED_PRODUCTS applies where these take no operand from memory."""
MAX_SEGMENTS = 5
"""Most row segments (loops and peeled tiles) emitted for a stencil; each is a copy of the tile's code."""
MAX_ROWS = 16
"""Most rows of a tile."""
MAX_READ_ROWS = 20
"""Most rows of memory that a tile reads anew (streams); hardware tracks about as many."""
MAX_SMALL_TILE = 3
"""Most rows of the additional small tiles tried on data from memory; larger tiles read and write more rows in turn."""
TASKS_PER_CORE = 8
"""Parallel tasks per core; several balance the load."""
DOMINATED = ("winograd", "contraction", "by digits", "reduction", "by kind", "col2im")
"""Patterns that a stencil with tiles of several rows dominates."""


class StencilConfig(NamedTuple):
    """A configuration of the stencil pattern.

    along_k: lanes run along the reduction (filter gradients). tile: rows of a tile. passes: passes over the data in
    which the sums of a filter gradient are computed. pairs: rows of two points share a vector. tasks: parallel tasks.
    """

    along_k: bool
    tile: int
    passes: int
    pairs: bool
    tasks: int

    def __str__(self) -> str:
        where = "reduction" if self.along_k else "output"
        more = (f" in {self.passes} passes" if self.passes > 1 else "") + (" of pairs" if self.pairs else "")
        return f"rows of the {where}, {self.tile} a tile{more}, tasks {self.tasks}"


class StencilPattern(Pattern):
    """The pattern of depthwise convolutions, their gradients, image filters, and gradients of max pooling."""

    name = "stencil"

    def match(self, kernel: Kernel) -> bool:
        return not _is_matrix_product(kernel.root) and bool(stencils(kernel))

    def takes_sums(self, kernel: Kernel, target: Target) -> bool:
        return bool(_stencils(kernel))

    def dominates(self, kernel: Kernel, config: StencilConfig) -> Sequence[str]:
        """Return the patterns that cannot win: they multiply as often, and reload elements that a stencil keeps in
        registers."""
        return DOMINATED if config.tile > 1 and _least_reuse(kernel, _find_stencil(kernel, config)) >= 2 else ()

    def configs(self, kernel: Kernel, target: Target) -> list[StencilConfig]:
        out: list[StencilConfig] = []
        beyond_l2 = not target.fits_l2(sum(bytes_by_buffer(kernel)))
        for s in _stencils(kernel):
            lanes = target.lanes(s.dtype.itemsize)
            passes = _fewest_passes(s, _available_registers(target))
            for pairs in (False, True) if pair_axis(s, lanes) is not None and not kernel.sums else (False,):
                max_tasks = 1 if target.cores == 1 else min(_count_points(s, pairs), TASKS_PER_CORE * target.cores)
                task_counts = sorted({1, max_tasks}) if may_be_one_task(_count_products(s), target) else [max_tasks]
                tiles = _list_tiles(s, passes, beyond_l2, target)
                out += [StencilConfig(s.along_k, x, passes, pairs, n) for n in task_counts for x in tiles]
        return sorted(out, key=lambda c: self.cost(kernel, c, target).rank)

    def cost(self, kernel: Kernel, config: StencilConfig, target: Target) -> Cost:
        s = _find_stencil(kernel, config)
        lanes = target.lanes(s.dtype.itemsize)
        points = _count_points(s, config.pairs)
        tasks = min(target.cores, config.tasks)
        uneven = ceil(points / tasks) * tasks / points
        size = sum(bytes_by_buffer(kernel))
        arithmetic = points * _estimate_cycles(s, config, lanes, _available_registers(target), target)
        if kernel.sums:
            vectors = points * ceil(s.lanes / lanes) * s.rows * s.steps[0] * s.steps[1]
            arithmetic += vectors * sum_cycles(kernel, config.tile * s.steps[0] * s.steps[1], target.overheads)
            arithmetic += points * finish_cycles(kernel, target.overheads)
        memory = target.seconds_for_bytes(size, size, tasks)
        conflicts = memory * _conflict_fraction(kernel, s, config, lanes, target) if size > target.l2 * tasks else 0.0
        return Cost(
            arithmetic * target.cycle_seconds / tasks * uneven, memory, conflicts, launch_overhead(config.tasks, target)
        )

    def lower(self, kernel: Kernel, config: StencilConfig, target: Target) -> Lowered:
        s = _find_stencil(kernel, config)
        b = Builder(f"stencil_{kernel.root.digest.hex()[:8]}", len(kernel.buffers) + 1)
        registers = _available_registers(target)
        pair = pair_axis(s, target.lanes(s.dtype.itemsize)) if config.pairs else None
        share_loads = pair is None and can_share_row_loads(s, config.tile, registers)
        hoisted = _can_hoist(s, config.tile, registers)
        tiling = StencilTiling(config.tile, config.tasks, _group_sums(s, config.passes), hoisted, pair, share_loads)
        out = Lowered(beyond=Beyond.TOUCHED if is_limited(s.outer) else Beyond.COMPUTED)
        if kernel.sums:
            parts = prod(s.extents[a] for a in s.outer if a not in kernel.sums[0].kept)
            out.sums, out.workspace = place_sums(kernel, parts, 0)
        StencilLowering(kernel, s, tiling, target, b, out.sums).emit_task(b.task)
        out.launches.append(Launch(b.finish(), config.tasks))
        return out


def _stencils(kernel: Kernel) -> Sequence[Stencil]:
    """Return the stencils of a kernel that take its sums, whose elements are points of the outer axes, and end at its
    limit."""
    return [
        s
        for s in stencils(kernel)
        if (not kernel.sums or not s.along_k and set(kernel.sums[0].kept) <= set(s.outer))
        and (not has_row_limit(kernel) or is_limited(s.outer))
    ]


def _find_stencil(kernel: Kernel, config: StencilConfig) -> Stencil:
    return next(s for s in stencils(kernel) if s.along_k == config.along_k)


def _least_reuse(kernel: Kernel, s: Stencil) -> float:
    """Return how many vectors use each element read, for the operand with the least reuse."""
    reads: dict[int, int] = {}
    for p in s.phases:
        for t in p.terms:
            for f in (t.vector, t.weight) if s.along_k else (t.vector,):
                if f is not None:
                    reads[f.read.slot] = reads.get(f.read.slot, 0) + p.rows * p.lanes
    points = prod(s.extents[a] for a in (*s.outer, *s.loops))
    sizes, args = bytes_by_buffer(kernel), kernel.stages[0].args
    return min((points * n * s.dtype.itemsize / sizes[args[slot][1]] for slot, n in reads.items()), default=0.0)


def _available_registers(target: Target) -> int:
    """Return the vector registers available for sums, weights and rows."""
    return target.vector_registers - (12 if target.loads_operands else 0)


def _count_products(s: Stencil) -> int:
    """Return the multiply-adds of all points."""
    points = prod(s.extents[a] for a in (*s.outer, *s.loops))
    return points * sum(p.rows * p.lanes * len(p.terms) for p in s.phases)


def _count_points(s: Stencil, pairs: bool) -> int:
    """Return the points of the outer axes; with `pairs`, two points that share a vector count as one."""
    return prod(s.extents[a] for a in s.outer) // (2 if pairs and not s.along_k else 1)


def _conflict_fraction(kernel: Kernel, s: Stencil, c: StencilConfig, lanes: int, target: Target) -> float:
    """Return the fraction by which memory time grows because a tile reads and writes several rows in turn.

    Written rows count twice: a line is read before a part of it is written. Short rows are one contiguous stream."""
    if s.lanes <= lanes:
        return 0.0
    w, rows = target.overheads, float(sum(rows_per_tile(a, c.tile) for a in list_streams(s)))
    if not s.along_k:
        read = {ref[1] for stage in kernel.stages[1:] for ref in stage.args if ref[0] == "buffer"}
        streams_per_row = 2 + sum(kernel.buffers[n].shape == kernel.shape for n in read)
        rows += streams_per_row * c.tile * s.steps[0] * min(1.0, s.lanes * s.dtype.itemsize / w.long_row)
    return w.crowding(rows, w.stencil_streams)


def _count_weights(s: Stencil) -> tuple[int, int, int]:
    """Return (weights in all, most weights of the taps at one place along a row, number of such places)."""
    if s.along_k:
        return 0, 0, 0
    groups: dict[int, set] = {}
    for p in s.phases:
        for t in p.terms:
            if t.weight is not None:
                groups.setdefault(t.vector.read.shift // t.vector.read.lane, set()).add(t.weight.read)
    return len(set().union(*groups.values())), max(map(len, groups.values()), default=0), len(groups)


def _spare_registers(s: Stencil) -> int:
    """Return the vector registers kept for loads and for shuffles before stores.

    A vector at stride 2 comes from two loads, by way of a third vector where shuffles are short."""
    if any(f.read.lane == 2 for f in s.vectors):
        return 6
    return 4 if s.steps[1] == 2 else 2


def _can_hoist(s: Stencil, tile: int, registers: int) -> bool:
    return tile * len(s.phases) + _count_weights(s)[0] + _spare_registers(s) <= registers


def _fewest_passes(s: Stencil, registers: int) -> int:
    """Return the fewest passes such that the sums of a pass and the rows they use stay in registers."""
    if not s.along_k:
        return 1
    last = s.extents[s.taps[-1]]
    rows = s.sums // last
    fit = max(1, (registers - _spare_registers(s)) // rows - 1)
    return ceil(last / fit)


def _group_sums(s: Stencil, passes: int) -> list[list[int]]:
    """Return the numbers of the sums in each pass; a pass takes a range of the filter's last axis."""
    if not s.along_k:
        return [[0]]
    last = s.extents[s.taps[-1]]
    step = ceil(last / passes)
    return [[i for i in range(s.sums) if at <= i % last < at + step] for at in range(0, last, step)]


def _list_tiles(s: Stencil, passes: int, beyond_l2: bool, target: Target) -> list[int]:
    """Return the tile heights (rows) worth pricing; beyond_l2: the data comes from beyond all L2 caches."""
    terms = sum(len(p.terms) for p in s.phases) / passes
    step = max((abs(f.read.row) // f.read.pitch for f in s.vectors), default=1)
    limit = min(MAX_ROWS, MAX_READ_ROWS // max(1, step))
    if not s.along_k:
        limit = min(limit, (_available_registers(target) - _count_weights(s)[1] - _spare_registers(s)) // len(s.phases))
    max_products = MAX_LOADED_PRODUCTS if target.loads_operands else MAX_PRODUCTS
    limit = max(1, min(limit, int(max_products / max(1.0, terms))))
    least = ceil(s.rows / limit)  # tiles
    tiles = dict.fromkeys(ceil(s.rows / n) for n in (least, least + 1, least + 2, 2 * least, 3 * least))
    if beyond_l2:
        tiles |= dict.fromkeys(range(1, min(MAX_SMALL_TILE, limit) + 1))
    return [x for x in tiles if len(row_segments(s, x)) <= MAX_SEGMENTS] or [s.rows]


@lru_cache(maxsize=4096)
def _estimate_cycles(s: Stencil, c: StencilConfig, lanes: int, registers: int, target: Target) -> float:
    """Return the cycles that one point of the outer axes takes on one core."""
    width = target.vector_bytes
    crossing = target.unaligned_seconds / target.cycle_seconds
    fmas = float(c.tile * (sum(len(p.terms) for p in s.phases) + len(s.selections)))
    loads, shuffles = 0.0, 0.0
    prologue_cost = {
        slot: target.overheads.prologue * boxes.operations((m.body,), target)[0] for slot, m in s.prologues
    }
    seen: set[tuple] = set()
    share_loads = not c.pairs and can_share_row_loads(s, c.tile, registers)
    whole_rows = c.pairs or bool(find_short_rows(s, lanes, width))
    for a, lanes_on in dict.fromkeys((f.read, f.lanes) for f in s.vectors):
        for row in range(c.tile):
            at = a.row * row + a.const
            key = (a.slot, a.outer, at, lanes_on)
            if key in seen:
                continue
            seen.add(key)
            if a.lane == 1 and not c.pairs:
                loads += crossing
                fmas += prologue_cost.get(a.slot, 0.0)
                continue
            shuffles += 1
            source = (a.slot, a.outer, at - (a.shift if whole_rows else a.shift % 2))
            if source not in seen:
                seen.add(source)
                fmas += prologue_cost.get(a.slot, 0.0) * (1 if share_loads else 2)
                row_of = (a.slot, a.outer, at - a.shift, "row")
                loads += crossing if share_loads and row_of in seen else 2 * crossing
                seen.add(row_of)
    tiles = ceil(s.lanes / lanes) * s.rows / c.tile
    if s.along_k:
        body = max(fmas / target.multiplies, loads) + 0.4 * shuffles + 3 * c.passes
        return prod(s.extents[a] for a in s.loops) / (2 if c.pairs else 1) * (tiles * body + 5) + 12 * s.sums
    weights, most, places = _count_weights(s)
    chains = c.tile * len(s.phases) * count_partial_sums(c.tile * len(s.phases), most, places, registers)
    if _can_hoist(s, c.tile, registers):
        weights = 0
    stores = c.tile * len(s.phases) * (2 if c.pairs else 1)
    if s.steps[1] == 2 or c.pairs:
        shuffles += stores
    body = max(fmas / target.multiplies, loads + 0.4 * weights, target.overheads.latency * fmas / chains)
    body += 0.4 * shuffles + 0.5 * stores + 4
    return tiles * body + 15


def _is_matrix_product(root: Template) -> bool:
    """Return whether a template is a matrix product, which is left to contractions.

    It multiplies two plain reads, each with output axes of its own, and has more than MAX_SUMS results per point of the
    axes that both reads share. If the innermost output axis is a shared one, it can be a stencil with vectors along it.
    """
    pieces = problems(root) or ()
    if len(root.parts) != 1 or len(pieces) != 1 or not all(o.plain for o in pieces[0].operands):
        return False
    (p,) = pieces
    _, left, right, _ = p.sizes
    return len(root.shape) - 1 not in p.batch and min(left, right) > 1 and left * right > MAX_SUMS
