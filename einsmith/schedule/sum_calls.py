"""Join kernels that sum a kernel's results with it, where that takes less time (`schedule.summed`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from einsmith.cost.facts import CPU, Target
from einsmith.ir.nodes import Reduce, Tensor
from einsmith.ir.views import storage
from einsmith.schedule.kernel import Kernel, KernelBuffer, Member, Rows
from einsmith.schedule.plan import Cost, KernelCall, LoopCall
from einsmith.schedule.summed import summed_form


def join_sums(
    calls: Sequence[KernelCall | LoopCall],
    needs: Mapping[int, Collection[int]],
    fixed: Collection[int],
    kept: Collection[Tensor],
    target: Target,
    cost: Cost | None,
) -> tuple[list[KernelCall | LoopCall], list[int]]:
    """Return (the calls, of which some have become one, for each old call the number of the new one that contains it).

    Args:
        calls: the calls in order.
        needs: for each of them, the calls that come before it.
        fixed: numbers of calls that are not joined with others.
        kept: tensors that are needed after the program.
        target: the machine.
        cost: predicts kernels; without it no calls are joined.
    """
    home = list(range(len(calls)))  # the call that each one joins
    joined: dict[int, KernelCall] = {}
    if cost is not None and target.backend == CPU:
        readers: dict[Tensor, set[int]] = defaultdict(set)
        for i, call in enumerate(calls):
            for t, w in zip(call.tensors, call.written, strict=True):
                if not w:
                    readers[storage(t)].add(i)
        for i, call in enumerate(calls):
            if i in fixed or home[i] != i or not isinstance(call, KernelCall) or not isinstance(call.kernel, Kernel):
                continue
            group = _sums_of(i, calls, needs, {*fixed, *(j for j, k in enumerate(home) if j != k)}, readers, kept)
            whole = _join([calls[j] for j in group], _outside(group, calls, readers, kept))
            if len(group) > 1 and _pays(whole, [calls[j] for j in group], target, cost):
                joined[i] = whole
                for j in group:
                    home[j] = i
    out: list[KernelCall | LoopCall] = []
    at: list[int] = []
    for i, call in enumerate(calls):
        if home[i] == i:
            at.append(len(out))
            out.append(joined.get(i, call))
        else:
            at.append(at[home[i]])
    return out, at


def _sums_of(
    i: int,
    calls: Sequence[KernelCall | LoopCall],
    needs: Mapping[int, Collection[int]],
    fixed: Collection[int],
    readers: dict[Tensor, set[int]],
    kept: Collection[Tensor],
) -> list[int]:
    """Return call i and the calls that sum its results and need no call between them."""
    results = [storage(t) for t, w in zip(calls[i].tensors, calls[i].written, strict=True) if w]
    group = [i]
    for j in sorted(set().union(*(readers[t] for t in results))):
        call = calls[j]
        if j in fixed or j == i or not isinstance(call, KernelCall) or not isinstance(call.kernel, Kernel):
            continue
        body = call.kernel.root.parts[0].body
        if not isinstance(body, Reduce) or any(n > i and n not in group for n in needs[j]):
            continue
        trial = [*group, j]
        whole = _join([calls[n] for n in trial], _outside(trial, calls, readers, kept))
        if isinstance(whole.kernel, Rows) and summed_form(whole.kernel) is not None:
            group = trial
    return group


def _outside(
    group: Sequence[int],
    calls: Sequence[KernelCall | LoopCall],
    readers: dict[Tensor, set[int]],
    kept: Collection[Tensor],
) -> set[Tensor]:
    """Return the results of a group of calls that are needed outside of it."""
    results = {storage(t) for n in group for t, w in zip(calls[n].tensors, calls[n].written, strict=True) if w}
    return {t for t in results if t in kept or not readers[t] <= set(group)}


def _join(calls: Sequence[KernelCall | LoopCall], outside: Collection[Tensor]) -> KernelCall:
    """Return the call of a `Rows` of one row; results that are not in `outside` stay local to it."""
    parts = [c for c in calls if isinstance(c, KernelCall)]
    results = {storage(t) for c in parts for t, w in zip(c.tensors, c.written, strict=True) if w}
    uses = [[storage(t) if storage(t) in results else t for t in c.tensors] for c in parts]
    tensors = list(dict.fromkeys(t for use in uses for t in use if t not in results or t in outside))
    local = [t for t in dict.fromkeys(t for use in uses for t in use) if t in results and t not in outside]
    number = {t: n for n, t in enumerate((*tensors, *local))}
    members = []
    for c, use in zip(parts, uses, strict=True):
        assert isinstance(c.kernel, Kernel)
        members.append(Member(c.kernel, tuple(number[t] for t in use), (0,) * len(use), False))
    buffers = tuple(KernelBuffer(t.dtype, t.shape) for t in tensors)
    kernel = Rows(1, tuple(members), buffers, tuple(KernelBuffer(t.dtype, t.shape) for t in local), None, True)
    copies = tuple(copy for c in parts for copy in c.copies)
    return KernelCall(kernel, tuple(tensors), tuple(t in results for t in tensors), copies, parts=tuple(parts))


def _pays(whole: KernelCall, calls: Sequence[KernelCall | LoopCall], target: Target, cost: Cost) -> bool:
    """Return whether the kernels are predicted to take less time together."""
    return cost(whole.kernel, target) < sum(cost(c.kernel, target) for c in calls if isinstance(c, KernelCall))
