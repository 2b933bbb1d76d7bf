"""Share between losses: checks of their arguments, and the reduction of the elements' losses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from einsmith.base.errors import ArgumentError, ShapeError
from einsmith.ops.common import tensor
from einsmith.tracing import builder
from einsmith.tracing.builder import Value

REDUCTIONS = ("mean", "sum", "none")


def check_reduction(name: str, reduction: str, known: Sequence[str] = REDUCTIONS) -> None:
    """Raise ArgumentError unless `reduction` is one of the known ones."""
    if reduction not in known:
        raise ArgumentError(f"{name}: reduction={reduction!r} must be one of {', '.join(known)}")


def positive(name: str, zero: bool = False, **values: Any) -> None:
    """Raise ArgumentError for an argument that is not a positive number; `zero` allows 0, too."""
    for what, x in values.items():
        if not (x > 0 or (zero and x == 0)):
            raise ArgumentError(f"{name}: {what}={x!r} must be a {'non-negative' if zero else 'positive'} number")


def class_weight(name: str, weight: Any, classes: int, also: Sequence[tuple[int, ...]] = ()) -> Value | None:
    """Return the weights of classes, [C] or of a shape of `also`; None without. Raises ShapeError and DtypeError."""
    w = None if weight is None else tensor(weight, name, "weight", kind="float")
    if w is not None and w.shape not in ((classes,), *also):
        raise ShapeError(f"{name}: 'weight' has shape {w.shape}, needs {(classes,)}")
    return w


def equal_shapes(name: str, x: Value, y: Value, target: str = "target") -> None:
    """Raise ShapeError unless input and target have the same shape."""
    if x.shape != y.shape:
        raise ShapeError(f"{name}: 'input' {x.shape} and {target!r} {y.shape} differ in shape")


def floats(name: str, **tensors: Any) -> list[Value]:
    """Check that some argument is a float tensor, and return all as tensors.

    Bools become integers; integers become floats in expressions with the float tensors. Raises DtypeError.
    """
    values = [tensor(x, name, n) for n, x in tensors.items()]
    if not any(v.dtype.is_float for v in values):
        first = next(iter(tensors))
        tensor(values[0], name, first, kind="float")
    return [builder.where(v, 1, 0) if v.dtype.is_bool else v for v in values]


def reduce(loss: Value, reduction: str) -> Value:
    """Return the mean or the sum of all elements, or the elements."""
    if reduction == "none" or not loss.ndim:
        return loss
    over = builder.axes(*loss.shape)
    return builder.compute((), lambda: (builder.mean if reduction == "mean" else builder.sum)(loss[over], over=over))
