"""Evaluate a graph of ONNX operators on traced tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from einsmith.base.dtypes import DType, dtype_of
from einsmith.base.errors import ArgumentError, DtypeError, TraceError
from einsmith.frontends.graph import evaluating
from einsmith.frontends.onnx.nodes import Constant, OnnxGraph, OnnxNode
from einsmith.frontends.onnx.table import TABLE
from einsmith.frontends.onnx.types import ELEMENTS, ElementType
from einsmith.ir import evaluator, nodes
from einsmith.ir.nodes import Leaf, Tensor, postorder
from einsmith.lang import builder
from einsmith.lang.builder import Value
from einsmith.lang.trace import current_trace
from einsmith.ops.intermediates import keep_wide
from einsmith.quantization.decoded import Decoded

SMALL = 16
"""Most elements of a constant that becomes a literal of the formulas if all its elements are equal."""


@dataclass
class EvaluationContext:
    """The state of one evaluation of a network.

    what: its name; training: whether it is in training mode; stored: parameters and buffers by their name in the file,
    so that an operator can update them; constants: leaf of the trace -> the array that it represents; decoded: tensors
    that stand for integers.
    """

    what: str
    training: bool = True
    stored: Mapping[str, Any] = field(default_factory=dict)
    constants: dict[Leaf, np.ndarray] = field(default_factory=dict)
    folded: dict[Any, np.ndarray] = field(default_factory=dict)
    decoded: dict[Tensor, Decoded] = field(default_factory=dict)

    def constant(self, array: np.ndarray, dtype: DType) -> Value:
        """Return an array as a traced tensor whose values are known."""
        if 0 < array.size <= SMALL and dtype.numpy.names is None:
            first = array.reshape(-1)[0]
            if (array == first).all() and not (first == 0 and np.signbit(array).any()):
                return builder.full(array.shape, first.item(), dtype)
        trace = current_trace()
        assert trace is not None
        leaf = trace.capture(array, array.shape, dtype)
        self.constants[leaf] = array
        return Value(leaf)

    def known(self, x: Any) -> np.ndarray | None:
        """Return the values of a tensor computed from constants alone, None for others.

        The reference evaluator of formulas folds them.
        """
        x = builder.as_value(x)
        if x.tensor not in self.folded:
            leaves = [t for t in postorder([x.tensor]) if isinstance(t, Leaf)]
            if any(t not in self.constants for t in leaves):
                return None
            (found,), _ = evaluator.evaluate(
                nodes.Graph(tuple(leaves), (x.tensor,), (), ()), [self.constants[t] for t in leaves]
            )
            self.folded[x.tensor] = x.dtype.narrow(found)
        return self.folded[x.tensor]


class ValueScope:
    """A scope of values and types by name. A body's scope also sees the names of the graphs around it."""

    def __init__(self, graph: OnnxGraph, values: dict[str, Any], around: ValueScope | None = None):
        self.graph, self.values, self.around = graph, values, around

    def value(self, name: str) -> Any:
        """Return the value of a name, also of the graphs around; raise ArgumentError if no node computes it."""
        if name in self.values:
            return self.values[name]
        if self.around is None:
            raise ArgumentError(f"no node computes {name!r}")
        return self.around.value(name)

    def type(self, name: str) -> str:
        """Return the element type of a name, also of the graphs around; "" if it is not known."""
        if name in self.graph.types:
            return self.graph.types[name]
        return self.around.type(name) if self.around is not None else ""


