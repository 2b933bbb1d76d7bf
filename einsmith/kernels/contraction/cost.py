"""Predicted costs of the tiled form of a contraction, of many configurations at once: arrays, an element for each.

Arithmetic counts cycles in which two vectors are multiplied: steps of the tiles, what they begin and end with, packing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from einsmith.kernels.contraction import traffic
from einsmith.kernels.contraction.config import Tiled
from einsmith.kernels.contraction.features import Features, OperandPlan
from einsmith.kernels.contraction.traffic import Array
from einsmith.kernels.emit.access import PAIR_COST
from einsmith.locks import cached_property

HOW = ("inline", "panel", "buffer")
INLINE, PANEL, BUFFER = range(3)
LINES = 2.4
"""Cycles a line that tiles take from the second level, beside what else they do."""
BESIDE = 2.2
"""The same of rows that hardware follows: nearly as long as the arithmetic, they delay it."""
STRETCHES = 2.25
"""Cycles that a line of a panel takes at least from the second level."""
ASKED = 2.5
"""Cycles more that a vector takes to be packed which was asked for from beyond the second level."""
STREAMED = 0.1
"""The part of the time of packed tiles' way from beyond the second level that is waited for although they are asked
for."""
FOLLOWED = 0.4
"""The same of long rows read in place, which hardware follows, by tiles whose loads take as long as the arithmetic."""
FROM_MEMORY = 4.0
"""How many times as long rows that nobody has asked for are waited for where they come from beyond the last level."""
PIECE_LOADS = 1.5
"""Cycles that a masked load, one of those that a vector across rows takes, keeps a port of loads from others."""
PIECE_MASKS = 0.15
"""Cycles that it takes from the arithmetic."""
PAIR_SHUFFLES = 0.05
"""The same of each of the two loads and the shuffle of every other element of a row, which arithmetic hides where
sums leave a register to spare."""
PARTED = 0.3
"""The part of the way of lines beyond the caches, stored to in parts, that is waited for unless they are asked for and
belong to a few rows at a time."""
PANELS = 0.6
"""The part of the second level that a panel of N may fill."""


@dataclass(frozen=True, eq=False)
class Table:
    """Configurations: which of `settings` each has; then the fields of Tiled, a and b as places in HOW, `major` for
    order "m"; kept: the part of K that guards leave a tile; finish: cycles a vector of what follows the sum. item,
    lanes: bytes of an element, elements of a vector; nbytes: of all buffers."""

    settings: Sequence[OperandPlan]
    setting: Array
    mr: Array
    nv: Array
    a: Array
    b: Array
    major: Array
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
            "m" if self.major[i] else "n", int(self.kc[i]), int(self.split[i]), int(self.tm[i]), int(self.tn[i]),
            s.windows, s.rows, depth=int(self.depth[i]),
        )  # fmt: skip

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
        for name in ("mr", "nv", "a", "b", "major", "kc", "split", "tm", "tn", "depth", "kept", "finish")
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
    # Panels of N that come from the second level beside lines of M of which a step uses a part.
    across = a_inline & (x.a_step >= traffic.FAR_ROWS) & (mt > 1) & (kc * nr * item > target.l1)
    both = np.where(across, LINES, 0.0)
    lined = a_inline & (x.a_step >= traffic.LINE) & (x.a_step < traffic.FAR_ROWS) & (mt > 1)
    beside = np.where(lined & (kc * ((nr + t.mr) * item + traffic.LINE) > target.l1), BESIDE, 0.0)
    far_lines = np.where(b_inline & (x.b_step >= traffic.FAR_ROWS), 0.03, 0.0)
    conflicts = a_inline * traffic.row_conflicts(t.mr, x.a_fit) if t.some("a_fit") else 0.0
    pieces = b_inline & (x.b_pieces > 0)
    in_window = b_inline & (x.b_halo > 0)
    loads = np.where(b_inline, x.b_place, 1.0) * np.where(pieces, PIECE_LOADS, np.where(in_window, 1.0, 0.5))
    # Lines of a window that no tile before has left near.
    anew = np.where(in_window & (mt == 1), LINES / np.maximum(x.b_halo, 1), 0.0)
    # Moved and combined on the arithmetic's ports; masks of pieces are made once, and applied by the loads.
    pairs = (x.b_place == PAIR_COST) & (t.mr * t.nv + t.nv + 2 < target.tile_registers)
    masks = np.where(pieces, PIECE_MASKS, np.where(pairs, PAIR_SHUFFLES, 0.6))
    masks = np.where(b_inline & (x.b_place > 1), x.b_place * masks, 0.0)
    asks = x.b_far * (minor & ~b_buffer & (t.kc == 0) & (2 * kc * nr * item < target.l2 * traffic.HELD))
    ahead = traffic.lines_ahead(asks, x.m, x.n, t.mr, t.nv, lanes, t.tm) if asks.any() else 0 * asks
    # Rows of a panel that stay in the second level; the next panel takes the first level's room too.
    from_l2 = b_inline & (x.b_far > 0) & (mt > 1) & ((1 + (ahead > 0)) * kc * nr * item > target.l1 * 1.5)
    from_l2 = np.where(from_l2, traffic.FROM_L2, 0.0)
    # So do rows near each other, of memory that begins anywhere: their vectors lie over the borders of lines.
    again = np.where(t.major, inner_bytes(t, x, t.tm, t.tn), kc * nr * item) > target.l1 * 1.5
    across_lines = b_inline & (x.b_side == item) & (x.b_step > 0) & ~pieces & (mt > t.tm) & again
    from_l2 = np.maximum(from_l2, np.where(across_lines, traffic.OVER_BORDERS, 0.0))

    # Vectors of N that every tile of M takes from the second level: nearly as long as the arithmetic, they delay it.
    walked = t.major & (mt > t.tm) & (inner_bytes(t, x, t.tm, t.tn) > target.l1)
    # A panel of N from there, faster than it comes where all tiles of M have few rows.
    narrow = minor & (t.mr / 2 < STRETCHES) & (t.depth == 1) & (mt > t.tm) & (kc * nr * item > target.l1 * 0.75)
    panel_lines = np.where(narrow, STRETCHES, 0.0)
    # Rows of M in lines of their own, which are new ones at almost every point of K.
    apart = np.where(a_inline & (x.a_spread > 1), traffic.ARRIVES * x.a_spread * item / traffic.LINE, 0.0)

    # One step of K of a tile, in cycles: multiply-adds, loads, or the latency of a short chain.
    def step(mr: Array, nv: Array) -> Array:
        product = mr * nv
        most = np.maximum(product / 2 + nv * masks, mr / 2 + nv * loads + ahead / 2) + conflicts * mr
        most = np.maximum(most, nv * panel_lines)
        most = np.maximum(most, (nv + 1) * from_l2) + mr * apart + nv * anew
        lines = nv + 1 + (mr - 1) * item / traffic.LINE
        most = np.maximum(most, lines * both)
        most = most * (1 + (lines * beside / most) ** 8) ** 0.125
        most = most * (1 + np.where(walked, np.minimum(1.0, nv * LINES / most), 0.0) ** 8 / 8)
        return np.maximum(most, np.where(product >= 1, 4.0, 0.0)) + far_lines * nv

    mrs, widths = np.array((t.mr, x.m - (mt - 1) * t.mr))[:, None], np.array((t.nv, nvs - (nt - 1) * t.nv))
    (inside, right), (below, corner) = step(mrs, widths)  # whole tiles and the last ones
    steps = (mt - 1) * ((nt - 1) * inside + right) + (nt - 1) * below + corner
    steps = steps * x.batch * multiplied
    steps *= np.where((t.split == 1) & (t.kc == 0) & ~heads, t.kept, 1.0)
    # Sums loaded for a block and no register to spare for what loads and masks take: the allocator rotates them by way
    # of the stack at every step.
    tight = t.mr * t.nv + t.nv + 2 + 2 * (masks > 0) >= target.tile_registers
    simple = (x.even > 0) & ~((t.a == PANEL) & (x.a_turned > 0))  # so few addresses that it does not
    steps *= np.where(tight & (t.kc > 0) & (kc < part) & ~simple, 1.3, 1.0)
    # Between blocks of K all sums of a panel wait in scratch.
    each = 20 + t.mr * t.nv * np.where((kc < part) & ~heads, 2.1, 1.5) + t.mr * 3
    tile_overhead = np.ceil(part / kc) * mt * nt * x.batch * t.split * each
    pack = x.batch * x.m * rows * t.finish
    # Packing, in cycles: what a vector takes, and how often each is packed.
    a_each, b_each = a_buffer & (x.a_once == 0), b_buffer & (x.b_once == 0)
    # Panels packed once are read in one stream.
    pack += np.where(b_inline & (x.b_once > 0) & (x.b_step >= traffic.FAR_ROWS), 6.0 * nt * x.batch * x.k, 0.0)
    # The first tile of M waits for every row of a panel that nobody has asked for; wide rows are waited for at once.
    large = t.nbytes > target.l3
    waits = b_inline & (x.b_strips + large * x.b_far > 0) & (mt > 1) & minor & (ahead == 0)
    arrives = (2.0 + 8.0 / t.nv) * (FROM_MEMORY if large else 1.0)
    pack += np.where(waits, arrives * t.tm * x.batch * x.k * nvs, 0.0)
    times = np.where(b_buffer, b_each, np.where(t.major, mt, t.tm))
    far = (x.b_side >= traffic.FAR_ROWS) & (x.n * x.k * item > target.l2)  # blocks of K begin in each of the rows anew
    # Copies that do not stay in the first level, and of what did not stay in the second.
    strips, asked = x.b_strips > 0, ahead > 0
    beyond = np.where(asked, ASKED, np.where(strips, 5.0, 1.0 + 6.0 / t.nv)) * (x.n * x.k * item > target.l2)
    copied = 1.0 + 2.0 * (kc * nr * item > target.l1) + beyond
    # Beside a tile of M that is streamed in place and its successor, a long panel's lines come anew to be written.
    written = a_inline & (x.a_side >= traffic.APART) & (kc * (nr + 2 * t.mr) * item > target.l1)
    turned = np.where(x.b_turned > 0, np.where(far, 7.0, 3.0) + np.where(written, 1.0, 0.0), copied)
    points = np.where(b_buffer, x.b_batch, x.batch)
    b_pack = np.where(b_inline, 0.0, times * points * multiplied * nvs * (x.b_load * 0.75 + turned))
    times = np.where(a_buffer, a_each, np.where(minor, nt, t.tn))
    vectors = np.where(x.a_turned > 0, t.mr / lanes, np.ceil(t.mr / lanes))
    stored = np.where((x.a_turned > 0) | (t.mr % lanes == 0), 1.0, 8.0)  # over the borders of lines
    points = np.where(a_buffer, x.a_batch, x.batch)
    a_pack = np.where(a_inline, 0.0, times * points * x.k * vectors * mt * (x.a_load * 0.75 + stored))
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
    beside = kc * item * np.where(minor, nr, t.mr)  # the outer side's panel
    leaves = span > np.minimum(target.l2 * traffic.HELD, target.l2 - beside)
    streamed = np.where(leaves, inner * (tiles - 1), 0.0)
    packed = a_own * a_each + b_own * b_each
    held = t.nbytes + packed
    memory = seconds(held + packed, held)
    # Packing into buffers is a launch of its own: strips are read, lines fetched to be written, and written; more
    # slowly where they come from memory.
    lines = np.where(held <= target.l3, 2.5, 6.0) * packed
    arithmetic += np.maximum(launched * cycle / tasks, seconds(lines, np.minimum(held, target.l3)))
    if leaves.any():
        # Stretches too short for prefetching to be far ahead; what is packed again is not multiplied meanwhile. Packed
        # tiles of M are asked for.
        short = (how != INLINE) | (np.where(minor, x.a_step, x.b_step) >= traffic.PAGE) | (t.major & pieces)
        busy = t.mr / 2 + t.nv * loads >= t.mr * t.nv / 2
        hidden = np.where(short, np.where(minor & a_buffer, STREAMED, 1.0), np.where(busy, FOLLOWED, 0.0))
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
    by_strips = minor & (nt > 1) & (x.results > target.l3 // 2)
    if by_strips.any():
        arithmetic += np.where(by_strips, traffic.STRIPS * seconds(x.results, held), 0.0)
    if x.parted.any():  # not asked for by tiles of blocks of K; strips of all rows, where N is the inner loop
        arithmetic += np.where((kc < part) | heads | t.major, PARTED * seconds(x.parted, held), 0.0)
    slow = (x.b_strips > 0) & (ahead == 0) & (~b_buffer | b_each) & ~(t.major & (0 < t.kc) & (t.kc <= traffic.SWEEP))
    if slow.any():
        memory += np.where(slow, seconds(b_bytes, held) * traffic.strips(nr, x.n, item), 0.0)
    slow = (x.a_strips > 0) & a_inline & ~(t.major & (0 < t.kc) & (t.kc <= traffic.SWEEP))
    if slow.any():
        arithmetic += np.where(slow, seconds(a_bytes, held) * traffic.strips(t.mr, x.m, item), 0.0)
    arithmetic += reread(t, x, kc, mt, nt, target) / (target.bytes_per_second[2] * tasks)
    many = b_inline & (mt > 1) & (kc >= 64)
    same_sets = (x.b_step >= 1024) & (x.b_step % 1024 == 0)  # the panel's rows fall into the same cache sets
    crowded = np.where(kc > x.b_held, 1.2, np.where(2 * kc > x.b_held, 1.03, 1.0))
    factor = np.where(same_sets, crowded, np.where(x.b_step >= 4096, 1.02, 1.0))
    arithmetic *= np.where(many, factor, 1.0)
    # Rows of M read down columns that the first level does not hold.
    shared = np.where(x.a_step < traffic.LINE, x.a_distinct, 1.0)  # rows in pieces of the same lines
    columns = a_inline & (x.a_step > item) & (t.mr * kc * item * shared > target.l1) & (mt > 1)
    near = np.where(x.a_step < traffic.APART, 1.0, np.where(x.a_step < traffic.PAGE, 1.12, 1.25))
    near = np.where(x.a_step < traffic.LINE, 1.25, near)  # no row of many: pieces of a line, each somewhere else
    arithmetic *= np.where(columns, np.where(x.a_side == item, near, 1.25), 1.0)
    # So many pages of M that those of a panel in scratch are looked up again; a buffer's are large.
    pages = a_inline & (x.a_step > item) & (kc * x.a_step > traffic.NEAR_PAGES * traffic.PAGE) & (mt > 1)
    arithmetic *= np.where(pages & (t.b == PANEL), 1.05, 1.0)
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
    return points * x.k * t.item / (parts * t.split)


def reread(t: Table, x: Features, kc: Array, mt: Array, nt: Array, target: Any) -> Array:
    """Bytes that come from beyond the second level more than once: blocks of K too long for it."""
    item, l2, out = t.item, target.l2, np.zeros_like(kc)
    by_columns = (t.a == INLINE) & (x.a_step > item) & (kc > 0.75 * x.a_held) & (x.m * x.k * item > l2)
    if by_columns.any():
        lines = np.where(x.a_side == item, np.ceil(t.mr * item / traffic.LINE), t.mr)
        out = np.where(by_columns & (x.windows == 0), x.batch * mt * nt * x.k * lines * traffic.LINE, 0.0)
    panel = kc * t.nv * t.lanes / t.depth * item
    again = (t.b == INLINE) & (kc > x.b_held) & (x.n * x.k * item > l2) | (panel > l2 * PANELS)
    if x.windows.any():
        # Beside windows, of a panel and of them what the second level does not hold of both; a good part where it is
        # but a little too small, as what is walked in a circle pushes itself out. A buffer's panel comes in one stream.
        both = panel + x.elements * item
        part = np.maximum(traffic.CIRCLE, 1 - l2 * traffic.HELD / both) * np.where(t.b == BUFFER, STREAMED, 1.0)
        again = np.where(x.windows > 0, np.where((t.b != INLINE) & (both > l2 * traffic.HELD), part, 0.0), again)
    return out + np.where(mt > 1, again * x.batch * (mt - 1) * x.n * x.k * item, 0.0)
