"""Store the images of an integer program channels last where the whole program is predicted to gain.

before: t0[n, c, y, x], t1[n, c, y, x], ... of a network in 8-bit integers
after:  all with one element from one channel to the next

The search over single tensors (`choice`) cannot find this: a kernel gains only where its operands and its result change
together, and each change alone costs. Sums of integers have words of several channels, which lie side by side then.
"""

from __future__ import annotations

from einsmith.base.errors import CompileError
from einsmith.ir.nodes import Piece, Reduce, Tensor
from einsmith.ir.views import storage
from einsmith.schedule.graph_decisions import ORDER
from einsmith.schedule.kernel import Kernel
from einsmith.schedule.layout.apply import LayoutDecision, free_tensors, reorder_call
from einsmith.schedule.layout.dimension_orders import candidates, innermost, row_major_order
from einsmith.schedule.layout.price import Prices
from einsmith.schedule.plan import KernelCall, LayoutChoice, Order, Plan

LEAST_GAIN = 0.015
"""Least predicted gain, as a fraction of the program's time, for which its images change. Of ten programs in 8-bit
integers (`python -m benchmarks.precision formats`), those that were predicted to gain 2 to 4 % gained -1 to 8 %, the
others lost."""


def all_channels_last(plan: Plan, prices: Prices) -> LayoutDecision | None:
    """Return the decision to store all images channels last; None if that does not pay, or if the plan has no sums of
    integers."""
    calls = [c for c in plan.calls if isinstance(c, KernelCall)]
    is_decided = any(x.startswith(f"{ORDER} ") for x in plan.decisions)
    if is_decided or not any(_sums_integers(part) for c in calls for part in c.kernel.parts):
        return None
    orders: dict[Tensor, Order] = {}
    for t in free_tensors(plan):
        order = innermost(t.shape, 1) if len(t.shape) >= 4 else ()
        if order in candidates(t.shape)[1:]:
            orders[t] = order
    moved: list[KernelCall | None] = [None]
    while orders and None in moved:
        moved = [reorder_call(c, orders) for c in calls]
        for call, new in zip(calls, moved, strict=True):
            if new is None:  # it merges channels and pixels, as a fully connected layer may
                orders = {t: o for t, o in orders.items() if t not in set(map(storage, call.tensors))}
    try:
        after = sum(prices.seconds(c.kernel) for c in moved if c is not None)
    except CompileError:
        return None
    before = sum(map(prices.now, calls))
    if not orders or before - after < LEAST_GAIN * before:
        return None
    return LayoutDecision({t: LayoutChoice(o, row_major_order(t.shape), before - after) for t, o in orders.items()})


def _sums_integers(kernel: Kernel) -> bool:
    """Return whether the root of a kernel sums integers."""
    bodies = [part.body for part in kernel.root.parts if isinstance(part, Piece)]
    return any(isinstance(b, Reduce) and b.combiner == "sum" and b.bodies[0].dtype.is_int for b in bodies)
