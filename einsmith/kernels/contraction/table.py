"""Tabulate register tiles with every way to reach the operands, and divide them into tasks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, product
from typing import Any

import numpy as np

from einsmith.cost.memory_traffic import PAGE
from einsmith.cost.roofline import may_be_one_task
from einsmith.kernels.contraction import traffic
from einsmith.kernels.contraction.config import Tiled
from einsmith.kernels.contraction.contraction_cost import (
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
from einsmith.kernels.contraction.features import OperandPlan, operand_plan, stack_features
from einsmith.kernels.contraction.traffic import Array
from einsmith.kernels.contraction.words import in_words
from einsmith.schedule.contraction_problem import Problem
from einsmith.schedule.kernel import Kernel

WAYS = [
    (a, b, order, blocked)
    for a, b, order, blocked in product(range(3), range(3), (BY_N, BY_M, BY_K), (0, 1))
    if order == BY_N or order == BY_M and not blocked or order == BY_K and blocked and b == PANEL != a
]
"""Ways to reach the operands: (place of M's way in cost.HOW, that of N's, outer loop, 1 if K is cut into blocks).

With blocks of K outermost, panels of N are packed once for all tiles of M; the rows of M are then not contiguous.
"""


_A, _B, _ORDER, _BLOCKED = np.array(WAYS).T


def build_table(settings: Sequence[OperandPlan], configs: Sequence[tuple[int, Tiled]]) -> ConfigTable | None:
    """Return the table of configurations, each with the number of its setting; None if there are none.

    A configuration that streams rows of N (order "k") enters the table unchanged. Of any other configuration only the
    register tile is used: it is combined with every sensible way of reading the operands, and each combination gets
    its numbers of tasks.
    """
    if not configs:
        return None
    sweeps, tiles = ([x for x in configs if (x[1].order == "k") is is_sweep] for is_sweep in (True, False))
    t, target = tabulate(settings, tiles), settings[0].target
    features = t.features
    tile, way = np.nonzero(mask_sensible(t))
    rows = t.rows.take(tile, axis=1)
    rows[3:7] = _A[way], _B[way], _ORDER[way], rows[6] * _BLOCKED[way]
    x = ConfigTable(settings, rows, features)
    x.rows[8:10] = _choose_tasks(x, target)  # tm and tn are views of these rows
    if features.has["a_parts"] or features.has["b_parts"]:
        cuts = np.array((x.numbers.a_parts, x.numbers.b_parts))
        x.rows[8:10] = np.where(cuts.any(axis=0), np.maximum(cuts, 1), x.rows[8:10])
    rows = np.concatenate([_add_other_tasks(x, target), columns_of(settings, sweeps)], axis=1)
    return ConfigTable(settings, rows, features)


def _add_other_tasks(t: ConfigTable, target: Any) -> Array:
    """Return the rows of table `t`; a copy with other tasks follows each configuration for which they may be better."""
    inner = np.where(t.m_outer, t.b, t.a)
    walks_buffer = (inner == BUFFER) & (t.a != PANEL) & (t.b != PANEL) & (t.numbers.has_halos == 0)
    small = (t.tm * t.tn > 1) & (t.numbers.batch * t.split == 1)
    small &= may_be_one_task(t.numbers.m * t.numbers.n * t.numbers.k, target)
    small &= (t.numbers.a_parts == 0) & (t.numbers.b_parts == 0)  # a task holds one block of a halo copy that is cut
    rows, places = [t.rows], [np.arange(len(t.mr))]
    for applies, choose in (
        (walks_buffer, divide_for_cache),
        (t.order == BY_K, _divide_by_core),
        (small, lambda *_: 1),  # no other core need be woken
    ):
        if len(which := np.nonzero(applies)[0]):
            columns = t.rows[:, which]
            columns[8:10] = choose(t, which, target)
            rows.append(columns)
            places.append(which)
    if len(rows) == 1:
        return t.rows
    return np.concatenate(rows, axis=1)[:, np.argsort(np.concatenate(places), kind="stable")]


def columns_of(settings: Sequence[OperandPlan], configs: Sequence[tuple[int, Tiled]]) -> Array:
    """Return configurations, each with the number of its setting, as columns of a table."""
    columns = []
    for number, group in groupby(configs, key=lambda x: x[0]):
        s, every = settings[number], [c for _, c in group]
        for c, k_fraction in zip(every, s.k_fractions([(c.mr, c.nv) for c in every]), strict=True):
            how = HOW.index(c.a), HOW.index(c.b), ORDERS.index(c.order)
            fields = c.mr, c.nv, *how, c.kc, c.split, c.tm, c.tn, c.depth
            in_place = not s.p.in_tiles and s.reads_in_place(c.mr)
            columns.append([number, *fields, k_fraction, s.price_epilogue(c.mr, c.nv, c.split), in_place])
    return np.array(columns, np.float64).reshape(-1, 14).T


def tabulate(settings: Sequence[OperandPlan], configs: Sequence[tuple[int, Tiled]]) -> ConfigTable:
    """Return the table of configurations as they are."""
    return ConfigTable(settings, columns_of(settings, configs), stack_features([s.numbers for s in settings]))


def table_of(kernel: Kernel, p: Problem, c: Tiled, target: Any) -> ConfigTable:
    """Return the table of a single configuration."""
    problem = in_words(kernel, p, c.words, target, c.tiles)
    assert problem is not None
    return tabulate([operand_plan(kernel, problem, c.windows, c.swap, c.rows, target)], [(0, c)])


def mask_sensible(t: ConfigTable) -> Array:
    """Return a mask [tile, way] of the WAYS to reach the operands of a table's tiles that are worth a prediction."""
    x, split, depth = t.numbers, t.split, t.depth
    is_m_outer = _ORDER == BY_M
    one_row, one_column = t.mt == 1, t.nt == 1
    is_unblocked = (x.k < 2 * traffic.MAX_BLOCK_POINTS) | (x.has_halos > 0)  # K has no blocks
    # Pairs of a condition on ways and a condition on tiles: ways are ruled out for tiles if both conditions hold.
    ruled_out = (
        (_A == INLINE, t.in_place == 0),
        # A buffer of an operand that could be read in place pays where it avoids conflicts, or is packed once.
        (_A == BUFFER, (t.in_place > 0) & ((x.has_halos > 0) | (x.m <= t.mr)) & (x.a_invariant == 0)),
        (_B != INLINE, x.row > 0),
        ((_A == BUFFER) | (_B == BUFFER), (split > 1) | (x.halo_k_blocks > 0)),
        (_A == BUFFER, x.a_from_halo > 0),
        (_B == BUFFER, x.b_from_halo > 0),
        # Panels would be packed again for every tile.
        (is_m_outer & (_B == PANEL), ~one_column),
        (~is_m_outer & (_A == PANEL), ~one_row & ~one_column & is_unblocked),
        (is_m_outer, one_row),
        (is_m_outer & (_A != PANEL), one_column),
        (_BLOCKED == 1, t.kc == 0),
        ((_BLOCKED == 0) | (_B != PANEL), (t.kc > 0) & (split > 1)),
        (_A != INLINE, depth > 1),
        ((_B == INLINE) | (_ORDER == BY_K), x.in_tiles > 0),
        (_ORDER == BY_K, (split > 1) | (x.b_transposed > 0) | one_row | one_column),
    )
    of_ways, of_tiles = zip(*ruled_out, strict=True)
    return ~(np.array(of_tiles).T @ np.array(of_ways))


