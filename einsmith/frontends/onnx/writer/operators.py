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

from einsmith.base.trees import flatten
from einsmith.frontends.onnx.evaluate import NodeCall
from einsmith.frontends.onnx.writer.graph import GraphWriter
from einsmith.ir.nodes import Tensor
from einsmith.lang import builder
from einsmith.lang.builder import Value, as_value
from einsmith.lang.op import Operator
from einsmith.lang.trace import Call
from einsmith.nn.recurrence import GRU_FORMULA, LSTM_FORMULA, RNN_FORMULA
from einsmith.ops import softmax
from einsmith.ops.attention import average
from einsmith.ops.common import dimension, ints
from einsmith.ops.conv import same_padding
from einsmith.ops.operator import OPERATORS, OperatorRow

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
    given = signature(call.function).bind(*call.args, **call.kwargs)
    given.apply_defaults()
    translated = TRANSLATORS[call.function.__name__](**given.arguments)
    if translated is None:
        return None
    operands, write, count = Translation(*translated)
    made = [as_value(x) for x in flatten(call.result)[0][:count]]
    values = [None if x is None else as_value(x) for x in operands]
    floats = {v.dtype for v in (*made, *values) if v is not None and v.dtype.is_float}
    results = tuple(v.tensor for v in made)
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

    def call(**given: Any) -> tuple | None:
        attributes = {}
        for setting, name in names.items():
            value = given[setting]
            if name in known and value is not None:
                attributes[name] = value
            elif name not in known and value != row.settings[setting].default:
                return None
        values = [as_value(given[n]) for n in row.operands]
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


TRANSLATORS["log_softmax"] = lambda **given: _softmax(**given, operator="LogSoftmax")


@_translator("averages")
def _averages(scores: Value, masked: bool, some_key: bool, dropped: Any, width: int, read: Any):
    """Write the averages of attention by Softmax."""
    weights = softmax(scores, -1)
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
        given = iter(names)
        gates = g.constant(np.concatenate([np.arange(n * hidden, (n + 1) * hidden) for n in order]), "gates")
        joined = []
        for parts in inputs:
            directions = []
            for _ in weights:
                blocks = [next(given) if len(order) == 1 else g.node("Gather", next(given), gates) for _ in parts]
                whole = blocks[0] if len(blocks) == 1 else g.node("Concat", *blocks, axis=0)
                directions.append(g.node("Unsqueeze", whole, g.ints([0], "axes")))
            joined.append(directions[0] if len(weights) == 1 else g.node("Concat", *directions, axis=0))
        outputs = [g.unique(f"{operator.lower()}_{n}") for n in ("y", *(s.removesuffix("0") for s in initial))]
        left_out = [""] * (4 - len(joined))  # the biases where there are none, and the lengths
        y, *states = g.nodes_of(operator, [x_, *joined, *left_out, *given], outputs, **settings)
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


def _space(name: str) -> int:
    """Return the number of dimensions of space of an operator, such as 2 of conv2d."""
    return OPERATORS[name].call.dims  # type: ignore[attr-defined]


