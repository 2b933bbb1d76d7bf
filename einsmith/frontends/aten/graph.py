"""A graph of operators as data, free of PyTorch, and its evaluation on traced tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from einsmith.errors import DtypeError, ShapeError, TraceError
from einsmith.frontends.aten import conditions
from einsmith.frontends.aten.refused import REFUSED
from einsmith.frontends.aten.table import TABLE
from einsmith.frontends.graph import Kind, Ref, evaluating
from einsmith.lang.builder import Value


@dataclass(frozen=True)
class AtenNode:
    """name = operator(*args, **kwargs).

    layer: the path of the user's module in which it stands; line: the user's own, with its place; kind: what it gives,
    None where that is not one tensor.
    """

    name: str
    operator: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    layer: str
    line: str
    kind: Kind | None


@dataclass(frozen=True)
class Guards:
    """What a module takes for granted of the sizes of its inputs: texts (`conditions`) over L, the inputs by name.

    names: of the inputs in order, with whether one takes all that are left.
    """

    names: tuple[tuple[str, bool], ...]
    conditions: tuple[str, ...]

    def __post_init__(self) -> None:
        """Raises TraceError for a condition that cannot be read."""
        for condition in self.conditions:
            conditions.parse(condition)

    def check(self, what: str, inputs: Sequence[Any]) -> None:
        """Raises ShapeError where one does not hold."""
        if not self.conditions:
            return
        rest, known = list(inputs), {}
        for name, several in self.names:
            known[name] = conditions.sized(rest) if several else conditions.sized(rest.pop(0)) if rest else None
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
                )


@dataclass(frozen=True)
class OperatorGraph:
    """inputs: what the user passes, in order, with its kind, or a number that it must be; stored: name -> path and kind
    of a parameter or buffer; constants: name -> array; updates: path of a buffer -> what it becomes; outputs: as leaves
    of the module's result; ranges: least and greatest value of sizes with names."""

    nodes: tuple[AtenNode, ...]
    inputs: tuple[tuple[str, Any], ...]
    stored: Mapping[str, tuple[str, Kind]]
    constants: Mapping[str, Any]
    outputs: tuple[Any, ...]
    updates: Mapping[str, Ref]
    ranges: Mapping[str, tuple[int, int]]
    guards: Guards


def missing(nodes: Sequence[AtenNode]) -> list[tuple[AtenNode, str]]:
    """The nodes whose operator is not in the table, each operator once, with the reason."""
    found: dict[str, tuple[AtenNode, str]] = {}
    for node in nodes:
        if node.operator not in TABLE and node.operator not in found:
            found[node.operator] = node, REFUSED.get(node.operator, "no formula is in the table for it")
    return list(found.values())


def check(nodes: Sequence[AtenNode], what: str) -> None:
    """Raises TraceError that names every operator that is missing, and where it stands."""
    listed = missing(nodes)
    if listed:
        lines = [f"  aten.{n.operator}: {why}{_at(n)}" for n, why in listed]
        raise TraceError("\n".join([f"{what} uses operators that Einsmith does not have:", *lines]))


def _at(node: AtenNode) -> str:
    return f"\n    {node.line}" if node.line else ""


def evaluate(
    graph: OperatorGraph, values: dict[str, Any], sizes: Mapping[str, int]
) -> tuple[list[Any], dict[str, Any]]:
    """(outputs, new values of buffers by path), of `values` by name; extends the trace. sizes: those with names."""

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
    """What a node gives, of `values` by name; extends the trace. Raises DtypeError and ShapeError where that is not of
    the kind that PyTorch gives."""
    args = [_value(x, values) for x in node.args]
    with evaluating(node.layer, f"aten.{node.operator}{_at(node)}"):
        found = TABLE[node.operator].run(*args, **{k: _value(v, values) for k, v in node.kwargs})
    if node.kind is not None:
        _verify(node, node.kind, found, sizes)
    return found


def _verify(node: AtenNode, kind: Kind, found: Any, sizes: Mapping[str, int]) -> None:
    """What a formula gives has PyTorch's type and shape, or nothing goes on."""
    if not isinstance(found, Value) or found.dtype.name != kind.dtype:
        got = found.dtype.name if isinstance(found, Value) else type(found).__name__
        raise DtypeError(f"aten.{node.operator} gave {got}, where PyTorch gives {kind.dtype}{_at(node)}")
    wanted = tuple(sizes.get(n, -1) if isinstance(n, str) else n for n in kind.shape)
    if len(wanted) != found.ndim or any(a not in (b, -1) for a, b in zip(wanted, found.shape, strict=True)):
        raise ShapeError(f"aten.{node.operator} gave shape {found.shape}, where PyTorch gives {kind.shape}{_at(node)}")
