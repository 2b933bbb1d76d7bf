"""Decide which kernels of a plan become one because they share their rows, or sum each other's results.

`row_clusters` proposes kernels that share rows, `sum_calls` kernels that sum results; predicted times decide.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from math import inf
from typing import NamedTuple

from einsmith.base.sizes import show_size
from einsmith.cost.facts import CPU
from einsmith.ir.nodes import Tensor, nbytes
from einsmith.ir.views import storage
from einsmith.schedule.fusion import maker
from einsmith.schedule.kernel import Rows
from einsmith.schedule.losses import CallsBefore, loss, stream_prices
from einsmith.schedule.options import EPILOGUE_SUMS, ROW_FUSION, ROW_PRICES, PlanOptions
from einsmith.schedule.plan import JoinPrices, KernelCall, LoopCall, Refusal
from einsmith.schedule.row_clusters import (
    UNJOINED,
    clusters,
    longest_time,
    smallest_unstored,
)
from einsmith.schedule.row_fusion import common_rows, join
from einsmith.schedule.slices import slice_call
from einsmith.schedule.sum_calls import SumJoiner, Unfused

MAX_STREAMED_TIME = 0.95
"""Largest predicted time of a row-block fusion with kernels that reuse operands, as a fraction of that of its parts,
whose prediction is the more certain one."""
MAX_PASSED_RATIO = 1.25
"""Most bytes of operands and results of a chain of reductions for each byte that it uses up without storing it: beyond,
chains are layers of networks, whose prices take long (a step of gpt_small compiles for 1.6 times as long with 3)."""


class JoinedCalls(NamedTuple):
    """The calls of a plan after kernels were joined.

    Attributes:
        calls: the calls in order.
        rank: for each call before, the index of the call that contains it.
        refusals: the reason for which each result is stored that a joined kernel might use up.
    """

    calls: list[KernelCall | LoopCall]
    rank: dict[int, int]
    refusals: dict[Tensor, Refusal]


class RowJoiner:
    """Joins kernels that share their rows, where that pays.

    Args:
        singles: the calls in order, each of which computes one group of nodes.
        needs: the calls that each needs, by number.
        unfused: numbers of the calls that are not joined.
        kept: tensors that are stored in any case.
        options: how the graph is planned.
    """

    def __init__(
        self,
        singles: Sequence[KernelCall | LoopCall],
        needs: Mapping[int, set[int]],
        unfused: Unfused,
        kept: Set[Tensor],
        options: PlanOptions,
    ):
        self.singles, self.needs = singles, needs
        self.unfused, self.kept, self.options = unfused, kept, options
        self._readers = Counter(s for c in singles for s in set(c.operands))
        self._joined: dict[tuple[int, ...], KernelCall] = {}
        self._before = CallsBefore(singles, options.target)
        self._refusals: dict[Tensor, Refusal] = {}
        self._losses: dict[tuple[int, ...], Refusal] = {}

    def run(self) -> JoinedCalls:
        """Return the calls in which kernels are joined where that pays."""
        target, cost, nodes = self.options.target, self.options.cost, self.options.cut
        cut = {t for p in self.singles for t in p.results if maker(t) in nodes} if nodes else set()
        unfused, kept = self.unfused, self.kept
        apart = range(len(self.singles)) if ROW_FUSION in self.options.without else unfused.all
        pays, refusals, most = self._pays, self._refusals, self.options.most
        groups = [*map(tuple, clusters(self.singles, self.needs, apart, kept, target, pays, refusals, cut, most))]
        summing: dict[tuple[int, ...], KernelCall] = {}
        if cost is not None and EPILOGUE_SUMS not in self.options.without and target.backend == CPU:
            joiner = SumJoiner(
                groups, self.singles, self._call_of, self._can_join, self.needs, unfused, kept, target, cost, nodes
            )
            groups, summing = joiner.run()
        calls: list[KernelCall | LoopCall] = []
        rank: dict[int, int] = {}
        for members in groups:
            rank |= dict.fromkeys(members, len(calls))
            calls.append(slice_call(summing[members]) if members in summing else self._call_of(members))
        stored = {t for c in calls for t in c.tensors}
        refusals = {t: refusal for t, refusal in self._refusals.items() if t in stored - kept}
        for members, refusal in self._losses.items():
            results = [t for n in members for t in self.singles[n].results]
            first = next((t for t in results if t in stored and t not in refusals), None)
            if first is not None and len({rank[n] for n in members}) > 1:
                refusals[first] = refusal
        return JoinedCalls(calls, rank, refusals)

    def _call_of(self, members: Sequence[int]) -> KernelCall | LoopCall:
        first = self.singles[members[0]]
        return first if isinstance(first, LoopCall) else self._join(members)

    def _can_join(self, members: Sequence[int]) -> bool:
        """Return whether members, of a cluster that had others too, have rows in common without these."""
        return len(members) == 1 or common_rows([self.singles[n] for n in members], self.options.target)[0] > 0

    def _join(self, members: Sequence[int]) -> KernelCall:
        """Return the call of the kernel that members, which are no loops, become."""
        key = tuple(members)
        if key not in self._joined:
            calls = [c for c in (self.singles[i] for i in members) if isinstance(c, KernelCall)]
            self._joined[key] = slice_call(calls[0] if len(calls) == 1 else self._join_rows(calls))
        return self._joined[key]

    def _join_rows(self, calls: Sequence[KernelCall]) -> KernelCall:
        own = Counter(s for c in calls for s in set(c.operands))
        results = {t for c in calls for t in c.results}
        outside = {t for t in results if t in self.kept or self._readers[t] > own[t]}
        return join(calls, outside, self.options.target)

    def _pays(self, members: Sequence[int]) -> bool:
        """Return whether kernels take less time fused."""
        whole = self._join(members)
        if not isinstance(whole.kernel, Rows):
            return True
        if any(self.singles[n].kernel.reuses for n in members):
            return self._pays_as_chain(members, whole, whole.kernel)
        return self._pays_as_stream(members, whole, whole.kernel)

    def _pays_as_stream(self, members: Sequence[int], whole: KernelCall, kernel: Rows) -> bool:
        """Return whether kernels that stream take less time fused."""
        cost, target = self.options.cost, self.options.target
        is_priced = ROW_PRICES not in self.options.without and target.backend == CPU
        if cost is None or (kernel.row_bytes <= target.l1 and not is_priced):
            return True
        prices = stream_prices(whole, cost, target, self._before.of(members[0], whole))
        assert prices is not None
        whole.prices = prices
        if prices.fused >= prices.apart:
            self._losses[tuple(members)] = loss(len(members), prices)
        return prices.fused < prices.apart

    def _pays_as_chain(self, members: Sequence[int], whole: KernelCall, kernel: Rows) -> bool:
        """Return whether kernels of which some reuse their operands take less time fused.

        They are fused only for results that take much of the last-level cache and are not stored, and if they hold no
        more memory at once than separate kernels and not much more than they use up, unless no result may be stored.
        """
        cost, target = self.options.cost, self.options.target
        if all(b.nbytes <= smallest_unstored(target) for b in kernel.local):
            return False
        if cost is None:
            return True
        most = self.options.most
        held, least = sum(map(nbytes, set(map(storage, whole.tensors)))), self._held_bytes(whole.parts)
        used_up = sum(b.nbytes for b in kernel.local)
        most_held = min(least, MAX_PASSED_RATIO * used_up) if most else inf
        if target.backend != CPU:
            most_held = used_up  # on cards a chain is one of sweeps alone
        if held > most_held:
            saved = f"uses up {show_size(used_up)} and separate kernels hold {show_size(least)}"
            self._refuse(members, Refusal(f"the fused kernel holds {show_size(held)} at once, where it {saved}"))
            return False
        fused, apart = cost(kernel, target), self._separate_seconds(members)
        whole.prices = JoinPrices(fused, apart, max(0, held - least))
        # Memory is worth time where less is passed on than is used up: else these may be layers of a network.
        unstored = [b.nbytes for b in kernel.local] if held <= used_up else []
        if fused < longest_time(unstored, most, MAX_STREAMED_TIME) * apart:
            return True
        self._refuse(members, Refusal("storing it is predicted to be faster", fused, apart))
        return False

    def _held_bytes(self, calls: Sequence[KernelCall]) -> int:
        """Return the most bytes of tensors that hold values at once while calls run, which make up a cluster."""
        own = Counter(s for call in calls for s in call.operands)
        first, last = dict[Tensor, int](), dict[Tensor, int]()
        for n, call in enumerate(calls):
            for t in call.operands:
                first.setdefault(t, 0)
                last[t] = n if maker(t) is not None and self._readers[t] == own[t] else len(calls)
            for t in call.results:
                first[t], last[t] = n, len(calls) if t in self.kept or self._readers[t] > own[t] else n
        for n, call in enumerate(calls):
            last |= {t: max(last[t], n) for t in call.operands}
        return max(sum(nbytes(t) for t in first if first[t] <= n <= last[t]) for n in range(len(calls)))

    def _separate_seconds(self, members: Sequence[int]) -> float:
        """Return the predicted seconds of kernels that reuse operands, each alone, and of the others, fused if they
        have common rows."""
        cost, target = self.options.cost, self.options.target
        assert cost is not None
        alone = [n for n in members if self.singles[n].kernel.reuses]
        rest = [n for n in members if n not in alone]
        if not alone or not rest or not common_rows([self.singles[n] for n in rest], target)[0]:
            alone, rest = [*members], []
        groups = [[n] for n in alone] + ([rest] if rest else [])
        return sum([cost(self._join(group).kernel, target) for group in groups])

    def _refuse(self, members: Sequence[int], refusal: Refusal) -> None:
        """Record the reason for which results of kernels are stored, unless one is known."""
        for t in (t for n in members for t in self.singles[n].results):
            if self._refusals.get(t) is UNJOINED:
                self._refusals[t] = refusal
