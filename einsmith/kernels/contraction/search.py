"""Which configurations of a contraction are worth a prediction: windows, register tiles, how operands are reached."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import ceil, prod
from typing import Any

import numpy as np

from einsmith.kernels.contraction import config as plan
from einsmith.kernels.contraction import direct_boxes as box
from einsmith.kernels.contraction import epilogue as finish
from einsmith.kernels.contraction import traffic
from einsmith.kernels.contraction.config import Config, Direct, InnerProducts, Tiled
from einsmith.kernels.contraction.cost import (
    BUFFER,
    BY_K,
    BY_M,
    BY_N,
    HOW,
    INLINE,
    ORDERS,
    PANEL,
    Table,
    inner_bytes,
)
from einsmith.kernels.contraction.emission import inner_product as dot
from einsmith.kernels.contraction.emission.k_pack import depth_of, fits
from einsmith.kernels.contraction.features import (
    Analysis,
    OperandPlan,
    analysis,
    finished,
    kept,
    slots_of,
    with_halos_of,
)
from einsmith.kernels.contraction.geometry import operand_memories
from einsmith.kernels.contraction.halo import elements
from einsmith.kernels.contraction.problem import Problem
from einsmith.kernels.contraction.traffic import Array
from einsmith.plan.kernel import Kernel

MAX_K_PANEL = 1 << 19
"""Bytes of a packed panel over K beyond which K is blocked; half of a usual private second-level cache."""

SHORT = 16
"""Points of K that are too few for a block: tiles load and store their sums for each."""
FEW = 64
"""Rows of M over which the packing of N is not spread."""
MANY = 1 << 14
"""Results from which on their tiles are many for every core."""

_WINDOWS: tuple[plan.Halos, ...] = (
    (),
    *(((i, fixes),) for i in (0, 1) for fixes in ("all", "side", "k")),
    *(((0, fixes), (1, fixes)) for fixes in ("all", "k")),
)


@lru_cache(maxsize=1024)
def windows_of(p: Problem) -> list[plan.Halos]:
    """The windows worth a look: short blocks of K begin and end too often."""
    every = [(i, cut) for i in (0, 1) for cut in plan.halo_blocks(p, i, plan.HALO_BYTES)]
    cuts = [((i, cut),) for i, cut in every if cut.of_k or cut.place or not _by_points(p, i, cut.points)]

    def short(fixes: str | plan.HaloBlock) -> bool:
        if isinstance(fixes, plan.HaloBlock):
            return fixes.of_k and fixes.points * p.count(p.k[fixes.place + 1 :]) < SHORT
        return fixes == "k" and p.count(p.k[1:]) < SHORT

    return [x for x in (*_WINDOWS, *cuts) if not any(short(fixes) for _, fixes in x)]


def _by_points(p: Problem, i: int, points: int) -> bool:
    """Whether a block of so many points of an operand's outermost output axis shares nothing among them, and each has
    rows enough."""
    side, outer = p.left if i == 0 else p.right, frozenset(p.batch)
    one, block = elements(p, i, outer | {side[0]}), elements(p, i, outer, (side[0], points))
    return p.count(side[1:]) >= FEW // 2 and one is not None and block == one * points


def _even(size: int, limit: int) -> int:
    """The tile extent at most `limit` that cuts `size` most evenly into the fewest tiles."""
    return ceil(size / ceil(size / limit))


def _rows_limit(nv: int, registers: int) -> int:
    return max(1, min((registers - nv) // nv, 28 if nv == 1 else 14))


def _tiles(m: int, n: int, lanes: int, registers: int, some: int = 0) -> list[tuple[int, int]]:
    """Register tiles mr x nv: the accumulators and a row's vectors fit the registers. Of many results those with `some`
    vectors, where there are such."""
    vectors = ceil(n / lanes)
    out: dict[tuple[int, int], None] = {}
    for nv in (1, 2, 3, 4, 6, 7, 8):
        if nv > max(1, vectors):
            break
        mr = _rows_limit(nv, registers)
        if nv >= 6 and m > mr:
            continue
        out[(_even(m, mr), nv if vectors >= nv else vectors)] = None
    alike = [x for x in out if x[1] == some] if m * n >= MANY else []
    return alike or list(out)


def _promising(
    sizes: list[tuple[int, int]], m: int, n: int, k: int, lanes: int, target: Any
) -> list[tuple[int, int]]:
    """The three to five tiles of the fewest cycles in multiply-adds and loads; for few results, all of them."""
    if m * n < MANY:  # how few tiles are shared by the cores matters as much
        return sizes
    columns, w = ceil(n / lanes), target.overheads

    def step(mr: int, nv: int) -> float:
        return max(mr * nv / target.multiplies, (mr + nv) / 2, w.latency) if mr and nv else 0.0

    def cycles(size: tuple[int, int]) -> float:
        mr, nv = size
        (i, x), (j, y) = divmod(m, mr), divmod(columns, nv)
        steps = i * j * step(mr, nv) + i * step(mr, y) + j * step(x, nv) + step(x, y)
        return k * steps + ceil(m / mr) * ceil(columns / nv) * (w.tile + mr * nv * w.stored_sum + mr * w.tile_row)

    found = sorted((cycles(x), i, x) for i, x in enumerate(sizes))
    return [x for i, (c, _, x) in enumerate(found) if i < 3 or (i < 5 and c <= 1.1 * found[0][0])]


@dataclass
class _Tile:
    """A register tile within a setting: points of K in a block (0: none), parts of K and points of K in a vector's
    lanes; inline: whether M can be read in place."""

    setting: int
    mr: int
    nv: int
    blocks: int
    split: int
    inline: bool
    kept: float
    finish: float
    depth: int = 1


@dataclass
class Candidates:
    """The configurations of pieces of a kernel: those of the tiled form, a setting's piece by its number, and others of
    each piece."""

    table: Table | None
    piece: Array
    others: list[list[Config]]

    def rows(self, piece: int) -> Array:
        """Which of the table are a piece's."""
        return np.zeros(0, np.int64) if self.table is None else np.nonzero(self.piece[self.table.setting] == piece)[0]

    def __iter__(self) -> Iterator[Config]:
        if self.table is not None:
            yield from map(self.table.config, range(len(self.table.mr)))
        for configs in self.others:
            yield from configs


