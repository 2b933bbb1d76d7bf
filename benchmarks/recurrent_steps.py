"""Define training steps of recurrent networks: cells of four papers over a sequence, and an LSTM language model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.random import default_rng

from benchmarks.problem import Workload, dense, uniform

LR = 0.01
"""Learning rate: plain SGD."""
PIXELS, ROW, CLASSES = 784, 28, 10
CELLS = ("milstm", "scrn", "sublstm", "lltm")
LAYER_CELLS = ("rnn", "lstm", "gru")
"""Cells in the names and shapes of PyTorch's layers."""
VOCABULARY, WIDTH, LAYERS, LM_BATCH, LM_STEPS = 10_000, 650, 2, 20, 35
CONTEXT = 64
"""Width of SC-RNN's context."""
RECURRENT_PEERS = (
    "torch", "compile", "compile-cell", "jax", "jax-unrolled", "tensorflow", "tensorflow-unrolled", "xla",
    "xla-unrolled",
)  # fmt: skip
"""Loops where the library has them (lax.scan, tf.while_loop), and unrolled; torch.compile of all, and of a step."""


@dataclass(frozen=True)
class Recurrent(Workload):
    """A training step of a network over `steps` steps from given initial states; the classifier reads the last one.

    states: the names of the initial states among the arrays. Those of the language model are [layers, batch, width].
    """

    kind = "recurrent"

    steps: int = 1
    states: tuple[str, ...] = ()


@dataclass(frozen=True)
class RecurrentForward(Recurrent):
    """The logits of a recurrent network. weights: the names of its parameters among the arrays."""

    has_reference = True

    weights: tuple[str, ...] = ()


def forward_of(step: Recurrent) -> RecurrentForward:
    """Return the forward of a training step of a recurrent network."""
    given = {f.name: getattr(step, f.name) for f in fields(step)}
    given |= {"name": f"{step.name}-inference", "training": False, "results": ("output",), "flops": 0, "nbytes": 0}
    return RecurrentForward(**given, weights=step.results)


def cell_shapes(cell: str, n_in: int, width: int | None = None) -> tuple[dict[str, tuple[int, ...]], int]:
    """Return the shapes of a cell's parameters by the names of `einsmith.nn`, for n_in inputs, and its hidden width.

    width: None for the usual one."""
    if cell == "milstm":
        h = width or 1024
        shapes: dict[str, tuple[int, ...]] = {"weight_ih": (4 * h, n_in), "weight_hh": (4 * h, h)}
        return shapes | dict.fromkeys(("bias_ih", "bias_hh", "alpha", "beta1", "beta2"), (4 * h,)), h
    h = width or 128
    if cell in LAYER_CELLS:
        rows = {"rnn": 1, "lstm": 4, "gru": 3}[cell] * h
        shapes = {"weight_ih_l0": (rows, n_in), "weight_hh_l0": (rows, h)}
        return shapes | {"bias_ih_l0": (rows,), "bias_hh_l0": (rows,)}, h
    if cell == "sublstm":
        shapes = {"weight_ih": (4 * h, n_in), "weight_hh": (4 * h, h)}
        return shapes | {"bias_ih": (4 * h,), "bias_hh": (4 * h,)}, h
    if cell == "lltm":
        return {"weight": (3 * h, h + n_in), "bias": (3 * h,)}, h
    if cell == "scrn":
        s = CONTEXT
        return {"B": (s, n_in), "weight": (h, s + n_in + h), "bias": (h,), "U": (h, h), "V": (h, s)}, h
    raise ValueError(cell)


def _macs(cell: str, n_in: int, h: int) -> tuple[int, int, int]:
    """Return the multiply-adds of a sample: of the input's projection, of the carried state's product, and of what lies
    between the states and the classifier's input (its gradient by the states included where it has one)."""
    if cell == "scrn":
        return CONTEXT * n_in + h * n_in, h * h, CONTEXT * h
    gates = {"milstm": 4, "sublstm": 4, "lltm": 3, "rnn": 1, "lstm": 4, "gru": 3}[cell]
    return gates * h * n_in, gates * h * h, 0


def cell_flops(cell: str, batch: int, steps: int, n_in: int, width: int | None = None) -> int:
    """Return the operations of the forward and of the gradients by weights and by all states but the initial one."""
    _, h = cell_shapes(cell, n_in, width)
    inputs, carried, inner = _macs(cell, n_in, h)
    head = h * CLASSES + (h * h + CONTEXT * h if cell == "scrn" else 0)
    return 2 * batch * (2 * steps * inputs + (3 * steps - 1) * carried + 3 * steps * inner + 3 * head)


