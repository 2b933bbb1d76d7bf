"""Build what updates parameters by gradients: clipping, the rules of the optimizer, and averages of the weights.

Gradients are clipped inside the step, as torch.nn.utils does: by value, and by the norm of all gradients together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np

from einsmith.api.tracing import bound
from einsmith.base import dtypes as dt
from einsmith.base.dtypes import dtype_of
from einsmith.ir import labels
from einsmith.ir.nodes import Graph, Leaf, Tensor, leaf
from einsmith.ir.origins import Origins
from einsmith.runtime.memory import DimensionOrder, Memory
from einsmith.tracing import builder, trace
from einsmith.tracing.builder import Value
from einsmith.training.exchanges import Exchanged
from einsmith.training.gradient_buckets import Shard
from einsmith.training.state import AVERAGE, GRADIENT, CountGroup, StepParts


@dataclass
class StepGraph:
    """The traced graph of a step.

    graph, bind: arguments of `Executable`; live: captured objects with their memory; depends: modules met while
    tracing; reports: names of the outputs after the loss; groups: counts of the updated parameters; divided: whether
    groups that older programs read were split; origins: source positions, for messages; trained: names of the
    parameters that have a gradient; exchanged: the tensors that it sums over a group, in order; owners, placed: as in
    `Executable`."""

    graph: Graph
    bind: dict[Leaf, np.ndarray]
    live: list[tuple[Any, Memory]]
    depends: dict[int, Any]
    reports: tuple[str, ...]
    groups: list[CountGroup]
    divided: bool
    origins: Origins
    trained: tuple[str, ...]
    exchanged: tuple[Exchanged, ...] = ()
    owners: Mapping[Leaf, Leaf] = field(default_factory=dict)
    placed: Mapping[Leaf, tuple[Any, ...]] = field(default_factory=dict)

    @property
    def frozen(self) -> list[Memory]:
        """The memory of weights and buffers that no step changes."""
        updated = {id(self.bind[x]) for x, _ in self.graph.updates if x in self.bind}
        return [m for o, m in self.live if not getattr(o, "requires_grad", True) and id(m.host) not in updated]


class GraphBuilder:
    """The trace of one graph that reads and updates the state of a training step."""

    def __init__(self, parts: StepParts):
        self.definition, self.settings = parts.definition, parts.definition.updates
        self.state, self.numbers = parts.state, parts.numbers
        self.own_captures: list[tuple[Any, Leaf]] = []  # arrays captured by the step itself
        self.updates: list[tuple[Leaf, Tensor]] = []
        self.groups: list[CountGroup] = []
        self.divided = False
        self.exchanged: list[Exchanged] = []
        self.pieces: dict[str, Shard] = {}
        """The parts of parameters that are updated in the place of the whole ones, by name."""

    def read_number(self, memory: np.ndarray) -> Value:
        """Capture a 0-d float64 number that is set at each run."""
        x = leaf((), dt.f64)
        self.own_captures.append((memory, x))
        return Value(x, weak=True)

    def read_state(
        self, name: str, kind: str, shape: tuple[int, ...], initial: float | np.ndarray
    ) -> tuple[Value, Leaf]:
        """Capture state of the parameter `name`, in the parameter's layout where the shapes are equal."""
        memory = self.state.store.parameters[name].memory
        if name in self.pieces:
            part = self.pieces[name].part
            slot = self.state.store.shard(f"{name}/{kind}", shape, part, memory.dtype, initial)
        else:
            layout = memory.layout if shape == memory.shape else None
            slot = self.state.store.slot(f"{name}/{kind}", shape, memory.dtype, initial, layout)
        x = leaf(shape, dtype_of(memory.dtype))
        self.own_captures.append((slot, x))
        return Value(x), x

    def capture_array(self, array: np.ndarray) -> Leaf:
        """Capture an array that programs read or update in place."""
        x = leaf(array.shape, dtype_of(array))
        self.own_captures.append((array, x))
        return x

    def limit(self, grads: Sequence[Value]) -> list[Value]:
        """Limit each element of the gradients as the settings say."""
        if self.settings.clip_grad_value is None:
            return list(grads)
        return clip_by_value(grads, self.read_number(self.numbers.derive("clip_grad_value")))

    def update(
        self, parameters: dict[str, Value], leaves: dict[str, Leaf], grads: dict[str, Value], count: Value
    ) -> None:
        """Update every parameter and its state by its own rule, and the averages of the weights."""
        hyper: dict[str, Value] = {}
        decay = self.read_number(self.numbers.derive("ema")) if self.settings.ema is not None else None
        self.groups, self.divided = self.state.counts.regroup(parameters)
        step_numbers = {name: x for g in self.groups for x in [self.read_number(g.memory)] for name in g.names}
        for name, p in parameters.items():
            group, rule = self.state.rules[name]
            known = {n: f"{group}/{n}" if group else n for n in rule.hyper}
            for key in known.values():
                if key not in hyper:
                    hyper[key] = self.read_number(self.numbers.hyperparameter(key))
            before, places = {}, {}
            for s, shape in self._states(name, p).items():
                before[s], places[s] = self.read_state(name, s, shape, rule.initial(s))
            values = {n: hyper[key] for n, key in known.items()}
            new, after = rule.update(p, grads[name], before, values, step_numbers[name])
            origin = labels.Label(layer=name, function=type(rule).__name__)
            inputs = [grads[name].tensor, *(v.tensor for v in before.values()), *(v.tensor for v in values.values())]
            labels.note([new.tensor, *(v.tensor for v in after.values())], origin, inputs, anew=True)
            self.updates += [(places[s], v.tensor) for s, v in after.items()]
            self.updates.append((leaves[name], new.tensor))
            if decay is not None:
                parameter = self.state.store.parameters[name]
                weights = parameter.memory.physical if name in self.pieces else parameter.memory.logical()
                average, x = self.read_state(name, AVERAGE, p.shape, weights)
                # The first step copies: the parameter's initial value has no part in the average.
                mean = builder.where(count <= 1, new, average + (1 - decay) * (new - average))
                self.updates.append((x, mean.astype(p.dtype).tensor))

    def _states(self, name: str, p: Value) -> dict[str, tuple[int, ...]]:
        """Return the names and shapes of the state of a parameter, or of its piece p."""
        rule, whole = self.state.rules[name][1], self.state.store.parameters[name]
        if name not in self.pieces or not whole.shape:
            return rule.states(p.shape, p.dtype)
        shapes = rule.states(whole.shape, whole.dtype)
        return {s: p.shape if shape else () for s, shape in shapes.items()}

    def finish(
        self,
        t: trace.Trace,
        inputs: Sequence[Leaf] = (),
        outputs: tuple[Tensor, ...] = (),
        grads: tuple[Tensor, ...] = (),
        reports: tuple[str, ...] = (),
        origins: Origins | None = None,
        trained: tuple[str, ...] = (),
        keeps_orders: bool = False,
    ) -> StepGraph:
        """Return the graph of what was traced and captured. keeps_orders: whether the program's kernels can follow the
        orders in which parameters and their state are stored (`runtime.memory.DimensionOrder`)."""
        captured = [*self.own_captures, *t.captured.values()]
        live = [(o, o.memory) for o, _ in t.captured.values() if not isinstance(o, np.ndarray)]
        leaves = (*inputs, *(x for _, x in captured))
        graph, bind, _ = bound(Graph(leaves, outputs, tuple(self.updates), (), grads), captured, keeps_orders)
        orders = self._orders(captured) if keeps_orders else ()
        return StepGraph(
            graph,
            bind,
            live,
            dict(t.depends),
            reports,
            self.groups,
            self.divided,
            origins or Origins(),
            trained,
            tuple(self.exchanged),
            *orders,
        )

    def _orders(self, captured: Iterable[tuple[Any, Leaf]]) -> tuple[dict[Leaf, Leaf], dict[Leaf, tuple[Any, ...]]]:
        """Return the leaves that may be stored in another order, and the orders of those that are (`Executable`)."""
        leaves = {id(o): x for o, x in captured}
        owners: dict[Leaf, Leaf] = {}
        placed: dict[Leaf, tuple[Any, ...]] = {}
        for name, p in self.state.store.parameters.items():
            owner = leaves.get(id(p))
            slots = [s for n, s in self.state.store.state.items() if n.rpartition("/")[0] == name and id(s) in leaves]
            held = [p, *(s for s in slots if s.memory.shape == p.shape)]
            if owner is None:
                continue
            is_placed = isinstance(layout := p.memory.layout, DimensionOrder)
            if is_placed:
                placed |= {leaves[id(o)]: layout.order for o in held}
            if is_placed or all(o.memory.is_movable() for o in held):
                owners |= {leaves[id(o)]: owner for o in held}
        return owners, placed


