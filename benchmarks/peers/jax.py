"""JAX: one jit for each step, whose weights are donated in training, in the formulations that are fastest there."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from operator import add
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.graphs import forms, interpreter
from benchmarks.graphs.forms import Formulation
from benchmarks.kernel_cases import Case
from benchmarks.models import NetworkCase
from benchmarks.peers import Form, applicable, forms_of
from benchmarks.peers.formulations import Operators, kernels
from benchmarks.peers.recurrent_cells import Arrays, CellLibrary, State, Step, lstm_layers, networks, to_peer
from benchmarks.recurrent_steps import LR, Recurrent, RecurrentForward
from einsmith.bench.networks import LR as NETWORK_LR


class JaxArrays:
    """JAX's functions of arrays, in one of the formulations (`graphs.interpreter.Library`, `formulations`)."""

    def __init__(self, form: forms.Formulation):
        self.form = form

    reshape, transpose = staticmethod(jnp.reshape), staticmethod(jnp.transpose)
    concat, broadcast = staticmethod(jnp.concatenate), staticmethod(jnp.broadcast_to)
    einsum, sqrt, relu = staticmethod(jnp.einsum), staticmethod(jnp.sqrt), staticmethod(jax.nn.relu)
    clip, softmax, one_hot = staticmethod(jnp.clip), staticmethod(jax.nn.softmax), staticmethod(jax.nn.one_hot)
    exp, maximum, floor, where = map(staticmethod, (jnp.exp, jnp.maximum, jnp.floor, jnp.where))
    cumsum, pad, constant, biased = map(staticmethod, (jnp.cumsum, jnp.pad, jnp.asarray, add))

    def integer(self, a):
        return a.astype(int)

    def total(self, parts):
        return reduce(add, parts)

    def product(self, a, b, ta, tb):
        return (a.mT if ta else a) @ (b.mT if tb else b)

    def pick(self, x, row, column):
        batch = jnp.arange(x.shape[0]).reshape((-1,) + (1,) * (row.ndim - 1))
        return x[batch, :, row, column]

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
            return forms.taps(jnp.pad(x, ((0, 0), *padding, (0, 0))), w, stride, dilation)
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


# ------------------------------------------------------------------------------------------------------------ operators


def capsule_conv(a, w, stride):
    """Windows stacked from slices, then one matrix product: the fastest here of gather + einsum, convolution, and a
    sum of products, at both strides."""
    b, c, h, _, i, m = a.shape
    k, _, r, s, _, j = w.shape
    n = (h - r) // stride + 1
    end = stride * (n - 1) + 1
    x = a.transpose(0, 2, 3, 4, 1, 5)
    x = jnp.stack([x[:, y : y + end : stride, z : z + end : stride] for y in range(r) for z in range(s)], 4)
    f = w.transpose(2, 3, 1, 4, 0, 5).reshape(r * s * c * m, k * j)
    y = x.reshape(b * n * n * i, r * s * c * m) @ f
    return y.reshape(b, n, n, i, k, j).transpose(0, 4, 1, 2, 3, 5)


def _gathered(a, b, chosen):
    return jnp.take_along_axis(a, chosen, 1) + jnp.take_along_axis(b, chosen, 0)


def max_plus_steps(a, b):
    """The chosen k by one step for each k over the whole matrix, then two gathers, whose gradients are scatters."""
    left, right = lax.stop_gradient(a), lax.stop_gradient(b)

    def step(k, state):
        best, chosen = state
        c = lax.dynamic_slice_in_dim(left, k, 1, 1) + lax.dynamic_slice_in_dim(right, k, 1, 0)
        return jnp.maximum(best, c), jnp.where(c > best, k, chosen)

    start = (jnp.full((a.shape[0], b.shape[1]), -jnp.inf), jnp.zeros((a.shape[0], b.shape[1]), jnp.int32))
    _, chosen = lax.fori_loop(0, a.shape[1], step, start)
    return _gathered(a, b, chosen)


