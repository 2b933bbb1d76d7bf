"""The single kernels in JAX: by name, the formulations among which the fastest is chosen."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.kernel_cases import Case
from benchmarks.peers import LAST, Form, applicable, depthwise, of_one_element
from benchmarks.peers.jax_operators import OPERATORS

FILTER = (2, 3, 1, 0)  # [height, width, in, out]
IMAGE = {"X": LAST, "Y": LAST}


def product(a, b, ta, tb):
    return (a.mT if ta else a) @ (b.mT if tb else b)


def conv(x, w, stride, padding, dilation, groups):
    return lax.conv_general_dilated(
        x, w, (stride, stride), [(padding, padding)] * 2, dimension_numbers=("NHWC", "HWIO", "NHWC"),
        rhs_dilation=(dilation, dilation), feature_group_count=groups,
    )  # fmt: skip


def conv_product(x, w, stride, padding, dilation, groups):
    """A kernel of one element as a product."""
    x = x[:, ::stride, ::stride]
    return (x.reshape(-1, x.shape[3]) @ w[0, 0]).reshape(*x.shape[:3], -1)


def conv_taps(x, w, stride, padding, dilation, groups):
    """Each channel a group: a sum over the taps of shifted images."""
    k, n = w.shape[0], (x.shape[1] + 2 * padding - dilation * (w.shape[0] - 1) - 1) // stride + 1
    x, end = jnp.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0))), stride * (n - 1) + 1
    at = [slice(dilation * r, dilation * r + end, stride) for r in range(k)]
    return sum(x[:, at[r], at[s]] * w[r, s, 0] for r in range(k) for s in range(k))


def _whole_product(shapes, options):
    return of_one_element(shapes, options) and options["groups"] == 1


def pool(x):
    """Max pooling 2x2 by slices: its gradient runs far faster here than reduce_window's or a reshape's."""
    x = jnp.maximum(x[:, ::2], x[:, 1::2])
    return jnp.maximum(x[:, :, ::2], x[:, :, 1::2])


def conv_relu_pool(x, w, bias, padding):
    return pool(jax.nn.relu(conv(x, w, 1, padding, 1, 1) + bias))


def softmax(x):
    return jax.nn.softmax(x, 1)


def layer_norm(x, scale, shift):
    return jax.nn.standardize(x, 1, epsilon=1e-5) * scale + shift


def batch_norm(axis, x, scale, shift):
    others = tuple(a for a in range(4) if a != axis)
    scale, shift = jnp.expand_dims(scale, others), jnp.expand_dims(shift, others)
    mean = x.mean(others, keepdims=True)
    variance = jnp.square(x - mean).mean(others, keepdims=True)
    return (x - mean) * (lax.rsqrt(variance + 1e-5) * scale) + shift


def relu_pool(x):
    return pool(jax.nn.relu(x))


def relu_pool_first(x):
    x = jnp.maximum(jax.nn.relu(x[:, :, ::2]), jax.nn.relu(x[:, :, 1::2]))
    return jnp.maximum(x[..., ::2], x[..., 1::2])


def bias_gelu(x, bias):
    return jax.nn.gelu(x + bias, approximate=False)


KERNELS: dict[str, dict[str, Form]] = {
    "product": {"library": Form(product)},
    "conv": {
        "library": Form(conv, IMAGE | {"W": FILTER}),
        "product": Form(conv_product, IMAGE | {"W": FILTER}, _whole_product),
        "taps": Form(conv_taps, IMAGE | {"W": FILTER}, depthwise),
    },
    "conv_relu_pool": {"library": Form(conv_relu_pool, IMAGE | {"W": FILTER})},
    "softmax": {"library": Form(softmax)},
    "layer_norm": {"library": Form(layer_norm)},
    "batch_norm": {
        "channels first": Form(partial(batch_norm, 1)),
        "channels last": Form(partial(batch_norm, 3), IMAGE),
    },
    "relu_pool": {"channels last": Form(relu_pool, IMAGE), "channels first": Form(relu_pool_first)},
    "bias_gelu": {"library": Form(bias_gelu)},
    "capsule_conv": {name: Form(f) for name, f in OPERATORS["capsule_conv"].items()},
}


class Kernel:
    """The forward, or gradients of which the compiler removes the forward's unused parts, or both."""

    def __init__(self, case: Case, arrays: dict[str, np.ndarray], variant: str):
        form = KERNELS[case.network][variant]
        xs = {n: jnp.asarray(form.to_peer(n, a).copy()) for n, a in arrays.items()}
        options = dict(case.options)

        def f(inputs):
            return form.function(*(inputs[n] for n in case.inputs), **options)

        def both(xs):
            part = {n: xs[n] for n in case.wrt}
            y, pull = jax.vjp(lambda part: f(xs | part), part)
            (d,) = pull(xs["G"])
            return (*((y,) if case.with_forward else ()), *(d[n] for n in case.wrt))

        self._f, self._xs = jax.jit(both if case.wrt else lambda xs: (f(xs),)), xs
        self._form, self._names = form, case.results

    def step(self) -> float:
        self._out = jax.block_until_ready(self._f(self._xs))
        return 0.0

    def results(self) -> dict[str, np.ndarray]:
        out = zip(self._names, self._out, strict=True)
        return {n: self._form.from_peer(n, np.asarray(a)) for n, a in out}


class Adam:
    """The update in one jit, everything but the gradient donated."""

    def __init__(self, case: Case, arrays: dict[str, np.ndarray]):
        self._state = {n: jnp.asarray(arrays[n].copy()) for n in "pmv"}
        self._g, self._t = jnp.asarray(arrays["g"]), 0

        @partial(jax.jit, donate_argnums=0)
        def step(state, g, t):
            m, v = 0.9 * state["m"] + 0.1 * g, 0.999 * state["v"] + 0.001 * g * g
            rate, root = 1e-3 / (1 - 0.9**t), lax.rsqrt(1 - 0.999**t)
            return {"p": state["p"] - rate * m / (jnp.sqrt(v) * root + 1e-8), "m": m, "v": v}

        self._step = step

    def step(self) -> float:
        self._t += 1
        self._state = jax.block_until_ready(self._step(self._state, self._g, float(self._t)))
        return 0.0

    def results(self) -> dict[str, np.ndarray]:
        return {n: np.asarray(a) for n, a in self._state.items()}


def variants(case: Case, peer: str) -> tuple[str, ...]:
    return ("",) if case.network == "adam" else applicable(KERNELS[case.network], case.shapes or {}, case.options)


def build(case: Case, arrays: dict[str, np.ndarray], threads: int, peer: str, variant: str) -> Kernel | Adam:
    return Adam(case, arrays) if case.network == "adam" else Kernel(case, arrays, variant)