class _UpdateBuilder(GraphBuilder):
    """The trace of a graph that only uses accumulated gradients."""

    def build_norm(self, pieces: Sequence[Shard]) -> StepGraph:
        """Build the graph that sums the powers of the pieces' accumulated gradients, as the norm of them needs it."""
        t = trace.Trace()
        with trace.tracing(t):
            total = self.read_number(self.numbers.derive("samples"))
            grads = self.limit([self.read_gradient(piece, total) for piece in pieces])
            powers = sum_powers(grads, self.settings.norm_type)
        return self.finish(t, outputs=(powers.tensor,))

    def build_update(self, pieces: Sequence[Shard]) -> StepGraph:
        """Build the graph that updates pieces of parameters by their accumulated gradients."""
        t = trace.Trace()
        with trace.tracing(t):
            count = self.read_number(self.numbers.count)
            total = self.read_number(self.numbers.derive("samples"))
            grads = self.limit([self.read_gradient(piece, total) for piece in pieces])
            if self.settings.clip_grad_norm is not None:
                limit, norm = (self.read_number(self.numbers.derive(n)) for n in ("clip_grad_norm", "norm"))
                grads = clip_by_norm(grads, limit, norm)
            self.pieces = {piece.name: piece for piece in pieces if not piece.is_whole}
            leaves = {}
            for piece in pieces:
                parameter = self.state.store.parameters[piece.name]
                if piece.is_whole:
                    leaves[piece.name] = t.capture(parameter, parameter.shape, parameter.dtype)
                else:
                    leaves[piece.name] = self.capture_array(piece.select(parameter.memory.physical))
            names = [piece.name for piece in pieces]
            self.update({n: Value(x) for n, x in leaves.items()}, leaves, dict(zip(names, grads, strict=True)), count)
        return self.finish(t, trained=tuple(names))

    def read_gradient(self, piece: Shard, total: Value) -> Value:
        """Return the mean of a piece's accumulated gradient over `total` samples."""
        if piece.is_whole:
            g, _ = self.read_state(piece.name, GRADIENT, self.state.store.parameters[piece.name].shape, 0.0)
        else:
            g = Value(self.capture_array(piece.gradient))
        return (g / total).astype(g.dtype)


