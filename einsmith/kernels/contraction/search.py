"""Which configurations of a contraction are worth a prediction: windows, register tiles, how operands are reached."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, product
from math import ceil, prod
from typing import Any, NamedTuple

import numpy as np

from einsmith.kernels.contraction import config, direct_boxes, epilogue, traffic
from einsmith.kernels.contraction.config import Config, Direct, Tiled, WindowSetting, operand_memories
from einsmith.kernels.contraction.cost import (
    BUFFER,
    BY_K,
    BY_M,
    BY_N,
    HOW,
    INLINE,
    ORDERS,
    PANEL,
    ConfigTable,
    inner_bytes,
)
from einsmith.kernels.contraction.emission.k_pack import depth_of, fits
from einsmith.kernels.contraction.features import FeatureArrays, OperandPlan, operand_plan, together
from einsmith.kernels.contraction.halo import elements
from einsmith.kernels.contraction.problem import Problem
from einsmith.kernels.contraction.traffic import Array
from einsmith.plan.kernel import Kernel
from einsmith.target.cost import may_be_one_task
from einsmith.target.memory import PAGE

MAX_K_PANEL = 1 << 19
"""Bytes of a packed panel over K beyond which K is blocked; half of a usual private second-level cache."""

SHORT = 16
"""Points of K that are too few for a block: tiles load and store their sums for each."""
FEW = 64
"""Rows of M over which the packing of N is not spread."""
MANY = 1 << 14
"""Results from which on their tiles are many for every core."""

_WINDOWS: tuple[config.Halos, ...] = ((), *(((i, fixes),) for i in (0, 1) for fixes in ("all", "side", "k")))


@lru_cache(maxsize=1024)
def windows_of(p: Problem) -> list[config.Halos]:
    """The windows worth a look: short blocks of K begin and end too often."""
    every = [(i, cut) for i in (0, 1) for cut in config.halo_blocks(p, i, config.HALO_BYTES)]
    cuts = [((i, cut),) for i, cut in every if cut.of_k or cut.place or not _by_points(p, i, cut.points)]

    def short(fixes: str | config.HaloBlock) -> bool:
        if isinstance(fixes, config.HaloBlock):
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


_Sizes = tuple[tuple[int, int], ...]
"""Of register tiles: rows and vectors."""


@lru_cache(maxsize=4096)
def _tiles(m: int, n: int, lanes: int, registers: int, some: int = 0) -> _Sizes:
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
    alike = tuple(x for x in out if x[1] == some) if m * n >= MANY else ()
    return alike or tuple(out)


@lru_cache(maxsize=4096)
def _promising(sizes: _Sizes, m: int, n: int, k: int, lanes: int, target: Any) -> _Sizes:
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
    return tuple(x for i, (c, _, x) in enumerate(found) if i < 3 or (i < 5 and c <= 1.1 * found[0][0]))


class _Tile(NamedTuple):
    """A register tile within a setting: points of K in a block (0: none), parts of K and points of K in a vector's
    lanes; inline: whether M can be read in place."""

    setting: int
    mr: int
    nv: int
    blocks: int
    split: int
    inline: bool
    kept: float
    epilogue: float
    depth: int = 1


@dataclass
class Candidates:
    """The configurations of pieces of a kernel: those of the tiled form, and of which piece each of them is, by its
    number; and others of each piece."""

    table: ConfigTable | None
    piece: Array
    others: list[list[Config]]

    def __iter__(self) -> Iterator[Config]:
        if self.table is not None:
            yield from map(self.table.config, range(len(self.piece)))
        yield from chain(*self.others)


def candidates(kernel: Kernel, pieces: Sequence[Problem], target: Any, like: Config | None = None) -> Candidates:
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
        direct = direct_boxes.configs(kernel, p, operand_memories(kernel), target)
        nv, before = 0 if tiled is None or max(p.piece.step) == 1 else tiled.nv, len(tiles)
        # A side of one point shares nothing within a tile: what is in windows is the direct form's.
        lone = bool(direct) and 1 in p.sizes[1:3] and p.sizes[0] > 1
        for windows in ((),) if lone else windows_of(p) if like is None else _near(like):
            if config.with_halos(p, windows) is None or like is not None and not windows and len(tiles) > before:
                continue
            for rows, swap in product((False, True), (False, True)):
                s = operand_plan(kernel, p, windows, swap, False, target)
                if rows and not rows_fit(s) or not _promises(s) or like is not None and not _as_in(like, s):
                    continue
                s = operand_plan(kernel, p, windows, swap, rows, target)
                tiles += _tiles_of(s, len(settings), nv)
                if not windows:
                    sweeps += [(len(settings), c) for c in _sweeps(s)]
                settings.append(s)
                piece.append(number)
        others.append([*direct])
    table = _table(settings, tiles, sweeps)
    return Candidates(table, np.array(piece)[[] if table is None else table.setting], others)


def _near(c: Config) -> list[config.Halos]:
    """The configuration's windows, these on the other operand, and none."""
    return list(dict.fromkeys((c.windows, tuple(sorted((1 - i, fixes) for i, fixes in c.windows)), ())))


