"""Define RNN, LSTM and GRU under torch.nn's names, arguments, initial distributions, state names, shapes and results.

A layer in one direction is one formula, whose carried tensors read themselves at the step before.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from math import sqrt
from typing import Any

from einsmith import ops as F
from einsmith.base.arguments import Count, Depth, Share, Size
from einsmith.base.errors import ArgumentError, ShapeError
from einsmith.lang import builder
from einsmith.lang.builder import Value
from einsmith.lang.op import Operator, op
from einsmith.nn import init
from einsmith.nn.linear import empty
from einsmith.nn.module import Module
from einsmith.ops.call import recorded
from einsmith.ops.common import tensor
from einsmith.ops.random import layer_drop

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
LSTM_PROJECTED_FORMULA = """
    p[t,b,n] = sum[i](x[t,b,i] * W_ih[n,i]) + b_ih[n] + b_hh[n]
    a[t,b,n] = p[t,b,n] + sum[j](where(t > 0, h[t-1,b,j], h0[b,j]) * W_hh[n,j])
    c[t,b,k] = sigmoid(a[t,b,H+k]) * where(t > 0, c[t-1,b,k], c0[b,k]) + sigmoid(a[t,b,0*H+k]) * tanh(a[t,b,2*H+k])
    h[t,b,m] = sum[k](sigmoid(a[t,b,3*H+k]) * tanh(c[t,b,k]) * W_hr[m,k])
    return h, c
"""
GRU_FORMULA = """
    p[t,b,n] = sum[i](x[t,b,i] * W_ih[n,i]) + b_ih[n]
    q[t,b,n] = sum[j](where(t > 0, h[t-1,b,j], h0[b,j]) * W_hh[n,j]) + b_hh[n]
    z[t,b,k] = sigmoid(p[t,b,H+k] + q[t,b,H+k])
    m[t,b,k] = tanh(p[t,b,2*H+k] + sigmoid(p[t,b,0*H+k] + q[t,b,0*H+k]) * q[t,b,2*H+k])
    h[t,b,k] = (1 - z[t,b,k]) * m[t,b,k] + z[t,b,k] * where(t > 0, h[t-1,b,k], h0[b,k])
    return h
