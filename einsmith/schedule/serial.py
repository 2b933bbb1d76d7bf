"""Serialise nodes (kernels, graphs) as plain JSON data and read them back, for files and other processes.

Nothing is executed on reading: only the classes listed here are constructed, through their own checks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from einsmith.base.dtypes import DType, dtype_of
from einsmith.base.errors import VerifyError
from einsmith.ir.interned import Node, all_nodes
from einsmith.ir.nodes import (
    Apply,
    Axis,
    Compute,
    Const,
    Graph,
    Item,
    Leaf,
    Piece,
    Read,
    Recurrence,
    Reduce,
    Scatter,
    Template,
    leaf,
)
from einsmith.schedule.kernel import Activity, Kernel, KernelBuffer, Member, Rows, Stage
from einsmith.schedule.step_loops import StepLoop, StepMember

_NODE_CLASSES = {
    c.__name__: c
    for c in (
        Activity, Apply, Axis, KernelBuffer, Compute, Const, Graph, Item, Kernel, Leaf, Member, Piece, Read, Recurrence,
        Reduce, Rows, Scatter, Stage, StepLoop, StepMember, Template,
    )
}  # fmt: skip


def to_data(root: Node) -> list[list[Any]]:
    """Return a list of nodes, each [class, field, ...], operands before their users, the root last.

    Floats are written by `float.hex`, so that every bit stays, and NaN and infinities are legal JSON."""
    number: dict[Node, int] = {}
    out: list[list[Any]] = []
    for node in all_nodes([root]):
        out.append([type(node).__name__, *(_encode(getattr(node, f), number) for f in node.fields)])
        number[node] = len(number)
    return out


def from_data(data: Sequence[Sequence[Any]]) -> Any:
    """Return the root node of data from `to_data`. Leaves are new ones.

    Raises:
        VerifyError: the data describes no node."""
    nodes: list[Node] = []
    try:
        for name, *fields in data:
            values = [_decode(v, nodes) for v in fields]
            nodes.append(leaf(*values[1:]) if name == "Leaf" else _NODE_CLASSES[name](*values))
        return nodes[-1]
    except (KeyError, IndexError, TypeError, ValueError) as e:
        raise VerifyError(f"this is no description of a graph or kernel: {e}") from None


def _encode(value: Any, number: dict[Node, int]) -> Any:
    if isinstance(value, Node):
        return {"node": number[value]}
    if isinstance(value, DType):
        return {"dtype": value.name}
    if isinstance(value, tuple):
        return [_encode(v, number) for v in value]
    if isinstance(value, float):
        return {"float": value.hex()}
    if value is None or isinstance(value, (bool, int, str)):
        return value
    raise VerifyError(f"{type(value).__name__} has no form in a file")


def _decode(value: Any, nodes: Sequence[Node]) -> Any:
    if isinstance(value, list):
        return tuple(_decode(v, nodes) for v in value)
    if isinstance(value, dict):
        ((kind, x),) = value.items()
        return nodes[x] if kind == "node" else dtype_of(x) if kind == "dtype" else float.fromhex(x)
    return value
