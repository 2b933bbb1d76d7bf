"""What a call costs by the orders of what it touches: known where the cost model was asked, else no less than a floor.

In an order other than as it is, a kernel counts `DOUBT` more than is predicted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from math import inf, prod

from einsmith.errors import CompileError
from einsmith.expr.nodes import Reduce, Tensor
from einsmith.passes.layout.laid_out import call_in
from einsmith.passes.layout.order import Order
from einsmith.passes.schedule.plan import Call
from einsmith.plan.footprint import touched
from einsmith.plan.kernel import Kernel, Rows
from einsmith.target.facts import Target

DOUBT = 0.3
"""The part by which a prediction for other orders than as they are is taken to be too low: `python -m
benchmarks.layouts`. Contractions of networks that were predicted to be 1.02 to 1.55 times as fast were 0.5 to 1.6 times
as fast, while windows in steps of two were faster by more than was predicted."""

Seconds = Callable[[Kernel | Rows], float]
"""What the cost model predicts of a kernel, which raises CompileError where no pattern takes it."""


class Prices:
    """Costs of calls on a target. asked: how many kernels the model was asked for."""

    def __init__(self, seconds: Seconds, target: Target):
        self.seconds, self.target = seconds, target
        self.asked = 0
        self._known: dict[Kernel | Rows, float] = {}

    def now(self, call: Call) -> float:
        """As everything lies as it is. It is no question: the kernel is compiled, mostly."""
        if call.kernel not in self._known:
            self._known[call.kernel] = self.seconds(call.kernel)
        return self._known[call.kernel]

    def least(self, call: Call) -> float:
        """What the call costs in other orders at least. Kernels share their rows in the order in which these lie, and
        go through memory once already: another order is not looked to for a gain."""
        if isinstance(call.kernel, Rows):
            return self.now(call)
        return (1 + DOUBT) * floor(call.kernel, self.target)

    def ask(self, call: Call, orders: Mapping[Tensor, Order]) -> float:
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
        return (1 + DOUBT) * self._known[moved.kernel]


@lru_cache(maxsize=4096)
def floor(kernel: Kernel, target: Target) -> float:
    """Seconds that a kernel takes at least, however its tensors lie: sums of products at the peak, or the bytes that it
    touches."""
    moved = float(sum(touched(kernel)))
    terms = 0.0
    for part in kernel.root.parts:
        body = part.body
        if isinstance(body, Reduce) and body.combiner == "sum" and body.bodies[0].dtype.is_float:
            terms += prod(part.domain) * body.bodies[0].dtype.itemsize / 4
    # In Winograd's form a product of 3 x 3 points takes 36 / 16 multiplications in the place of 9.
    spared = 4.0 if target.winograd else 1.0
    return max(
        terms / (target.fma_per_second * target.cores * spared), target.seconds_for_bytes(moved, moved, target.cores)
    )
