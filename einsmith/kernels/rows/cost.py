"""List the configurations of a row-block fusion (`Rows`) worth pricing, and predict their cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from einsmith.codegen.loopnest.walk import divisors
from einsmith.cost.facts import Target
from einsmith.cost.roofline import Cost, distribute, in_turn
from einsmith.kernels.pattern import Chooser
from einsmith.kernels.rows.box_condition import BoxCondition
from einsmith.schedule.footprint import bytes_by_buffer
from einsmith.schedule.kernel import Activity, Member, Rows
from einsmith.schedule.row_blocks import block_kernel, inputs
from einsmith.schedule.row_fusion import ROWS_PER_CORE
from einsmith.schedule.row_nests import block_kernels, block_places
from einsmith.schedule.shared_rows import share

MAX_LOCAL_BYTES = 1 << 25
"""Most bytes of local buffers on all threads, where there are configurations that take so few."""
REUSING_BLOCKS = (16, 32, 64, 128, 256)
"""Numbers of rows of a block that are priced for kernels that reuse operands."""
TILES = (128, 256)
"""Lengths of the tiles of a sweep that are priced, where tiles may be skipped."""
_SAMPLED_BLOCKS = 16
"""Most blocks of rows by which the fraction of active tiles is estimated."""
BLOCK_SECONDS = 1e-8
"""Seconds that a member's code takes to begin on a block."""


class RowsConfig(NamedTuple):
    """A configuration of a row-block fusion.

    Attributes:
        block: rows that the members process at a time.
        tasks: runs of blocks that may execute in parallel; 0: the kernels of a row are launched one after the other,
            each on all rows.
        share: evaluate subexpressions common to several members once, into scratch.
        nested: run the members of a block in sweeps over another axis (`schedule.row_nests`), of which as many rows are
            skipped together; 0: run them one after the other.
    """

    block: int
    tasks: int
    share: bool = False
    nested: int = 0