def max_plus_rows(a, b):
    """The same for eight rows at a time, which stay in the cache over all k."""
    left, right = lax.stop_gradient(a), lax.stop_gradient(b)

    def rows(block):
        def step(state, k_and_b):
            best, chosen = state
            k, row, column = k_and_b
            c = column[:, None] + row
            return (jnp.maximum(best, c), jnp.where(c > best, k, chosen)), None

        start = (jnp.full((8, b.shape[1]), -jnp.inf), jnp.zeros((8, b.shape[1]), jnp.int32))
        return lax.scan(step, start, (jnp.arange(a.shape[1]), right, block.T))[0][1]

    chosen = lax.map(rows, left.reshape(-1, 8, a.shape[1])).reshape(a.shape[0], b.shape[1])
    return _gathered(a, b, chosen)


def max_plus_argmax(a, b):
    """The chosen k of all sums, then two gathers."""
    return _gathered(a, b, jnp.argmax(lax.stop_gradient(a)[:, :, None] + lax.stop_gradient(b), 1))


def max_plus_whole(a, b):
    """The maximum of all sums."""
    return (a[:, :, None] + b).max(1)


def involution_stacked(x, k):
    """All windows stacked from slices, then a product and a sum."""
    b, g, _, h, w = x.shape
    x = jnp.pad(x, ((0, 0), (0, 0), (0, 0), (3, 3), (3, 3)))
    windows = jnp.stack([x[..., r : r + h, s : s + w] for r in range(7) for s in range(7)], 3)
    return (windows * k.reshape(b, g, 1, 49, h, w)).sum(3)


def running_sum_scan(x):
    """The library's parallel scan."""
    return lax.associative_scan(jnp.add, x, axis=1)


SHARED = Operators(JaxArrays(Formulation()))
OPERATORS: dict[str, dict[str, Callable]] = {
    "capsule_conv": {"windows and a product": capsule_conv},
    "capsule_composed": {"eight convolutions": SHARED.capsule_composed},
    "pairwise": {"product": SHARED.pairwise_product, "differences": SHARED.pairwise_differences},
    "max_plus": {
        "a step for each k": max_plus_steps,
        "steps by rows": max_plus_rows,
        "argmax": max_plus_argmax,
        "maximum": max_plus_whole,
    },
    "local_attention": {"blocks": SHARED.local_attention},
    "relative_bias": {"gather": SHARED.relative_bias_gather, "skewed": SHARED.relative_bias_skewed},
    "relative_keys": {"skewed": SHARED.relative_keys_skewed, "table": SHARED.relative_keys_table},
    "depthwise": {"taps": SHARED.depthwise_taps, "grouped convolution": SHARED.depthwise_conv},
    "bilinear": {"matrix": SHARED.bilinear_matrix, "outer": SHARED.bilinear_outer},
    "gaussian_kernel": {"product": SHARED.gaussian_product, "differences": SHARED.gaussian_differences},
    "involution": {"taps": SHARED.involution_taps, "stacked windows": involution_stacked},
    "tensor_train": {"einsum": SHARED.tensor_train},
    "running_sum": {"library": SHARED.running_sum, "scan": running_sum_scan},
    "grid_sample": {"gather": SHARED.grid_sample},
    "deformable": {"gather and a product": SHARED.deformable},
}


# -------------------------------------------------------------------------------------------------------------- kernels


def batch_norm_first(x, scale, shift):
    """The same with the channels first."""
    scale, shift = scale[:, None, None], shift[:, None, None]
    mean = x.mean((0, 2, 3), keepdims=True)
    variance = jnp.square(x - mean).mean((0, 2, 3), keepdims=True)
    return (x - mean) * (lax.rsqrt(variance + 1e-5) * scale) + shift


def relu_pool_first(x):
    """The same with the channels first."""
    x = jnp.maximum(jax.nn.relu(x[:, :, ::2]), jax.nn.relu(x[:, :, 1::2]))
    return jnp.maximum(x[..., ::2], x[..., 1::2])


KERNELS = kernels(JaxArrays, Formulation(slices=True))
KERNELS["batch_norm"]["channels first"] = Form(batch_norm_first)
KERNELS["relu_pool"]["channels first"] = Form(relu_pool_first)


