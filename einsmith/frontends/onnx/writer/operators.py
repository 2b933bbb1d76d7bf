"""Translate calls of functions of tensors into ONNX's operators of the same meaning.

The names of elementwise operators are those of the table (`OperatorRow.onnx`); others have a function here. A call
whose settings ONNX's operator lacks is written as its formula instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from math import inf, prod
from typing import Any, NamedTuple

import numpy as np
import onnx

from einsmith import ops
from einsmith.base.trees import flatten
from einsmith.frontends.onnx.evaluate import NodeCall
from einsmith.frontends.onnx.writer.onnx_graph import GraphWriter
from einsmith.ir.nodes import Tensor
from einsmith.lang.op import Operator
from einsmith.nn.recurrence import GRU_FORMULA, LSTM_FORMULA, RNN_FORMULA
from einsmith.ops.attention import average
from einsmith.ops.common import dimension, ints
from einsmith.ops.conv import same_padding
from einsmith.ops.operator import OperatorRow
from einsmith.ops.table import OPERATORS
from einsmith.tracing import builder
from einsmith.tracing.builder import Value, as_value
from einsmith.tracing.trace import Call

Write = Callable[..., str | tuple[str, ...]]


class NamedCall(NamedTuple):
    """A call as nodes of operators.

    Attributes:
        operands: the tensors that the nodes read, None for one that is left out.
        results: the tensors that the nodes give.
        write: function of (graph, *names of the operands), which adds the nodes and returns the names of the results;
            "" where the operator set lacks the operator.
    """

    operands: tuple[Tensor | None, ...]
    results: tuple[Tensor, ...]
    write: Write


class Translation(NamedTuple):
    """What a translator returns: the operands (None for one that is left out), how to write the call, and how many of
    the call's results are written."""

    operands: Sequence[Any]
    write: Write
    results: int = 1


Translator = Callable[..., tuple | None]
TRANSLATORS: dict[str, Translator] = {}
"""Name of a function of tensors -> function of its arguments that returns a `Translation`, or None where ONNX's
operator lacks a setting."""


def translate(call: Call) -> NamedCall | None:
    """Return a traced call as ONNX's operators; None where it is written as a formula. The call's trace must be the
    current one."""
    if isinstance(call.function, Operator) or call.function.__name__ not in TRANSLATORS:
        return None
    bound = signature(call.function).bind(*call.args, **call.kwargs)
    bound.apply_defaults()
    translated = TRANSLATORS[call.function.__name__](**bound.arguments)
    if translated is None:
        return None
    operands, write, count = Translation(*translated)
    values_of_results = [as_value(x) for x in flatten(call.result)[0][:count]]
    values = [None if x is None else as_value(x) for x in operands]
    floats = {v.dtype for v in (*values_of_results, *values) if v is not None and v.dtype.is_float}
    results = tuple(v.tensor for v in values_of_results)
    if len(floats) > 1 or any(v is not None and v.tensor in results for v in values):
        return None
    return NamedCall(tuple(None if v is None else v.tensor for v in values), results, write)


def _translator(*names: str) -> Callable[[Translator], Translator]:
    def enter(function: Translator) -> Translator:
        TRANSLATORS.update(dict.fromkeys(names, function))
        return function

    return enter


# ------------------------------------------------------------------------------------------------------- elementwise


def _row(row: OperatorRow) -> Translator:
    """Return the translator of an operator of the table. A setting that is no attribute must have its default."""
    known = set(onnx.defs.get_schema(row.onnx).attributes)
    names = {s: row.attributes.get(s, s) for s in row.settings if s != "inplace"}

    def call(**arguments: Any) -> tuple | None:
        attributes = {}
        for setting, name in names.items():
            value = arguments[setting]
            if name in known and value is not None:
                attributes[name] = value
            elif name not in known and value != row.settings[setting].default:
                return None
        values = [as_value(arguments[n]) for n in row.operands]
        if row.onnx != "Not" and not values[0].dtype.is_float:
            return None
        return values, lambda g, *x: g.node(row.onnx, *x, **attributes) if g.has(row.onnx) else ""

    return call


TRANSLATORS |= {row.name: _row(row) for row in OPERATORS.values() if row.onnx}


