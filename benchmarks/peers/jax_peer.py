"""JAX, the whole step in one jit with the weights donated."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.kernel_cases import Case
from benchmarks.peers import jax_kernels
from benchmarks.peers.jax_operators import OPERATORS
from einsmith.bench.networks import NetworkStep
from einsmith.bench.peers import jax_peer
from einsmith.bench.problem import Session, Workload
from einsmith.bench.recurrent import Recurrent

VERSION = jax_peer.VERSION


def variants(problem: Workload, peer: str) -> tuple[str, ...] | None:
    if isinstance(problem, Case):
        return jax_kernels.variants(problem)
    if isinstance(problem, (NetworkStep, Recurrent)):
        return jax_peer.variants(problem, peer)
    return tuple(OPERATORS.get(problem.network, ())) or None


class Operator:
    def __init__(self, problem: Workload, arrays: dict[str, np.ndarray], variant: str):
        operator = OPERATORS[problem.network][variant]
        self.inputs, self.g = tuple(jnp.asarray(arrays[n]) for n in problem.inputs), jnp.asarray(arrays["G"])
        self.names = problem.results

        def loss(xs, g):
            return (operator(*xs, **problem.options) * g).sum()

        self._step = jax.jit(jax.value_and_grad(loss))

    def step(self) -> float:
        loss, self.grads = self._step(self.inputs, self.g)
        jax.block_until_ready(self.grads)
        return float(loss)

    def results(self) -> dict[str, np.ndarray]:
        return {n: np.asarray(g) for n, g in zip(self.names, self.grads, strict=True)}


def build(problem: Workload, arrays: dict[str, np.ndarray], threads: int, peer: str, variant: str = "") -> Session:
    if isinstance(problem, Case):
        return jax_kernels.build(problem, arrays, variant)
    if isinstance(problem, (NetworkStep, Recurrent)):
        return jax_peer.build(problem, arrays, threads, peer, variant)
    return Operator(problem, arrays, variant)
