"""Convert nodes of PyTorch's graphs to data without PyTorch: operators' names, kinds of tensors, the user's lines."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch

from einsmith.base.dtypes import DType, dtype_of
from einsmith.frontends.aten.aten_graph import AtenNode, Kind, Ref, Subgraph

PLACES = ("device", "layout", "pin_memory", "memory_format", "generator", "non_blocking")
"""Arguments that choose the placement of a tensor, or its random generator."""
_TYPES = ("float16", "bfloat16", "float32", "float64", "uint8", "int8", "int16", "int32", "int64", "bool")
TYPES: dict[torch.dtype, DType] = {getattr(torch, name): dtype_of(name) for name in _TYPES}
"""PyTorch's element type -> Einsmith's."""
TORCH = {d: t for t, d in TYPES.items()}
KNOWN = frozenset(_TYPES)
"""PyTorch's names of element types."""
_FRAME = re.compile(r'File "(.+)", line (\d+), in (\S+)\n\s*(.*)')
_TORCH = str(Path(torch.__file__).parent)


def operator_name(target: Any) -> str:
    """Return an operator's name in the table: an ATen operator's without `aten.`, a Python function's as in Python."""
    if isinstance(target, torch._ops.OpOverload):
        namespace, _, short = target._schema.name.partition("::")
        full = f"{short}.{target._overloadname or 'default'}"
        return full if namespace == "aten" else f"{namespace}::{full}"
    return getattr(target, "__name__", str(target))


def addresses_memory(n: torch.fx.Node) -> bool:
    """Return whether an operator reads or writes by places in memory that are not those of its argument's elements."""
    name = operator_name(n.target)
    if not name.startswith("as_strided"):
        return False
    x, last = n.args[0].meta["val"], 4 if "scatter" in name else 3
    offset = n.args[last] if len(n.args) > last else n.kwargs.get("storage_offset")
    return not x.is_contiguous() or (offset is not None and x.storage_offset() != 0)


def size_of(n: Any) -> int | str:
    """Return a size as a number, or as its expression if it is symbolic."""
    if isinstance(n, int):
        return n
    return int(n.node.expr) if n.node.expr.is_number else str(n.node.expr)


def kind_of(value: Any) -> Kind | None:
    """Return the shape and type of a tensor; None for a value that is no tensor."""
    if not isinstance(value, torch.Tensor):
        return None
    name = str(value.dtype).removeprefix("torch.")
    return Kind(tuple(size_of(n) for n in value.shape), dtype_of(name).name if name in KNOWN else name)


def subgraph_of(n: torch.fx.Node) -> torch.fx.GraphModule | None:
    """Return the graph that a node refers to, as an argument of a higher-order operator; None if it is a value."""
    part = getattr(n.graph.owning_module, str(n.target), None) if n.op == "get_attr" else None
    return part if isinstance(part, torch.fx.GraphModule) else None


def _subgraph(part: torch.fx.GraphModule) -> Subgraph:
    """Convert a graph whose operators on scalars act at every position: shapes of its results are not checked."""
    *nodes, output = part.graph.nodes
    inputs = tuple(n.name for n in nodes if n.op == "placeholder")
    calls = tuple(node_of(n, None) for n in nodes if n.op == "call_function")
    return Subgraph(inputs, calls, argument(output.args[0]))


def argument(x: Any) -> Any:
    """Convert an argument of a node to data without torch."""
    if isinstance(x, torch.fx.Node):
        part = subgraph_of(x)
        return Ref(x.name) if part is None else _subgraph(part)
    if isinstance(x, (list, tuple)):
        return tuple(argument(v) for v in x)
    if isinstance(x, torch.dtype):
        name = str(x).removeprefix("torch.")
        return dtype_of(name) if name in KNOWN else name
    if isinstance(x, (torch.device, torch.layout, torch.memory_format)):
        return None
    return x


def line_of(node: torch.fx.Node) -> str:
    """Return the user's line that a node comes from: the innermost one outside of torch."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    own = [f for f in frames if not f[0].startswith(_TORCH)] or frames
    if not own:
        return ""
    path, line, function, text = own[-1]
    return f"{path}:{line} in {function}: {text.strip()}"


def layer_of(node: torch.fx.Node) -> str:
    """Return the path of the module that a node belongs to."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path = stack[-1][0] if stack else ""
    if path.startswith("_empty_nn_module_stack"):  # torch.export's name for the top module's forward
        return ""
    return path.removeprefix("L['self']").removeprefix(".")


def node_of(n: torch.fx.Node, value: Any) -> AtenNode:
    """Convert a call of an operator. value: its result in tracing, which gives the kind."""
    kwargs = tuple((k, argument(v)) for k, v in n.kwargs.items() if k not in PLACES)
    args = tuple(argument(x) for x in n.args)
    return AtenNode(n.name, operator_name(n.target), args, kwargs, layer_of(n), line_of(n), kind_of(value))
