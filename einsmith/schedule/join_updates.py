"""Join short updates into one launch: those of biases, of norms and of their statistics.

before: a launch for each of w1 = w1 - lr*g1, m1 = 0.9*m1 + 0.1*s1, n = n + 1
after:  one launch of all of them, where that is predicted to take less time
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from einsmith.cost.facts import Target
from einsmith.ir.analysis.pointwise import pointwise_body
from einsmith.ir.nodes import received
from einsmith.schedule.kernel import Kernel
from einsmith.schedule.plan import Cost, JoinPrices, KernelCall, Plan, Refusal
from einsmith.schedule.residency import plan_seconds
from einsmith.schedule.row_fusion import MAX_MEMBERS, join_in_turn
from einsmith.schedule.together import MIN_GAIN, find_dependences


def join_updates(plan: Plan, cost: Cost, target: Target) -> Plan:
    """Return the plan in which independent updates run in one launch, at the place of the last of them.

    They are joined where that gains `MIN_GAIN` of the plan's predicted time; a smaller gain is lost in noise, and not
    worth the compilation of further functions. Programs in which threads wait for each other's updates stay as they
    are.

    cost: predicts kernels. target: the machine.
    """
    if received(plan.graph.inputs):
        return plan
    updates = {n: c for n, c in enumerate(plan.calls) if isinstance(c, KernelCall) and _is_update(c, plan)}
    by_kernel = {c.kernel: c for c in updates.values()}
    # In a joined launch a short update takes no longer.
    short = {k for k, c in by_kernel.items() if cost(_join_all([c]).kernel, target) <= cost(k, target)}
    calls = {n: c for n, c in updates.items() if c.kernel in short}
    joined: dict[int, KernelCall] = {}
    gone: set[int] = set()
    apart = fused = 0.0
    for group in _groups(list(calls), find_dependences(plan)) if len(calls) > 1 else ():
        call = _join_all([calls[n] for n in group])
        prices = JoinPrices(cost(call.kernel, target), sum(cost(calls[n].kernel, target) for n in group))
        if prices.fused < prices.apart:
            joined[group[-1]] = replace(call, prices=prices)
            gone.update(group)
            apart, fused = apart + prices.apart, fused + prices.fused
    if not joined:
        return plan
    if apart - fused < MIN_GAIN * plan_seconds(plan, cost, target):
        reason = f"joining {len(gone)} short updates gains less than {MIN_GAIN:.0%} of the run"
        return replace(plan, refusals={**plan.refusals, calls[min(gone)].results[0]: Refusal(reason, fused, apart)})
    # Joined calls take the place of the last of their parts.
    return plan.with_calls([[joined[n]] if n in joined else [c] * (n not in gone) for n, c in enumerate(plan.calls)])


def _is_update(call: KernelCall, plan: Plan) -> bool:
    """Return whether a call only updates leaves, point by point."""
    plain = type(call.kernel) is Kernel and not call.kernel.sums and not any(call.offsets)
    if not plain or call.is_recomputation or not call.results or not all(t in plan.home for t in call.results):
        return False
    return all(pointwise_body(s.template) is not None for s in call.kernel.stages)


def _groups(numbers: Sequence[int], needs: Sequence[set[int]]) -> list[list[int]]:
    """Return groups of calls that are independent and can run where the last of them does: no call up to there needs
    one of them."""
    out: list[list[int]] = []
    for n in numbers:
        group = out[-1] if out else []
        if group and len(group) < MAX_MEMBERS and not any(needs[k] & {*group} for k in range(group[0], n + 1)):
            group.append(n)
        else:
            out.append([n])
    return [g for g in out if len(g) > 1]


def _join_all(calls: Sequence[KernelCall]) -> KernelCall:
    """Return the call of independent kernels in one launch."""
    return join_in_turn(calls, {t for c in calls for t in c.results})
