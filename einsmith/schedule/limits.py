"""Leave out rows of a plan that no result depends on: those beyond a limit that is known when a program runs.

`schedule.limited_positions` finds which they are. The kernels that compute such tensors alone get the limits
(`schedule.limited_calls`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from einsmith.base import dtypes as dt
from einsmith.ir.analysis.guarded import reads_under
from einsmith.ir.nodes import (
    Axis,
    Read,
    Tensor,
    postorder,
    reads,
    size,
)
from einsmith.ir.views import storage
from einsmith.schedule.kernel import (
    Kernel,
    Rows,
    has_row_limit,
)
from einsmith.schedule.limited_calls import Limiting, ends_rows, is_below, limit_call, row_axes
from einsmith.schedule.limited_positions import Limited, RowLimit, find_limited, limits_of_step, with_members
from einsmith.schedule.plan import KernelCall, LoopCall, Plan


class UnlimitedError(Exception):
    """A kernel computes more than what lies below a limit; the text says which."""


def limit_rows(plan: Plan, limits: Sequence[RowLimit], is_step: bool = False) -> Plan:
    """Return the plan in which kernels leave out rows beyond the limits that no result depends on.

    is_step: whether the plan is that of a loop's step, whose memory holds the capacity.
    """
    all_limits = with_members(plan.graph, limits)
    limited = find_limited(plan.graph, all_limits)
    calls = [_limit_loop(c, all_limits, limited) if isinstance(c, LoopCall) else c for c in plan.calls]
    every = list(zip(all_limits, limited, strict=True))
    outside = set() if is_step else {*plan.graph.inputs, *map(storage, plan.graph.outputs)}
    for limit, tensors in zip(limits, limited, strict=False):
        if not limit.extent:
            continue
        first = max((n + 1 for n, c in enumerate(plan.calls) if limit.leaf in c.results), default=0)
        for n, c in enumerate(calls[first:], first):
            if isinstance(c, KernelCall):
                calls[n] = limit_call(c, Limiting(limit, tensors, plan, outside, every))
        _limit_copies(calls, limit, plan, outside)
    return replace(plan, calls=calls)


def _limit_loop(call: LoopCall, limits: Sequence[RowLimit], limited: Sequence[Limited]) -> LoopCall:
    """Return a loop whose kernels leave out what lies beyond the limits of its members."""
    steps = zip(call.loop.segments, call.plans, strict=True)
    plans = [limit_rows(p, list(limits_of_step(call.loop, s, limits, limited).values()), True) for s, p in steps]
    return replace(call, plans=plans)


def _limit_copies(calls: list[Any], limit: RowLimit, plan: Plan, outside: Collection[Tensor]) -> None:
    """Limit calls that write tensors which the graph does not have, such as those of another layout, where all readers
    read rows of their own, below the limit."""
    known = set(postorder((*plan.graph.roots, *plan.graph.gradients)))
    for n in reversed(range(len(calls))):
        call = calls[n]
        if not isinstance(call, KernelCall):
            continue
        written = {t for t, w in zip(call.tensors, call.written, strict=True) if w}
        if not written & known and all(_reads_own_rows(c, written) for c in calls[n + 1 :]):
            calls[n] = limit_call(call, Limiting(limit, {(t, 0) for t in written}, plan, outside, ()))


def _reads_own_rows(call: Any, tensors: set[Tensor]) -> bool:
    """Return whether a call reads of some tensors only rows of its own, and none beyond its limit."""
    if not isinstance(call, KernelCall):
        return False
    places = {n for n, t in enumerate(call.tensors) if t in tensors}
    return not places or places <= find_own_rows(call.kernel)


def check_limited(plan: Plan, limits: Sequence[RowLimit], is_left_out: Callable[[Kernel], bool]) -> None:
    """Raise UnlimitedError where a kernel of a plan of `limit_rows` takes time for rows beyond a limit.

    is_left_out: whether the code of a kernel with a limit leaves out rows beyond it.
    """
    for call in plan.calls:
        if not isinstance(call, KernelCall):
            raise UnlimitedError("a recurrence computes all of the capacity")
    for _, call, _ in plan.kernel_calls():
        # Extents that come of the size, such as those of rows of all images, are multiples of it.
        ends = all(_ends_below(call, x) for x in limits if x.extent)
        if ends or (_has_limit(call.kernel) and is_left_out(call.kernel)):
            continue
        text = ", ".join(f"{t.dtype.name}{list(t.shape)}" for t, w in zip(call.tensors, call.written, strict=True) if w)
        raise UnlimitedError(f"the kernel of {text} computes all of the capacity")


def _ends_below(call: KernelCall, limit: RowLimit) -> bool:
    """Return whether a kernel that has no limit takes no time for rows beyond it: none of its buffers has rows, or it
    only reads rows, and guards exclude all reads beyond the limit."""
    sized = [size(t.shape) % limit.extent == 0 for t in call.tensors]
    if not any(sized):
        return True
    kernel = call.kernel
    if isinstance(kernel, Rows) or any(s and w for s, w in zip(sized, call.written, strict=True)):
        return False
    for stage in kernel.stages:
        buffers = {n: b for n, (kind, b, *_) in enumerate(stage.args) if kind == "buffer"}
        numbers = [Read(n, (), dt.i32) for n, b in buffers.items() if call.tensors[b] is limit.leaf]
        for part in stage.template.parts:
            for read, facts in reads_under(part):
                is_sized = read.slot in buffers and sized[buffers[read.slot]]
                if is_sized and not is_below(read.index[0], (), facts, numbers):
                    return False
    return True


def _has_limit(kernel: Kernel) -> bool:
    if isinstance(kernel, Rows) and kernel.active is not None:
        return True
    return all(map(has_row_limit, kernel.parts))


def find_short(plan: Plan, is_untouched: Callable[[Kernel], bool]) -> set[Tensor]:
    """Return the tensors outside the arena that need no memory beyond the limit of their rows: no kernel touches any.

    is_untouched: whether the code of a kernel touches no row beyond its limit.
    """
    if any(not isinstance(c, KernelCall) for c in plan.calls):  # a loop moves through tensors
        return set()
    short: dict[Tensor, bool] = {}
    for _, call, _ in plan.kernel_calls():
        own = find_own_rows(call.kernel) if is_untouched(call.kernel) else set()
        for n, t in enumerate(call.tensors):
            base = storage(t)
            owner = plan.home.get(base, base)
            is_own = n in own and t is owner and not (call.offsets and call.offsets[n])
            short[owner] = short.get(owner, True) and is_own
    return {t for t, is_short in short.items() if is_short}


def find_own_rows(kernel: Kernel) -> set[int]:
    """Return the buffers of which a kernel that has a limit reads and writes only the rows of its own."""
    if isinstance(kernel, Rows):
        return {n for n, axes in row_axes(kernel).items() if axes == {1}} if ends_rows(kernel) else set()
    if not has_row_limit(kernel):
        return set()
    rows = {n for n, b in enumerate(kernel.buffers) if b.shape[:1] == kernel.shape[:1]}
    for stage in kernel.stages:
        for read in (x for part in stage.template.parts for body in part.bodies for x in reads(body)):
            kind, n, *_ = stage.args[read.slot]
            if kind == "buffer" and not (read.index and read.index[0] is Axis(0)):
                rows.discard(n)
    return rows