"""


@lru_cache(maxsize=64)
def recurrence(text: str, bias: bool = True, reverse: bool = False, name: str | None = None) -> Operator:
    """Compile a recurrence's formula, in which t counts from 0 upward, to an operator.

    bias: False removes the terms b_ih[..] and b_hh[..]; reverse: run from the last t down to 0; name: the operator's.
    """
    if not bias:
        for term in ("b_ih[n]", "b_hh[n]", "b_ih[k]", "b_hh[k]"):
            text = text.replace(f" + {term}", "")
    if reverse:
        text = text.replace("t > 0", "t < x.shape[0]-1").replace("[t-1,", "[t+1,")
    return op(text, name=name)


def sequence(x: Any, name: str, input_size: int, batch_first: bool) -> tuple[Value, bool]:
    """Return the input as [T, B, input_size], and whether it has no batch axis: [T, input_size]. Raises ShapeError."""
    value = tensor(x, name, "input", rank=(2, 3), kind="float")
    if value.shape[-1] != input_size:
        raise ShapeError(f"{name}: 'input' has shape {value.shape}; its last extent must be input_size={input_size}")
    single = value.ndim == 2
    if single:
        value = value.reshape((value.shape[0], 1, input_size))
    elif batch_first:
        value = value.transpose(1, 0, 2)
    if not value.shape[0]:
        raise ShapeError(f"{name}: 'input' has shape {tuple(x.shape)}; it needs at least one step")
    return value, single


def state(given: Any, name: str, what: str, shape: tuple[int, ...], like: Value) -> Value:
    """Return an initial state of the given shape, zeros where none is given. Raises ShapeError, ArgumentError."""
    if given is None:
        return builder.full(shape, 0.0, like.dtype)
    if isinstance(given, (tuple, list)):
        raise ArgumentError(f"{name}: {what!r} must be one tensor of shape {shape}, not {len(given)} tensors")
    value = tensor(given, name, what, kind="float")
    if value.shape != shape:
        raise ShapeError(f"{name}: {what!r} has shape {value.shape}, needs {shape}")
    return value


@recorded
def recurrent_layer(
    formula: str,
    x: Value,
    weights: Sequence[Mapping[str, Any]],
    initial: Mapping[str, Value | None],
    checkpoint: int = 0,
) -> tuple[Value, list[Value]]:
    """Return a layer's output [T, B, D*H], and the last value [D, B, ..] of each state, in D = 1 or 2 directions.

    Args:
        formula: text of the recurrence, whose results are the states, the output first
        x: the input [T, B, I]
        weights: the other tensors of the formula by name, for each direction
        initial: the first values [D, B, ..] of the states by name, None for zeros
        checkpoint: distance of the states that are saved for the backward pass; 0: all are saved
    """
    outputs: list[Value] = []
    last: list[list[Value]] = [[] for _ in initial]
    for d, tensors in enumerate(weights):
        operator = recurrence(formula, "b_ih" in tensors, reverse=d == 1)
        hidden = tensors.get("W_hr", tensors["W_hh"]).shape[1]
        first = {
            n: builder.full((x.shape[1], tensors["W_hh"].shape[1] if n == "h0" else hidden), 0.0, x.dtype)
            if s is None
            else s[d]
            for n, s in initial.items()
        }
        size = {"H": hidden} if "H" in operator.parameters else {}
        out = operator(x=x, **tensors, **first, **size, checkpoint=checkpoint)
        sequences = out if isinstance(out, tuple) else (out,)
        outputs.append(sequences[0])
        for values, s in zip(last, sequences, strict=True):
            values.append(s[0 if d else x.shape[0] - 1])
    return outputs[0] if len(outputs) == 1 else F.cat(outputs, 2), [F.stack(values) for values in last]


def run_layers(
    formula: str,
    x: Value,
    weights: Sequence[Sequence[Mapping[str, Any]]],
    initial: Mapping[str, Value | None],
    drop: Callable[[Value, int], Value] | None = None,
    checkpoint: int = 0,
) -> tuple[Value, list[Value]]:
    """Return the last layer's output, and the last values [layers*D, B, ..] of each state.

    weights: of each layer as in `recurrent_layer`; initial: values [layers*D, B, ..] or None; drop: function of the
    input of a layer after the first one, and of the layer's number, None for no dropout; others as in
    `recurrent_layer`.
    """
    last: list[list[Value]] = [[] for _ in initial]
    for n, tensors in enumerate(weights):
        if n and drop is not None:
            x = drop(x, n)
        rows = slice(n * len(tensors), (n + 1) * len(tensors))
        first = {name: s if s is None or len(weights) == 1 else s[rows] for name, s in initial.items()}
        x, states = recurrent_layer(formula, x, tensors, first, checkpoint)
        for values, s in zip(last, states, strict=True):
            values.append(s)
    return x, [values[0] if len(values) == 1 else F.cat(values, 0) for values in last]


class _Layers(Module):
    """Layers of one recurrence, in one direction or two, with dropout between layers. Subclasses define `formula`,
    `gates` and `states`."""

    gates: int
    states: tuple[str, ...] = ("h0",)
    formula: str

    def __init__(
        self,
        input_size: Count,
        hidden_size: Count,
        num_layers: Depth,
        bias: bool,
        batch_first: bool,
        dropout: Share,
        bidirectional: bool,
        proj_size: Size,
        dtype: Any,
        checkpoint: Size,
    ):
        name = type(self).__name__
        if proj_size >= hidden_size and proj_size:
            raise ArgumentError(f"{name}: proj_size={proj_size} must be smaller than hidden_size={hidden_size}")
        if dropout and num_layers == 1:
            warnings.warn(
                f"{name}: dropout={dropout} has no effect, as it applies between layers and num_layers is 1",
                stacklevel=3,
            )
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.bias, self.batch_first, self.dropout = bias, batch_first, float(dropout)
        self.bidirectional, self.proj_size, self.checkpoint = bidirectional, proj_size, checkpoint
        for layer in range(num_layers):
            for suffix in self._directions:
                n_in = input_size if layer == 0 else self.output_size * len(self._directions)
                rows = self.gates * hidden_size
                at = f"l{layer}{suffix}"
                setattr(self, f"weight_ih_{at}", empty((rows, n_in), dtype))
                setattr(self, f"weight_hh_{at}", empty((rows, self.output_size), dtype))
                if bias:
                    setattr(self, f"bias_ih_{at}", empty((rows,), dtype))
                    setattr(self, f"bias_hh_{at}", empty((rows,), dtype))
                if proj_size:
                    setattr(self, f"weight_hr_{at}", empty((proj_size, hidden_size), dtype))
        self.reset_parameters()

    @property
    def output_size(self) -> int:
        """Features of a step's output in one direction."""
        return self.proj_size or self.hidden_size

    @property
    def _directions(self) -> tuple[str, ...]:
        return ("", "_reverse") if self.bidirectional else ("",)

    def reset_parameters(self) -> None:
        """Draw new initial values, uniform in +-1/sqrt(hidden_size)."""
        bound = 1 / sqrt(self.hidden_size)
        for p in self.parameters():
            init.uniform_(p, -bound, bound)

    def _weights(self, at: str) -> dict[str, Any]:
        """Return the tensors of the layer and direction `at` by their names in the formula."""
        names = {"W_ih": "weight_ih", "W_hh": "weight_hh"}
        names |= {"b_ih": "bias_ih", "b_hh": "bias_hh"} if self.bias else {}
        names |= {"W_hr": "weight_hr"} if self.proj_size else {}
        return {n: getattr(self, f"{name}_{at}") for n, name in names.items()}

    def _run(self, input: Any, given: Sequence[Any]) -> tuple[Value, list[Value]]:
        """Return the last layer's output, and the last states of all layers and directions."""
        name = type(self).__name__
        x, single = sequence(input, name, self.input_size, self.batch_first)
        rows = self.num_layers * len(self._directions)
        initial: dict[str, Value | None] = {}
        for what, value in zip(self.states, given, strict=True):
            width = self.output_size if what == "h0" else self.hidden_size
            shape = (rows, width) if single else (rows, x.shape[1], width)
            known = None if value is None else state(value, name, what, shape, x)
            initial[what] = None if known is None else known.reshape((rows, x.shape[1], width))
        weights = [[self._weights(f"l{n}{suffix}") for suffix in self._directions] for n in range(self.num_layers)]
        dropout = self.dropout if self.training else 0.0
        x, final = run_layers(
            self.formula,
            x,
            weights,
            initial,
            (lambda y, n: layer_drop(y, dropout, self, str(n))) if dropout else None,
            self.checkpoint,
        )
        if single:
            return x.reshape((x.shape[0], x.shape[2])), [s.reshape((rows, s.shape[2])) for s in final]
        return x.transpose(1, 0, 2) if self.batch_first else x, final

    def extra_repr(self) -> str:
        text = f"{self.input_size}, {self.hidden_size}"
        for what, usual in (
            ("proj_size", 0),
            ("num_layers", 1),
            ("bias", True),
            ("batch_first", False),
            ("dropout", 0.0),
            ("bidirectional", False),
            ("checkpoint", 0),
        ):
            if getattr(self, what) != usual:
                text += f", {what}={getattr(self, what)}"
        return text


