"""JAX on the card: the whole step in one jit whose weights are donated."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from benchmarks.gpu.peer_server import PeerServer, PeerStep
from benchmarks.gpu.problems import Case
from benchmarks.problem import Workload
from benchmarks.recurrent_steps import Recurrent

PRECISIONS = {"fp32": "highest", "tf32": "tensorfloat32", "bf16": "highest"}
"""Of products of float32; with bf16 the activations and weights of products are of that type."""


class JaxServer(PeerServer):
    """JAX."""

    def begin(self, fake: bool) -> None:
        """Import JAX. Raises ImportError; RuntimeError where it finds no card."""
        import jax

        self.fake, self.jax = fake, jax
        if fake:
            jax.config.update("jax_platforms", "cpu")
        elif jax.devices()[0].platform not in ("gpu", "cuda"):
            raise RuntimeError("JAX finds no card")

    def build(self, case: Case, precision: str, form: str) -> dict[str, Callable[[], PeerStep]]:
        """Return functions that set up a step, by the formulation of the library."""
        from benchmarks.worker import variants

        self.jax.config.update("jax_default_matmul_precision", PRECISIONS[precision])
        problem = case.problem()
        names = variants(problem, "jax")
        names = names if isinstance(problem, Recurrent) else names[:1]
        return {name: partial(JaxStep, self.jax, problem, precision, name) for name in names}


class JaxStep:
    """A training step."""

    def __init__(self, jax: Any, problem: Workload, precision: str, variant: str):
        from benchmarks.peers import jax as peer

        self.jax = jax
        arrays = problem.arrays()
        self._is_cell = isinstance(problem, Recurrent)
        if isinstance(problem, Recurrent):
            library = peer.library(peer.unrolled("jax", variant))
            if precision == "bf16":
                library = replace(library, linear=partial(_linear, jax))
            self._training: Any = peer.JaxRecurrent(problem, arrays, library)
        else:
            kind = _mixed(jax) if precision == "bf16" else peer.JaxTraining
            self._training = kind(problem, arrays, variant)
        self._hosts = [np.asarray(self._training.x), np.asarray(self._training.y)]

    def upload(self) -> None:
        """Copy the batch to the card once more."""
        self._training.x, self._training.y = map(self.jax.device_put, self._hosts)

    def step(self) -> Any:
        """Begin a step; return its loss."""
        t = self._training
        if self._is_cell:
            t.p, loss = t._step(t.p, t.x, t.state, t.y)
        else:
            t.p, t.buffers, loss = t._step(t.p, t.buffers, t.x, t.y)
        return loss

    def loss(self, found: Any) -> float:
        """Return a loss when it, and what the step updates, is there."""
        self.jax.block_until_ready(self._training.p)
        return float(found)

    def results(self) -> dict[str, np.ndarray]:
        """Return the parameters and the running statistics."""
        return {n: np.array(v) for n, v in self._training.results().items()}

    def seconds(self, count: int) -> float:
        """Return the seconds of a step among `count`, by the clock of this process, which waits before and after."""
        self.jax.block_until_ready(self._training.p)
        begun = time.perf_counter()
        for _ in range(count):
            self.step()
        self.jax.block_until_ready(self._training.p)
        return (time.perf_counter() - begun) / count


def _linear(jax: Any, x: Any, w: Any, b: Any) -> Any:
    """Multiply in bf16, and sum in float32."""
    jnp = jax.numpy
    y = jnp.matmul(x.astype(jnp.bfloat16), w.astype(jnp.bfloat16), preferred_element_type=jnp.float32)
    return y if b is None else y + b


NARROW = ("dense", "conv", "conv_transpose", "einsum", "attention")
"""Functions of a library whose arrays are bf16."""
WIDE = ("softmax", "layer_norm", "cross_entropy", "batch_norm")
"""Functions of a library whose arrays are float32."""


def _mixed(jax: Any) -> type:
    """Return the training step whose activations, and weights in products, are bf16; weights, norms, softmax and losses
    stay in float32, as with PyTorch's autocast."""
    from benchmarks.peers.jax import JaxArrays, JaxTraining

    narrow, wide = jax.numpy.bfloat16, jax.numpy.float32
    types = dict.fromkeys(NARROW, (wide, narrow)) | dict.fromkeys(WIDE, (narrow, wide))

    class MixedArrays(JaxArrays):
        """JAX's functions of arrays, each of which converts its arrays to the type that it computes in."""

        def __getattribute__(self, name: str) -> Any:
            f = super().__getattribute__(name)
            if name not in types:
                return f
            source, target = types[name]
            return lambda *xs: f(*(x.astype(target) if getattr(x, "dtype", None) == source else x for x in xs))

        def batch_norm(self, x, scale, shift, eps):
            y, mean, variance = super().batch_norm(x, scale, shift, eps)
            return y.astype(narrow), mean, variance

    class MixedTraining(JaxTraining):
        arrays_of = MixedArrays

    return MixedTraining
