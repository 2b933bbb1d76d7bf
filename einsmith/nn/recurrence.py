"""Run recurrences over sequences: layers, directions, initial states and lengths, each for the formula of any cell.

A formula gives the step at t, counting from 0 upward. `where(t > 0, h[t-1,b,j], h0[b,j])` is the state h before it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from einsmith import ops as F
from einsmith.lang.op import Operator, op
from einsmith.ops.call import recorded
from einsmith.ops.tensor import cat
from einsmith.tracing import builder
from einsmith.tracing.builder import Value

RNN_FORMULA = """
    p[t,b,k] = sum[i](x[t,b,i] * W_ih[k,i]) + b_ih[k] + b_hh[k]
    h[t,b,k] = tanh(p[t,b,k] + sum[j](where(t > 0, h[t-1,b,j], h0[b,j]) * W_hh[k,j]))
    return h
"""
LSTM_FORMULA = """
    p[t,b,n] = sum[i](x[t,b,i] * W_ih[n,i]) + b_ih[n] + b_hh[n]
    a[t,b,n] = p[t,b,n] + sum[j](where(t > 0, h[t-1,b,j], h0[b,j]) * W_hh[n,j])
    c[t,b,k] = sigmoid(a[t,b,H+k]) * where(t > 0, c[t-1,b,k], c0[b,k]) + sigmoid(a[t,b,0*H+k]) * tanh(a[t,b,2*H+k])
    h[t,b,k] = sigmoid(a[t,b,3*H+k]) * tanh(c[t,b,k])
    return h, c
"""
LSTM_PROJECTED_FORMULA = re.sub(r"h\[t,b,k\] = (.*)", r"h[t,b,m] = sum[k](\1 * W_hr[m,k])", LSTM_FORMULA)
GRU_FORMULA = """
    p[t,b,n] = sum[i](x[t,b,i] * W_ih[n,i]) + b_ih[n]
    q[t,b,n] = sum[j](where(t > 0, h[t-1,b,j], h0[b,j]) * W_hh[n,j]) + b_hh[n]
    z[t,b,k] = sigmoid(p[t,b,H+k] + q[t,b,H+k])
    m[t,b,k] = tanh(p[t,b,2*H+k] + sigmoid(p[t,b,0*H+k] + q[t,b,0*H+k]) * q[t,b,2*H+k])
    h[t,b,k] = (1 - z[t,b,k]) * m[t,b,k] + z[t,b,k] * where(t > 0, h[t-1,b,k], h0[b,k])
    return h
