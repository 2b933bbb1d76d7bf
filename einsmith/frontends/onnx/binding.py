"""Call an operator's function with a node's operands and attributes, as the function's parameters ask for them.

    @onnx("Slice")
    def slice_(x: Value, starts: Ints, ends: Ints, axes: Ints = None, steps: Ints = None) -> Value: ...

    @onnx("Elu")
    def elu(x: Value, *, alpha: float = 1.0) -> Value: ...

Parameters by position are the operands in the standard's order. The annotations below ask for numbers in place of
tensors: they are known while the network is compiled. An operand that a node lacks is the attribute of that name, which
older operator sets have in its place, or else the default. Parameters by keyword are attributes. A first parameter `n`
is the `evaluate.NodeCall`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import Parameter, signature
from typing import Any

from einsmith.base.errors import ShapeError
from einsmith.tracing.builder import Value

Ints = Any
"""Integers, as a tuple."""
Extents = Any
"""Integers from 0."""
Counts = Any
"""Integers from 1."""
Int = Any
"""One integer."""
Extent = Any
"""One integer from 0."""
Count = Any
"""One integer from 1."""
Number = Any
"""One finite number."""
Known = Any
"""An array."""
Axis = Any
"""A dimension of the first operand, counted from the front; in an attribute, too."""
Axes = Any
"""Different dimensions of the first operand, counted from the front; in an attribute, too."""

_LEAST = {"Extents": 0, "Counts": 1, "Extent": 0, "Count": 1}


def resolve_axis(d: int, rank: int) -> int:
    """Return a dimension, negative from the end, counted from the front. Raises ShapeError."""
    if not -rank <= d < rank:
        raise ShapeError(f"axis {d} is no dimension of a tensor that has {rank}")
    return d % rank


def resolve_axes(listed: Sequence[int], rank: int) -> tuple[int, ...]:
    """Return dimensions, negative from the end, counted from the front. Raises ShapeError if one is named twice."""
    dims = tuple(resolve_axis(d, rank) for d in listed)
    if len(set(dims)) < len(dims):
        raise ShapeError(f"axes {tuple(listed)[:8]} name a dimension twice")
    return dims


def bind(function: Callable[..., Any]) -> tuple[Callable[..., Any], tuple[int, ...]]:
    """Return a function of (call, *operands) that calls an operator's function, and the places of the operands whose
    values must be known."""
    parameters = [*signature(function).parameters.values()]
    takes_call = bool(parameters) and parameters[0].name == "n"
    operands = [p for p in parameters[takes_call:] if p.kind is Parameter.POSITIONAL_OR_KEYWORD]
    attributes = [p for p in parameters if p.kind is Parameter.KEYWORD_ONLY]

    def run(n: Any, *inputs: Any) -> Any:
        rank = inputs[0].ndim if inputs and isinstance(inputs[0], Value) else 0
        values = [_operand(n, p, x, rank) for p, x in zip(operands, _pad(inputs, len(operands)), strict=True)]
        settings = {p.name: _attribute(n, p, rank) for p in attributes}
        return function(*((n,) if takes_call else ()), *values, *inputs[len(operands) :], **settings)

    return run, tuple(k for k, p in enumerate(operands) if p.annotation in _READERS)


def _pad(inputs: Sequence[Any], count: int) -> list[Any]:
    """Return the first `count` operands, None for those that are left out."""
    return [*inputs[:count], *[None] * (count - len(inputs))]


def _operand(n: Any, p: Parameter, x: Any, rank: int) -> Any:
    if x is None:
        return _attribute(n, p, rank)
    if p.annotation not in _READERS:
        return x
    value = _READERS[p.annotation](n, x, f"{p.name} of {n.node.operator}", _LEAST.get(p.annotation))
    return _resolve(p, value, rank)


def _attribute(n: Any, p: Parameter, rank: int) -> Any:
    value = n.attr(p.name, None if p.default is Parameter.empty else p.default)
    return _resolve(p, value, rank)


def _resolve(p: Parameter, value: Any, rank: int) -> Any:
    if value is None or p.annotation not in ("Axis", "Axes"):
        return value
    return resolve_axis(value, rank) if p.annotation == "Axis" else resolve_axes(value, rank)


_READERS: dict[str, Callable[[Any, Any, str, int | None], Any]] = {
    **dict.fromkeys(("Ints", "Extents", "Counts", "Axes"), lambda n, x, what, least: n.ints(x, what, least)),
    **dict.fromkeys(("Int", "Extent", "Count", "Axis"), lambda n, x, what, least: n.integer(x, what, least)),
    "Number": lambda n, x, what, _: n.number(x, what),
    "Known": lambda n, x, what, _: n.static(x, what),
}
"""How a parameter with an annotation reads its operand, whose values must be known."""