@_translator("hardtanh", "relu6", "clamp", "clip")
def _clip(input: Any, min_val: Any = 0.0, max_val: Any = 6.0, min: Any = None, max: Any = None, inplace: bool = False):
    low, high = (min, max) if min is not None or max is not None else (min_val, max_val)
    x = as_value(input)
    if not x.dtype.is_float or any(not isinstance(b, (int, float, type(None))) for b in (low, high)):
        return None

    def write(g: GraphWriter, x_: str) -> str:
        return g.node("Clip", x_, *("" if b is None else g.number(float(b), x.dtype) for b in (low, high)))

    return [x], write


@_translator("hardsigmoid")
def _hardsigmoid(input: Any, inplace: bool = False):
    return [input], lambda g, x: g.node("HardSigmoid", x, alpha=1 / 6, beta=0.5)


@_translator("selu")
def _selu(input: Any, inplace: bool = False):
    return [input], lambda g, x: g.node("Selu", x)


@_translator("softmax", "log_softmax")
def _softmax(input: Any, dim: int | None = None, dtype: Any = None, *, operator: str = "Softmax"):
    x = as_value(input)
    if dim is None or dtype is not None or not x.ndim:
        return None
    axis = dimension(dim, x.ndim, "softmax")
    return [x], lambda g, x: g.node(operator, x, axis=axis)


TRANSLATORS["log_softmax"] = lambda **arguments: _softmax(**arguments, operator="LogSoftmax")


@_translator("averages")
def _averages(scores: Value, masked: bool, some_key: bool, dropped: Any, width: int, read: Any):
    """Write the averages of attention by Softmax."""
    weights = ops.softmax(scores, -1)
    if not some_key:  # Softmax gives NaN in a row without any key
        (j,) = builder.axes(scores.shape[-1])
        top = builder.compute(scores.shape[:-1], lambda *i: builder.max(scores[(*i, j)], over=j))
        numbers = weights
        weights = builder.compute(scores.shape, lambda *i: builder.where(top[i[:-1]] == -inf, 0.0, numbers[i]))
    return [average(dropped(weights), width, read), weights], lambda g, *names: names, 2


# ---------------------------------------------------------------------------------------------------------- recurrence

_GATES: dict[str, tuple[str, tuple[int, ...], dict[str, Any]]] = {
    RNN_FORMULA: ("RNN", (0,), {}),
    RNN_FORMULA.replace("tanh(", "relu("): ("RNN", (0,), {"activations": ["Relu"]}),
    GRU_FORMULA: ("GRU", (1, 0, 2), {"linear_before_reset": 1}),
    LSTM_FORMULA: ("LSTM", (0, 3, 1, 2), {}),
}
"""Formula of a layer -> (ONNX's operator, the blocks of the formula's weights in the operator's order, attributes)."""


@_translator("recurrent_layer")
def _recurrent_layer(
    formula: str, x: Value, weights: Sequence[Mapping[str, Any]], initial: Mapping[str, Any], checkpoint: int
):
    if formula not in _GATES:
        return None
    operator, order, attributes = _GATES[formula]
    hidden = weights[0]["W_hh"].shape[1]
    settings = {n: v * len(weights) if isinstance(v, list) else v for n, v in attributes.items()}
    settings |= {"hidden_size": hidden, "direction": "bidirectional" if len(weights) == 2 else "forward"}
    inputs = [("W_ih",), ("W_hh",), *([("b_ih", "b_hh")] if "b_ih" in weights[0] else [])]
    tensors = [w[n] for names in inputs for w in weights for n in names]

    def write(g: GraphWriter, x_: str, *names: str) -> tuple[str, ...]:
        rest = iter(names)
        gates = g.constant(np.concatenate([np.arange(n * hidden, (n + 1) * hidden) for n in order]), "gates")
        joined = []
        for parts in inputs:
            directions = []
            for _ in weights:
                blocks = [next(rest) if len(order) == 1 else g.node("Gather", next(rest), gates) for _ in parts]
                whole = blocks[0] if len(blocks) == 1 else g.node("Concat", *blocks, axis=0)
                directions.append(g.node("Unsqueeze", whole, g.ints([0], "axes")))
            joined.append(directions[0] if len(weights) == 1 else g.node("Concat", *directions, axis=0))
        outputs = [g.unique(f"{operator.lower()}_{n}") for n in ("y", *(s.removesuffix("0") for s in initial))]
        left_out = [""] * (4 - len(joined))  # the biases where there are none, and the lengths
        y, *states = g.nodes_of(operator, [x_, *joined, *left_out, *rest], outputs, **settings)
        if len(weights) == 1:
            return g.node("Squeeze", y, g.ints([1], "axes")), *states
        y = g.node("Transpose", y, perm=[0, 2, 1, 3])  # [T, D, B, H] -> [T, B, D, H]
        return g.node("Reshape", y, g.ints([0, 0, -1], "shape")), *states

    return [x, *tensors, *initial.values()], write, 1 + len(initial)


