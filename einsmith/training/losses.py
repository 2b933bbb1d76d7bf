"""Call a loss function and read its result, and find what a loss divides by.

A loss function returns one scalar, or several with names, of which one or their sum is trained. A loss that is a mean
divides by the count of labels, or by the sum of weights.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

from einsmith.base.errors import ArgumentError, GradientError
from einsmith.ir.analysis.pointwise import pointwise_body
from einsmith.ir.nodes import Apply, Compute, Const, Expr, Leaf, Read, Tensor, postorder, template
from einsmith.lang import trace
from einsmith.lang.builder import Value, as_value

_ANY = object()
"""Of a part in which the batch has no part, such as a decay of weights: it is the same in a mean over any batches."""


def check_takes(f: Callable, what: str, targets: Sequence[Any]) -> None:
    """Check that a loss or a metric takes an output and these targets. Raises ArgumentError."""
    try:
        inspect.signature(f).bind(None, *targets)
    except ValueError:  # it has no signature
        return
    except TypeError as e:
        count = f"{len(targets)} targets" if len(targets) > 1 else "one target"
        raise ArgumentError(
            f"a batch has {count}, so {what} is called with (output, {', '.join('target' for _ in targets)}), which "
            f"{getattr(f, '__name__', type(f).__name__)} does not take: {e}"
        ) from None


def traced_losses(loss: Callable, output: Any, targets: Sequence[Any], trained: str) -> tuple[Value, dict[str, Value]]:
    """Return (the trained scalar, all scalars by name where there are several) of `loss(output, *targets)`. A tuple's
    are loss_0, loss_1, ...

    trained: "first" or "sum". Raises ArgumentError if the loss does not take this number of targets, GradientError if a
    loss is not a float scalar.
    """
    check_takes(loss, "the loss", targets)
    result = loss(output, *targets)
    if isinstance(result, Mapping):
        parts = {str(n): as_value(v) for n, v in result.items()}
    elif isinstance(result, (tuple, list)):
        parts = {f"loss_{n}": as_value(v) for n, v in enumerate(result)}
    else:
        parts = {"": as_value(result)}
    if not parts:
        raise GradientError("the loss function returned an empty collection; return at least one loss")
    for name, v in parts.items():
        if v.shape != () or not v.dtype.is_float:
            which = f"the loss {name!r}" if name else "the loss"
            raise GradientError(f"{which} has type {v.dtype} and shape {v.shape}; it must be a float scalar")
    first = next(iter(parts.values()))
    total = reduce(lambda a, b: a + b, parts.values()) if trained == "sum" else first
    return total, {} if "" in parts else parts


def find_divisor(loss: Value) -> Value | None:
    """Return the tensor by which a traced loss divides a sum over the batch; None where it is a mean over samples, or
    a sum of means that divide by different tensors.

    A mean over several batches weighs the mean of each by this tensor, which depends on no trained parameter. The loss
    is one quotient, times numbers, plus what does not depend on the batch. The trace is the current one."""
    current = trace.current_trace()
    assert current is not None
    captured = {x: o for o, x in current.captured.values()}
    divisor = _Search(captured).of_tensor(loss.tensor)
    return Value(divisor) if isinstance(divisor, Tensor) else None


class _Search:
    """The search in one trace. captured: the object of each leaf that is not part of the batch."""

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
