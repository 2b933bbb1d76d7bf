"""Predicted costs of the tiled form of a contraction, of many configurations at once: arrays, an element for each.

Arithmetic counts cycles in which two vectors are multiplied: steps of the tiles, what they begin and end with, packing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from einsmith.kernels.contraction import traffic
from einsmith.kernels.contraction.config import Tiled, most_unrolled, room_to_unroll
from einsmith.kernels.contraction.features import Features, OperandPlan
from einsmith.kernels.contraction.traffic import Array
from einsmith.locks import cached_property
from einsmith.target import facts

HOW = ("inline", "panel", "buffer")
INLINE, PANEL, BUFFER = range(3)
ORDERS = ("n", "m", "k")
BY_N, BY_M, BY_K = range(3)
BROADCAST = 0.65
"""Cycles that an element of M takes which is loaded for all lanes: more than a port's half, as the multiply-add waits
for it."""
MASK, PACKED_MASK = 0.75, 0.25
"""Cycles that a vector read under a mask takes from arithmetic, for each of its masks; and where it is packed, where
nothing waits for it."""
LOOP, UNROLLED_LOOP = 14.0, 10.0
"""Cycles that a run of K takes to begin and to end in which operands read in place lie evenly; and one that is
unrolled."""
MOST_BEGUN = 3.0
"""The most that this is for each point of a run."""
WAITED, WALKS = 0.6, 2.0
"""The part of the way of narrow strips of N, beyond the caches, that is waited for where pages are at hand for packing
or strips are asked for; and how much longer packing waits where every row has to find its page."""
FAR_SUMS = 4.0
"""Cycles that a vector of sums which wait takes to come from the second level and go there."""
WRITTEN_OUT = 2
"""Points of a run which LLVM writes out, so that each takes a cycle more."""
LINE = 2.4
"""Cycles that a line takes to come from the second level."""
WALKED = 1.0
"""Cycles that a vector of N takes from arithmetic which comes from the second level, as all of N does for every tile of
M."""
TRANSLATE, TRANSLATE_M = 4.0, 7.0
"""Cycles that an address of N, and of M, takes to be translated on a page that the nearest table has lost."""
NEAR = 48
"""Pages that it keeps, beside those of what else is read."""
COPIED, FAR_COPY = 1.5, 1.5
"""Cycles that a vector takes to be packed beyond its loads, and more where the panel leaves the first level."""
TURNED = 8.0
"""The same of a vector along K, which is turned round with others."""
UNALIGNED = 6.0
"""The same of a vector of M whose rows are no multiple of lanes: it is stored over the borders of lines."""
TURNED_M = 3.5
"""The same of a vector of M that is turned round."""
LAUNCHED = 1.6
"""How much longer packing takes where it is a launch of its own, whose results go to a buffer."""
STREAMED = 0.1
"""The part of the time of packed tiles' way from beyond the second level that is waited for although they are asked
for."""
PARTED = 0.5
"""The part of the way of lines beyond the caches, stored to in parts, that is waited for unless they are asked for and
belong to a few rows at a time."""
PANELS = 0.6
"""The part of the second level that a panel of N may fill."""


@dataclass(frozen=True, eq=False)
class Table:
    """Configurations: which of `settings` each has; then the fields of Tiled, a and b as places in HOW, order in
    ORDERS; kept: the part of K that guards leave a tile; finish: cycles a vector of what follows the sum. item,
    lanes: bytes of an element, elements of a vector; nbytes: of all buffers."""

    settings: Sequence[OperandPlan]
    setting: Array
    mr: Array
    nv: Array
    a: Array
    b: Array
    order: Array
    kc: Array
    split: Array
    tm: Array
    tn: Array
    depth: Array
    kept: Array
    finish: Array
    item: int
    lanes: int
    nbytes: int

    def config(self, i: int) -> Tiled:
        s = self.settings[self.setting[i]]
        return Tiled(
            s.swap, int(self.mr[i]), int(self.nv[i]), HOW[int(self.a[i])], HOW[int(self.b[i])],
            ORDERS[int(self.order[i])], int(self.kc[i]), int(self.split[i]), int(self.tm[i]), int(self.tn[i]),
            s.windows, s.rows, depth=int(self.depth[i]),
        )  # fmt: skip

    @cached_property
    def major(self) -> Array:
        """Whether tiles of M are outermost."""
        return self.order == BY_M

    @cached_property
    def numbers(self) -> Features:
        """Those of each configuration's setting, as arrays."""
        every = np.array([s.numbers for s in self.settings], np.float64)
        return Features(*every.T[:, self.setting])

    def some(self, field: str) -> bool:
        """Whether a number of some setting is more than 0."""
        return any(getattr(s.numbers, field) > 0 for s in self.settings)


