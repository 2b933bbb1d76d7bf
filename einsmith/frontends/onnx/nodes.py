"""Represent an ONNX graph as data, without the onnx package: nodes, constants, inputs and outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from einsmith.base.locks import cached_property
from einsmith.frontends.onnx.table import TABLE


@dataclass(frozen=True)
class OnnxNode:
    """A node: outputs = operator(*inputs).

    name: as in the file, or made of its operator and first output; operator: the key of the table; version: the
    operator set of its domain; inputs: "" if one is left out; attributes: numbers, strings, tuples, arrays (as
    `Constant`), bodies (as `OnnxGraph`).
    """

    name: str
    operator: str
    version: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]

    @property
    def bodies(self) -> list[OnnxGraph]:
        """The graphs among the attributes: branches and bodies of loops."""
        return [g for g in self.attributes.values() if isinstance(g, OnnxGraph)]

    def __str__(self) -> str:
        return f"{self.operator} {self.name!r}"


@dataclass(frozen=True)
class Constant:
    """A constant: an array of the dtype that holds its element type, and the element type's name."""

    array: np.ndarray
    type: str


@dataclass(frozen=True)
class Input:
    """A graph's input. shape: an int, a size's name or None (unknown) for each dimension; None: the rank is unknown."""

    name: str
    type: str
    shape: tuple[int | str | None, ...] | None


@dataclass(frozen=True)
class OnnxGraph:
    """A graph, or the body of a node. types: name -> element type; outputs: names; shapes: name of an output -> its
    shape, where the file states it."""

    name: str
    inputs: tuple[Input, ...]
    nodes: tuple[OnnxNode, ...]
    constants: Mapping[str, Constant]
    types: Mapping[str, str]
    outputs: tuple[str, ...]
    shapes: Mapping[str, tuple[int | str | None, ...]] = field(default_factory=dict)
    static: dict[frozenset[str], frozenset[str]] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Results of `static_names`, which would otherwise take time that is exponential in the nesting of loops."""

    @cached_property
    def free(self) -> set[str]:
        """Return the names that this graph reads from the graphs around it."""
        own = {i.name for i in self.inputs} | set(self.constants) | {o for n in self.nodes for o in n.outputs}
        read = {x for n in self.nodes for x in n.inputs} | set(self.outputs)
        read |= {x for n in self.nodes for body in n.bodies for x in body.free}
        return {x for x in read - own if x}


SHAPES = ("Shape", "Size", "SequenceLength", "OptionalHasElement")
"""Operators that read only a tensor's shape, or whether it is present, not its values."""


def static_names(graph: OnnxGraph, wanted: Sequence[str] = ()) -> frozenset[str]:
    """Return the names, here and in the graphs around, whose values tracing must know since extents depend on them."""
    key = frozenset(wanted)
    if key not in graph.static:
        graph.static[key] = frozenset(_find_static(graph, set(wanted)))
    return graph.static[key]


def _find_static(graph: OnnxGraph, need: set[str]) -> set[str]:
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
                need.update(_names_from_outside(node, body))
    return need - {""}


def _names_from_outside(node: OnnxNode, body: OnnxGraph) -> Iterator[str]:
    """Yield the names outside of a loop whose values its body must know during tracing.

    These are the condition if the number of steps decides extents, the initial values of carried states on which
    extents depend, and the outer names that the body reads for them.
    """
    counted = needs_unrolling(body) or len(body.outputs) > len(body.inputs) - 1
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


def needs_unrolling(body: OnnxGraph) -> bool:
    """Return whether a loop's steps may differ in shapes: extents depend on the step number or on carried values."""
    inside = static_names(body)
    return any(x.name in inside for x in body.inputs)


def every_node(graph: OnnxGraph) -> Iterator[OnnxNode]:
    """Yield the nodes of a graph, each followed by the nodes of its bodies."""
    for node in graph.nodes:
        yield node
        for body in node.bodies:
            yield from every_node(body)
