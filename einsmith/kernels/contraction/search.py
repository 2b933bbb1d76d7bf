"""Enumerate configurations of a contraction worth pricing: halo copies, register tiles, access to the operands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, product
from math import ceil, prod
from typing import Any, NamedTuple

import numpy as np

from einsmith.cost.memory_traffic import PAGE
from einsmith.cost.roofline import may_be_one_task
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
from einsmith.kernels.contraction.features import FeatureArrays, OperandPlan, operand_plan, together
from einsmith.kernels.contraction.halo import elements
from einsmith.kernels.contraction.k_vectorization import depth_of, fits
from einsmith.kernels.contraction.problem import Problem
from einsmith.kernels.contraction.traffic import Array
from einsmith.schedule.kernel import Kernel

MAX_K_PANEL = 1 << 19
"""Most bytes of a packed panel over K; a longer panel has K blocked. Half of a usual private L2."""

SHORT = 16
"""Fewest points of K in a block that is worth the loads and stores of a tile's sums around it."""
FEW = 64
"""Most rows of M that are too few to amortise the packing of N."""
MANY = 1 << 14
"""Fewest results (points of M times N) that give every core many tiles; with fewer, their even division counts."""

_WINDOWS: tuple[config.Halos, ...] = ((), *(((i, fixes),) for i in (0, 1) for fixes in ("all", "side", "k")))


@lru_cache(maxsize=1024)
def windows_of(p: Problem) -> list[config.Halos]:
    """Return the halo copies worth pricing; those that cut K into blocks of fewer than SHORT points are left out."""
    blocks = [(i, cut) for i in (0, 1) for cut in config.halo_blocks(p, i, config.HALO_BYTES)]
    cuts = [((i, cut),) for i, cut in blocks if cut.of_k or cut.place or not _by_points(p, i, cut.points)]

    def short(fixes: str | config.HaloBlock) -> bool:
        if isinstance(fixes, config.HaloBlock):
            return fixes.of_k and fixes.points * p.count(p.k[fixes.place + 1 :]) < SHORT
        return fixes == "k" and p.count(p.k[1:]) < SHORT

    return [x for x in (*_WINDOWS, *cuts) if not any(short(fixes) for _, fixes in x)]


def _by_points(p: Problem, i: int, points: int) -> bool:
    """Return whether the points of a block share no elements of the halo copy and each has enough rows.

    The block has `points` points of the outermost output axis of operand `i`. A copy of one point at a time is then as
    good.
    """
    side, outer = p.left if i == 0 else p.right, frozenset(p.batch)
    one, block = elements(p, i, outer | {side[0]}), elements(p, i, outer, (side[0], points))
    return p.count(side[1:]) >= FEW // 2 and one is not None and block == one * points


def _even(size: int, limit: int) -> int:
    """Return the tile extent, at most `limit`, that cuts `size` most evenly into the fewest tiles."""
    return ceil(size / ceil(size / limit))


