"""Run training steps in TensorFlow: the whole step in one tf.function, with and without XLA."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from einsmith.bench.networks import LR, NetworkStep
from einsmith.bench.peers.images_last import ChannelsLast
from einsmith.bench.problem import Session

VERSION = f"TensorFlow {tf.__version__}"


class TensorFlowTraining:
    """A training step by `tf.GradientTape`."""

    def __init__(self, problem: NetworkStep, arrays: dict[str, np.ndarray], xla: bool):
        self.layers, self.names, self.order = problem.layers, problem.results, ChannelsLast(problem, arrays)
        self.x, self.y = tf.constant(self.order.to_peer("x", arrays["x"])), tf.constant(arrays["y"])
        self.p = {n: tf.Variable(self.order.to_peer(n, arrays[n])) for n in self.names}

        @tf.function(jit_compile=xla)
        def step(x, y):
            with tf.GradientTape() as tape:
                loss = self.loss(x, y)
            for p, g in zip(self.p.values(), tape.gradient(loss, list(self.p.values())), strict=True):
                p.assign_sub(LR * g)
            return loss

        self._step = step

    def restart(self, arrays: dict[str, np.ndarray]) -> None:
        """Begin again from these values."""
        for n, p in self.p.items():
            p.assign(self.order.to_peer(n, arrays[n]))

    def loss(self, x, y):
        """Return the loss of a batch."""
        for layer in self.layers:
            if layer.kind == "linear":
                x = x @ self.p[f"{layer.name}.weight"] + self.p[f"{layer.name}.bias"]
            elif layer.kind == "conv":
                pads = [[0, 0], [layer.padding] * 2, [layer.padding] * 2, [0, 0]]
                x = tf.nn.conv2d(x, self.p[f"{layer.name}.weight"], 1, pads) + self.p[f"{layer.name}.bias"]
            elif layer.kind == "relu":
                x = tf.nn.relu(x)
            elif layer.kind == "pool":
                x = tf.nn.max_pool2d(x, 2, 2, "VALID")
            else:
                x = tf.reshape(x, (x.shape[0], -1))
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, x))

    def step(self) -> float:
        """Train on the batch and return the loss."""
        return float(self._step(self.x, self.y))

    def results(self) -> dict[str, np.ndarray]:
        """Return the parameters."""
        return {n: self.order.from_peer(n, p.numpy()) for n, p in self.p.items()}


def build(problem: NetworkStep, arrays: dict[str, np.ndarray], threads: int, peer: str) -> Session:
    """Return the problem's session."""
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    return TensorFlowTraining(problem, arrays, peer == "xla")