def _as_in(like: Config, s: WindowSetting) -> bool:
    """Whether the side of many results that is read from windows, M or N, is the same one."""
    which = 0 if isinstance(like, Direct) else int(like.swap)
    same = (int(s.swap) in dict(s.windows)) == (which in dict(like.windows))
    return same or not s.windows or prod(s.original.sizes[1:3]) < MANY


def _promises(s: WindowSetting) -> bool:
    """Whether windows may spare more than they take: those on the N side spare some of its packing, which is spread
    over the rows of M unless these are few, or all of it where N is one stretch of the window."""
    if not s.windows or int(s.swap) in dict(s.windows) or s.M <= FEW:
        return True
    return len(s.access(s.n_side).groups(s.n_side.axes)) == 1


def rows_fit(s: WindowSetting) -> bool:
    """Whether vectors of N that keep to rows are worth a look: rows of a window that are nearly whole vectors."""
    cut = any(isinstance(x, config.HaloBlock) and not x.of_k for _, x in s.windows)
    if cut or len(s.n_side.axes) < 2 or not s.n_side.operand.plain or (1 - int(s.swap)) not in dict(s.windows):
        return False
    last, row = s.p.extents[s.n_side.axes[-1]], config.padded_row(s.p, s.n_side, s.lanes)
    return last != row and last / row >= 0.6


