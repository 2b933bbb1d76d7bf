"""Wrap an ONNX file's network as a module, and write the module back to a file."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import reduce
from typing import Any

import numpy as np

from einsmith.base.arrays import as_numpy
from einsmith.base.dtypes import DType
from einsmith.base.errors import ArgumentError, DtypeError, ShapeError, TraceError
from einsmith.base.trees import flatten, map_tree, unflatten
from einsmith.frontends.graph import Kind, ModulePart, Taken
from einsmith.frontends.onnx.evaluate import EvaluationContext, evaluate
from einsmith.frontends.onnx.long_loops import LongLoop, LongLoopError
from einsmith.frontends.onnx.nodes import Constant, Input, OnnxGraph, every_node, static_names
from einsmith.frontends.onnx.types import ELEMENTS
from einsmith.ir.nodes import Tensor
from einsmith.nn.module import Module
from einsmith.nn.parameter import Buffer, Parameter, Stored
from einsmith.quantization.decoded import Decoded, multiply_integers
from einsmith.tracing import trace
from einsmith.tracing.builder import Value, as_value
from einsmith.tracing.calls import in_trace

MOST_STATIC = 4096
"""Most elements of an input whose values decide extents; a program is compiled for each of its values."""

_RUNNING = {"BatchNormalization": (3, 4)}
"""Operator -> positions of operands that are running statistics, not weights."""


@dataclass(frozen=True)
class CompiledInputs:
    """Inputs compiled into a program as constants, hashable as a setting of a call: (name, type, shape, bytes) each."""

    values: tuple[tuple[str, str, tuple[int, ...], bytes], ...]

    def __call__(self) -> dict[str, np.ndarray]:
        """Return the arrays by name."""
        return {name: _from_bytes(kind, shape, data) for name, kind, shape, data in self.values}


class OnnxModule(ModulePart):
    """A network of an ONNX file. Inputs come in the file's order, or by name; one output is a tensor, several are a
    tuple.

    Initializers of float32 and float64 are parameters under their names, in parts where these have dots; those of batch
    norm's running statistics are buffers, and those that extents depend on, integers and others are constants. Inputs
    whose values extents depend on are read when the network is called, and a program is compiled for each of their
    values; in a training step they are `constants` of `load`.
    """

    code_parts = ("_parameters", "_buffers", "_modules", "_hooks")

    def __init__(self, graph: OnnxGraph, what: str, source: Any = None, frozen: Sequence[str] | None = None):
        super().__init__(what)
        needed = static_names(graph)
        running = {n.inputs[k] for n in every_node(graph) for k in _RUNNING.get(n.operator, ()) if k < len(n.inputs)}
        own: dict[str, Stored] = {}
        for name, c in graph.constants.items():
            fixed = not c.array.ndim if frozen is None else any(fnmatchcase(name, pattern) for pattern in frozen)
            if c.type in ("float", "double") and name not in needed and not fixed:
                own[name] = Buffer(c.array) if name in running else Parameter(c.array)
        constants = {n: c for n, c in graph.constants.items() if n not in own}
        self._set_graph(replace(graph, constants=constants), needed)
        self._source = source
        self._long: LongLoop | None = None
        self._paths = _place(self, own)

    @property
    def inputs(self) -> tuple[Input, ...]:
        """Return the inputs' names, element types and shapes, with None or a name for sizes that may differ."""
        return self._graph.inputs

    @property
    def static(self) -> tuple[Input, ...]:
        """Return the inputs on whose values extents depend."""
        return self._static

    def with_constants(self, constants: Mapping[str, Any]) -> OnnxModule:
        """Return this network with some inputs fixed to `constants`; it shares the parameters."""
        return self._with_graph(fix_inputs(self._graph, constants, self.kind))

    def _with_graph(self, graph: OnnxGraph) -> OnnxModule:
        """Return a network of another graph that shares the parameters of this one."""
        network = OnnxModule.__new__(OnnxModule)
        for name, value in {**self.__dict__, "_long": None}.items():
            object.__setattr__(network, name, value)
        network._set_graph(graph, static_names(graph))
        return network

    def _set_graph(self, graph: OnnxGraph, needed: Collection[str]) -> None:
        """Set the graph. needed: names of values that extents depend on."""
        foreign = {name for name, kind in ELEMENTS.items() if kind.foreign}
        attributes = {
            "_graph": graph,
            "_static": tuple(i for i in graph.inputs if i.name in needed),
            "_names": tuple(i.name for i in graph.inputs),
            # Whether arrays go in and results come out as they are: no extents depend on values, and formulas have all
            # the types.
            "_is_plain": not any(i.name in needed or i.type in foreign for i in graph.inputs)
            and not any(graph.types.get(o) in foreign for o in graph.outputs),
        }
        for name, value in attributes.items():
            object.__setattr__(self, name, value)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the outputs, in the file's order."""
        return self._graph.outputs

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        if named and isinstance(named.get("known"), CompiledInputs):  # tracing of the call below
            return super().__call__(*inputs, **named)
        ordered = self._order(inputs, named)
        if in_trace(ordered):
            return super().__call__(*ordered)
        if self._long is None:
            try:
                return trace.run_arrays(self, ordered, {}) if self._is_plain else self._run(ordered)
            except LongLoopError as e:
                if not any(n is e.node for n in self._graph.nodes):
                    raise
                object.__setattr__(self, "_long", LongLoop(self._graph, e.node, self._with_graph))
        assert self._long is not None
        return self._long(dict(zip(self._names, ordered, strict=True)), self.training)

    def _run(self, ordered: Sequence[Any]) -> Any:
        """Return the results of arrays for the inputs, as one program."""
        static, inputs = {i.name for i in self._static}, self._graph.inputs
        arrays, settings = [], []
        for x, i in zip(ordered, inputs, strict=True):
            if i.name in static:
                settings.append((i.name, *_frozen(x, i, self.kind)))
            else:
                arrays.append(_to_holding_dtype(x, i))
        known = {"known": CompiledInputs(tuple(settings))} if settings else {}
        result = trace.run_arrays(self, tuple(arrays), known)
        several = result if len(self.outputs) > 1 else (result,)
        kinds = [ELEMENTS.get(self._graph.types[o]) for o in self.outputs]
        results = tuple(map_tree(k.release, x) if k and k.foreign else x for k, x in zip(kinds, several, strict=True))
        return results if len(self.outputs) > 1 else results[0]

    def forward(self, *inputs: Any, known: CompiledInputs | None = None) -> Any:
        """Evaluate the graph. known: inputs whose values are compiled in."""
        context = EvaluationContext(self.kind, self.training, self._by_name())
        fixed = {} if known is None else known()
        taken = [i for i in self._graph.inputs if i.name not in fixed]
        values = self._values(taken, inputs)
        for i in self._graph.inputs:
            if i.name in fixed:
                values[i.name] = context.constant(fixed[i.name], _dtype_that_holds(i))
            elif i in self._static and isinstance(values[i.name], Value) and context.known(values[i.name]) is None:
                raise TraceError(
                    f"{self.kind}: extents depend on the values of the input {i.name!r}, which are not known in a trace"
                    f"; give load constants={{{i.name!r}: array}}, or call the network on arrays"
                )
        values |= {name: as_value(stored) for name, stored in context.stored.items()}
        outputs = evaluate(self._graph, values, context)
        if context.decoded and not self.training:
            outputs = _with_integers(outputs, context.decoded)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def _by_name(self) -> dict[str, Stored]:
        return {name: self._at_path(path) for name, path in self._paths.items()}

    def _at_path(self, path: str) -> Any:
        return reduce(getattr, path.split("."), self)

    def _order(self, inputs: Sequence[Any], named: Mapping[str, Any]) -> Sequence[Any]:
        """Return the inputs in the file's order. Raises ArgumentError."""
        expected = self._names
        if len(inputs) + len(named) == len(expected):
            try:
                return (*inputs, *[named[n] for n in expected[len(inputs) :]]) if named else inputs
            except KeyError:
                pass
        by_name = dict(zip(expected, inputs, strict=False))
        unknown = [n for n in named if n not in expected or n in by_name]
        by_name |= named
        missing = [n for n in expected if n not in by_name]
        if len(inputs) > len(expected) or unknown or missing:
            wrong = f"; {', '.join(map(repr, unknown))} is no input or is given twice" if unknown else ""
            lacking = f"; {', '.join(map(repr, missing))} is missing" if missing else ""
            raise ArgumentError(
                f"{self.kind} takes {len(expected)} inputs, {', '.join(map(repr, expected))}, and got {len(inputs)}"
                f"{wrong}{lacking}"
            )
        return [by_name[n] for n in expected]

    def _values(self, taken: Sequence[Input], inputs: Sequence[Any]) -> dict[str, Any]:
        """Return the values of inputs by name. Raises ShapeError and DtypeError."""
        values: dict[str, Any] = {}
        expected, tensors = [], []
        for n, (i, x) in enumerate(zip(taken, inputs, strict=True)):
            if isinstance(x, (list, tuple)) or i.type in ("sequence", "optional"):
                values[i.name] = map_tree(as_value, x)
                continue
            value = as_value(x)
            shape = value.shape if i.shape is None else i.shape
            kind = Kind(tuple(f"?{n}.{d}" if s is None else s for d, s in enumerate(shape)), _dtype_that_holds(i).name)
            expected.append((n, i.name, kind))
            tensors.append(value)
        there = Taken(self.kind, "the file is", "as the file says; change it there if the size may differ")
        tensors_by_name, _ = there.values(tensors, expected, {})
        return values | tensors_by_name


