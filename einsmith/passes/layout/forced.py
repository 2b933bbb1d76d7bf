"""Orders that take the place of the model's choice.

with forced.forcing(lambda t, orders: orders[-1]):
    y = f(x)          # of what is compiled in here, every tensor has the last of the orders that it may have
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from einsmith.expr.nodes import Tensor
from einsmith.passes.layout.laid_out import Decided, call_in, free
from einsmith.passes.layout.order import Order, as_is, candidates
from einsmith.passes.schedule.plan import KernelCall, Laid, Plan
from einsmith.passes.schedule.views import storage

Rule = Callable[[Tensor, Sequence[Order]], Order]
"""Of a tensor and the orders that all its kernels have strides for, as it is first, the one that it has."""
_RULE: ContextVar[Rule | None] = ContextVar("rule", default=None)


@contextmanager
def forcing(rule: Rule) -> Iterator[None]:
    """What is compiled inside has the orders that a rule says."""
    token = _RULE.set(rule)
    try:
        yield
    finally:
        _RULE.reset(token)


def decided(plan: Plan) -> Decided | None:
    """What is decided here and now of a plan's tensors; None where nothing is."""
    rule = _RULE.get()
    if rule is None:
        return None
    readers: dict[Tensor, list[KernelCall]] = {}
    for call in plan.calls:
        if isinstance(call, KernelCall):
            for s in dict.fromkeys(map(storage, call.tensors)):
                readers.setdefault(s, []).append(call)
    found: dict[Tensor, Laid] = {}
    for t in free(plan):
        able = [o for o in candidates(t.shape) if all(call_in(c, {t: o}) is not None for c in readers[t])]
        order = rule(t, able)
        if order != as_is(t.shape):
            found[t] = Laid(order)
    return Decided(found)
