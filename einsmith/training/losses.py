"""Call a loss function and read its result: one scalar, or several with names, of which one or their sum is trained."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

from einsmith.base.errors import ArgumentError, GradientError
from einsmith.lang.builder import Value, as_value


def check_takes(f: Callable, what: str, targets: Sequence[Any]) -> None:
    """Check that a loss or a metric takes an output and so many targets. Raises ArgumentError."""
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

    trained: "first" or "sum". Raises ArgumentError where the loss does not take so many targets, GradientError where a
    loss is no float scalar.
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