"""


@lru_cache(maxsize=128)
def recurrence(
    text: str, bias: bool = True, reverse: bool = False, name: str | None = None, held: tuple[str, ...] = ()
) -> Operator:
    """Compile a recurrence's formula to an operator.

    Args:
        text: the formula
        bias: False removes the terms b_ih[..] and b_hh[..]
        reverse: run from the last t down to 0
        name: the operator's name
        held: states that a sequence keeps from its end on, at t = lengths[b]
    """
    if not bias:
        text = re.sub(r" \+ b_[ih]h\[[^]]*\]", "", text)
    for s in held:
        kept = rf"where(t < lengths[b], \2, where(t > 0, {s}[t-1,b,\1], {s}0[b,\1]))"
        text = re.sub(rf"\b{s}\[t,b,(\w)\] = (.*)", rf"{s}[t,b,\1] = {kept}", text)
    if reverse:
        text = text.replace("t > 0", "t < x.shape[0]-1").replace("[t-1,", "[t+1,")
    return op(text, name=name)


def run_directions(
    formulas: Sequence[str],
    x: Value,
    weights: Sequence[Mapping[str, Any]],
    initial: Mapping[str, Value | None],
    backward: Sequence[bool] = (False, True),
    checkpoint: int = 0,
    lengths: Value | None = None,
) -> tuple[list[Value], list[Value]]:
    """Return the outputs [T, B, H] of a layer's directions, and the last value [D, B, ..] of each state.

    Args:
        formulas: text of each direction's recurrence, whose results are the states, the output first
        x: the input [T, B, I]
        weights: the other tensors of the formula by name, for each of D directions
        initial: the first values [D, B, ..] of the states by name ("h0"), None for zeros
        backward: whether each direction runs from the last step to the first
        checkpoint: distance of the states that are saved for the backward pass; 0: all are saved
        lengths: number of steps of each sequence [B]; None: T. Outputs are 0 beyond it
    """
    outputs: list[Value] = []
    last: list[list[Value]] = [[] for _ in initial]
    held = () if lengths is None else tuple(n.removesuffix("0") for n in initial)
    for d, (formula, tensors) in enumerate(zip(formulas, weights, strict=True)):
        operator = recurrence(formula, "b_ih" in tensors, backward[d], held=held)
        hidden = tensors.get("W_hr", tensors["W_hh"]).shape[1]
        first = {
            n: builder.full((x.shape[1], tensors["W_hh"].shape[1] if n == "h0" else hidden), 0.0, x.dtype)
            if s is None
            else s[d]
            for n, s in initial.items()
        }
        more: dict[str, Any] = {"H": hidden} if "H" in operator.parameters else {}
        more |= {} if lengths is None else {"lengths": lengths}
        out = operator(x=x, **tensors, **first, **more, checkpoint=checkpoint)
        sequences = out if isinstance(out, tuple) else (out,)
        outputs.append(sequences[0] if lengths is None else _mask(sequences[0], lengths))
        for values, s, f in zip(last, sequences, first.values(), strict=True):
            values.append(s[0 if backward[d] else x.shape[0] - 1] if x.shape[0] else f)
    return outputs, [F.stack(values) for values in last]


def _mask(y: Value, lengths: Value) -> Value:
    return builder.compute(y.shape, lambda t, b, k: builder.where(t < lengths[b], y[t, b, k], 0.0))


@recorded
def recurrent_layer(
    formula: str,
    x: Value,
    weights: Sequence[Mapping[str, Any]],
    initial: Mapping[str, Value | None],
    checkpoint: int = 0,
) -> tuple[Value, list[Value]]:
    """Return a layer's output [T, B, D*H], and the last value [D, B, ..] of each state, in D = 1 or 2 directions.

    The arguments are those of `run_directions`, with one formula for all directions."""
    outputs, last = run_directions([formula] * len(weights), x, weights, initial, checkpoint=checkpoint)
    return outputs[0] if len(outputs) == 1 else F.cat(outputs, 2), last


def run_layers(
    layer: Callable[[Any, Any, list[Any]], tuple[Any, Sequence[Any]]],
    x: Any,
    weights: Sequence[Any],
    initial: Sequence[Any],
    drop: Callable[[Any, int], Any] | None = None,
    join: Callable[[list[Any]], Any] = cat,
) -> tuple[Any, list[Any]]:
    """Return the last layer's output, and the last values [layers*D, B, ..] of each state, of tensors of any library.

    Args:
        layer: function of (input, weights, initial states [D, B, ..]) that returns (output, last states)
        x: the input
        weights: those of each layer, as `layer` takes them
        initial: states [layers*D, B, ..] before the first step, each None where `layer` takes None
        drop: function of the input of a layer after the first one, and of the layer's number; None for no dropout
        join: concatenates tensors along their first dimension
    """
    columns = []
    for n, tensors in enumerate(weights):
        if n and drop is not None:
            x = drop(x, n)
        x, last = layer(x, tensors, [_part(s, n, len(weights)) for s in initial])
        columns.append(last)
    return x, [values[0] if len(weights) == 1 else join(list(values)) for values in zip(*columns, strict=True)]


def _part(s: Any, n: int, count: int) -> Any:
    """Return part n of `count` equal parts of a tensor along its first dimension; None for None."""
    if s is None or count == 1:
        return s
    each = s.shape[0] // count
    return s[n * each : (n + 1) * each]
