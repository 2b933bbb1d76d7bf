"""Wrap a graph of operators as a module, with parameters and buffers under their names in PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any

from einsmith.base.errors import ArgumentError, DtypeError
from einsmith.frontends.aten.aten_graph import OperatorGraph, evaluate
from einsmith.frontends.graph import Kind, ModulePart, Taken
from einsmith.tracing.builder import as_value

__all__ = ["AtenModule", "leaves"]

_OTHER_SIZES = (
    "which the module computes with or which was exported as fixed. Export the module with an example of this size, or "
    "with dynamic_shapes"
)


class AtenModule(ModulePart):
    """A network of another framework. Its forward is one of two graphs, by whether it is in training mode.

    Inputs have the types and, except for sizes that may differ, the shapes of the example of the export; the result is
    nested as the network's is. Modes of parts are those of the export: `train` and `eval` choose the
    graph by the mode of the whole.
    """

    def __init__(self, kind: str, graphs: Mapping[bool, OperatorGraph], takes: Any, result: Any):
        """Initialize from graphs by training mode. takes, result: nesting of inputs and outputs, numbers as leaves."""
        super().__init__(kind)
        self._graphs, self._takes, self._result = dict(graphs), takes, result

    def _class_name(self) -> str:
        return self.kind

    @property
    def argument_names(self) -> tuple[str, ...]:
        """The names of the tensors among forward's arguments, as far as each argument is one tensor."""
        graph = self._graphs[self.training]
        names = []
        for (name, several), place in zip(graph.guards.names, self._takes, strict=False):
            if several or not isinstance(place, int) or not isinstance(graph.inputs[place][1], Kind):
                break
            names.append(name)
        return tuple(names)

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        graph = self._graphs[self.training]
        flat = _all(self.kind, graph, _in_order(self.kind, graph, inputs, named))
        graph.guards.check(self.kind, _fill(self._takes, flat))
        return super().__call__(*(x for (_, k), x in zip(graph.inputs, flat, strict=True) if isinstance(k, Kind)))

    def forward(self, *inputs: Any) -> Any:
        """Evaluate the graph of the current mode for the tensors among the inputs."""
        graph = self._graphs[self.training]
        expected = [(n, name, k) for n, (name, k) in enumerate(graph.inputs) if isinstance(k, Kind)]
        taken = Taken(self.kind, "the module was exported", _OTHER_SIZES)
        values, sizes = taken.values(inputs, expected, graph.ranges)
        for name, (path, kind) in graph.stored.items():
            own = as_value(reduce(getattr, path.split("."), self))
            if own.dtype.name != kind.dtype:
                raise DtypeError(
                    f"{self.kind}: {path!r} is {own.dtype.name} but was {kind.dtype} when the module was exported, "
                    "which fixes types; convert the PyTorch module and export it again"
                )
            values[name] = own
        values |= {name: as_value(array) for name, array in graph.constants.items()}
        outputs, updates = evaluate(graph, values, sizes)
        for path, value in updates.items():
            owner, _, name = path.rpartition(".")
            setattr(self.get_submodule(owner), name, value)
        return _fill(self._result, outputs)


def leaves(x: Any) -> list[Any]:
    """Return the leaves of nested tuples, lists and dicts in order; None is a leaf."""
    if isinstance(x, (tuple, list)):
        return [leaf for v in x for leaf in leaves(v)]
    return [leaf for v in x.values() for leaf in leaves(v)] if isinstance(x, Mapping) else [x]


def _fill(structure: Any, outputs: list[Any]) -> Any:
    """Replace the numbers in a structure by the outputs that they index."""
    if isinstance(structure, dict):
        return {k: _fill(v, outputs) for k, v in structure.items()}
    if isinstance(structure, (tuple, list)):
        return type(structure)(_fill(v, outputs) for v in structure)
    return outputs[structure]


def _in_order(kind: str, graph: OperatorGraph, inputs: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
    """Append the inputs given by name to the positional ones. Raises ArgumentError for other names."""
    behind = [name for name, _ in graph.guards.names[len(inputs) :]]
    by_name = []
    for name in behind:
        if name not in named:
            break
        by_name.append(named.pop(name))
    if named:
        raise ArgumentError(f"{kind} takes its inputs in order, or the last ones by name, not {', '.join(named)}")
    return (*inputs, *by_name)


def _all(kind: str, graph: OperatorGraph, inputs: tuple[Any, ...]) -> list[Any]:
    """Return the leaves of the inputs, settings included. Settings are all left out or equal to the exported ones.

    Raises ArgumentError.
    """
    flat, wanted = leaves(inputs), [k for _, k in graph.inputs]
    tensors = sum(isinstance(k, Kind) for k in wanted)
    if len(flat) == tensors < len(wanted):
        rest = iter(flat)
        flat = [next(rest) if isinstance(k, Kind) else k for k in wanted]
    if len(flat) != len(wanted):
        raise ArgumentError(f"{kind} takes {len(wanted)} inputs, as its example had, not {len(flat)}")
    for n, (k, x) in enumerate(zip(wanted, flat, strict=True)):
        if not isinstance(k, Kind) and (hasattr(x, "shape") or x != k):
            raise ArgumentError(f"{kind}: input {n} must be {k!r}, as when the module was exported")
    return flat
