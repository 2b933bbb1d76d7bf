"""Predict the costs of many tiled configurations at once, as arrays with one element for each configuration.

Arithmetic counts clock cycles: the steps of the tiles, what tiles begin and end with, packing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from einsmith.codegen.loopnest.dots import TILE_ROWS
from einsmith.cost import facts
from einsmith.cost.memory_traffic import PAGE, waited_part
from einsmith.cost.roofline import HIDDEN, launch_overhead
from einsmith.kernels.contraction import traffic
from einsmith.kernels.contraction.config import Tiled, has_room_to_unroll, unroll_limit
from einsmith.kernels.contraction.direct_loads import combine_limits
from einsmith.kernels.contraction.features import FeatureArrays, OperandPlan
from einsmith.kernels.contraction.traffic import Array
from einsmith.schedule.footprint import bytes_by_buffer

HOW = ("inline", "panel", "buffer")
"""Values of the fields `a` and `b` of Tiled; a table holds positions in this tuple."""
INLINE, PANEL, BUFFER = range(3)
"""Positions in HOW."""
ORDERS = ("n", "m", "k")
"""Values of the field `order` of Tiled; a table holds positions in this tuple."""
BY_N, BY_M, BY_K = range(3)
"""Positions in ORDERS."""
MAX_UNROLLED_RUN = 2
"""Most points of a run whose loop LLVM unrolls fully; each point then takes a cycle more."""


class ConfigTable:
    """Configurations, a column of `rows` each.

    The rows are the number of the setting; the fields of Tiled, with a and b as places in HOW and order as a place in
    ORDERS; k_fraction: part of K that guards leave a tile; epilogue_cycles: cycles of the epilogue for each
    vector; in_place: whether tiles can read M where it lies.

    settings, features: the settings, and their features
    numbers: features of each configuration's setting
    m_outer: whether tiles of M are outermost
    nr: points of N in a panel
    mt, nt: tiles of M, panels of N
    item, lanes: bytes of an element, elements of a vector
    nbytes: bytes of all buffers
    """

    def __init__(self, settings: Sequence[OperandPlan], rows: Array, features: FeatureArrays):
        self.settings, self.rows, self.features = settings, rows, features
        self.setting = rows[0].astype(np.int64)
        self.mr, self.nv, self.a, self.b, self.order, self.kc, self.split, self.tm, self.tn, *others = rows[1:]
        self.depth, self.k_fraction, self.epilogue_cycles, self.in_place = others
        self.numbers, self.m_outer = features.select(self.setting), self.order == BY_M
        first = settings[0]
        self.item, self.lanes, self.nbytes = first.item, first.lanes, sum(bytes_by_buffer(first.kernel))
        self.nr = self.nv * self.lanes / self.depth
        self.mt, self.nt = np.ceil(self.numbers.m / self.mr), np.ceil(self.numbers.n / self.nr)

    def config(self, i: int) -> Tiled:
        """Return configuration number `i`."""
        number, mr, nv, a, b, order, kc, split, tm, tn, depth = map(int, self.rows[:11, i])
        s = self.settings[number]
        ways, p = (HOW[a], HOW[b], ORDERS[order]), s.original
        return Tiled(s.swap, mr, nv, *ways, kc, split, tm, tn, s.windows, s.rows, depth, p.word_axis, p.in_tiles)


class Predicted(NamedTuple):
    """Predicted seconds on all cores of a target, numbers of launches, and tasks of the launch that multiplies."""

    arithmetic: Array
    memory: Array
    launches: Array
    tasks: Array

    def rank(self, target: Any) -> Array:
        """Return the rank of each configuration, computed as by `Cost.rank`."""
        least, most = np.minimum(self.arithmetic, self.memory), np.maximum(self.arithmetic, self.memory)
        return most + HIDDEN * least + self.launches * launch_overhead(self.tasks, target)


_Transfer = tuple[Array, Array, bool]
"""Bytes read again, the footprint (bytes) that decides the level of memory they come from, and whether tiles wait."""


class CostTerms:
    """Quantities that several terms of the cost of a table's configurations use.

    t, x, target, w: the table, the features of its configurations, the target and its overheads
    a_inline, b_inline, a_buffer, b_buffer: how M (a) and N (b) reach the tile
    a_repacked, b_repacked: whether the operand is packed into a buffer in every run
    n_outer, by_k: whether tiles of M are not outermost, whether blocks of K are
    has_k_halos: whether halo copies cut K into blocks
    nvs, rows: vectors of N, vectors of a row of results
    k_steps: steps of the loop over all of K
    all_tasks, tasks: tasks, and cores that run them
    k_part, kc: points of K in a part and in a block
    prefetched_lines: lines of the next panel of N that a tile prefetches at each point of K
    l2_bytes: bytes of the L2 of all cores that run tasks
    a_own, b_own: bytes of an operand
    a_bytes, b_bytes: bytes of an operand, counted again for every point of the batch that reads it
    repacked_bytes: bytes packed into buffers in every run
    footprint: bytes that a run reads and writes, including these
    blocked: whether a part of K has several blocks
    span: bytes of a task's range of the inner side, at one point of the batch
    """

    def __init__(self, t: ConfigTable, target: Any):
        x = t.numbers
        self.t, self.x, self.target, self.w = t, x, target, target.overheads
        self.a_inline, self.b_inline = t.a == INLINE, t.b == INLINE
        self.a_buffer, self.b_buffer = t.a == BUFFER, t.b == BUFFER
        self.a_repacked, self.b_repacked = self.a_buffer & (x.a_invariant == 0), self.b_buffer & (x.b_invariant == 0)
        self.n_outer, self.has_k_halos, self.by_k = ~t.m_outer, x.halo_k_blocks > 0, t.order == BY_K
        # Vectors of N, and of a row of results.
        self.nvs, self.rows = np.ceil(x.n * t.depth / t.lanes), np.ceil(x.n / t.lanes)
        self.k_steps = x.k / t.depth  # steps of K
        self.all_tasks = x.batch * t.split * t.tm * t.tn
        self.tasks = np.minimum(target.cores, self.all_tasks)
        self.k_part = np.ceil(x.k / t.split)
        kc = np.minimum(np.where(t.kc > 0, t.kc, self.k_part), self.k_part)
        self.kc = np.where(self.has_k_halos, x.k // np.maximum(x.halo_k_blocks, 1), kc)
        self.prefetched_lines = np.zeros_like(self.kc)
        if x.has["b_stream_lines"]:
            stream_lines = x.b_stream_lines * (self.n_outer & ~self.b_buffer & (t.kc == 0))
            stream_lines *= 2 * self.kc * t.nr * t.item < target.l2 * target.overheads.held
            self.prefetched_lines = x.b_streams * traffic.count_prefetched_lines(
                stream_lines, x.m, x.n, t.mr, t.nv, t.lanes, t.tm
            )
        self.l2_bytes = target.l2 * self.tasks  # bytes of the L2 of all tasks
        self.a_own, self.b_own = x.a_batch * x.m * x.k * t.item, x.b_batch * x.n * x.k * t.item
        self.a_bytes, self.b_bytes = self.a_own * (x.batch / x.a_batch), self.b_own * (x.batch / x.b_batch)
        self.repacked_bytes = self.a_own * self.a_repacked + self.b_own * self.b_repacked
        # What is packed once is read in place of the tensors that it was packed from.
        kept = ((self.a_buffer, x.a_invariant, self.a_own), (self.b_buffer, x.b_invariant, self.b_own))
        exchanged = sum((own - source) * (buffer & (source > 0)) for buffer, source, own in kept)
        self.footprint = t.nbytes + self.repacked_bytes + exchanged
        self.blocked = self.kc < self.k_part
        self.span = inner_bytes(t, t.tm, t.tn)


def predict(t: ConfigTable, target: Any) -> Predicted:
    """Predict the cost of every configuration of the table."""
    s = CostTerms(t, target)
    pack_cycles, buffer_cycles = _packing_cycles(s)
    seconds_per_cycle = s.target.cycle_seconds / s.tasks
    arithmetic = (_step_cycles(s) + _tile_cycles(s) + pack_cycles + _halo_cycles(s)) * seconds_per_cycle * imbalance(s)
    arithmetic += refetched_bytes(s) / (target.bytes_per_second[2] * s.tasks)
    memory = np.zeros_like(arithmetic)
    transfers = [
        (s.footprint + s.repacked_bytes, s.footprint, False),
        *_inner_side_transfers(s),
        *_repeated_transfers(s),
        *_strip_transfers(s),
    ]
    l3_rate, *rates = s.target.transfer_rate(
        np.array([np.minimum(s.footprint, target.last_level), *(footprint for _, footprint, _ in transfers)]), s.tasks
    )
    # Packing into buffers is a launch of its own: strips are read, lines fetched to be written, and written. That is
    # slower where they come from memory.
    moves = np.where(s.footprint <= target.last_level, s.w.read_twice, s.w.far_twice)
    line_seconds = moves * s.repacked_bytes / l3_rate
    arithmetic += s.w.launched * np.maximum(buffer_cycles * seconds_per_cycle, line_seconds)
    for (nbytes, _, is_waited), rate in zip(transfers, rates, strict=True):
        if is_waited:
            arithmetic += nbytes / rate
        else:
            memory += nbytes / rate
    return Predicted(arithmetic, memory, 1.0 + (t.split > 1) + (s.a_repacked | s.b_repacked), s.all_tasks)


def _step_cycles(s: CostTerms) -> Array:
    """Return the cycles of all steps over K of all tiles."""
    t, x, w, kc = s.t, s.x, s.w, s.kc
    # Extra arithmetic cycles for a vector of N read in place.
    n_extra = s.b_inline * (x.b_read_cycles + w.mask * x.b_masks + x.b_prologue_cycles)
    # Elements of M that the rows of the next point need too are loaded once for several points.
    shares_elements = s.a_inline & (x.a_shares_elements > 0) & (t.nv == 1) if x.has["a_shares_elements"] else np.False_
    broadcast = np.where(shares_elements, 0.5, w.broadcast)
    # New pages that a point of K begins, of M and of N, where there are more of them than any TLB holds. Where M comes
    # from beyond L2, or N differs at every point of the batch, the size of the first-level TLB counts.
    strides = np.array((x.a_step * (s.a_inline & (x.a_step >= facts.LINE)), x.b_step * s.b_inline))
    page_fraction = np.minimum(1.0, strides / PAGE)
    tlb_pages = np.where(np.array((s.a_own > s.target.l2, x.b_batch > 1)), w.near_pages, w.most_pages)
    pages = page_fraction * (kc * page_fraction > tlb_pages)
    run = np.where(s.a_inline, np.where(s.b_inline, x.run, x.a_run), np.where(s.b_inline, x.b_run, x.k))
    m_extra = s.a_inline * x.a_prologue_cycles
    if x.has["a_l1_rows"]:
        m_extra = m_extra + s.a_inline * traffic.row_conflicts(t.mr, x.a_l1_rows) * w.conflict
    sums = t.mr * t.nv
    can_unroll = has_room_to_unroll(t.mr, t.nv, x.registers) & ~shares_elements
    if x.has["b_pairs"]:
        can_unroll &= ~(s.b_inline & (x.b_pairs > 0))
    unrolls = can_unroll & (run * sums <= unroll_limit(t.nv))
    loop_cycles = np.minimum(w.most_begun, np.where(unrolls, w.unrolled_loop, w.loop) / run)
    loop_cycles = np.where(run <= MAX_UNROLLED_RUN, 1.0, loop_cycles)
    step_extra = w.translate_m * pages[0] + w.translate_n * pages[1] + loop_cycles * (run < kc)
    # Vectors of a halo copy cross the borders of lines, which a single tile of M finds in L2.
    loads: Array | float = 0.5
    if x.has["b_share"]:
        shares_lines = s.b_inline & (x.b_share > 0)
        loads = np.where(shares_lines, 1.0 + w.line * (t.mt == 1) / np.maximum(1, x.b_share), 0.5)
    # Vectors of N that every tile of M loads from L2.
    n_extra = n_extra + w.walked * (t.m_outer & (t.mt > t.tm) & (s.span > s.target.l1))
    if x.has["b_stream_lines"]:
        line = np.maximum(t.nr * t.item, x.b_step_alignment)
        evicted = (x.b_stream_lines > 0) & s.n_outer & s.b_inline & (2 * s.kc * line > s.target.l1)
        n_extra = n_extra + w.rewalked * evicted * (1 - t.tm / t.mt)

    # Vectors that every tile of M loads from L2; or every point of the batch, if there is one tile of M.
    tiles = (t.mt > t.tm) & (s.kc * t.nr * t.item > s.target.l1)
    l2_line = max(w.line, t.lanes * t.item / s.target.bytes_per_second[1] / s.target.cycle_seconds)
    l2_load = l2_line * (tiles | ((t.mt == 1) & (x.batch > x.b_batch) & (s.b_own > s.target.l1)))

    def step(mr: Array, nv: Array) -> Array:
        """Return the cycles of a step, which multiply-adds, loads and the latency of a short chain limit."""
        product = mr * nv
        cycles = combine_limits(product / x.multiplies, mr * broadcast + nv * loads + s.prefetched_lines / 2, w.overlap)
        if x.has["in_tiles"]:  # a tile register is loaded by one instruction
            whole = np.ceil(mr / TILE_ROWS) * TILE_ROWS * nv
            cycles = np.where(x.in_tiles > 0, whole / x.multiplies, cycles)
        cycles = np.maximum(cycles, nv * l2_load)
        cycles = cycles + nv * n_extra + mr * m_extra + step_extra
        if x.has["b_read_cycles"]:
            cycles = cycles + w.reloaded * np.maximum(0.0, s.b_inline * nv * x.b_read_cycles - w.in_registers)
        return combine_limits(cycles, w.latency * (product >= 1), w.overlap)

    rows, widths = np.array((t.mr, x.m - (t.mt - 1) * t.mr))[:, None], np.array((t.nv, s.nvs - (t.nt - 1) * t.nv))
    (inside, right), (below, corner) = step(rows, widths)  # whole tiles and the last ones
    steps = (t.mt - 1) * ((t.nt - 1) * inside + right) + (t.nt - 1) * below + corner
    steps = steps * x.batch * s.k_steps
    steps *= np.where((t.split == 1) & (t.kc == 0) & ~s.has_k_halos, t.k_fraction, 1.0)
    # Sums are loaded for a block of K and no register is left for what loads need: the allocator rotates the sums
    # through the stack at every step, unless there are few addresses.
    is_blocked = s.blocked & (t.kc > 0)
    if not is_blocked.any():
        return steps
    lacks_registers = sums + t.nv + 2 + 2 * (n_extra > 0) >= x.registers
    has_few_addresses = (x.even > 0) & ~((t.a == PANEL) & (x.a_transposed > 0))
    return steps * np.where(lacks_registers & is_blocked & ~has_few_addresses, w.rotate, 1.0)


def _tile_cycles(s: CostTerms) -> Array:
    """Return the cycles of tiles outside their steps, and of their epilogues."""
    t, x, w = s.t, s.x, s.w
    # Between blocks of K all sums of a panel stay in scratch.
    is_blocked = s.blocked & ~s.has_k_halos | (x.in_tiles > 0)  # sums leave tile registers through scratch
    tile_cycles = w.tile + t.mr * t.nv * np.where(is_blocked, w.waiting_sum, w.stored_sum) + t.mr * w.tile_row
    if s.by_k.any():
        waiting = x.m * x.columns * t.item / (t.tm * t.tn)
        tile_cycles = tile_cycles + w.far_sum * t.mr * t.nv * (s.by_k & (waiting > s.target.l1))
    out = np.ceil(s.k_part / s.kc) * t.mt * t.nt * x.batch * t.split * tile_cycles
    out += w.partial_sum * t.split * x.m * s.rows * x.batch * (t.split > 1)
    if x.has["result_bytes"]:
        of_n = np.where(s.n_outer & (t.nt > 1), x.m, t.mr)
        rows = np.where(x.result_bytes > 0, of_n, np.where(t.m_outer & (t.mt > 1), x.n, t.nr))
        lines = np.abs(x.result_bytes) / facts.LINE * (np.abs(x.result_bytes) > s.l2_bytes)
        out += w.strips * lines * waited_part(rows, w.streams)
    return out + x.batch * x.m * s.rows * t.epilogue_cycles


def _packing_cycles(s: CostTerms) -> tuple[Array, Array]:
    """Return the cycles of packing into panels, and of packing in launches of its own."""
    t, x, w = s.t, s.x, s.w
    times = np.where(s.b_buffer, s.b_repacked, np.where(t.m_outer, t.mt, t.tm))
    exceeds_l1 = s.kc * (t.nr + t.mr) * t.item > s.target.l1
    copy_cycles = np.where(x.b_transposed > 0, w.transposed, w.copied + w.far_copy * exceeds_l1)
    points = np.where(s.b_buffer, x.b_batch, x.batch)
    vector = x.b_pack_cycles + x.b_prologue_cycles + w.packed_mask * x.b_pack_masks + copy_cycles
    b = times * points * s.k_steps * s.nvs * vector * ~s.b_inline
    times = np.where(s.a_buffer, s.a_repacked, np.where(s.n_outer, t.nt, t.tn))
    vectors = np.where(x.a_transposed > 0, t.mr / t.lanes, np.ceil(t.mr / t.lanes))
    copy_cycles = np.where(x.a_transposed > 0, w.transposed_m, np.where(t.mr % t.lanes == 0, w.copied, w.unaligned))
    points = np.where(s.a_buffer, x.a_batch, x.batch)
    vector = x.a_pack_cycles + x.a_prologue_cycles + w.packed_mask * x.a_pack_masks + copy_cycles
    a = times * points * x.k * vectors * t.mt * vector * ~s.a_inline
    buffered = a * s.a_buffer + b * s.b_buffer
    return a + b - buffered, buffered


def _halo_cycles(s: CostTerms) -> Array | float:
    """Return the cycles of halo copies, and of storing and loading sums while halo copies change."""
    t, x, w = s.t, s.x, s.w
    if not x.has["halo_elements"]:
        return 0.0
    times = x.batch * t.tm * t.tn * np.where(s.has_k_halos, x.halo_k_blocks, t.split)
    return (
        times * (x.halo_elements / t.lanes * w.halo + x.halo_cycles)
        + w.partial_sum * x.m * s.rows * x.halo_k_blocks * x.batch
    )


def _inner_side_transfers(s: CostTerms) -> Iterator[_Transfer]:
    """Yield the bytes of the side of the inner loop, which is walked once for each outer tile.

    The side streams where a task's range of it exceeds L2.
    """
    t, x, w = s.t, s.x, s.w
    overfetch = np.where(s.n_outer & s.a_inline, x.a_overfetch, 1.0)
    inner, how = np.where(s.n_outer, s.a_bytes * overfetch, s.b_bytes), np.where(s.n_outer, t.a, t.b)
    span = s.span * overfetch
    if x.has["a_halo_bytes"] or x.has["b_halo_bytes"]:  # a side with a halo copy walks the copy
        copy = np.where(s.n_outer, x.a_halo_bytes, x.b_halo_bytes) * (how == INLINE)
        inner = np.where(copy > 0, copy * x.batch * np.where(s.n_outer, t.tm, t.tn), inner)
        span = np.where(copy > 0, copy, span)
    panel = s.kc * t.item * np.where(s.n_outer, t.nr, t.mr)  # of the outer side
    exceeds_l2 = span > np.minimum(s.target.l2 * s.w.held, s.target.l2 - panel)
    nbytes = inner * (np.where(s.n_outer, t.nt, t.mt) - 1) * exceeds_l2
    # Stretches may be too short for prefetching to run far ahead; nothing is multiplied while a panel is packed again.
    # Packed tiles of M are prefetched.
    is_short = (how != INLINE) | (np.where(s.n_outer, x.a_step, x.b_step) >= PAGE)
    waited = np.where(s.n_outer & s.a_buffer, w.streamed, 1.0) * is_short
    footprint = 2 * np.maximum(np.minimum(inner, span * s.tasks), s.l2_bytes)
    yield nbytes * waited, footprint, True
    yield nbytes * ~is_short, np.maximum(s.footprint, 2 * s.l2_bytes), False


def _repeated_transfers(s: CostTerms) -> Iterator[_Transfer]:
    """Yield the bytes of the outer operand, read once a task, and of batch-invariant operands, once a batch point."""
    t = s.t
    outer, times = np.where(s.n_outer, s.b_bytes, s.a_bytes), np.where(s.n_outer, t.tm, t.tn)
    nbytes, footprint = outer * (times - 1), 2 * np.maximum(outer, s.l2_bytes)
    is_waited = np.where(s.n_outer, t.b, t.a) != PANEL  # by the first tile of every task
    yield nbytes * is_waited, footprint, True
    yield nbytes * ~is_waited, footprint, False
    for own, total in ((s.a_own, s.a_bytes), (s.b_own, s.b_bytes)):
        if (own < total).any():
            yield (total - own) * (own > s.target.l2 * s.w.held), np.maximum(own, 2 * s.l2_bytes), False


def _strip_transfers(s: CostTerms) -> Iterator[_Transfer]:
    """Yield the bytes of operands beyond the caches that are read or packed in narrow strips.

    Prefetched lines arrive no sooner where no TLB holds their pages.
    """
    t, x, w = s.t, s.x, s.w
    k_points = np.where(s.by_k, s.kc, s.k_part)
    tlb_misses = k_points * np.minimum(1.0, x.b_step / PAGE) > w.most_pages
    m_tlb_misses = k_points * np.minimum(1.0, x.a_step / PAGE) > w.most_pages
    along = (x.a_side == t.item) & (x.a_step >= PAGE) & (s.a_own > s.target.l2) & (~s.a_buffer | s.a_repacked)
    m_strips = along & (m_tlb_misses | (t.a == PANEL))
    if m_strips.any():
        waits = np.where(t.a == PANEL, np.where(m_tlb_misses, w.walks, w.waited), 1.0)
        yield s.a_bytes * (1 + waits * traffic.strip_overhead(t.mr, x.m, t.item, w.strip)) * m_strips, s.footprint, True
    strips = traffic.strip_overhead(t.nr, x.n, t.item, w.strip)
    if x.has["b_strips"]:
        is_slow = (
            (x.b_strips > 0)
            & ((s.prefetched_lines == 0) | tlb_misses)
            & (~s.b_buffer | s.b_repacked)
            & ~(s.by_k & ~tlb_misses)
        )
        yield s.b_bytes * strips * (is_slow & ~tlb_misses), s.footprint, False
        waits = np.where(t.b == PANEL, w.walks, np.where(s.prefetched_lines > 0, w.waited, 1.0))
        yield s.b_bytes * (1 + waits * strips) * (is_slow & tlb_misses), s.footprint, True
    if x.has["b_stream_lines"]:  # nothing prefetches what every tile of M reads in place
        is_prefetched = (s.prefetched_lines > 0) & ~s.b_buffer & ~tlb_misses & (t.nv > 1)
        yield s.b_bytes * is_prefetched * w.abreast * np.clip(2.5 - x.m / w.shared_rows, 0.0, 1.0), s.footprint, True
        is_unprefetched = (x.b_stream_lines > 0) & s.b_inline & t.m_outer & ~tlb_misses
        yield s.b_bytes * (1 + strips) * is_unprefetched, s.footprint, True
    packs_streams = s.by_k & (t.b == PANEL) & (s.b_own > s.target.l2)
    if packs_streams.any():  # nothing is multiplied while a panel from beyond L2 is packed
        strips = w.waited * strips + traffic.strip_overhead(x.n / t.tn, x.n, t.item, w.strip)
        yield s.b_bytes * t.tm * (1 + strips * (x.b_strips > 0)) * packs_streams, s.footprint, True


def imbalance(s: CostTerms) -> Array:
    """Return the share of the busiest thread, relative to an even share.

    Tasks are whole tiles, divided into one contiguous range for each thread.
    """
    t, x, tasks = s.t, s.x, s.tasks
    outer_tasks = x.batch * t.split
    count = outer_tasks * t.tm * t.tn
    out = np.ceil(count / tasks) * tasks / count
    threads = np.maximum(tasks, 2)
    by_n, by_m = (t.tn > 1) & ((t.tm == 1) | (t.tn % tasks == 0)), (t.tm > 1) & (t.tn == 1)  # N's parts are outermost
    tiles, exact = np.array((t.nt, t.mt)), np.array((np.ceil(x.n * t.depth / t.lanes) / t.nv, x.m / t.mr))
    # The last tile may have fewer points, which shortens the last thread's share.
    before = np.floor((threads - 1) * tiles / threads)
    last_share = np.maximum(np.ceil(before / (threads - 1)), exact - before)
    whole = (
        np.where(outer_tasks > 1, np.ceil(outer_tasks * tiles / tasks) / (outer_tasks * tiles), last_share / exact)
        * tasks
    )
    return np.where(np.array((by_n, by_m)) & (tasks > 1), np.maximum(out, whole), out).max(axis=0)


def inner_bytes(t: ConfigTable, tm: Array | float, tn: Array | float) -> Array:
    """Return the bytes of a task's range of the side that the inner loop walks, at one point of the batch."""
    x = t.numbers
    points, parts = np.where(t.m_outer, x.columns, x.m), np.where(t.m_outer, tn, tm)
    return points * np.where(t.order == BY_K, t.kc, x.k) * t.item / (parts * t.split)


