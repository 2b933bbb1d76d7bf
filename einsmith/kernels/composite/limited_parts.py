"""Derive the limits of a composite's parts from those of its kernel.

A part computes what the kernel's results, or later parts, read. Where all of these read at their own position along an
axis that ends at a limit, the part ends there, too:

    T[c, r, n, p] = sum[k](W[k, c, r] * dY[n, k, p]);  dX[n, c, h] = sum[r](T[c, r, n, h - r])        n ends at a limit
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from einsmith.ir.nodes import Axis, Read, postorder
from einsmith.schedule.kernel import Beyond, Kernel, LimitedKernel, limits_of
from einsmith.schedule.limited_calls import has_whole_axis
from einsmith.schedule.limits import find_own_rows

_Ends = dict[tuple[int, int], int]
"""The buffer of the limit, by stride and extent of the dimension of a buffer that ends at it."""


@lru_cache(maxsize=1024)
def limit_parts(kernel: Kernel, parts: tuple[Kernel, ...]) -> tuple[Kernel, ...]:
    """Return the kernels into which a kernel is divided, in the order in which they run, with the limits that follow
    from its own (`LimitedKernel`)."""
    if not isinstance(kernel, LimitedKernel):
        return parts
    stored: dict[int, _Ends] = {}
    for n in kernel.outputs:
        b = kernel.buffers[n]
        same = b.shape == kernel.shape
        stored[n] = {(b.strides[a], b.shape[a]): limit for a, limit in kernel.limits if same}
    out: list[Kernel] = []
    for n in reversed(range(len(parts))):
        for buffer in {*parts[n].outputs} - stored.keys():
            stored[buffer] = _ends_of_reads(out, buffer)
        out.insert(0, _limit_part(parts[n], stored, kernel.is_short))
    return tuple(out)


def _limit_part(part: Kernel, stored: dict[int, _Ends], is_short: bool) -> Kernel:
    """Return a part whose axes end where its results are no longer read. stored: the limits of each buffer's axes."""
    limits = []
    for a, extent in enumerate(part.shape):
        ends = [
            stored[n].get((b.strides[a], extent)) if (b := part.buffers[n]).shape == part.shape else None
            for n in part.outputs
        ]
        if ends[0] is not None and len({*ends}) == 1 and has_whole_axis(part, a, extent):
            limits.append((a, ends[0]))
    if not limits:
        return part
    return LimitedKernel(part.stages, part.buffers, part.loop_invariant, part.sums, tuple(limits), is_short)


def _ends_of_reads(parts: Sequence[Kernel], buffer: int) -> _Ends:
    """Return where all reads of a buffer by the parts end."""
    ends: list[_Ends] = []
    for part in (p for p in parts if buffer < len(p.buffers)):
        limits, b = limits_of(part), part.buffers[buffer]
        for stage in part.stages:
            for read in postorder([x for p in stage.template.parts for x in p.bodies]):
                if isinstance(read, Read) and stage.args[read.slot][:2] == ("buffer", buffer):
                    own = [(d, i.position) for d, i in enumerate(read.index) if isinstance(i, Axis)]
                    ends.append({(b.strides[d], b.shape[d]): limits[a] for d, a in own if a in limits})
    first, *others = ends or [{}]
    return {key: limit for key, limit in first.items() if all(x.get(key) == limit for x in others)}


def beyond_of_parts(kernel: Kernel, parts: Sequence[Kernel], beyond: Sequence[Beyond]) -> Beyond:
    """Return what the code of a kernel with a limit does in rows beyond it, from what the codes of its parts do."""
    least = min(beyond)
    if least is not Beyond.UNTOUCHED:
        return least
    rows = find_own_rows(kernel)
    return Beyond.TOUCHED if any(rows & _used(part) - find_own_rows(part) for part in parts) else Beyond.UNTOUCHED


def _used(kernel: Kernel) -> set[int]:
    """Return the buffers that a kernel reads or writes."""
    return {*kernel.outputs} | {arg[1] for s in kernel.stages for arg in s.args if arg[0] == "buffer"}