class RNN(_Layers):
    """h_t = tanh(W_ih x_t + b_ih + W_hh h_{t-1} + b_hh), or relu of it: [T, B, input_size] -> [T, B, D*hidden_size].

    As a formula, in each layer and direction (D = 2 where bidirectional):

        p[t,b,k] = sum[i](x[t,b,i] * W_ih[k,i]) + b_ih[k] + b_hh[k]
        h[t,b,k] = tanh(p[t,b,k] + sum[j](where(t > 0, h[t-1,b,j], h0[b,j]) * W_hh[k,j]))

    forward(input, hx=None) -> (output, h_n), the states [num_layers*D, B, hidden_size]; batch_first: input and output
    [B, T, ...]; without a batch [T, input_size] and states [num_layers*D, hidden_size]. weight_ih_l0, weight_hh_l0,
    bias_ih_l0, bias_hh_l0, and so on for each layer, with _reverse for the second direction. checkpoint=S: every S-th
    state is saved for the backward pass, which recomputes the others; 0: all are saved.
    """

    gates = 1

    def __init__(
        self,
        input_size: Count,
        hidden_size: Count,
        num_layers: Depth = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: Share = 0.0,
        bidirectional: bool = False,
        *,
        dtype: Any = "float32",
        checkpoint: Size = 0,
    ):
        if nonlinearity not in ("tanh", "relu"):
            raise ArgumentError(f"RNN: nonlinearity={nonlinearity!r} must be 'tanh' or 'relu'")
        self.nonlinearity = nonlinearity
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, 0, dtype, checkpoint
        )

    @property
    def formula(self) -> str:  # type: ignore[override]
        """The formula of a layer, with the chosen nonlinearity."""
        return RNN_FORMULA.replace("tanh(", f"{self.nonlinearity}(")

    def forward(self, input: Value, hx: Any = None) -> tuple[Value, Value]:
        output, (h,) = self._run(input, (hx,))
        return output, h


