"""Override the layout model's choice of orders, for tests and experiments.

with forced.forcing(lambda t, orders: orders[-1]):
    y = f(x)          # every tensor of a program that is compiled here has the last of its possible orders
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from einsmith.ir.nodes import Tensor
from einsmith.ir.views import storage
from einsmith.schedule.layout.apply import LayoutDecision, free_tensors, reorder_call
from einsmith.schedule.layout.dimension_orders import candidates, row_major_order
from einsmith.schedule.plan import KernelCall, LayoutChoice, Order, Plan

Rule = Callable[[Tensor, Sequence[Order]], Order]
"""Chooses the order of a tensor from those that all its kernels have strides for; row-major is the first."""
_RULE: ContextVar[Rule | None] = ContextVar("rule", default=None)


@contextmanager
def forcing(rule: Rule) -> Iterator[None]:
    """Compile programs inside the `with` block with the orders that `rule` chooses."""
    token = _RULE.set(rule)
    try:
        yield
    finally:
        _RULE.reset(token)


def is_active() -> bool:
    """Return whether a rule chooses the orders of programs that are compiled now."""
    return _RULE.get() is not None


def decide(plan: Plan) -> LayoutDecision | None:
    """Return the forced orders of a plan's tensors; None if no rule is active."""
    rule = _RULE.get()
    if rule is None:
        return None
    readers: dict[Tensor, list[KernelCall]] = {}
    for call in plan.calls:
        if isinstance(call, KernelCall):
            for s in dict.fromkeys(map(storage, call.tensors)):
                readers.setdefault(s, []).append(call)
    orders: dict[Tensor, LayoutChoice] = {}
    for t in free_tensors(plan):
        able = [o for o in candidates(t.shape) if all(reorder_call(c, {t: o}) is not None for c in readers[t])]
        order = rule(t, able)
        if order != row_major_order(t.shape):
            orders[t] = LayoutChoice(order)
    return LayoutDecision(orders)
