"""Inline finished functions into other ones and rebind their buffers, to build kernels out of kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from einsmith.codegen.loopnest.nest import I64, PTR, Builder, Function, If, Loop, Op, SSAValue

_FRESH = 1 << 30  # value ids from here on are given by no builder


def splice(
    b: Builder,
    f: Function,
    buffers: Sequence[SSAValue],
    scratch: SSAValue,
    task: SSAValue,
    loads: Mapping[int, SSAValue | int] = MappingProxyType({}),
) -> Mapping[int, SSAValue]:
    """Inline the body of `f` for one task into the region that is open in `b`, on the given buffers and scratch area;
    return the values by the ids that they have in `f`.

    before: f(buffers p, q; scratch s; task t) = body.  after: body with the given values for p, q, s and t.

    loads: values of the builder, or ids of earlier values of `f`, that replace loads, by the ids of the loads' results.
    """
    values: dict[int, SSAValue] = {v.id: w for v, w in zip(f.buffers, buffers, strict=True)}
    values[f.scratch.id], values[f.task.id] = scratch, task

    def rename(v: SSAValue) -> SSAValue:
        values[v.id] = b._new(v.type)
        return values[v.id]

    def lookup(old: Sequence[SSAValue]) -> tuple[SSAValue, ...]:
        return tuple(values[v.id] for v in old)

    def copy(block: list, out: list[Any]) -> None:
        for x in block:
            if isinstance(x, Loop):
                loop = replace(
                    x,
                    var=rename(x.var),
                    lo=values[x.lo.id],
                    hi=values[x.hi.id],
                    init=lookup(x.init),
                    carried=tuple(map(rename, x.carried)),
                    results=tuple(map(rename, x.results)),
                    body=[],
                )
                copy(x.body, loop.body)
                loop.next = lookup(x.next)
                out.append(loop)
            elif isinstance(x, If):
                branch = replace(x, cond=values[x.cond.id], body=[])
                copy(x.body, branch.body)
                out.append(branch)
            elif x.result is not None and x.result.id in loads:
                known = loads[x.result.id]
                values[x.result.id] = values[known] if isinstance(known, int) else known
            else:
                args = tuple(None if a is None else values[a.id] for a in x.args)
                out.append(Op(x.name, args, None if x.result is None else rename(x.result), x.attrs))

    copy(f.body, b._blocks[-1])
    return values


def rebind(f: Function, name: str, places: Sequence[tuple[int, int]], count: int) -> Function:
    """Return the function over `count` buffers, with its own buffers at `places`: (buffer's number, byte offset)."""
    # A part may itself consist of parts: then its value numbers are at or above _FRESH already.
    used = [v.id for v in (*f.buffers, *(x.result for x in f.body if isinstance(x, Op))) if v is not None]
    fresh = max(_FRESH, 1 + max(used))
    outer = [SSAValue(fresh + n, PTR) for n in range(count)]
    prologue: list[Op] = []
    for buffer, (number, start) in zip(f.buffers, places, strict=True):
        offset = SSAValue(fresh + count + len(prologue), I64)
        prologue.append(Op("const", (), offset, (start,)))
        prologue.append(Op("advance", (outer[number], offset), buffer, ("i8",)))
    return replace(f, name=name, buffers=tuple(outer), body=[*prologue, *f.body])
