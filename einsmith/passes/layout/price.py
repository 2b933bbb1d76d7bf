"""What a call costs by the orders of what it touches: known where the cost model was asked, else no less than a floor.

In orders other than as they are, a kernel counts more than is predicted (`doubt`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from math import inf, prod

from einsmith.errors import CompileError
from einsmith.expr.nodes import Reduce, Tensor
from einsmith.passes.layout.folded import own_elements
from einsmith.passes.layout.laid_out import call_in
from einsmith.passes.layout.order import Order
from einsmith.passes.schedule.plan import KernelCall
from einsmith.passes.schedule.views import storage
from einsmith.plan.footprint import touched
from einsmith.plan.kernel import Kernel, Rows
from einsmith.target.facts import Target

DOUBT, DOUBT_OF_SUMS = 0.3, 1.0
"""The part by which a prediction for other orders than as they are is taken to be too low; the latter of sums whose
operands lie otherwise, which are gathered at strides that the model of contractions has not been measured for: `python
-m benchmarks.layouts`. Kernels of networks were 0.93 times as fast as predicted in the median, and less than 0.2 times
in one case of ten, all of them such sums; windows in steps of two were faster than predicted."""

Seconds = Callable[[Kernel | Rows], float]
"""What the cost model predicts of a kernel, which raises CompileError where no pattern takes it."""


class Prices:
    """Costs of calls on a target. bound: the seconds that a kernel takes by the model at least, in whatever order its
    tensors lie. asked: how many kernels the model was asked for."""

    def __init__(self, seconds: Seconds, target: Target, bound: Callable[[Kernel], float] = lambda kernel: 0.0):
        self.seconds, self.target, self.bound = seconds, target, bound
        self.asked = 0
        self._known: dict[Kernel | Rows, float] = {}

    def now(self, call: KernelCall) -> float:
        """As everything lies as it is. It is no question: the kernel is compiled, mostly."""
        if call.kernel not in self._known:
            self._known[call.kernel] = self.seconds(call.kernel)
        return self._known[call.kernel]

    def least(self, call: KernelCall, closely: bool = False) -> float:
        """What the call costs in other orders at least; closely: by what the model says, too. Kernels share their rows
        in the order in which these lie, and go through memory once already: another order is not looked to for a gain.
        """
        if isinstance(call.kernel, Rows):
            return self.now(call)
        return (1 + DOUBT) * max(floor(call.kernel, self.target), self.bound(call.kernel) if closely else 0.0)

    def ask(self, call: KernelCall, orders: Mapping[Tensor, Order]) -> float:
        """In other orders; inf where that cannot be."""
        moved = call_in(call, orders)
        if moved is None:
            return inf
        if moved.kernel not in self._known:
            self.asked += 1
            try:
                self._known[moved.kernel] = self.seconds(moved.kernel)
            except CompileError:
                self._known[moved.kernel] = inf
        return (1 + doubt(call, orders)) * self._known[moved.kernel]


def doubt(call: KernelCall, orders: Mapping[Tensor, Order]) -> float:
    """What is not to be relied on of the prediction for a call in other orders, as a part of it."""
    kernel = call.kernel
    if isinstance(kernel, Rows) or not sums(kernel):
        return DOUBT
    own = own_elements(kernel)
    operands = (t for n, t in enumerate(call.tensors) if n not in own)
    return DOUBT_OF_SUMS if any(storage(t) in orders for t in operands) else DOUBT


def sums(kernel: Kernel) -> int:
    """Bytes of the terms that a kernel's root sums."""
    found = 0
    for part in kernel.root.parts:
        body = part.body
        if isinstance(body, Reduce) and body.combiner == "sum" and body.bodies[0].dtype.is_float:
            found += prod(part.domain) * body.bodies[0].dtype.itemsize
    return found


@lru_cache(maxsize=4096)
def floor(kernel: Kernel, target: Target) -> float:
    """Seconds that a kernel takes at least, however its tensors lie: sums of products at the peak, or the bytes that it
    touches."""
    moved = float(sum(touched(kernel)))
    # In Winograd's form a product of 3 x 3 points takes 36 / 16 multiplications in the place of 9.
    rate = 4 * target.fma_per_second * target.cores * (4.0 if target.winograd else 1.0)
    return max(sums(kernel) / rate, target.seconds_for_bytes(moved, moved, target.cores))
