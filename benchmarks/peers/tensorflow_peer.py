"""TensorFlow, the whole step in one tf.function, with and without XLA."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from benchmarks.kernel_cases import Case
from benchmarks.models import Model, in_tensorflow
from benchmarks.peers import tensorflow_kernels, tensorflow_recurrent
from benchmarks.peers.tensorflow_operators import PLAIN, XLA
from benchmarks.recurrent_problems import Recurrent
from einsmith.bench.problem import Session, Workload

VERSION = f"TensorFlow {tf.__version__}"


def formulations(peer: str) -> dict[str, dict]:
    return XLA if peer == "xla" else PLAIN


def variants(problem: Workload, peer: str) -> tuple[str, ...] | None:
    if isinstance(problem, Case):
        return tensorflow_kernels.variants(problem)
    if isinstance(problem, Model):
        return in_tensorflow.variants(problem, peer)
    return tuple(formulations(peer).get(problem.network, ())) or None


class Operator:
    def __init__(self, problem: Workload, arrays: dict[str, np.ndarray], peer: str, variant: str):
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


def build(problem: Workload, arrays: dict[str, np.ndarray], threads: int, peer: str, variant: str = "") -> Session:
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    if isinstance(problem, Case):
        return tensorflow_kernels.build(problem, arrays, peer == "xla", variant)
    if isinstance(problem, Recurrent):
        return tensorflow_recurrent.build(problem, arrays, peer)
    if isinstance(problem, Model):
        return in_tensorflow.Training(problem, arrays, peer == "xla", variant)
    return Operator(problem, arrays, peer, variant)
