"""Define what the planning of a graph, and of the steps of its loops, depends on."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from einsmith.cost.facts import Target
from einsmith.ir.interned import Node
from einsmith.schedule.plan import Cost

FUSION_PARTS = FUSION, UPDATE_FUSION, ROW_FUSION, ROW_PRICES, EPILOGUE_SUMS = (
    "fusion", "update fusion", "row fusion", "prices of short rows", "epilogue sums",
)  # fmt: skip
"""Names by which parts of fusion can be left out: pointwise tensors that join the kernel of a tensor that they read,
updates among them; kernels joined because they share rows; prices that decide on rows that L1 holds; sums that kernels
take of their results."""


class PlanOptions(NamedTuple):
    """How a graph and the steps of its loops are planned.

    target: the machine, whose caches row fusion is fitted to. on_lines: whether results begin on a cache line.
    cost: predicts kernels; rows are fused, and sums joined, where that takes less time by it. most: most bytes of
    a result that is stored, where it need not be, because that takes less time. repeats: whether the backward pass
    repeats products of the forward pass. without: names of parts of fusion that are left out; without ROW_PRICES,
    rows that L1 holds are always fused. decisions: what is decided otherwise than by `cost`, in words; cut: the nodes
    whose results pass through memory by decision.
    """

    target: Target
    on_lines: bool
    cost: Cost | None
    most: int
    repeats: bool
    without: Collection[str]
    decisions: frozenset[str]
    cut: frozenset[Node]