def _with_integers(outputs: Sequence[Any], decoded: Mapping[Tensor, Decoded]) -> list[Any]:
    """Return outputs whose products of dequantized tensors are computed by integers."""
    leaves, structure = flatten(list(outputs))
    new = iter(multiply_integers([x.tensor for x in leaves if isinstance(x, Value)], decoded))
    return unflatten(structure, [Value(next(new)) if isinstance(x, Value) else x for x in leaves])


def _dtype_that_holds(i: Input) -> DType:
    return ELEMENTS[i.type].dtype


def _to_holding_dtype(x: Any, i: Input) -> Any:
    """Convert an array of a type that formulas lack to the dtype that holds it."""
    kind = ELEMENTS.get(i.type)
    if kind is None or not kind.foreign:
        return x
    array = as_numpy(x, f"input {i.name!r}")
    return kind.hold(array) if array.dtype == kind.numpy else array


def _frozen(x: Any, i: Input, what: str) -> tuple[str, tuple[int, ...], bytes]:
    """Return an array as a hashable setting of a call."""
    if i.type not in ELEMENTS:
        raise DtypeError(f"{what}: extents depend on the input {i.name!r}, a {i.type}, which is not supported")
    array, wanted = as_numpy(x, f"{what}: input {i.name!r}"), ELEMENTS[i.type].numpy
    if array.dtype != wanted and not np.can_cast(array.dtype, wanted, "same_kind"):
        raise DtypeError(f"{what}: input {i.name!r} is {array.dtype}; the file needs {wanted}")
    if i.shape is not None and (
        len(i.shape) != array.ndim
        or any(isinstance(n, int) and n != e for n, e in zip(i.shape, array.shape, strict=True))
    ):
        raise ShapeError(f"{what}: input {i.name!r} has shape {array.shape}; the file needs {i.shape}")
    if array.size > MOST_STATIC:
        raise TraceError(
            f"{what}: extents depend on the values of the input {i.name!r}, of {array.size} elements; a program is "
            f"compiled for each value of such an input, which is supported for at most {MOST_STATIC} elements"
        )
    return i.type, array.shape, ELEMENTS[i.type].hold(array.astype(wanted)).tobytes()


