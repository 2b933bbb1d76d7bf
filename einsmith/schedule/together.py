"""Choose independent kernel calls that run side by side in one launch.

A call of one task keeps one core busy while the others wait. A launch of several tasks hides it: its threads rarely end
at the same time, and the first that ends takes the short call.

before: launch(update(W3), 2 tasks); g2 = mask(g3), 1 task; launch(dW2, 2 tasks); g1 = mask(g2), 1 task
after:  launch(update(W3), 2 tasks | g2 = mask(g3), 1 task); launch(dW2, 2 tasks | g1 = mask(g2), 1 task)
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

from einsmith.cost.facts import Target
from einsmith.ir.nodes import Leaf, Tensor, received
from einsmith.schedule.plan import KernelCall, LoopCall, Plan

MIN_GAIN = 0.02
"""Least predicted gain of a group, as a fraction of the seconds of its call of several tasks. A smaller gain is lost in
noise, and threads would trade tasks whose data their caches hold (MobileNet and ShuffleNet at batch 1, two cores: 27
and 53 groups of updates of 0.1 us changed nothing)."""


class Work(NamedTuple):
    """The work of a call that may run in one launch with others: predicted seconds on all cores, and its number of
    tasks."""

    seconds: float
    tasks: int


def find_dependences(plan: Plan) -> list[set[int]]:
    """Return for each call earlier calls that must end before it begins. Dependences that follow from these are not
    all listed."""
    writer: dict[Tensor, int] = {}
    readers: dict[Tensor, set[int]] = {}
    out: list[set[int]] = []
    waits = received(plan.graph.inputs)
    for i, call in enumerate(plan.calls):
        needs: set[int] = set()
        reads, writes = _owners(plan, call, False), _owners(plan, call, True)
        needs.update(writer[t] for t in reads | writes if t in writer)
        needs.update(*(readers.get(t, ()) for t in writes))
        for leaf in [t for t in reads if isinstance(t, Leaf) and t.after is not None]:  # another thread stores it
            needs.update(writer[source] for x, source in waits.items() if x.id <= leaf.id)
        for t in reads:
            readers.setdefault(t, set()).add(i)
        for t in writes:
            writer[t], readers[t] = i, set()
        out.append(needs)
    return out


def _owners(plan: Plan, call: KernelCall | LoopCall, written: bool) -> set[Tensor]:
    """Return the tensors whose memory a call writes, or reads."""
    return {plan.home.get(s, s) for s in (call.results if written else call.operands)}


def group_calls(needs: Sequence[Collection[int]], works: Sequence[Work | None], target: Target) -> list[list[int]]:
    """Return groups of calls in an order in which they can run; most groups are single calls. Without larger groups,
    the order is the calls' own.

    Args:
        needs: the calls that must end before each call begins.
        works: the work of each call; None for a call that runs alone.
        target: the machine.
    """
    users: list[list[int]] = [[] for _ in needs]
    missing = [len(n) for n in needs]
    for i, n in enumerate(needs):
        for j in n:
            users[j].append(i)
    ready = [i for i, count in enumerate(missing) if not count]
    out: list[list[int]] = []
    while ready:
        group = _group_first(ready, works, target)
        out.append(group)
        ready = [i for i in ready if i not in group]
        for i in group:
            for u in users[i]:
                missing[u] -= 1
                if not missing[u]:
                    insort(ready, u)
    return out


def _group_first(ready: Sequence[int], works: Sequence[Work | None], target: Target) -> list[int]:
    """Return the group of the first of the calls that can run now: at most one call of several tasks, so that the
    shares of its tasks stay on their cores, between calls of one task, which take no longer than it."""
    first = ready[0]
    if works[first] is None:
        return [first]
    work = {i: w for i in ready if (w := works[i]) is not None}
    wide = next((i for i, w in work.items() if w.tasks > 1), None)
    if wide is None:
        return [first]
    hidden: list[int] = []
    rest = work[wide].seconds
    task = target.overheads.task_seconds
    gains = {i: w.seconds * (1 - 1 / target.cores) - task for i, w in work.items() if w.tasks <= 1}
    for i in sorted((i for i, saved in gains.items() if saved > 0), key=lambda i: (i != first, -work[i].seconds, i)):
        if work[i].seconds <= rest:
            hidden.append(i)
            rest -= work[i].seconds
    gain = sum(gains[i] for i in hidden)
    if first not in (wide, *hidden) or gain < MIN_GAIN * work[wide].seconds:
        return [first]
    return [*hidden[1::2], wide, *hidden[::2]]


def run_together(plan: Plan, work_of: Callable[[KernelCall], Work | None], target: Target) -> Plan:
    """Return the plan with groups of calls that run together. Calls before the first that writes into a leaf, on which
    checks depend, keep their places.

    Args:
        plan: the plan.
        work_of: returns the work of a call; None if the call has several launches.
        target: the machine.
    """
    start, n = plan.first_write, len(plan.calls)
    if target.cores == 1 or n - start < 2 or any(at >= start for at, _, _ in plan.checks):
        return plan
    needs = [{j - start for j in x if j >= start} for x in find_dependences(plan)[start:]]
    works = [work_of(c) if isinstance(c, KernelCall) else None for c in plan.calls[start:]]
    order, together = list(range(start)), []
    for group in group_calls(needs, works, target):
        if len(group) > 1:
            together.append((len(order), len(order) + len(group) - 1))
        order += [start + i for i in group]
    assert len(order) == n
    return replace(plan, calls=[plan.calls[i] for i in order], together=tuple(together)) if together else plan
