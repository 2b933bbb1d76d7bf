"""Find changes in place that AOTAutograd loses when it replaces them by functions of whole tensors.

Its functions put a changed view back into the tensor that it views. They have no place for elements that share memory
within one view, nor for memory that `as_strided` reaches beyond the elements of the tensor that it is called on.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import Node as FxNode

_IN_PLACE = frozenset(
    getattr(operator, n) for n in dir(operator) if n.startswith("i") and hasattr(operator, f"__{n}__")
)


def find_lost_write(gm: torch.nn.Module) -> tuple[FxNode, str] | None:
    """Return a node of a graph of Dynamo's whose change in place would be lost, and why; None if there is none."""
    for graph in (m.graph for m in gm.modules() if isinstance(m, torch.fx.GraphModule)):
        for node in graph.nodes:
            for target in _written(node):
                for n in _views(target):
                    if _may_overlap(n.meta["example_value"]):
                        return node, "it changes elements in place that share memory"
                    if _name(n) == "as_strided" and _leaves(n.meta["example_value"], n.args[0].meta["example_value"]):
                        return node, "it changes memory in place that as_strided reaches beyond its tensor's elements"
    return None


def _name(n: FxNode) -> str:
    return n.target if isinstance(n.target, str) else getattr(n.target, "__name__", str(n.target))


def _written(n: FxNode) -> Iterator[FxNode]:
    """Yield the arguments that a call may change in place."""
    if n.op not in ("call_function", "call_method"):
        return
    name = _name(n).partition(".")[0]
    first = n.args[0] if n.args else n.kwargs.get("input")
    by_name = name == "setitem" or n.target in _IN_PLACE or (name.endswith("_") and not name.endswith("__"))
    if isinstance(first, FxNode) and (by_name or _is_asked_to(n)):
        yield first
    out = n.kwargs.get("out")
    yield from (x for x in (out if isinstance(out, (tuple, list)) else [out]) if isinstance(x, FxNode))


def _is_asked_to(n: FxNode) -> bool:
    """Return whether a function is called with inplace=True, by name or by position."""
    if n.kwargs.get("inplace") is True:
        return True
    if not any(a is True for a in n.args) or not inspect.isfunction(n.target):
        return False
    names = list(inspect.signature(n.target).parameters)
    return "inplace" in names[: len(n.args)] and n.args[names.index("inplace")] is True


def _views(n: FxNode | None) -> Iterator[FxNode]:
    """Yield a tensor's node and the nodes of which it is a view, the last one first."""
    storage = None
    while n is not None:
        x = n.meta.get("example_value")
        if isinstance(x, torch.Tensor):
            if x.layout is not torch.strided or torch._C._functorch.is_functorch_wrapped_tensor(x):
                return  # it has no storage
            if storage not in (None, x.untyped_storage()._cdata):
                return
            storage = x.untyped_storage()._cdata
            yield n
        elif not isinstance(x, (tuple, list)):  # the views of one call, of which an element is taken
            return
        n = next((a for a in n.args if isinstance(a, FxNode)), None)


def _may_overlap(x: Any) -> bool:
    """Return whether elements of a tensor may share memory: some stride is within the reach of smaller ones."""
    reach = 0
    for step, n in sorted((s, n) for s, n in zip(x.stride(), x.shape, strict=True) if n != 1):
        if step <= reach:
            return x.numel() != 0
        reach += step * (n - 1)
    return False


def _leaves(x: torch.Tensor, source: torch.Tensor) -> bool:
    """Return whether a view of `source` may reach memory outside of the elements of `source`."""
    start = x.storage_offset() - source.storage_offset()
    reach = 1 + sum(s * (n - 1) for s, n in zip(x.stride(), x.shape, strict=True))
    return not source.is_contiguous() or start < 0 or start + reach > source.numel()