def _sweeps(s: OperandPlan) -> list[Tiled]:
    """For an N side of many bytes, contiguous along N: a few points of K at a time over the whole of N or, where the
    sums of that stay in the second level, over a core's part of it. Few rows have parts of K, too, which are added
    later."""
    x, target, row = s.numbers, s.target, s.N * s.item
    plain = s.n_side.operand.plain and not s.rows and x.b_side == s.item and x.b_step >= PAGE
    if not plain or row * s.K <= target.l2 or s.K < 8 * target.cores:
        return []
    out = []
    sizes = _tiles(s.M, s.N, s.lanes, target.tile_registers)
    for mr, nv in ((mr, nv) for mr, nv in _promising(sizes, s.M, s.N, s.K, s.lanes, target) if s.reads_in_place(mr)):
        if s.M <= 4:
            split = 1 if target.cores == 1 else max(1, ceil(4 * target.cores / s.B))
            out.append(Tiled(s.swap, mr, nv, "inline", "inline", "k", traffic.SWEEP, split))
        parts = max(1, min(target.cores, row // PAGE))
        if s.M * row <= parts * target.l2 * target.overheads.held:
            out.append(Tiled(s.swap, mr, nv, "inline", "inline", "k", traffic.SWEEP, 1, 1, parts))
    return list(dict.fromkeys(out))


def _tiles_of(s: OperandPlan, number: int, vectors: int) -> list[_Tile]:
    """The register tiles of a setting that may be worth it; of those with so many vectors, where there are some."""
    p, target, x, lanes = s.p, s.target, s.numbers, s.lanes
    m, n, k, batch, m_axes, n_axes = s.M, s.N, s.K, s.B, s.m_side.axes, s.n_side.axes
    blocks, unit = 0, config.unit_of_k(p, lanes)
    in_lines = epilogue.unit(s.kernel, s.original, n_axes, lanes) is not None
    if k >= 2 * traffic.BLOCK and not s.windows and not in_lines:  # sums would wait for blocks of K, then for lines
        blocks = traffic.blocks_of_k(k, unit)
    sizes = [*_tiles(m, n, lanes, target.tile_registers, vectors)]
    if s.m_side.operand.plain:
        for nv in {nv for _, nv in sizes}:
            regular = config.regular_rows(s.m_steps, _rows_limit(nv, target.tile_registers))
            if regular >= 4 and (regular, nv) not in sizes:
                sizes.append((regular, nv))
        if x.a_fit:  # rows that share cache sets
            more = [(_even(m, int(x.a_fit)), nv) for mr, nv in sizes if mr > x.a_fit]
            sizes += [t for t in dict.fromkeys(more) if t not in sizes]
    chosen = [*_promising(tuple(sizes), m, n, k, lanes, target)]
    rows = epilogue.stacked(s.kernel, s.original, m_axes, n_axes, lanes)
    whole = [(mr - mr % rows, nv) for mr, nv in chosen if mr > rows]
    chosen += [t for t in dict.fromkeys(whole) if t not in chosen]
    if x.a_parts or x.b_parts:
        chosen = [
            (mr, nv)
            for mr, nv in chosen
            if not (x.a_parts and m // x.a_parts % mr or x.b_parts and n // x.b_parts % (nv * lanes))
        ]
    out = []
    for (mr, nv), part in zip(chosen, [1.0] * len(chosen) if s.heads else s.kept(chosen), strict=True):
        split, tiles = 1, batch * ceil(m / mr) * ceil(n / (nv * lanes))
        if s.heads:
            split = min(s.heads, max(1, ceil(4 * target.cores / batch)))
        elif tiles < 2 * target.cores and k >= 512:
            split = min(ceil(k / 256), max(1, ceil(4 * target.cores / tiles)))
            # Panels over a task's part of K stay in the caches.
            split = max(split, ceil(k * (mr + nv * lanes) * s.item / MAX_K_PANEL))
        size = blocks if split == 1 else 0
        out.append(_Tile(number, mr, nv, size, split, s.reads_in_place(mr), part, s.finished(mr, nv, split)))
    parts = ceil(4 * target.cores / batch)
    if blocks and parts > 1 and x.b_turned and k >= 4 * parts * blocks:
        # What is turned round is packed once, by the task that has that part of K. Sums are loaded for every block of
        # it, to which tiles leave a register; rows of M begin anew in each, so that longer blocks may pay.
        free = target.tile_registers - 3
        spare = [(_even(m, free // nv - 1), nv) for nv in dict.fromkeys(nv for _, nv in sizes) if free // nv > 1]
        for mr, nv in _promising(tuple(spare), m, n, k, lanes, target):
            after, inline = s.finished(mr, nv, parts), s.reads_in_place(mr)
            lengths = [2 * blocks, blocks]
            if lengths[0] * nv * lanes * s.item > target.l1:  # a longer panel leaves no nearer level
                point = (mr + nv * lanes) * s.item
                lengths.append(_longest(ceil(k / parts), point, unit))
            out += [_Tile(number, mr, nv, size, parts, inline, 1.0, after) for size in lengths]
        out += _deep(s, number, free, parts, 2 * blocks)
    return out


def _longest(k: int, point: int, unit: int) -> int:
    """Points of K in each of the fewest even blocks, multiples of `unit`, whose panels stay in the caches at `point`
    bytes a point."""
    return ceil(ceil(k / unit) / ceil(k * point / MAX_K_PANEL)) * unit


def _deep(s: OperandPlan, number: int, registers: int, split: int, block: int) -> list[_Tile]:
    """The tile whose vectors hold all points of N, and of each some points of K, where that leaves fewer lanes empty;
    these stand side by side in the rows of M, and in none of its parts and blocks does K end between them."""
    depth = depth_of(s.N, s.lanes, s.item)
    nv = ceil(s.N * depth / s.lanes)
    if depth == 1 or registers < 2 * nv:
        return []
    mr = _even(s.M, registers // nv - 1)
    if not s.reads_in_place(mr):
        return []
    part = ceil(s.K / split)
    # So narrow a panel is as long as the second level holds it beside what the next one is packed of.
    blocks = dict.fromkeys((_longest(part, 2 * (mr + nv * s.lanes // depth) * s.item, s.lanes), block))
    if not fits(s, depth, (part, *blocks)):
        return []
    after = s.finished(mr, nv, split)
    return [_Tile(number, mr, nv, size, split, True, 1.0, after, depth) for size in blocks]


WAYS = [
    (a, b, order, blocked) for a, b, order, blocked in product(range(3), range(3), (BY_N, BY_M, BY_K), (0, 1))
    if order == BY_N or order == BY_M and not blocked or order == BY_K and blocked and b == PANEL != a
]  # fmt: skip
"""How M and N reach a tile, which is outermost, whether K is cut into blocks. With blocks of K outermost, panels of N
are packed once for all tiles of M, whose rows lie apart along K."""
_A, _B, _ORDER, _BLOCKED = np.array(WAYS).T


def _table(settings: list[OperandPlan], tiles: list[_Tile], sweeps: list[tuple[int, Tiled]]) -> ConfigTable | None:
    """Every sensible way to reach the operands, with each of the tiles."""
    if not settings:
        return None
    columns, target = np.array(tiles, np.float64).reshape(-1, len(_Tile._fields)), settings[0].target
    features = together([s.numbers for s in settings])
    tile, way = np.nonzero(sensible(columns, features.of(columns[:, 0].astype(np.int64)), settings[0].lanes))
    number, mr, nv, blocks, split, _, part, after, depth = columns[tile].T
    a, b, order = _A[way], _B[way], _ORDER[way]
    one = np.ones_like(mr)
    rows = np.array((number, mr, nv, a, b, order, blocks * _BLOCKED[way], split, one, one, depth, part, after))
    x = ConfigTable(settings, rows, features)
    x.rows[8:10] = _shares(x, target)  # what its tm and tn are views of
    if features.has["a_parts"] or features.has["b_parts"]:
        cuts = np.array((x.numbers.a_parts, x.numbers.b_parts))
        x.rows[8:10] = np.where(cuts.any(axis=0), np.maximum(cuts, 1), x.rows[8:10])
    rows = _with_other_shares(x, target)
    if sweeps:
        more = [column_of(n, c, 1.0, settings[n].finished(c.mr, c.nv, 2)) for n, c in sweeps]
        rows = np.concatenate([rows, np.array(more).T], axis=1)
    return x if rows is x.rows else ConfigTable(settings, rows, features)


def _with_other_shares(t: ConfigTable, target: Any) -> Array:
    """The table's rows with more columns: after a configuration the same with other tasks, where they may be better."""
    inner = np.where(t.major, t.b, t.a)
    again = (inner == BUFFER) & (t.a != PANEL) & (t.b != PANEL) & (t.numbers.windows == 0)
    short = (t.tm * t.tn > 1) & (t.numbers.batch * t.split == 1)
    short &= may_be_one_task(t.numbers.m * t.numbers.n * t.numbers.k, target)
    found, places = [t.rows], [np.arange(len(t.mr))]
    for which, shares in ((again, in_cache), (t.order == BY_K, by_core), (short, by_none)):
        if len(which := np.nonzero(which)[0]):
            columns = t.rows[:, which]
            columns[8:10] = shares(t, which, target)
            found.append(columns)
            places.append(which)
    if len(found) == 1:
        return t.rows
    return np.concatenate(found, axis=1)[:, np.argsort(np.concatenate(places), kind="stable")]


def column_of(setting: int, c: Tiled, kept: float, epilogue: float) -> list[float]:
    """A table's column of one configuration."""
    how = HOW.index(c.a), HOW.index(c.b), ORDERS.index(c.order)
    return [float(setting), c.mr, c.nv, *how, c.kc, c.split, c.tm, c.tn, c.depth, kept, epilogue]


def table_of(kernel: Kernel, p: Problem, c: Tiled, target: Any) -> ConfigTable:
    """The table of one configuration."""
    s = operand_plan(kernel, p, c.windows, c.swap, c.rows, target)
    column = column_of(0, c, s.kept([(c.mr, c.nv)])[0], s.finished(c.mr, c.nv, c.split))
    return ConfigTable([s], np.array([column]).T, together([s.numbers]))


def sensible(tiles: Array, x: FeatureArrays, lanes: int) -> Array:
    """Which of WAYS is worth a prediction, for every tile; x: of their settings."""
    _, mr, nv, blocks, split, inline, _, _, depth = tiles.T
    major = _ORDER == BY_M
    one_row, one_column = np.ceil(x.m / mr) == 1, np.ceil(x.n * depth / (nv * lanes)) == 1
    whole = (x.k < 2 * traffic.BLOCK) | (x.windows > 0)  # K has no blocks
    ruled_out = (  # ways, and the tiles for which they are
        (_A == INLINE, inline == 0),
        # A buffer of what can be read in place pays where it spares conflicts, or is made once.
        (_A == BUFFER, (inline > 0) & ((x.windows > 0) | (x.m <= mr)) & (x.a_once == 0)),
        (_B != INLINE, x.row > 0),
        ((_A == BUFFER) | (_B == BUFFER), (split > 1) | (x.heads > 0)),
        (_A == BUFFER, x.a_copied > 0),
        (_B == BUFFER, x.b_copied > 0),
        # What would be packed again for every tile.
        (major & (_B == PANEL), ~one_column),
        (~major & (_A == PANEL), ~one_row & ~one_column & whole),
        (major, one_row),
        (major & (_A != PANEL), one_column),
        (_BLOCKED == 1, blocks == 0),
        ((_BLOCKED == 0) | (_B != PANEL), (blocks > 0) & (split > 1)),
        (_A != INLINE, depth > 1),
        (_ORDER == BY_K, (split > 1) | (x.b_turned > 0) | one_row | one_column),
    )
    ways, where = zip(*ruled_out, strict=True)
    return ~(np.array(where).T @ np.array(ways))


def _shares(t: ConfigTable, target: Any) -> tuple[Array, Array]:
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
    by_k = t.order == BY_K
    if not by_k.any():
        return tm, tn
    waiting_m, waiting_n = _waiting_parts(t, tn, target)
    return np.where(by_k, np.maximum(tm, waiting_m), tm), np.where(by_k, waiting_n, tn)


def _waiting_parts(t: ConfigTable, tn: Array, target: Any) -> tuple[Array, Array]:
    """Tasks along M and N, of N at least `tn`, of which each has sums that stay in the second level while they wait for
    blocks of K: parts of N, as long as rows of it are no shorter than half a page, as each part of M packs N anew."""
    x, cores = t.numbers, target.cores
    parts = np.ceil(x.m * x.columns * t.item / (target.l2 * target.overheads.held))
    most = np.maximum(tn, x.columns * t.item * 2 // PAGE)
    most = np.minimum(most, np.ceil(x.n / (t.nv * t.lanes)))
    along = np.minimum(np.maximum(tn, np.ceil(parts / cores) * cores), most)
    return np.minimum(np.ceil(x.m / t.mr), np.ceil(parts / along)), along


def by_core(t: ConfigTable, which: Array, target: Any) -> tuple[Array, Array]:
    """Tasks along M and N of configurations `which` with a part of N for each core, which reads the longest rows."""
    x = t.numbers
    tn = np.minimum(np.ceil(x.columns / (t.nv * t.lanes)), np.ceil(target.cores / x.batch))
    tm, tn = _waiting_parts(t, tn, target)
    return np.maximum(1, tm)[which], tn[which]


def by_none(t: ConfigTable, which: Array, target: Any) -> tuple[Array, Array]:
    """One task for configurations `which` that no other core need hear of."""
    return np.ones(len(which)), np.ones(len(which))


def in_cache(t: ConfigTable, which: Array, target: Any) -> tuple[Array, Array]:
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