def _rows_limit(nv: int, registers: int) -> int:
    """Return the most rows of a register tile of `nv` vectors."""
    return max(1, min((registers - nv) // nv, 28 if nv == 1 else 14))


_Sizes = tuple[tuple[int, int], ...]
"""Register tiles, as (rows, vectors)."""


@lru_cache(maxsize=4096)
def _tiles(m: int, n: int, lanes: int, registers: int, some: int = 0) -> _Sizes:
    """Return the register tiles mr x nv whose accumulators and one row's vectors fit the registers.

    With MANY results or more, only tiles of `some` vectors are returned, if there are any.
    """
    vectors = ceil(n / lanes)
    out: dict[tuple[int, int], None] = {}
    for nv in (1, 2, 3, 4, 6, 7, 8):
        if nv > max(1, vectors):
            break
        mr = _rows_limit(nv, registers)
        if nv >= 6 and m > mr:
            continue
        out[(_even(m, mr), nv if vectors >= nv else vectors)] = None
    preferred = tuple(x for x in out if x[1] == some) if m * n >= MANY else ()
    return preferred or tuple(out)


@lru_cache(maxsize=4096)
def _promising(sizes: _Sizes, m: int, n: int, k: int, lanes: int, target: Any) -> _Sizes:
    """Return the three to five tiles with the fewest cycles of multiply-adds and loads, or all for few results."""
    if m * n < MANY:  # how evenly few tiles are shared among the cores matters as much
        return sizes
    columns, w = ceil(n / lanes), target.overheads

    def step(mr: int, nv: int) -> float:
        return max(mr * nv / target.multiplies, (mr + nv) / 2, w.latency) if mr and nv else 0.0

    def cycles(size: tuple[int, int]) -> float:
        mr, nv = size
        (i, x), (j, y) = divmod(m, mr), divmod(columns, nv)
        steps = i * j * step(mr, nv) + i * step(mr, y) + j * step(x, nv) + step(x, y)
        return k * steps + ceil(m / mr) * ceil(columns / nv) * (w.tile + mr * nv * w.stored_sum + mr * w.tile_row)

    ranked = sorted((cycles(x), i, x) for i, x in enumerate(sizes))
    return tuple(x for i, (c, _, x) in enumerate(ranked) if i < 3 or (i < 5 and c <= 1.1 * ranked[0][0]))


class _Tile(NamedTuple):
    """A register tile of a setting.

    setting: index of the setting; mr, nv: rows and vectors
    blocks: points of K in a block, 0 for no blocks; split: parts of K; depth: points of K in the lanes of a vector
    inline: whether M can be read in place; kept: part of K that guards leave the tile
    epilogue: cycles a vector of what follows the sum
    """

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
    """Candidates: configurations of the tiled form in `table` (or None), with the number of each one's piece in
    `piece`; for each piece, configurations of the direct form in `others`."""

    table: ConfigTable | None
    piece: Array
    others: list[list[Config]]

    def __iter__(self) -> Iterator[Config]:
        if self.table is not None:
            yield from map(self.table.config, range(len(self.piece)))
        yield from chain(*self.others)


def candidates(kernel: Kernel, pieces: Sequence[Problem], target: Any, like: Config | None = None) -> Candidates:
    """Return the configurations of `pieces` that may be worth a prediction.

    `like` is the best configuration of the kernel's largest piece, if `pieces` are other pieces. They then use its halo
    copies, on whichever operand admits them, or none if neither does; where results of pieces are interleaved, they use
    as many vectors of N as `like`.
    """
    settings: list[OperandPlan] = []
    tiles: list[_Tile] = []
    sweeps: list[tuple[int, Tiled]] = []
    piece: list[int] = []
    others: list[list[Config]] = []
    tiled = like if isinstance(like, Tiled) else None
    for number, p in enumerate(pieces):
        direct = direct_boxes.configs(kernel, p, operand_memories(kernel), target)
        nv, before = 0 if tiled is None or max(p.piece.step) == 1 else tiled.nv, len(tiles)
        # A side of one point shares nothing within a tile: halo copies are left to the direct form.
        lone = bool(direct) and 1 in p.sizes[1:3] and p.sizes[0] > 1
        for windows in ((),) if lone else windows_of(p) if like is None else _halos_like(like):
            if config.with_halos(p, windows) is None or like is not None and not windows and len(tiles) > before:
                continue
            for rows, swap in product((False, True), (False, True)):
                s = operand_plan(kernel, p, windows, swap, False, target)
                if (
                    rows
                    and not rows_fit(s)
                    or not _can_save(s)
                    or like is not None
                    and not _has_same_halo_side(like, s)
                ):
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


def _halos_like(c: Config) -> list[config.Halos]:
    """Return the configuration's halo copies, the mirrored ones on the other operand, and none."""
    return list(dict.fromkeys((c.windows, tuple(sorted((1 - i, fixes) for i, fixes in c.windows)), ())))


def _has_same_halo_side(like: Config, s: WindowSetting) -> bool:
    """Return whether `s` reads the same side (M or N) from a halo copy as `like`; any side if results are few."""
    which = 0 if isinstance(like, Direct) else int(like.swap)
    same = (int(s.swap) in dict(s.windows)) == (which in dict(like.windows))
    return same or not s.windows or prod(s.original.sizes[1:3]) < MANY


def _can_save(s: WindowSetting) -> bool:
    """Return whether halo copies may save more than they cost.

    Copies on the N side save some of N's packing, which is amortised over the rows of M unless these are few; they save
    all of it where N is one stretch of the halo copy.
    """
    if not s.windows or int(s.swap) in dict(s.windows) or s.M <= FEW:
        return True
    return len(s.access(s.n_side).groups(s.n_side.axes)) == 1


def rows_fit(s: WindowSetting) -> bool:
    """Return whether vectors of N that keep to rows are worth pricing: rows of a halo copy close to whole vectors."""
    cut = any(isinstance(x, config.HaloBlock) and not x.of_k for _, x in s.windows)
    if cut or len(s.n_side.axes) < 2 or not s.n_side.operand.plain or (1 - int(s.swap)) not in dict(s.windows):
        return False
    last, row = s.p.extents[s.n_side.axes[-1]], config.padded_row(s.p, s.n_side, s.lanes)
    return last != row and last / row >= 0.6


def _sweeps(s: OperandPlan) -> list[Tiled]:
    """Return configurations that stream N, a few points of K at a time, over all of N or over a core's part of it.

    They apply to an N side larger than L2 and contiguous along N. Parts of N are used where their sums stay in L2. With
    at most 4 rows of M there are also parts of K, which a later launch adds.
    """
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
    """Return the promising register tiles of a setting, of `vectors` vectors where there are such tiles."""
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
    rows = epilogue.adjacent_rows(s.kernel, s.original, m_axes, n_axes, lanes)
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
        # An N side that is transposed is packed once, by the task that has that part of K. Sums are loaded for every
        # block of K, which needs a spare register; rows of M begin anew in each block, so that longer blocks may pay.
        free = target.tile_registers - 3
        spare = [(_even(m, free // nv - 1), nv) for nv in dict.fromkeys(nv for _, nv in sizes) if free // nv > 1]
        for mr, nv in _promising(tuple(spare), m, n, k, lanes, target):
            after, inline = s.finished(mr, nv, parts), s.reads_in_place(mr)
            lengths = [2 * blocks, blocks]
            if lengths[0] * nv * lanes * s.item > target.l1:  # beyond L1 anyway: a longer panel loses nothing
                point = (mr + nv * lanes) * s.item
                lengths.append(_longest(ceil(k / parts), point, unit))
            out += [_Tile(number, mr, nv, size, parts, inline, 1.0, after) for size in lengths]
        out += _deep(s, number, free, parts, 2 * blocks)
    return out


def _longest(k: int, point: int, unit: int) -> int:
    """Return the points of K in each of the fewest even blocks, multiples of `unit`, whose panels stay in the caches.

    `point` is the bytes of the panels for one point of K.
    """
    return ceil(ceil(k / unit) / ceil(k * point / MAX_K_PANEL)) * unit


def _deep(s: OperandPlan, number: int, registers: int, split: int, block: int) -> list[_Tile]:
    """Return tiles whose vectors hold all points of N at several points of K, where that leaves fewer lanes empty.

    The points of K must be adjacent in the rows of M, and no part or block of K may end between them
    (`k_vectorization.fits`).
    """
    depth = depth_of(s.N, s.lanes, s.item)
    nv = ceil(s.N * depth / s.lanes)
    if depth == 1 or registers < 2 * nv:
        return []
    mr = _even(s.M, registers // nv - 1)
    if not s.reads_in_place(mr):
        return []
    part = ceil(s.K / split)
    # A panel so narrow may be long: L2 holds it together with the source of the next one.
    blocks = dict.fromkeys((_longest(part, 2 * (mr + nv * s.lanes // depth) * s.item, s.lanes), block))
    if not fits(s, depth, (part, *blocks)):
        return []
    after = s.finished(mr, nv, split)
    return [_Tile(number, mr, nv, size, split, True, 1.0, after, depth) for size in blocks]


WAYS = [
    (a, b, order, blocked)
    for a, b, order, blocked in product(range(3), range(3), (BY_N, BY_M, BY_K), (0, 1))
    if order == BY_N or order == BY_M and not blocked or order == BY_K and blocked and b == PANEL != a
]
"""Ways to reach the operands: (M, N, outer loop, whether K is cut into blocks).

With blocks of K outermost, panels of N are packed once for all tiles of M, whose rows lie apart along K.
"""
_A, _B, _ORDER, _BLOCKED = np.array(WAYS).T


def _table(settings: list[OperandPlan], tiles: list[_Tile], sweeps: list[tuple[int, Tiled]]) -> ConfigTable | None:
    """Return a table of each tile with every sensible way to reach the operands, plus `sweeps`, or None."""
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
    x.rows[8:10] = _shares(x, target)  # tm and tn are views of these rows
    if features.has["a_parts"] or features.has["b_parts"]:
        cuts = np.array((x.numbers.a_parts, x.numbers.b_parts))
        x.rows[8:10] = np.where(cuts.any(axis=0), np.maximum(cuts, 1), x.rows[8:10])
    rows = _with_other_shares(x, target)
    if sweeps:
        more = [column_of(n, c, 1.0, settings[n].finished(c.mr, c.nv, 2)) for n, c in sweeps]
        rows = np.concatenate([rows, np.array(more).T], axis=1)
    return x if rows is x.rows else ConfigTable(settings, rows, features)


def _with_other_shares(t: ConfigTable, target: Any) -> Array:
    """Return the table's rows; after a configuration comes a copy with other tasks, where these may be better."""
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
    """Return one configuration as a column of a table."""
    how = HOW.index(c.a), HOW.index(c.b), ORDERS.index(c.order)
    return [float(setting), c.mr, c.nv, *how, c.kc, c.split, c.tm, c.tn, c.depth, kept, epilogue]


def table_of(kernel: Kernel, p: Problem, c: Tiled, target: Any) -> ConfigTable:
    """Return the table of a single configuration."""
    s = operand_plan(kernel, p, c.windows, c.swap, c.rows, target)
    column = column_of(0, c, s.kept([(c.mr, c.nv)])[0], s.finished(c.mr, c.nv, c.split))
    return ConfigTable([s], np.array([column]).T, together([s.numbers]))


def sensible(tiles: Array, x: FeatureArrays, lanes: int) -> Array:
    """Return a mask [tile, way] of the WAYS worth a prediction for every tile; `x`: features of each tile's setting."""
    _, mr, nv, blocks, split, inline, _, _, depth = tiles.T
    major = _ORDER == BY_M
    one_row, one_column = np.ceil(x.m / mr) == 1, np.ceil(x.n * depth / (nv * lanes)) == 1
    whole = (x.k < 2 * traffic.BLOCK) | (x.windows > 0)  # K has no blocks
    ruled_out = (  # conditions on ways, and on the tiles for which these ways are ruled out
        (_A == INLINE, inline == 0),
        # A buffer of an operand that could be read in place pays where it avoids conflicts, or is packed once.
        (_A == BUFFER, (inline > 0) & ((x.windows > 0) | (x.m <= mr)) & (x.a_once == 0)),
        (_B != INLINE, x.row > 0),
        ((_A == BUFFER) | (_B == BUFFER), (split > 1) | (x.heads > 0)),
        (_A == BUFFER, x.a_copied > 0),
        (_B == BUFFER, x.b_copied > 0),
        # Panels that would be packed again for every tile.
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
    """Return tasks along M and along N: enough for every core, cut on the side that is not packed twice."""
    x, cores = t.numbers, target.cores
    mt, nt = np.ceil(x.m / t.mr), np.ceil(x.n / (t.nv * t.lanes))
    others = x.batch * t.split
    want = np.ones_like(others)
    if cores > 1:
        want = np.maximum(1, np.ceil(4 * cores / others))
        unit = cores // np.gcd(others.astype(np.int64), cores)
        want += -want % unit  # an equal number for each core
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
    """Return tasks along M and N whose sums stay in L2 while they wait for the next block of K.

    There are at least `tn` tasks along N. N is divided as long as rows of a part are no shorter than half a page; only
    then is M divided, as each part of M packs N anew.
    """
    x, cores = t.numbers, target.cores
    parts = np.ceil(x.m * x.columns * t.item / (target.l2 * target.overheads.held))
    most = np.maximum(tn, x.columns * t.item * 2 // PAGE)
    most = np.minimum(most, np.ceil(x.n / (t.nv * t.lanes)))
    along = np.minimum(np.maximum(tn, np.ceil(parts / cores) * cores), most)
    return np.minimum(np.ceil(x.m / t.mr), np.ceil(parts / along)), along


def by_core(t: ConfigTable, which: Array, target: Any) -> tuple[Array, Array]:
    """Return tasks along M and N of configurations `which`, one part of N a core, which reads the longest rows."""
    x = t.numbers
    tn = np.minimum(np.ceil(x.columns / (t.nv * t.lanes)), np.ceil(target.cores / x.batch))
    tm, tn = _waiting_parts(t, tn, target)
    return np.maximum(1, tm)[which], tn[which]


def by_none(t: ConfigTable, which: Array, target: Any) -> tuple[Array, Array]:
    """Return one task for each of the configurations `which`, so that no other core need be woken."""
    return np.ones(len(which)), np.ones(len(which))


def in_cache(t: ConfigTable, which: Array, target: Any) -> tuple[Array, Array]:
    """Return tasks along M and N of configurations `which`, with more of them along the side of the inner loop.

    A task's range of the inner side then stays in L2 while the outer side is walked; where it does already, the tasks
    stay as they are.
    """
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
