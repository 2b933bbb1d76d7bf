"""TensorFlow, the whole step in one tf.function, with and without XLA."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from benchmarks.kernel_cases import Case
from benchmarks.peers import tensorflow_kernels
from benchmarks.peers.tensorflow_operators import PLAIN, XLA
from einsmith.bench.networks import NetworkStep
from einsmith.bench.peers import tensorflow_peer
from einsmith.bench.problem import Session, Workload
from einsmith.bench.recurrent import Recurrent

VERSION = tensorflow_peer.VERSION


def formulations(peer: str) -> dict[str, dict]:
    return XLA if peer == "xla" else PLAIN


def variants(problem: Workload, peer: str) -> tuple[str, ...] | None:
    if isinstance(problem, Case):
        return tensorflow_kernels.variants(problem)
    if isinstance(problem, (NetworkStep, Recurrent)):
        return tensorflow_peer.variants(problem, peer)
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
    if isinstance(problem, (NetworkStep, Recurrent)):
        return tensorflow_peer.build(problem, arrays, threads, peer, variant)
    return Operator(problem, arrays, peer, variant)
