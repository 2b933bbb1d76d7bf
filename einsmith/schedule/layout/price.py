"""Price calls by the orders of their tensors: by the cost model where it was queried, else by a lower bound.

A prediction for orders other than the tensors' own is increased by a margin (`margin`, `Target.layouts`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from math import inf, prod

from einsmith.base.errors import CompileError
from einsmith.cost.facts import Target
from einsmith.ir.nodes import Reduce, Tensor
from einsmith.ir.views import storage
from einsmith.schedule.footprint import bytes_by_buffer
from einsmith.schedule.kernel import Kernel, Rows
from einsmith.schedule.layout.apply import reorder_call
from einsmith.schedule.layout.folded import own_elements
from einsmith.schedule.plan import KernelCall, Order

Seconds = Callable[[Kernel], float]
"""Predicts the seconds of a kernel; raises CompileError if no pattern accepts it."""


class Prices:
    """Costs of calls on a target. bound: gives the least seconds of a kernel by the model, whatever the orders of its
    tensors. queries: number of kernels for which the model was queried."""

    def __init__(self, seconds: Seconds, target: Target, bound: Callable[[Kernel], float] = lambda kernel: 0.0):
        self.seconds, self.target, self.bound = seconds, target, bound
        self.queries = 0
        self._known: dict[Kernel, float] = {}

    def now(self, call: KernelCall) -> float:
        """Return the predicted seconds of a call with all orders unchanged. The query does not count in `queries`,
        because the kernel is usually compiled anyway."""
        if call.kernel not in self._known:
            self._known[call.kernel] = self.seconds(call.kernel)
        return self._known[call.kernel]

    def lower_bound(self, call: KernelCall, closely: bool = False) -> float:
        """Return a lower bound (seconds) of a call's cost in other orders; `closely` includes the bound by the model. A
        row-fused kernel has no gain to look for, because its rows are in the stored order and pass through memory once,
        so its bound is its present cost."""
        if isinstance(call.kernel, Rows):
            return self.now(call)
        return (1 + self.target.layouts.margin) * max(
            _lower_bound(call.kernel, self.target), self.bound(call.kernel) if closely else 0.0
        )

    def query(self, call: KernelCall, orders: Mapping[Tensor, Order]) -> float:
        """Return the predicted seconds of a call in other orders; inf if a kernel cannot have them."""
        moved = reorder_call(call, orders)
        if moved is None:
            return inf
        if moved.kernel not in self._known:
            self.queries += 1
            try:
                self._known[moved.kernel] = self.seconds(moved.kernel)
            except CompileError:
                self._known[moved.kernel] = inf
        return (1 + margin(call, orders, self.target)) * self._known[moved.kernel]


def margin(call: KernelCall, orders: Mapping[Tensor, Order], target: Target) -> float:
    """Return the margin, as a fraction, by which the prediction for a call in other orders is increased."""
    rules = target.layouts
    return rules.margin_of_sums if sums_operand(call, orders) else rules.margin


def sums_operand(call: KernelCall, tensors: Collection[Tensor]) -> bool:
    """Return whether a call sums terms, and reads one of these storages elsewhere than at the element that it
    computes."""
    if isinstance(call.kernel, Rows) or not summed_bytes(call.kernel):
        return False
    own = own_elements(call.kernel)
    return any(storage(t) in tensors for n, t in enumerate(call.tensors) if n not in own)


def summed_bytes(kernel: Kernel) -> int:
    """Return the bytes of the terms that a kernel's root sums."""
    total = 0
    for part in kernel.root.parts:
        body = part.body
        if isinstance(body, Reduce) and body.combiner == "sum" and body.bodies[0].dtype.is_float:
            total += prod(part.domain) * body.bodies[0].dtype.itemsize
    return total


@lru_cache(maxsize=4096)
def _lower_bound(kernel: Kernel, target: Target) -> float:
    """Return the least seconds of a kernel, whatever the orders of its tensors: sums of products at peak rate, or the
    transfer of the bytes that it touches."""
    moved = float(sum(bytes_by_buffer(kernel)))
    # In Winograd's form a product of 3 x 3 points takes 36 / 16 multiplications in the place of 9.
    rate = 4 * target.fma_per_second * target.cores * (4.0 if target.winograd else 1.0)
    return max(summed_bytes(kernel) / rate, target.seconds_for_bytes(moved, moved, target.cores))
