"""Recurrent layers. Each direction of a layer is one recurrent formula (those of `einsmith.nn`), which is not unrolled:
compile time does not depend on the number of steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from einsmith import ops as F
from einsmith.frontends.aten.table import enter
from einsmith.frontends.graph import layer
from einsmith.nn.recurrence import (
    GRU_FORMULA,
    LSTM_FORMULA,
    LSTM_PROJECTED_FORMULA,
    RNN_FORMULA,
    recurrent_layer,
    run_layers,
)
from einsmith.ops.random import drop
from einsmith.tracing.builder import Value


def _enter(name: str, text: str, formula: str, projected: str = "") -> None:
    """Add an operator. text: its recurrence; projected: the one with projected states, which only an LSTM has."""

    def run(
        x: Value,
        hx: Any,
        params: Sequence[Value],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> tuple[Value, ...]:
        states = ("h0", "c0") if projected else ("h0",)
        directions = 2 if bidirectional else 1
        each = len(params) // (num_layers * directions)
        names = ["W_ih", "W_hh", *(["b_ih", "b_hh"] if has_biases else []), "W_hr"][:each]
        rows = [dict(zip(names, params[n : n + each], strict=True)) for n in range(0, len(params), each)]
        weights = [rows[n : n + directions] for n in range(0, len(rows), directions)]
        p, path = float(dropout) if train else 0.0, layer.get()

        def run_layer(x: Value, tensors: Any, initial: list[Value]) -> tuple[Value, list[Value]]:
            chosen = projected if "W_hr" in names else text
            return recurrent_layer(chosen, x, tensors, dict(zip(states, initial, strict=True)))

        y, last = run_layers(
            run_layer,
            F.transpose(x, 0, 1) if batch_first else x,
            weights,
            hx if projected else (hx,),
            (lambda y, n: drop(y, p, f"{path}/{n}")) if p else None,
        )
        return F.transpose(y, 0, 1) if batch_first else y, *last

    enter(f"{name}.input", formula, run)


_enter(
    "lstm",
    LSTM_FORMULA,
    "c[t] = sigmoid(f)*c[t-1] + sigmoid(i)*tanh(g), h[t] = sigmoid(o)*tanh(c[t]), where i, f, g, o = "
    "W_ih*x[t] + b_ih + W_hh*h[t-1] + b_hh",
    LSTM_PROJECTED_FORMULA,
)
_enter(
    "gru",
    GRU_FORMULA,
    "h[t] = (1 - z)*n + z*h[t-1], where r, z = sigmoid(p + q), n = tanh(p + r*q), "
    "p = W_ih*x[t] + b_ih, q = W_hh*h[t-1] + b_hh",
)
_enter("rnn_tanh", RNN_FORMULA, "h[t] = tanh(W_ih*x[t] + b_ih + W_hh*h[t-1] + b_hh)")
_enter("rnn_relu", RNN_FORMULA.replace("tanh(", "relu("), "h[t] = relu(W_ih*x[t] + b_ih + W_hh*h[t-1] + b_hh)")
