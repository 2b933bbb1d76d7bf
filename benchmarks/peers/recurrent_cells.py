"""Define the recurrent networks once, for any library that offers the few operations of `CellLibrary`.

What does not depend on the carried state is computed for all steps before the loop: the products with the input, and
for MI-LSTM the factor (alpha*xi + beta2) and the term beta1*xi of its gates. All gates come from one product a step; a
sequence of one step multiplies input and state side by side where the weight is stored so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.recurrent_steps import LAYERS

Arrays = Mapping[str, Any]
State = tuple[Any, ...]
Step = Callable[[Arrays, State, tuple], State]

ALPHA = 0.5
"""Of SC-RNN: how much of the context is kept."""


@dataclass(frozen=True)
class CellLibrary:
    """The operations of a library that cells need.

    linear(x, w, b): x times w in the library's own layout, plus b where it is not None. inputs(w, start, stop): the
    part of w for those inputs. muladd(a, b, c): a*b + c. concat: along the last axis. loop(step, p, state, xs,
    collect): `step(p, state, at)` for each element `at` of the sequences xs along their first axis; the last state,
    and the first members of all states as a sequence where `collect`, else None.
    """

    linear: Callable[[Any, Any, Any], Any]
    inputs: Callable[[Any, int, int], Any]
    sigmoid: Callable[[Any], Any]
    tanh: Callable[[Any], Any]
    elu: Callable[[Any], Any]
    muladd: Callable[[Any, Any, Any], Any]
    concat: Callable[[list[Any]], Any]
    loop: Callable[[Step, Arrays, State, tuple, bool], tuple[State, Any]]

    def cut(self, x: Any, start: int, stop: int) -> Any:
        """Return a part of the last axis."""
        return x[..., start:stop]

    def parts(self, x: Any, n: int) -> list[Any]:
        """Return n equal parts of the last axis."""
        width = x.shape[-1] // n
        return [self.cut(x, k * width, (k + 1) * width) for k in range(n)]


Network = Callable[[Arrays, Any, State], Any]


def to_peer(name: str, a: np.ndarray) -> np.ndarray:
    """Return a weight as [in, out]; a table of embeddings stays as it is."""
    return a.T if a.ndim == 2 and name != "embedding.weight" else a


def networks(o: CellLibrary) -> dict[str, Network]:
    """Return `network(p, x, state)` by name: the logits of x [steps, batch, inputs] from initial states."""

    def classify(p: Arrays, h: Any) -> Any:
        return o.linear(h, p["fc.weight"], p["fc.bias"])

    def milstm_step(p: Arrays, state: State, at: tuple) -> State:
        h, c = state
        g = o.muladd(at[0], o.linear(h, p["weight_hh"], p["bias_hh"]), at[1])
        width = h.shape[-1]
        i, f, out = o.parts(o.sigmoid(o.cut(g, 0, 3 * width)), 3)
        c = o.muladd(f, c, i * o.tanh(o.cut(g, 3 * width, 4 * width)))
        return out * o.tanh(c), c

    def milstm(p: Arrays, x: Any, state: State) -> Any:
        xi = o.linear(x, p["weight_ih"], p["bias_ih"])
        given = o.muladd(p["alpha"], xi, p["beta2"]), p["beta1"] * xi
        (h, _), _ = o.loop(milstm_step, p, state, given, False)
        return classify(p, h)

    def sublstm_step(p: Arrays, state: State, at: tuple) -> State:
        h, c = state
        i, f, z, out = o.parts(o.sigmoid(o.linear(h, p["weight_hh"], p["bias_hh"]) + at[0]), 4)
        c = o.muladd(f, c, z - i)
        return o.sigmoid(c) - out, c

    def sublstm(p: Arrays, x: Any, state: State) -> Any:
        given = (o.linear(x, p["weight_ih"], p["bias_ih"]),)
        (h, _), _ = o.loop(sublstm_step, p, state, given, False)
        return classify(p, h)

    def lltm_gates(g: Any, c: Any) -> State:
        width = c.shape[-1]
        i, out = o.parts(o.sigmoid(o.cut(g, 0, 2 * width)), 2)
        c = o.muladd(o.elu(o.cut(g, 2 * width, 3 * width)), i, c)
        return o.tanh(c) * out, c

    def lltm_step(p: Arrays, state: State, at: tuple) -> State:
        h, c = state
        return lltm_gates(o.linear(h, o.inputs(p["weight"], 0, h.shape[-1]), None) + at[0], c)

    def lltm(p: Arrays, x: Any, state: State) -> Any:
        h, c = state
        if x.shape[0] == 1:
            h, _ = lltm_gates(o.linear(o.concat([h, x[0]]), p["weight"], p["bias"]), c)
        else:
            width = h.shape[-1]
            given = (o.linear(x, o.inputs(p["weight"], width, width + x.shape[-1]), p["bias"]),)
            (h, _), _ = o.loop(lltm_step, p, state, given, False)
        return classify(p, h)

    def context_step(p: Arrays, state: State, at: tuple) -> State:
        return (ALPHA * state[0] + at[0],)

    def scrn_step(p: Arrays, state: State, at: tuple) -> State:
        h = state[0]
        return (o.sigmoid(o.linear(h, p["weight_hh"], None) + at[0]),)

    def scrn(p: Arrays, x: Any, state: State) -> Any:
        h, s = state
        fed = (1 - ALPHA) * o.linear(x, p["B"], None)
        if x.shape[0] == 1:
            s = ALPHA * s + fed[0]
            h = o.sigmoid(o.linear(o.concat([s, x[0], h]), p["weight"], p["bias"]))
        else:
            context, before = s.shape[-1], s.shape[-1] + x.shape[-1]
            (s,), contexts = o.loop(context_step, {}, (s,), (fed,), True)
            given = o.linear(contexts, o.inputs(p["weight"], 0, context), p["bias"])
            given = given + o.linear(x, o.inputs(p["weight"], context, before), None)
            carried = {"weight_hh": o.inputs(p["weight"], before, before + h.shape[-1])}
            (h,), _ = o.loop(scrn_step, carried, (h,), (given,), False)
        return classify(p, o.linear(h, p["U"], None) + o.linear(s, p["V"], None))

    def rnn_step(p: Arrays, state: State, at: tuple) -> State:
        return (o.tanh(o.linear(state[0], p["weight_hh"], None) + at[0]),)

    def gru_step(p: Arrays, state: State, at: tuple) -> State:
        (h,) = state
        width, q = h.shape[-1], o.linear(h, p["weight_hh"], p["bias_hh"])
        r, z = o.parts(o.sigmoid(o.cut(at[0], 0, 2 * width) + o.cut(q, 0, 2 * width)), 2)
        m = o.tanh(o.muladd(r, o.cut(q, 2 * width, 3 * width), o.cut(at[0], 2 * width, 3 * width)))
        return (o.muladd(z, h - m, m),)

    def layer(step: Step, inside: bool) -> Network:
        """Return a layer in torch's names; `inside`: the second bias stands within the step's product."""

        def network(p: Arrays, x: Any, state: State) -> Any:
            bias = p["bias_ih_l0"] if inside else p["bias_ih_l0"] + p["bias_hh_l0"]
            carried = {"weight_hh": p["weight_hh_l0"], "bias_hh": p["bias_hh_l0"]}
            (h, *_), _ = o.loop(step, carried, state, (o.linear(x, p["weight_ih_l0"], bias),), False)
            return classify(p, h)

        return network

    return {
        "milstm": milstm, "sublstm": sublstm, "lltm": lltm, "scrn": scrn,
        "rnn": layer(rnn_step, False), "lstm": layer(lstm_step(o), False), "gru": layer(gru_step, True),
    }  # fmt: skip


def lstm_step(o: CellLibrary) -> Step:
    """Return a step of LSTM, whose gates have the products of the input already."""

    def step(p: Arrays, state: State, at: tuple) -> State:
        h, c = state
        g = o.linear(h, p["weight_hh"], None) + at[0]
        width = h.shape[-1]
        i, f = o.parts(o.sigmoid(o.cut(g, 0, 2 * width)), 2)
        c = o.muladd(f, c, i * o.tanh(o.cut(g, 2 * width, 3 * width)))
        return o.sigmoid(o.cut(g, 3 * width, 4 * width)) * o.tanh(c), c

    return step


def lstm_layers(o: CellLibrary) -> Network:
    """Return layers of LSTM, in torch's names, which give all outputs of x [steps, batch, inputs]."""
    step = lstm_step(o)

    def layers(p: Arrays, x: Any, state: State) -> Any:
        for n in range(LAYERS):
            bias = p[f"rnn.bias_ih_l{n}"] + p[f"rnn.bias_hh_l{n}"]
            given = (o.linear(x, p[f"rnn.weight_ih_l{n}"], bias),)
            carried = {"weight_hh": p[f"rnn.weight_hh_l{n}"]}
            _, x = o.loop(step, carried, (state[0][n], state[1][n]), given, True)
        return x

    return layers
