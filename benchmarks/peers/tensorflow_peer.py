"""TensorFlow, the whole step in one tf.function, with and without XLA."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from benchmarks.kernel_cases import Case
from benchmarks.peers import tensorflow_kernels, tensorflow_recurrent
from benchmarks.peers.tensorflow_operators import PLAIN, XLA
from benchmarks.problems import LR, Problem, Session
from benchmarks.recurrent_problems import Recurrent

VERSION = f"TensorFlow {tf.__version__}"


def formulations(peer: str) -> dict[str, dict]:
    return XLA if peer == "xla" else PLAIN


def variants(problem: Problem, peer: str) -> tuple[str, ...] | None:
    if isinstance(problem, Case):
        return tensorflow_kernels.variants(problem)
    return tuple(formulations(peer).get(problem.network, ())) or None


def mlp3(p, x):
    h = tf.nn.relu(x @ p["fc1.weight"] + p["fc1.bias"])
    h = tf.nn.relu(h @ p["fc2.weight"] + p["fc2.bias"])
    return h @ p["fc3.weight"] + p["fc3.bias"]


def pool_operation(x):
    return tf.nn.max_pool2d(x, 2, 2, "VALID")


def pool_slices(x):
    """XLA's gradient of this is faster than its gradient of a pooling operation."""
    x = tf.maximum(x[:, ::2], x[:, 1::2])
    return tf.maximum(x[:, :, ::2], x[:, :, 1::2])


def lenet5(p, x, pool):
    h = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, p["conv1.weight"], 1, "SAME"), p["conv1.bias"]))
    h = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(pool(h), p["conv2.weight"], 1, "VALID"), p["conv2.bias"]))
    h = pool(h)
    return mlp3(p, tf.reshape(tf.transpose(h, (0, 3, 1, 2)), (h.shape[0], -1)))


def to_peer(name: str, a: np.ndarray) -> np.ndarray:
    if name == "x":
        return a.transpose(0, 2, 3, 1) if a.ndim == 4 else a
    return a.transpose(2, 3, 1, 0) if a.ndim == 4 else a.T


def from_peer(name: str, a: np.ndarray) -> np.ndarray:
    return a.transpose(3, 2, 0, 1) if a.ndim == 4 else a.T


class Training:
    def __init__(self, problem: Problem, arrays: dict[str, np.ndarray], xla: bool):
        pool = pool_slices if xla else pool_operation
        self.x, self.y = tf.constant(to_peer("x", arrays["x"])), tf.constant(arrays["y"].astype(np.int32))
        self.p = {n: tf.Variable(to_peer(n, arrays[n])) for n in problem.results}
        names = list(self.p)

        @tf.function(jit_compile=xla)
        def step(x, y):
            with tf.GradientTape() as tape:
                logits = mlp3(self.p, x) if problem.network == "mlp3" else lenet5(self.p, x, pool)
                loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
            for n, g in zip(names, tape.gradient(loss, [self.p[n] for n in names]), strict=True):
                self.p[n].assign_sub(LR * g)
            return loss

        self._step = step

    def step(self) -> float:
        return float(self._step(self.x, self.y))

    def results(self) -> dict[str, np.ndarray]:
        return {n: from_peer(n, v.numpy()) for n, v in self.p.items()}


class Operator:
    def __init__(self, problem: Problem, arrays: dict[str, np.ndarray], peer: str, variant: str):
        operator = formulations(peer)[problem.network][variant]
        self.inputs, self.g = tuple(tf.constant(arrays[n]) for n in problem.inputs), tf.constant(arrays["G"])
        self.names = problem.results

        @tf.function(jit_compile=peer == "xla")
        def step(xs, g):
            with tf.GradientTape() as tape:
                tape.watch(xs)
                loss = tf.reduce_sum(operator(*xs, **problem.options) * g)
            # The gradient of a gather is a sparse one until it is asked for.
            return loss, [tf.convert_to_tensor(g) for g in tape.gradient(loss, xs)]

        self._step = step

    def step(self) -> float:
        loss, self.grads = self._step(self.inputs, self.g)
        # A view of a result waits for it and copies nothing; .numpy() would copy.
        for g in self.grads:
            memoryview(g)
        return float(loss)

    def results(self) -> dict[str, np.ndarray]:
        return {n: g.numpy() for n, g in zip(self.names, self.grads, strict=True)}


def build(problem: Problem, arrays: dict[str, np.ndarray], threads: int, peer: str, variant: str = "") -> Session:
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    if isinstance(problem, Case):
        return tensorflow_kernels.build(problem, arrays, peer == "xla", variant)
    if isinstance(problem, Recurrent):
        return tensorflow_recurrent.build(problem, arrays, peer)
    return Training(problem, arrays, peer == "xla") if problem.training else Operator(problem, arrays, peer, variant)
