"""Results in the memory of what their kernel reads last.

A kernel may write an element where it has read that element, and nothing else of it (`plan.kernel.Kernel`). Where a
tensor ends with the kernel that makes another one of the same shape, whose dimensions lie in the same order, the two
are one place in the arena: gradients of activations lie where the activations were, sums of branches where a branch
was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from einsmith.expr.nodes import Tensor
from einsmith.passes.schedule.fusion import reads_own_element
from einsmith.passes.schedule.plan import KernelCall, LoopCall
from einsmith.passes.schedule.views import storage
from einsmith.plan.kernel import Kernel, Member, Rows

Known = dict[tuple[int, Tensor, Tensor], tuple[KernelCall, bool]]
"""Of a call's number (which it keeps as long as it is held here), a result and what is read: whether it may be."""


def overwritten(
    calls: Sequence[KernelCall | LoopCall], lives: Mapping[Tensor, tuple[int, int]], known: Known | None = None
) -> dict[Tensor, Tensor]:
    """By result, whose place it takes; `lives`: of what lies in the arena, the first call and the last one; `known`:
    what was found before."""
    known = {} if known is None else known
    ends: dict[int, list[Tensor]] = {}
    for s, (first, last) in lives.items():
        if first < last:
            ends.setdefault(last, []).append(s)
    out: dict[Tensor, Tensor] = {}
    for i, call in enumerate(calls):
        free = ends.get(i, [])
        if not free or not isinstance(call, KernelCall):
            continue
        for t, w in zip(call.tensors, call.written, strict=True):
            if not w or t not in lives or lives[t][0] != i:
                continue
            for s in free:
                if (id(call), t, s) not in known:
                    known[id(call), t, s] = call, _may_take(call, t, s)
                if known[id(call), t, s][1]:
                    out[t] = s
                    free.remove(s)
                    break
    return out


def _may_take(call: KernelCall, made: Tensor, read: Tensor) -> bool:
    """Whether a result may be written over a tensor that the call reads."""
    own = _places(call, read, False)
    places = {call.kernel.buffers[n].strides for n in (*own, *_places(call, made, True))}
    alike = [(t := call.tensors[n]).shape == made.shape and t.dtype.itemsize == made.dtype.itemsize for n in own]
    if not alike or not all(alike) or len(places) > 1:
        return False
    return _in_row(call, call.kernel, made, read) if isinstance(call.kernel, Rows) else _at_own_place(call, own)


def _places(call: KernelCall, t: Tensor, written: bool) -> list[int]:
    """The buffers in which a call reads a tensor's memory, or writes it. (Its nodes may be of other tensors, where they
    are computed again.)"""
    places = enumerate(zip(call.tensors, call.written, strict=True))
    return [n for n, (a, w) in places if w == written and storage(a) is t]


def _at_own_place(call: KernelCall, own: Sequence[int]) -> bool:
    """Whether a kernel reads buffers, if at all, at the element that it makes."""
    assert isinstance(call.kernel, Kernel)
    for stage in call.kernel.stages:
        slots = [slot for slot, ref in enumerate(stage.args) if ref[0] == "buffer" and ref[1] in own]
        if slots and not reads_own_element(stage.template, slots):
            return False
    return True


def _in_row(call: KernelCall, rows: Rows, made: Tensor, read: Tensor) -> bool:
    """The same of kernels that share their rows: none after the one that writes a row may read it, and those before it
    read that row of all rows."""
    way: set[int] = set()
    written = False
    for part, member in zip(call.parts, rows.members, strict=True):
        own, stores = _places(part, read, False), _places(part, made, True)
        if written and own:
            return False
        way.update(member.by_row[n] for n in (*own, *stores))
        if stores:
            written = True
            if member.reduces or not _at_own_place(part, own):
                return False
        elif not _in_root(member, own):
            return False
    return written and len(way) == 1 and 0 not in way


def _in_root(member: Member, own: Sequence[int]) -> bool:
    """Whether a member reads buffers while it is in a row, not after all rows."""
    later = member.kernel.stages[1:] if member.reduces else ()
    return not any(ref[0] == "buffer" and ref[1] in own for s in later for ref in s.args)