class NodeCall:
    """A node as its operator's function sees it: attributes, versions, element types and known values."""

    def __init__(self, node: OnnxNode, scope: ValueScope, context: EvaluationContext):
        self.node, self.scope, self.context = node, scope, context

    @property
    def version(self) -> int:
        """Return the operator set version of the node's domain."""
        return self.node.version

    def attr(self, name: str, default: Any = None) -> Any:
        """Return an attribute; a tensor as an array of the dtype that holds its type."""
        found = self.node.attributes.get(name, default)
        return found.array if isinstance(found, Constant) else found

    def type(self, n: int) -> str:
        """Return the element type's name of input n, "" if the input is left out."""
        names = self.node.inputs
        return self.scope.type(names[n]) if n < len(names) and names[n] else ""

    def result(self, n: int = 0) -> ElementType:
        """Return the element type of output n."""
        return ELEMENTS[self.scope.type(self.node.outputs[n])]

    @property
    def dtype(self) -> DType:
        """Return the dtype that holds output 0."""
        return self.result().dtype

    def wants(self, n: int) -> bool:
        """Return whether the node names output n, so that it may be read."""
        return n < len(self.node.outputs) and bool(self.node.outputs[n])

    def known(self, x: Any) -> np.ndarray | None:
        """Return the values of a tensor, None if they are known only when the program runs."""
        return self.context.known(x)

    def static(self, x: Any, what: str) -> np.ndarray:
        """Return the values of a tensor that extents depend on. Raises TraceError, which names `what`, if unknown."""
        found = self.known(x)
        if found is None:
            raise TraceError(
                f"{what} must be known when the program is compiled, but depends on an input or a parameter; pass "
                "load the input as a constant, constants={name: array}, or call the network on arrays"
            )
        return found

    def ints(self, x: Any, what: str) -> tuple[int, ...]:
        """Return the values of a tensor that extents depend on as integers. Raises TraceError if they are unknown."""
        return tuple(int(n) for n in self.static(x, what).reshape(-1))

    def constant(self, array: Any, dtype: Any) -> Value:
        """Return an array as a constant of a type."""
        kind = dtype_of(dtype)
        return self.context.constant(np.array(array, kind.numpy, order="C"), kind)

    def evaluate(self, body: OnnxGraph, values: dict[str, Any]) -> list[Any]:
        """Evaluate a body of the node and return its outputs."""
        return evaluate(body, values, self.context, self.scope)


def evaluate(
    graph: OnnxGraph, values: dict[str, Any], context: EvaluationContext, around: ValueScope | None = None
) -> list[Any]:
    """Return a graph's outputs for `values` of its inputs (and the outermost graph's parameters). Extends the trace."""
    scope = ValueScope(graph, values, around)
    for name, constant in graph.constants.items():
        if name not in values:
            values[name] = context.constant(constant.array, ELEMENTS[constant.type].dtype)
    run_nodes(graph.nodes, scope, context)
    return [scope.value(name) for name in graph.outputs]


def run_nodes(nodes: Sequence[OnnxNode], scope: ValueScope, context: EvaluationContext) -> None:
    """Evaluate nodes in order and put their results into the scope."""
    for node in nodes:
        with evaluating(f"{context.what}/{node.name}", f"{node} of {context.what}"):
            inputs = [scope.value(x) if x else None for x in node.inputs]
            found = TABLE[node.operator].run(NodeCall(node, scope, context), *inputs)
            results = list(found) if isinstance(found, (tuple, Several)) else [found]
            if node.operator not in MOVING:  # bodies of "If" read other tensors than the operands
                results = keep_wide(inputs, results)
            for name, result in zip(node.outputs, results, strict=False):
                if name:
                    scope.values[name] = _wrap_result(node, name, result, scope.type(name))


class Several(list):
    """The results of an operator with a variable number of outputs; a plain list is one result, a sequence."""


def _wrap_result(node: OnnxNode, name: str, found: Any, kind: str) -> Any:
    """Return a result wrapped into its type's range. Raises DtypeError if the formula gives another type."""
    element = ELEMENTS.get(kind)
    if element is None or not isinstance(found, Value):
        return found
    if found.dtype is not element.dtype:
        raise DtypeError(f"{node} gave {found.dtype.name} for {name!r}, which is {kind}")
    if element.wrap is None or node.operator in MOVING:
        return found
    return element.wrap(found)


MOVING = frozenset((
    "Identity", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Concat", "Split", "Slice", "Gather",
    "GatherElements", "GatherND", "Tile", "Expand", "Where", "Pad", "Min", "Max", "ReduceMin", "ReduceMax", "TopK",
    "If", "Loop", "Scan", "Constant", "ScatterElements", "ScatterND", "Compress", "Unique", "QuantizeLinear",
))  # fmt: skip
"""Operators whose results are elements of their operands and need no wrapping into the type's range."""
