"""Read the result of a loss function: one scalar, or several with names, of which one or their sum is trained."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any

from einsmith.base.errors import GradientError
from einsmith.lang.builder import Value, as_value


def named_losses(result: Any, trained: str) -> tuple[Value, dict[str, Value]]:
    """Return (the trained scalar, all scalars by name where there are several). A tuple's are loss_0, loss_1, ...

    trained: "first" or "sum". Raises GradientError where a loss is no float scalar.
    """
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
