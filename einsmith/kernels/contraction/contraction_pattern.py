"""Match, configure, price and lower contractions; the package's docstring walks through its modules."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple, cast

import numpy as np

from einsmith.cost.roofline import launch_overhead
from einsmith.kernels.contraction import companions, contraction_cost, k_bounds, search, sums, table
from einsmith.kernels.contraction.config import Config, Direct, Tiled
from einsmith.kernels.contraction.direct_cost import DirectCost
from einsmith.kernels.contraction.emission import launches
from einsmith.kernels.contraction.emission.blocked import CompanionPairs
from einsmith.kernels.contraction.space import explain_illegal, piece_space
from einsmith.kernels.genes import Space
from einsmith.kernels.pattern import Cost, Lowered, Pattern
from einsmith.schedule.contraction_problem import Problem, problems
from einsmith.schedule.footprint import bytes_by_buffer
from einsmith.schedule.kernel import Kernel

MIN_WIDE_POINTS = 32
"""Fewest points of K, or of the larger side, for which a reduction is not tried where both sides have several points.

A reduction reads operands for every product. Measured on 116 kernels of random shapes with 2 to 31 points there: it
took 2.3 times as long in the geometric mean, and was faster on 6, by 22 % at most.
"""
MAX_CONFIGS = 12
"""Most configurations of a piece that are worth a measurement."""


@dataclass(frozen=True)
class Configs:
    """One configuration for each piece, and the pairs of pieces that are computed together."""

    pieces: tuple[Config, ...]
    joint: CompanionPairs = ()

    def __str__(self) -> str:
        every = "; ".join(str(c) for c in dict.fromkeys(self.pieces))
        return every + "".join(f", {first} with {second}" for first, second in self.joint)


class Contraction(Pattern):
    """The pattern of sums of products of two groups of factors; see the package."""

    name = "contraction"

    def match(self, kernel: Kernel) -> bool:
        """Return whether every piece of the root is a sum of products of two groups of factors."""
        return problems(kernel.root) is not None

    def takes_sums(self, kernel: Kernel, target: Any) -> bool:
        return sums.can_take(kernel, _pieces(kernel))

    def best(self, kernel: Kernel, target: Any, limit: float = float("inf")) -> Configs | None:
        """Return the first of `configs`, computed without pricing configurations that cannot be it.

        Returns None where the rank of the largest piece alone reaches `limit`.
        """
        pieces = _pieces(kernel)
        first = _largest(pieces)
        (((rank, config),),) = _rank(kernel, (first,), target)
        if rank >= limit:
            return None
        if len(pieces) == 1:
            return Configs((config,))
        choices = {first: config}

        def add(problems_to_rank: Iterable[Problem]) -> None:
            unranked = tuple(p for p in problems_to_rank if p not in choices)
            ranked = _rank(kernel, unranked, target, config)
            choices.update((p, c) for p, ((_, c),) in zip(unranked, ranked, strict=True))

        add(pieces[second] for _, second in companions.find_pairs(pieces))
        companion_configs, joint = companions.join_companions(kernel, pieces, choices, target)
        choices.update(companion_configs)
        add(pieces)
        return Configs(tuple(choices[p] for p in pieces), joint)

    def dominates(self, kernel: Kernel, config: Configs) -> Sequence[str]:
        """Return ("reduction",) where that pattern cannot win: it multiplies as often and rereads what tiles keep."""
        pieces = _pieces(kernel)
        is_wide = all(
            min(m, n) > 1 and min(k, max(m, n)) >= MIN_WIDE_POINTS for _, m, n, k in (p.sizes for p in pieces)
        )
        return ("reduction",) * is_wide

    def bound(self, kernel: Kernel, target: Any) -> float:
        """Return a lower bound of the rank of every configuration.

        Every piece moves all buffers once, and multiplies, at the peak, the part of K that guards leave.
        """
        pieces = _pieces(kernel)
        size = sum(bytes_by_buffer(kernel))
        memory = len(pieces) * target.seconds_for_bytes(size, size, target.cores)
        each = [prod(p.extents) * p.dtype.itemsize / 4 / target.fma_per_second / target.cores for p in pieces]
        if sum(each) <= memory:
            return memory + launch_overhead(1, target)
        arithmetic = sum(x * k_bounds.least_k_fraction(p) for x, p in zip(each, pieces, strict=True))
        return Cost(arithmetic, memory, 0.0, launch_overhead(1, target)).rank

    def configs(self, kernel: Kernel, target: Any) -> list[Configs]:
        """Return the configurations worth a measurement, the cheapest by prediction first."""
        pieces = _pieces(kernel)
        first = _largest(pieces)
        (main,) = _rank(kernel, (first,), target, most=MAX_CONFIGS)
        if len(pieces) == 1:
            return [Configs((c,)) for _, c in main]
        like = main[0][1]
        ranked = [main if p is first else _rank(kernel, (p,), target, like, MAX_CONFIGS)[0] for p in pieces]
        depth = max(len(r) for r in ranked)
        every = [Configs(tuple(r[min(i, len(r) - 1)][1] for r in ranked)) for i in range(min(depth, 6))]
        best = self.best(kernel, target)
        return [best, *every] if best is not None and best.joint else every

    def space(self, kernel: Kernel, target: Any) -> Space:
        """Return the genes of every piece, and the pairs that may be computed together."""
        pieces = _pieces(kernel)
        joint = tuple(dict.fromkeys(((), self.configs(kernel, target)[0].joint)))
        every = [(n, name, v) for n, p in enumerate(pieces) for name, v in piece_space(kernel, p, target).items()]
        return {f"pieces.{n}.{name}": v for n, name, v in every} | {"joint": joint}

    def legal(self, kernel: Kernel, config: Configs, target: Any) -> str:
        pieces = _pieces(kernel)
        if len(config.pieces) != len(pieces) or any(max(pair) >= len(pieces) for pair in config.joint):
            return f"the kernel has {len(pieces)} pieces"  # the genes are those of another kernel of a composite
        reasons = (explain_illegal(kernel, p, c, target) for p, c in zip(pieces, config.pieces, strict=True))
        if reason := next(filter(None, reasons), ""):
            return reason
        for first, second in config.joint:
            config_of_second = config.pieces[second]
            pair = pieces[first], pieces[second]
            config_of_first = (
                companions.companion_of(kernel, *pair, config_of_second, target)
                if isinstance(config_of_second, Tiled)
                else 0
            )
            if (first, second) not in companions.find_pairs(pieces) or config_of_first != config.pieces[first]:
                return f"pieces {first} and {second} are not made together so"
        return ""

    def cost(self, kernel: Kernel, config: Configs, target: Any) -> Cost:
        """Return the predicted seconds on all cores of the target."""
        pieces, configs = _pieces(kernel), config.pieces
        joined = {n for pair in config.joint for n in pair}
        prices = [_price(kernel, p, configs[n], target) for n, p in enumerate(pieces) if n not in joined]
        if joined:
            tiled = cast(Sequence[Tiled], configs)  # no other form has companions
            pairs = tuple((pieces[i], pieces[j], tiled[i], tiled[j]) for i, j in config.joint)
            pair_costs = companions.predict_pairs(kernel, pairs, target)
            prices += [_price_at(pair_costs, n) for n in range(2 * len(pairs))]
        costs, count = [p.cost for p in prices], max(p.launches for p in prices)
        tasks = launches.count_tasks([p.tasks for p in prices], pieces, target)
        return Cost(
            sum(c.arithmetic for c in costs),
            sum(c.memory for c in costs),
            sum(c.special for c in costs),
            count * launch_overhead(tasks, target),
        )

    def lower(self, kernel: Kernel, config: Configs, target: Any) -> Lowered:
        """Lower to launches: packing where the configuration has buffers, the tiles, the addition of partial sums."""
        pieces = _pieces(kernel)
        return launches.lower(kernel, pieces, config.pieces, target, config.joint)


CONTRACTION = Contraction()
_Best = tuple[float, Config]


class _Price(NamedTuple):
    """The cost of a piece without launches, the number of its launches, and the tasks of the launch that multiplies."""

    cost: Cost
    launches: int
    tasks: int


def _pieces(kernel: Kernel) -> tuple[Problem, ...]:
    pieces = problems(kernel.root)
    assert pieces is not None
    return pieces


def _largest(pieces: Sequence[Problem]) -> Problem:
    """Return the piece with the most products."""
    return max(pieces, key=lambda p: prod(p.extents))


def _rank(
    kernel: Kernel, pieces: tuple[Problem, ...], target: Any, like: Config | None = None, most: int = 1
) -> list[list[_Best]]:
    """Return each piece's `most` lowest ranks and their configurations, which are near `like`, if given."""
    if not pieces:
        return []
    candidates = search.candidates(kernel, pieces, target, like)
    predicted = None if candidates.table is None else contraction_cost.predict(candidates.table, target)
    ranks = None if predicted is None else predicted.rank(target)
    out = []
    for n, (p, direct) in enumerate(zip(pieces, candidates.others, strict=True)):
        best: dict[Config, float] = {}
        rows = np.nonzero(candidates.piece == n)[0]
        if candidates.table is not None and predicted is not None and ranks is not None:
            for i in rows[np.argsort(ranks[rows], kind="stable")[: 3 * most]]:  # some occur twice
                config = candidates.table.config(int(i))
                best.setdefault(config, float(ranks[i]))
                _price_cache(kernel, p, target).setdefault(config, _price_at(predicted, int(i)))
        for c in direct:
            priced = _price(kernel, p, c, target)
            best.setdefault(c, priced.cost.rank + priced.launches * launch_overhead(priced.tasks, target))
        out.append(sorted(((rank, c) for c, rank in best.items()), key=lambda x: x[0])[:most])
    return out


@lru_cache(maxsize=1024)
def _price_cache(kernel: Kernel, p: Problem, target: Any) -> dict[Config, _Price]:
    """Return the cache of prices of a piece's configurations, filled where tables are predicted."""
    return {}


def _price(kernel: Kernel, p: Problem, c: Config, target: Any) -> _Price:
    """Return the price of a piece in a configuration."""
    prices = _price_cache(kernel, p, target)
    if c not in prices:
        if isinstance(c, Direct):
            direct_cost = DirectCost(kernel, p, c, target).price()
            prices[c] = _Price(direct_cost, 1 + (c.split > 1), c.tasks * c.parts * c.split)
        else:
            prices[c] = _price_at(contraction_cost.predict(table.table_of(kernel, p, c, target), target), 0)
    return prices[c]


def _price_at(predicted: contraction_cost.Predicted, i: int) -> _Price:
    """Return the price of configuration number `i` of a predicted table."""
    return _Price(
        Cost(float(predicted.arithmetic[i]), float(predicted.memory[i])),
        int(predicted.launches[i]),
        int(predicted.tasks[i]),
    )
