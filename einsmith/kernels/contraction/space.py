"""List every legal configuration of a contraction: the values of its genes, and which of them go together.

`search` prices only those that may be fastest by prediction; a search by measurement may go anywhere in this space.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import compress
from math import ceil, prod
from typing import Any

from einsmith.codegen.loopnest.dots import TILE_ROWS
from einsmith.kernels.contraction import config, direct_boxes, epilogue, k_vectorization, search, table
from einsmith.kernels.contraction.config import Config, Direct, Tiled
from einsmith.kernels.contraction.contraction_cost import HOW, ORDERS
from einsmith.kernels.contraction.features import OperandPlan, operand_plan
from einsmith.kernels.contraction.sums import sum_side
from einsmith.kernels.contraction.traffic import SWEEP_POINTS
from einsmith.kernels.contraction.words import in_words, word_axes
from einsmith.kernels.genes import FORM, Space, add_values, space_of
from einsmith.schedule.contraction_problem import Problem
from einsmith.schedule.kernel import Kernel

MAX_TILE_ROWS, MAX_TILE_VECTORS = 28, 8
"""Most rows and vectors of a tile of vector registers; the largest register files hold no more."""
MIN_BLOCK_POINTS = 64
"""Fewest points of K in a block."""
MAX_TASKS = 64
"""Most tasks along a side: several for each core."""


def piece_space(kernel: Kernel, p: Problem, target: Any) -> Space:
    """Return the genes of a piece's configuration, in either form."""
    k, lanes = p.count(p.k), target.lanes(p.dtype.itemsize)
    parts = min(k, max(4 * target.cores, ceil(k / 256)))
    unit = config.unit_of_k(p, lanes)
    lengths = (unit * ceil(k / n / unit) for n in range(2, max(2, k // MIN_BLOCK_POINTS) + 1))
    direct = direct_boxes.configs(kernel, p, target)
    tiled: Space = {
        FORM: ("Tiled", *(["Direct"] if direct else [])),
        "swap": (False, True),
        "mr": (*range(1, MAX_TILE_ROWS + 1), *(x for x in config.TILE_SIZES if target.tiles and x > MAX_TILE_ROWS)),
        "nv": tuple(range(1, MAX_TILE_VECTORS + 1)),
        "a": tuple(HOW),
        "b": tuple(HOW),
        "order": ORDERS,
        "kc": tuple(dict.fromkeys((0, SWEEP_POINTS, *lengths))),
        "split": tuple(range(1, parts + 1)),
        "tm": tuple(range(1, MAX_TASKS + 1)),
        "tn": tuple(range(1, MAX_TASKS + 1)),
        "windows": tuple(search.halo_copies_of(p)),
        "rows": (False, True),
        "depth": (1, 2, 4),
        "words": (None, *word_axes(kernel, p, target)),
        "tiles": (False, True) if target.tiles else (False,),
    }
    add_values(tiled, space_of(direct))
    return tiled


def explain_illegal(kernel: Kernel, p: Problem, c: Config, target: Any) -> str:
    """Return the reason why a configuration of a piece cannot be lowered; empty where it can be."""
    if kernel.sums and (isinstance(c, Direct) or c.split > 1 or c.depth > 1):
        return "the epilogue's sums need tiles of whole sums over K"
    return (_reject_direct if isinstance(c, Direct) else _reject_tiled)(kernel, p, c, target)  # type: ignore[arg-type]


def _reject_direct(kernel: Kernel, p: Problem, c: Direct, target: Any) -> str:
    """Return the reason why a configuration of the direct form is illegal, or an empty string."""
    known = direct_boxes.configs(kernel, p, target)
    if all(replace(c, tasks=1, parts=1, split=1) != replace(d, tasks=1, parts=1, split=1) for d in known):
        return "the direct form has no such box for this kernel"
    if c.split != 1 and not (c.vector in p.k and c.parts == 1 and 1 <= c.split <= p.count(c.k_outer)):
        return "split needs lanes along K, parts=1 and at most as many parts as the outer axes of K have points"
    if not 1 <= c.parts <= max((direct_boxes.tiles_along(p, c, a) for a in direct_boxes.inner_axes(p, c)), default=1):
        return "there are more parts than tiles"
    points = prod(p.extents[a] for a in c.outer)
    return "" if 1 <= c.tasks <= max(1, points) else f"{points} points of the outer axes are fewer than the tasks"


def _reject_tiled(kernel: Kernel, problem: Problem, c: Tiled, target: Any) -> str:
    """Return the reason why a configuration of the tiled form is illegal, or an empty string."""
    p = in_words(kernel, problem, c.words, target, c.tiles)
    if c.tiles and c.words is None:
        return "tile registers multiply words"
    if p is None:
        return f"points of the axis i{c.words} cannot be taken in words{' for tile registers' * c.tiles}"
    if p.in_tiles and (reason := config.reject_tiles(p, c)):
        return reason
    if config.with_halos(p, c.windows) is None:
        return "there are no such windows, or they gain nothing"
    if c.rows and not search.can_keep_to_rows(operand_plan(kernel, p, c.windows, c.swap, False, target)):
        return "vectors cannot be kept within rows"
    s = operand_plan(kernel, p, c.windows, c.swap, c.rows, target)
    if kernel.sums and sum_side(kernel, p, s.m_side.axes, s.n_side.axes) is None:
        return "tiles do not take the epilogue's sums with these sides"
    x, m, k, width = s.numbers, s.M, s.K, c.nv * s.lanes
    columns = ceil(s.N * c.depth / s.lanes)
    unit = TILE_ROWS if c.tiles else config.unit_of_k(p, s.lanes)
    conditions = (
        (
            not c.tiles and c.nv * (c.mr + (c.mr > 1)) > s.registers,
            f"a tile of {c.mr}x{c.nv} does not fit the registers",
        ),
        (
            c.nv // 2 >= max(1, columns) if c.tiles else c.mr > m or c.nv > columns,
            f"a tile of {c.mr}x{c.nv} is more than {m} rows or {columns} vectors",
        ),
        (c.tm > ceil(m / c.mr) or c.tn > ceil(columns / c.nv), "there are more tasks than tiles"),
        (c.split > (s.halo_k_blocks or k), "K is split into more parts than it has points or windows"),
        (c.depth > 1 and not _can_vectorize_k(c, s, columns), f"vectors of N cannot hold {c.depth} points of K"),
        (
            c.order == "k" and m * s.N / (c.tm * c.tn) * s.item > 4 * target.l2,
            "the partial sums of a task would exceed L2 by far",
        ),
        (c.kc >= k > 0 or c.kc < 0, f"a block of {c.kc} points is not smaller than K, which has {k}"),
        (
            c.kc and (c.windows or c.kc % unit and c.order != "k"),
            "K cannot be cut into such blocks with these windows and this order",
        ),
        (
            c.kc and epilogue.store_unit(kernel, p, s.n_side.axes, s.lanes) is not None,
            "K cannot be cut into blocks where results are written in whole cache lines",
        ),
        (x.a_parts and (m // x.a_parts % c.mr or c.tm != x.a_parts), "the tasks along M must be the blocks of windows"),
        (
            x.b_parts and (s.N // x.b_parts % width or c.tn != x.b_parts),
            "the tasks along N must be the blocks of windows",
        ),
    )
    return next((text for is_illegal, text in conditions if is_illegal), "") or _reject_ways(c, s)


def _can_vectorize_k(c: Tiled, s: OperandPlan, columns: int) -> bool:
    """Return whether vectors of N can hold `depth` points of K each."""
    part = ceil(s.K / c.split)
    if c.windows or c.b != "panel" or not s.numbers.b_transposed or columns > c.nv:
        return False
    return k_vectorization.can_vectorize_k(s, c.depth, (part, min(c.kc or part, part)))


def _reject_ways(c: Tiled, s: OperandPlan) -> str:
    """Return the reason why operands cannot reach the tile as configured; empty where they can."""
    if c.order == "k" and (c.a, c.b) == ("inline", "inline"):
        has_plain_tiles = c.depth == 1 and not c.rows and not c.windows
        return (
            ""
            if s.reads_in_place(c.mr) and not c.tiles and has_plain_tiles and 0 < c.kc <= SWEEP_POINTS
            else f"order k does not take blocks of {c.kc} points of K here"
        )
    sensible = table.mask_sensible(table.tabulate([s], [(0, c)]))[0]
    way = HOW.index(c.a), HOW.index(c.b), ORDERS.index(c.order), int(c.kc > 0)
    return (
        "" if way in compress(table.WAYS, sensible) else f"this combination of a, b, order and kc is not possible: {c}"
    )
