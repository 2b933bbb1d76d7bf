"""Run training steps in JAX: the whole step in one jit with the weights donated."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from einsmith.bench.networks import LR, NetworkStep
from einsmith.bench.peers.images_last import ChannelsLast
from einsmith.bench.problem import Session

VERSION = f"JAX {jax.__version__}"


class JaxTraining:
    """A training step by `jax.value_and_grad`."""

    def __init__(self, problem: NetworkStep, arrays: dict[str, np.ndarray]):
        self.layers, self.names, self.order = problem.layers, problem.results, ChannelsLast(problem, arrays)
        self.x, self.y = jnp.asarray(self.order.to_peer("x", arrays["x"])), jnp.asarray(arrays["y"])
        self.restart(arrays)

        @partial(jax.jit, donate_argnums=0)
        def step(p, x, y):
            value, g = jax.value_and_grad(self.loss)(p, x, y)
            return {n: p[n] - LR * g[n] for n in p}, value

        self._step = step

    def restart(self, arrays: dict[str, np.ndarray]) -> None:
        """Begin again from these values."""
        self.p = {n: jnp.asarray(self.order.to_peer(n, arrays[n])) for n in self.names}

    def loss(self, p, x, y):
        """Return the loss of a batch for the parameters p."""
        for layer in self.layers:
            if layer.kind == "linear":
                x = x @ p[f"{layer.name}.weight"] + p[f"{layer.name}.bias"]
            elif layer.kind == "conv":
                pads = ((layer.padding, layer.padding),) * 2
                dimensions = ("NHWC", "HWIO", "NHWC")
                x = lax.conv_general_dilated(x, p[f"{layer.name}.weight"], (1, 1), pads, dimension_numbers=dimensions)
                x = x + p[f"{layer.name}.bias"]
            elif layer.kind == "relu":
                x = jax.nn.relu(x)
            elif layer.kind == "pool":
                x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
            else:
                x = x.reshape(len(x), -1)
        return -jnp.take_along_axis(jax.nn.log_softmax(x), y[:, None], 1).mean()

    def step(self) -> float:
        """Train on the batch and return the loss."""
        self.p, loss = self._step(self.p, self.x, self.y)
        jax.block_until_ready(self.p)
        return float(loss)

    def results(self) -> dict[str, np.ndarray]:
        """Return the parameters."""
        return {n: self.order.from_peer(n, np.asarray(v)) for n, v in self.p.items()}


def build(problem: NetworkStep, arrays: dict[str, np.ndarray], threads: int, peer: str) -> Session:
    """Return the problem's session."""
    return JaxTraining(problem, arrays)
