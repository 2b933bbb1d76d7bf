"""Run recurrent networks in JAX: lax.scan, or the loop unrolled; the whole step in one jit with the weights donated."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.peers.recurrent_cells import Arrays, CellLibrary, State, Step, lstm_layers, networks, to_peer
from benchmarks.recurrent_steps import LR, Recurrent

VARIANTS = {"jax": ("scan", "scan, 4 steps a turn")}


def variants(problem: Recurrent, peer: str) -> tuple[str, ...]:
    """Return the formulations to choose from."""
    return VARIANTS.get(peer, ("",))


def library(unroll: int | None) -> CellLibrary:
    """Return JAX's operations. unroll: steps in a turn of the scan, None for a loop in Python."""

    def loop(step: Step, p: Arrays, state: State, xs: tuple, collect: bool) -> tuple[State, Any]:
        if unroll is None:
            out = []
            for t in range(xs[0].shape[0]):
                state = step(p, state, tuple(x[t] for x in xs))
                out.append(state[0])
            return state, jnp.stack(out) if collect else None

        def turn(state: State, at: tuple) -> tuple[State, Any]:
            state = step(p, state, at)
            return state, state[0] if collect else None

        return lax.scan(turn, state, xs, unroll=unroll)

    return CellLibrary(
        linear=lambda x, w, b: x @ w if b is None else x @ w + b,
        inputs=lambda w, start, stop: w[start:stop],
        sigmoid=jax.nn.sigmoid,
        tanh=jnp.tanh,
        elu=jax.nn.elu,
        muladd=lambda a, b, c: a * b + c,
        concat=lambda parts: jnp.concatenate(parts, -1),
        loop=loop,
    )


class JaxRecurrent:
    """A training step of a recurrent network. o: JAX's operations (`library`)."""

    def __init__(self, problem: Recurrent, arrays: dict[str, np.ndarray], o: CellLibrary):
        words = problem.network == "lstm_lm"
        self.x = jnp.asarray(arrays["x"].astype(np.int32) if words else arrays["x"])
        self.y = jnp.asarray(arrays["y"].astype(np.int32))
        self.state = tuple(jnp.asarray(arrays[n]) for n in problem.states)
        self.p = {n: jnp.asarray(to_peer(n, arrays[n]).copy()) for n in problem.results}

        def cross_entropy(logits, y):
            return -jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], 1).mean()

        if words:
            layers = lstm_layers(o)

            def loss(p, rows, x, state, y):
                h = layers(p, rows, state)
                flat = h.reshape(-1, h.shape[-1])
                return cross_entropy(o.linear(flat, p["decoder.weight"], p["decoder.bias"]), y)

            @partial(jax.jit, donate_argnums=0)
            def step(p, x, state, y):
                # The gradient by the rows that were read, so that only those of the table are touched.
                dense = {n: v for n, v in p.items() if n != "embedding.weight"}
                rows = p["embedding.weight"][x]
                value, (g, d) = jax.value_and_grad(loss, (0, 1))(dense, rows, x, state, y)
                new = {n: dense[n] - LR * g[n] for n in dense}
                return new | {"embedding.weight": p["embedding.weight"].at[x].add(-LR * d)}, value

        else:
            network = networks(o)[problem.network]

            @partial(jax.jit, donate_argnums=0)
            def step(p, x, state, y):
                value, g = jax.value_and_grad(lambda p: cross_entropy(network(p, x, state), y))(p)
                return {n: p[n] - LR * g[n] for n in p}, value

        self._step = step

    def step(self) -> float:
        """Train on the batch and return the loss."""
        self.p, loss = self._step(self.p, self.x, self.state, self.y)
        jax.block_until_ready(self.p)
        return float(loss)

    def results(self) -> dict[str, np.ndarray]:
        """Return the parameters."""
        return {n: to_peer(n, np.asarray(v)) for n, v in self.p.items()}


def unrolled(peer: str, variant: str) -> int | None:
    """Return the steps in a turn of the scan, by a peer and its formulation; None for a loop in Python."""
    return None if peer == "jax-unrolled" else 4 if "4" in variant else 1


def build(problem: Recurrent, arrays: dict[str, np.ndarray], threads: int, peer: str, variant: str) -> JaxRecurrent:
    """Return the problem's session."""
    return JaxRecurrent(problem, arrays, library(unrolled(peer, variant)))