class GRU(_Layers):
    """Gated recurrent units: [T, B, input_size] -> [T, B, D*hidden_size]. Source: Cho et al. 2014, arXiv 1406.1078.

    As a formula, in each layer and direction; the rows of a weight are those of r, z and n one after another:

        p[t,b,n] = sum[i](x[t,b,i] * W_ih[n,i]) + b_ih[n]
        q[t,b,n] = sum[j](where(t > 0, h[t-1,b,j], h0[b,j]) * W_hh[n,j]) + b_hh[n]
        z[t,b,k] = sigmoid(p[t,b,H+k] + q[t,b,H+k])
        m[t,b,k] = tanh(p[t,b,2*H+k] + sigmoid(p[t,b,0*H+k] + q[t,b,0*H+k]) * q[t,b,2*H+k])
        h[t,b,k] = (1 - z[t,b,k]) * m[t,b,k] + z[t,b,k] * where(t > 0, h[t-1,b,k], h0[b,k])

    Arguments (with checkpoint), states and results are those of RNN.
    """

    gates = 3
    formula = GRU_FORMULA

    def __init__(
        self,
        input_size: Count,
        hidden_size: Count,
        num_layers: Depth = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: Share = 0.0,
        bidirectional: bool = False,
        *,
        dtype: Any = "float32",
        checkpoint: Size = 0,
    ):
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, 0, dtype, checkpoint
        )

    def forward(self, input: Value, hx: Any = None) -> tuple[Value, Value]:
        output, (h,) = self._run(input, (hx,))
        return output, h


class LSTM(_Layers):
    """Long short-term memory: [T, B, input_size] -> [T, B, D*hidden_size]. Source: Hochreiter, Schmidhuber 1997.

    As a formula, in each layer and direction; the rows of a weight are those of i, f, g and o one after another:

        p[t,b,n] = sum[i](x[t,b,i] * W_ih[n,i]) + b_ih[n] + b_hh[n]
        a[t,b,n] = p[t,b,n] + sum[j](where(t > 0, h[t-1,b,j], h0[b,j]) * W_hh[n,j])
        c[t,b,k] = sigmoid(a[t,b,H+k]) * where(t > 0, c[t-1,b,k], c0[b,k]) + sigmoid(a[t,b,0*H+k]) * tanh(a[t,b,2*H+k])
        h[t,b,k] = sigmoid(a[t,b,3*H+k]) * tanh(c[t,b,k])

    forward(input, (h0, c0)=None) -> (output, (h_n, c_n)); otherwise as RNN. proj_size: the hidden state, and with it
    the output, is projected to that many features by weight_hr_l0 (arXiv 1402.1128).
    """

    gates = 4
    states = ("h0", "c0")

    def __init__(
        self,
        input_size: Count,
        hidden_size: Count,
        num_layers: Depth = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: Share = 0.0,
        bidirectional: bool = False,
        proj_size: Size = 0,
        *,
        dtype: Any = "float32",
        checkpoint: Size = 0,
    ):
        super().__init__(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, proj_size, dtype, checkpoint
        )

    @property
    def formula(self) -> str:  # type: ignore[override]
        """The formula of a layer, with or without a projection."""
        return LSTM_PROJECTED_FORMULA if self.proj_size else LSTM_FORMULA

    def forward(self, input: Value, hx: Any = None) -> tuple[Value, tuple[Value, Value]]:
        output, (h, c) = self._run(input, pair(hx, "LSTM"))
        return output, (h, c)


def pair(hx: Any, name: str) -> tuple[Any, Any]:
    """Return the two initial states, of which both may be None. Raises ArgumentError where they are not a pair."""
    if hx is None:
        return None, None
    if not isinstance(hx, (tuple, list)) or len(hx) != 2:
        raise ArgumentError(f"{name}: the initial state must be a pair of tensors, (h_0, c_0)")
    return hx[0], hx[1]
