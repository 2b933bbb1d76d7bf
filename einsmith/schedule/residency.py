"""Predict which bytes of a plan's tensors come from memory, because other kernels have pushed them out of the caches.

The last-level cache is taken to hold whole tensors, of which the least recently used one leaves first (Mattson et al.
1970, "Evaluation techniques for storage hierarchies"). A kernel's cost counts bytes by the level that holds all of its
own tensors; an activation that the forward pass stored has left it when the backward pass reads it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence

from einsmith.cost.facts import Target
from einsmith.ir.nodes import Tensor, nbytes
from einsmith.ir.views import storage
from einsmith.schedule.plan import Cost, KernelCall, LoopCall, Plan


def memory_traffic(
    calls: Sequence[KernelCall | LoopCall], target: Target, later: Collection[Tensor] = ()
) -> list[dict[Tensor, int]]:
    """Return, for each call in order, the bytes of each tensor that it moves from memory or to it.

    A result is written back when it leaves the cache, unless no later call reads it; the call that pushes it out pays
    for it. Lines of a result that takes much of the cache are fetched before they are written, as its memory has not
    been used lately, unless they are stored past the caches. later: tensors that are needed after the calls.
    """
    capacity = int(target.kept * target.last_level)
    last = {storage(t): i for i, call in enumerate(calls) for t in call.tensors}
    last |= dict.fromkeys((t for t in later if t in last), len(calls))
    cache: OrderedDict[Tensor, bool] = OrderedDict()  # whether the tensor was changed, by tensor, oldest first
    used = 0
    out: list[dict[Tensor, int]] = []
    for i, call in enumerate(calls):
        moved: dict[Tensor, int] = {}
        written = call.results
        past_caches = _stored_past_caches(call)
        tensors = dict.fromkeys(map(storage, call.tensors))
        for t in tensors:
            size = nbytes(t)
            if t in cache:
                cache.move_to_end(t)
                cache[t] |= t in written
                continue
            fetched = t not in written or (2 * size > capacity and t not in past_caches)
            if times := fetched + (t in written and size > capacity):
                moved[t] = times * size
            if size <= capacity:
                cache[t] = t in written
                used += size
        while used > capacity:
            t, is_changed = cache.popitem(last=False)
            used -= nbytes(t)
            if is_changed:
                moved[t] = moved.get(t, 0) + nbytes(t)
        for t in [t for t in tensors if t in cache and last[t] == i]:
            del cache[t]
            used -= nbytes(t)
        out.append(moved)
    return out


def _stored_past_caches(call: KernelCall | LoopCall) -> set[Tensor]:
    """Return the results of a call that it stores by non-temporal stores."""
    if not isinstance(call, KernelCall):
        return set()
    return {storage(call.tensors[n]) for n in call.kernel.non_temporal if n < len(call.tensors)}


def memory_seconds(moved: int, target: Target) -> float:
    """Return the seconds in which all cores move bytes from memory or to it."""
    return moved / min(target.memory_bandwidth, target.core_bandwidth * target.cores)


def calls_seconds(
    calls: Sequence[KernelCall | LoopCall],
    cost: Cost,
    target: Target,
    later: Collection[Tensor] = (),
    before: Sequence[KernelCall | LoopCall] = (),
) -> float:
    """Return the predicted seconds of the kernels among the calls, one after the other: each takes the time that it is
    predicted to take alone, or that of its traffic with the memory, if that is longer.

    later: see `memory_traffic`. before: calls that have just run, whose tensors the caches may hold."""
    traffic = memory_traffic([*before, *calls], target, later)[len(before) :]
    return sum(
        max(cost(call.kernel, target), memory_seconds(sum(moved.values()), target))
        for call, moved in zip(calls, traffic, strict=True)
        if isinstance(call, KernelCall)
    )


def plan_seconds(plan: Plan, cost: Cost, target: Target) -> float:
    """Return the predicted seconds of all kernels of a plan: see `calls_seconds`; those of loops take the time that
    they are predicted to take alone."""
    loops = sum(
        times * cost(call.kernel, target)
        for i, call, times in plan.kernel_calls()
        if isinstance(plan.calls[i], LoopCall)
    )
    return calls_seconds(plan.calls, cost, target, plan.graph.outputs) + loops
