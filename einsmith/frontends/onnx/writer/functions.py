"""Write formulas that have no name in ONNX as functions of the model, which nodes of their name call.

    einsmith.distance (x, z) => (D) { sub = Sub(..); abs = Abs(sub); D = ReduceSum(abs, axes) }

The constants of a formula are inputs of its function at first, so that one function does for all shapes of its inputs.
`sink_constants` moves those inside that are the same in all calls.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from inspect import signature
from textwrap import dedent
from typing import Any, NamedTuple

import onnx
from onnx import helper

from einsmith.base.trees import flatten
from einsmith.frontends.onnx.protos import walk_nodes
from einsmith.frontends.onnx.writer.network import write_tensors
from einsmith.frontends.onnx.writer.onnx_graph import GraphWriter, WrittenFunction
from einsmith.frontends.onnx.writer.operators import NamedCall
from einsmith.ir.nodes import Leaf, Tensor
from einsmith.lang.op import Operator
from einsmith.ops.table import OPERATORS
from einsmith.tracing.builder import Value, as_value
from einsmith.tracing.trace import Call

DOMAIN = "einsmith"
"""Domain of the functions."""


class _Formula(NamedTuple):
    """What a function is made of.

    Attributes:
        name: its name.
        text: its formula, for documentation.
        inputs: the tensors that it reads, with their names.
        outputs: the tensors that it gives, with their names.
        own: whether it is an operator of the user's, which has its name even if it is one node.
    """

    name: str
    text: str
    inputs: Mapping[Tensor, str]
    outputs: Mapping[Tensor, str]
    own: bool


def as_function(call: Call, named: Mapping[Tensor, NamedCall]) -> NamedCall | None:
    """Return a call, except for its results in `named`, as a node that calls a function; None where nothing is left of
    it, or where it is composed of calls of `named`.

    The call's trace must be the current one. named: the calls that are operators of ONNX.
    """
    operator = call.function if isinstance(call.function, Operator) else None
    operands = dict(_operands(call))
    results = flatten(call.result)[0]
    if operator is not None:
        name, text, names = operator.name, operator.program.text, list(operator.program.outputs)
    else:
        name = call.function.__name__
        text, names = OPERATORS[name].formula if name in OPERATORS else "", [name] * len(results)
    results_by_tensor: dict[Tensor, str] = {}
    for x, output in zip(results, names, strict=True):
        if isinstance(x, Value) and x.literal is None and x.tensor not in operands and x.tensor not in named:
            results_by_tensor.setdefault(x.tensor, output)
    read: dict[Tensor, str] = {}
    seen: set[Any] = set()
    stack: list[Any] = list(results_by_tensor)
    while stack:
        node = stack.pop()
        if node in operands or isinstance(node, Leaf):
            read[node] = operands.get(node, "input")
        elif node in named and operator is None:
            return None
        elif node not in seen:
            seen.add(node)
            stack += node.args
    if not seen:
        return None
    inputs = {t: read[t] for t in (*(t for t in operands if t in read), *read)}
    outputs = {t: n for t, n in results_by_tensor.items() if t in seen}
    formula = _Formula(re.sub(r"\W", "_", name), dedent(text).strip(), inputs, outputs, operator is not None)
    return NamedCall(tuple(inputs), tuple(outputs), lambda graph, *names: _write(graph, formula, names))


def _operands(call: Call) -> Iterator[tuple[Tensor, str]]:
    """Yield the tensors that a call is given, each with the name of its argument."""
    arguments = call.kwargs
    if not isinstance(call.function, Operator):
        arguments = signature(call.function).bind(*call.args, **call.kwargs).arguments
    known = set()
    for name, tree in arguments.items():
        for x in flatten(tree)[0]:
            if not isinstance(x, Value) and not hasattr(x, "__einsmith_value__"):
                continue
            value = as_value(x)
            if value.literal is None and value.tensor not in known:
                known.add(value.tensor)
                yield value.tensor, name


def _write(graph: GraphWriter, formula: _Formula, names_of_inputs: tuple[str, ...]) -> tuple[str, ...]:
    """Write a function and a call of it. Return the names of the call's outputs, or () for a formula that has one node
    for each output and no name of the user's."""
    body = GraphWriter(graph.opset, subject=f"the formula of {formula.name!r}")
    outputs = [body.unique(n) for n in formula.outputs.values()]
    names = {t: body.unique(n) for t, n in formula.inputs.items()}
    body.name_outputs(write_tensors(body, names, [*formula.outputs], {}), outputs)
    if len(body.nodes) == len(outputs) and not formula.own:
        return ()
    constants = body.read_initializers()
    function = graph.function(
        helper.make_function(
            DOMAIN,
            formula.name,
            [*names.values(), *(t.name for t in constants)],
            outputs,
            body.nodes,
            [helper.make_opsetid("", graph.opset)],
            doc_string=formula.text,
        ),
        len(names),
    )
    inputs = [*names_of_inputs, *(graph.copy(t, body.written[t.name]) for t in constants)]
    return graph.nodes_of(function, inputs, [graph.unique(n) for n in outputs], domain=DOMAIN)


def sink_constants(graph: onnx.GraphProto, functions: list[WrittenFunction]) -> None:
    """Make constants of functions that are the same in all calls nodes of the functions."""
    values = {t.name: t for t in graph.initializer}
    for function, operands in functions:
        calls = [n for n in graph.node if (n.domain, n.op_type) == (DOMAIN, function.name)]
        inside = []
        for place in reversed(range(operands, len(function.input))):
            tensors = [values.get(c.input[place]) for c in calls]
            if any(t is None or _content(t) != _content(tensors[0]) for t in tensors):
                continue
            name = function.input.pop(place)
            for c in calls:
                c.input.pop(place)
            value = onnx.TensorProto()
            value.CopyFrom(tensors[0])
            value.name = name
            inside.append(helper.make_node("Constant", [], [name], name=name, value=value))
        nodes = [*reversed(inside), *function.node]
        del function.node[:]
        function.node.extend(nodes)
    read = {x for node in walk_nodes(graph.node) for x in node.input}
    kept = [t for name, t in values.items() if name in read]
    del graph.initializer[:]
    graph.initializer.extend(kept)


def _content(t: onnx.TensorProto) -> tuple:
    return t.data_type, tuple(t.dims), t.raw_data