@_translator("rnn", "gru", "lstm")
def _read_recurrence(n: NodeCall, **operands: Any):
    """Write a recurrent node of a file that was read as it stands there."""
    count = 3 if n.node.operator == "LSTM" else 2

    def write(g: GraphWriter, *names: str) -> tuple[str, ...]:
        outputs = [g.unique(n.node.operator.lower()) for _ in range(count)]
        return g.nodes_of(n.node.operator, names, outputs, **n.node.attributes)

    return [*operands.values()], write, count


# ---------------------------------------------------------------------------------------------- products, embeddings


@_translator("linear")
def _linear(input: Any, weight: Any, bias: Any = None):
    x, w = as_value(input), as_value(weight)
    if w.ndim != 2 or x.ndim < 2 or not x.dtype.is_float:
        return None
    if x.ndim == 2:
        return [x, w, bias], lambda g, *names: g.node("Gemm", *names, transB=1)

    def write(g: GraphWriter, x_: str, w_: str, b_: str) -> str:
        y = g.node("MatMul", x_, g.node("Transpose", w_, perm=[1, 0]))
        return g.node("Add", y, b_) if b_ else y

    return [x, w, bias], write


@_translator("embedding")
def _embedding(input: Any, weight: Any, **settings: Any):
    i = as_value(input)
    return ([weight, i], lambda g, w, i: g.node("Gather", w, i, axis=0)) if i.dtype.bits >= 32 else None


# ------------------------------------------------------------------------------------------- convolutions, poolings


def _spatial(*names: str, **more: Any) -> Callable[[Callable[..., tuple | None]], Callable[..., tuple | None]]:
    """Return a decorator that adds translators of functions of one, two and three dimensions of space.

    The translator takes `sizes`, a function that returns one of the call's settings as a number for each dimension,
    `more`, and the call's arguments. A call whose input has no batch is written as a formula.
    """

    def enter(translator: Callable[..., tuple | None]) -> Callable[..., tuple | None]:
        for name, n in ((f"{name}{n}d", n) for name in names for n in (1, 2, 3)):

            def call(input: Any, *, name: str = name, n: int = n, **settings: Any) -> tuple | None:
                def sizes(setting: str, least: int = 1) -> tuple[int, ...]:
                    return ints(settings[setting], n, name, setting, least)

                x = as_value(input)
                return translator(x, sizes, **more, **settings) if x.ndim == n + 2 else None

            TRANSLATORS[name] = call
        return translator

    return enter


@_spatial("conv")
def _conv(x: Value, sizes: Any, weight: Any, bias: Any, padding: Any, groups: int, **_: Any):
    kernel, gaps = as_value(weight).shape[2:], sizes("dilation")
    if isinstance(padding, str):
        pads = same_padding(kernel, gaps) if padding == "same" else [(0, 0)] * len(kernel)
    else:
        pads = [(p, p) for p in sizes("padding", 0)]
    settings = {
        "kernel_shape": list(kernel),
        "strides": sizes("stride"),
        "pads": [p for p, _ in pads] + [p for _, p in pads],
        "dilations": gaps,
        "group": groups,
    }
    return [x, weight, bias], lambda g, *names: g.node("Conv", *names, **settings)


@_spatial("conv_transpose")
def _conv_transpose(x: Value, sizes: Any, weight: Any, bias: Any, groups: int, **_: Any):
    settings = {
        "kernel_shape": list(as_value(weight).shape[2:]),
        "strides": sizes("stride"),
        "pads": sizes("padding", 0) * 2,
        "output_padding": sizes("output_padding", 0),
        "dilations": sizes("dilation"),
        "group": groups,
    }
    return [x, weight, bias], lambda g, *names: g.node("ConvTranspose", *names, **settings)


