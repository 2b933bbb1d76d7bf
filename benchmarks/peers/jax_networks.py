"""Run training steps in JAX: forward, gradients and update in one jit whose weights are donated."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.graphs import forms, interpreter
from benchmarks.models import NetworkCase
from einsmith.bench.networks import LR


class JaxArrays:
    """JAX's functions of arrays, in one of the formulations."""

    def __init__(self, form: forms.Formulation):
        self.form = form

    reshape, transpose = staticmethod(jnp.reshape), staticmethod(jnp.transpose)
    concat, broadcast = staticmethod(jnp.concatenate), staticmethod(jnp.broadcast_to)
    einsum, sqrt, relu = staticmethod(jnp.einsum), staticmethod(jnp.sqrt), staticmethod(jax.nn.relu)
    clip, softmax, one_hot = staticmethod(jnp.clip), staticmethod(jax.nn.softmax), staticmethod(jax.nn.one_hot)

    def dense(self, x, w, turned):
        return x @ (w.T if turned else w)

    def sum(self, a, axes, keep):
        return a.sum(tuple(axes), keepdims=keep)

    def mean(self, a, axes, keep):
        return a.mean(tuple(axes), keepdims=keep)

    def gelu(self, a, tanh):
        return jax.nn.gelu(a, approximate=tanh)

    def gather(self, table, ids):
        return table[ids]

    def layer_norm(self, x, scale, shift, eps):
        return jax.nn.standardize(x, -1, epsilon=eps) * scale + shift

    def batch_norm(self, x, scale, shift, eps):
        mean = x.mean((0, 1, 2))
        variance = jnp.square(x - mean).mean((0, 1, 2))
        n = x.size // x.shape[-1]
        return (x - mean) * (lax.rsqrt(variance + eps) * scale) + shift, mean, variance * (n / (n - 1))

    def conv(self, x, w, stride, padding, dilation, groups):
        if w.shape[:2] == (1, 1) and (self.form.products if groups == 1 else self.form.slices):
            return forms.product(self, x, w, stride, groups)
        if self.form.slices and groups == x.shape[3] == w.shape[3]:
            return forms.taps(jnp.pad(x, ((0, 0), *padding, (0, 0))), w, stride)
        return lax.conv_general_dilated(
            x, w, stride, padding, rhs_dilation=dilation, feature_group_count=groups,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )  # fmt: skip

    def conv_transpose(self, x, w):
        """Multiply, and put the rows of the product where they belong: the windows do not overlap."""
        y = jnp.einsum("bhwi,iokl->bhkwlo", x, w)
        b, h, k, v, m, o = y.shape
        return y.reshape(b, h * k, v * m, o)

    def max_pool(self, x, size, stride, padding):
        if self.form.slices:
            if any(n for pair in padding for n in pair):
                x = jnp.pad(x, ((0, 0), *padding, (0, 0)), constant_values=-jnp.inf)
            return forms.pooled(x, size, stride, jnp.maximum)
        pads = ((0, 0), *padding, (0, 0))
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, *size, 1), (1, *stride, 1), pads)

    def average_pool(self, x, size, stride, padding):
        pads = ((0, 0), *padding, (0, 0))
        total = lax.reduce_window(x, 0.0, lax.add, (1, *size, 1), (1, *stride, 1), pads)
        return total * (1 / (size[0] * size[1]))

    def attention(self, q, k, v, causal):
        return jax.nn.dot_product_attention(q, k, v, is_causal=causal)

    def cross_entropy(self, logits, labels):
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1).mean()


def variants(problem: NetworkCase, peer: str) -> tuple[str, ...]:
    """Return the names of the formulations to choose from."""
    return tuple(f.name for f in forms.applicable(problem.graph()))


class JaxTraining:
    """A training step of a network's graph by `jax.value_and_grad`; `arrays_of` makes the library of a formulation."""

    arrays_of: type[JaxArrays] = JaxArrays

    def __init__(self, problem: NetworkCase, arrays: dict[str, np.ndarray], variant: str):
        graph, lib = problem.graph(), self.arrays_of(forms.by_name(variant))
        self.held = held = interpreter.orders(graph)
        self.parameters = graph.parameters
        self.restart(arrays)

        def loss(p, buffers, x, y):
            return interpreter.loss(graph, lib, {**p, **buffers, "x": x, "y": y}, held)

        @partial(jax.jit, donate_argnums=(0, 1))
        def step(p, buffers, x, y):
            (value, updates), g = jax.value_and_grad(loss, has_aux=True)(p, buffers, x, y)
            return {n: p[n] - LR * g[n] for n in p}, {**buffers, **updates}, value

        self._step = step

    def restart(self, arrays: dict[str, np.ndarray]) -> None:
        """Begin again from these values."""
        given = {n: jnp.asarray(a) for n, a in interpreter.held_arrays(arrays, self.held).items()}
        self.x, self.y = given.pop("x"), given.pop("y")
        self.p = {n: given.pop(n) for n in self.parameters}
        self.buffers = given

    def step(self) -> float:
        """Train on the batch and return the loss."""
        self.p, self.buffers, loss = self._step(self.p, self.buffers, self.x, self.y)
        jax.block_until_ready((self.p, self.buffers))
        return float(loss)

    def results(self) -> dict[str, np.ndarray]:
        """Return the parameters and the running statistics."""
        return interpreter.told_arrays({n: np.asarray(v) for n, v in {**self.p, **self.buffers}.items()}, self.held)


def build(problem: NetworkCase, arrays: dict[str, np.ndarray], threads: int, peer: str, variant: str) -> JaxTraining:
    """Return the problem's session."""
    return JaxTraining(problem, arrays, variant)