def recurrent(cell: str, batch: int, steps: int, width: int | None = None) -> Recurrent:
    """Return the step of a cell over `steps` rows of 28 pixels, or one of 784, and a classifier of the last state.

    width: hidden width; None for the usual one."""
    n_in = PIXELS if steps == 1 else ROW
    shapes, h = cell_shapes(cell, n_in, width)
    states = ("h0",) if cell in ("rnn", "gru") else ("h0", "s0") if cell == "scrn" else ("h0", "c0")

    def make() -> dict[str, np.ndarray]:
        rng = default_rng(12)
        out: dict[str, np.ndarray] = {
            "x": rng.random((steps, batch, n_in), np.float32),
            "y": rng.integers(0, CLASSES, batch),
            "h0": 0.5 * rng.standard_normal((batch, h), np.float32),
        }
        for name in states[1:]:
            out[name] = 0.5 * rng.standard_normal((batch, CONTEXT if cell == "scrn" else h), np.float32)
        for name, shape in shapes.items():
            out[name] = uniform(rng, shape, h)
        if cell == "milstm":
            out["alpha"] += 1
            out["beta1"] += 0.5
            out["beta2"] += 0.5
        if cell == "lltm":  # nothing forgets its state: training on it over 150 steps is chaotic with larger weights
            out["weight"] *= 0.25
        return out | dense(rng, "fc", h, CLASSES)

    results = (*shapes, "fc.weight", "fc.bias")
    weights = sum(int(np.prod(s)) for s in shapes.values()) + h * CLASSES
    name, flops = f"{cell}-b{batch}-t{steps}", cell_flops(cell, batch, steps, n_in, width)
    nbytes = 4 * (2 * weights + steps * batch * n_in)
    return Recurrent(name, cell, batch, flops, results, make, nbytes=nbytes, steps=steps, states=states)


def language_model(
    steps: int = LM_STEPS, batch: int = LM_BATCH, width: int = WIDTH, words: int = VOCABULARY
) -> Recurrent:
    """Return the step of an embedding, two layers of LSTM and a linear decoder, with cross entropy over all words."""
    names = [f"rnn.{kind}_l{n}" for n in range(LAYERS) for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]

    def make() -> dict[str, np.ndarray]:
        rng = default_rng(13)
        tokens = rng.integers(0, words, (steps + 1, batch))
        out: dict[str, np.ndarray] = {"x": tokens[:-1].copy(), "y": tokens[1:].ravel()}
        for name in ("h0", "c0"):
            out[name] = 0.1 * rng.standard_normal((LAYERS, batch, width), np.float32)
        out["embedding.weight"] = rng.standard_normal((words, width), np.float32)
        for name in names:
            shape = (4 * width, width) if "weight" in name else (4 * width,)
            out[name] = uniform(rng, shape, width)
        return out | dense(rng, "decoder", width, words)

    projection, decoder = 4 * width * width, width * words
    macs = LAYERS * (3 * steps * projection + (3 * steps - 1) * projection) + 3 * steps * decoder
    weights = 2 * LAYERS * projection + decoder
    name, results = f"lstm_lm-b{batch}-t{steps}", ("embedding.weight", *names, "decoder.weight", "decoder.bias")
    how: dict[str, Any] = {"nbytes": 8 * weights, "steps": steps, "states": ("h0", "c0")}
    return Recurrent(name, "lstm_lm", batch, 2 * batch * macs, results, make, **how)


def peers_of(problem: Workload, peers: Sequence[str]) -> list[str]:
    """Return the peers that run a problem: a recurrent network also runs unrolled, and with its cell alone compiled."""
    if not isinstance(problem, Recurrent):
        return list(peers)
    more = {p: [q for q in RECURRENT_PEERS if q.partition("-")[0] == p] for p in peers}
    return [q for p in peers for q in (more[p] or [p])]


BATCHES = (1, 16, 64)
STEPS = (1, 28, 35, 150)
RECURRENT = {
    p.name: p for p in (*(recurrent(c, b, t) for c in CELLS for t in STEPS for b in BATCHES), language_model())
}
"""The networks that are timed alone."""
FIRST_CALL_STEPS = (8, 128, 1024)
FIRST_CALLS = {p.name: p for p in (recurrent(c, 4, t) for c in (*LAYER_CELLS, *CELLS) for t in FIRST_CALL_STEPS)}
"""Of which only the first call is timed."""
