"""Evaluate a graph of ONNX operators on traced tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from einsmith import ops as F
from einsmith.base import dtypes as dt
from einsmith.base import symbolic
from einsmith.base.dtypes import DType, dtype_of
from einsmith.base.errors import (
    ArgumentError,
    EinsmithError,
    OutOfMemoryError,
    ShapeError,
    TraceError,
    escape_text,
)
from einsmith.frontends.graph import evaluating
from einsmith.frontends.onnx.nodes import Constant, OnnxGraph, OnnxNode
from einsmith.frontends.onnx.table import TABLE
from einsmith.frontends.onnx.types import ELEMENTS, ElementType
from einsmith.ir import evaluator, nodes
from einsmith.ir.nodes import Leaf, Tensor, postorder
from einsmith.ops.intermediates import keep_wide
from einsmith.quantization.decoded import Decoded
from einsmith.tracing import builder
from einsmith.tracing.builder import Value
from einsmith.tracing.trace import current_trace

SMALL = 16
"""Most elements of a constant that becomes a literal of the formulas if all its elements are equal."""
MOST_EXTENT, MOST_ELEMENTS, MOST_DIMENSIONS = 2**31 - 1, 2**40, 64
"""Largest extent, most elements and most dimensions of a node's result; programs count places in 64 bits, and NumPy has
arrays of at most 64 dimensions."""
MOST_KNOWN = 2**22
"""Most elements of a tensor that is computed while the network is compiled, because extents depend on it, or because it
is a table of an operator."""
MOST_NODES = 100_000
"""Most nodes that are evaluated when a network is compiled, each once for each step of a loop that is unrolled."""


@dataclass
class EvaluationContext:
    """The state of one evaluation of a network.

    what: its name; training: whether it is in training mode; stored: parameters and buffers by their name in the file,
    so that an operator can update them; constants: leaf of the trace -> the array that it represents; decoded: tensors
    that represent integers; nodes: how many nodes have been evaluated.
    """

    what: str
    training: bool = True
    stored: Mapping[str, Any] = field(default_factory=dict)
    constants: dict[Leaf, np.ndarray] = field(default_factory=dict)
    folded: dict[Any, np.ndarray] = field(default_factory=dict)
    decoded: dict[Tensor, Decoded] = field(default_factory=dict)
    nodes: int = 0

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
        """Return the values of a tensor computed from constants and extents alone, None for others.

        The reference evaluator of formulas folds them. Those that follow from symbolic extents are objects.
        """
        x = builder.as_value(x)
        if x.tensor not in self.folded:
            needed = list(postorder([x.tensor]))
            leaves = [t for t in needed if isinstance(t, Leaf)]
            if any(t not in self.constants for t in leaves):
                return None
            if any(_count_points(t) > MOST_KNOWN for t in needed if not isinstance(t, Leaf)):
                raise TraceError(
                    f"a tensor that is computed while the network is compiled has more than {MOST_KNOWN:,} elements; "
                    "store it as an initializer"
                )
            (folded,), _ = evaluator.evaluate(
                nodes.Graph(tuple(leaves), (x.tensor,), (), ()), [self.constants[t] for t in leaves]
            )
            self.folded[x.tensor] = folded if folded.dtype == object else x.dtype.narrow(folded)
        return self.folded[x.tensor]


def _count_points(t: Any) -> int:
    """Return the number of points at which the formula of a tensor is evaluated."""
    template = getattr(t, "template", None)
    return 0 if template is None else sum(prod(p.domain) for p in template.parts)


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
        value = self.node.attributes.get(name, default)
        return value.array if isinstance(value, Constant) else value

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
        values = self.known(x)
        if values is None:
            raise TraceError(
                f"{what} must be known when the program is compiled, but depends on an input or a parameter; pass "
                "load the input as a constant, constants={name: array}, or call the network on arrays"
            )
        return values

    def ints(self, x: Any, what: str, least: int | None = None) -> tuple[int, ...]:
        """Return the values of a tensor that extents depend on as integers.

        Raises TraceError if they are unknown, and ArgumentError, which names `what`, if they are no integers, below
        `least`, or, where there is a least, above MOST_EXTENT.
        """
        array = self.static(x, what)
        if array.dtype.kind not in "iubO" or array.ndim > 1:
            raise ArgumentError(
                f"{what} must be integers of at most one dimension, not {array.dtype}{list(array.shape)}"
            )
        numbers = tuple(symbolic.to_whole(n) for n in array.reshape(-1))
        wrong = [] if least is None else [n for n in numbers if not least <= n <= MOST_EXTENT]
        if wrong:
            raise ArgumentError(f"{what} has {wrong[0]}; it must be from {least} to {MOST_EXTENT}")
        return numbers

    def integer(self, x: Any, what: str, least: int | None = None) -> int:
        """Return the one value of a tensor that extents depend on as an integer; see `ints`."""
        numbers = self.ints(x, what, least)
        if len(numbers) != 1:
            raise ArgumentError(f"{what} must be one number, not {len(numbers)}")
        return numbers[0]

    def number(self, x: Any, what: str) -> float:
        """Return the one value of a tensor that extents depend on; raise ArgumentError if it is not finite."""
        numbers = self.static(x, what).astype(np.float64).reshape(-1)
        if len(numbers) != 1 or not np.isfinite(numbers[0]):
            raise ArgumentError(f"{what} must be one finite number, not {numbers[:4].tolist()}")
        return numbers[0]

    def per_dimension(self, name: str, rank: int, default: int) -> tuple[int, ...]:
        """Return an attribute that has a number for each of `rank` dimensions. Raises ArgumentError."""
        numbers = tuple(self.attr(name, (default,) * rank))
        if len(numbers) != rank:
            raise ArgumentError(
                f"the attribute {name!r} has {len(numbers)} numbers for {rank} dimensions: {numbers[:8]}"
            )
        return numbers

    def body(self, name: str, inputs: int | None = None, outputs: int = 0) -> OnnxGraph:
        """Return a body of the node. Raises ArgumentError if it has another number of inputs or fewer outputs."""
        body = self.node.attributes[name]
        if inputs is not None and len(body.inputs) != inputs or len(body.outputs) < outputs:
            raise ArgumentError(
                f"{name} has {len(body.inputs)} inputs and {len(body.outputs)} outputs; the node needs "
                f"{len(body.inputs) if inputs is None else inputs} inputs and {outputs} or more outputs"
            )
        return body

    def table(self, extents: Sequence[int], what: str) -> None:
        """Raise ArgumentError, which names `what`, if a table of these extents is too large to be computed while the
        network is compiled."""
        if prod(max(e, 0) for e in extents) > MOST_KNOWN:
            raise ArgumentError(f"{what} has the shape {tuple(extents)}; at most {MOST_KNOWN:,} elements are supported")

    def constant(self, array: Any, dtype: Any) -> Value:
        """Return an array as a constant of a type."""
        kind = dtype_of(dtype)
        return self.context.constant(np.array(array, kind.numpy, order="C"), kind)

    def extents(self, numbers: Sequence[int]) -> Value:
        """Return extents as a tensor of int64 [N].

        Its formula contains them as constants: a captured array would be a different one for each size.
        """
        parts = [builder.full((1,), n, dt.i64) for n in numbers]
        return F.cat(parts, 0) if parts else self.constant((), dt.i64)

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
        context.nodes += 1
        if context.nodes > MOST_NODES:
            raise TraceError(f"{context.what} unrolls loops to more than {MOST_NODES:,} nodes; give them fewer steps")
        with evaluating(f"{context.what}/{node.name}", f"{node} of {context.what}"):
            try:
                _run_node(node, scope, context)
            except EinsmithError:
                raise
            except MemoryError as e:
                raise OutOfMemoryError(f"{node} of {context.what} needs more memory than there is: {e}") from e
            except Exception as e:
                raise ArgumentError(
                    f"{node} of {context.what} cannot be evaluated, and an attribute or an input may not be as "
                    f"the standard says: {type(e).__name__}: {escape_text(str(e))}"
                ) from e


def _run_node(node: OnnxNode, scope: ValueScope, context: EvaluationContext) -> None:
    """Evaluate a node and put its results into the scope."""
    inputs = [scope.value(x) if x else None for x in node.inputs]
    output = TABLE[node.operator].run(NodeCall(node, scope, context), *inputs)
    results = list(output) if isinstance(output, (tuple, Several)) else [output]
    if node.operator not in MOVING:  # bodies of "If" read other tensors than the operands
        results = keep_wide(inputs, results)
    for name, result in zip(node.outputs, results, strict=False):
        if name:
            _check_shape(name, result)
            scope.values[name] = _fit_result(node, result, scope.type(name))


def _check_shape(name: str, result: Any) -> None:
    """Raise ShapeError if a result cannot be an array: extents are negative, or it has too many elements."""
    shape = result.shape if isinstance(result, Value) else ()
    if len(shape) > MOST_DIMENSIONS or any(not 0 <= e <= MOST_EXTENT for e in shape) or prod(shape) > MOST_ELEMENTS:
        raise ShapeError(
            f"the result {name!r} has the shape {shape}; extents are from 0 to {MOST_EXTENT}, and {MOST_DIMENSIONS} "
            f"dimensions and {MOST_ELEMENTS:,} elements are supported"
        )


class Several(list):
    """The results of an operator with a variable number of outputs; a plain list is one result, a sequence."""


def _fit_result(node: OnnxNode, result: Any, kind: str) -> Any:
    """Return a result in the standard's type, wrapped into the range of that type."""
    element = ELEMENTS.get(kind)
    if element is None or not isinstance(result, Value):
        return result
    result = result.astype(element.dtype)
    return result if element.wrap is None or node.operator in MOVING else element.wrap(result)


MOVING = frozenset((
    "Identity", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Concat", "Split", "Slice", "Gather",
    "GatherElements", "GatherND", "Tile", "Expand", "Where", "Pad", "Min", "Max", "ReduceMin", "ReduceMax", "TopK",
    "If", "Loop", "Scan", "Constant", "ScatterElements", "ScatterND", "Compress", "Unique", "QuantizeLinear",
))  # fmt: skip
"""Operators whose results are elements of their operands and need no wrapping into the type's range."""
