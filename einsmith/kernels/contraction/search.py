"""Enumerate the configurations of a contraction that are worth pricing.

A configuration combines halo copies, a register tile, ways to reach the operands, and tasks along M and N.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, product
from math import ceil, prod
from typing import Any

import numpy as np

from einsmith.codegen.loopnest.dots import TILE_ROWS
from einsmith.cost.memory_traffic import PAGE
from einsmith.kernels.contraction import config, direct_boxes, epilogue, traffic
from einsmith.kernels.contraction.config import Config, Direct, HaloSetting, Tiled
from einsmith.kernels.contraction.contraction_cost import ConfigTable
from einsmith.kernels.contraction.features import OperandPlan, operand_plan
from einsmith.kernels.contraction.halo import count_elements
from einsmith.kernels.contraction.k_vectorization import can_vectorize_k, choose_depth
from einsmith.kernels.contraction.row_offsets import regular_rows
from einsmith.kernels.contraction.sums import sum_side
from einsmith.kernels.contraction.table import build_table
from einsmith.kernels.contraction.traffic import Array
from einsmith.kernels.contraction.words import in_words, word_axes
from einsmith.kernels.emit.loops import is_limited
from einsmith.schedule.contraction_problem import Problem, needs_exact_guards, problems
from einsmith.schedule.kernel import Kernel, has_row_limit

MAX_K_PANEL = 1 << 19
"""Most bytes of a packed panel over K; a longer panel has K blocked. Half of a usual private L2."""
MIN_BLOCK_POINTS = 16
"""Fewest points of K in a block of a halo copy; every block loads and stores the sums of its tiles once."""
MAX_UNAMORTISED_ROWS = 64
"""Most rows (points of M) over which the packing of N is not amortised."""
MIN_BALANCED_RESULTS = 1 << 14
"""Fewest results (points of M times points of N) that give every core many tiles, so that only the speed of a tile
counts; with fewer results, their even division among the cores counts as well."""

WHOLE_HALOS: tuple[config.Halos, ...] = ((), *(((i, fixes),) for i in (0, 1) for fixes in ("all", "side", "k")))


@lru_cache(maxsize=1024)
def halo_copies_of(p: Problem) -> list[config.Halos]:
    """Return the halo copies worth pricing, without the ones that cut K into blocks of fewer than MIN_BLOCK_POINTS."""
    blocks = [(i, cut) for i in (0, 1) for cut in config.halo_blocks(p, i, config.MAX_HALO_BYTES)]
    cuts = [((i, cut),) for i, cut in blocks if cut.of_k or cut.place or not _can_copy_by_points(p, i, cut.points)]

    def is_short(fixes: str | config.HaloBlock) -> bool:
        if isinstance(fixes, config.HaloBlock):
            return fixes.of_k and fixes.points * p.count(p.k[fixes.place + 1 :]) < MIN_BLOCK_POINTS
        return fixes == "k" and p.count(p.k[1:]) < MIN_BLOCK_POINTS

    return [x for x in (*WHOLE_HALOS, *cuts) if not any(is_short(fixes) for _, fixes in x)]


def _can_copy_by_points(p: Problem, i: int, points: int) -> bool:
    """Return whether halo copies of one point at a time are as good as copies of blocks of `points` points.

    The points belong to the outermost output axis of operand `i`. One at a time is as good if the points of a block
    share no elements of the halo copy, and if each point has enough rows.
    """
    side, outer = p.left if i == 0 else p.right, frozenset(p.batch)
    of_point, of_block = count_elements(p, i, outer | {side[0]}), count_elements(p, i, outer, (side[0], points))
    return p.count(side[1:]) >= MAX_UNAMORTISED_ROWS // 2 and of_point is not None and of_block == of_point * points


def _divide_evenly(size: int, limit: int) -> int:
    """Return the tile extent, at most `limit`, with which the fewest tiles cover `size` points most evenly."""
    return ceil(size / ceil(size / limit))


def _limit_rows(nv: int, registers: int) -> int:
    """Return the most rows of a register tile of `nv` vectors that `registers` vector registers hold."""
    return max(1, min((registers - nv) // nv, 28 if nv == 1 else 14))


_Sizes = tuple[tuple[int, int], ...]
"""Register tiles, as (rows, vectors)."""


@lru_cache(maxsize=4096)
def _enumerate_tiles(m: int, n: int, lanes: int, registers: int, preferred_nv: int = 0) -> _Sizes:
    """Return the register tiles mr x nv whose accumulators fit the registers together with nv vectors of N.

    The contraction has m x n results, a vector `lanes` elements. With MIN_BALANCED_RESULTS or more, only tiles of
    `preferred_nv` vectors are returned, if there are any.
    """
    columns = ceil(n / lanes)
    out: dict[tuple[int, int], None] = {}
    for nv in (1, 2, 3, 4, 6, 7, 8):
        if nv > max(1, columns):
            break
        mr = _limit_rows(nv, registers)
        if nv >= 6 and m > mr:
            continue
        out[(_divide_evenly(m, mr), nv if columns >= nv else columns)] = None
    preferred = tuple(x for x in out if x[1] == preferred_nv) if m * n >= MIN_BALANCED_RESULTS else ()
    return preferred or tuple(out)


@lru_cache(maxsize=4096)
def _select_promising(sizes: _Sizes, m: int, n: int, k: int, lanes: int, multiplies: float, target: Any) -> _Sizes:
    """Return the three to five tiles of a contraction of m x n x k points with the fewest cycles; all for few results.

    The estimated cycles are those of multiply-adds, of loads from L1, and of the begin and end of each tile.
    """
    if m * n < MIN_BALANCED_RESULTS:  # how evenly few tiles are shared among the cores matters as much
        return sizes
    columns, w = ceil(n / lanes), target.overheads

    def step(mr: int, nv: int) -> float:
        """Return the cycles of one point of K in a tile."""
        return max(mr * nv / multiplies, (mr + nv) / 2, w.latency) if mr and nv else 0.0

    def cycles(size: tuple[int, int]) -> float:
        """Return the cycles of all tiles, whole ones and the smaller ones at the end of M and N."""
        mr, nv = size
        steps = traffic.sum_over_tiles(m, columns, mr, nv, step)
        return k * steps + ceil(m / mr) * ceil(columns / nv) * (w.tile + mr * nv * w.stored_sum + mr * w.tile_row)

    ranked = sorted((cycles(x), i, x) for i, x in enumerate(sizes))
    return tuple(x for i, (c, _, x) in enumerate(ranked) if i < 3 or (i < 5 and c <= 1.1 * ranked[0][0]))


@dataclass
class Candidates:
    """The configurations of some pieces of a contraction that are worth pricing.

    table: configurations of the tiled form; None if there are none
    piece: index of each table entry's piece
    others: for each piece, configurations of the direct form
    """

    table: ConfigTable | None
    piece: Array
    others: list[list[Config]]

    def __iter__(self) -> Iterator[Config]:
        if self.table is not None:
            yield from map(self.table.config, range(len(self.piece)))
        yield from chain(*self.others)


def candidates(kernel: Kernel, pieces: Sequence[Problem], target: Any, like: Config | None = None) -> Candidates:
    """Return the configurations of `pieces` that may be worth a prediction.

    `like`, if given, is the best configuration of the kernel's largest piece, and `pieces` are other pieces. Their
    configurations are then restricted to the halo copies of `like`, on whichever operand admits them, or to none if
    neither operand does. Where the results of pieces are interleaved, they use as many vectors of N as `like`.
    """
    settings: list[OperandPlan] = []
    tiles: list[tuple[int, Tiled]] = []
    piece_of_setting: list[int] = []
    direct_configs: list[list[Config]] = []
    tiled = like if isinstance(like, Tiled) else None
    for p in pieces:
        boxes = [] if kernel.sums else direct_boxes.configs(kernel, p, target)
        direct_configs.append([*boxes])
    alone = len(problems(kernel.root) or ()) == 1
    for number, p in ((n, q) for n, piece in enumerate(pieces) for q in _by_words(kernel, piece, target, alone)):
        direct = direct_configs[number] if p.dot is None else []
        preferred_nv, first_tile = 0 if tiled is None or max(p.piece.step) == 1 else tiled.nv, len(tiles)
        # A side of one point shares nothing within a tile: halo copies are left to the direct form.
        has_lone_side = bool(direct) and 1 in p.sizes[1:3] and p.sizes[0] > 1
        copies = halo_copies_of(p) if like is None else _adapt_halos(like)
        for windows in ((),) if has_lone_side or p.in_tiles else copies:
            copied = config.with_halos(p, windows)
            if copied is None or like is not None and not windows and len(tiles) > first_tile:
                continue
            if has_row_limit(kernel) and windows and not is_limited(copied.problem.batch):
                continue  # the copies hold all rows
            for keeps_rows, swap in product((False, True), (False, True)):
                s = operand_plan(kernel, p, windows, swap, False, target)
                if kernel.sums and sum_side(kernel, s.original, s.m_side.axes, s.n_side.axes) is None:
                    continue
                if (
                    keeps_rows
                    and (p.in_tiles or not can_keep_to_rows(s))
                    or not _can_save(s)
                    or like is not None
                    and not _has_same_halo_side(like, s)
                ):
                    continue
                s = operand_plan(kernel, p, windows, swap, keeps_rows, target)
                chosen = _choose_matrix_tiles(s) if p.in_tiles else _choose_tiles(s, preferred_nv)
                if not windows and not kernel.sums and not p.in_tiles:
                    chosen += _enumerate_sweeps(s)
                tiles += [(len(settings), c) for c in chosen]
                settings.append(s)
                piece_of_setting.append(number)
    table = build_table(settings, tiles)
    return Candidates(table, np.array(piece_of_setting)[[] if table is None else table.setting], direct_configs)


def _by_words(kernel: Kernel, p: Problem, target: Any, alone: bool) -> list[Problem]:
    """Return the problem by elements, and in words where the target has the instruction for them. alone: the problem
    is all of a kernel, which tile registers may compute."""
    ways = (False, True) if alone and target.tiles else (False,)
    problems = (in_words(kernel, p, axis, target, tiles) for axis in word_axes(kernel, p, target) for tiles in ways)
    return [p, *(q for q in problems if q is not None)]


def _adapt_halos(c: Config) -> list[config.Halos]:
    """Return the halo copies of configuration `c`, the same ones on the other operand, and no halo copies."""
    return list(dict.fromkeys((c.windows, tuple(sorted((1 - i, fixes) for i, fixes in c.windows)), ())))


def _has_same_halo_side(like: Config, s: HaloSetting) -> bool:
    """Return whether `s` reads the M side from a halo copy if and only if `like` does. True also if `s` has no halo
    copies, or if results are few."""
    m_operand = 0 if isinstance(like, Direct) else int(like.swap)
    is_same = (int(s.swap) in dict(s.windows)) == (m_operand in dict(like.windows))
    return is_same or not s.windows or prod(s.original.sizes[1:3]) < MIN_BALANCED_RESULTS


def _can_save(s: HaloSetting) -> bool:
    """Return whether the halo copies of a setting, if any, may save more than they cost.

    A copy of the M side always may. A copy of the N side alone saves part of the packing of N, which the rows of M
    amortise unless they are few; it saves all of the packing if N is contiguous in the halo copy.
    """
    if not s.windows or int(s.swap) in dict(s.windows) or s.M <= MAX_UNAMORTISED_ROWS:
        return True
    return len(s.access(s.n_side).groups(s.n_side.axes)) == 1


def can_keep_to_rows(s: HaloSetting) -> bool:
    """Return whether vectors of N that do not cross rows of a halo copy are worth pricing: rows nearly fill them."""
    is_cut = any(isinstance(x, config.HaloBlock) and not x.of_k for _, x in s.windows)
    if is_cut or len(s.n_side.axes) < 2 or not s.n_side.operand.plain or (1 - int(s.swap)) not in dict(s.windows):
        return False
    row, padded = s.p.extents[s.n_side.axes[-1]], config.padded_row(s.p, s.n_side, s.lanes)
    return row != padded and row / padded >= 0.6


def _enumerate_sweeps(s: OperandPlan) -> list[Tiled]:
    """Return configurations that read rows of N as streams, traffic.SWEEP_POINTS points of K at a time.

    They apply to an N side larger than L2 and contiguous along N. A task streams a part of N, if the sums of the part
    stay in L2; with at most 4 rows of M also all of N over a part of K, whose partial sums a later launch adds.
    """
    x, target, row_bytes = s.numbers, s.target, s.N * s.item
    is_streamed = s.n_side.operand.plain and not s.rows and x.b_side == s.item and x.b_step >= PAGE
    if not is_streamed or row_bytes * s.K <= target.l2 or s.K < 8 * target.cores:
        return []
    out = []
    sizes = _enumerate_tiles(s.M, s.N, s.lanes, s.registers)
    for mr, nv in (
        (mr, nv)
        for mr, nv in _select_promising(sizes, s.M, s.N, s.K, s.lanes, s.multiplies, target)
        if s.reads_in_place(mr)
    ):
        if s.M <= 4:
            split = 1 if target.cores == 1 else max(1, ceil(4 * target.cores / s.B))
            out.append(Tiled(s.swap, mr, nv, "inline", "inline", "k", traffic.SWEEP_POINTS, split))
        parts = max(1, min(target.cores, row_bytes // PAGE))
        if s.M * row_bytes <= parts * target.l2 * target.overheads.held:
            out.append(Tiled(s.swap, mr, nv, "inline", "inline", "k", traffic.SWEEP_POINTS, 1, 1, parts))
    return list(dict.fromkeys(out))


def _choose_tiles(s: OperandPlan, preferred_nv: int) -> list[Tiled]:
    """Return the promising register tiles of a setting, of `preferred_nv` vectors where there are such tiles."""
    p, target, x, lanes = s.p, s.target, s.numbers, s.lanes
    m, n, k, batch, m_axes, n_axes = s.M, s.N, s.K, s.B, s.m_side.axes, s.n_side.axes
    block, unit = 0, config.unit_of_k(p, lanes)
    in_lines = epilogue.store_unit(s.kernel, s.original, n_axes, lanes) is not None
    # With whole lines of results there are no blocks: sums would wait for blocks of K, then for lines.
    if k >= 2 * traffic.MAX_BLOCK_POINTS and not s.windows and not in_lines:
        block = traffic.choose_block_points(k, unit)
    sizes = [*_enumerate_tiles(m, n, lanes, s.registers, preferred_nv)]
    if s.m_side.operand.plain:
        for nv in {nv for _, nv in sizes}:
            regular = regular_rows(s.m_strides, _limit_rows(nv, s.registers))
            if regular >= 4 and (regular, nv) not in sizes:
                sizes.append((regular, nv))
        if x.a_l1_rows:  # tiles of fewer rows, of which L1 keeps a line each although the rows share cache sets
            fitting = [(_divide_evenly(m, int(x.a_l1_rows)), nv) for mr, nv in sizes if mr > x.a_l1_rows]
            sizes += [t for t in dict.fromkeys(fitting) if t not in sizes]
    promising = [*_select_promising(tuple(sizes), m, n, k, lanes, s.multiplies, target)]
    # Tiles whose rows of results fill whole vectors.
    stacked = epilogue.adjacent_rows(s.kernel, s.original, m_axes, n_axes, lanes)
    whole_stacks = [(mr - mr % stacked, nv) for mr, nv in promising if mr > stacked]
    promising += [t for t in dict.fromkeys(whole_stacks) if t not in promising]
    if x.a_parts or x.b_parts:  # tiles end where the blocks of a halo copy end
        promising = [
            (mr, nv)
            for mr, nv in promising
            if not (x.a_parts and m // x.a_parts % mr or x.b_parts and n // x.b_parts % (nv * lanes))
        ]
    out = []
    for mr, nv in promising:
        split, tiles = 1, batch * ceil(m / mr) * ceil(n / (nv * lanes))
        if s.kernel.sums:  # an epilogue that waits for parts of K takes no sums
            split = 1
        elif s.halo_k_blocks:
            split = min(s.halo_k_blocks, max(1, ceil(4 * target.cores / batch)))
        elif tiles < 2 * target.cores and k >= 512:
            split = min(ceil(k / 256), max(1, ceil(4 * target.cores / tiles)))
            # Panels over a task's part of K stay in the caches.
            split = max(split, ceil(k * (mr + nv * lanes) * s.item / MAX_K_PANEL))
        out.append(Tiled(mr=mr, nv=nv, kc=block if split == 1 else 0, split=split))
    parts_of_k = 1 if s.kernel.sums else ceil(4 * target.cores / batch)
    if block and parts_of_k > 1 and x.b_transposed and k >= 4 * parts_of_k * block:
        # An N side that is transposed is packed once, by the task that has that part of K. Sums are loaded for every
        # block of K, which needs a spare register; rows of M begin anew in each block, so that longer blocks may pay.
        registers = s.registers - 3
        widths = [nv for nv in dict.fromkeys(nv for _, nv in sizes) if registers // nv > 1]
        spare = [(_divide_evenly(m, registers // nv - 1), nv) for nv in widths]
        for mr, nv in _select_promising(tuple(spare), m, n, k, lanes, s.multiplies, target):
            lengths = [2 * block, block]
            if lengths[0] * nv * lanes * s.item > target.l1:  # beyond L1 anyway: a longer panel loses nothing
                point_bytes = (mr + nv * lanes) * s.item
                lengths.append(_fit_block_points(ceil(k / parts_of_k), point_bytes, unit))
            out += [Tiled(mr=mr, nv=nv, kc=points, split=parts_of_k) for points in lengths]
        out += _enumerate_deep_tiles(s, registers, parts_of_k, 2 * block)
    return out


def _choose_matrix_tiles(s: OperandPlan) -> list[Tiled]:
    """Return the tiles of a setting that tile registers compute: up to 2 x 2 of them at once."""
    if s.M < TILE_ROWS:
        return []
    mr, columns = config.TILE_SIZES[s.M > TILE_ROWS], ceil(s.N / s.lanes)
    in_lines = epilogue.store_unit(s.kernel, s.original, s.n_side.axes, s.lanes) is not None
    out = []
    for nv in (x for x in config.TILE_VECTORS if x == 1 or x // 2 < columns):
        point_bytes = (mr + nv * s.lanes) * s.item
        is_whole = s.K * point_bytes <= MAX_K_PANEL or needs_exact_guards(s.p) or in_lines
        blocks = 0 if is_whole else _fit_block_points(s.K, point_bytes, s.lanes)
        out.append(Tiled(mr=mr, nv=nv, kc=blocks if blocks < s.K else 0))
    return out


def _fit_block_points(k: int, point_bytes: int, unit: int) -> int:
    """Return the points in each of the fewest even blocks of `k` points of K whose panels stay in the caches.

    Blocks are multiples of `unit` points; panels of M and N have `point_bytes` bytes for each point of K.
    """
    return ceil(ceil(k / unit) / ceil(k * point_bytes / MAX_K_PANEL)) * unit


def _enumerate_deep_tiles(s: OperandPlan, registers: int, split: int, block: int) -> list[Tiled]:
    """Return tiles of a setting whose vectors hold all points of N at several points of K.

    There are such tiles only where they leave fewer lanes empty. The points of K must be adjacent in the rows of M, and
    no part or block of K may end between them (`k_vectorization.can_vectorize_k`). Tiles use at most `registers` vector
    registers; K is divided into `split` parts, in blocks of `block` points or longer ones.
    """
    depth = choose_depth(s.N, s.lanes, s.item)
    nv = ceil(s.N * depth / s.lanes)
    if depth == 1 or registers < 2 * nv:
        return []
    mr = _divide_evenly(s.M, registers // nv - 1)
    if not s.reads_in_place(mr):
        return []
    part = ceil(s.K / split)
    # A panel so narrow may be long: L2 holds it together with the source of the next one.
    blocks = dict.fromkeys((_fit_block_points(part, 2 * (mr + nv * s.lanes // depth) * s.item, s.lanes), block))
    if not can_vectorize_k(s, depth, (part, *blocks)):
        return []
    return [Tiled(mr=mr, nv=nv, kc=points, split=split, depth=depth) for points in blocks]
