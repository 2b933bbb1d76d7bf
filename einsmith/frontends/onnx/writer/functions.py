"""Make functions of a model of what was written for formulas without a name in ONNX.

    MatMul, Add, Tanh          ->  einsmith.Y, a function whose nodes these are

A function has the tensors that its nodes read from elsewhere as inputs; the small constants of its formula lie in it.
Formulas whose nodes are the same are one function. Nodes in the bodies of loops stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

import onnx
from onnx import FunctionProto, GraphProto, NodeProto, helper

from einsmith.frontends.onnx.writer.graph import Formula, bodies

DOMAIN = "einsmith"
"""Domain of the functions."""
LEAST_NODES = 2
"""Least nodes of a function: a single one is an operator of ONNX already."""
MAX_CONSTANT = 1024
"""Most elements of a constant that lies in a function; larger ones are inputs, as weights are."""


def make_functions(graph: GraphProto, formulas: Sequence[Formula], constants: set[str], opset: int) -> list:
    """Replace the nodes of formulas by calls, in place, and return the functions (FunctionProto) that they call.

    Args:
        graph: the graph
        formulas: what was written, in order
        constants: names of the initializers that were made for formulas
        opset: the operator set
    """
    by_node = {name: f for f in formulas for name in f.nodes}
    present: dict[str, list[NodeProto]] = {}
    for node in graph.node:
        if node.name in by_node:
            present.setdefault(by_node[node.name].nodes[0], []).append(node)
    groups = {nodes[-1].name: nodes for nodes in present.values() if len(nodes) >= LEAST_NODES}
    readers: dict[str, set[str]] = {x.name: {""} for x in graph.output}
    for node in graph.node:
        for name in _read_by(node):
            readers.setdefault(name, set()).add(node.name)
    small = {t.name: t for t in graph.initializer if t.name in constants and prod(t.dims) <= MAX_CONSTANT}
    made: dict[bytes, FunctionProto] = {}
    taken: dict[str, int] = {}
    calls: dict[str, NodeProto] = {}
    for last, nodes in groups.items():
        members = {n.name for n in nodes}
        inside = {o for n in nodes for o in n.output}
        read = dict.fromkeys(x for n in nodes for x in _read_by(n) if x not in inside)
        outputs = [o for n in nodes for o in n.output if readers.get(o, set()) - members]
        body = _Body([x for x in read if x not in small], [small[x] for x in read if x in small])
        body.add(nodes, outputs)
        formula = by_node[last]
        key = body.key(formula.name)
        known = made.get(key)
        if known is None:
            number = taken[formula.name] = taken.get(formula.name, -1) + 1
            name = f"{formula.name}_{number}" if number else formula.name
            known = made[key] = body.function(name, nodes[0].doc_string, opset)
        calls[last] = helper.make_node(
            known.name, body.inputs, outputs, name=last, domain=DOMAIN, doc_string=nodes[0].doc_string
        )
    replaced = {n.name for nodes in groups.values() for n in nodes}
    kept = [calls.get(n.name, n) for n in graph.node if n.name in calls or n.name not in replaced]
    del graph.node[:]
    graph.node.extend(kept)
    used = {x for n in graph.node for x in _read_by(n)} | {x.name for x in graph.output}
    initializers = [t for t in graph.initializer if t.name in used]
    del graph.initializer[:]
    graph.initializer.extend(initializers)
    return list(made.values())


def identifier(text: str) -> str:
    """Return a text as a function's name."""
    return re.sub(r"\W+", "_", text).strip("_") or "formula"


def _read_by(node: NodeProto) -> list[str]:
    """Return the tensors of the graph around it that a node reads, its bodies included, in order."""
    found = [x for x in node.input if x]
    for body in bodies(node):
        own = {x.name for x in body.input}
        for inner in body.node:
            found += [x for x in _read_by(inner) if x not in own]
            own.update(inner.output)
        found += [x.name for x in body.output if x.name not in own]
    return list(dict.fromkeys(found))


@dataclass
class _Body:
    """The nodes of a function, with names that depend on their order alone: formulas that are written alike are alike.

    inputs: names in the graph around the call; constants: those that lie in the function
    """

    inputs: list[str]
    constants: list[onnx.TensorProto]
    nodes: list[NodeProto] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    _names: dict[str, str] = field(default_factory=dict)

    def add(self, nodes: Sequence[NodeProto], outputs: Sequence[str]) -> None:
        """Add copies of nodes, of which the graph around the call reads `outputs`."""
        self._names |= {x: f"x{n}" for n, x in enumerate(self.inputs)}
        for t in self.constants:
            value = onnx.TensorProto()
            value.CopyFrom(t)
            value.name = ""
            self.nodes.append(helper.make_node("Constant", [], [self._name(t.name)], value=value))
        for node in nodes:
            self.nodes.append(self._copied(node))
        self.outputs = [self._names[o] for o in outputs]

    def _name(self, name: str) -> str:
        return self._names.setdefault(name, f"t{len(self._names)}") if name else ""

    def _copied(self, node: NodeProto) -> NodeProto:
        made = NodeProto()
        made.CopyFrom(node)
        made.doc_string = ""
        made.input[:] = map(self._name, node.input)
        made.output[:] = map(self._name, node.output)
        made.name = made.output[0]
        for body in bodies(made):
            for x in body.input:
                x.name = self._name(x.name)
            inner = [self._copied(n) for n in body.node]
            del body.node[:]
            body.node.extend(inner)
            for x in body.output:
                x.name = self._name(x.name)
            body.name = "body"
        return made

    def key(self, name: str) -> bytes:
        """Return what functions of a name share whose nodes are the same."""
        return b"\0".join([name.encode(), repr(self.outputs).encode(), *(n.SerializeToString() for n in self.nodes)])

    def function(self, name: str, formula: str, opset: int) -> FunctionProto:
        """Return the function."""
        inputs = [self._names[x] for x in self.inputs]
        imports = [helper.make_opsetid("", opset)]
        return helper.make_function(DOMAIN, name, inputs, self.outputs, self.nodes, imports, doc_string=formula)
