"""Run recurrent networks in TensorFlow, with and without XLA: a while loop, or the loop unrolled."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.peers.recurrent_cells import Arrays, CellLibrary, State, Step, lstm_layers, networks, to_peer
from benchmarks.recurrent_steps import LR, Recurrent


def linear(x, w, b):
    """Return x times w, plus b where it is not None."""
    y = tf.tensordot(x, w, 1) if x.shape.rank > 2 else x @ w
    return y if b is None else y + b


def library(unrolled: bool) -> CellLibrary:
    """Return TensorFlow's operations with a while loop, or with the loop unrolled."""

    def loop(step: Step, p: Arrays, state: State, xs: tuple, collect: bool) -> tuple[State, Any]:
        steps = xs[0].shape[0]
        if unrolled:
            out = []
            for at in zip(*(tf.unstack(x) for x in xs), strict=True):
                state = step(p, state, at)
                out.append(state[0])
            return state, tf.stack(out) if collect else None
        given = [tf.TensorArray(x.dtype, steps, element_shape=x.shape[1:]).unstack(x) for x in xs]
        kept = tf.TensorArray(xs[0].dtype, steps if collect else 0, element_shape=state[0].shape)

        def body(t, state, kept):
            state = step(p, state, tuple(a.read(t) for a in given))
            return t + 1, state, kept.write(t, state[0]) if collect else kept

        _, state, kept = tf.while_loop(
            lambda t, *_: t < steps, body, (tf.constant(0), state, kept), maximum_iterations=steps
        )
        return state, kept.stack() if collect else None

    return CellLibrary(
        linear=linear,
        inputs=lambda w, start, stop: w[start:stop],
        sigmoid=tf.sigmoid,
        tanh=tf.tanh,
        elu=tf.nn.elu,
        muladd=lambda a, b, c: a * b + c,
        concat=lambda parts: tf.concat(parts, -1),
        loop=loop,
    )


class TensorFlowRecurrent:
    """A training step of a recurrent network."""

    def __init__(self, problem: Recurrent, arrays: dict[str, np.ndarray], xla: bool, unrolled: bool):
        words = problem.network == "lstm_lm"
        self.x = tf.constant(arrays["x"].astype(np.int32) if words else arrays["x"])
        self.y = tf.constant(arrays["y"].astype(np.int32))
        state = tuple(tf.constant(arrays[n]) for n in problem.states)
        self.p = {n: tf.Variable(to_peer(n, arrays[n])) for n in problem.results}
        names = list(self.p)
        o = library(unrolled)
        layers = lstm_layers(o)

        def language_model(p, x, state):
            h = layers(p, tf.gather(p["embedding.weight"], x), state)
            return tf.reshape(h, (-1, h.shape[-1])) @ p["decoder.weight"] + p["decoder.bias"]

        network = language_model if words else networks(o)[problem.network]

        @tf.function(jit_compile=xla)
        def step(x, y):
            with tf.GradientTape() as tape:
                logits = network(
                    {n: v if words and n == "embedding.weight" else v.value() for n, v in self.p.items()}, x, state
                )
                loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
            for n, g in zip(names, tape.gradient(loss, [self.p[n] for n in names]), strict=True):
                if isinstance(g, tf.IndexedSlices):
                    self.p[n].scatter_sub(tf.IndexedSlices(LR * g.values, g.indices))
                else:
                    self.p[n].assign_sub(LR * g)
            return loss

        self._step = step

    def step(self) -> float:
        """Train on the batch and return the loss."""
        return float(self._step(self.x, self.y))

    def results(self) -> dict[str, np.ndarray]:
        """Return the parameters."""
        return {n: to_peer(n, v.numpy()) for n, v in self.p.items()}


def build(
    problem: Recurrent, arrays: dict[str, np.ndarray], threads: int, peer: str, variant: str
) -> TensorFlowRecurrent:
    """Return the problem's session."""
    return TensorFlowRecurrent(problem, arrays, peer.startswith("xla"), peer.endswith("unrolled"))
