"""A file's graph as data, free of the onnx package: nodes, constants, what goes in and out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from einsmith.frontends.onnx.table import TABLE


@dataclass(frozen=True)
class OnnxNode:
    """outputs = operator(*inputs). name: as in the file, or made of its operator and first output; operator: the key of
    the table; version: the operator set of its domain; inputs: "" where one is left out; attributes: numbers, strings,
    tuples, arrays (as `Constant`), bodies (as `Graph`)."""

    name: str
    operator: str
    version: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]

    @property
    def bodies(self) -> list[OnnxGraph]:
        return [g for g in self.attributes.values() if isinstance(g, OnnxGraph)]

    def __str__(self) -> str:
        return f"{self.operator} {self.name!r}"


@dataclass(frozen=True)
class Constant:
    """An array as it is held, and the name of its element type."""

    array: np.ndarray
    type: str


@dataclass(frozen=True)
class Input:
    """shape: ints, names of sizes, or None where nothing is said; its length is the rank. None: no shape is said."""

    name: str
    type: str
    shape: tuple[int | str | None, ...] | None


@dataclass(frozen=True)
class OnnxGraph:
    """A graph, or the body of a node. types: name -> element type; outputs: names; shapes: of outputs,
    where they are said."""

    name: str
    inputs: tuple[Input, ...]
    nodes: tuple[OnnxNode, ...]
    constants: Mapping[str, Constant]
    types: Mapping[str, str]
    outputs: tuple[str, ...]
    shapes: Mapping[str, tuple[int | str | None, ...]] = field(default_factory=dict)

    @property
    def free(self) -> set[str]:
        """Names of the graphs around this one that it reads."""
        own = {i.name for i in self.inputs} | set(self.constants) | {o for n in self.nodes for o in n.outputs}
        read = {x for n in self.nodes for x in n.inputs} | set(self.outputs)
        read |= {x for n in self.nodes for body in n.bodies for x in body.free}
        return {x for x in read - own if x}


SHAPES = ("Shape", "Size", "SequenceLength", "OptionalHasElement")
"""Operators that ask the shape of a tensor, or whether it is there, not its values."""


def static_names(graph: OnnxGraph, wanted: Sequence[str] = ()) -> set[str]:
    """Names whose values must be known as a trace is made, since extents depend on them, in this graph and around."""
    need = set(wanted)
    for node in reversed(graph.nodes):
        need.discard("")
        if node.operator not in SHAPES and need.intersection(node.outputs):
            need.update(x for x in node.inputs if x)
            need.update(x for body in node.bodies for x in body.free)
        entry = TABLE.get(node.operator)
        need.update(node.inputs[k] for k in (entry.static if entry else ()) if k < len(node.inputs) and node.inputs[k])
        for body in node.bodies:
            inside = static_names(body)
            need.update(inside & body.free)
            if node.operator == "Loop":
                need.update(_carried(node, body))
    return need - {""}


def _carried(node: OnnxNode, body: OnnxGraph) -> Iterator[str]:
    """What a loop's body must know, of the names around it: the condition where the number of steps decides extents,
    and initial values of what is carried from step to step, with what they are made of."""
    counted = unrolled(body) or len(body.outputs) > len(body.inputs) - 1
    inside = static_names(body, body.outputs[:1] if counted else ())
    while True:
        known = [k for k, x in enumerate(body.inputs[2:]) if x.name in inside]
        more = static_names(body, [body.outputs[1 + k] for k in known]) | inside
        if more == inside:
            break
        inside = more
    if counted or body.inputs[1].name in inside:
        yield from node.inputs[1:2]
    yield from (node.inputs[2 + k] for k in known)
    yield from inside & body.free


def unrolled(body: OnnxGraph) -> bool:
    """Whether the steps of a loop's body differ in shapes: it must know the number of the step, or what is carried."""
    inside = static_names(body)
    return any(x.name in inside for x in body.inputs)


def every_node(graph: OnnxGraph) -> Iterator[OnnxNode]:
    """The nodes of a graph and of the bodies in it."""
    for node in graph.nodes:
        yield node
        for body in node.bodies:
            yield from every_node(body)
