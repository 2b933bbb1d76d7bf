"""Find what a loss divides by: the count of labels, or the sum of weights, over which it is a mean."""

from __future__ import annotations

from typing import Any

from einsmith.ir.analysis.pointwise import pointwise_body
from einsmith.ir.nodes import Apply, Compute, Const, Expr, Leaf, Read, Tensor, postorder, template
from einsmith.lang import trace
from einsmith.lang.builder import Value

_ANY = object()
"""Of a part in which the batch has no part, such as a decay of weights: it is the same in a mean over any batches."""


def find_divisor(loss: Value) -> Value | None:
    """Return the tensor by which a traced loss divides a sum over the batch; None where it is a mean over samples, or
    a sum of means that divide by different tensors.

    A mean over several batches weighs the mean of each by this tensor, which depends on no trained parameter. The loss
    is one quotient, times numbers, plus what does not depend on the batch. The trace is the current one."""
    current = trace.current_trace()
    assert current is not None
    captured = {x: o for o, x in current.captured.values()}
    found = _Search(captured).of_tensor(loss.tensor)
    return Value(found) if isinstance(found, Tensor) else None


class _Search:
    """The search in one trace. captured: the object that each leaf stands for which is none of the batch."""

    def __init__(self, captured: dict[Leaf, Any]):
        self._captured = captured

    def of_tensor(self, t: Tensor) -> Any:
        """Return the divisor of a 0-d tensor, None or _ANY."""
        leaves = [x for x in postorder([t]) if isinstance(x, Leaf)]
        if all(x in self._captured for x in leaves):
            return _ANY
        body = pointwise_body(t.template) if isinstance(t, Compute) and t.shape == () else None
        return None if body is None else self._of(body, t)

    def _of(self, e: Expr, t: Any) -> Any:
        """Return the divisor of an expression in the template of a tensor."""
        if isinstance(e, Const):
            return _ANY
        if isinstance(e, Read):
            return self.of_tensor(t.args[e.slot]) if e.index == () else None
        if not isinstance(e, Apply):
            return None
        if e.fn in ("neg", "cast"):
            return self._of(e.args[0], t)
        if e.fn not in ("add", "sub", "mul", "div"):
            return None
        a, b = (self._of(x, t) for x in e.args)
        if e.fn == "div" and b is not _ANY:
            return self._divisor(e.args[1], t) if a is None else None
        if a is _ANY or b is _ANY or a is b:
            return b if a is _ANY else a if b is _ANY or e.fn in ("add", "sub") else None
        return None

    def _divisor(self, e: Expr, t: Any) -> Tensor | None:
        """Return an expression as a tensor; None where it depends on a trained parameter."""
        while isinstance(e, Apply) and e.fn == "cast":
            e = e.args[0]
        if isinstance(e, Read):
            tensor: Tensor = t.args[e.slot]
        else:
            tensor = Compute(template((), t.template.params, e), t.args)
        leaves = [x for x in postorder([tensor]) if isinstance(x, Leaf)]
        is_trained = any(getattr(self._captured.get(x), "requires_grad", False) for x in leaves)
        return None if is_trained else tensor
