"""Run loops whose end depends on values, and which may take any number of steps, as exporters write `while`.

A program reserves memory for every step of a loop. A call on arrays therefore runs such a loop as a program of a few
steps, which it calls until the condition is false; what comes before and after the loop are programs of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from einsmith.base.errors import TraceError
from einsmith.frontends.onnx.nodes import Constant, Input, OnnxGraph, OnnxNode
from einsmith.frontends.onnx.types import ELEMENTS

STEPS = 16
"""Steps of one call of the program of a loop. Those after the end are computed in vain."""
_OWN = "einsmith.loop."
"""Prefix of the names that are added to a graph."""


class LongLoopError(TraceError):
    """Error for a loop whose end depends on values, and whose steps are too many for memory of each. `node`: the
    loop."""

    def __init__(self, message: str, node: OnnxNode):
        super().__init__(message)
        self.node = node


class LongLoop:
    """A graph divided at a loop.

    before, steps, after: the network's parts as modules; before gives what the others read of it, steps takes and gives
    (number of steps, condition, states) and takes more, after gives the results.
    """

    def __init__(self, graph: OnnxGraph, node: OnnxNode, module: Callable[[OnnxGraph], Any]):
        """Divide a graph.

        Args:
            graph: the network's graph
            node: its loop, which has no outputs per step
            module: makes a module of a part of the graph
        Raises:
            TraceError: the type of a name that a part takes is not known.
        """
        self.node, at = node, [n is node for n in graph.nodes].index(True)
        self.produced = {o for n in graph.nodes[:at] for o in n.outputs} | {i.name for i in graph.inputs}
        first = replace(graph, nodes=graph.nodes[:at], outputs=())
        last = replace(graph, nodes=graph.nodes[at + 1 :], inputs=())
        body: OnnxGraph = node.attributes["body"]
        self.free = sorted(body.free & self.produced)
        self.count, self.condition, *self.states = *node.inputs[:2], *node.inputs[2:]
        self.results = tuple(o or f"{_OWN}unused{k}" for k, o in enumerate(node.outputs))
        self.results += tuple(f"{_OWN}unused{k}" for k in range(len(node.outputs), len(self.states)))
        self.rest = sorted(last.free & (self.produced | set(self.results)))
        read = {*self.free, *self.rest, *self.states, self.count, self.condition} & self.produced
        own = {i.name for i in graph.inputs}
        stored = {x for x in (*self.states, self.count, self.condition) if x and x not in self.produced}
        self.passed = sorted((read - own) | stored)
        self.before = module(replace(first, outputs=tuple(self.passed)))
        types = {**graph.types, **dict(zip(self.results, (graph.types.get(s, "") for s in self.states), strict=True))}
        known = {i.name: i for i in graph.inputs}

        def take(names: Sequence[str]) -> tuple[Input, ...]:
            unknown = [x for x in names if types.get(x, "") not in (*ELEMENTS, "sequence", "optional")]
            if unknown:
                raise TraceError(f"the type of {unknown[0]!r} is not known, so that {node} cannot run by itself")
            return tuple(known.get(x, Input(x, types[x], None)) for x in names)

        self.after = module(replace(last, inputs=take(self.rest), types=types))
        self.steps = module(_make_steps(graph, node, take(self.free)))

    def __call__(self, values: dict[str, Any], training: bool) -> Any:
        """Return the network's results. values: its inputs by name; training: whether it is in training mode."""
        for part in (self.before, self.steps, self.after):
            object.__setattr__(part, "training", training)
        results = self.before(*(values[i.name] for i in self.before.inputs)) if self.passed else ()
        values = values | dict(zip(self.passed, results if len(self.passed) > 1 else (results,), strict=True))
        most = np.asarray(values[self.count]).reshape(()) if self.count else np.int64(np.iinfo(np.int64).max)
        on = np.asarray(values[self.condition]).reshape(()) if self.condition else np.True_
        t, states, more = np.zeros((), np.int64), [values[s] for s in self.states], [values[x] for x in self.free]
        on = np.asarray(on & (most > 0))
        while bool(on):
            t, on, *states = self.steps(np.asarray(most, np.int64), t, on, *states, *more)
            on = np.asarray(on)
        values |= dict(zip(self.results, states, strict=True))
        return self.after(*(values[x] for x in self.rest))


def _make_steps(graph: OnnxGraph, node: OnnxNode, free: tuple[Input, ...]) -> OnnxGraph:
    """Return the graph of STEPS steps of a loop: (most steps, steps done, condition, states, free names) ->
    (steps done, condition, states). The number of steps done and the condition are carried as states."""
    body: OnnxGraph = node.attributes["body"]
    number, condition, *states = body.inputs
    most, done, on = (
        Input(f"{_OWN}most", "int64", ()),
        Input(number.name, "int64", ()),
        Input(condition.name, "bool", ()),
    )
    names = {k: f"{_OWN}{k}" for k in ("one", "flat", "next", "fewer", "scalar", "on", "steps", "t", "c")}

    def op(operator: str, *inputs: str, out: str) -> OnnxNode:
        return OnnxNode(out, operator, 14, inputs, (out,), {})

    nodes = (
        *body.nodes,
        op("Add", done.name, names["one"], out=names["next"]),
        op("Less", names["next"], most.name, out=names["fewer"]),
        op("Reshape", body.outputs[0], names["flat"], out=names["scalar"]),
        op("And", names["scalar"], names["fewer"], out=names["on"]),
    )
    own = {names["one"]: Constant(np.array(1), "int64"), names["flat"]: Constant(np.zeros(0, np.int64), "int64")}
    counted = replace(
        body,
        inputs=(Input(names["t"], "int64", ()), Input(names["c"], "bool", ()), *states, on, done),
        nodes=nodes,
        constants={**body.constants, **own},
        types=_add_types(body.types, names) | {done.name: "int64", on.name: "bool"},
        outputs=(names["on"], *body.outputs[1:], names["on"], names["next"]),
    )
    carried = [f"{_OWN}state{k}" for k in range(len(states))]
    left = [f"{_OWN}result{k}" for k in range(len(states) + 2)]
    started, begun = Input(f"{_OWN}done", "int64", ()), Input(f"{_OWN}running", "bool", ())
    kinds = [graph.types.get(x, "") or body.types.get(s.name, "") for x, s in zip(node.inputs[2:], states, strict=True)]
    loop = replace(
        node,
        inputs=(names["steps"], begun.name, *carried, begun.name, started.name),
        outputs=tuple(left),
        attributes={**node.attributes, "body": counted},
    )
    return replace(
        graph,
        inputs=(most, started, begun, *(Input(g, k, None) for g, k in zip(carried, kinds, strict=True)), *free),
        nodes=(loop,),
        constants={**graph.constants, names["steps"]: Constant(np.array(STEPS), "int64")},
        types={**graph.types, **dict(zip(left, (*kinds, "bool", "int64"), strict=True))},
        outputs=(left[-1], left[-2], *left[:-2]),
        shapes={},
    )


def _add_types(types: Any, names: dict[str, str]) -> dict[str, str]:
    """Return types with those of the names that a counted body adds."""
    kinds = {"next": "int64", "fewer": "bool", "scalar": "bool", "on": "bool", "one": "int64", "flat": "int64"}
    return {**types, **{names[k]: kind for k, kind in kinds.items()}}
