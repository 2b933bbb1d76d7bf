"""The recurrent networks that are timed: cells of four papers over a sequence, and an LSTM language model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from einsmith.bench.problem import Workload, dense, uniform

PIXELS, ROW, CLASSES = 784, 28, 10
CELLS = ("milstm", "scrn", "sublstm", "lltm")
LAYER_CELLS = ("rnn", "lstm", "gru")
"""In torch's names, one layer; of these only the first call is timed."""
BATCHES = (1, 16, 64)
STEPS = (1, 28, 35, 150)
VOCABULARY, WIDTH, LAYERS, LM_BATCH, LM_STEPS = 10_000, 650, 2, 20, 35
CONTEXT = 64
"""Of SC-RNN."""


@dataclass(frozen=True)
class Recurrent(Workload):
    """A training step over `steps` steps from given initial states; the classifier reads the last one.

    `states`: the names of the initial states among the arrays. Those of the language model are [layers, batch, width].
    """

    steps: int = 1
    states: tuple[str, ...] = ()


def cell_shapes(cell: str, n_in: int) -> tuple[dict[str, tuple[int, ...]], int]:
    """Parameters of a cell with n_in inputs, by name, in our modules' names and shapes; and its hidden width."""
    if cell == "milstm":
        h = 1024
        shapes: dict[str, tuple[int, ...]] = {"weight_ih": (4 * h, n_in), "weight_hh": (4 * h, h)}
        return shapes | dict.fromkeys(("bias_ih", "bias_hh", "alpha", "beta1", "beta2"), (4 * h,)), h
    h = 128
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
    """Multiply-adds for a sample: of the input's projection, of the carried state's product, and of what lies between
    the states and the classifier's input (its gradient by the states included where it has one)."""
    if cell == "scrn":
        return CONTEXT * n_in + h * n_in, h * h, CONTEXT * h
    gates = {"milstm": 4, "sublstm": 4, "lltm": 3, "rnn": 1, "lstm": 4, "gru": 3}[cell]
    return gates * h * n_in, gates * h * h, 0


def cell_flops(cell: str, batch: int, steps: int, n_in: int) -> int:
    """Forward; weight gradients; gradients by every state but the initial one."""
    _, h = cell_shapes(cell, n_in)
    inputs, carried, inner = _macs(cell, n_in, h)
    head = h * CLASSES + (h * h + CONTEXT * h if cell == "scrn" else 0)
    return 2 * batch * (2 * steps * inputs + (3 * steps - 1) * carried + 3 * steps * inner + 3 * head)


def recurrent(cell: str, batch: int, steps: int) -> Recurrent:
    """The cell over `steps` rows of 28 pixels, or one step on 784, and a linear classifier on the last hidden state."""
    n_in = PIXELS if steps == 1 else ROW
    shapes, h = cell_shapes(cell, n_in)
    states = ("h0",) if cell in ("rnn", "gru") else ("h0", "s0") if cell == "scrn" else ("h0", "c0")

    def make() -> dict[str, np.ndarray]:
        rng = np.random.default_rng(12)
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
    return Recurrent(
        name=f"{cell}-b{batch}-t{steps}",
        network=cell,
        batch=batch,
        flops=cell_flops(cell, batch, steps, n_in),
        results=results,
        make=make,
        nbytes=4 * (2 * weights + steps * batch * n_in),
        steps=steps,
        states=states,
    )


def language_model(
    steps: int = LM_STEPS, batch: int = LM_BATCH, width: int = WIDTH, words: int = VOCABULARY
) -> Recurrent:
    """Embedding, two layers of LSTM in torch's names, and a linear decoder, with cross entropy over all words."""
    names = [f"rnn.{kind}_l{n}" for n in range(LAYERS) for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]

    def make() -> dict[str, np.ndarray]:
        rng = np.random.default_rng(13)
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
    return Recurrent(
        name=f"lstm_lm-b{batch}-t{steps}",
        network="lstm_lm",
        batch=batch,
        flops=2 * batch * macs,
        results=("embedding.weight", *names, "decoder.weight", "decoder.bias"),
        make=make,
        nbytes=8 * weights,
        steps=steps,
        states=("h0", "c0"),
    )


RECURRENT = {
    p.name: p for p in (*(recurrent(c, b, t) for c in CELLS for t in STEPS for b in BATCHES), language_model())
}
FIRST_CALL_STEPS = (8, 128, 1024)
FIRST_CALLS = {p.name: p for p in (recurrent(c, 4, t) for c in (*LAYER_CELLS, *CELLS) for t in FIRST_CALL_STEPS)}
"""Of which only the first call is timed."""
