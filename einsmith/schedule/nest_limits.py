"""Hand the limits of the kernels of a block on to the sweeps that join them.

A kernel whose axis is the row of a sweep makes the sweep end at the limit, if all kernels of the sweep do; along other
axes, the kernel as a member of the sweep ends there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

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


class RowSweep(NamedTuple):
    """A sweep. at: the place of each of its buffers; limits: for each member, output axis -> place of the limit."""

    rows: Rows
    at: tuple[int, ...]
    limits: Sequence[Mapping[int, int]]


def limit_sweeps(sweeps: Sequence[RowSweep]) -> list[BlockKernel]:
    """Return sweeps that end at limits. Those that are active under a condition end at the same one, as they share
    results and the block that runs where all might be left out, which lies below the limit."""
    sweeps = list(map(_with_places, sweeps))
    ends = list(map(_ends_of, sweeps))
    masked = [n for n, x in enumerate(sweeps) if x.rows.active is not None]
    common = set.intersection(*(ends[n] for n in masked)) if masked else set()
    is_dropped = not common and any(_is_guarded(sweeps[n]) for n in masked)
    out = []
    for n, (x, places) in enumerate(zip(sweeps, ends, strict=True)):
        active = None if is_dropped else x.rows.active
        end = min(common if n in masked else places, default=None)
        if end is not None:
            below = apply("lt", Axis(0), Read(x.at.index(end), (), dt.i32))
            active = Activity(below, (), 0, False) if active is None else _and(active, below)
        members = [_limited(m, limits, x.at) for m, limits in zip(x.rows.members, x.limits, strict=True)]
        out.append(BlockKernel(Rows(x.rows.rows, tuple(members), x.rows.buffers, x.rows.local, active), x.at))
    return out


def _with_places(sweep: RowSweep) -> RowSweep:
    """Return the sweep with a buffer for each limit of its members."""
    rows, at, limits = sweep
    limits = [{} if m.follows is not None else x for m, x in zip(rows.members, limits, strict=True)]
    for place in sorted({p for some in limits for p in some.values()} - set(at)):
        rows, at = add_place(rows, KernelBuffer(dt.i32, ())), (*at, place)
    return RowSweep(rows, at, limits)


def _numbers(rows: Rows) -> list[int]:
    return [n for n, b in enumerate(rows.buffers) if b.dtype is dt.i32 and not b.shape]


def _is_guarded(sweep: RowSweep) -> bool:
    """Return whether a sum over the rows leaves out those beyond a number."""
    return any(m.reduces and is_neutral(m, n) for m in sweep.rows.members for n in _numbers(sweep.rows))


def _ends_of(sweep: RowSweep) -> set[int]:
    """Return the places of limits of the rows: beyond them nothing is added, and all other results that are read are
    the sweep's own."""
    rows, at, limits = sweep

    def ends(m: Member, n: int, own: Mapping[int, int]) -> bool:
        if m.reduces:
            return is_neutral(m, n)
        return own.get(m.axis) == at[n] or all(p >= len(rows.buffers) for p in m.results)

    pairs = list(zip(rows.members, limits, strict=True))
    return {at[n] for n in _numbers(rows) if all(ends(m, n, own) for m, own in pairs)}


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
