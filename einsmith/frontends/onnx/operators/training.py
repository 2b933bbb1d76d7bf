"""Derivatives within a graph, and optimizer updates as operators (the domain ai.onnx.preview.training)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from einsmith.autodiff.reverse import gradients
from einsmith.base.errors import ArgumentError
from einsmith.frontends.onnx.evaluate import NodeCall, Several, ValueScope, run_nodes
from einsmith.frontends.onnx.nodes import OnnxNode
from einsmith.frontends.onnx.table import onnx
from einsmith.ir.nodes import leaf
from einsmith.ir.rebuild import rebuild
from einsmith.tracing import builder
from einsmith.tracing.builder import Value

DOMAIN = "ai.onnx.preview.training"


@onnx(f"{DOMAIN}.Gradient")
def gradient(n: NodeCall, *inputs: Value) -> Several:
    """derivatives of y with respect to xs at the given xs and zs, from the graph's formulas"""
    xs, y = n.attr("xs"), n.attr("y")
    names = (*xs, *n.attr("zs", ()))
    if len(names) != len(inputs):
        raise ArgumentError(f"{len(inputs)} values for {len(names)} names of xs and zs")
    symbols = [Value(leaf(v.shape, v.dtype)) for v in inputs]
    scope = ValueScope(n.scope.graph, dict(zip(names, symbols, strict=True)), n.scope)
    needed: list[OnnxNode] = []
    want = {y}
    for node in reversed(n.scope.graph.nodes):
        if want.intersection(node.outputs) - set(names):
            needed.append(node)
            want.update(node.inputs)
            want.update(x for body in node.bodies for x in body.free)
    run_nodes(needed[::-1], scope, n.context)
    value = scope.value(y)
    one = builder.full(value.shape, 1.0, value.dtype)
    _, derivatives = gradients([value.tensor], [one.tensor], [s.tensor for s in symbols[: len(xs)]])
    back: dict[Any, Any] = {s.tensor: v.tensor for s, v in zip(symbols, inputs, strict=True)}
    return Several(Value(t) for t in rebuild(derivatives, back.get, {}))


def _updates(name: str, states: int) -> Callable[[Callable[..., tuple[Value, ...]]], None]:
    """Return a decorator that adds an optimizer: f(call, rate, step, x, g, *states) -> (x, *states) of one tensor."""

    def add(f: Callable[..., tuple[Value, ...]]) -> None:
        def run(n: NodeCall, rate: Value, step: Value, *tensors: Value) -> Several:
            groups = 2 + states
            if len(tensors) % groups:
                raise ArgumentError(
                    f"{len(tensors)} tensors are no multiple of {groups}, the number for each parameter"
                )
            m = len(tensors) // groups
            columns = [tensors[k * m : (k + 1) * m] for k in range(groups)]
            rows = [f(n, rate.reshape(()), step.reshape(()), *row) for row in zip(*columns, strict=True)]
            return Several(v for column in zip(*rows, strict=True) for v in column)

        run.__doc__ = f.__doc__
        onnx(f"{DOMAIN}.{name}")(run)

    return add


@_updates("Adagrad", 1)
def adagrad(n: NodeCall, rate: Value, step: Value, x: Value, g: Value, h: Value) -> tuple[Value, ...]:
    """h = h + g*g, x - r/(1 + decay_factor*t)*g/(sqrt(h) + epsilon), with g + norm_coefficient*x as g"""
    r = rate / (1.0 + step.astype(rate.dtype) * n.attr("decay_factor", 0.0))
    g = x * n.attr("norm_coefficient", 0.0) + g
    h = h + g * g
    return x - r * g / (builder.sqrt(h) + n.attr("epsilon", 1e-6)), h


@_updates("Momentum", 1)
def momentum(n: NodeCall, rate: Value, step: Value, x: Value, g: Value, v: Value) -> tuple[Value, ...]:
    """v = alpha*v + beta*g, x - r*v or x - r*(g + alpha*v), with g + norm_coefficient*x as g; beta is 1 at step 0"""
    alpha, beta = n.attr("alpha"), n.attr("beta")
    g = x * n.attr("norm_coefficient", 0.0) + g
    v = v * alpha + g * builder.where(step > 0, beta, 1.0).astype(x.dtype)
    return x - rate * (g + v * alpha if n.attr("mode") == "nesterov" else v), v


@_updates("Adam", 2)
def adam(n: NodeCall, rate: Value, step: Value, x: Value, g: Value, v: Value, h: Value) -> tuple[Value, ...]:
    """v = alpha*v + (1 - alpha)*g, h = beta*h + (1 - beta)*g*g, x - r*sqrt(1 - beta**t)/(1 - alpha**t)*v/(sqrt(h) +
    epsilon), with g + norm_coefficient*x as g"""
    alpha, beta = n.attr("alpha", 0.9), n.attr("beta", 0.999)
    g = x * n.attr("norm_coefficient", 0.0) + g
    v = v * alpha + g * (1 - alpha)
    h = h * beta + g * g * (1 - beta)
    t = builder.maximum(step, 1).astype(rate.dtype)
    below, above = (1.0 - builder.full((), decay, rate.dtype) ** t for decay in (alpha, beta))
    r = builder.where(step > 0, rate * builder.sqrt(above) / below, rate)
    x = x - r * v / (builder.sqrt(h) + n.attr("epsilon", 1e-6))
    return x * (1.0 - n.attr("norm_coefficient_post", 0.0)), v, h
