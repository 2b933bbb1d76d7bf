"""Choose which pairs of pieces are computed together (`blocked.Blocked`), and their configurations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any

from einsmith.kernels.contraction import config, contraction_cost, epilogue, table
from einsmith.kernels.contraction.config import Config, Tiled
from einsmith.kernels.contraction.emission.blocked import CompanionPairs
from einsmith.kernels.contraction.features import operand_plan, stack_features
from einsmith.schedule.contraction_problem import Problem, with_companion
from einsmith.schedule.kernel import Kernel


@lru_cache(maxsize=1024)
def find_pairs(pieces: tuple[Problem, ...]) -> CompanionPairs:
    """Return pairs of pieces whose results interleave along the innermost axis; the one of more products is second."""
    pairs = []
    for i, p in enumerate(pieces):
        for j, q in enumerate(pieces):
            first, second = p.piece, q.piece
            if first.step[-1:] != (2,) or (first.extents, first.step) != (second.extents, second.step):
                continue
            if p.constant_pieces or q.constant_pieces or second.offset != (*first.offset[:-1], first.offset[-1] + 1):
                continue
            pairs.append((i, j) if prod(p.extents) <= prod(q.extents) else (j, i))
    return tuple(pairs)


def companion_of(kernel: Kernel, companion: Problem, p: Problem, c: Tiled, target: Any) -> Tiled | None:
    """Return the configuration of `companion` with the tiles and tasks of `p` in configuration `c`, or None."""
    if (
        c.words is not None
        or c.rows
        or c.kc
        or c.split > 1
        or "panel" in (c.a, c.b)
        or [x for _, x in c.windows] not in ([], ["side"])
    ):
        return None
    plan = operand_plan(kernel, p, c.windows, c.swap, False, target)
    for fixes, i, swap in product(("side", "batch") if c.windows else ("",), (0, 1), (False, True)):
        candidate = replace(c, swap=swap, windows=((i, fixes),) if fixes else ())
        if config.with_halos(companion, candidate.windows) is None:
            continue
        companion_plan = operand_plan(kernel, companion, candidate.windows, swap, False, target)
        if (companion_plan.p.batch, companion_plan.m_side.axes, companion_plan.n_side.axes) != (
            plan.p.batch,
            plan.m_side.axes,
            plan.n_side.axes,
        ):
            continue
        if c.a == "inline" and not companion_plan.reads_in_place(c.mr):
            continue
        halo_operand = i if fixes == "side" else None
        if not (c.a == "buffer" and halo_operand == int(swap) or c.b == "buffer" and halo_operand == 1 - int(swap)):
            return candidate
    return None


_PairConfigs = tuple[Problem, Problem, Tiled, Tiled]
"""A companion, the piece whose tiles also compute the companion's sums, and the configurations of both."""


def _price_epilogue(
    kernel: Kernel, companion: Problem, p: Problem, c: Tiled, target: Any
) -> tuple[float, epilogue.Form]:
    """Return the cycles a vector, and the form, of the epilogue of a tile of both sums."""
    s = operand_plan(kernel, p, c.windows, c.swap, False, target)
    return epilogue.choose_form(s, with_companion(p, companion), c.mr, c.nv, 1)


def predict_pairs(kernel: Kernel, pairs: tuple[_PairConfigs, ...], target: Any) -> contraction_cost.Predicted:
    """Return the predicted costs of pairs computed together: for each pair the companion's sums, then the rest."""
    pieces = [x for companion, p, other, c in pairs for x in ((companion, other), (p, c))]
    settings = [operand_plan(kernel, q, d.windows, d.swap, d.rows, target) for q, d in pieces]
    features = [s.numbers if n % 2 else s.without_results() for n, s in enumerate(settings)]
    columns = table.columns_of(settings, [(n, d) for n, (_, d) in enumerate(pieces)])
    out = contraction_cost.ConfigTable(settings, columns, stack_features(features))
    out.epilogue_cycles[0::2] = 0.0  # a view of the table's row
    out.epilogue_cycles[1::2] = [_price_epilogue(kernel, first, p, c, target)[0] for first, p, _, c in pairs]
    return contraction_cost.predict(out, target)


def join_companions(
    kernel: Kernel, pieces: tuple[Problem, ...], configs: Mapping[Problem, Config], target: Any
) -> tuple[dict[Problem, Tiled], CompanionPairs]:
    """Return the configurations of companions that are computed with another piece, and the numbers of these pairs.

    A pair is joined if the companion has a configuration, and if the epilogue takes both sums from registers (the
    transposed form) or is short. `configs` holds the configuration of each second piece of a pair.
    """
    out, joined = {}, []
    for first, second in find_pairs(pieces):
        companion, p = pieces[first], pieces[second]
        c = configs[p]
        config_of_companion = companion_of(kernel, companion, p, c, target) if isinstance(c, Tiled) else None
        if config_of_companion is None or not isinstance(c, Tiled):
            continue
        is_short = epilogue.results(kernel, with_companion(p, companion)).size <= epilogue.MAX_REGISTER_EPILOGUE
        if is_short or _price_epilogue(kernel, companion, p, c, target)[1] == "turned":
            out[companion] = config_of_companion
            joined.append((first, second))
    return out, tuple(joined)
