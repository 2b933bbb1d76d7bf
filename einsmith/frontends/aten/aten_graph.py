"""Represent a graph of ATen operators as data, without PyTorch, and evaluate it on traced tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from einsmith.base.errors import DtypeError, ShapeError, TraceError
from einsmith.frontends.aten import conditions
from einsmith.frontends.aten.promotion import expecting
from einsmith.frontends.aten.refused import REFUSED
from einsmith.frontends.aten.table import TABLE
from einsmith.frontends.graph import Kind, Ref, evaluating
from einsmith.ops.intermediates import keep_wide
from einsmith.tracing.builder import Value


@dataclass(frozen=True)
class AtenNode:
    """A call of an operator: name = operator(*args, **kwargs).

    layer: the path of the user's module that calls it; line: the user's source line, with its place; kind: shape and
    type of the result, None if that is not one tensor.
    """

    name: str
    operator: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    layer: str
    line: str
    kind: Kind | None


@dataclass(frozen=True)
class Subgraph:
    """A function of scalars and captured tensors that a higher-order operator applies at every position.

    inputs: names of the arguments. The scalars may be tensors that broadcast to the positions, since every operator on
    them is elementwise or reads a captured tensor by them.
    """

    inputs: tuple[str, ...]
    nodes: tuple[AtenNode, ...]
    output: Any

    def __call__(self, *arguments: Any) -> Any:
        """Return the result. Extends the trace."""
        values = dict(zip(self.inputs, arguments, strict=True))
        for node in self.nodes:
            values[node.name] = apply(node, values, {})
        return _value(self.output, values)


@dataclass(frozen=True)
class Guards:
    """Conditions on the sizes of a module's inputs that its export assumed, as texts over L, the inputs by name.

    names: the inputs in order, each with whether it takes all remaining arguments; remedy: what to do where a condition
    does not hold, or "".
    """

    names: tuple[tuple[str, bool], ...]
    conditions: tuple[str, ...]
    remedy: str = ""

    def __post_init__(self) -> None:
        """Raise TraceError for a condition that cannot be parsed."""
        for condition in self.conditions:
            conditions.parse(condition)

    def check(self, what: str, inputs: Sequence[Any]) -> None:
        """Raise ShapeError if a condition does not hold for `inputs`."""
        if not self.conditions:
            return
        rest, known = list(inputs), {}
        for name, several in self.names:
            known[name] = (
                conditions.describe_input(rest) if several else conditions.describe_input(rest.pop(0)) if rest else None
            )
        for condition in self.conditions:
            try:
                holds = conditions.parse(condition)(known)
            except (LookupError, AttributeError, TypeError, ArithmeticError, ValueError) as e:
                why = f"; it cannot be computed for these ({e})"
            else:
                why = ""
            if why or not holds:
                shapes = ", ".join(str(x.shape) for x in inputs if hasattr(x, "shape"))
                raise ShapeError(
                    f"{what} was exported for sizes where {condition}; the inputs' shapes are {shapes}{why}"
                    + (f". {self.remedy}" if self.remedy else "")
                )


@dataclass(frozen=True)
class OperatorGraph:
    """A graph of operators.

    inputs: (name, kind or the number that it must be) in the order of the arguments; stored: name -> path and kind of a
    parameter or buffer; constants: name -> array; updates: path of a buffer -> its new value; outputs: leaves of the
    module's result; ranges: name of a size -> its least and greatest value.
    """

    nodes: tuple[AtenNode, ...]
    inputs: tuple[tuple[str, Any], ...]
    stored: Mapping[str, tuple[str, Kind]]
    constants: Mapping[str, Any]
    outputs: tuple[Any, ...]
    updates: Mapping[str, Ref]
    ranges: Mapping[str, tuple[int, int]]
    guards: Guards


def missing(nodes: Sequence[AtenNode]) -> list[tuple[AtenNode, str]]:
    """Return the nodes whose operator is not in the table, each operator once, with the reason."""
    reasons: dict[str, tuple[AtenNode, str]] = {}
    for node in nodes:
        if node.operator not in TABLE and node.operator not in reasons:
            reasons[node.operator] = node, REFUSED.get(node.operator, "no formula is in the table for it")
    return list(reasons.values())


def check(nodes: Sequence[AtenNode], what: str) -> None:
    """Raise TraceError naming every operator that is not in the table, with the line that uses it."""
    listed = missing(nodes)
    if listed:
        lines = [f"  aten.{n.operator}: {why}{_at(n)}" for n, why in listed]
        raise TraceError("\n".join([f"{what} uses operators that Einsmith does not have:", *lines]))


def _at(node: AtenNode) -> str:
    return f"\n    {node.line}" if node.line else ""


def evaluate(
    graph: OperatorGraph, values: dict[str, Any], sizes: Mapping[str, int]
) -> tuple[list[Any], dict[str, Any]]:
    """Evaluate the graph for `values` by name: (outputs, new values of buffers by path). Extends the trace.

    sizes: values of named sizes.
    """

    for node in graph.nodes:
        values[node.name] = apply(node, values, sizes)
    outputs = [_value(x, values) for x in graph.outputs]
    return outputs, {path: _value(x, values) for path, x in graph.updates.items()}


def _value(x: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(x, Ref):
        return values[x.name]
    if isinstance(x, (list, tuple)):
        return [_value(v, values) for v in x]
    return x


def apply(node: AtenNode, values: Mapping[str, Any], sizes: Mapping[str, int]) -> Any:
    """Evaluate a node for `values` by name. Extends the trace.

    Raises DtypeError and ShapeError if the result has not the type and shape that PyTorch gives.
    """
    args = [_value(x, values) for x in node.args]
    with evaluating(node.layer, f"aten.{node.operator}{_at(node)}"):
        kwargs = {k: _value(v, values) for k, v in node.kwargs}
        with expecting(node.kind.dtype if node.kind is not None else ""):
            result = keep_wide((args, kwargs), TABLE[node.operator].run(*args, **kwargs))
    if node.kind is not None:
        _verify(node, node.kind, result, sizes)
    return result


def _verify(node: AtenNode, kind: Kind, result: Any, sizes: Mapping[str, int]) -> None:
    """Raise DtypeError or ShapeError if a formula's result has not PyTorch's type and shape."""
    if not isinstance(result, Value) or result.dtype.name != kind.dtype:
        got = result.dtype.name if isinstance(result, Value) else type(result).__name__
        raise DtypeError(f"aten.{node.operator} gave {got}, where PyTorch gives {kind.dtype}{_at(node)}")
    wanted = tuple(sizes.get(n, -1) if isinstance(n, str) else n for n in kind.shape)
    if len(wanted) != result.ndim or any(a not in (b, -1) for a, b in zip(wanted, result.shape, strict=True)):
        raise ShapeError(f"aten.{node.operator} gave shape {result.shape}, where PyTorch gives {kind.shape}{_at(node)}")
