"""Separate kernels that are fused where the model predicts that to be faster.

Stages join by what is legal (`schedule.fusion`), rows by the prices of the orders that tensors had then. Here all other
kernels, and the orders of tensors, are known: a kernel is separated where the separate ones, with the results that they
then store, take less time. A choice of each join by its own price, while kernels are grouped, makes steps slower: it
breaks chains that rows share later (52 steps of `benchmarks.predictions`: none gained more than 0.5 %, gpt_small of
batch 16 lost 1 % and took 1.25 times the memory).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from einsmith.cost.facts import Target
from einsmith.ir.analysis.pointwise import pointwise_body
from einsmith.ir.loop import LoweredLoop
from einsmith.ir.nodes import Compute, Item, Tensor, nbytes
from einsmith.ir.views import storage
from einsmith.schedule.kernel import Kernel, Rows
from einsmith.schedule.plan import Cost, JoinPrices, KernelCall, LoopCall, Plan, Refusal, StagesCost
from einsmith.schedule.residency import calls_seconds
from einsmith.schedule.slices import slice_call
from einsmith.schedule.split_kernel import Place, SplitStages, split_before
from einsmith.schedule.sum_calls import CALLS_BEFORE

MODEL_ERROR = 0.03
"""Least gain of separating stages, as a fraction of the fused kernel's seconds, since results are stored for it: a
smaller one is within the model's error."""


def loss(count: int, prices: JoinPrices) -> Refusal:
    """Return the reason for which `count` kernels are not joined."""
    return Refusal(f"joining {count} kernels is predicted to be slower", prices.fused, prices.apart)


def stream_prices(
    call: KernelCall, cost: Cost, target: Target, before: Sequence[KernelCall | LoopCall]
) -> JoinPrices | None:
    """Return the prices of a call of joined kernels that stream; None for another call.

    cost: predicts kernels. target: the machine. before: see `calls_seconds`."""
    joined = isinstance(call.kernel, Rows) and not call.kernel.takes_sums and bool(call.parts)
    if not joined or any(p.kernel.reuses for p in call.parts):
        return None
    ways = [call], _separate_calls(call)
    fused, apart = (calls_seconds(x, cost, target, call.tensors, before) for x in ways)
    return JoinPrices(fused, apart)


class CallsBefore:
    """Tells which calls have just run before one, if they all run again and again.

    calls: the calls in order. target: the machine.
    """

    def __init__(self, calls: Sequence[KernelCall | LoopCall], target: Target):
        self._calls = calls
        size = sum(map(nbytes, {storage(t) for call in calls for t in call.tensors}))
        self._fit = size <= target.kept * target.last_level

    def of(self, n: int, call: KernelCall) -> Sequence[KernelCall | LoopCall]:
        """Return the calls before call n, or before `call`, which takes its place; `call` itself if the cache holds the
        tensors of all."""
        return [call] if self._fit else [self._calls[m % len(self._calls)] for m in range(n - CALLS_BEFORE, n)]


def _separate_calls(call: KernelCall) -> list[KernelCall]:
    """Return the parts of a call of joined kernels, as they run separately."""
    return [part if any(part.offsets) else slice_call(part) for part in call.parts]


class LossSplitter:
    """Separates fused kernels that take less time so.

    Args:
        cost: predicts kernels.
        least: see `PlanContext`.
        target: the machine.
    """

    def __init__(self, cost: Cost, least: StagesCost, target: Target):
        self.cost, self.least, self.target = cost, least, target
        # Heads and tails of kernels, with the least seconds of the heads.
        self._cuts: dict[Kernel, list[tuple[SplitStages, SplitStages, float]]] = {}

    def split(self, plan: Plan) -> Plan:
        """Return the plan in which kernels are separate where that is faster."""
        calls: list[Sequence[KernelCall | LoopCall]] = []
        refusals = dict(plan.refusals)
        before = CallsBefore(plan.calls, self.target)
        for n, call in enumerate(plan.calls):
            if isinstance(call, LoopCall):
                calls.append([replace(call, plans=[self.split(p) for p in call.plans])])
            else:
                calls.append(self._separate(call, before.of(n, call), refusals))
        return replace(plan.with_calls(calls), refusals=refusals)

    def _separate(
        self, call: KernelCall, before: Sequence[KernelCall | LoopCall], refusals: dict[Tensor, Refusal]
    ) -> list[KernelCall]:
        """Return a call, or the calls of its parts. before: see `calls_seconds`. refusals: receives the reason for
        which results that parts pass on are stored."""
        prices = stream_prices(call, self.cost, self.target, before)
        if prices is not None:
            if prices.fused < prices.apart:
                return [replace(call, prices=prices)]
            refusals[call.parts[0].results[0]] = loss(len(call.parts), prices)
            return _separate_calls(call)
        halves, prices = self._best_halves(call, before)
        if prices is None:
            return [call]
        refusals[halves[0].results[-1]] = loss(2, prices)
        return [x for half in halves for x in self._separate(half, before, refusals)]

    def _best_halves(
        self, call: KernelCall, before: Sequence[KernelCall | LoopCall]
    ) -> tuple[list[KernelCall], JoinPrices | None]:
        """Return the calls of a call's stages before and after the best cut, and the prices; none where no cut
        gains."""
        kernel, best = call.kernel, list[KernelCall]()
        # A limit or a sum of results belongs to all stages; pointwise stages move the fewest bytes together.
        if (
            type(kernel) is not Kernel
            or kernel.sums
            or len(kernel.stages) == 1
            or pointwise_body(kernel.root) is not None
        ):
            return best, None
        if kernel not in self._cuts:
            cuts = [split_before(kernel, [n]) for n in range(1, len(kernel.stages))]
            self._cuts[kernel] = [(a, b, self.least(a.kernel, kernel, self.target)) for a, b in cuts]
        fused = calls_seconds([call], self.cost, self.target, call.tensors, before)
        least = (1 - MODEL_ERROR) * fused
        for head, tail, expected in self._cuts[kernel]:
            if expected >= least or expected + self.cost(tail.kernel, self.target) >= least:
                continue
            start = len(head.kernel.stages)
            calls = [_call_of(call, head, call.nodes[:start]), _call_of(call, tail, call.nodes[start:])]
            apart = calls_seconds(calls, self.cost, self.target, call.tensors, before)
            if apart < least:
                least, best = apart, calls
        return best, JoinPrices(fused, least) if best else None


def _call_of(call: KernelCall, part: SplitStages, nodes: tuple[Compute | LoweredLoop, ...]) -> KernelCall:
    """Return the call of some of a call's stages, which compute these nodes."""

    def tensor_of(place: Place) -> Tensor:
        if isinstance(place, int):
            return call.tensors[place]
        stage, member = place
        node = call.nodes[stage]
        return Item(node, member) if isinstance(node, LoweredLoop) or len(node.template.dtypes) > 1 else node

    offsets = tuple(call.offsets[p] if isinstance(p, int) else 0 for p in part.places) if call.offsets else ()
    return KernelCall(part.kernel, tuple(map(tensor_of, part.places)), part.written, nodes, offsets)