@_spatial("max_pool", operator="MaxPool")
@_spatial("avg_pool", operator="AveragePool")
def _pool(x: Value, sizes: Any, operator: str, stride: Any, ceil_mode: bool, **others: Any):
    if not x.dtype.is_float or others.get("divisor_override") is not None:
        return None
    kernel, pads = sizes("kernel_size"), sizes("padding", 0)
    steps = kernel if stride is None else sizes("stride")
    # Where the last window could begin behind the input, or overhangs a mean, definitions of ceil_mode differ.
    if ceil_mode and (operator != "MaxPool" or any(pads) or any(s > k for s, k in zip(steps, kernel, strict=True))):
        return None
    settings: dict[str, Any] = {"kernel_shape": kernel, "strides": steps, "pads": pads * 2}
    if operator == "MaxPool":
        settings |= {"dilations": sizes("dilation"), "ceil_mode": int(ceil_mode)}
    else:
        settings["count_include_pad"] = int(others["count_include_pad"])
    return [x], lambda g, x: g.node(operator, x, **settings)


@_spatial("adaptive_max_pool", operator="MaxPool")
@_spatial("adaptive_avg_pool", operator="AveragePool")
def _adaptive(x: Value, _: Any, operator: str, output_size: Any, return_indices: bool = False):
    extents = x.shape[2:]
    listed: list[Any] = [output_size] if output_size is None or isinstance(output_size, int) else list(output_size)
    listed = listed * len(extents) if len(listed) == 1 else listed
    counts: list[int] = [e if c is None else c for e, c in zip(extents, listed, strict=True)]
    if any(e % c for e, c in zip(extents, counts, strict=True)):
        return None
    if prod(counts) == 1:
        return [x], lambda g, x: g.node(f"Global{operator}", x)
    kernel = [e // c for e, c in zip(extents, counts, strict=True)]
    return [x], lambda g, x: g.node(operator, x, kernel_shape=kernel, strides=kernel)


@_translator("pad")
def _pad(input: Any, pad: Any, mode: str = "constant", value: Any = None):
    x, amounts = as_value(input), tuple(pad)
    if mode != "constant" or any(n < 0 for n in amounts) or not isinstance(value, (int, float, type(None))):
        return None
    lead = [0] * (x.ndim - len(amounts) // 2)
    pads = [*lead, *amounts[-2::-2], *lead, *amounts[:0:-2]]
    return [x], lambda g, x_: g.node("Pad", x_, g.ints(pads, "pads"), g.number(value or 0, x.dtype))


# ----------------------------------------------------------------------------------------------------- normalization


def _scaled(
    operator: str, input: Any, weight: Any, bias: Any, *others: Any, least: int = 0, **attributes: Any
) -> tuple[Sequence[Any], Write]:
    """Return the translation of a norm of channels, whose weight and bias may be left out.

    others: further operands; least: operator set from which on the operator scales channels.
    """
    x = as_value(input)

    def write(g: GraphWriter, x_: str, w: str, b: str, *names: str) -> str:
        if g.opset < least:
            return ""
        scale, shift = (
            name or g.constant(np.full(x.shape[1:2], fill, x.dtype.numpy), hint)
            for name, fill, hint in ((w, 1, "scale"), (b, 0, "bias"))
        )
        return g.node(operator, x_, scale, shift, *names, **attributes)

    return [x, weight, bias, *others], write


@_translator("batch_norm", "sync_batch_norm")
def _batch_norm(
    input: Any, running_mean: Any, running_var: Any, weight: Any, bias: Any, training: bool, eps: float, **_: Any
):
    if training:
        return None
    return _scaled("BatchNormalization", input, weight, bias, running_mean, running_var, epsilon=float(eps))


@_translator("instance_norm")
def _instance_norm(input: Any, weight: Any, bias: Any, use_input_stats: bool, eps: float, **_: Any):
    if not use_input_stats or as_value(input).ndim < 3:
        return None
    return _scaled("InstanceNormalization", input, weight, bias, epsilon=float(eps))


@_translator("group_norm")
def _group_norm(input: Any, num_groups: int, weight: Any, bias: Any, eps: float):
    return _scaled("GroupNormalization", input, weight, bias, least=21, num_groups=num_groups, epsilon=float(eps))


@_translator("layer_norm")
def _layer_norm(input: Any, normalized_shape: Any, weight: Any, bias: Any, eps: float):
    x = as_value(input)
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)

    def write(g: GraphWriter, x_: str, w: str, b: str) -> str:
        scale = w or g.constant(np.ones(shape, x.dtype.numpy), "scale")
        return g.node("LayerNormalization", x_, scale, b, axis=-len(shape), epsilon=float(eps))

    return [x, weight, bias], write