def _divisor(n: int, most: int) -> int:
    """Return the largest divisor of n up to `most` if it is above half of `most`; else `most`."""
    return next((d for d in reversed(divisors(n)) if most // 2 < d <= most), most)


def configs(rows: Rows, target: Target) -> list[RowsConfig]:
    """Return the configurations worth pricing."""
    each = rows.row_bytes
    shares = (False, True) if share(rows) is not rows else (False,)
    out = []
    for tasks in (1, 8 * target.cores) if each * rows.rows <= 4 * target.l2 else (8 * target.cores,):
        longest = -(-rows.rows // tasks)
        if is_batch(rows, target):
            out += [RowsConfig(1, 0, s, n) for s in shares for n in _tiles(rows, s, 1) or (0,)]
        elif rows.active is not None:
            out += [RowsConfig(min(rows.active.block, rows.rows), 1, s) for s in shares]
        elif rows.reuses:
            most = min(longest, REUSING_BLOCKS[-1])
            for block in sorted({1, *(_divisor(rows.rows, n) for n in (*REUSING_BLOCKS, most) if n <= most)}):
                out += [RowsConfig(block, tasks, s, n) for s in shares for n in (0, *_tiles(rows, s, block))]
        else:
            for room in (target.l1 // 4, target.l1 * 3 // 4, target.l2 // 4):
                block = _divisor(rows.rows, max(1, min(room // each, longest)))
                out += [RowsConfig(block, tasks, s) for s in shares]
    out = list(dict.fromkeys(out))
    local = [local_bytes(rows, c) for c in out]
    most = max(min(local), MAX_LOCAL_BYTES // target.cores)
    return [c for c, n in zip(out, local, strict=True) if n <= most]


def _tiles(rows: Rows, shares: bool, block: int) -> Sequence[int]:
    """Return the lengths of tiles worth pricing for a nest in blocks of rows; none where there are no sweeps."""
    inner = [x.kernel for x in block_kernels(share(rows) if shares else rows, block, block, TILES[0])]
    sweeps = [k for k in inner if isinstance(k, Rows)]
    return TILES if any(k.active for k in sweeps) else TILES[: bool(sweeps)]


def local_bytes(rows: Rows, config: RowsConfig) -> int:
    """Return the bytes of the local buffers of a block that its kernels do not keep to themselves."""
    rows = share(rows) if config.share else rows
    used = {p for x in block_kernels(rows, config.block, config.block, config.nested) for p in x.places}
    local = [b for place, b in enumerate(rows.local, len(rows.buffers)) if place in used]
    return sum(b.nbytes // rows.rows * (config.block if config.tasks else rows.rows) for b in local)


def is_batch(rows: Rows, target: Target) -> bool:
    """Return whether rows are too few for all cores, so that the cores have to share in the work of a row."""
    few = rows.rows < ROWS_PER_CORE * target.cores
    return few and rows.reuses and rows.active is None and not any(m.reduces for m in rows.members)


def target_of_row(rows: Rows, target: Target) -> Target:
    """Return the machine that runs a row of a batch (`is_batch`): its part of the cores."""
    return replace(target, cores=min(target.cores, -(-ROWS_PER_CORE * target.cores // rows.rows)))


def batch_cost(rows: Rows, config: RowsConfig, target: Target, chooser: Chooser) -> Cost:
    """Return the cost of the kernels of a row, launched on all rows one after the other."""
    one = target_of_row(rows, target)
    kernels = [x.kernel for x in block_kernels(share(rows) if config.share else rows, 1, 1, config.nested)]
    times = rows.rows * one.cores / target.cores
    return in_turn([Cost(*(times * x for x in chooser.choose(k, one).cost)) for k in kernels])


def task_count(rows: Rows, config: RowsConfig) -> tuple[int, int]:
    """Return (tasks, blocks of a task); the last task also takes the shorter block at the end, if there is one."""
    blocks = -(-rows.rows // config.block)
    chunk = -(-blocks // config.tasks)
    return -(-blocks // chunk), chunk


class Blocks:
    """The cost model of one Rows in one configuration."""

    def __init__(self, rows: Rows, config: RowsConfig, target: Target):
        self.rows = rows = share(rows) if config.share else rows
        self.config, self.target, self.one = config, target, share_of_one_core(rows, target)
        self.blocks = rows.rows / config.block
        self.size = float(sum(b.nbytes for b in rows.buffers))
        if config.nested:
            kernels = [x.kernel for x in block_kernels(rows, config.block, config.block, config.nested)]
            sizes = [float(sum(b.nbytes for b in kernel.buffers)) for kernel in kernels]
        else:
            sizes = [whole + by_row / self.blocks for whole, by_row in map(_touched_bytes, rows.members)]
        self.lower_bounds = [self.blocks * (self.one.seconds_for_bytes(x, x, 1) + BLOCK_SECONDS) for x in sizes]
        """Lower bound of the seconds that each kernel of a block takes for all blocks, from its bytes in cache."""

    def seconds(self, n: int, chooser: Chooser) -> float:
        """Return the seconds that kernel n of a block takes for all blocks on one core."""
        rows, block = self.rows, self.config.block
        if self.config.nested:
            kernel = block_kernels(rows, block, block, self.config.nested)[n].kernel
        else:
            kernel = block_kernel(rows.members[n], block, block, len(rows.buffers))
        choice = chooser.choose(kernel, self.one)
        cost: Cost = choice.cost
        seconds = max(cost.arithmetic, cost.memory) + BLOCK_SECONDS + cost.special
        if isinstance(kernel, Rows) and kernel.active is not None:
            seconds *= self._active_fraction(n, kernel, kernel.active)
        return self.blocks * seconds

    def _active_fraction(self, n: int, sweep: Rows, active: Activity) -> float:
        """Return the fraction of tiles that are active in sweep n, from a sample of at most `_SAMPLED_BLOCKS` blocks
        on either side. All are, as far as the condition depends on data."""
        rows, block = self.rows, self.config.block
        number = block_places(rows).number
        places = block_kernels(rows, block, block, self.config.nested)[n].places

        def is_active(first: int, at: int) -> bool:
            ends = [(at, min(at + active.block, sweep.rows) - 1), *((0, x - 1) for x in active.extents)]
            by_slot = {s: (first, first) for s, p in enumerate(places) if p == number}
            return BoxCondition(ends, lambda e, _: by_slot[e.slot], None).may_hold(active.condition)

        outer = _sample(rows.rows, block)
        tiles = [(i, j) for i in outer for j in _sample(sweep.rows, active.block)]
        return sum(is_active(i, j) for i, j in tiles) / len(tiles)

    def cost(self, work: float) -> Cost:
        """Return the cost if the members take `work` seconds on one core.

        While a member computes on a small block, the following rows are being fetched, so that work and memory traffic
        overlap. The larger a block, the less they do: the fraction (block bytes / L1, at most 1) does not overlap, as a
        member works beyond L1 on data that earlier members have fetched."""
        rows, target = self.rows, self.target
        tasks = task_count(rows, self.config)[0]
        serial_fraction = min(1.0, self.size * self.config.block / rows.rows / target.l1)
        memory = target.seconds_for_bytes(self.size, self.size, tasks)
        return distribute((1 - serial_fraction) * work, memory, serial_fraction * work, tasks, target)


@lru_cache(maxsize=64)
def _equal_share(target: Target) -> Target:
    cores = target.cores
    return replace(
        target,
        cores=1,
        l3=max(target.l2, target.l3 // cores),
        l3_bandwidth=target.l3_bandwidth / cores,
        memory_bandwidth=target.memory_bandwidth / cores,
        core_bandwidth=min(target.core_bandwidth, target.memory_bandwidth / cores),
    )


def share_of_one_core(rows: Rows, target: Target) -> Target:
    """Return the machine that runs a block. Kernels that reuse operands read them, and local buffers, from beyond L2
    on all cores at once, which share L3 and its bandwidth."""
    return _equal_share(target) if rows.reuses else one_core(target)


def _sample(rows: int, block: int) -> list[int]:
    """Return the first rows of blocks, evenly chosen."""
    blocks = -(-rows // block)
    count = min(blocks, _SAMPLED_BLOCKS)
    return [(2 * i + 1) * blocks // (2 * count) * block for i in range(count)]


@lru_cache(maxsize=64)
def one_core(target: Target) -> Target:
    """Return the target with a single core."""
    return replace(target, cores=1)


@lru_cache(maxsize=1024)
def _touched_bytes(member: Member) -> tuple[float, float]:
    """Return (bytes touched of buffers without rows, bytes touched of the other buffers, for all rows)."""
    used = inputs(member) if member.reduces else range(len(member.places))
    bytes_of = bytes_by_buffer(member.kernel)
    whole = sum(bytes_of[n] for n in used if not member.by_row[n])
    return whole, sum(bytes_of[n] for n in used if member.by_row[n])


def best(rows: Rows, target: Target, chooser: Chooser, limit: float) -> RowsConfig | None:
    """Return the configuration of the lowest cost rank, or None where no rank is below `limit`.

    Ties go to the configuration with the lower bound by bytes. Branch and bound: a configuration's members are priced
    one by one, the longest first, until its rank is known to be no better than the best so far. Configurations without
    `share` come first."""
    if is_batch(rows, target):
        ranked = [(batch_cost(rows, c, target, chooser).rank, n, c) for n, c in enumerate(configs(rows, target))]
        lowest, _, config = min(ranked)
        return config if lowest < limit else None
    best, least = None, (limit, -1)
    every = sorted(
        (Blocks(rows, c, target) for c in configs(rows, target)), key=lambda x: x.cost(sum(x.lower_bounds)).rank
    )
    for i, x in sorted(enumerate(every), key=lambda x: not x[1].config.share):
        seconds = x.lower_bounds.copy()
        for n in sorted(range(len(seconds)), key=lambda n: -x.lower_bounds[n]):
            if (x.cost(sum(seconds)).rank, i) >= least:
                break
            seconds[n] = x.seconds(n, chooser)
        rank = x.cost(sum(seconds)).rank, i
        if rank < least:
            best, least = x.config, rank
    return best