def refetched_bytes(s: CostTerms) -> Array:
    """Return the bytes fetched from beyond L2 more than once, because blocks of K are too long for it."""
    t, x, w, kc, item, l2 = s.t, s.x, s.w, s.kc, s.t.item, s.target.l2
    nbytes = np.zeros_like(kc)
    by_columns = (t.a == INLINE) & (x.a_step > item) & (kc > 0.75 * x.a_l2_lines) & (x.m * x.k * item > l2)
    if by_columns.any():
        lines = np.where(x.a_side == item, np.ceil(t.mr * item / facts.LINE), t.mr)
        nbytes = x.batch * t.mt * t.nt * x.k * lines * facts.LINE * by_columns
    panel = kc * t.nr * item
    refetched = (t.b == INLINE) & (kc > x.b_l2_lines) & (x.n * x.k * item > l2) | (panel > l2 * w.panel)
    if x.has["has_halos"]:
        # With halo copies, the part of a panel and of the copies that L2 does not hold is fetched again. A panel of a
        # buffer comes in one stream.
        copied_bytes = panel + x.halo_elements * item
        part = np.maximum(0.0, 1 - l2 * w.held / copied_bytes) * np.where(t.b == BUFFER, w.streamed, 1.0)
        refetched = np.where(x.has_halos > 0, part * (t.b != INLINE), refetched)
    return nbytes + refetched * x.batch * (t.mt - 1) * x.n * x.k * item * (t.mt > 1)
