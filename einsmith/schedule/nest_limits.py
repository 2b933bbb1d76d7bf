"""Hand the limits of the kernels of a block on to the sweeps that join them.

A kernel whose axis is the row of a sweep makes the sweep end at the limit, if all kernels of the sweep do; along other
axes, the kernel as a member of the sweep ends there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from einsmith.base import dtypes as dt
from einsmith.ir.nodes import Axis, Expr, Read, apply
from einsmith.schedule.block_kernels import BlockKernel
from einsmith.schedule.kernel import Activity, KernelBuffer, LimitedKernel, Member, Rows
from einsmith.schedule.limited_calls import add_limits, add_place, is_neutral


def with_limits(kernel: BlockKernel, limits: Mapping[int, int]) -> BlockKernel:
    """Return a plain kernel that ends at limits, given by output axis as places."""
    if not limits:
        return kernel
    out, places = kernel
    for place in dict.fromkeys(limits.values()):
        out = add_limits(out, [a for a, p in limits.items() if p == place])
        places = (*places, place)
    return BlockKernel(out, places)


def limit_sweep(sweep: Rows, at: tuple[int, ...], limits: Sequence[Mapping[int, int]]) -> BlockKernel:
    """Return a sweep that ends at limits.

    Args:
        sweep: the sweep.
        at: the place of each of its buffers.
        limits: for each member, output axis -> place of the limit.
    """
    limits = [{} if m.follows is not None else x for m, x in zip(sweep.members, limits, strict=True)]
    for place in sorted({p for some in limits for p in some.values()} - set(at)):
        sweep, at = add_place(sweep, KernelBuffer(dt.i32, ())), (*at, place)
    members = [_limited(m, x, at) for m, x in zip(sweep.members, limits, strict=True)]
    ends = {x.get(m.axis) for m, x in zip(sweep.members, limits, strict=True) if not m.reduces}
    active = sweep.active
    if len(ends) == 1 and (end := ends.pop()) is not None:
        number = at.index(end)
        if all(is_neutral(m, number) for m in sweep.members if m.reduces):
            below = apply("lt", Axis(0), Read(number, (), dt.i32))
            active = Activity(below, (), 0, False) if active is None else _and(active, below)
    return BlockKernel(Rows(sweep.rows, tuple(members), sweep.buffers, sweep.local, active), at)


def _and(active: Activity, condition: Expr) -> Activity:
    return Activity(apply("and", active.condition, condition), active.extents, active.block, active.some)


def _limited(member: Member, limits: Mapping[int, int], at: Sequence[int]) -> Member:
    """Return a member of a sweep that ends at the limits of axes other than the row."""
    others = {a: at.index(p) for a, p in limits.items() if member.reduces or a != member.axis}
    if not others:
        return member
    kernel, places = with_limits(BlockKernel(member.kernel, member.places), others)
    assert isinstance(kernel, LimitedKernel)
    by_row = (*member.by_row, *(0 for _ in range(len(places) - len(member.places))))
    return Member(kernel, places, by_row, member.reduces, member.axis)