def joined(tables: Sequence[Table]) -> Table:
    """The configurations of several tables, of one kernel and type, one after the other."""
    if len(tables) == 1:
        return tables[0]
    first, before = tables[0], np.cumsum([0, *(len(t.settings) for t in tables)])
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(t, name) for t in tables])
        for name in ("mr", "nv", "a", "b", "order", "kc", "split", "tm", "tn", "depth", "kept", "finish")
    }
    return replace(
        first, settings=[s for t in tables for s in t.settings],
        setting=np.concatenate([t.setting + n for t, n in zip(tables, before, strict=False)]), **columns,
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Predicted:
    """Seconds on all cores of a target, and launches."""

    arithmetic: Array
    memory: Array
    launches: Array

    def rank(self, target: Any) -> Array:
        """As `Cost.rank`."""
        least, most = np.minimum(self.arithmetic, self.memory), np.maximum(self.arithmetic, self.memory)
        return most + 0.05 * least + self.launches * target.launch_seconds


class _Seconds:
    """`Target.seconds_for_bytes` for arrays; tasks: how many run at once."""

    def __init__(self, target: Any, tasks: Array):
        cores = np.maximum(1.0, np.minimum(target.cores, tasks))
        own = target.bytes_per_second
        self.limits = target.l1 * cores, target.l2 * cores, target.l3
        self.rates = (
            own[0] * cores, own[1] * cores, np.maximum(own[2], np.minimum(own[2] * cores, target.l3_bandwidth)),
            np.minimum(target.memory_bandwidth, target.core_bandwidth * cores),
        )  # fmt: skip

    def __call__(self, moved: Array, footprint: Array) -> Array:
        near, middle, far = self.limits
        first, second, third, last = self.rates
        beyond = np.where(footprint <= far, third, last)
        return moved / np.where(footprint <= near, first, np.where(footprint <= middle, second, beyond))


def predict(t: Table, target: Any) -> Predicted:
    """What every configuration of the table costs."""
    x, item, lanes = t.numbers, t.item, t.lanes
    a_inline, b_inline, a_buffer, b_buffer = t.a == INLINE, t.b == INLINE, t.a == BUFFER, t.b == BUFFER
    minor, heads = ~t.major, x.heads > 0
    mt, nvs = np.ceil(x.m / t.mr), np.ceil(x.n * t.depth / lanes)
    nr = t.nv * lanes / t.depth
    multiplied, rows = x.k / t.depth, np.ceil(x.n / lanes)  # steps of K; vectors of a row of results
    nt = np.ceil(x.n / nr)
    cycle = lanes / (target.fma_per_second * (4 / item)) * 2  # seconds of one cycle in which two vectors are multiplied
    count = x.batch * t.split * t.tm * t.tn
    tasks = np.minimum(target.cores, count)
    part = np.ceil(x.k / t.split)
    kc = np.minimum(np.where(t.kc > 0, t.kc, part), part)
    if heads.any():
        kc = np.where(heads, x.k // np.maximum(x.heads, 1), kc)
    asks = x.b_far * (minor & ~b_buffer & (t.kc == 0) & (2 * kc * nr * item < target.l2 * traffic.HELD))
    ahead = traffic.lines_ahead(asks, x.m, x.n, t.mr, t.nv, lanes, t.tm) if asks.any() else 0 * asks
    # What a vector of N read in place takes from arithmetic.
    beside = np.where(b_inline, x.b_pieces + MASK * x.b_masks, 0.0)
    # Elements of M that are those of the next point's rows too are loaded once for some points.
    meets = a_inline & (x.a_meets > 0) & (t.nv == 1)
    broadcast = np.where(meets, 0.5, BROADCAST)
    # New pages that a point of K begins, of M and of N, where there are so many that the nearest table loses them.
    apart = np.array((x.a_step * (a_inline & (x.a_step >= facts.LINE)), x.b_step * b_inline))
    pages = np.where(kc * apart > NEAR * traffic.PAGE, np.minimum(1.0, apart / traffic.PAGE), 0.0)
    run = np.where(a_inline & b_inline, x.run, np.where(a_inline, x.a_run, np.where(b_inline, x.b_run, x.k)))
    conflicts = a_inline * traffic.row_conflicts(t.mr, x.a_fit) if t.some("a_fit") else 0.0
    sums = t.mr * t.nv
    spare = room_to_unroll(t.mr, t.nv, target.tile_registers) & ~(b_inline & (x.b_pairs > 0)) & ~meets
    unrolls = spare & (run * sums <= most_unrolled(t.nv))
    begun = np.minimum(MOST_BEGUN, np.where(unrolls, UNROLLED_LOOP, LOOP) / run)
    begun = np.where(run <= WRITTEN_OUT, 1.0, begun)
    each_step = TRANSLATE_M * pages[0] + TRANSLATE * pages[1] + np.where(run < kc, begun, 0.0)
    # Vectors of a window lie over the borders of lines, which the only tile of M finds in the second level.
    shared = b_inline & (x.b_share > 0)
    loads = np.where(shared, 1.0 + LINE * (mt == 1) / np.maximum(1, x.b_share), 0.5)
    # Vectors of N that every tile of M takes from the second level.
    walked = t.major & (mt > t.tm) & (inner_bytes(t, x, t.tm, t.tn) > target.l1)
    beside = beside + WALKED * walked

    # One step of K of a tile, in cycles: multiply-adds, loads, or the latency of a short chain.
    def step(mr: Array, nv: Array) -> Array:
        product = mr * nv
        most = np.maximum(product / 2, mr * broadcast + nv * loads + ahead / 2)
        most = most + nv * beside + mr * conflicts + each_step
        return np.maximum(most, np.where(product >= 1, 4.0, 0.0))

    mrs, widths = np.array((t.mr, x.m - (mt - 1) * t.mr))[:, None], np.array((t.nv, nvs - (nt - 1) * t.nv))
    (inside, right), (below, corner) = step(mrs, widths)  # whole tiles and the last ones
    steps = (mt - 1) * ((nt - 1) * inside + right) + (nt - 1) * below + corner
    steps = steps * x.batch * multiplied
    steps *= np.where((t.split == 1) & (t.kc == 0) & ~heads, t.kept, 1.0)
    # Sums loaded for a block and no register to spare for what loads take: the allocator rotates them by way of the
    # stack at every step.
    tight = sums + t.nv + 2 + 2 * (beside > 0) >= target.tile_registers
    simple = (x.even > 0) & ~((t.a == PANEL) & (x.a_turned > 0))  # so few addresses that it does not
    steps *= np.where(tight & (t.kc > 0) & (kc < part) & ~simple, 1.3, 1.0)
    # Between blocks of K all sums of a panel wait in scratch.
    each = 20 + t.mr * t.nv * np.where((kc < part) & ~heads, 2.1, 1.5) + t.mr * 3
    by_k = t.order == BY_K
    if by_k.any():
        waiting = x.m * x.columns * item / (t.tm * t.tn)
        each = each + np.where(by_k & (waiting > target.l1), FAR_SUMS * sums, 0.0)
    tile_overhead = np.ceil(part / kc) * mt * nt * x.batch * t.split * each
    pack = x.batch * x.m * rows * t.finish
    # Packing, in cycles: what a vector takes, and how often each is packed.
    a_each, b_each = a_buffer & (x.a_once == 0), b_buffer & (x.b_once == 0)
    times = np.where(b_buffer, b_each, np.where(t.major, mt, t.tm))
    copied = np.where(x.b_turned > 0, TURNED, COPIED + FAR_COPY * (kc * (nr + t.mr) * item > target.l1))
    points = np.where(b_buffer, x.b_batch, x.batch)
    vector = x.b_packed + PACKED_MASK * x.b_masks + copied
    b_pack = np.where(b_inline, 0.0, times * points * multiplied * nvs * vector)
    times = np.where(a_buffer, a_each, np.where(minor, nt, t.tn))
    vectors = np.where(x.a_turned > 0, t.mr / lanes, np.ceil(t.mr / lanes))
    copied = np.where(x.a_turned > 0, TURNED_M, np.where(t.mr % lanes == 0, COPIED, UNALIGNED))
    points = np.where(a_buffer, x.a_batch, x.batch)
    a_pack = np.where(a_inline, 0.0, times * points * x.k * vectors * mt * (x.a_packed + copied))
    launched = np.where(a_buffer, a_pack, 0.0) + np.where(b_buffer, b_pack, 0.0)
    pack += a_pack + b_pack - launched
    if heads.any() or x.elements.any():
        times = x.batch * t.tm * t.tn * np.where(heads, x.heads, t.split)
        pack += times * x.elements / lanes * 6 + 2 * x.m * rows * x.heads * x.batch
    pack += np.where(t.split > 1, 2 * t.split * x.m * rows * x.batch, 0.0)
    arithmetic = (steps + tile_overhead + pack) * cycle / tasks * uneven(t, x, mt, nt, tasks)
    seconds = _Seconds(target, tasks)
    a_own, b_own = x.a_batch * x.m * x.k * item, x.b_batch * x.n * x.k * item
    a_bytes, b_bytes = a_own * (x.batch / x.a_batch), b_own * (x.batch / x.b_batch)
    # The side of the inner loop is streamed once per outer tile where a task's range of it exceeds the second level,
    # the outer side once per task.
    spread = np.where(minor & a_inline, x.a_spread, 1.0)
    inner, how = np.where(minor, a_bytes * spread, b_bytes), np.where(minor, t.a, t.b)
    tiles = np.where(minor, nt, mt)
    outer, again = np.where(minor, b_bytes, a_bytes), np.where(minor, t.tm, t.tn)
    span = inner_bytes(t, x, t.tm, t.tn) * spread
    copy = np.where(how == INLINE, np.where(minor, x.a_window, x.b_window), 0.0)  # what is walked is the window
    inner = np.where(copy > 0, copy * x.batch * np.where(minor, t.tm, t.tn), inner)
    span = np.where(copy > 0, copy, span)
    panel = kc * item * np.where(minor, nr, t.mr)  # of the outer side
    leaves = span > np.minimum(target.l2 * traffic.HELD, target.l2 - panel)
    streamed = np.where(leaves, inner * (tiles - 1), 0.0)
    packed = a_own * a_each + b_own * b_each
    held = t.nbytes + packed
    memory = seconds(held + packed, held)
    # Packing into buffers is a launch of its own: strips are read, lines fetched to be written, and written; more
    # slowly where they come from memory.
    lines = np.where(held <= target.l3, 2.5, 6.0) * packed
    arithmetic += LAUNCHED * np.maximum(launched * cycle / tasks, seconds(lines, np.minimum(held, target.l3)))
    if leaves.any():
        # Stretches too short for prefetching to be far ahead; what is packed again is not multiplied meanwhile. Packed
        # tiles of M are asked for.
        short = (how != INLINE) | (np.where(minor, x.a_step, x.b_step) >= traffic.PAGE)
        hidden = np.where(short, np.where(minor & a_buffer, STREAMED, 1.0), 0.0)
        ranges = 2 * np.maximum(np.minimum(inner, span * tasks), target.l2 * tasks)
        arithmetic += seconds(streamed * hidden, ranges)
        memory += np.where(short, 0.0, seconds(streamed, np.maximum(held, 2 * target.l2 * tasks)))
    anew = seconds(outer * (again - 1), np.maximum(2 * outer, 2 * target.l2 * tasks))
    waited = np.where(minor, t.b, t.a) != PANEL  # by the first tile of every task
    memory += np.where(waited, 0.0, anew)
    arithmetic += np.where(waited, anew, 0.0)
    for own, every in ((a_own, a_bytes), (b_own, b_bytes)):
        if (own < every).any():  # what is the same at every point of the batch comes anew at each
            anew = np.where(own > target.l2 * traffic.HELD, every - own, 0.0)
            memory += seconds(anew, np.maximum(own, 2 * target.l2 * tasks))
    by_strips = minor & (nt > 1) & (x.results > target.l2 * tasks)
    if by_strips.any():
        arithmetic += np.where(by_strips, traffic.STRIPS * seconds(x.results, held), 0.0)
    if x.parted.any():  # not asked for by tiles of blocks of K; strips of all rows, where N is the inner loop
        arithmetic += np.where((kc < part) | heads | t.major, PARTED * seconds(x.parted, held), 0.0)
    # Lines that are asked for come no sooner where none of the tables of addresses has their pages.
    walk = np.where(by_k, kc, part)
    lost = walk * np.minimum(1.0, x.b_step / traffic.PAGE) > traffic.MOST_PAGES
    lost_m = walk * np.minimum(1.0, x.a_step / traffic.PAGE) > traffic.MOST_PAGES
    along = (x.a_side == item) & (x.a_step >= traffic.PAGE) & (a_own > target.l2) & (~a_buffer | a_each)
    of_m = along & (lost_m | (t.a == PANEL))
    if of_m.any():
        waits = np.where(t.a == PANEL, np.where(lost_m, WALKS, WAITED), 1.0)
        arithmetic += np.where(of_m, seconds(a_bytes, held) * (1 + waits * traffic.strips(t.mr, x.m, item)), 0.0)
    slow = (x.b_strips > 0) & ((ahead == 0) | lost) & (~b_buffer | b_each) & ~(by_k & ~lost)
    if slow.any():
        more = seconds(b_bytes, held) * traffic.strips(nr, x.n, item)
        memory += np.where(slow & ~lost, more, 0.0)
        waits = np.where(t.b == PANEL, WALKS, np.where(ahead > 0, WAITED, 1.0))
        arithmetic += np.where(slow & lost, seconds(b_bytes, held) + waits * more, 0.0)
    first = by_k & (t.b == PANEL) & (b_own > target.l2)
    if first.any():  # nothing is multiplied while a panel is packed of what comes from beyond the second level
        strips = WAITED * traffic.strips(nr, x.n, item) + traffic.strips(x.n / t.tn, x.n, item)
        arithmetic += np.where(first, seconds(b_bytes * t.tm, held) * (1 + np.where(x.b_strips > 0, strips, 0.0)), 0.0)
    arithmetic += reread(t, x, kc, mt, nt, target) / (target.bytes_per_second[2] * tasks)
    return Predicted(arithmetic, memory, 1.0 + (t.split > 1) + (a_each | b_each))


def uneven(t: Table, x: Features, mt: Array, nt: Array, tasks: Array) -> Array:
    """How much more than its even share the busiest thread has: tasks are whole tiles, in as many ranges that follow
    each other as there are threads."""
    others = x.batch * t.split
    count = others * t.tm * t.tn
    out = np.ceil(count / tasks) * tasks / count
    threads = np.maximum(tasks, 2)
    by_n, by_m = (t.tn > 1) & ((t.tm == 1) | (t.tn % tasks == 0)), (t.tm > 1) & (t.tn == 1)  # N's parts are outermost
    tiles, exact = np.array((nt, mt)), np.array((np.ceil(x.n * t.depth / t.lanes) / t.nv, x.m / t.mr))
    # What the last tile lacks the last thread lacks.
    before = np.floor((threads - 1) * tiles / threads)
    most = np.maximum(np.ceil(before / (threads - 1)), exact - before)
    whole = np.where(others > 1, np.ceil(others * tiles / tasks) / (others * tiles), most / exact) * tasks
    return np.where(np.array((by_n, by_m)) & (tasks > 1), np.maximum(out, whole), out).max(axis=0)


def inner_bytes(t: Table, x: Features, tm: Array | float, tn: Array | float) -> Array:
    """Bytes of a task's range of the side that the inner loop walks, at one point of the batch."""
    points, parts = np.where(t.major, x.columns, x.m), np.where(t.major, tn, tm)
    return points * np.where(t.order == BY_K, t.kc, x.k) * t.item / (parts * t.split)


def reread(t: Table, x: Features, kc: Array, mt: Array, nt: Array, target: Any) -> Array:
    """Bytes that come from beyond the second level more than once: blocks of K too long for it."""
    item, l2, out = t.item, target.l2, np.zeros_like(kc)
    by_columns = (t.a == INLINE) & (x.a_step > item) & (kc > 0.75 * x.a_held) & (x.m * x.k * item > l2)
    if by_columns.any():
        lines = np.where(x.a_side == item, np.ceil(t.mr * item / facts.LINE), t.mr)
        out = np.where(by_columns & (x.windows == 0), x.batch * mt * nt * x.k * lines * facts.LINE, 0.0)
    panel = kc * t.nv * t.lanes / t.depth * item
    again = (t.b == INLINE) & (kc > x.b_held) & (x.n * x.k * item > l2) | (panel > l2 * PANELS)
    if x.windows.any():
        # Beside windows, of a panel and of them what the second level does not hold of both; a good part where it is
        # but a little too small, as what is walked in a circle pushes itself out. A buffer's panel comes in one stream.
        both = panel + x.elements * item
        part = np.maximum(traffic.CIRCLE, 1 - l2 * traffic.HELD / both) * np.where(t.b == BUFFER, STREAMED, 1.0)
        again = np.where(x.windows > 0, np.where((t.b != INLINE) & (both > l2 * traffic.HELD), part, 0.0), again)
    return out + np.where(mt > 1, again * x.batch * (mt - 1) * x.n * x.k * item, 0.0)
