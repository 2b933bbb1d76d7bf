"""Build the graph of a training step: loss, gradients, accumulation, clipping, and the updates of all memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from einsmith.api.jit import bound, names_of
from einsmith.autodiff.plan import constant_value
from einsmith.autodiff.reverse import gradients
from einsmith.base import dtypes as dt
from einsmith.base.dtypes import dtype_of
from einsmith.base.errors import GradientError
from einsmith.ir.nodes import Graph, Leaf, Tensor, leaf
from einsmith.ir.origins import Origins
from einsmith.lang import builder, trace
from einsmith.lang.builder import Value
from einsmith.runtime.memory import Memory
from einsmith.training.clipping import clip_by_norm, clip_by_value
from einsmith.training.counts import CountGroup
from einsmith.training.definition import StepDefinition
from einsmith.training.losses import named_losses
from einsmith.training.numbers import StepNumbers
from einsmith.training.state import AVERAGE, GRADIENT, TrainingState


@dataclass
class StepGraph:
    """The traced graph of a step.

    graph, bind: arguments of `Executable`; live: captured objects with their memory; depends: modules met while
    tracing; reports: names of the outputs after the loss; groups: counts of the updated parameters; divided: whether
    groups that older programs read were split; origins: source positions, for messages."""

    graph: Graph
    bind: dict[Leaf, np.ndarray]
    live: list[tuple[Any, Memory]]
    depends: dict[int, Any]
    reports: tuple[str, ...]
    groups: list[CountGroup]
    divided: bool
    origins: Origins


class _Build:
    """One trace of a step."""

    def __init__(self, definition: StepDefinition, state: TrainingState, numbers: StepNumbers):
        self.definition, self.settings = definition, definition.settings
        self.state, self.numbers = state, numbers
        self.own_captures: list[tuple[Any, Leaf]] = []  # arrays captured by the step itself
        self.updates: list[tuple[Leaf, Tensor]] = []
        self.groups: list[CountGroup] = []
        self.divided = False

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
        layout = memory.layout if shape == memory.shape else None
        slot = self.state.store.slot(f"{name}/{kind}", shape, memory.dtype, initial, layout)
        x = leaf(shape, dtype_of(memory.dtype))
        self.own_captures.append((slot, x))
        return Value(x), x

    def build(self, arrays: Sequence[np.ndarray], gather: bool) -> StepGraph:
        model, store, seed = self.definition.model, self.state.store, self.definition.seed
        inputs = [leaf(a.shape, dtype_of(a)) for a in arrays]
        t = trace.Trace()
        t.paths = {id(m): path for path, m in model.named_modules()}
        with trace.tracing(t):
            count = self.read_number(self.numbers.count)
            draw = self.read_number(self.numbers.derive("draw")) if self.settings.accumulate > 1 else count
            t.key = seed % 2**31, builder.cast(draw, dt.i32)
            values = [Value(x) for x in inputs]
            loss, parts = named_losses(self.definition.loss(model(*values[:-1]), values[-1]), self.settings.trained)
            trained = [
                (name, t.captured[id(p)][1])
                for name, p in store.parameters.items()
                if p.requires_grad and id(p) in t.captured
            ]
            if not trained:
                raise GradientError("the loss depends on no parameter that requires a gradient")
            one = builder.full((), 1.0, loss.dtype).tensor
            # Updates of buffers and reported values are rewritten with the loss, so that all read one forward pass.
            others = [*(new for _, new in t.updates.values()), *(v.tensor for v in parts.values())]
            (out, *others), grads = gradients(
                [loss.tensor, *others], [one, *[None] * len(others)], [x for _, x in trained]
            )
            # A parameter reached only through `stop_gradient` is not updated: weight decay would shrink it.
            reached = [(pair, g) for pair, g in zip(trained, grads, strict=True) if constant_value(g) != 0]
            trained, grads = [pair for pair, _ in reached], [g for _, g in reached]
            if not trained:
                raise GradientError(
                    "the gradient of the loss is zero for every parameter; remove the stop_gradient before them"
                )
            stored, reported = others[: len(t.updates)], others[len(t.updates) :]
            reports = dict(zip(parts, reported, strict=True))
            gradients_by_name = {name: Value(g) for (name, _), g in zip(trained, grads, strict=True)}
            if self.settings.accumulate > 1:
                gradients_by_name = self.accumulate(gradients_by_name, gather)
            if not gather:
                gradients_by_name = self.clip(gradients_by_name, reports)
                self.update({n: Value(x) for n, x in trained}, dict(trained), gradients_by_name, count)
            for (obj, _), value in zip(t.updates.values(), stored, strict=True):
                self.updates.append((t.capture(obj, value.shape, value.dtype), value))
        captured = [*self.own_captures, *t.captured.values()]
        live = [(o, o.memory) for o, _ in t.captured.values() if not isinstance(o, np.ndarray)]
        leaves = (*inputs, *(x for _, x in captured))
        graph = Graph(leaves, (out, *reports.values()), tuple(self.updates), (), tuple(grads))
        graph, bind, _ = bound(graph, captured)
        names = [f"argument {n}, {name}" for n, name in enumerate(names_of_batch(model, len(inputs)))]
        origins = Origins(dict(zip(inputs, names, strict=True)), tuple(t.origins), tuple(t.checked))
        return StepGraph(graph, bind, live, dict(t.depends), tuple(reports), self.groups, self.divided, origins)

    def accumulate(self, grads: dict[str, Value], gather: bool) -> dict[str, Value]:
        """Add the gradients, weighted by the batch's samples, to the accumulated ones in state.

        Return the mean gradients, or nothing where `gather` is set. The first batch overwrites the state."""
        derive = self.numbers.derive
        weight, begins = self.read_number(derive("weight")), self.read_number(derive("begins")) > 0
        total = self.read_number(derive("samples")) if not gather else None
        out = {}
        for name, g in grads.items():
            before, x = self.read_state(name, GRADIENT, g.shape, 0.0)
            summed = builder.where(begins, 0.0, before) + g * weight
            if total is None:
                self.updates.append((x, summed.astype(g.dtype).tensor))
            else:
                out[name] = (summed / total).astype(g.dtype)
        return out

    def clip(self, grads: dict[str, Value], reports: dict[str, Tensor]) -> dict[str, Value]:
        """Limit the gradients as the settings say, and add their norm, before it is limited, to the reports."""
        settings, derive = self.settings, self.numbers.derive
        clipped = list(grads.values())
        if settings.clip_grad_value is not None:
            clipped = clip_by_value(clipped, self.read_number(derive("clip_grad_value")))
        if settings.clip_grad_norm is not None:
            clipped, norm = clip_by_norm(clipped, self.read_number(derive("clip_grad_norm")), settings.norm_type)
            reports["grad_norm"] = norm.tensor
        return dict(zip(grads, clipped, strict=True))

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
            for s, shape in rule.states(p.shape, p.dtype).items():
                before[s], places[s] = self.read_state(name, s, shape, rule.initial(s))
            new, after = rule.update(
                p, grads[name], before, {n: hyper[key] for n, key in known.items()}, step_numbers[name]
            )
            self.updates += [(places[s], v.tensor) for s, v in after.items()]
            self.updates.append((leaves[name], new.tensor))
            if decay is not None:
                average, x = self.read_state(name, AVERAGE, p.shape, self.state.store.parameters[name].data)
                # The first step copies: the parameter's initial value has no part in the average.
                mean = builder.where(count <= 1, new, average + (1 - decay) * (new - average))
                self.updates.append((x, mean.astype(p.dtype).tensor))


def names_of_batch(model: Any, count: int) -> list[str]:
    """Return the names of a batch's `count` arrays in messages: the model's names of its inputs, then "the target"."""
    names = names_of(model.forward)[: count - 1]
    return [*names, *(f"input {n}" for n in range(len(names), count - 1)), "the target"]


def build(
    definition: StepDefinition, state: TrainingState, numbers: StepNumbers, arrays: Sequence[np.ndarray], gather: bool
) -> StepGraph:
    """Build the graph of a step for a batch. gather: gradients are added to accumulated ones and nothing is updated.

    The graph captures the memory of `state` and `numbers`, both of which get what they lack for it. Raises
    GradientError where the loss is no float scalar or trains nothing.
    """
    return _Build(definition, state, numbers).build(arrays, gather)
