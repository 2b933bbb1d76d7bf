"""Determine the role of each kernel of a plan: forward, backward or update.

It follows from the roles of the nodes that the kernel computes (`Graph.role`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from einsmith.ir.loop import LoopSegment, LoweredLoop
from einsmith.ir.nodes import ROLES, Graph, Item, Role, Tensor, assign_roles, earliest_role
from einsmith.ir.views import storage
from einsmith.schedule.plan import KernelCall, LoopCall, Plan


def kernel_roles(plan: Plan) -> list[Role]:
    """Return the role of every kernel, in the order of `Plan.kernel_calls`: the earliest of its nodes' roles. An update
    in the kernel of its gradient is backward."""
    return list(_roles(plan, plan.graph.role))


def saved_results(plan: Plan) -> list[Tensor]:
    """Return the results of the forward pass that later kernels read, which are kept for the backward pass."""
    role = plan.graph.role
    results: dict[Tensor, None] = {}
    read: set[Tensor] = set()
    for call, own in zip(plan.calls, _call_roles(plan, role), strict=True):
        forward = own == "forward"
        for t, written in zip(call.tensors, call.written, strict=True):
            if forward and written:
                results[storage(t)] = None
            elif not forward and not written:
                read.add(storage(t))
    return [t for t in results if t in read]


def _roles(plan: Plan, role: Mapping[Any, Role]) -> Iterator[Role]:
    for call, own in zip(plan.calls, _call_roles(plan, role), strict=True):
        if isinstance(call, KernelCall):
            yield own
        else:
            yield from _loop_roles(call, role, own)


def _call_roles(plan: Plan, role: Mapping[Any, Role]) -> list[Role]:
    """Return, for each call, the earliest role of its nodes. A call that only recomputes serves the gradients; a copy
    in another order has the role of the next call."""
    out: list[Role] = []
    for call in reversed(plan.calls):
        again: Role = "backward" if call.nodes or not out else out[-1]
        out.append(earliest_role(role[n] for n in call.own) if call.own else again)
    return out[::-1]


def _loop_roles(call: LoopCall, role: Mapping[Any, Role], own: Role) -> Iterator[Role]:
    """Yield the roles of a loop's kernels, `own` being the role of the loop. Kernels of a step that compute a member
    have that member's role."""
    members = _member_roles(call.loop, role)
    for c in call.before:
        computed = (t.member for t, w in zip(c.tensors, c.written, strict=True) if w and isinstance(t, Item))
        yield earliest_role(members.get(j, own) for j in computed)
    for segment, plan in zip(call.loop.segments, call.plans, strict=True):
        step_roles = _step_roles(segment, plan.graph, members, own)
        yield from _roles(plan, dict.fromkeys(plan.graph.role, own) | step_roles)


def _member_roles(loop: LoweredLoop, role: Mapping[Any, Role]) -> dict[int, Role]:
    """Return the role of each member: the earliest role of its readers after the loop and at later steps."""
    members = {j: role[t] for j in range(len(loop.results)) if (t := Item(loop, j)) in role}
    before: dict[int, Role] = {}
    while before != members:
        before = dict(members)
        for segment in loop.segments:
            for x, r in _step_roles(segment, segment.body, members, None).items():
                place = segment.places[segment.body.inputs.index(x)] if x in segment.body.inputs else None
                if place is not None and place.kind == "member":
                    members[place.number] = earliest_role((r, members.get(place.number, r)))
    return members


def _step_roles(
    segment: LoopSegment, body: Graph, members: Mapping[int, Role], default: Role | None
) -> dict[Any, Role]:
    """Return the roles of a step's nodes: the role of the member that each is computed for, `default` for a member
    without one."""
    places = dict(zip(segment.body.inputs, segment.places, strict=True))
    computed = [(t, j) for t, (j, _) in zip(body.outputs, segment.targets, strict=True)]
    computed += [(t, places[x].number) for x, t in body.updates]
    return assign_roles({r: [t for t, j in computed if members.get(j, default) == r] for r in ROLES})