def _from_bytes(kind: str, shape: tuple[int, ...], data: bytes) -> np.ndarray:
    return np.frombuffer(data, ELEMENTS[kind].dtype.numpy).reshape(shape)


def _place(network: ModulePart, own: Mapping[str, Stored]) -> dict[str, str]:
    """Put parameters and buffers into parts by the dots of their names; return name in the file -> path."""
    paths: dict[str, str] = {}
    used: set[str] = set()
    inner = {p for name in own for p in _prefixes(name)}
    reserved = set(dir(Module))
    for name, stored in own.items():
        pieces = [p for p in name.split(".") if p] or ["unnamed"]
        if name in inner or any(p in reserved or p.startswith("_") for p in pieces):
            pieces = ["at_" + "_".join(pieces)]
        while ".".join(pieces) in used:
            pieces[-1] += "_"
        path = ".".join(pieces)
        used.add(path)
        owner: Any = network
        for p in pieces[:-1]:
            if p not in owner._modules:
                owner.add_module(p, ModulePart(""))
            owner = owner._modules[p]
        if isinstance(stored, Parameter):
            owner.register_parameter(pieces[-1], stored)
        else:
            owner.register_buffer(pieces[-1], stored)
        paths[name] = path
    return paths


def _prefixes(name: str) -> list[str]:
    pieces = name.split(".")
    return [".".join(pieces[:n]) for n in range(1, len(pieces))]


def fix_inputs(graph: OnnxGraph, constants: Mapping[str, Any], what: str) -> OnnxGraph:
    """Return the graph with some inputs replaced by constants. Raises ArgumentError for unknown names."""
    known = {i.name: i for i in graph.inputs}
    unknown = [n for n in constants if n not in known]
    if unknown:
        raise ArgumentError(f"{what} has no input {unknown[0]!r}; it has {', '.join(map(repr, known)) or 'none'}")
    more = {}
    for name, x in constants.items():
        frozen = _frozen(x, known[name], what)
        more[name] = Constant(_from_bytes(*frozen), known[name].type)
    inputs = tuple(i for i in graph.inputs if i.name not in constants)
    return replace(graph, inputs=inputs, constants={**graph.constants, **more})
