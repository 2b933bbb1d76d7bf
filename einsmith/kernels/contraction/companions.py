"""Choose which pairs of pieces are computed together (`blocked.Blocked`), and their configurations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any

import numpy as np

from einsmith.kernels.contraction import config, cost, epilogue, search
from einsmith.kernels.contraction.config import Config, Tiled
from einsmith.kernels.contraction.emission.blocked import Joint
from einsmith.kernels.contraction.features import OperandPlan, operand_plan, together
from einsmith.kernels.contraction.problem import Problem, with_companion
from einsmith.schedule.footprint import bytes_by_buffer
from einsmith.schedule.kernel import Kernel


@lru_cache(maxsize=1024)
def pairs(found: tuple[Problem, ...]) -> Joint:
    """Return pairs of pieces whose results interleave along the innermost axis; the one of more products is second."""
    out = []
    for i, p in enumerate(found):
        for j, q in enumerate(found):
            first, second = p.piece, q.piece
            if first.step[-1:] != (2,) or (first.extents, first.step) != (second.extents, second.step):
                continue
            if p.constant_pieces or q.constant_pieces or second.offset != (*first.offset[:-1], first.offset[-1] + 1):
                continue
            out.append((i, j) if prod(p.extents) <= prod(q.extents) else (j, i))
    return tuple(out)


@lru_cache(maxsize=1024)
def companion_of(kernel: Kernel, mate: Problem, p: Problem, c: Tiled, target: Any) -> Tiled | None:
    """Return the configuration of `companion` with the tiles and tasks of `p` in configuration `c`, or None."""
    if c.rows or c.kc or c.split > 1 or "panel" in (c.a, c.b) or [x for _, x in c.windows] not in ([], ["side"]):
        return None
    own = operand_plan(kernel, p, c.windows, c.swap, False, target)
    for fixes, i, swap in product(("side", "batch") if c.windows else ("",), (0, 1), (False, True)):
        other = replace(c, swap=swap, windows=((i, fixes),) if fixes else ())
        if config.with_halos(mate, other.windows) is None:
            continue
        s = operand_plan(kernel, mate, other.windows, swap, False, target)
        if (s.p.batch, s.m_side.axes, s.n_side.axes) != (own.p.batch, own.m_side.axes, own.n_side.axes):
            continue
        if c.a == "inline" and not s.reads_in_place(c.mr):
            continue
        copied = i if fixes == "side" else None
        if not (c.a == "buffer" and copied == int(swap) or c.b == "buffer" and copied == 1 - int(swap)):
            return other
    return None


_Two = tuple[Problem, Problem, Tiled, Tiled]
"""A companion, the piece whose tiles also compute the companion's sums, and the configurations of both."""


def _finish(kernel: Kernel, mate: Problem, p: Problem, c: Tiled, target: Any) -> tuple[float, epilogue.Form]:
    """Return the cycles a vector, and the form, of the epilogue of a tile of both sums."""
    s = operand_plan(kernel, p, c.windows, c.swap, False, target)
    return epilogue.of(s, with_companion(p, mate), c.mr, c.nv, 1)


@lru_cache(maxsize=1024)
def costs(kernel: Kernel, pairs: tuple[_Two, ...], target: Any) -> cost.Predicted:
    """Return the predicted costs of pairs computed together: for each pair the companion's sums, then the rest."""
    settings: list[OperandPlan] = []
    features, columns = [], []
    for mate, p, other, c in pairs:
        for q, d in ((mate, other), (p, c)):
            s = operand_plan(kernel, q, d.windows, d.swap, d.rows, target)
            features.append(s.without_results() if q is mate else s.numbers)
            after = 0.0 if q is mate else _finish(kernel, mate, p, c, target)[0]
            columns.append(search.column_of(len(settings), d, s.kept([(d.mr, d.nv)])[0], after))
            settings.append(s)
    return cost.predict(cost.ConfigTable(settings, np.array(columns).T, together(features)), target)


def line_refetch_seconds(kernel: Kernel, p: Problem, target: Any) -> float:
    """Return the seconds of moving one piece's result lines once more, where the pieces of a pair run separately."""
    item = sum(x.dtype.itemsize for x in epilogue.results(kernel, p).buffers)
    moved = 2 * 2 * prod(p.piece.extents) * item  # both pieces' results, read and written
    return target.overheads.parted * target.seconds_for_bytes(moved, sum(bytes_by_buffer(kernel)), target.cores)


def join_companions(
    kernel: Kernel, found: tuple[Problem, ...], configs: Mapping[Problem, Config], target: Any
) -> tuple[dict[Problem, Tiled], Joint]:
    """Return the configurations of companions that are computed with another piece, and the numbers of these pairs.

    A pair is joined where a configuration for the companion exists, and where both sums are finished from registers
    (the form "turned") or the epilogue is short. `configs` holds the configuration of each second piece of a pair.
    """
    out, joint = {}, []
    for first, second in pairs(found):
        mate, p = found[first], found[second]
        c = configs[p]
        other = companion_of(kernel, mate, p, c, target) if isinstance(c, Tiled) else None
        if other is None or not isinstance(c, Tiled):
            continue
        short = epilogue.results(kernel, with_companion(p, mate)).size <= epilogue.REGISTER_EPILOGUE
        if short or _finish(kernel, mate, p, c, target)[1] == "turned":
            out[mate] = other
            joint.append((first, second))
    return out, tuple(joint)
