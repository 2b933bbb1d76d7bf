"""Predict the costs of many tiled configurations at once, as arrays with one element for each configuration.

Arithmetic counts clock cycles: the steps of the tiles, what tiles begin and end with, packing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from einsmith.cost import facts
from einsmith.cost.memory_traffic import PAGE, waited_part
from einsmith.cost.roofline import HIDDEN, launch_overhead
from einsmith.kernels.contraction import traffic
from einsmith.kernels.contraction.config import Tiled, most_unrolled, room_to_unroll
from einsmith.kernels.contraction.features import FeatureArrays, OperandPlan
from einsmith.kernels.contraction.traffic import Array
from einsmith.schedule.footprint import bytes_by_buffer

HOW = ("inline", "panel", "buffer")
INLINE, PANEL, BUFFER = range(3)
ORDERS = ("n", "m", "k")
BY_N, BY_M, BY_K = range(3)
WRITTEN_OUT = 2
"""Most points of a run whose loop LLVM unrolls fully; each point then takes a cycle more."""


class ConfigTable:
    """Configurations, a column of `rows` each.

    The rows are the number of the setting; the fields of Tiled, with a and b as places in HOW and order as a place in
    ORDERS; kept: part of K that guards leave a tile; finish: cycles a vector of what follows the sum.

    settings, features: the settings, and their features
    numbers: features of each configuration's setting
    major: whether tiles of M are outermost
    item, lanes: bytes of an element, elements of a vector
    nbytes: bytes of all buffers
    """

    def __init__(self, settings: Sequence[OperandPlan], rows: Array, features: FeatureArrays):
        self.settings, self.rows, self.features = settings, rows, features
        self.setting = rows[0].astype(np.int64)
        self.mr, self.nv, self.a, self.b, self.order, self.kc, self.split, self.tm, self.tn, *others = rows[1:]
        self.depth, self.kept, self.finish = others
        self.numbers, self.major = features.of(self.setting), self.order == BY_M
        first = settings[0]
        self.item, self.lanes, self.nbytes = first.item, first.lanes, sum(bytes_by_buffer(first.kernel))

    def config(self, i: int) -> Tiled:
        """Return configuration number `i`."""
        number, mr, nv, a, b, order, kc, split, tm, tn, depth = map(int, self.rows[:11, i])
        s = self.settings[number]
        return Tiled(s.swap, mr, nv, HOW[a], HOW[b], ORDERS[order], kc, split, tm, tn, s.windows, s.rows, depth)


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


_Bytes = tuple[Array, Array, bool]
"""Bytes that move, the footprint (bytes) that tells the cache level they come from, and whether they are waited for."""


class _Shared:
    """Quantities that several terms of the cost of a table's configurations use."""

    def __init__(self, t: ConfigTable, target: Any):
        x = t.numbers
        self.t, self.x, self.target, self.w = t, x, target, target.overheads
        self.a_inline, self.b_inline = t.a == INLINE, t.b == INLINE
        self.a_buffer, self.b_buffer = t.a == BUFFER, t.b == BUFFER
        self.a_each, self.b_each = self.a_buffer & (x.a_invariant == 0), self.b_buffer & (x.b_invariant == 0)
        self.minor, self.heads, self.by_k = ~t.major, x.heads > 0, t.order == BY_K
        self.nr = t.nv * t.lanes / t.depth
        self.mt, self.nt = np.ceil(x.m / t.mr), np.ceil(x.n / self.nr)
        # Vectors of N, and of a row of results.
        self.nvs, self.rows = np.ceil(x.n * t.depth / t.lanes), np.ceil(x.n / t.lanes)
        self.multiplied = x.k / t.depth  # steps of K
        self.dealt = x.batch * t.split * t.tm * t.tn
        self.tasks = np.minimum(target.cores, self.dealt)
        self.part = np.ceil(x.k / t.split)
        kc = np.minimum(np.where(t.kc > 0, t.kc, self.part), self.part)
        self.kc = np.where(self.heads, x.k // np.maximum(x.heads, 1), kc)
        self.ahead = np.zeros_like(self.kc)
        if x.has["b_far"]:
            asks = x.b_far * (self.minor & ~self.b_buffer & (t.kc == 0))
            asks *= 2 * self.kc * self.nr * t.item < target.l2 * target.overheads.held
            self.ahead = x.b_streams * traffic.lines_ahead(asks, x.m, x.n, t.mr, t.nv, t.lanes, t.tm)
        self.level = target.l2 * self.tasks  # bytes of the L2 of all tasks
        self.a_own, self.b_own = x.a_batch * x.m * x.k * t.item, x.b_batch * x.n * x.k * t.item
        self.a_bytes, self.b_bytes = self.a_own * (x.batch / x.a_batch), self.b_own * (x.batch / x.b_batch)
        self.packed = self.a_own * self.a_each + self.b_own * self.b_each
        self.held = t.nbytes + self.packed
        self.blocked = self.kc < self.part
        self.span = inner_bytes(t, x, t.tm, t.tn)

    def rate(self, footprint: Array) -> Array:
        """Return bytes a second for data with these footprints (bytes), as does `Target.seconds_for_bytes`."""
        target, own, cores = self.target, self.target.bytes_per_second, self.tasks
        third = np.maximum(own[2], np.minimum(own[2] * cores, target.l3_bandwidth))
        last = np.minimum(target.memory_bandwidth, target.core_bandwidth * cores)
        missed = np.maximum(0.0, 1 - target.kept * target.l3 / footprint)
        beyond = 1 / ((1 - missed) / third + missed / last)
        near = np.where(footprint <= target.l1 * cores, own[0] * cores, own[1] * cores)
        return np.where(footprint <= self.level, near, beyond)


def predict(t: ConfigTable, target: Any) -> Predicted:
    """Predict the cost of every configuration of the table."""
    s = _Shared(t, target)
    packed, launched = _packing(s)
    each = s.target.cycle_seconds / s.tasks
    arithmetic = (_steps(s) + _tiles(s) + packed + _halos(s)) * each * uneven(t, s.x, s.mt, s.nt, s.tasks)
    arithmetic += reread(t, s.x, s.kc, s.mt, s.nt, target) / (target.bytes_per_second[2] * s.tasks)
    memory = np.zeros_like(arithmetic)
    moves = [(s.held + s.packed, s.held, False), *_walked_again(s), *_repeated_bytes(s), *_strips(s)]
    near, *rates = s.rate(np.array([np.minimum(s.held, target.l3), *(footprint for _, footprint, _ in moves)]))
    # Packing into buffers is a launch of its own: strips are read, lines fetched to be written, and written. That is
    # slower where they come from memory.
    lines = np.where(s.held <= target.l3, s.w.read_twice, s.w.far_twice) * s.packed / near
    arithmetic += s.w.launched * np.maximum(launched * each, lines)
    for (moved, _, waited), rate in zip(moves, rates, strict=True):
        if waited:
            arithmetic += moved / rate
        else:
            memory += moved / rate
    return Predicted(arithmetic, memory, 1.0 + (t.split > 1) + (s.a_each | s.b_each), s.dealt)


def _steps(s: _Shared) -> Array:
    """Return the cycles of all steps over K of all tiles."""
    t, x, w, kc = s.t, s.x, s.w, s.kc
    # Extra arithmetic cycles for a vector of N read in place.
    beside = s.b_inline * (x.b_pieces + w.mask * x.b_masks + x.b_made)
    # Elements of M that the rows of the next point need too are loaded once for several points.
    meets = s.a_inline & (x.a_meets > 0) & (t.nv == 1) if x.has["a_meets"] else np.False_
    broadcast = np.where(meets, 0.5, w.broadcast)
    # New pages that a point of K begins, of M and of N, where there are more of them than any TLB holds. Where M comes
    # from beyond L2, or N differs at every point of the batch, the size of the first-level TLB counts.
    apart = np.array((x.a_step * (s.a_inline & (x.a_step >= facts.LINE)), x.b_step * s.b_inline))
    begins = np.minimum(1.0, apart / PAGE)
    kept = np.where(np.array((s.a_own > s.target.l2, x.b_batch > 1)), w.near_pages, w.most_pages)
    pages = begins * (kc * begins > kept)
    run = np.where(s.a_inline, np.where(s.b_inline, x.run, x.a_run), np.where(s.b_inline, x.b_run, x.k))
    beside_rows = s.a_inline * x.a_made
    if x.has["a_fit"]:
        beside_rows = beside_rows + s.a_inline * traffic.row_conflicts(t.mr, x.a_fit) * w.conflict
    sums = t.mr * t.nv
    spare = room_to_unroll(t.mr, t.nv, s.target.tile_registers) & ~meets
    if x.has["b_pairs"]:
        spare &= ~(s.b_inline & (x.b_pairs > 0))
    unrolls = spare & (run * sums <= most_unrolled(t.nv))
    begun = np.minimum(w.most_begun, np.where(unrolls, w.unrolled_loop, w.loop) / run)
    begun = np.where(run <= WRITTEN_OUT, 1.0, begun)
    each = w.translate_m * pages[0] + w.translate_n * pages[1] + begun * (run < kc)
    # Vectors of a halo copy cross the borders of lines, which a single tile of M finds in L2.
    loads: Array | float = 0.5
    if x.has["b_share"]:
        shared = s.b_inline & (x.b_share > 0)
        loads = np.where(shared, 1.0 + w.line * (s.mt == 1) / np.maximum(1, x.b_share), 0.5)
    # Vectors of N that every tile of M loads from L2.
    beside = beside + w.walked * (t.major & (s.mt > t.tm) & (s.span > s.target.l1))
    if x.has["b_far"]:
        line = np.maximum(s.nr * t.item, x.b_low)
        leaves = (x.b_far > 0) & s.minor & s.b_inline & (2 * s.kc * line > s.target.l1)
        beside = beside + w.rewalked * leaves * (1 - t.tm / s.mt)

    # Vectors that every tile of M loads from L2; or every point of the batch, if there is one tile of M.
    tiles = (s.mt > t.tm) & (s.kc * s.nr * t.item > s.target.l1)
    again = w.line * (tiles | ((s.mt == 1) & (x.batch > x.b_batch) & (s.b_own > s.target.l1)))

    def step(mr: Array, nv: Array) -> Array:
        """Return the cycles of a step: multiply-adds, loads, or the latency of a short chain, whichever is most."""
        product = mr * nv
        most = np.maximum(product / s.target.multiplies, mr * broadcast + nv * loads + s.ahead / 2)
        most = np.maximum(most, nv * again)
        most = most + nv * beside + mr * beside_rows + each
        if x.has["b_pieces"]:
            most = most + w.reloaded * np.maximum(0.0, s.b_inline * nv * x.b_pieces - w.in_registers)
        return np.maximum(most, w.latency * (product >= 1))

    rows, widths = np.array((t.mr, x.m - (s.mt - 1) * t.mr))[:, None], np.array((t.nv, s.nvs - (s.nt - 1) * t.nv))
    (inside, right), (below, corner) = step(rows, widths)  # whole tiles and the last ones
    steps = (s.mt - 1) * ((s.nt - 1) * inside + right) + (s.nt - 1) * below + corner
    steps = steps * x.batch * s.multiplied
    steps *= np.where((t.split == 1) & (t.kc == 0) & ~s.heads, t.kept, 1.0)
    # Sums are loaded for a block of K and no register is left for what loads need: the allocator rotates the sums
    # through the stack at every step, unless there are few addresses.
    blocked = s.blocked & (t.kc > 0)
    if not blocked.any():
        return steps
    tight = sums + t.nv + 2 + 2 * (beside > 0) >= s.target.tile_registers
    simple = (x.even > 0) & ~((t.a == PANEL) & (x.a_turned > 0))
    return steps * np.where(tight & blocked & ~simple, w.rotate, 1.0)


def _tiles(s: _Shared) -> Array:
    """Return the cycles of tiles outside their steps, and of what follows the sums."""
    t, x, w = s.t, s.x, s.w
    # Between blocks of K all sums of a panel stay in scratch.
    waits = s.blocked & ~s.heads
    each = w.tile + t.mr * t.nv * np.where(waits, w.waiting_sum, w.stored_sum) + t.mr * w.tile_row
    if s.by_k.any():
        waiting = x.m * x.columns * t.item / (t.tm * t.tn)
        each = each + w.far_sum * t.mr * t.nv * (s.by_k & (waiting > s.target.l1))
    out = np.ceil(s.part / s.kc) * s.mt * s.nt * x.batch * t.split * each
    out += w.partial_sum * t.split * x.m * s.rows * x.batch * (t.split > 1)
    if x.has["results"]:
        of_n = np.where(s.minor & (s.nt > 1), x.m, t.mr)
        rows = np.where(x.results > 0, of_n, np.where(t.major & (s.mt > 1), x.n, s.nr))
        lines = np.abs(x.results) / facts.LINE * (np.abs(x.results) > s.level)
        out += w.strips * lines * waited_part(rows, w.streams)
    return out + x.batch * x.m * s.rows * t.finish


def _packing(s: _Shared) -> tuple[Array, Array]:
    """Return the cycles of packing into panels, and of packing in launches of its own."""
    t, x, w = s.t, s.x, s.w
    times = np.where(s.b_buffer, s.b_each, np.where(t.major, s.mt, t.tm))
    beyond = s.kc * (s.nr + t.mr) * t.item > s.target.l1
    copied = np.where(x.b_turned > 0, w.transposed, w.copied + w.far_copy * beyond)
    points = np.where(s.b_buffer, x.b_batch, x.batch)
    vector = x.b_packed + x.b_made + w.packed_mask * x.b_masks + copied
    b = times * points * s.multiplied * s.nvs * vector * ~s.b_inline
    times = np.where(s.a_buffer, s.a_each, np.where(s.minor, s.nt, t.tn))
    vectors = np.where(x.a_turned > 0, t.mr / t.lanes, np.ceil(t.mr / t.lanes))
    copied = np.where(x.a_turned > 0, w.transposed_m, np.where(t.mr % t.lanes == 0, w.copied, w.unaligned))
    points = np.where(s.a_buffer, x.a_batch, x.batch)
    a = times * points * x.k * vectors * s.mt * (x.a_packed + x.a_made + copied) * ~s.a_inline
    buffered = a * s.a_buffer + b * s.b_buffer
    return a + b - buffered, buffered


def _halos(s: _Shared) -> Array | float:
    """Return the cycles of halo copies, and of storing and loading sums while halo copies change."""
    t, x, w = s.t, s.x, s.w
    if not x.has["elements"]:
        return 0.0
    times = x.batch * t.tm * t.tn * np.where(s.heads, x.heads, t.split)
    return times * (x.elements / t.lanes * w.halo + x.copies) + w.partial_sum * x.m * s.rows * x.heads * x.batch


def _walked_again(s: _Shared) -> Iterator[_Bytes]:
    """Yield the bytes of the side of the inner loop, which is walked once for each outer tile.

    The side streams where a task's range of it exceeds L2.
    """
    t, x, w = s.t, s.x, s.w
    spread = np.where(s.minor & s.a_inline, x.a_spread, 1.0)
    inner, how = np.where(s.minor, s.a_bytes * spread, s.b_bytes), np.where(s.minor, t.a, t.b)
    span = s.span * spread
    if x.has["a_window"] or x.has["b_window"]:  # a side with a halo copy walks the copy
        copy = np.where(s.minor, x.a_window, x.b_window) * (how == INLINE)
        inner = np.where(copy > 0, copy * x.batch * np.where(s.minor, t.tm, t.tn), inner)
        span = np.where(copy > 0, copy, span)
    panel = s.kc * t.item * np.where(s.minor, s.nr, t.mr)  # of the outer side
    leaves = span > np.minimum(s.target.l2 * s.w.held, s.target.l2 - panel)
    streamed = inner * (np.where(s.minor, s.nt, s.mt) - 1) * leaves
    # Stretches may be too short for prefetching to run far ahead; nothing is multiplied while a panel is packed again.
    # Packed tiles of M are prefetched.
    short = (how != INLINE) | (np.where(s.minor, x.a_step, x.b_step) >= PAGE)
    hidden = np.where(s.minor & s.a_buffer, w.streamed, 1.0) * short
    ranges = 2 * np.maximum(np.minimum(inner, span * s.tasks), s.level)
    yield streamed * hidden, ranges, True
    yield streamed * ~short, np.maximum(s.held, 2 * s.level), False


def _repeated_bytes(s: _Shared) -> Iterator[_Bytes]:
    """Yield the bytes of the outer operand, read once a task, and of batch-invariant operands, once a batch point."""
    t = s.t
    outer, again = np.where(s.minor, s.b_bytes, s.a_bytes), np.where(s.minor, t.tm, t.tn)
    anew, footprint = outer * (again - 1), 2 * np.maximum(outer, s.level)
    waited = np.where(s.minor, t.b, t.a) != PANEL  # by the first tile of every task
    yield anew * waited, footprint, True
    yield anew * ~waited, footprint, False
    for own, every in ((s.a_own, s.a_bytes), (s.b_own, s.b_bytes)):
        if (own < every).any():
            yield (every - own) * (own > s.target.l2 * s.w.held), np.maximum(own, 2 * s.level), False


def _strips(s: _Shared) -> Iterator[_Bytes]:
    """Yield the bytes of operands beyond the caches that are read or packed in narrow strips.

    Prefetched lines arrive no sooner where no TLB holds their pages.
    """
    t, x, w = s.t, s.x, s.w
    walk = np.where(s.by_k, s.kc, s.part)
    lost = walk * np.minimum(1.0, x.b_step / PAGE) > w.most_pages
    lost_m = walk * np.minimum(1.0, x.a_step / PAGE) > w.most_pages
    along = (x.a_side == t.item) & (x.a_step >= PAGE) & (s.a_own > s.target.l2) & (~s.a_buffer | s.a_each)
    of_m = along & (lost_m | (t.a == PANEL))
    if of_m.any():
        waits = np.where(t.a == PANEL, np.where(lost_m, w.walks, w.waited), 1.0)
        yield s.a_bytes * (1 + waits * traffic.strips(t.mr, x.m, t.item, w.strip)) * of_m, s.held, True
    strips = traffic.strips(s.nr, x.n, t.item, w.strip)
    if x.has["b_strips"]:
        slow = (x.b_strips > 0) & ((s.ahead == 0) | lost) & (~s.b_buffer | s.b_each) & ~(s.by_k & ~lost)
        yield s.b_bytes * strips * (slow & ~lost), s.held, False
        waits = np.where(t.b == PANEL, w.walks, np.where(s.ahead > 0, w.waited, 1.0))
        yield s.b_bytes * (1 + waits * strips) * (slow & lost), s.held, True
    if x.has["b_far"]:  # nothing prefetches what every tile of M reads in place
        asked = (s.ahead > 0) & ~s.b_buffer & ~lost & (t.nv > 1)
        yield s.b_bytes * asked * w.abreast * np.clip(2.5 - x.m / w.shared_rows, 0.0, 1.0), s.held, True
        alone = (x.b_far > 0) & s.b_inline & t.major & ~lost
        yield s.b_bytes * (1 + strips) * alone, s.held, True
    first = s.by_k & (t.b == PANEL) & (s.b_own > s.target.l2)
    if first.any():  # nothing is multiplied while a panel from beyond L2 is packed
        strips = w.waited * strips + traffic.strips(x.n / t.tn, x.n, t.item, w.strip)
        yield s.b_bytes * t.tm * (1 + strips * (x.b_strips > 0)) * first, s.held, True


def uneven(t: ConfigTable, x: FeatureArrays, mt: Array, nt: Array, tasks: Array) -> Array:
    """Return the share of the busiest thread, relative to an even share.

    Tasks are whole tiles, divided into one contiguous range for each thread.
    """
    others = x.batch * t.split
    count = others * t.tm * t.tn
    out = np.ceil(count / tasks) * tasks / count
    threads = np.maximum(tasks, 2)
    by_n, by_m = (t.tn > 1) & ((t.tm == 1) | (t.tn % tasks == 0)), (t.tm > 1) & (t.tn == 1)  # N's parts are outermost
    tiles, exact = np.array((nt, mt)), np.array((np.ceil(x.n * t.depth / t.lanes) / t.nv, x.m / t.mr))
    # The last tile may have fewer points, which shortens the last thread's share.
    before = np.floor((threads - 1) * tiles / threads)
    most = np.maximum(np.ceil(before / (threads - 1)), exact - before)
    whole = np.where(others > 1, np.ceil(others * tiles / tasks) / (others * tiles), most / exact) * tasks
    return np.where(np.array((by_n, by_m)) & (tasks > 1), np.maximum(out, whole), out).max(axis=0)


def inner_bytes(t: ConfigTable, x: FeatureArrays, tm: Array | float, tn: Array | float) -> Array:
    """Return the bytes of a task's range of the side that the inner loop walks, at one point of the batch."""
    points, parts = np.where(t.major, x.columns, x.m), np.where(t.major, tn, tm)
    return points * np.where(t.order == BY_K, t.kc, x.k) * t.item / (parts * t.split)


def reread(t: ConfigTable, x: FeatureArrays, kc: Array, mt: Array, nt: Array, target: Any) -> Array:
    """Return the bytes fetched from beyond L2 more than once, because blocks of K are too long for it."""
    item, l2, out, w = t.item, target.l2, np.zeros_like(kc), target.overheads
    by_columns = (t.a == INLINE) & (x.a_step > item) & (kc > 0.75 * x.a_held) & (x.m * x.k * item > l2)
    if by_columns.any():
        lines = np.where(x.a_side == item, np.ceil(t.mr * item / facts.LINE), t.mr)
        out = x.batch * mt * nt * x.k * lines * facts.LINE * by_columns
    panel = kc * t.nv * t.lanes / t.depth * item
    again = (t.b == INLINE) & (kc > x.b_held) & (x.n * x.k * item > l2) | (panel > l2 * w.panel)
    if x.has["windows"]:
        # With halo copies, the part of a panel and of the copies that L2 does not hold is fetched again. A panel of a
        # buffer comes in one stream.
        both = panel + x.elements * item
        part = np.maximum(0.0, 1 - l2 * w.held / both) * np.where(t.b == BUFFER, w.streamed, 1.0)
        again = np.where(x.windows > 0, part * (t.b != INLINE), again)
    return out + again * x.batch * (mt - 1) * x.n * x.k * item * (mt > 1)