def candidates(
    kernel: Kernel, pieces: Sequence[Problem], target: Any, like: Config | None = None
) -> Candidates:
    """What may be worth a prediction. `like`: what serves the kernel's largest piece best, if these are other ones; its
    windows serve them too, on whichever operand can have them, or none where none can, and as many vectors of N where
    their results lie between each other."""
    settings: list[OperandPlan] = []
    tiles: list[_Tile] = []
    sweeps: list[tuple[int, Tiled]] = []
    piece: list[int] = []
    others: list[list[Config]] = []
    tiled = like if isinstance(like, Tiled) else None
    for number, p in enumerate(pieces):
        at = analysis(kernel, p, target)
        direct = box.configs(kernel, p, operand_memories(kernel), target)
        dots: list[InnerProducts] = []
        nv, before = 0 if tiled is None or max(p.piece.step) == 1 else tiled.nv, len(tiles)
        # A side of one point shares nothing within a tile: what is in windows is the direct form's.
        lone = bool(direct) and 1 in p.sizes[1:3] and p.sizes[0] > 1
        for windows in ((),) if lone else windows_of(p) if like is None else _near(like):
            changed = with_halos_of(kernel, p, windows)
            if changed is None or like is not None and not windows and len(tiles) > before:
                continue
            for rows, swap in product((False, True), (False, True)):
                if rows and not rows_fit(changed, windows, swap, at.lanes):
                    continue
                if not _promises(at, changed, windows, swap) or like is not None and not _as_in(like, p, windows, swap):
                    continue
                s = at.setting(windows, changed, swap, rows)
                tiles += _tiles_of(at, s, len(settings), nv)
                if not windows:
                    sweeps += [(len(settings), c) for c in _sweeps(at, s)]
                settings.append(s)
                piece.append(number)
            slots = slots_of(kernel, p, windows)
            dots += dot.configs(changed, windows, slots, at.lanes, target.vector_registers, target.cores)
        others.append([*dots, *direct])
    return Candidates(_table(at, settings, tiles, sweeps), np.array(piece), others)