def _choose_tasks(t: ConfigTable, target: Any) -> tuple[Array, Array]:
    """Return the numbers of tasks along M and along N of each configuration, enough for every core.

    Tasks divide the side of the outer loop first: where they divide the inner side too, the outer side is packed once
    more in each.
    """
    x, cores = t.numbers, target.cores
    outer_tasks = x.batch * t.split  # tasks along the batch and K
    task_goal = np.ones_like(outer_tasks)
    if cores > 1:
        task_goal = np.maximum(1, np.ceil(4 * cores / outer_tasks))
        unit = cores // np.gcd(outer_tasks.astype(np.int64), cores)
        task_goal += -task_goal % unit  # an equal number for each core
    outer_tiles, inner_tiles = np.where(t.m_outer, t.mt, t.nt), np.where(t.m_outer, t.nt, t.mt)
    outer = np.minimum(outer_tiles, task_goal)
    inner = np.where(outer_tasks * outer < cores, np.minimum(inner_tiles, np.ceil(cores / (outer_tasks * outer))), 1)
    if cores > 1:  # even shares are worth packing the outer side once more in each
        is_packed = np.where(t.m_outer, t.a, t.b) == PANEL
        max_inner = np.minimum(np.where(is_packed, inner_tiles // 8, inner_tiles), np.ceil(task_goal / outer))
        inner = np.where(outer < task_goal, np.maximum(inner, max_inner), inner)
    tm, tn = np.where(t.m_outer, outer, inner), np.where(t.m_outer, inner, outer)
    by_k = t.order == BY_K
    if not by_k.any():
        return tm, tn
    waiting_m, waiting_n = _divide_waiting_sums(t, tn, target)
    return np.where(by_k, np.maximum(tm, waiting_m), tm), np.where(by_k, waiting_n, tn)


def _divide_waiting_sums(t: ConfigTable, tn: Array, target: Any) -> tuple[Array, Array]:
    """Return the numbers of tasks along M and N with which a task's sums stay in L2 until the next block of K.

    There are at least `tn` tasks along N. N is divided as long as the rows of a part have at least half a page. M is
    divided only where this is not enough, because each part of M packs N anew.
    """
    x, cores = t.numbers, target.cores
    parts = np.ceil(x.m * x.columns * t.item / (target.l2 * target.overheads.held))
    max_n_tasks = np.minimum(np.maximum(tn, x.columns * t.item * 2 // PAGE), t.nt)
    n_tasks = np.minimum(np.maximum(tn, np.ceil(parts / cores) * cores), max_n_tasks)
    return np.minimum(t.mt, np.ceil(parts / n_tasks)), n_tasks


def _divide_by_core(t: ConfigTable, which: Array, target: Any) -> tuple[Array, Array]:
    """Return the tasks along M and N of configurations `which`, with a part of N per core: its rows are the longest."""
    tn = np.minimum(t.nt, np.ceil(target.cores / t.numbers.batch))
    tm, tn = _divide_waiting_sums(t, tn, target)
    return np.maximum(1, tm)[which], tn[which]


def divide_for_cache(t: ConfigTable, which: Array, target: Any) -> tuple[Array, Array]:
    """Return the tasks along M and N of configurations `which`, with more tasks along the side of the inner loop.

    A task's part of the inner side then stays in L2 while the task goes through the outer side. Where it does already,
    the tasks stay as they are.
    """
    m_outer, tm, tn, mt, nt = (v[which] for v in (t.m_outer, t.tm, t.tn, t.mt, t.nt))
    parts = np.ceil(inner_bytes(t, 1.0, 1.0)[which] / (target.l2 * target.overheads.held))
    outer = np.maximum(1, np.ceil(4 * target.cores / ((t.numbers.batch * t.split)[which] * parts)))
    return (
        np.where(m_outer, np.minimum(tm, outer), np.maximum(tm, np.minimum(mt, parts))),
        np.where(m_outer, np.maximum(tn, np.minimum(nt, parts)), np.minimum(tn, outer)),
    )
