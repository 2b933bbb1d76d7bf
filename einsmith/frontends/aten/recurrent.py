"""Recurrent layers. Each direction of a layer is one recurrent formula (those of `einsmith.nn`), which is not unrolled:
compile time does not depend on the number of steps."""

from __future__ import annotations

from collections.abc import Sequence

from einsmith import ops as F
from einsmith.frontends.aten.table import aten, enter
from einsmith.frontends.graph import layer
from einsmith.lang.builder import Value
from einsmith.nn.recurrent import GRU_FORMULA, LSTM_FORMULA, LSTM_PROJECTED_FORMULA, RNN_FORMULA, run_layers
from einsmith.ops.random import drop


def _layers(
    text: str,
    x: Value,
    initial: dict[str, Value],
    params: Sequence[Value],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Value, list[Value]]:
    """Return (the last layer's output, the last states of all layers and directions, in the order of `initial`)."""
    x = F.transpose(x, 0, 1) if batch_first else x
    directions = 2 if bidirectional else 1
    each = len(params) // (num_layers * directions)
    names = ["W_ih", "W_hh", *(["b_ih", "b_hh"] if has_biases else []), "W_hr"][:each]
    rows = [dict(zip(names, params[n : n + each], strict=True)) for n in range(0, len(params), each)]
    weights = [rows[n : n + directions] for n in range(0, len(rows), directions)]
    p = float(dropout) if train else 0.0
    x, last = run_layers(text, x, weights, initial, (lambda y, n: drop(y, p, f"{layer.get()}/{n}")) if p else None)
    return F.transpose(x, 0, 1) if batch_first else x, last


@aten("lstm.input")
def lstm(
    x: Value,
    hx: Sequence[Value],
    params: Sequence[Value],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Value, ...]:
    """c[t] = sigmoid(f)*c[t-1] + sigmoid(i)*tanh(g), h[t] = sigmoid(o)*tanh(c[t]), where i, f, g, o =
    W_ih*x[t] + b_ih + W_hh*h[t-1] + b_hh"""
    each = len(params) // (num_layers * (2 if bidirectional else 1))
    text = LSTM_PROJECTED_FORMULA if each % 2 else LSTM_FORMULA
    initial = {"h0": hx[0], "c0": hx[1]}
    y, (h, c) = _layers(text, x, initial, params, has_biases, num_layers, dropout, train, bidirectional, batch_first)
    return y, h, c


def _simple(name: str, text: str, formula: str) -> None:
    def run(
        x: Value,
        hx: Value,
        params: Sequence[Value],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> tuple[Value, ...]:
        y, (h,) = _layers(
            text, x, {"h0": hx}, params, has_biases, num_layers, dropout, train, bidirectional, batch_first
        )
        return y, h

    enter(f"{name}.input", formula, run)


_simple(
    "gru",
    GRU_FORMULA,
    "h[t] = (1 - z)*n + z*h[t-1], where r, z = sigmoid(p + q), n = tanh(p + r*q), "
    "p = W_ih*x[t] + b_ih, q = W_hh*h[t-1] + b_hh",
)
_simple("rnn_tanh", RNN_FORMULA, "h[t] = tanh(W_ih*x[t] + b_ih + W_hh*h[t-1] + b_hh)")
_simple("rnn_relu", RNN_FORMULA.replace("tanh(", "relu("), "h[t] = relu(W_ih*x[t] + b_ih + W_hh*h[t-1] + b_hh)")
