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
from einsmith.schedule import row_nests
from einsmith.schedule.block_kernels import BlockKernel
from einsmith.schedule.footprint import bytes_by_buffer, gathered_buffers
from einsmith.schedule.kernel import Activity, Kernel, Member, Rows
from einsmith.schedule.row_blocks import inputs, partials
from einsmith.schedule.row_fusion import ROWS_PER_CORE
from einsmith.schedule.row_nests import block_kernels, block_places, shared_memory
from einsmith.schedule.shared_rows import share

MAX_LOCAL_BYTES = 1 << 25
"""Most bytes of local buffers on all threads, where there are configurations that take so few. Partial results may take
as much as operands and results, if that is more."""
REUSING_BLOCKS = (16, 32, 64, 128)
"""Numbers of rows of a block that are priced for kernels that reuse operands. Blocks of 256 queries take 8 to 25 %
longer than blocks of 128 where 2,048 and more keys leave L2 (attention, two cores of a Zen 4)."""
MAX_SHARED_L2_RATIO = 1.0
"""Largest ratio of the bytes that all blocks read to those of L2 at which blocks in parallel alone are priced: they
keep in L2 what each packs for itself. The vocabulary of the next figure has a ratio of 54."""
LEAST_SAVED_BY_PACKING = 0.08
"""Part of the predicted time of a block's kernel in all blocks that packing an operand before the first one has to
save, as what is packed takes the operand's bytes again. Of 49,152 words of 576 channels, in 8 blocks of 128 rows in
bfloat16, one packing of the weights takes 26 ms, the products of the hidden gradient 94 ms (a Sapphire Rapids)."""
TILES = (128, 256)
"""Lengths of the tiles of a sweep that are priced, where tiles may be skipped."""
_SAMPLED_BLOCKS = 16
"""Most blocks of rows by which the fraction of active tiles is estimated."""


class RowsConfig(NamedTuple):
    """A configuration of a row-block fusion.

    Attributes:
        block: rows that the members process at a time.
        tasks: runs of blocks that may execute in parallel; 0: the kernels of a block are launched one after the other,
            each on all cores, those of single rows on all rows at once, those of longer blocks block by block.
        share: evaluate subexpressions common to several members once, into scratch.
        nested: run the members of a block in sweeps over another axis (`schedule.row_nests`), and skip this number of
            rows of it together; 0: run the members one after the other.
        turned: the row is the innermost dimension of local buffers in memory.
        again: sweeps recompute what they need of earlier ones instead of reading it.
    """

    block: int
    tasks: int
    share: bool = False
    nested: int = 0
    turned: bool = False
    again: bool = False


def kernels_of(rows: Rows, config: RowsConfig, count: int = 0) -> tuple[BlockKernel, ...]:
    """Return the kernels that run on a block, of `count` rows if that is not 0."""
    return block_kernels(rows, count or config.block, config.block, config.nested, config.turned, config.again)


