"""Inline finished functions into other ones and rebind their buffers, to build kernels out of kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from einsmith.codegen.loopnest.nest import I64, PTR, Builder, Function
from einsmith.codegen.ssa import Op, SSAValue

_FRESH = 1 << 30  # value ids from here on are given by no builder


def splice(
    b: Builder,
    f: Function,
    buffers: Sequence[SSAValue],
    scratch: SSAValue,
    task: SSAValue,
    loads: Mapping[SSAValue, SSAValue] = MappingProxyType({}),
) -> Mapping[SSAValue, SSAValue]:
    """Inline the body of `f` for one task into the region that is open in `b`, on the given buffers and scratch area;
    return the values there by those of `f`.

    before: f(buffers p, q; scratch s; task t) = body.  after: body with the given values for p, q, s and t.

    loads: values of the builder, or earlier values of `f`, that replace the results of loads.
    """
    values = dict(zip(f.buffers, buffers, strict=True)) | {f.scratch: scratch, f.task: task}

    def keep(x: Op) -> Op | None:
        if not x.results or x.result not in loads:
            return x
        known = loads[x.result]
        values[x.result] = values.get(known, known)
        return None

    b.copy(f.body, values, keep)
    return values


def rebind(f: Function, name: str, places: Sequence[tuple[int, int]], count: int) -> Function:
    """Return the function over `count` buffers, with its own buffers at `places`: (buffer's number, byte offset)."""
    # A part may itself consist of parts: then its value numbers are at or above _FRESH already.
    used = [v.id for v in (*f.buffers, *(v for x in f.body if isinstance(x, Op) for v in x.results))]
    fresh = max(_FRESH, 1 + max(used))
    outer = [SSAValue(fresh + n, PTR) for n in range(count)]
    prologue: list[Op] = []
    for buffer, (number, start) in zip(f.buffers, places, strict=True):
        offset = SSAValue(fresh + count + len(prologue), I64)
        prologue.append(Op("const", (), (offset,), (start,)))
        prologue.append(Op("advance", (outer[number], offset), (buffer,), ("i8",)))
    return replace(f, name=name, buffers=tuple(outer), body=[*prologue, *f.body])
