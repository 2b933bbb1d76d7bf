"""Trace a network in evaluation mode and write it as an ONNX model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper

from einsmith.base.dtypes import DType
from einsmith.base.errors import ArgumentError
from einsmith.base.trees import flatten
from einsmith.frontends.onnx.writer.batch import SIZES, join_sizes
from einsmith.frontends.onnx.writer.functions import DOMAIN, as_function, sink_constants
from einsmith.frontends.onnx.writer.network import write_tensors
from einsmith.frontends.onnx.writer.onnx_graph import GraphWriter, element_type
from einsmith.frontends.onnx.writer.operators import NamedCall, translate
from einsmith.ir.nodes import Leaf, Tensor, leaf, nbytes
from einsmith.nn.module import Module
from einsmith.nn.parameter import Stored
from einsmith.tracing import trace
from einsmith.tracing.builder import Value, as_value

MAX_BYTES = 2**31 - 2**20
"""Most bytes of initializers: a file is one protobuf message, which has fewer than 2**31 bytes."""


@dataclass(frozen=True)
class _Captured:
    """A traced network: its inputs and results, the objects that it reads, and the calls that operators or functions
    express."""

    inputs: tuple[Leaf, ...]
    results: tuple[Tensor, ...]
    objects: tuple[tuple[Any, Leaf], ...]
    calls: dict[Tensor, NamedCall]


def make_model(
    model: Module,
    example: Sequence[tuple[tuple[int, ...], DType]],
    inputs: Sequence[str],
    outputs: Sequence[str] | None,
    opset: int,
    dynamic_batch: bool,
) -> onnx.ModelProto:
    """Return a network's ONNX model, checked.

    Args:
        model: the network
        example: shape and element type of each input
        inputs: names of the inputs
        outputs: names of the outputs; None: "output", or "output_0", "output_1", ...
        opset: the operator set
        dynamic_batch: whether the first extent of all inputs may be any number
    """
    if dynamic_batch:
        (first, writer), (second, other) = (
            _graph(model, [((n, *shape[1:]), dtype) for shape, dtype in example], inputs, outputs, opset) for n in SIZES
        )
        functions = [[f for f, _ in w.functions.values()] for w in (writer, other)]
        size = writer.unique("batch_size")
        graph = join_sizes(first, second, functions, writer.written, inputs[0], size)
    else:
        graph, writer = _graph(model, example, inputs, outputs, opset)
    written = [*writer.functions.values()]
    sink_constants(graph, written)
    imports = [helper.make_opsetid("", opset)]
    version = helper.find_min_ir_version_for(imports)
    imports += [helper.make_opsetid(DOMAIN, 1)] if written else []
    proto = helper.make_model(
        graph,
        producer_name="einsmith",
        opset_imports=imports,
        ir_version=version,
        functions=[f for f, _ in written],
    )
    onnx.checker.check_model(proto, full_check=True)
    return proto


def _capture(model: Module, example: Sequence[tuple[tuple[int, ...], DType]]) -> _Captured:
    t = trace.Trace()
    t.calls = []
    inputs = tuple(leaf(shape, dtype) for shape, dtype in example)
    with model.in_mode(training=False), trace.compiling(), trace.tracing(t):
        leaves, _ = flatten(model(*map(Value, inputs)))
        results = tuple(as_value(x).tensor for x in leaves)
        named: dict[Tensor, NamedCall] = {}
        functions: dict[Tensor, NamedCall] = {}
        for call in t.calls:  # a translation may call functions, too, which are translated after it
            if (written := translate(call)) is not None:
                named |= dict.fromkeys(written.results, written)
            if (written := as_function(call, named)) is not None:
                functions |= dict.fromkeys(written.results, written)
    paths = _paths(model)
    for x, _ in t.updates.values():
        if not isinstance(x, Stored):
            continue  # a counter of random numbers
        path = repr(paths[id(x)]) if id(x) in paths else "a buffer"  # of a module that a function calls
        raise ArgumentError(
            f"the evaluation of {model._class_name()} updates {path}, which an ONNX file cannot; return the new "
            "value as an output, and take it as an input"
        )
    return _Captured(inputs, results, tuple(t.captured.values()), functions | named)


def _paths(model: Module) -> dict[int, str]:
    """Return the names of parameters and buffers by id; of several names, the first."""
    names: dict[int, str] = {}
    for name, x in [*model.named_parameters(), *model.named_buffers()]:
        names.setdefault(id(x), name)
    return names


def _graph(
    model: Module,
    example: Sequence[tuple[tuple[int, ...], DType]],
    inputs: Sequence[str],
    outputs: Sequence[str] | None,
    opset: int,
) -> tuple[onnx.GraphProto, GraphWriter]:
    """Return the graph of a network for inputs of certain shapes, and what wrote it."""
    captured = _capture(model, example)
    count = len(captured.results)
    if outputs is None:
        outputs = ["output"] if count == 1 else [f"output_{n}" for n in range(count)]
    if len(outputs) != count:
        raise ArgumentError(f"output_names={list(outputs)!r}: {model._class_name()} has {count} outputs")
    paths = _paths(model)
    size = sum(nbytes(x) for _, x in captured.objects)
    if size > MAX_BYTES:
        raise ArgumentError(
            f"the parameters of {model._class_name()} have {size / 2**30:.2f} GiB, and an ONNX file holds less than 2"
        )
    names = [*inputs, *outputs]
    writer = GraphWriter(opset, [*names, *paths.values()])
    leaves = dict(zip(captured.inputs, inputs, strict=True))
    for x, place in captured.objects:
        if isinstance(x, np.ndarray):
            leaves[place] = writer.constant(x, "constant", place.dtype)
        elif not isinstance(x, Stored):
            leaves[place] = ""  # the state of random numbers, whose formula is the one that an error shows
        else:
            path = paths.get(id(x))
            leaves[place] = writer.constant(x.memory.copy(), "constant", place.dtype, name=path)
            if path in names:
                raise ArgumentError(
                    f"{path!r} names a parameter of {model._class_name()}; choose other input_names and output_names"
                )
    written = write_tensors(writer, leaves, captured.results, captured.calls)
    writer.name_outputs(written, outputs)
    infos = [
        [helper.make_tensor_value_info(n, element_type(x.dtype), x.shape) for n, x in zip(known, tensors, strict=True)]
        for known, tensors in ((inputs, captured.inputs), (outputs, captured.results))
    ]
    graph = helper.make_graph(writer.nodes, model._class_name(), *infos, writer.read_initializers())
    return graph, writer
