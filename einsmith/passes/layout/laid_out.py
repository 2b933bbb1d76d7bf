"""A plan whose tensors lie in memory as is decided: its kernels with the strides that follow.

before: call 0 makes t0[n, c, y, x], call 1 reads it, c*y*x, y*x, x, 1 elements from one position to the next
after:  the same, 1 element from one channel to the next and c from one pixel to the next
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from einsmith.errors import VerifyError
from einsmith.expr.nodes import Tensor
from einsmith.passes.layout.order import Order, moved
from einsmith.passes.schedule.plan import Call, LoopCall, Plan
from einsmith.passes.schedule.views import storage
from einsmith.plan.kernel import Buffer, Kernel, Member, Rows

Orders = Mapping[Tensor, Order]
"""By storage; of what is not in it, the dimensions lie as they are."""
Decide = Callable[[Plan], Orders]
"""The orders of what is `free` in a plan."""


def free(plan: Plan) -> list[Tensor]:
    """What may lie in any order: the tensors that kernels of the plan alone make and read, in the order in which they
    are made. Inputs and results, what is stored into leaves, and what checks and loops see, lies as it is."""
    bound = {storage(t) for t in (*plan.graph.inputs, *plan.graph.roots)} | set(plan.home)
    made: dict[Tensor, None] = {}
    for call in plan.calls:
        if isinstance(call, LoopCall):
            bound.update(map(storage, call.tensors))
            for before in call.before:
                bound.update(map(storage, before.tensors))
        else:
            made |= dict.fromkeys(storage(t) for t, w in zip(call.tensors, call.written, strict=True) if w)
    return [t for t in made if t not in bound]


def laid_out(plan: Plan, decide: Decide) -> Plan:
    """The plan, and those of its loops' steps, with tensors in the orders that are decided for each plan. Raises
    VerifyError where a kernel has no strides for one."""
    orders = decide(plan)
    calls: list[Call | LoopCall] = []
    for call in plan.calls:
        if isinstance(call, LoopCall):
            calls.append(replace(call, plans=[laid_out(p, decide) for p in call.plans]))
            continue
        found = call_in(call, orders)
        if found is None:
            raise VerifyError("a kernel sees a tensor in a shape that has no strides in the order that is asked for")
        calls.append(found)
    return replace(plan, calls=calls, orders={**plan.orders, **orders})


def call_in(call: Call, orders: Orders) -> Call | None:
    """The call with its tensors in these orders; None where a buffer has no strides for one."""
    if not any(storage(t) in orders for t in call.tensors):
        return call
    offsets = call.offsets or (0,) * len(call.tensors)
    own = [_moved(t, b, at, orders) for t, b, at in zip(call.tensors, call.kernel.buffers, offsets, strict=True)]
    parts = [call_in(p, orders) for p in call.parts]
    if None in own or None in parts:
        return None
    buffers = tuple(x[0] for x in own if x is not None)
    begins = tuple(x[1] for x in own if x is not None)
    kernel: Kernel | Rows
    if isinstance(call.kernel, Kernel):
        kernel = Kernel(call.kernel.stages, buffers, call.kernel.fixed)
    else:
        members = [_member(m, call, offsets, orders) for m in call.kernel.members]
        if None in members:
            return None
        kernel = Rows(call.kernel.rows, tuple(m for m in members if m is not None), buffers, call.kernel.local)
    found = tuple(p for p in parts if p is not None)
    return replace(call, kernel=kernel, offsets=begins if any(begins) else call.offsets, parts=found)


def _moved(t: Tensor, buffer: Buffer, at: int, orders: Orders) -> tuple[Buffer, int] | None:
    """The buffer of a tensor, which begins at a byte of it, and the byte where it begins then."""
    s = storage(t)
    if s not in orders:
        return buffer, at
    found = moved(buffer, at // s.dtype.itemsize, s.shape, orders[s])
    return None if found is None else (found[0], found[1] * s.dtype.itemsize)


def _member(m: Member, call: Call, offsets: tuple[int, ...], orders: Orders) -> Member | None:
    """A member of a Rows; what is local to a row has no tensor."""
    buffers: list[Buffer] = []
    for place, b in zip(m.places, m.kernel.buffers, strict=True):
        found = _moved(call.tensors[place], b, offsets[place], orders) if place < len(call.tensors) else (b, 0)
        if found is None:
            return None
        buffers.append(found[0])
    kernel = Kernel(m.kernel.stages, tuple(buffers), m.kernel.fixed)
    return Member(kernel, m.places, m.by_row, m.reduces, m.axis)
