"""Merge tensors that share an order into one variable: an activation, its cotangent, and its saved part.

before: y = relu(conv(x)), saved; dy = conv'(dz); dx = where(y > 0, dy, 0), in one kernel; x, dx
after:  {y, dy}, {x, dx}: an operand that a kernel reads at the element that it computes has the order of the result
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from einsmith.ir.nodes import Tensor
from einsmith.ir.views import storage
from einsmith.schedule.fusion import reads_own_element
from einsmith.schedule.kernel import Kernel, Rows
from einsmith.schedule.layout.dimension_orders import candidates
from einsmith.schedule.plan import KernelCall


def folded_sets(calls: Sequence[KernelCall], free_tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """Return the tensors that may have several orders as sets that share one order, in the order in which they are
    computed."""
    into = {t: t for t in free_tensors if len(candidates(t.shape)) > 1}

    def root(t: Tensor) -> Tensor:
        while into[t] is not t:
            into[t] = into[into[t]]
            t = into[t]
        return t

    for call in calls:
        for group in _same_order_groups(call):
            shared = [s for s in map(storage, group) if s in into]
            for s in shared[1:]:
                if _kind(s) == _kind(shared[0]):
                    into[root(s)] = root(shared[0])
    sets: dict[Tensor, list[Tensor]] = {}
    for t in into:
        sets.setdefault(root(t), []).append(t)
    return list(sets.values())


def _kind(t: Tensor) -> tuple[list[int], int]:
    """Return what determines the candidate orders of a tensor: its extents above 1, and how many orders there are."""
    return [n for n in t.shape if n > 1], len(candidates(t.shape))


def _same_order_groups(call: KernelCall) -> Iterator[list[Tensor]]:
    """Yield, for each kernel of a call, its results and the operands that it reads only at the element that it
    computes."""
    if isinstance(call.kernel, Rows):
        for part in call.parts:
            yield from _same_order_groups(part)
        return
    yield [call.tensors[n] for n in own_elements(call.kernel)]


def own_elements(kernel: Kernel) -> list[int]:
    """Return the buffers that a kernel writes, and those that it reads only at the element that it computes."""
    written = kernel.outputs
    reads_own: dict[int, bool] = {}
    for stage in kernel.stages:
        for slot, ref in enumerate(stage.args):
            if ref[0] == "buffer":
                reads_own[ref[1]] = reads_own.get(ref[1], True) and reads_own_element(stage.template, [slot])
    return list(dict.fromkeys([*written, *(n for n, own in reads_own.items() if own)]))