def _divisor(n: int, most: int) -> int:
    """Return the largest divisor of n up to `most` if it is above half of `most`; else `most`."""
    return next((d for d in reversed(divisors(n)) if most // 2 < d <= most), most)


def configs(rows: Rows, target: Target) -> list[RowsConfig]:
    """Return the configurations worth pricing."""
    each = rows.row_bytes
    shares = (False, True) if share(rows) is not rows else (False,)
    out = []
    sums = _sum_bytes(rows)
    counts = (1, 8 * target.cores) if each * rows.rows <= 4 * target.l2 else (8 * target.cores,)
    if rows.reuses and sums:
        counts = (*counts, 2 * target.cores, target.cores)  # partial results of fewer tasks take less memory
    if is_batch(rows, target):
        out += [RowsConfig(1, 0, s, n) for s in shares for n in dict(_nests(rows, s, 1)) or (0,)]
    elif rows.is_online or (rows.active is not None and not rows.active.is_limit):
        blocks = TILES if rows.active is None or rows.active.is_limit else (rows.active.block,)
        runs = sorted({1, target.cores, 4 * target.cores} if target.cores > 1 and not rows.has_running_mean else {1})
        out += [RowsConfig(min(n, rows.rows), tasks, s) for s in shares for n in blocks for tasks in runs]
    elif rows.reuses:
        for tasks in counts:
            most = min(-(-rows.rows // tasks), REUSING_BLOCKS[-1])
            for block in sorted({1, *(_divisor(rows.rows, n) for n in (*REUSING_BLOCKS, most) if n <= most)}):
                for s in shares:
                    nests = [(0, False), *_nests(rows, s, block)]
                    out += [RowsConfig(block, tasks, s, n, again=again) for n, again in nests]
        # Too much for each task to have sums of its own, or operands that tasks would pack again for every block.
        if 2 * target.cores * sums > MAX_LOCAL_BYTES or _shared_bytes(rows) > MAX_SHARED_L2_RATIO * target.l2:
            out += [RowsConfig(b, 0, s, 0, t) for b in _serial_blocks(rows) for s in shares for t in (False, True)]
    else:
        for tasks in counts:
            for room in (target.l1 // 4, target.l1 * 3 // 4, target.l2 // 4):
                block = _divisor(rows.rows, max(1, min(room // each, -(-rows.rows // tasks))))
                out += [RowsConfig(block, tasks, s) for s in shares]
    few = rows.rows < min(ROWS_PER_CORE * target.cores, row_nests.MIN_SWEEP_ROWS)
    if few and rows.reuses and not rows.is_online and rows.active is None:
        # All rows in one block, whose sweeps the cores share out.
        out += [RowsConfig(rows.rows, 0, s, n, again=again) for s in shares for n, again in _nests(rows, s, rows.rows)]
    if rows.active is not None and rows.active.is_limit and rows.active.block:
        out = [c._replace(block=rows.active.block) for c in out if c.tasks]
    out = list(dict.fromkeys(out))
    taken = [own_bytes(rows, c, target) for c in out]
    most = max(min(local for local, _ in taken), MAX_LOCAL_BYTES)
    most_sums = max(min(sums for _, sums in taken), MAX_LOCAL_BYTES, sum(b.nbytes for b in rows.buffers))
    return [c for c, (local, sums) in zip(out, taken, strict=True) if local <= most and sums <= most_sums]


def _nests(rows: Rows, shares: bool, block: int) -> list[tuple[int, bool]]:
    """Return the (length of tiles, whether tiles are recomputed) worth pricing for a nest in blocks of rows; an empty
    result without sweeps."""
    rows = share(rows) if shares else rows
    inner = [x.kernel for x in kernels_of(rows, RowsConfig(block, 1, shares, TILES[0]))]
    sweeps = [k for k in inner if isinstance(k, Rows)]
    tiles = TILES if any(k.active for k in sweeps) else TILES[: bool(sweeps)]
    return [(n, again) for n in tiles for again in (False, True)[: 1 + (len(sweeps) > 1)]]


def _serial_blocks(rows: Rows) -> list[int]:
    """Return the numbers of rows of a block that are priced where blocks run one after the other: at most half of all,
    as a single block would store what is used up."""
    most = max(1, min(-(-rows.rows // 2), MAX_LOCAL_BYTES // max(1, local_bytes(rows, RowsConfig(1, 1)))))
    return sorted({_divisor(rows.rows, n) for n in (*REUSING_BLOCKS, most) if 1 < n <= most})


def local_bytes(rows: Rows, config: RowsConfig) -> int:
    """Return the bytes of local buffers that kernels of a block hand over to later ones; buffers that can share memory
    count once. Where single rows are launched all at once, those of all rows are counted."""
    rows = share(rows) if config.share else rows
    owners = set(shared_memory(rows, kernels_of(rows, config)).values())
    count = config.block if config.tasks or config.block > 1 else rows.rows
    return sum(rows.local[place - len(rows.buffers)].nbytes // rows.rows * count for place in owners)


def own_bytes(rows: Rows, config: RowsConfig, target: Target) -> tuple[int, int]:
    """Return (bytes of the local buffers of all threads, bytes of the partial results of all tasks and threads)."""
    local = local_bytes(rows, config)
    if not config.tasks:
        return local, sum(x.nbytes for m in rows.members if m.reduces and direct_result(m) is None for x in partials(m))
    tasks = task_count(rows, config)[0]
    threads = min(tasks, target.cores)
    return local * threads, _sum_bytes(rows) * (tasks + threads)


def _sum_bytes(rows: Rows) -> int:
    """Return the bytes of a partial result of each reducing member."""
    return sum(x.nbytes for m in rows.members if m.reduces for x in partials(m))


def direct_result(member: Member) -> int | None:
    """Return the place of the buffer in which a reducing member can add up its result: the one that it is stored to;
    None where other stages follow, or where the buffer is not dense."""
    stages, (x, *more) = member.kernel.stages, partials(member)
    place = stages[0].outputs[0]
    if len(stages) > 1 or more or place is None or member.kernel.buffers[place].strides != x.strides:
        return None
    return member.places[place]


def is_batch(rows: Rows, target: Target) -> bool:
    """Return whether rows are too few for all cores, so that the cores have to share in the work of a row."""
    few = rows.rows < ROWS_PER_CORE * target.cores
    return few and rows.reuses and rows.active is None and not any(m.reduces for m in rows.members)


def target_of_row(rows: Rows, target: Target) -> Target:
    """Return the machine that runs a row of a batch (`is_batch`): its part of the cores."""
    return replace(target, cores=min(target.cores, -(-ROWS_PER_CORE * target.cores // rows.rows)))


def launched_cost(rows: Rows, config: RowsConfig, target: Target, chooser: Chooser) -> Cost:
    """Return the cost of the kernels of a block, launched one after the other, for all blocks."""
    rows = share(rows) if config.share else rows
    parts = kernels_of(rows, config)
    if config.block > 1:
        return in_turn([pack_once(rows, x, config.block, target, chooser).cost for x in parts])
    one = target_of_row(rows, target)
    times = rows.rows * one.cores / target.cores
    return in_turn([_times(times, chooser.choose(x.kernel, one).cost) for x in parts])


class RepeatedKernel(NamedTuple):
    """A kernel that is launched for every block, and its cost for all blocks. packs_once: whether operands that all
    blocks share are marked, and packed once before the first block."""

    kernel: Kernel
    cost: Cost
    packs_once: bool


def pack_once(rows: Rows, part: BlockKernel, block: int, target: Target, chooser: Chooser) -> RepeatedKernel:
    """Decide whether the kernel of a block packs operands that all blocks share once, before the first block.

    It does if that saves at least the fraction LEAST_SAVED_BY_PACKING of its time. block: rows of a block."""
    times, kernel = rows.rows / block, part.kernel
    again = _times(times, chooser.choose(kernel, target).cost)
    shared = shared_places(rows)
    same = tuple(n for n, place in enumerate(part.places) if place in shared)
    if block >= rows.rows or not same or type(kernel) is not Kernel or not kernel.reuses:
        return RepeatedKernel(kernel, again, False)
    marked = Kernel(kernel.stages, kernel.buffers, same)
    choice = chooser.choose(marked, target)
    whole = choice.pattern.cost(kernel, choice.config, target)
    packing = Cost(*(max(0.0, x - y) for x, y in zip(whole, choice.cost, strict=True)))
    cost = in_turn([packing, _times(times, choice.cost)])
    if cost.rank > (1 - LEAST_SAVED_BY_PACKING) * again.rank:
        return RepeatedKernel(kernel, again, False)
    return RepeatedKernel(marked, cost, True)


def _times(times: float, cost: Cost) -> Cost:
    return Cost(*(times * x for x in cost))


def shared_places(rows: Rows) -> set[int]:
    """Return the places of the buffers that no row indexes and no member writes."""
    own = {p for m in rows.members for p, axis in zip(m.places, m.by_row, strict=True) if axis}
    written = {p for m in rows.members for p in m.results}
    return {*range(len(rows.buffers))} - own - written


def _shared_bytes(rows: Rows) -> int:
    """Return the bytes of the buffers that are the same in all blocks."""
    return sum(rows.buffers[place].nbytes for place in shared_places(rows))


def task_count(rows: Rows, config: RowsConfig) -> tuple[int, int]:
    """Return (tasks, blocks of a task); the last task also takes the shorter block at the end, if there is one."""
    blocks = -(-rows.rows // config.block)
    chunk = -(-blocks // config.tasks)
    return -(-blocks // chunk), chunk


class RowWork(NamedTuple):
    """The seconds on one core that a kernel of a block takes for all blocks.

    seconds: those that may overlap with memory traffic. special: those of special functions, which do not."""

    seconds: float
    special: float = 0.0


class Blocks:
    """The cost model of one Rows in one configuration."""

    def __init__(self, rows: Rows, config: RowsConfig, target: Target):
        self.rows = rows = share(rows) if config.share else rows
        self.config, self.target, self.one = config, target, share_of_one_core(rows, target)
        self.blocks = rows.rows / config.block
        self.size = float(sum(b.nbytes for b in rows.buffers))
        if config.nested or rows.is_online:
            kernels = kernels_of(rows, config)
            sizes = [float(sum(b.nbytes for b in x.kernel.buffers)) for x in kernels]
            places = [x.places for x in kernels]
        else:
            sizes = [whole + by_row / self.blocks for whole, by_row in map(_touched_bytes, rows.members)]
            places = [m.places for m in rows.members]
        first = {place: n for n in reversed(range(len(places))) for place in places[n]}
        fetched = [0.0] * len(places)
        for place, b in enumerate(rows.buffers):
            fetched[first.get(place, 0)] += b.nbytes
        tasks = task_count(rows, config)[0]
        self.fetches = [target.seconds_for_bytes(n, self.size, tasks) for n in fetched]
        """Seconds in which all cores move the operands and results that each kernel of a block is the first to
        touch."""
        self.lower_bounds = [
            RowWork(self.blocks * (self.one.seconds_for_bytes(x, x, 1) + target.overheads.block_seconds)) for x in sizes
        ]
        """Lower bound of the work that each kernel of a block has for all blocks, from its bytes in cache."""

    def work(self, n: int, chooser: Chooser) -> RowWork:
        """Return the work of kernel n of a block for all blocks."""
        kernel = kernels_of(self.rows, self.config)[n].kernel
        cost: Cost = chooser.choose(kernel, self.one).cost
        seconds, special = max(cost.arithmetic, cost.memory) + self.target.overheads.block_seconds, cost.special
        if isinstance(kernel, Rows) and kernel.active is not None:
            active = _active_fraction(self.rows, self.config, n, kernel, kernel.active)
            seconds, special = seconds * active, special * active
        return RowWork(self.blocks * seconds, self.blocks * special)

    def cost(self, work: Sequence[RowWork]) -> Cost:
        """Return the cost if the kernels of a block have this work.

        While a member computes on a small block, the following rows are being fetched, so that all work and all memory
        traffic overlap. The larger a block, the less they do: in the fraction (block bytes / L1, at most 1), each
        member waits for what it is the first to touch, and `Overheads.exposed_rows` of the shorter of both is not
        hidden; later members work beyond L1 on what it has fetched."""
        rows, target = self.rows, self.target
        tasks = task_count(rows, self.config)[0]
        serial = min(1.0, self.size * self.config.block / rows.rows / target.l1)
        total = sum([x.seconds + x.special for x in work])
        arithmetic, _, _, launch = distribute(total, 0.0, 0.0, tasks, target)
        share, exposed = arithmetic / total if total else 0.0, target.overheads.exposed_rows
        waited = 0.0
        for x, fetch in zip(work, self.fetches, strict=True):
            own = share * x.seconds
            waited += max(own, fetch) + exposed * min(own, fetch) + share * x.special
        return Cost((1 - serial) * arithmetic, (1 - serial) * sum(self.fetches), serial * waited, launch)


def _active_fraction(rows: Rows, config: RowsConfig, n: int, sweep: Rows, active: Activity) -> float:
    """Return the fraction of tiles that are active in a sweep, kernel n of a block, from a sample of at most
    `_SAMPLED_BLOCKS` blocks on either side. All are, as far as the condition depends on data."""
    if active.is_limit:
        return 1.0
    number = block_places(rows).number
    places = kernels_of(rows, config)[n].places

    def is_active(first: int, at: int) -> bool:
        ends = [(at, min(at + active.block, sweep.rows) - 1), *((0, x - 1) for x in active.extents)]
        by_slot = {s: (first, first) for s, p in enumerate(places) if p == number}
        return BoxCondition(ends, lambda e, _: by_slot[e.slot], None).may_hold(active.condition)

    outer = _sample(rows.rows, config.block)
    tiles = [(i, j) for i in outer for j in _sample(sweep.rows, active.block)]
    return sum(is_active(i, j) for i, j in tiles) / len(tiles)


class Traversal(NamedTuple):
    """The order in which a row-block fusion runs in a configuration.

    Attributes:
        rows: the number of rows.
        block: rows that are processed at a time.
        kernels: the kernels that run on a block one after the other, without those of `sweeps`.
        sweeps: the traversals of another axis inside of a block.
        active: estimated fraction of the blocks that are not skipped; None if none can be.
    """

    rows: int
    block: int
    kernels: int
    sweeps: tuple[Traversal, ...]
    active: float | None = None


def traversal(rows: Rows, config: RowsConfig, target: Target, chooser: Chooser) -> Traversal:
    """Return the order in which a row-block fusion runs in a configuration."""
    rows = share(rows) if config.share else rows
    one = share_of_one_core(rows, target) if config.tasks else target_of_row(rows, target)
    sweeps = []
    inner = [x.kernel for x in kernels_of(rows, config)]
    for n, kernel in enumerate(inner):
        if isinstance(kernel, Rows):
            active = kernel.active
            part = None if active is None else _active_fraction(rows, config, n, kernel, active)
            sweeps.append(traversal(kernel, chooser.choose(kernel, one).config, one, chooser)._replace(active=part))
    return Traversal(rows.rows, config.block, len(inner) - len(sweeps), tuple(sweeps))


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
    """Return (bytes of which every block touches all, those of which each touches a part at least), for all rows.

    The rows read different elements of buffers that have rows, and may do so of those that are gathered from."""
    used = inputs(member) if member.reduces else range(len(member.places))
    bytes_of, gathered = bytes_by_buffer(member.kernel), gathered_buffers(member.kernel)
    whole = sum(bytes_of[n] for n in used if not member.by_row[n] and n not in gathered)
    return whole, sum(bytes_of[n] for n in used if member.by_row[n] or n in gathered)


def best(rows: Rows, target: Target, chooser: Chooser, limit: float) -> RowsConfig | None:
    """Return the configuration of the lowest cost rank, or None where no rank is below `limit`.

    Ties go to the configuration with the lower bound by bytes. Branch and bound: a configuration's members are priced
    one by one, the longest first, until its rank is known to be no better than the best so far. Configurations without
    `share` come first."""
    best, least = None, (limit, -1)
    candidates = configs(rows, target)
    for config in candidates:
        if not config.tasks and (rank := (launched_cost(rows, config, target, chooser).rank, -1)) < least:
            best, least = config, rank
    every = sorted((Blocks(rows, c, target) for c in candidates if c.tasks), key=lambda x: x.cost(x.lower_bounds).rank)
    for i, x in sorted(enumerate(every), key=lambda x: not x[1].config.share):
        work = x.lower_bounds.copy()
        for n in sorted(range(len(work)), key=lambda n: -work[n].seconds):
            if (x.cost(work).rank, i) >= least:
                break
            work[n] = x.work(n, chooser)
        rank = x.cost(work).rank, i
        if rank < least:
            best, least = x.config, rank
    return best