class Kernel:
    """The forward, or gradients of which the compiler removes the forward's unused parts, or both."""

    def __init__(self, case: Case, arrays: dict[str, np.ndarray], variant: str):
        form = forms_of(case.network, KERNELS, OPERATORS)[variant]
        xs = {n: jnp.asarray(form.to_peer(n, a).copy()) for n, a in arrays.items()}
        options = dict(case.options)

        def f(inputs):
            return form.function(*(inputs[n] for n in case.inputs), **options)

        def both(xs):
            part = {n: xs[n] for n in case.wrt}
            if case.is_loss:
                loss, d = jax.value_and_grad(lambda part: (f(xs | part) * xs["G"]).sum())(part)
                return (loss, *(d[n] for n in case.wrt))
            y, pull = jax.vjp(lambda part: f(xs | part), part)
            (d,) = pull(xs["G"])
            return (*((y,) if case.with_forward else ()), *(d[n] for n in case.wrt))

        self._f, self._xs = jax.jit(both if case.wrt else lambda xs: (f(xs),)), xs
        self._form, self._names, self._is_loss = form, case.results, case.is_loss

    def step(self) -> float:
        out = jax.block_until_ready(self._f(self._xs))
        self._out = out[self._is_loss :]
        return float(out[0]) if self._is_loss else 0.0

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


# ------------------------------------------------------------------------------------------------------------- training


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
            return {n: p[n] - NETWORK_LR * g[n] for n in p}, {**buffers, **updates}, value

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


class JaxForward:
    """The output of a function of arrays in one jit."""

    def __init__(self, f: Callable[..., Any], *given: Any):
        self.f, self.given = jax.jit(f), given

    def step(self) -> float:
        """Run the forward pass; there is no loss."""
        self.output = jax.block_until_ready(self.f(*self.given))
        return 0.0

    def results(self) -> dict[str, np.ndarray]:
        """Return the output."""
        return {"output": np.asarray(self.output)}


def forward(problem: Any, arrays: dict[str, np.ndarray], peer: str, variant: str) -> JaxForward:
    """Return the session of a problem without training."""
    if isinstance(problem, RecurrentForward):
        p = {n: jnp.asarray(to_peer(n, arrays[n]).copy()) for n in problem.weights}
        network = networks(library(unrolled(peer, variant)))[problem.network]
        return JaxForward(network, p, jnp.asarray(arrays["x"]), tuple(jnp.asarray(arrays[n]) for n in problem.states))
    graph, lib = problem.graph(), JaxArrays(forms.by_name(variant))
    held = interpreter.orders(graph)
    given = {n: jnp.asarray(a) for n, a in interpreter.held_arrays(arrays, held).items()}
    return JaxForward(lambda given: interpreter.loss(graph, lib, given, held)[0], given)


def unrolled(peer: str, variant: str) -> int | None:
    """Return the steps in a turn of the scan, by a peer and its formulation; None for a loop in Python."""
    return None if peer == "jax-unrolled" else 4 if "4" in variant else 1


def variants(problem: Any, peer: str) -> tuple[str, ...]:
    """Return the names of the formulations to choose from."""
    if isinstance(problem, NetworkCase):
        return tuple(f.name for f in forms.applicable(problem.graph()))
    if isinstance(problem, Recurrent):
        return ("scan", "scan, 4 steps a turn") if peer == "jax" else ("",)
    if problem.network == "adam":
        return ("",)
    return applicable(forms_of(problem.network, KERNELS, OPERATORS), problem.shapes or {}, problem.options)


def build(problem: Any, arrays: dict[str, np.ndarray], threads: int, peer: str, variant: str) -> Any:
    """Return the problem's session."""
    if problem.task != "step":
        raise NotImplementedError(f"JAX has no session for the {problem.task} alone")
    if isinstance(problem, NetworkCase | Recurrent) and not problem.training:
        return forward(problem, arrays, peer, variant)
    if isinstance(problem, NetworkCase):
        return JaxTraining(problem, arrays, variant)
    if isinstance(problem, Recurrent):
        return JaxRecurrent(problem, arrays, library(unrolled(peer, variant)))
    return Adam(problem, arrays) if problem.network == "adam" else Kernel(problem, arrays, variant)