def _near(c: Config) -> list[plan.Halos]:
    """The configuration's windows, these on the other operand, and none."""
    return list(dict.fromkeys((c.windows, tuple(sorted((1 - i, fixes) for i, fixes in c.windows)), ())))


def _as_in(like: Config, p: Problem, windows: plan.Halos, swap: bool) -> bool:
    """Whether the side of many results that is read from windows, M or N, is the same one."""
    which = 0 if isinstance(like, Direct) else int(like.swap)
    same = (int(swap) in dict(windows)) == (which in dict(like.windows))
    return same or not windows or prod(p.sizes[1:3]) < MANY


def _promises(at: Analysis, changed: plan.HaloProblem, windows: plan.Halos, swap: bool) -> bool:
    """Whether windows may spare more than they take: those on the N side spare some of its packing, which is spread
    over the rows of M unless these are few, or all of it where N is one stretch of the window."""
    p = changed.problem
    m_side, n_side = plan.sides(p, swap)
    if not windows or int(swap) in dict(windows) or p.count(m_side.axes) <= FEW:
        return True
    return len(at.sampler(n_side.operand, windows, (), 0).groups(n_side.axes)) == 1


def rows_fit(changed: plan.HaloProblem, windows: plan.Halos, swap: bool, lanes: int) -> bool:
    """Whether vectors of N that keep to rows are worth a look: rows of a window that are no whole vectors, but nearly.
    """
    p = changed.problem
    _, n_side = plan.sides(p, swap)
    cut = any(isinstance(x, plan.HaloBlock) and not x.of_k for _, x in windows)
    if cut or len(n_side.axes) < 2 or not n_side.operand.plain or (1 - int(swap)) not in dict(windows):
        return False
    last, row = p.extents[n_side.axes[-1]], plan.padded_row(p, n_side, lanes)
    return last != row and last / row >= 0.6


def _sweeps(at: Analysis, s: OperandPlan) -> list[Tiled]:
    p, target, x = s.changed.problem, at.target, s.numbers
    m_side, n_side = plan.sides(p, s.swap)
    rows = at.plain(m_side, s.windows)
    if not n_side.operand.plain or s.rows:
        return []
    m, n, k, batch = (int(v) for v in (x.m, x.n, x.k, x.batch))
    steps = traffic.Steps(int(x.b_side), int(x.b_step))
    sizes = _promising(_tiles(m, n, at.lanes, target.tile_registers), m, n, k, at.lanes, target)
    sizes = [(mr, nv) for mr, nv in sizes if plan.reads_in_place(rows, m_side.axes, mr)]
    return traffic.sweeps(m, n, k, batch, steps, sizes, s.swap, at.item, target)


