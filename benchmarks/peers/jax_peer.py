"""JAX, the whole step in one jit with the weights donated."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.kernel_cases import Case
from benchmarks.peers import jax_kernels, jax_recurrent
from benchmarks.peers.jax_operators import OPERATORS
from benchmarks.problems import LR, Problem, Session
from benchmarks.recurrent_problems import Recurrent

VERSION = f"JAX {jax.__version__}"


def variants(problem: Problem, peer: str) -> tuple[str, ...] | None:
    if isinstance(problem, Case):
        return jax_kernels.variants(problem)
    if isinstance(problem, Recurrent):
        return jax_recurrent.variants(problem.network, peer)
    return tuple(OPERATORS.get(problem.network, ())) or None


def mlp3(p, x):
    h = jax.nn.relu(x @ p["fc1.weight"] + p["fc1.bias"])
    h = jax.nn.relu(h @ p["fc2.weight"] + p["fc2.bias"])
    return h @ p["fc3.weight"] + p["fc3.bias"]


def _conv(x, w, padding):
    return lax.conv_general_dilated(x, w, (1, 1), padding, dimension_numbers=("NHWC", "HWIO", "NHWC"))


def _pool(x):
    """Max pooling 2x2 by slices: its gradient runs far faster here than reduce_window's or a reshape's."""
    x = jnp.maximum(x[:, ::2], x[:, 1::2])
    return jnp.maximum(x[:, :, ::2], x[:, :, 1::2])


def lenet5(p, x):
    h = _pool(jax.nn.relu(_conv(x, p["conv1.weight"], [(2, 2), (2, 2)]) + p["conv1.bias"]))
    h = _pool(jax.nn.relu(_conv(h, p["conv2.weight"], "VALID") + p["conv2.bias"]))
    return mlp3(p, h.transpose(0, 3, 1, 2).reshape(h.shape[0], -1))


NETWORKS = {"mlp3": mlp3, "lenet5": lenet5}


def to_peer(name: str, a: np.ndarray) -> np.ndarray:
    """Weights as [in, out] and [height, width, in, out], images with the channels last: the fast layouts."""
    if name == "x":
        return a.transpose(0, 2, 3, 1) if a.ndim == 4 else a
    return a.transpose(2, 3, 1, 0) if a.ndim == 4 else a.T


def from_peer(name: str, a: np.ndarray) -> np.ndarray:
    return a.transpose(3, 2, 0, 1) if a.ndim == 4 else a.T


class Training:
    def __init__(self, problem: Problem, arrays: dict[str, np.ndarray]):
        network = NETWORKS[problem.network]
        self.x, self.y = jnp.asarray(to_peer("x", arrays["x"]).copy()), jnp.asarray(arrays["y"].astype(np.int32))
        self.p = {n: jnp.asarray(to_peer(n, arrays[n]).copy()) for n in problem.results}

        def loss(p, x, y):
            logits = jax.nn.log_softmax(network(p, x))
            return -jnp.take_along_axis(logits, y[:, None], 1).mean()

        @partial(jax.jit, donate_argnums=0)
        def step(p, x, y):
            value, g = jax.value_and_grad(loss)(p, x, y)
            return {n: p[n] - LR * g[n] for n in p}, value

        self._step = step

    def step(self) -> float:
        self.p, loss = self._step(self.p, self.x, self.y)
        jax.block_until_ready(self.p)
        return float(loss)

    def results(self) -> dict[str, np.ndarray]:
        return {n: from_peer(n, np.asarray(v)) for n, v in self.p.items()}


class Operator:
    def __init__(self, problem: Problem, arrays: dict[str, np.ndarray], variant: str):
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


def build(problem: Problem, arrays: dict[str, np.ndarray], threads: int, peer: str, variant: str = "") -> Session:
    if isinstance(problem, Case):
        return jax_kernels.build(problem, arrays, variant)
    if isinstance(problem, Recurrent):
        return jax_recurrent.build(problem, arrays, peer, variant)
    return Training(problem, arrays) if problem.training else Operator(problem, arrays, variant)
