"""Take what a forward pass saved for what the derivative of its backward pass would compute again.

Both are graphs of one function: the joint graph of forward and backward, and the larger one of the function that
differentiates it. Equal operators of equal operands have equal values (value numbering: Alpern, Wegman and Zadeck
1988), so that a node of the second graph with the number of a node that was saved gives way to an input.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._functorch._aot_autograd.descriptors import BackwardTokenAOTInput, ForwardTokenAOTInput
from torch.fx import Node as FxNode

from einsmith.frontends.torch_compile.reasons import is_view

__all__ = ["Numbers", "Saved", "inputs_of", "is_random", "take_saved"]

_COPIES = {torch.ops.aten.clone.default, torch.ops.aten.detach.default, torch.ops.aten.alias.default}
"""Operators whose results have the values of their operands."""


def inputs_of(graph: torch.fx.Graph) -> list[FxNode]:
    """Return the inputs of a graph, without the tokens that order operators with effects."""
    inputs = graph.find_nodes(op="placeholder")
    return [n for n in inputs if not isinstance(n.meta.get("desc"), (ForwardTokenAOTInput, BackwardTokenAOTInput))]


class Numbers:
    """Numbers of values, the same in several graphs."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}

    def of(self, graph: torch.fx.Graph) -> dict[FxNode, int]:
        """Return the number of each node. Inputs are equal by their position, random draws by their order, and what
        writes, and constants, only to themselves."""
        out: dict[FxNode, int] = {}
        drawn: Counter[Hashable] = Counter()
        position = {n: k for k, n in enumerate(inputs_of(graph))}
        for n in graph.nodes:
            key: Hashable = (_key(n.args, out), _key(n.kwargs, out), n.target)
            if n in position:
                key = position[n]
            elif is_random(n):
                drawn[key] += 1
                key = key, drawn[key]
            elif n.op != "call_function" or n.is_impure() or isinstance(n.target, torch._ops.HigherOrderOperator):
                key = object()
            is_copy = n.target in _COPIES
            out[n] = out[n.args[0]] if is_copy else self._numbers.setdefault(key, len(self._numbers))
        return out


def _key(x: Any, numbers: Mapping[FxNode, int]) -> Hashable:
    if isinstance(x, FxNode):
        return FxNode, numbers[x]
    if isinstance(x, (tuple, list)):
        return (tuple, *(_key(y, numbers) for y in x))
    if isinstance(x, Mapping):
        return (dict, *((k, _key(y, numbers)) for k, y in x.items()))
    if isinstance(x, slice):
        return slice, *(_key(y, numbers) for y in (x.start, x.stop, x.step))
    return type(x), x.hex() if isinstance(x, float) else x  # -0.0 is another number than 0.0


def is_random(n: FxNode) -> bool:
    """Return whether an operator draws random numbers."""
    return isinstance(n.target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in n.target.tags


@dataclass(frozen=True)
class Saved:
    """What inputs of a graph are values of the graph: their positions by the values' numbers, for each order of
    derivatives. Later ones are numbers in the graph that reads the earlier ones. read: the positions of all inputs that
    the graph needs then."""

    positions: tuple[Mapping[int, int], ...] = ()
    numbers: Numbers = field(default_factory=Numbers)
    read: set[int] = field(default_factory=set)

    @property
    def constant(self) -> set[int]:
        """The positions of all constants, into which no other code can write."""
        return {k for positions in self.positions for k in positions.values()}


def take_saved(graph: torch.fx.Graph, saved: Saved) -> None:
    """Let inputs be read for nodes whose values they are."""
    inputs = inputs_of(graph)
    for positions in saved.positions:
        for n, number in saved.numbers.of(graph).items():
            value = inputs[positions[number]] if number in positions else None
            if value is not None and n is not value and _is_alike(n.meta.get("val"), value.meta.get("val")):
                n.replace_all_uses_with(value)
        for n in reversed(graph.nodes):
            if n.op == "call_function" and not n.users and (is_random(n) or not n.is_impure()):
                graph.erase_node(n)
    saved.read.update(k for k, n in enumerate(inputs) if n.users)
    _copy_results(graph, {inputs[k] for k in saved.constant})


def _is_alike(a: Any, b: Any) -> bool:
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return False
    return a.shape == b.shape and a.stride() == b.stride() and a.dtype is b.dtype and a.device == b.device


def _copy_results(graph: torch.fx.Graph, inputs: set[FxNode]) -> None:
    """Let no result share memory with one of these inputs, which the caller does not know of."""
    output = next(reversed(graph.nodes))
    for n in {*output.all_input_nodes}:
        root = n
        while root.op == "call_function" and is_view(root):
            root = root.all_input_nodes[0]
        if root in inputs:
            with graph.inserting_before(output):
                copy = graph.call_function(torch.ops.aten.clone.default, (n,))
            copy.meta = {"val": n.meta["val"].detach().clone()}
            output.replace_input_with(n, copy)