def _tiles_of(at: Analysis, s: OperandPlan, number: int, vectors: int) -> list[_Tile]:
    """The register tiles of a setting that may be worth it; of those with so many vectors, where there are some."""
    p, target, x = s.changed.problem, at.target, s.numbers
    m_side, n_side = plan.sides(p, s.swap)
    m, n, k, batch = (int(v) for v in (x.m, x.n, x.k, x.batch))
    blocks, unit = 0, plan.unit_of_k(p, at.lanes)
    in_lines = finish.unit(at.kernel, at.p, n_side.axes, at.lanes) is not None
    if k >= 2 * traffic.BLOCK and not s.windows and not in_lines:  # sums would wait for blocks of K, then for lines
        blocks = traffic.blocks_of_k(k, unit)
    sizes = _tiles(m, n, at.lanes, target.tile_registers, vectors)
    in_place = at.plain(m_side, s.windows)
    if in_place is not None:
        for nv in {nv for _, nv in sizes}:
            regular = plan.regular_rows(in_place, m_side.axes, _rows_limit(nv, target.tile_registers))
            if regular >= 4 and (regular, nv) not in sizes:
                sizes.append((regular, nv))
        if x.a_fit:  # rows that share cache sets
            more = [(_even(m, int(x.a_fit)), nv) for mr, nv in sizes if mr > x.a_fit]
            sizes += [t for t in dict.fromkeys(more) if t not in sizes]

    def inline(mr: int) -> bool:
        return plan.reads_in_place(in_place, m_side.axes, mr)

    chosen = _promising(sizes, m, n, k, at.lanes, target)
    rows = finish.stacked(at.kernel, at.p, m_side.axes, n_side.axes, at.lanes)
    whole = [(mr - mr % rows, nv) for mr, nv in chosen if mr > rows]
    chosen += [t for t in dict.fromkeys(whole) if t not in chosen]
    out = []
    for mr, nv in chosen:
        if x.m_parts and m // x.m_parts % mr or x.n_parts and n // x.n_parts % (nv * at.lanes):
            continue
        split, tiles = 1, batch * ceil(m / mr) * ceil(n / (nv * at.lanes))
        if s.changed.k_outer:
            split = min(s.changed.heads, max(1, ceil(4 * target.cores / batch)))
        elif tiles < 2 * target.cores and k >= 512:
            split = min(ceil(k / 256), max(1, ceil(4 * target.cores / tiles)))
            # Panels over a task's part of K stay in the caches.
            split = max(split, ceil(k * (mr + nv * at.lanes) * at.item / MAX_K_PANEL))
        part = 1.0
        if split == 1 and not s.changed.k_outer:
            part = kept(at.p, s, mr, max(1, nv * at.lanes // int(x.row)) if s.rows else 0)
        after = finished(at, s, mr, nv, split)
        out.append(_Tile(number, mr, nv, blocks if split == 1 else 0, split, inline(mr), part, after))
    parts = ceil(4 * target.cores / batch)
    if blocks and parts > 1 and x.b_turned and k >= 4 * parts * blocks:
        # What is turned round is packed once, by the task that has that part of K. Sums are loaded for every block of
        # it, to which tiles leave a register; rows of M begin anew in each, so that longer blocks may pay.
        free = target.tile_registers - 3
        spare = [(_even(m, free // nv - 1), nv) for nv in dict.fromkeys(nv for _, nv in sizes) if free // nv > 1]
        for mr, nv in _promising(spare, m, n, k, at.lanes, target):
            after = finished(at, s, mr, nv, parts)
            lengths = [2 * blocks, blocks]
            if lengths[0] * nv * at.lanes * at.item > target.l1:  # a longer panel leaves no nearer level
                point = (mr + nv * at.lanes) * at.item
                lengths.append(_longest(ceil(k / parts), point, unit))
            out += [_Tile(number, mr, nv, size, parts, inline(mr), 1.0, after) for size in lengths]
        out += _deep(at, s, number, free, parts, 2 * blocks)
    return out


def _longest(k: int, point: int, unit: int) -> int:
    """Points of K in each of the fewest even blocks, multiples of `unit`, whose panels stay in the caches at `point`
    bytes a point."""
    return ceil(ceil(k / unit) / ceil(k * point / MAX_K_PANEL)) * unit


def _deep(at: Analysis, s: OperandPlan, number: int, registers: int, split: int, block: int) -> list[_Tile]:
    """The tile whose vectors hold all points of N, and of each some points of K, where that leaves fewer lanes empty;
    these stand side by side in the rows of M, and in none of its parts and blocks does K end between them."""
    p, x = s.changed.problem, s.numbers
    m_side, _ = plan.sides(p, s.swap)
    n, depth = int(x.n), depth_of(int(x.n), at.lanes, at.item)
    nv = ceil(n * depth / at.lanes)
    rows = at.plain(m_side, s.windows)
    if depth == 1 or registers < 2 * nv or rows is None:
        return []
    mr = _even(int(x.m), registers // nv - 1)
    if not plan.reads_in_place(rows, m_side.axes, mr):
        return []
    part = ceil(int(x.k) / split)
    # So narrow a panel is as long as the second level holds it beside what the next one is packed of.
    blocks = dict.fromkeys((_longest(part, 2 * (mr + nv * at.lanes // depth) * at.item, at.lanes), block))
    if not fits(p, m_side, rows, depth, (part, *blocks)):
        return []
    after = finished(at, s, mr, nv, split)
    return [_Tile(number, mr, nv, size, split, True, 1.0, after, depth) for size in blocks]


WAYS = np.array([*product(range(3), range(3), (BY_N, BY_M, BY_K), (0, 1))]).T
"""How M and N reach a tile, which is outermost, whether K is cut into blocks."""


def _table(
    at: Analysis, settings: list[OperandPlan], tiles: list[_Tile], sweeps: list[tuple[int, Tiled]]
) -> Table | None:
    """Every sensible way to reach the operands, with each of the tiles."""
    if not settings:
        return None
    columns = np.array(
        [(t.setting, t.mr, t.nv, t.blocks, t.split, t.inline, t.kept, t.finish, t.depth) for t in tiles], np.float64
    )
    number = columns[:, 0].astype(np.int64)
    facts = np.array([facts_of(at, s) for s in settings], np.float64)[number]
    tile, way = np.nonzero(sensible(columns, facts, at.lanes))
    _, mr, nv, blocks, split, _, part, after, depth = columns[tile].T
    a, b, order, blocked = WAYS[:, way]
    number = number[tile]
    every = [number, mr, nv, a, b, order, blocks * blocked, split, part, after, depth]
    if sweeps:
        cs = [c for _, c in sweeps]
        more = [[n for n, _ in sweeps], [c.mr for c in cs], [c.nv for c in cs], [HOW.index(c.a) for c in cs],
                [HOW.index(c.b) for c in cs], [BY_K for _ in cs], [c.kc for c in cs], [c.split for c in cs],
                [1.0 for _ in cs], [settings[n].numbers.finish for n, _ in sweeps], [1.0 for _ in cs]]  # fmt: skip
        every = [np.concatenate([x, np.array(y, x.dtype)]) for x, y in zip(every, more, strict=True)]
    number, mr, nv, a, b, order, kc, split, part, after, depth = every
    x = Table(settings, number, mr, nv, a, b, order, kc, split, mr, mr, depth, part, after, at.item, at.lanes,
              at.nbytes)  # fmt: skip
    tm, tn = _shares(x, at.target)
    tm[len(tile) :], tn[len(tile) :] = [c.tm for _, c in sweeps], [c.tn for _, c in sweeps]
    cuts = x.numbers
    cut = (cuts.m_parts > 0) | (cuts.n_parts > 0)
    tm, tn = np.where(cut, np.maximum(cuts.m_parts, 1), tm), np.where(cut, np.maximum(cuts.n_parts, 1), tn)
    x = replace(x, tm=tm, tn=tn)
    windowed = facts[:, _WINDOWED][tile]
    inner = np.where(order == BY_M, b, a)[: len(tile)]
    again = np.nonzero((inner == BUFFER) & (a != PANEL)[: len(tile)] & (b != PANEL)[: len(tile)] & (windowed == 0))[0]
    whole = np.nonzero((order == BY_K)[: len(tile)])[0]
    if len(again) or len(whole):
        rows = np.concatenate([np.arange(len(number)), again, whole])
        place = np.argsort(rows, kind="stable")
        cached, cut = in_cache(x, again, at.target), by_core(x, whole, at.target)
        tm, tn = (np.concatenate(parts)[place] for parts in zip((tm, tn), cached, cut, strict=True))
        rows = rows[place]
        every = [v[rows] for v in every]
    number, mr, nv, a, b, order, kc, split, part, after, depth = every
    return Table(settings, number, mr, nv, a, b, order, kc, split, tm, tn, depth, part, after, at.item, at.lanes,
                 at.nbytes)  # fmt: skip


def table_of(kernel: Kernel, p: Problem, c: Tiled, target: Any) -> Table:
    """The table of one configuration."""
    at, changed = analysis(kernel, p, target), with_halos_of(kernel, p, c.windows)
    assert changed is not None
    s = at.setting(c.windows, changed, c.swap, c.rows)
    part = kept(p, s, c.mr, max(1, c.nv * at.lanes // int(s.numbers.row)) if c.rows else 0)
    values = (c.mr, c.nv, HOW.index(c.a), HOW.index(c.b))
    every = (*values, c.kc, c.split, c.tm, c.tn, c.depth, part, finished(at, s, c.mr, c.nv, c.split))
    mr, nv, a, b, kc, split, tm, tn, depth, left, after = (np.array([float(v)]) for v in every)
    order = np.array([ORDERS.index(c.order)])
    return Table([s], np.array([0]), mr, nv, a, b, order, kc, split, tm, tn, depth, left, after, at.item, at.lanes,
                 at.nbytes)  # fmt: skip


_WINDOWED = 3


def facts_of(at: Analysis, s: OperandPlan) -> tuple[float, ...]:
    """Of a setting: points of M and N, whether M is packed once, whether there are windows, on M, on N, whether vectors
    keep to rows, whether a window fixes an axis of K, whether K may be cut into blocks, whether N lies along K."""
    x, sides = s.numbers, dict(s.windows)
    return (x.m, x.n, x.a_once, bool(sides), int(s.swap) in sides, 1 - int(s.swap) in sides, s.rows, x.heads > 0,
            x.k >= 2 * traffic.BLOCK and not s.windows, x.b_turned)  # fmt: skip


def sensible(tiles: Array, facts: Array, lanes: int) -> Array:
    """Which of WAYS is worth a prediction, for every tile."""
    _, mr, nv, blocks, split, inline, _, _, depth = (x[:, None] for x in tiles.T)
    m, n, a_once, windows, on_a, on_b, rows, heads, blocked, turned = (x[:, None] for x in facts.T)
    a, b, order, some = WAYS
    major, by_k = order == BY_M, order == BY_K
    one_row, one_column = np.ceil(m / mr) == 1, np.ceil(n * depth / (nv * lanes)) == 1
    buffers = (a == BUFFER) | (b == BUFFER)
    bad = (a == INLINE) & (inline == 0)
    # A buffer of what can be read in place pays where it spares conflicts, or is made once.
    bad |= (a == BUFFER) & (inline > 0) & ((windows > 0) | (m <= mr)) & (a_once == 0)
    bad |= (rows > 0) & (b != INLINE)
    bad |= ((split > 1) | (heads > 0)) & buffers
    bad |= (a == BUFFER) & (on_a > 0) | (b == BUFFER) & (on_b > 0)
    # What would be packed again for every tile.
    bad |= major & (b == PANEL) & ~one_column
    bad |= ~major & (a == PANEL) & ~one_row & ~one_column & (blocked == 0)
    bad |= major & (one_row | one_column & (a != PANEL))
    bad |= (some == 1) & ((blocks == 0) | major)
    bad |= (blocks > 0) & (split > 1) & ((some == 0) | (b != PANEL))
    bad |= (depth > 1) & (a != INLINE)
    # Blocks of K outermost: panels of N are packed once for all tiles of M, whose rows lie apart along K.
    bad |= by_k & ((some == 0) | (b != PANEL) | (a == PANEL) | (split > 1) | (turned > 0) | one_row | one_column)
    return ~bad


def _shares(t: Table, target: Any) -> tuple[Array, Array]:
    """Tasks along M and along N: enough for every core, cut on the side that is not packed twice."""
    x, cores = t.numbers, target.cores
    mt, nt = np.ceil(x.m / t.mr), np.ceil(x.n / (t.nv * t.lanes))
    others = x.batch * t.split
    want = np.ones_like(others)
    if cores > 1:
        want = np.maximum(1, np.ceil(4 * cores / others))
        unit = cores // np.gcd(others.astype(np.int64), cores)
        want += -want % unit  # as many for each core
    first, second = np.where(t.major, mt, nt), np.where(t.major, nt, mt)
    outer = np.minimum(first, want)
    inner = np.where(others * outer < cores, np.minimum(second, np.ceil(cores / (others * outer))), 1)
    if cores > 1:  # even shares are worth packing the outer side once more in each
        packed = np.where(t.major, t.a, t.b) == PANEL
        more = np.minimum(np.where(packed, second // 8, second), np.ceil(want / outer))
        inner = np.where(outer < want, np.maximum(inner, more), inner)
    tm, tn = np.where(t.major, outer, inner), np.where(t.major, inner, outer)
    waiting_m, waiting_n = _waiting_parts(t, tn, target)
    by_k = t.order == BY_K
    return np.where(by_k, np.maximum(tm, waiting_m), tm), np.where(by_k, waiting_n, tn)


def _waiting_parts(t: Table, tn: Array, target: Any) -> tuple[Array, Array]:
    """Tasks along M and N, of N at least `tn`, of which each has sums that stay in the second level while they wait for
    blocks of K: parts of N, as long as rows of it are no shorter than half a page, as each part of M packs N anew."""
    x, cores = t.numbers, target.cores
    parts = np.ceil(x.m * x.columns * t.item / (target.l2 * target.overheads.held))
    most = np.maximum(tn, x.columns * t.item * 2 // traffic.PAGE)
    most = np.minimum(most, np.ceil(x.n / (t.nv * t.lanes)))
    along = np.minimum(np.maximum(tn, np.ceil(parts / cores) * cores), most)
    return np.minimum(np.ceil(x.m / t.mr), np.ceil(parts / along)), along


def by_core(t: Table, which: Array, target: Any) -> tuple[Array, Array]:
    """Tasks along M and N of the configurations `which` with one part of N for each core, which reads the longest rows.
    """
    x = t.numbers
    tn = np.minimum(np.ceil(x.columns / (t.nv * t.lanes)), np.ceil(target.cores / x.batch))
    tm, tn = _waiting_parts(t, tn, target)
    return np.maximum(1, tm)[which], tn[which]


def in_cache(t: Table, which: Array, target: Any) -> tuple[Array, Array]:
    """Tasks along M and N of the configurations `which` with more of them along the side of the inner loop, so that a
    task's range of it stays in the second level while the outer side is walked; the same where it does already."""
    x = t.numbers
    k, batch, m, columns = (v[which] for v in (x.k, x.batch, x.m, x.columns))
    mr, nv, split, major, tm, tn = (v[which] for v in (t.mr, t.nv, t.split, t.major, t.tm, t.tn))
    parts = np.ceil(inner_bytes(t, x, 1.0, 1.0)[which] / (target.l2 * target.overheads.held))
    outer = np.maximum(1, np.ceil(4 * target.cores / (batch * split * parts)))
    rows, tiles = np.ceil(m / mr), np.ceil(columns / (nv * t.lanes))
    return (
        np.where(major, np.minimum(tm, outer), np.maximum(tm, np.minimum(rows, parts))),
        np.where(major, np.maximum(tn, np.minimum(tiles, parts)), np.minimum(tn, outer)),
    )
