"""Collect the nodes, initializers and names of an ONNX graph that is being written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from einsmith.base.dtypes import DType, dtype_of
from einsmith.base.errors import DtypeError
from einsmith.frontends.onnx.protos import walk_nodes
from einsmith.frontends.onnx.types import ELEMENTS

ELEMENT_TYPES = {e.dtype: getattr(TensorProto, name.upper()) for name, e in ELEMENTS.items() if not e.foreign}
"""Dtype of formulas -> element type of ONNX."""
_ARRAYS = {e.dtype: e for e in ELEMENTS.values() if not e.foreign}


def element_type(dtype: DType) -> int:
    """Return ONNX's number of an element type. Raises DtypeError where it has none."""
    if dtype not in ELEMENT_TYPES:
        raise DtypeError(f"ONNX has no element type for {dtype.name}")
    return ELEMENT_TYPES[dtype]


class WrittenFunction(NamedTuple):
    """A function of the model. operands: the number of its inputs that are tensors of the network; constants of its
    formula follow."""

    function: onnx.FunctionProto
    operands: int


class GraphWriter:
    """Nodes and initializers of a graph, in order. The body of a loop is a writer of its own (`body`), which shares
    names and initializers with the graph around it.

    subject: what is written, for messages. formula: text of the formula that is being written; each node has it as its
    `doc_string`. written: for each initializer that this writer has made, the formula that it was made for. functions:
    the functions that nodes call, by their contents.
    """

    def __init__(self, opset: int, taken: Sequence[str] = (), subject: str = "a formula"):
        self.opset, self.subject = opset, subject
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: dict[str, onnx.TensorProto] = {}
        self.written: dict[str, str] = {}
        self.formula = ""
        self.functions: dict[tuple[str, bytes], WrittenFunction] = {}
        self._taken = set(taken)
        self._counts: dict[str, int] = {}
        self._numbers: dict[tuple[str, str], str] = {}

    def body(self) -> GraphWriter:
        """Return the writer of a body inside this graph."""
        inner = GraphWriter(self.opset, subject=self.subject)
        for shared in ("initializers", "written", "_taken", "_counts", "_numbers", "formula"):
            setattr(inner, shared, getattr(self, shared))
        return inner

    def unique(self, hint: str) -> str:
        """Return a new name that begins with `hint`."""
        while True:
            number = self._counts[hint] = self._counts.get(hint, -1) + 1
            name = f"{hint}_{number}" if number else hint
            if name not in self._taken:
                self._taken.add(name)
                return name

    def has(self, operator: str) -> bool:
        """Return whether the operator set has an operator."""
        try:
            return onnx.defs.get_schema(operator, self.opset).since_version <= self.opset
        except onnx.defs.SchemaError:
            return False

    def node(self, operator: str, *inputs: str, hint: str = "", **attributes: Any) -> str:
        """Add a node with one output and return the output's name. hint: what the name begins with."""
        return self.nodes_of(operator, inputs, [self.unique(hint or operator.lower())], **attributes)[0]

    def nodes_of(
        self, operator: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any
    ) -> tuple[str, ...]:
        """Add a node with named outputs and return their names."""
        while inputs and not inputs[-1]:  # operands that are left out at the end
            inputs = inputs[:-1]
        node = helper.make_node(operator, list(inputs), list(outputs), name=outputs[0], **attributes)
        node.doc_string = self.formula
        self.nodes.append(node)
        return tuple(outputs)

    def constant(self, array: np.ndarray, hint: str, dtype: DType | None = None, name: str | None = None) -> str:
        """Add an initializer and return its name.

        hint: what the name begins with; dtype: of the array, where NumPy does not say it; name: the whole name, if it
        is known."""
        kind = dtype or dtype_of(array)
        element_type(kind)
        name = name or self.unique(hint)
        self.initializers[name] = numpy_helper.from_array(_ARRAYS[kind].release(np.array(array, order="C")), name)
        self.written[name] = self.formula
        return name

    def ints(self, values: Sequence[int], hint: str) -> str:
        """Add an initializer of int64 [N]: extents, positions or numbers of dimensions."""
        return self.constant(np.array(values, np.int64).reshape(-1), hint)

    def number(self, value: float | int | bool, dtype: DType) -> str:
        """Return the name of the initializer [] of a number; equal numbers share one."""
        key = repr(value), dtype.name
        if key not in self._numbers:
            self._numbers[key] = self.constant(dtype.narrow(np.asarray(value)), "number", dtype)
        return self._numbers[key]

    def cast(self, name: str, dtype: DType) -> str:
        """Add a node that converts to an element type."""
        return self.node("Cast", name, to=element_type(dtype))

    def read_initializers(self) -> list[onnx.TensorProto]:
        """Return the initializers that nodes read."""
        read = {x for node in walk_nodes(self.nodes) for x in node.input}
        return [t for name, t in self.initializers.items() if name in read]

    def copy(self, t: onnx.TensorProto, formula: str) -> str:
        """Add an initializer that is equal to another graph's, with the formula that it was made for."""
        name = self.unique(t.name)
        self.initializers[name] = onnx.TensorProto()
        self.initializers[name].CopyFrom(t)
        self.initializers[name].name = name
        self.written[name] = formula
        return name

    def function(self, function: onnx.FunctionProto, operands: int) -> str:
        """Add a function and return its name, which differs from its own where another one has that. A function that
        is there already is not added again. operands: as in `WrittenFunction`."""
        bare = onnx.FunctionProto()
        bare.CopyFrom(function)
        for node in walk_nodes(bare.node):
            node.doc_string = ""
        key = function.name, bare.SerializeToString(deterministic=True)
        if key not in self.functions:
            same = sum(name == function.name for name, _ in self.functions)
            names = {f.name for f, _ in self.functions.values()}
            while same and f"{function.name}_{same}" in names:
                same += 1
            function.name += f"_{same}" if same else ""
            self.functions[key] = WrittenFunction(function, operands)
        return self.functions[key].function.name

    def name_outputs(self, written: Sequence[str], outputs: Sequence[str]) -> None:
        """Give results the names of the outputs: their node's output is renamed; one without a node gets an
        Identity."""
        produced = {o for node in self.nodes for o in node.output}
        renamed: dict[str, str] = {}
        for name, output in zip(written, outputs, strict=True):
            if name in produced and name not in renamed:
                renamed[name] = output
        for node in walk_nodes(self.nodes):
            node.input[:] = [renamed.get(x, x) for x in node.input]
            node.output[:] = [renamed.get(x, x) for x in node.output]
        for name, output in zip(written, outputs, strict=True):
            if renamed.get(name) != output:
                self.nodes_of("Identity", [renamed.get(name, name)], [output])
