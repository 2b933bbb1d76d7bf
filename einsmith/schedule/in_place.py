"""Reuse memory in place: store a result over an operand that its kernel reads for the last time.

A kernel may overwrite an element after reading it if it reads nothing else of that tensor (`schedule.kernel.Kernel`).
If the kernel that reads a tensor for the last time computes one of the same shape and dimension order, both share one
place in the arena: gradients of activations overwrite the activations, sums of branches overwrite a branch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from einsmith.ir.nodes import Tensor
from einsmith.ir.views import storage
from einsmith.schedule.fusion import reads_own_element
from einsmith.schedule.kernel import Kernel, Member, Rows
from einsmith.schedule.plan import KernelCall, LoopCall
from einsmith.schedule.step_loops import StepLoop

Known = dict[tuple[int, Tensor, Tensor], tuple[KernelCall, bool]]
"""Cache of (call id, result, operand) -> (call, whether the result may overwrite the operand). It holds the call so
that its id stays unique."""


def find_overwrites(
    calls: Sequence[KernelCall | LoopCall], lives: Mapping[Tensor, tuple[int, int]], known: Known | None = None
) -> dict[Tensor, Tensor]:
    """Map each result that can be stored over an operand to that operand.

    Args:
        calls: the calls of a plan in order.
        lives: first and last call of each tensor in the arena.
        known: cache of earlier answers, which is extended.
    """
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
                    known[id(call), t, s] = call, _can_overwrite(call, t, s)
                if known[id(call), t, s][1]:
                    out[t] = s
                    free.remove(s)
                    break
    return out


def _can_overwrite(call: KernelCall, result: Tensor, operand: Tensor) -> bool:
    """Return whether a call may write its result over an operand."""
    if isinstance(call.kernel, StepLoop):
        return False  # later steps read what they may
    own = _places(call, operand, False)
    offsets = call.offsets or (0,) * len(call.tensors)
    places = {(call.kernel.buffers[n].strides, offsets[n]) for n in (*own, *_places(call, result, True))}
    alike = [(t := call.tensors[n]).shape == result.shape and t.dtype.itemsize == result.dtype.itemsize for n in own]
    if not alike or not all(alike) or len(places) > 1:
        return False
    return (
        _can_overwrite_in_row(call, call.kernel, result, operand)
        if isinstance(call.kernel, Rows)
        else reads_own_elements(call.kernel, own)
    )


def _places(call: KernelCall, t: Tensor, written: bool) -> list[int]:
    """Return the buffers in which a call reads (or, if `written`, writes) a tensor's memory. For a recomputation, the
    call's nodes may belong to other tensors than its buffers do."""
    places = enumerate(zip(call.tensors, call.written, strict=True))
    return [n for n, (a, w) in places if w == written and storage(a) is t]


def reads_own_elements(kernel: Kernel, own: Collection[int]) -> bool:
    """Return whether a kernel reads the buffers `own`, if at all, only at the element that it computes."""
    for stage in kernel.stages:
        slots = [slot for slot, ref in enumerate(stage.args) if ref[0] == "buffer" and ref[1] in own]
        if slots and not reads_own_element(stage.template, slots):
            return False
    return True


def _can_overwrite_in_row(call: KernelCall, rows: Rows, result: Tensor, operand: Tensor) -> bool:
    """Return whether a row-fused kernel may write `result` over `operand`: no member reads the operand after the one
    that writes a row, and earlier members read only the current row."""
    if rows.reuses:
        return False  # its nests run members in parts, in another order
    row_axes: set[int] = set()
    written = False
    for part, member in zip(call.parts, rows.members, strict=True):
        own, stores = _places(part, operand, False), _places(part, result, True)
        if written and own:
            return False
        row_axes.update(member.by_row[n] for n in (*own, *stores))
        if stores:
            written = True
            if member.reduces or isinstance(part.kernel, Rows) or not reads_own_elements(part.kernel, own):
                return False
        elif not _reads_within_row(member, own):
            return False
    return written and len(row_axes) == 1 and 0 not in row_axes


def _reads_within_row(member: Member, own: Sequence[int]) -> bool:
    """Return whether a member reads the buffers `own` only within a row, not after all rows."""
    later = member.kernel.stages[1:] if member.reduces else ()
    return not any(ref[0] == "buffer" and ref[1] in own for s in later for ref in s.args)
