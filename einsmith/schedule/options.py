"""Define what the planning of a graph, and of the steps of its loops, depends on."""

from __future__ import annotations

from typing import NamedTuple

from einsmith.cost.facts import Target
from einsmith.ir.interned import Node
from einsmith.schedule.plan import Cost


class PlanOptions(NamedTuple):
    """How a graph and the steps of its loops are planned.

    target: the machine, whose caches row fusion is fitted to. on_lines: whether results begin on a cache line.
    cost: predicts kernels; rows are fused, and sums joined, where that takes less time by it. most: most bytes of
    a result that is stored, where it need not be, because that takes less time. repeats: whether the backward pass
    repeats products of the forward pass. takes_sums: whether kernels may take sums of their results. prices_rows:
    whether predicted times also decide on rows that L1 holds, which are otherwise always fused. decisions: what is
    decided otherwise than by `cost`, in words; cut: the nodes whose results pass through memory by decision.
    """

    target: Target
    on_lines: bool
    cost: Cost | None
    most: int
    repeats: bool
    takes_sums: bool
    prices_rows: bool
    decisions: frozenset[str]
    cut: frozenset[Node]
