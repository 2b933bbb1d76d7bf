"""Build the graph of a training step: loss, gradients, accumulation, and the updates of all memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from einsmith.api.tracing import names_of
from einsmith.autodiff.plan import constant_value
from einsmith.autodiff.reverse import gradients
from einsmith.base import dtypes as dt
from einsmith.base.dtypes import dtype_of
from einsmith.base.errors import GradientError
from einsmith.ir.nodes import GroupSum, Leaf, Tensor, leaf
from einsmith.ir.origins import Origins
from einsmith.ir.rebuild import rebuild
from einsmith.tracing import builder, trace
from einsmith.tracing.builder import Value
from einsmith.training.definition import StepDefinition, find_divisor, traced_losses
from einsmith.training.state import GRADIENT, WEIGHT, StepParts
from einsmith.training.updates import GraphBuilder, StepGraph, clip_by_norm, total_norm


@dataclass
class LossGraph:
    """The traced loss of a batch, with its gradients.

    loss: as it was traced; shared: rewritten so that it shares nodes with the gradients; parameters: leaves by name;
    gradients: a tensor for each of them; values: the arrays of all leaves."""

    loss: Tensor
    shared: Tensor
    parameters: dict[str, Leaf]
    gradients: list[Tensor]
    values: dict[Leaf, np.ndarray]


class _StepBuilder(GraphBuilder):
    """The trace of a step on a batch."""

    def __init__(self, parts: StepParts):
        super().__init__(parts)
        self.weight: Value | None = None
        """What the loss divides by, where that is another tensor in each batch."""
        self.total: Value | None = None
        """The sum of these weights over the batches of an update."""

    def begin_trace(self) -> trace.Trace:
        """Return a trace that knows the paths of the model's modules."""
        t = trace.Trace()
        t.paths = {id(m): path for path, m in self.definition.model.named_modules()}
        return t

    def trace_loss(
        self, t: trace.Trace, inputs: Sequence[Leaf]
    ) -> tuple[Value, Value, Mapping[str, Value], list[tuple[str, Leaf]]]:
        """Trace the loss of a batch; return the number of the step, the loss, its parts by name, and the leaves of the
        parameters that it depends on and that require a gradient, by name. The trace is the current one.

        Raises GradientError where there is no such parameter."""
        count = self.read_number(self.numbers.count)
        draws_apart = self.settings.accumulate > 1 or self.numbers.ranks > 1
        draw = self.read_number(self.numbers.derive("draw")) if draws_apart else count
        t.key = self.definition.seed % 2**31, builder.cast(draw, dt.i32)
        values = [Value(x) for x in inputs]
        first = len(values) - self.definition.targets
        output = self.definition.model(*values[:first])
        loss, parts = traced_losses(self.definition.loss, output, values[first:], self.settings.trained)
        trained = [
            (name, t.captured[id(p)][1])
            for name, p in self.state.store.parameters.items()
            if p.requires_grad and id(p) in t.captured
        ]
        if not trained:
            raise GradientError("the loss depends on no parameter that requires a gradient")
        return count, loss, parts, trained

    def build_loss(self, arrays: Sequence[np.ndarray]) -> LossGraph:
        """Build the loss of a batch and its gradients, in terms of the tensors that users see."""
        inputs = [leaf(a.shape, dtype_of(a)) for a in arrays]
        t = self.begin_trace()
        with trace.tracing(t):
            _, loss, _, trained = self.trace_loss(t, inputs)
            one = builder.full((), 1.0, loss.dtype).tensor
            (out,), grads = gradients([loss.tensor], [one], [x for _, x in trained])
        captured = [*self.own_captures, *t.captured.values()]
        known = {x: np.array(o) if isinstance(o, np.ndarray) else o.memory.copy() for o, x in captured}
        return LossGraph(loss.tensor, out, dict(trained), grads, known | dict(zip(inputs, arrays, strict=True)))

    def build(self, arrays: Sequence[np.ndarray], gather: bool) -> StepGraph:
        inputs = [leaf(a.shape, dtype_of(a)) for a in arrays]
        t = self.begin_trace()
        t.in_full_precision = self.definition.numerics.in_full
        if gather and self.numbers.ranks > 1:
            t.sums_over_group = True if self.numbers.exchanges is not None else None
        with trace.tracing(t), self.definition.numerics.allowing():
            count, loss, parts, trained = self.trace_loss(t, inputs)
            if self.settings.accumulate > 1 and self.definition.is_alone:
                loss = self.guard_divisor(loss)
            one, scale = builder.full((), 1.0, loss.dtype).tensor, None
            if self.definition.numerics.stored is dt.f16:
                scale = self.read_number(self.numbers.derive("loss_scale"))
                one = scale.astype(loss.dtype).tensor
            # Updates of buffers and reported values are rewritten with the loss, so that all read one forward pass.
            others = [*(new for _, new in t.updates.values()), *(v.tensor for v in parts.values())]
            (out, *others), grads = gradients(
                [loss.tensor, *others], [one, *[None] * len(others)], [x for _, x in trained]
            )
            finite = out
            if scale is not None:
                grads = [(Value(g) / scale).astype(g.dtype).tensor for g in grads]
                finite = finite_flag(Value(out), [Value(g) for g in grads])
            if t.sums_over_group:
                out, *rest = self.exchange_sums([out, *others, *grads])
                others, grads = rest[: len(others)], rest[len(others) :]
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
            if self.settings.accumulate > 1 or gather:
                gradients_by_name = self.accumulate(gradients_by_name, gather)
            if self.total is not None:  # no batch of the update had a label
                is_some = self.total > 0
                out, finite = (builder.where(is_some, Value(x), np.nan).astype(x.dtype).tensor for x in (out, finite))
            if not gather:
                gradients_by_name = self.clip(gradients_by_name, reports)
                self.update({n: Value(x) for n, x in trained}, dict(trained), gradients_by_name, count)
            for (obj, _), value in zip(t.updates.values(), stored, strict=True):
                self.updates.append((t.capture(obj, value.shape, value.dtype), value))
        names = [f"argument {n}, {name}" for n, name in enumerate(names_of_batch(self.definition, len(inputs)))]
        origins = Origins(dict(zip(inputs, names, strict=True)), tuple(t.origins), tuple(t.checked))
        outputs, names_of_trained = (out, *reports.values()), tuple(name for name, _ in trained)
        if scale is not None:
            outputs = (*outputs, finite)
        keeps = not gather and self.settings.accumulate == 1 and self.definition.keeps_orders
        return self.finish(t, inputs, outputs, tuple(grads), tuple(reports), origins, names_of_trained, keeps)

    def exchange_sums(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Replace sums over the group in the graph of tensors: what is summed is stored, and another thread stores the
        sum, which is read. Cotangents are weighted by the ranks' samples, as the gradients are in the end."""
        exchanges = self.numbers.exchanges
        assert exchanges is not None
        weight = self.read_number(self.numbers.derive("weight"))

        def rule(node: Any) -> Tensor | None:
            if not isinstance(node, GroupSum):
                return None
            memory = exchanges.add(len(self.exchanged), node.shape, np.dtype(node.dtype.numpy))
            self.exchanged.append(memory)
            sent, total = memory
            source = self.capture_array(sent)
            value = Value(node.tensor)
            self.updates.append((source, (value * weight if node.is_cotangent else value).astype(node.dtype).tensor))
            x = leaf(node.shape, node.dtype, source)
            self.own_captures.append((total, x))
            return (Value(x) / weight).astype(node.dtype).tensor if node.is_cotangent else x

        return rebuild(tensors, rule)

    def guard_divisor(self, loss: Value) -> Value:
        """Return the loss with 1 in place of a divisor that is 0 (as for a batch without labels), and set `weight` to
        the divisor, or to None if the loss has none."""
        self.weight = find_divisor(loss)
        if self.weight is None:
            return loss
        weight = self.weight.tensor
        guarded = builder.where(self.weight == 0, 1, self.weight).astype(weight.dtype).tensor
        (out,) = rebuild([loss.tensor], lambda node: guarded if node is weight else None)
        return Value(out)

    def accumulate(self, grads: dict[str, Value], gather: bool) -> dict[str, Value]:
        """Add the gradients, weighted by what the batch's loss divides by or else its samples, to the accumulated ones
        in state.

        Return the mean gradients, or nothing where `gather` is set. The first batch overwrites the state."""
        derive = self.numbers.derive
        # A process of a group sums the gradients of single batches with those of others; there are none before.
        begins = self.read_number(derive("begins")) > 0 if self.settings.accumulate > 1 else None
        total: Value | None = None
        if self.weight is not None:
            weight = self.weight
            before, x = self.read_state(next(iter(self.state.store.parameters)), WEIGHT, (), 0.0)
            total = builder.where(begins, 0.0, before) + weight
            if gather:
                self.updates.append((x, total.astype(x.dtype).tensor))
            else:
                self.total = total
        else:
            weight = self.read_number(derive("weight"))
        if gather:
            total = None
        elif total is None:
            total = self.read_number(derive("samples"))
        out = {}
        for name, g in grads.items():
            before, x = self.read_state(name, GRADIENT, g.shape, 0.0)
            summed = g * weight if begins is None else builder.where(begins, 0.0, before) + g * weight
            if total is None:
                self.updates.append((x, summed.astype(g.dtype).tensor))
            else:
                out[name] = (summed / total).astype(g.dtype)
        return out

    def clip(self, grads: dict[str, Value], reports: dict[str, Tensor]) -> dict[str, Value]:
        """Limit the gradients as the settings say, and add their norm, before it is limited, to the reports."""
        clipped = self.limit(list(grads.values()))
        if self.settings.clip_grad_norm is not None:
            norm = total_norm(clipped, self.settings.norm_type)
            clipped = clip_by_norm(clipped, self.read_number(self.numbers.derive("clip_grad_norm")), norm)
            reports["grad_norm"] = norm.tensor
        return dict(zip(grads, clipped, strict=True))


def finite_flag(loss: Value, grads: Sequence[Value]) -> Tensor:
    """Return a float32 that is finite where the loss and all gradients are."""
    flag = loss * 0.0
    for g in grads:
        flag = flag + (g * 0.0).sum().astype(loss.dtype)
    return flag.tensor


def names_of_batch(definition: StepDefinition, count: int) -> list[str]:
    """Return the names of a batch's `count` arrays in messages: the model's names of its inputs, then the targets."""
    inputs = count - definition.targets
    names = names_of(definition.model)[:inputs]
    targets = ["the target"] if definition.targets == 1 else [f"target {n}" for n in range(definition.targets)]
    return [*names, *(f"input {n}" for n in range(len(names), inputs)), *targets]


def build(parts: StepParts, arrays: Sequence[np.ndarray], gather: bool) -> StepGraph:
    """Build the graph of a step for a batch. gather: gradients are added to accumulated ones and nothing is updated.

    The graph captures the memory of the step's state and numbers, both of which get what they lack for it. Raises
    GradientError where the loss is no float scalar or trains nothing.
    """
    return _StepBuilder(parts).build(arrays, gather)


def build_loss(parts: StepParts, arrays: Sequence[np.ndarray]) -> LossGraph:
    """Build the graph of the loss of a batch and of its gradients by the trained parameters."""
    return _StepBuilder(parts).build_loss(arrays)
