"""JAX, the whole step in one jit with the weights donated."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.kernel_cases import Case
from benchmarks.models import Model, in_jax
from benchmarks.peers import jax_kernels, jax_recurrent
from benchmarks.peers.jax_operators import OPERATORS
from benchmarks.recurrent_problems import Recurrent
from einsmith.bench.problem import Session, Workload

VERSION = f"JAX {jax.__version__}"


def variants(problem: Workload, peer: str) -> tuple[str, ...] | None:
    if isinstance(problem, Case):
        return jax_kernels.variants(problem)
    if isinstance(problem, Recurrent):
        return jax_recurrent.variants(problem.network, peer)
    if isinstance(problem, Model):
        return in_jax.variants(problem, peer)
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
    if isinstance(problem, Recurrent):
        return jax_recurrent.build(problem, arrays, peer, variant)
    if isinstance(problem, Model):
        return in_jax.Training(problem, arrays, variant)
    return Operator(problem, arrays, variant)
