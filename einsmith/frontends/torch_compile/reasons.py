"""Say why an operator of a graph runs in PyTorch instead of a program, and what kind of value a node has."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch._higher_order_ops.effects import with_effects
from torch.fx import Node as FxNode
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from einsmith.frontends import torch_device
from einsmith.frontends.aten import REFUSED, TABLE
from einsmith.frontends.torch_compile.options import Options
from einsmith.frontends.torch_compile.validation import is_checked
from einsmith.frontends.torch_nodes import TYPES, addresses_memory, operator_name, subgraph_of

COPY = torch.ops.aten.copy_.default
FLEX = {torch.ops.higher_order.flex_attention: (3, 4), torch.ops.higher_order.flex_attention_backward: (7, 9)}
"""Operators that take functions of scalars -> places of score_mod and of the block mask, which ends with mask_mod."""
_SCALAR_FAMILIES = {"pointwise", "integers", "numbers"}
"""Families of operators that act on each element, so a function of scalars that uses them acts on tensors of them."""


def is_view(node: FxNode) -> bool:
    """Return whether the node's result aliases its first argument, or is an element of an aliasing result."""
    if node.op != "call_function":
        return False
    if node.target is operator.getitem:
        return isinstance(node.args[0], FxNode) and is_view(node.args[0])
    target = node.target
    unsafe = target is torch.ops.aten._unsafe_view.default
    return isinstance(target, torch._ops.OpOverload) and (target.is_view or unsafe)


def is_number(node: FxNode) -> bool:
    """Return whether a node's value is a number or a symbolic number instead of a tensor."""
    value = node.meta.get("val")
    return isinstance(value, (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool))


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, (list, tuple)):
        return [x for v in value for x in _tensors(v)]
    return [value] if isinstance(value, torch.Tensor) else []


def _tensor_problem(x: torch.Tensor, device: str) -> str:
    """Return why a program on a device cannot handle a tensor, "" if it can."""
    if torch_device.device_of(x) != device:
        return f"a tensor lies on the device {x.device}"
    if x.layout is not torch.strided:
        return f"a tensor has the layout {x.layout}"
    if x.dtype not in TYPES:
        return f"a tensor has the type {str(x.dtype).removeprefix('torch.')}, which Einsmith does not support"
    if free_unbacked_symbols(x):
        return "the number of elements depends on values"
    return ""


def reason(node: FxNode, options: Options) -> str:
    """Return why an operator runs in PyTorch: "" if it need not, "-" if it does so without a warning."""
    if node.op != "call_function" or is_number(node) or node.target is COPY:
        return "-"
    target = node.target
    if target is operator.getitem:
        source = node.args[0]
        return "-" if not isinstance(source, FxNode) or reason(source, options) else ""
    checked = node.args[1] if target is with_effects else target
    if isinstance(checked, torch._ops.OpOverload) and _checks(checked):
        return "-"
    if target in FLEX:
        if why := next(filter(None, map(_function_problem, _subgraphs(node))), ""):
            return why
    elif not isinstance(target, torch._ops.OpOverload):
        return "it is a higher-order operator"
    elif is_checked(target, *torch.fx.map_arg((node.args, node.kwargs), lambda a: a.meta.get("val"))):
        return "-"
    name = operator_name(target)
    if name not in TABLE:
        return REFUSED.get(name, "no formula is in the table for it")
    if target not in FLEX and target._schema.is_mutable:
        return "it changes a tensor in place"
    if TABLE[name].family == "randomness" and options.fallback_random:
        return "-"
    if addresses_memory(node):
        return "it reads by places in memory, and its tensor is not contiguous"
    if "val" not in node.meta:
        return "the type of its result is not known"
    for x in (*_tensors(node.meta["val"]), *(t for a in node.all_input_nodes for t in _tensors(a.meta.get("val")))):
        if why := _tensor_problem(x, options.device):
            return why
    for a in node.all_input_nodes:
        value = a.meta.get("val")
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)) and free_unbacked_symbols(value):
            return "a size depends on values"
    return ""


def _subgraphs(node: FxNode) -> list[torch.fx.GraphModule]:
    """Return score_mod and mask_mod of an operator that takes them."""
    score, blocks = FLEX[node.target]
    parts = [subgraph_of(node.args[score]), subgraph_of(node.args[blocks][-1])]
    return [part for part in parts if part is not None]


def _function_problem(part: torch.fx.GraphModule) -> str:
    """Return why a function of scalars and captured tensors cannot be applied to all positions at once, "" if it can.

    Operators on captured tensors alone may be any; the others are elementwise or read one by scalars.
    """
    varying: set[FxNode] = set()
    for n in part.graph.nodes:
        if n.op == "placeholder":
            # Captured numbers and 0-d tensors count as scalars, too.
            if not getattr(n.meta.get("val"), "shape", ()):
                varying.add(n)
            continue
        if n.op == "output":
            continue
        name = operator_name(n.target)
        if n.op != "call_function" or not isinstance(n.target, torch._ops.OpOverload) or name not in TABLE:
            return f"score_mod or mask_mod uses {name}: {REFUSED.get(name, 'no formula is in the table for it')}"
        if not any(a in varying for a in n.all_input_nodes):
            continue
        varying.add(n)
        scalar = isinstance(n.meta.get("val"), torch.Tensor) and not n.meta["val"].shape
        reads = name == "index.Tensor" and n.args[0] not in varying
        if not scalar or not (reads or TABLE[name].family in _SCALAR_FAMILIES):
            return f"score_mod or mask_mod uses aten.{name}, which is not elementwise, on the score or an index"
    return ""


def _checks(target: torch._ops.OpOverload) -> bool:
    """Return whether an operator is an assertion, without results or mutation. PyTorch runs it on computed values."""
    return not target._schema.returns and not target._schema.is_mutable