def _conv(name: str) -> Translator:
    n = _space(name)

    def call(input: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> tuple | None:
        x, w = as_value(input), as_value(weight)
        if x.ndim != n + 2:
            return None
        gaps = ints(dilation, n, name, "dilation")
        if isinstance(padding, str):
            pads = same_padding(w.shape[2:], gaps) if padding == "same" else [(0, 0)] * n
        else:
            pads = [(p, p) for p in ints(padding, n, name, "padding", least=0)]
        settings = {
            "kernel_shape": list(w.shape[2:]),
            "strides": ints(stride, n, name, "stride"),
            "pads": [p for p, _ in pads] + [p for _, p in pads],
            "dilations": gaps,
            "group": groups,
        }
        return [x, w, bias], lambda g, *names: g.node("Conv", *names, **settings)

    return call


def _conv_transpose(name: str) -> Translator:
    n = _space(name)

    def call(
        input: Any, weight: Any, bias: Any, stride: Any, padding: Any, output_padding: Any, groups: int, dilation: Any
    ) -> tuple | None:
        x, w = as_value(input), as_value(weight)
        if x.ndim != n + 2:
            return None
        settings = {
            "kernel_shape": list(w.shape[2:]),
            "strides": ints(stride, n, name, "stride"),
            "pads": ints(padding, n, name, "padding", least=0) * 2,
            "output_padding": ints(output_padding, n, name, "output_padding", least=0),
            "dilations": ints(dilation, n, name, "dilation"),
            "group": groups,
        }
        return [x, w, bias], lambda g, *names: g.node("ConvTranspose", *names, **settings)

    return call


def _pool(name: str, operator: str) -> Translator:
    n = _space(name)

    def call(
        input: Any,
        kernel_size: Any,
        stride: Any,
        padding: Any,
        ceil_mode: bool,
        dilation: Any = 1,
        return_indices: bool = False,
        count_include_pad: bool = False,
        divisor_override: int | None = None,
    ) -> tuple | None:
        x = as_value(input)
        if x.ndim != n + 2 or not x.dtype.is_float or divisor_override is not None:
            return None
        kernel = ints(kernel_size, n, name, "kernel_size")
        steps = kernel if stride is None else ints(stride, n, name, "stride")
        pads = ints(padding, n, name, "padding", least=0)
        settings: dict[str, Any] = {"kernel_shape": kernel, "strides": steps, "pads": pads * 2}
        # Where the last window could begin behind the input, or overhangs a mean, definitions of ceil_mode differ.
        if ceil_mode and (operator != "MaxPool" or any(pads) or any(s > k for s, k in zip(steps, kernel, strict=True))):
            return None
        if operator == "MaxPool":
            settings |= {"dilations": ints(dilation, n, name, "dilation"), "ceil_mode": int(ceil_mode)}
        else:
            settings["count_include_pad"] = int(count_include_pad)
        return [x], lambda g, x: g.node(operator, x, **settings)

    return call


def _adaptive(name: str, operator: str) -> Translator:
    n = _space(name)

    def call(input: Any, output_size: Any, return_indices: bool = False) -> tuple | None:
        x = as_value(input)
        sizes = [output_size] * n if output_size is None or isinstance(output_size, int) else list(output_size)
        sizes = sizes * n if len(sizes) == 1 else sizes
        extents = x.shape[-n:]
        counts = [e if s is None else s for e, s in zip(extents, sizes, strict=True)]
        if x.ndim != n + 2 or any(e % c for e, c in zip(extents, counts, strict=True)):
            return None
        if prod(counts) == 1:
            return [x], lambda g, x: g.node(f"Global{operator}", x)
        kernel = [e // c for e, c in zip(extents, counts, strict=True)]
        return [x], lambda g, x: g.node(operator, x, kernel_shape=kernel, strides=kernel)

    return call


for _n in (1, 2, 3):
    TRANSLATORS |= {
        f"conv{_n}d": _conv(f"conv{_n}d"),
        f"conv_transpose{_n}d": _conv_transpose(f"conv_transpose{_n}d"),
        f"max_pool{_n}d": _pool(f"max_pool{_n}d", "MaxPool"),
        f"avg_pool{_n}d": _pool(f"avg_pool{_n}d", "AveragePool"),
        f"adaptive_max_pool{_n}d": _adaptive(f"adaptive_max_pool{_n}d", "MaxPool"),
        f"adaptive_avg_pool{_n}d": _adaptive(f"adaptive_avg_pool{_n}d", "AveragePool"),
    }


@_translator("pad")
def _pad(input: Any, pad: Any, mode: str = "constant", value: Any = None):
    x, amounts = as_value(input), tuple(pad)
    if mode != "constant" or any(n < 0 for n in amounts) or not isinstance(value, (int, float, type(None))):
        return None
    lead = [0] * (x.ndim - len(amounts) // 2)
    pads = [*lead, *amounts[-2::-2], *lead, *amounts[:0:-2]]
    return [x], lambda g, x_: g.node("Pad", x_, g.ints(pads, "pads"), g.number(value or 0, x.dtype))


# ----------------------------------------------------------------------------------------------------- normalization


def _vectors(g: GraphWriter, shape: Sequence[int], x: Value, *names: str) -> list[str]:
    """Return names of scale and bias; one that is left out becomes a constant of ones or zeros."""
    return [
        name or g.constant(np.full(shape, fill, x.dtype.numpy), hint)
        for name, fill, hint in zip(names, (1, 0), ("scale", "bias"), strict=True)
    ]


@_translator("batch_norm", "sync_batch_norm")
def _batch_norm(
    input: Any, running_mean: Any, running_var: Any, weight: Any, bias: Any, training: bool, momentum: Any, eps: float
):
    x = as_value(input)
    if training:
        return None

    def write(g: GraphWriter, x_: str, w: str, b: str, mean: str, variance: str) -> str:
        scale, shift = _vectors(g, x.shape[1:2], x, w, b)
        return g.node("BatchNormalization", x_, scale, shift, mean, variance, epsilon=float(eps))

    return [x, weight, bias, running_mean, running_var], write


@_translator("instance_norm")
def _instance_norm(
    input: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any,
    bias: Any,
    use_input_stats: bool,
    momentum: Any,
    eps: float,
):
    x = as_value(input)
    if not use_input_stats or x.ndim < 3:
        return None

    def write(g: GraphWriter, x_: str, w: str, b: str) -> str:
        return g.node("InstanceNormalization", x_, *_vectors(g, x.shape[1:2], x, w, b), epsilon=float(eps))

    return [x, weight, bias], write


@_translator("layer_norm")
def _layer_norm(input: Any, normalized_shape: Any, weight: Any, bias: Any, eps: float):
    x = as_value(input)
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)

    def write(g: GraphWriter, x_: str, w: str, b: str) -> str:
        scale, _ = _vectors(g, shape, x, w, "-")
        return g.node("LayerNormalization", x_, scale, b, axis=-len(shape), epsilon=float(eps))

    return [x, weight, bias], write


@_translator("group_norm")
def _group_norm(input: Any, num_groups: int, weight: Any, bias: Any, eps: float):
    x = as_value(input)

    def write(g: GraphWriter, x_: str, w: str, b: str) -> str:
        if g.opset < 21:  # earlier versions scale groups instead of channels
            return ""
        scale, shift = _vectors(g, x.shape[1:2], x, w, b)
        return g.node("GroupNormalization", x_, scale, shift, num_groups=num_groups, epsilon=float(eps))

    return [x, weight, bias], write