def build_update(parts: StepParts, pieces: Sequence[Shard]) -> StepGraph:
    """Build the graph that updates these pieces of parameters by their accumulated gradients, and nothing else."""
    return _UpdateBuilder(parts).build_update(pieces)


def build_norm(parts: StepParts, pieces: Sequence[Shard]) -> StepGraph:
    """Build the graph that outputs the sum of the powers of these pieces' gradients, of which the norm is a root."""
    return _UpdateBuilder(parts).build_norm(pieces)


def sum_powers(grads: Sequence[Value], norm_type: float) -> Value:
    """Return sum |g|**norm_type over all elements of all gradients, 0-d; max |g| for inf."""
    if norm_type == math.inf:
        return reduce(builder.maximum, (builder.max(builder.abs(g)) for g in grads))
    if norm_type == 2:
        return reduce(lambda a, b: a + b, (builder.sum(g * g) for g in grads))
    return reduce(lambda a, b: a + b, (builder.sum(builder.abs(g) ** norm_type) for g in grads))


def total_norm(grads: Sequence[Value], norm_type: float) -> Value:
    """Return the norm of all elements of all gradients, 0-d: (sum |g|**norm_type)**(1/norm_type), max |g| for inf."""
    powers = sum_powers(grads, norm_type)
    if norm_type == math.inf:
        return powers
    return builder.sqrt(powers) if norm_type == 2 else powers ** (1 / norm_type)


def clip_by_norm(grads: Sequence[Value], limit: Value, norm: Value) -> list[Value]:
    """Return the gradients times min(1, limit/(norm + 1e-6)), as torch.nn.utils.clip_grad_norm_ does."""
    factor = builder.minimum(limit / (norm + 1e-6), 1.0)
    return [(g * factor).astype(g.dtype) for g in grads]


def clip_by_value(grads: Sequence[Value], limit: Value) -> list[Value]:
    """Clamp every element of the gradients to [-limit, limit]."""
    return [builder.maximum(builder.minimum(g, limit), -limit).astype(g.dtype) for g in grads]
